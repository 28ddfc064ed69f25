"""The scripts for a bare machine are well-formed and say plainly what is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paths import REPOSITORY

import ooc_mdp

SCRIPTS = ("tools/test", "tools/demo", "tools/docs", "tools/environment.sh", ".ci/run")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_shell_script_is_valid(script):
    subprocess.run(["bash", "-n", str(REPOSITORY / script)], check=True)


@pytest.mark.parametrize("script", ["tools/test", "tools/demo", "tools/docs", "tools/check_layers", ".ci/run"])
def test_a_script_can_be_executed(script):
    assert os.access(REPOSITORY / script, os.X_OK)


def test_the_demo_prints_figures_that_a_solve_has(tmp_path):
    store = ooc_mdp.generate("GW-8x4", tmp_path / "s", partitions=4)
    for method in ("vi", "p-eva"):
        figures = ooc_mdp.solve(store, 0.9, method=method, device="cpu").summary()
        (tmp_path / f"{method}.json").write_text(json.dumps(figures))
    (script,) = re.findall(
        r"<<'PYTHON'\n(.*?)^PYTHON$", (REPOSITORY / "tools" / "demo").read_text(), re.DOTALL | re.MULTILINE
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in ran.stdout.split("\n") if line] == ["method", "vi", "p-eva"]


def environment_function(call: str, path: str) -> subprocess.CompletedProcess[str]:
    script = f'source "{REPOSITORY}/tools/environment.sh"; PATH="{path}"; {call}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


def fake(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_the_first_python_that_runs_and_is_new_enough_is_taken(tmp_path):
    fake(tmp_path, "python3", "exit 1")
    fake(tmp_path, "python3.12", f'exec "{sys.executable}" "$@"')
    result = environment_function("find_python", str(tmp_path))
    assert result.stdout.strip() == str(tmp_path / "python3.12")


def test_without_a_python_the_error_says_which_is_needed(tmp_path):
    fake(tmp_path, "python3", "exit 1")
    result = environment_function('fail() { echo "$1"; exit 1; }; find_python', str(tmp_path))
    assert result.returncode == 1
    assert "no Python 3.11 or newer here" in result.stdout


def test_extras_are_added_to_those_that_are_installed(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    fake(tmp_path / ".venv", "nothing", "")
    log = tmp_path / "log"
    fake(
        tmp_path / ".venv" / "bin",
        "python",
        f'case "$*" in *" install "*) echo "$*" >> "{log}";; *-c*) exec "{sys.executable}" "$@";; esac',
    )
    for extras in ("test,plot", "docs", "plot", ""):
        call = f'repository="{tmp_path}"; environment="{tmp_path}/.venv"'
        result = environment_function(f"{call}; make_environment {extras}", os.environ["PATH"])
        assert result.returncode == 0, result.stderr
    installs = [line.rsplit(" ", 1)[1] for line in log.read_text().splitlines()]
    assert installs == [f"{tmp_path}[test,plot]", f"{tmp_path}[test,plot,docs]"]


def test_the_commands_of_the_readme_exist():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", readme, re.DOTALL | re.MULTILINE))
    commands = set(re.findall(r"^(?:\$ )?ooc-mdp ([a-z][a-z-]*)", blocks, re.MULTILINE))
    source = "import sys; from ooc_mdp.cli import main; sys.argv = ['ooc-mdp', '--help']; main()"
    shown = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert commands
    assert commands <= set(re.findall(r"[a-z][a-z-]*", shown))
    for script in set(re.findall(r"\btools/[a-z_]+\b", readme)):
        assert os.access(REPOSITORY / script, os.X_OK), script
