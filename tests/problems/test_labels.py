"""Generated problems label goals, initial states and the bounds beyond which the process ends."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp import Reachability, RewardToGoal
from ooc_mdp.errors import OptionsError

PROBLEM = """
from ooc_mdp import Axis, ControlProblem

def dynamics(x, control, p):
    return (control[0], 0.0)

def is_goal(x, p):
    return x[0] > 0.75

problem = ControlProblem("cart", "a cart", (Axis("x", 0.0, 1.0), Axis("y", 0.0, 1.0, clipped=True)), ((1.0,), (-1.0,)),
                         dynamics, is_goal=is_goal, initial_state=(0.26, 0.9))
"""


def where(table: object, label: str) -> list[int]:
    return np.flatnonzero(table.annotations.label(label)).tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("virtual", [False, True])
def test_a_control_problem_has_its_goal_initial_state_and_boundary(tmp_path: Path, virtual: bool):
    (tmp_path / "cart.py").write_text(PROBLEM)
    store = ooc_mdp.generate(tmp_path / "cart.py", tmp_path / "s", {"grid": "5,3"}, virtual=virtual, partitions=2)
    assert store.annotations.labels == ("boundary", "goal", "init")
    assert where(store, "boundary") == [0, 1, 2, 12, 13, 14]
    assert where(store, "goal") == [12, 13, 14]
    assert where(store, "init") == [5]
    assert store.check().valid


@pytest.mark.parametrize("virtual", [False, True])
def test_the_axes_of_a_grid_are_variables(tmp_path: Path, virtual: bool):
    (tmp_path / "cart.py").write_text(PROBLEM)
    store = ooc_mdp.generate(tmp_path / "cart.py", tmp_path / "s", {"grid": "5,3"}, virtual=virtual, partitions=2)
    known = store.annotations
    assert {name: (v.type, v.low, v.high) for name, v in known.variables.items()} == {
        "x": ("double", 0.0, 1.0),
        "y": ("double", 0.0, 1.0),
    }
    assert known.values("x", 0, 15).tolist() == np.repeat([0, 0.25, 0.5, 0.75, 1], 3).tolist()
    assert known.values("y", 4, 8).tolist() == [0.5, 1.0, 0.0, 0.5]
    asked = [ooc_mdp.solve(store, Reachability(goal, within=3)).values for goal in ("goal", "x > 0.75")]
    np.testing.assert_array_equal(*asked)
    assert 0 < asked[0].mean() < 1
    with pytest.raises(OptionsError, match=r"there is no variable 'z'; there are: labels .* and variables x, y"):
        ooc_mdp.solve(store, Reachability("z > 1"))


def test_a_model_without_names_tells_where_they_come_from():
    model = ooc_mdp.from_arrays(np.eye(3)[None], np.ones((3, 1)))
    with pytest.raises(OptionsError, match=r"there are: none: .*from_arrays\(labels="):
        ooc_mdp.solve(model, Reachability("done"))


def test_an_initial_state_lies_on_the_axes(tmp_path: Path):
    (tmp_path / "cart.py").write_text(PROBLEM.replace("(0.26, 0.9)", "(0.26, 1.9)"))
    with pytest.raises(
        OptionsError, match=r"initial_state \(0.26, 1.9\) has y = 1.9, and the axis reaches from 0 to 1"
    ):
        ooc_mdp.generate(tmp_path / "cart.py", tmp_path / "s", {"grid": "5,3"})


def test_a_periodic_axis_has_no_boundary(tmp_path: Path):
    store = ooc_mdp.generate("single-pendulum", tmp_path / "s", {"grid": "9,7"}, partitions=2)
    index = np.array(np.unravel_index(where(store, "init"), (9, 7))).T.tolist()
    assert len(index) == 1
    axes = store.facts.attributes["geometry"]["axes"]
    assert [axis["periodic"] for axis in axes] == [True, False]
    assert index[0] == [0, 3]  # hanging down at rest


def test_cells_that_pay_are_goals_of_gridworlds(tmp_path: Path):
    store = ooc_mdp.generate("GW-64x4", tmp_path / "s", {"seed": 3}, partitions=4)
    problem = ooc_mdp.open_problem("GW-64x4", {"seed": 3}, partitions=4).problem
    assert where(store, "goal") == np.flatnonzero(problem.cell_rewards(np.arange(store.n_states)) > 0).tolist()
    listed = json.loads(ooc("inspect", tmp_path / "s", "--json").out)["labels"]
    assert listed == {"goal": len(where(store, "goal"))}
    reached = ooc_mdp.solve(store, Reachability("goal", sense="max"))
    assert (reached.values == 1).all()


def test_the_steps_to_the_goal_of_the_integer_mountain_car_are_its_totals(tmp_path: Path):
    store = ooc_mdp.generate("integer-mountain-car", tmp_path / "s", {"scale": 100}, partitions=6)
    steps = ooc_mdp.solve(store, RewardToGoal("goal"), epsilon=1e-6)
    totals = ooc_mdp.solve(store, ooc_mdp.TotalReward(infinite=True), epsilon=1e-6)
    np.testing.assert_array_equal(np.isinf(steps.values), np.isinf(totals.values))
    finite = np.isfinite(steps.values)
    np.testing.assert_allclose(steps.values[finite], totals.values[finite], atol=2e-6)
    np.testing.assert_allclose(steps.values[finite], np.rint(steps.values[finite]), atol=1e-6)


@pytest.mark.parametrize("virtual", [False, True])
def test_the_first_states_of_a_label_are_found(tmp_path: Path, virtual: bool):
    (tmp_path / "cart.py").write_text(PROBLEM)
    store = ooc_mdp.generate(tmp_path / "cart.py", tmp_path / "s", {"grid": "5,3"}, virtual=virtual, partitions=2)
    for label in store.annotations.labels:
        for most in (0, 1, 4, 100):
            assert store.annotations.first_states(label, most).tolist() == where(store, label)[:most]


@pytest.mark.parametrize(
    ("body", "said"), [("1 / (x[0] - 0.5) > 3", "in is_goal: ZeroDivisionError"), ("x.y > 0", "y")]
)
def test_a_goal_that_cannot_be_computed_is_refused_before_the_table_is(tmp_path: Path, body: str, said: str):
    (tmp_path / "cart.py").write_text(PROBLEM.replace("return x[0] > 0.75", f"return {body}"))
    with pytest.raises(OptionsError, match=said):
        ooc_mdp.generate(tmp_path / "cart.py", tmp_path / "s", {"grid": "5,3"}, partitions=2)
    assert not (tmp_path / "s").exists()
