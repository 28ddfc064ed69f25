"""Where a control problem ends and where its goal is, over two of its axes: what plots of runs shade.

A point of the plane is at the goal where it is for some values of the other axes, and blocked where the process ends
elsewhere than at the goal for all of them. The problem's functions are called as Python functions, at so few points
that it takes no longer than the plot.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.problems.control.definition import Axis, ControlProblem, State

__all__ = ["Regions", "regions_of"]

_MOST_POINTS = 120
_MOST_STATES = 60_000
_SAMPLES = {0: 1, 1: 9, 2: 5, 3: 3, 4: 2}
"""Points of each other axis, by the number of these axes."""
_EVERYWHERE = 0.9
"""A goal on a larger share of the plane is no region."""


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """Goal and obstacles on a plane of points."""

    across: FloatArray
    up: FloatArray
    goal: npt.NDArray[np.bool_]
    """bool [up, across]."""
    blocked: npt.NDArray[np.bool_]
    """bool [up, across]."""


def regions_of(
    problem: ControlProblem, across: int, up: int, sign: float, goal_is_end: bool, goal_pays: bool = True
) -> Regions:
    """The regions over two axes.

    Parameters
    ----------
    across, up : numbers of the axes.
    sign : 1 where rewards are maximised, -1 where they are costs to be minimised.
    goal_is_end : the goal, which the problem does not state, is to end without a further cost.
    goal_pays : whether states whose reward rate is above 0 are the goal, beside ends that pay; not where `goal_is_end`.
    """
    others = [i for i in range(len(problem.axes)) if i not in (across, up)]
    samples = [_inside(problem.axes[i], _SAMPLES[len(others)]) for i in others]
    states = math.prod(s.size for s in samples)
    n = min(_MOST_POINTS, math.isqrt(_MOST_STATES // states))
    x, y = _inside(problem.axes[across], n), _inside(problem.axes[up], n)
    goal, blocked = np.zeros((n, n), np.bool_), np.ones((n, n), np.bool_)
    state = [0.0] * len(problem.axes)
    for at in itertools.product(*(s.tolist() for s in samples)):
        for i, z in zip(others, at, strict=True):
            state[i] = z
        for row, column in itertools.product(range(n), range(n)):
            state[across], state[up] = float(x[column]), float(y[row])
            arrived, ended = _judged(problem, tuple(state), sign, goal_is_end, goal_pays)
            goal[row, column] |= arrived
            blocked[row, column] &= ended and not arrived
    if goal.mean() > _EVERYWHERE:
        goal[:] = False
    return Regions(x, y, goal, blocked)


def _inside(axis: Axis, n: int) -> FloatArray:
    """Middles of n equal parts of an axis: none on a bound, where the process may end."""
    return axis.low + (axis.high - axis.low) * (np.arange(n) + 0.5) / n


def _judged(
    problem: ControlProblem, state: State, sign: float, goal_is_end: bool, goal_pays: bool
) -> tuple[bool, bool]:
    """Whether the goal is reached in a state, and whether the process ends there."""
    p = problem.parameters
    ended = problem.is_terminal is not None and bool(problem.is_terminal(state, p))
    if problem.is_goal is not None:
        return bool(problem.is_goal(state, p)), ended
    if ended:
        paid = 0.0 if problem.terminal_reward is None else sign * problem.terminal_reward(state, p)
        return (paid >= 0.0 if goal_is_end else paid > 0.0), True
    rate = problem.reward_rate if goal_pays and not goal_is_end else None
    return rate is not None and any(sign * rate(state, u, p) > 0.0 for u in problem.controls), False
