"""What the compiled simulation takes and returns, as the named tuples that Numba needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["LOOKAHEAD", "NEAREST", "VOTE", "Feedback", "Figures", "Goal", "Limits", "Samples"]

LOOKAHEAD, NEAREST, VOTE = 0, 1, 2
"""How the policy is interpolated."""


class Limits(NamedTuple):
    """Times, in the problem's unit."""

    max_step: float
    """Of the integrator where it looks ahead."""
    max_duration: float
    """That it looks ahead."""
    duration: float
    """Length of the run."""
    fine_step: float
    """Longest step of the integrator in the run."""
    sample: float
    """Between two samples."""
    hold_time: float
    """Last part of the run, for which it is judged whether the goal is held."""
    period: float
    """Between two decisions; 0: the first stage of a plan, or until `cell_fraction` of a cell is crossed."""
    cell_fraction: float
    shortest: float
    """Least time between two decisions, where the state decides when."""
    cells: float
    """That the fastest control crosses in one stage of a plan."""
    plan_depth: int
    """Stages of a plan."""


class Feedback(NamedTuple):
    """A solution, and how controls are taken from it."""

    values: FloatArray
    """float64 [n]; V."""
    policy: npt.NDArray[np.int32]
    """int32 [n]; read by VOTE and NEAREST."""
    kind: int
    """LOOKAHEAD, NEAREST or VOTE."""
    sign: float
    """1 where rewards are maximised, -1 where they are minimised."""
    decay: float
    """-ln gamma per unit of time."""
    continue_after_end: bool
    """Go on where the process ends inside its axes."""
    goal_is_end: bool
    """Whether the goal is an end inside the axes without a terminal cost, not where reward is paid."""
    goal_pays: bool
    """Whether the goal is, beside an end with a terminal reward, where the reward rate is above 0."""


class Samples(NamedTuple):
    """What a run fills, at regular times and at its end."""

    times: FloatArray
    """float64 [m]."""
    states: FloatArray
    """float64 [m, d]."""
    actions: IntArray
    """int64 [m]; -1 where the process was over from the beginning."""
    values: FloatArray
    """float64 [m]; interpolated, or the terminal reward where the process ended."""


class Goal(NamedTuple):
    """How the goal is held; times."""

    reached: float
    """First time at the goal; inf if never."""
    held_since: float
    """Since when it is held; inf where it is not."""
    inside: float
    """Time spent at the goal."""
    inside_last: float
    """Of it, in the last `hold_time` of the run."""


class Figures(NamedTuple):
    """What a run returns."""

    samples: int
    """Taken."""
    over: bool
    """Whether the process ended."""
    arrived: bool
    """Whether it ended at the goal."""
    time: float
    terminal_reward: float
    discounted_return: float
    """Discounted reward."""
    goal: Goal
