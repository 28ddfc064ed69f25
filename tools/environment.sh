# Sourced by tools/test, tools/demo and tools/docs: makes .venv in the repository and keeps it while pyproject.toml stays.
#
#     make_environment [EXTRAS]     afterwards the repository's commands are in $environment/bin
#
# What is installed is written into .venv/installed, the checksum of pyproject.toml first and then the extras.
# Extras are only ever added, so that callers with different extras share the environment.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=$repository/.venv

# Hundreds of processes import the package and its libraries: where no bytecode is kept, each compiles them anew.
unset PYTHONDONTWRITEBYTECODE

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 1
}

# The first command that runs as Python 3.11 or newer. A name can exist and still not run (version managers
# leave such names behind), so each is asked.
find_python() {
    local name
    for name in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer here (tried python3, python3.11 to 3.14 and python): install one and retry"
}

# Without ensurepip (some distributions package it apart) the environment borrows the pip of the Python it
# is from.
create_environment() {
    local python
    python=$(find_python)
    echo "making $environment with $python ($("$python" --version))"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv --clear "$environment"
        pip=("$environment/bin/python" -m pip)
    elif "$python" -c 'import pip, venv' 2>/dev/null; then
        "$python" -m venv --clear --without-pip "$environment"
        pip=("$python" -m pip --python "$environment/bin/python")
    else
        fail "$python has neither ensurepip nor pip: install its pip (or its venv package) and retry"
    fi
}

make_environment() {
    local extras=${1:-} extra checksum installed had= missing= python pip
    if ! "$environment/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        rm -rf "$environment"
        create_environment
    elif "$environment/bin/python" -c 'import pip' 2>/dev/null; then
        pip=("$environment/bin/python" -m pip)
    else
        python=$(find_python)
        pip=("$python" -m pip --python "$environment/bin/python")
    fi
    checksum=$("$environment/bin/python" -c \
        'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' \
        "$repository/pyproject.toml")
    installed=$(cat "$environment/installed" 2>/dev/null || true)
    [[ $installed == *" "* ]] && had=${installed#* }
    for extra in ${extras//,/ }; do
        [[ ,$had, == *,"$extra",* ]] || missing+=,$extra
    done
    if [[ $installed == "$checksum $had" && -z $missing ]]; then
        echo "using $environment (pyproject.toml is unchanged)"
    else
        rm -f "$environment/installed"
        extras=$had$missing
        extras=${extras#,}
        echo "installing ooc-mdp${extras:+[$extras]} into $environment"
        "${pip[@]}" install --quiet --disable-pip-version-check --no-compile --editable "$repository${extras:+[$extras]}"
        printf '%s %s\n' "$checksum" "$extras" >"$environment/installed"
    fi
}
