"""The documentation's examples, solved and simulated, and problems of users' own files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc, refused
from paths import REPOSITORY
from simulated_problems import solved

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.simulation import problem_of

CART_POLE = REPOSITORY / "docs" / "examples" / "cart_pole.py"
REACTION_WHEEL = REPOSITORY / "docs" / "examples" / "reaction_wheel_pendulum.py"


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, generated on a small grid and solved; gives the result."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copy(CART_POLE, folder / "mine.py")
    return solved((str(folder / "mine.py"), {"grid": "9,9,13,13"}), 0.9, folder)


def test_the_example_of_the_documentation_balances_its_pole(balanced):
    starts = ("--start", "0,0,0.1,0", "--start", "initial")
    figures = ooc("simulate", balanced, "--problem", CART_POLE, *starts, "--json").figures
    assert figures["problem"] == "cart-pole"
    assert [run["outcome"] for run in figures["runs"]] == ["held", "held"]


@pytest.mark.slow
def test_the_wheel_of_the_documentation_balances_its_pendulum(tmp_path):
    result = solved((str(REACTION_WHEEL), {"grid": "41,41,21"}), 0.9, tmp_path)
    starts = ("--start", "0.05,0,0", "--start", "-0.03,0.1,50")
    figures = ooc("simulate", result, "--problem", REACTION_WHEEL, *starts, "--duration", "5", "--json").figures
    assert [run["outcome"] for run in figures["runs"]] == ["held", "held"]


@pytest.mark.slow
@pytest.mark.parametrize("grid", [(5, 5, 7, 7), [5, 5, 7, 7], np.array([5, 5, 7, 7]), "5,5,7,7"])
def test_a_users_file_is_a_path_and_its_grid_a_sequence_in_python(tmp_path, grid):
    store = ooc_mdp.generate(CART_POLE, tmp_path / "s", {"grid": grid}, device="cpu")
    assert store.facts.attributes["provenance"]["options"]["grid"] == "5,5,7,7"
    table = ooc_mdp.open_problem(CART_POLE, {"grid": grid}, device="cpu")
    assert table.n_states == store.n_states == 1225
    ooc_mdp.solve(store, 0.5, device="cpu", output=tmp_path / "r")
    run = ooc_mdp.simulate(tmp_path / "r", duration=0.1, problem=CART_POLE)
    assert len(run.trajectories) == 1


def test_several_numbers_are_no_single_one(tmp_path):
    with pytest.raises(OptionsError, match=r"seed = \(1, 2\) is not a value of type int"):
        ooc_mdp.generate("GW-16x4", tmp_path / "s", {"seed": (1, 2)})


def test_a_file_that_moved_or_changed_is_found_or_spoken_of(balanced):
    file = balanced.parent / "mine.py"
    moved = file.with_name("other.py")
    file.rename(moved)
    try:
        assert "no file that can be read (No such file" in refused("simulate", balanced)
        assert "--problem FILE.py" in refused("simulate", balanced, "--trust")
        ran = ooc("simulate", balanced, "--problem", moved, "--duration", 2)
        assert ran.status == 0
        assert [line for line in ran.err.splitlines() if not line.startswith(("warning: ", "memory plan"))] == []
        moved.write_text(moved.read_text() + "\n# changed\n")
        notes: list[str] = []
        problem_of(ooc_mdp.open_result(balanced), str(moved), note=notes.append)
        assert "has changed since" in notes[0]
        assert "is no Python file" in refused("simulate", balanced, "--problem", "single-pendulum")
    finally:
        shutil.copy(CART_POLE, file)


def test_a_result_keeps_the_provenance_of_its_store(balanced):
    said = json.loads((balanced / "zarr.json").read_text())["attributes"]["about"]["provenance"]
    assert said["source"] == "cart-pole"
    assert said["options"]["grid"] == "9,9,13,13"
    assert Path(said["file"]["path"]).name == "mine.py"
