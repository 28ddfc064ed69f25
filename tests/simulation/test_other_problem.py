"""Runs of another problem than the one whose values a result holds are named, first and where returns disagree."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ooc
from simulated_problems import solved

import ooc_mdp
from ooc_mdp.problems.control.user_file import load_problem
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.simulation import other_problem

FILE = """
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

class Parameters(NamedTuple):
    unused: float = 0.0

def dynamics(state, control, p):
    return (SPEED * control[0],)

def terminal_reward(state, p):
    return 1.0 if state[0] > 0.0 else 0.0

problem = ControlProblem(
    name="line", summary="1 for leaving on the right", axes=(Axis("x", -1.0, 1.0),), controls=((-1.0,), (1.0,)),
    dynamics=dynamics, terminal_reward=terminal_reward, parameters=Parameters(),
)
"""


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A solved problem of a file, beside the file of a slower one."""
    folder = tmp_path_factory.mktemp("line")
    (folder / "slow.py").write_text(FILE.replace("SPEED", "0.1"))
    (folder / "line.py").write_text(FILE.replace("SPEED", "1.0"))
    return solved((str(folder / "line.py"), {"grid": "101"}), 0.9, folder)


def test_returns_that_disagree_are_put_down_to_the_other_problem_that_was_simulated(line):
    slow = line.parent / "slow.py"
    ran = ooc("simulate", line, "--problem", slow, "--start", "0", "--duration", 20, "--json")
    first, last = (text for text in ran.err.splitlines() if "slow.py" in text)
    assert first == f"{slow} is not what the store was generated from (line), or has changed since"
    assert f"The runs are of {slow} and the values are not" in last
    assert ran.figures["warnings"] == [last.removeprefix("warning: ")]
    assert ooc_mdp.simulate(line, ["0"], problem=slow, duration=20.0).warnings() == ran.figures["warnings"]


def test_the_same_problem_is_no_other_one(line, car):
    ran = ooc("simulate", line, "--problem", line.parent / "line.py", "--start", "0", "--duration", 20)
    assert "is not what the store was generated from" not in ran.err
    assert ooc_mdp.simulate(line, ["0"], problem=line.parent / "line.py").other_problem is None
    assert other_problem(ooc_mdp.open_result(car), make_problem("mountain-car", {"grid": "100"})) is None


def test_a_file_in_place_of_a_problem_that_is_built_in_is_another_one(line, car):
    file = line.parent / "line.py"
    of_file = load_problem(str(file), {"grid": "101"})
    assert other_problem(ooc_mdp.open_result(car), of_file) == str(file)
    assert other_problem(ooc_mdp.open_result(car), make_problem("single-pendulum", {"grid": "5"})) == "single-pendulum"
