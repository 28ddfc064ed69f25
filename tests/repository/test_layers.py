"""The rule about imports holds for the package, and the script that checks it sees what breaks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paths import REPOSITORY


def run(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "tools" / "check_layers"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path):
    """Make a package of {path: source} and run the check on it."""

    def make(files: dict[str, str]) -> subprocess.CompletedProcess[str]:
        root = tmp_path / "ooc_mdp"
        for path, source in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
        return run(root)

    return make


def test_the_package_keeps_its_layers():
    result = run(REPOSITORY / "ooc_mdp")
    assert result.returncode == 0, result.stdout + result.stderr


def test_imports_that_point_down_pass(tree):
    result = tree(
        {
            "__init__.py": "from ooc_mdp.cli import main\n",
            "errors.py": "import numpy\n",
            "model.py": "from ooc_mdp.errors import InputError\n",
            "store/__init__.py": "from .reader import Reader\n",
            "store/reader.py": "from ..model import Rows\nfrom . import names\n",
            "store/names.py": "",
            "cli.py": "def main():\n    from ooc_mdp.store import Reader\n",
        }
    )
    assert result.returncode == 0, result.stdout
    assert "7 files, 0 violations" in result.stdout


def test_methods_that_forward_to_a_named_room_above_pass(tree):
    forwarding = "def plot():\n    from ooc_mdp.reporting import plot_result\n"
    files = {"__init__.py": "", "reporting.py": "def plot_result(): ...\n", "cli.py": "def main(): ...\n"}
    assert tree(files | {"model/presentation.py": forwarding}).returncode == 0
    elsewhere = tree(files | {"model/solution.py": forwarding})
    assert "model imports reporting" in elsewhere.stdout
    another = tree(files | {"model/presentation.py": "from ooc_mdp.cli import main\n"})
    assert "model imports cli" in another.stdout


UPWARD = {
    "a plain import": "import ooc_mdp.solver.run\n",
    "a name of a room": "from ooc_mdp.solver import run\n",
    "the room itself": "from ooc_mdp import solver\n",
    "a relative import": "from .solver import run\n",
    "inside a function": "def f():\n    from ooc_mdp.solver import run\n",
    "for types only": "import typing\nif typing.TYPE_CHECKING:\n    from ooc_mdp.solver import run\n",
    "by name": "import importlib\nimportlib.import_module('ooc_mdp.solver')\n",
}


@pytest.mark.parametrize("source", UPWARD.values(), ids=UPWARD.keys())
def test_an_import_that_points_up_is_named_with_its_line(tree, source):
    result = tree({"solver/__init__.py": "", "model.py": source})
    line = source.count("\n")
    assert result.returncode == 1
    assert f"model.py:{line}: model imports solver, which is 4 layers above it" in result.stdout


def test_a_relative_import_in_a_subpackage_is_resolved_from_there(tree):
    result = tree({"solver/__init__.py": "", "store/__init__.py": "from ..solver import run\n"})
    assert "store imports solver" in result.stdout
    result = tree({"store/__init__.py": "", "store/deep/__init__.py": "from ...solver import run\n"})
    assert "store imports solver" in result.stdout


def test_importing_from_the_front_door_counts_as_the_top(tree):
    result = tree({"__init__.py": "", "store/__init__.py": "from ooc_mdp import solve_store\n"})
    assert result.returncode == 1
    assert "store imports api" in result.stdout


def test_rooms_of_one_layer_may_import_each_other_one_way(tree):
    one_way = {
        "io/conversion/plan.py": "from ooc_mdp import solver\n",
        "solver/__init__.py": "",
        "simulation.py": "import ooc_mdp.io.conversion\n",
    }
    assert tree(one_way).returncode == 0


def test_a_cycle_inside_a_layer_is_refused_with_its_path(tree):
    result = tree(
        {
            "io/conversion/plan.py": "from ooc_mdp import solver\n",
            "solver/__init__.py": "import ooc_mdp.simulation\n",
            "simulation.py": "import ooc_mdp.io.conversion\n",
        }
    )
    assert result.returncode == 1
    assert "cycle inside a layer: io/conversion -> solver -> simulation -> io/conversion" in result.stdout
    assert result.stdout.count(": cycle inside") == 1


def test_a_folder_inside_a_room_may_be_a_room_of_a_higher_layer(tree):
    export = "from ooc_mdp.store import result\n"
    files = {"io/__init__.py": "", "store/__init__.py": "", "io/export.py": export}
    assert tree(files).returncode == 0
    below = tree(files | {"io/text/lines.py": export})
    assert "io imports store" in below.stdout
    above = tree(files | {"io/text/lines.py": "from ooc_mdp.io import export\n"})
    assert "io imports io/export" in above.stdout


def test_an_unknown_room_asks_to_be_added(tree):
    result = tree({"gadgets.py": "", "model.py": ""})
    assert result.returncode == 1
    assert "gadgets: unknown room; add the room to tools/check_layers" in result.stdout


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("cupy", "backends/cuda/gpu.py"),
        ("cupy.cuda", "backends/cuda/gpu.py"),
        ("distributed", "io/conversion/dask_executor.py"),
        ("dask.distributed", "distributed/worker.py"),
        ("matplotlib.pyplot", "report/plots.py"),
        ("pymetis", "model/metis.py"),
        ("gymnasium", "io/gymnasium.py"),
    ],
)
def test_an_optional_package_is_imported_in_its_place_only(tree, module, allowed):
    source = f"def f():\n    import {module}\n"
    assert tree({allowed: source}).returncode == 0
    result = tree({"solver/run.py": source})
    assert result.returncode == 1
    assert f"run.py:2: {module.split('.')[0]} is imported outside" in result.stdout


def test_dask_stays_out_of_the_rest_of_conversion(tree):
    assert tree({"io/conversion/plan.py": "from dask import delayed\n"}).returncode == 1


def test_a_directory_without_a_package_is_an_error(tmp_path):
    result = run(tmp_path / "nothing")
    assert result.returncode == 2
    assert "holds no Python file" in result.stderr
