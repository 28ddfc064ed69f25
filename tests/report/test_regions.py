"""Where plots of runs shade the goal and the obstacles of a control problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from paths import DOCS
from simulated_problems import FOUR_AXES, MASS, NoParameters, still

from ooc_mdp.problems.control import Axis, ControlProblem
from ooc_mdp.problems.control.user_file import load_definition
from ooc_mdp.report.regions import regions_of


def disc(found, x, y, radius):
    """Points of the plane inside a disc."""
    return (found.across - x) ** 2 + (found.up[:, None] - y) ** 2 < radius**2


def test_pillars_and_goal_of_a_car_are_discs_whatever_its_heading():
    car = load_definition(str(DOCS / "examples" / "dubins_car.py"))
    found = regions_of(car, 0, 1, 1.0, False)
    np.testing.assert_array_equal(found.goal, disc(found, 3.5, 3.5, 0.6))
    np.testing.assert_array_equal(found.blocked, disc(found, 1.0, 0.5, 1.0) | disc(found, -1.5, 2.0, 1.0))
    swapped = regions_of(car, 1, 0, 1.0, False)
    np.testing.assert_array_equal(swapped.blocked, found.blocked.T)
    assert not regions_of(car, 0, 2, 1.0, False).blocked.any(), "some y is free at every x"


def test_a_goal_that_is_not_stated_is_where_reward_is_paid():
    box = regions_of(MASS, 0, 1, 1.0, False)
    inside = (np.abs(box.across) < 0.1) & (np.abs(box.up[:, None]) < 0.2)
    np.testing.assert_array_equal(box.goal, inside)
    assert not box.blocked.any()


def test_an_end_without_reward_is_the_goal_only_where_the_goal_is_an_end():
    free = replace(MASS, terminal_reward=None)
    assert regions_of(free, 0, 1, 1.0, True).goal.any()
    as_obstacle = regions_of(free, 0, 1, 1.0, False)
    assert as_obstacle.blocked.any()
    assert not as_obstacle.goal.any()


def one(state, control, p):
    return 1.0


@pytest.mark.parametrize(("sign", "reward"), [(1.0, one), (-1.0, one), (1.0, None)])
def test_a_reward_that_is_paid_everywhere_or_nowhere_marks_no_goal(sign, reward):
    axes = tuple(Axis(f"x{i}", -1.0, 1.0) for i in range(2))
    calm = ControlProblem("calm", "", axes, ((0.0,),), lambda x, u, p: (0.0, 0.0), NoParameters(), reward_rate=reward)
    assert not regions_of(calm, 0, 1, sign, False).goal.any()


def test_many_axes_are_looked_at_in_few_states():
    calls = []

    def counted(state, p):
        calls.append(state)
        return False

    six = ControlProblem(
        "six", "", (*FOUR_AXES.axes, Axis("a", 0.0, 1.0), Axis("b", 0.0, 1.0)), ((0.0,),), still, NoParameters(),
        is_goal=counted,
    )  # fmt: skip
    found = regions_of(six, 4, 5, 1.0, False)
    assert len(calls) <= 60_000
    assert found.across.size >= 60
