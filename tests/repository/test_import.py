"""Importing the package and asking for help start nothing and import nothing that is slow to import."""

from __future__ import annotations

import pickle
import subprocess
import sys

HEAVY = (
    "numba",
    "zarr",
    "dask",
    "distributed",
    "cupy",
    "scipy",
    "matplotlib",
    "bokeh",
    "pymetis",
    "gymnasium",
    "xarray",
)


def python(source: str) -> str:
    command = [sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_importing_the_package_imports_nothing_heavy():
    source = f"import sys, ooc_mdp; print(*({{*{HEAVY!r}}} & {{*sys.modules}}))"
    assert python(source).split() == []


def test_importing_the_package_starts_no_thread():
    assert python("import ooc_mdp, threading; print(threading.active_count())").strip() == "1"


def test_help_imports_nothing_heavy():
    source = f"""
import sys
from ooc_mdp.cli import main
sys.argv = ["ooc-mdp", "--help"]
try:
    main()
except SystemExit:
    print("imported:", *({{*{HEAVY!r}}} & {{*sys.modules}}))
"""
    shown, _, imported = python(source).partition("imported:")
    assert "solve" in shown
    assert imported.split() == []


def test_the_package_is_a_command_too():
    done = subprocess.run([sys.executable, "-m", "ooc_mdp", "--help"], capture_output=True, text=True, check=True)
    assert "solve" in done.stdout


def test_public_names_are_listed_before_they_are_used():
    source = "import ooc_mdp; print(*(set(ooc_mdp.__all__) - set(dir(ooc_mdp))))"
    assert python(source).split() == []


def test_every_public_error_survives_a_trip_between_processes():
    import ooc_mdp

    errors = [
        ooc_mdp.OptionsError("wrong"),
        ooc_mdp.ClusterError("no workers"),
        ooc_mdp.InputError("model.tra", "wrong", 3),
        ooc_mdp.MissingExtraError("cupy", "cuda13", "the device cuda:0"),
        ooc_mdp.UndefinedTotalError("infinite", (1, 2)),
    ]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
