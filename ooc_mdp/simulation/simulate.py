"""Runs of a control problem under the policy of its solution, and what is said of each.

The goal is where reward is paid: the process ends with a final reward above 0 (the car leaves on the right slowly
enough), or the reward rate is above 0 and stays so to the end of the run (the pendulum is up and kept up). A problem
whose rewards are never above 0 has no goal in this sense. No file is read here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.options import real_number, whole_number
from ooc_mdp.problems.control.definition import ControlProblem, State
from ooc_mdp.problems.control.discretised import Discretised
from ooc_mdp.simulation.closed_loop import LOOKAHEAD, NEAREST, VOTE, Grid, Limits, Loop, compile_loop

__all__ = [
    "PROMISING",
    "PolicyKind",
    "RunOutcome",
    "Simulation",
    "SimulationOptions",
    "Trajectory",
    "parse_start",
    "random_starts",
    "simulate",
]

PROMISING = 0.01
"""A start is promising where its value is above this share of the largest value: the goal can be reached from it."""

_FINER = 0.1
"""Longest step of a run's integrator, as a share of the discretisation's."""
_SHORTEST = 0.01
"""Least time between two decisions, as a share of the discretisation's longest step."""

_MOST_STEPS = 1e8
"""Samples or decisions of a run."""
_MOST_PLANS = 1e8
"""Weighed at one decision; of many more the number would not fit into 64 bits."""


class PolicyKind(enum.StrEnum):
    """How the policy is taken from the grid to states between its points."""

    LOOKAHEAD = "lookahead"
    """First control of the plan with the largest reward plus discounted interpolated value, from the state itself."""
    VOTE = "vote"
    """The stored actions of the surrounding simplex's vertices vote with their barycentric weights."""
    NEAREST = "nearest"
    """The stored action of the nearest grid point."""


_KINDS = {PolicyKind.LOOKAHEAD: LOOKAHEAD, PolicyKind.VOTE: VOTE, PolicyKind.NEAREST: NEAREST}


class RunOutcome(enum.Enum):
    """How a run ended; the message says what to try next."""

    GOAL = ("goal", "the process ended with a reward")
    KEPT = ("kept", "the goal was reached and held throughout the last part of the run")
    NOT_KEPT = (
        "not kept",
        "the goal was reached, but left again or reached too late; try more time or a finer grid",
    )
    ENDED = ("ended", "the process ended without a reward: left the axes, or was not at the goal")
    NOT_REACHED = ("not reached", "the time ran out first; try more seconds, another start or a finer grid")

    def __init__(self, word: str, message: str) -> None:
        self.word = word
        self.message = message

    @property
    def success(self) -> bool:
        """Whether the goal was reached, and held where it is to be held."""
        return self in (RunOutcome.GOAL, RunOutcome.KEPT)


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How runs are made; times are in the problem's unit."""

    seconds: float = 20.0
    """Longest run."""
    policy: PolicyKind = PolicyKind.LOOKAHEAD
    """How the policy is interpolated."""
    period: float = 0.0
    """Time between two decisions; 0: one stage of a plan, or for stored actions as `share` says."""
    share: float = 0.1
    """Stored actions are looked up again when the state has moved by this share of a cell along any axis."""
    keep: float = 5.0
    """The goal must be held for this last part of a run (or for all of a shorter one)."""
    sample: float = 0.02
    """Time between two samples of a trajectory."""
    depth: int = 4
    """Controls in turn of a plan that "lookahead" weighs; there are controls**depth plans."""
    cells: float = 2.0
    """That the fastest control crosses in one stage of a plan; the first stage is carried out."""
    past_end: bool = False
    """Go on where the problem's `ends` holds, to see whether the goal is held; leaving the axes still ends a run."""

    def __post_init__(self) -> None:
        for name in ("seconds", "period", "share", "keep", "sample", "cells"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        object.__setattr__(self, "depth", whole_number("depth", self.depth))
        for name, least in (("seconds", 0.0), ("keep", 0.0), ("sample", 0.0), ("share", 0.0), ("cells", 0.0)):
            if not least < getattr(self, name) < math.inf:
                raise OptionsError(f"{name} is {getattr(self, name)}; give a number above {least:g}")
        if not 0.0 <= self.period < math.inf:
            raise OptionsError(f"period is {self.period}; give a time above 0, or 0 to decide by the state's motion")
        if not 1 <= self.depth <= 8:
            raise OptionsError(f"depth is {self.depth}; give 1 to 8 controls in turn")
        if self.seconds / self.sample > _MOST_STEPS:
            raise OptionsError(f"{self.seconds} at {self.sample} a sample are too many samples; give fewer seconds")
        if self.period > 0.0 and self.seconds / self.period > _MOST_STEPS:
            raise OptionsError(f"{self.seconds} at {self.period} a period are too many decisions; give a longer period")


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One run."""

    outcome: RunOutcome
    times: FloatArray
    """float64 [m]; 0, sample, 2 sample, ... and the end."""
    states: FloatArray
    """float64 [m, d]; periodic components wrapped into their axis."""
    actions: IntArray
    """int64 [m]; index of the control held at that time; -1 where the process was over from the beginning."""
    values: FloatArray
    """float64 [m]; interpolated value; the final reward where the process ended."""
    start_value: float
    """Interpolated value of the start."""
    promising: bool
    """Whether start_value is above `PROMISING` of the largest value."""
    seconds: float
    """Length of the run."""
    final_reward: float
    """Paid where the process ended; 0 if it did not."""
    earned: float
    """Discounted reward of the run."""
    reached: float | None
    """When the goal was first reached; None if never."""
    held_since: float | None
    """Since when the goal was held to the end of the run; None if it was not held at the end."""
    share_inside: float | None
    """Share of the time from `reached` to the end that was spent at the goal; None where there is no such time."""
    share_inside_last: float | None
    """Share of the last `keep` of a full run that was spent at the goal; None where the process ended before."""

    def summary(self) -> dict[str, Any]:
        """Figures for JSON, without the samples."""
        return {
            "start": self.states[0].tolist(),
            "start_value": self.start_value,
            "promising": self.promising,
            "outcome": self.outcome.word,
            "success": self.outcome.success,
            "seconds": self.seconds,
            "reached": self.reached,
            "held_since": self.held_since,
            "share_inside": self.share_inside,
            "share_inside_last": self.share_inside_last,
            "final_reward": self.final_reward,
            "earned": self.earned,
            "end": self.states[-1].tolist(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """Runs from several starts."""

    problem: Discretised
    options: SimulationOptions
    trajectories: tuple[Trajectory, ...]
    has_goal: bool = True
    """Whether some state's value is above 0 (below, in a minimisation); where none is, all there is are costs."""

    def summary(self) -> dict[str, Any]:
        """Figures for JSON: the share of success among all starts and among the promising ones, and every run."""
        promising = [t for t in self.trajectories if t.promising]
        successes = sum(t.outcome.success for t in self.trajectories)
        return {
            "problem": self.problem.name,
            "grid": list(self.problem.points),
            "policy": self.options.policy.value,
            "seconds": self.options.seconds,
            "keep": self.options.keep,
            "has_goal": self.has_goal,
            "starts": len(self.trajectories),
            "successes": successes,
            "success_share": successes / len(self.trajectories),
            "promising_starts": len(promising),
            "promising_successes": sum(t.outcome.success for t in promising),
            "reached": sum(t.reached is not None for t in self.trajectories),
            "runs": [t.summary() for t in self.trajectories],
        }


def random_starts(problem: ControlProblem, count: int, seed: int) -> list[State]:
    """States uniform over the axes."""
    if count < 1:
        raise OptionsError(f"{count} starts; give at least 1")
    if seed < 0:
        raise OptionsError(f"seed is {seed}; give at least 0")
    low, high = (np.array([getattr(axis, side) for axis in problem.axes]) for side in ("low", "high"))
    drawn = low + (high - low) * np.random.default_rng(seed).random((count, low.size))
    return [tuple(row) for row in drawn.tolist()]


def parse_start(problem: ControlProblem, text: str) -> State:
    """The state that "0.1,-2" or "rest" says.

    Raises
    ------
    OptionsError : the text is no state, or the problem says nothing of a start at rest.
    """
    if text.strip() == "rest":
        if problem.rest is None:
            raise OptionsError(f"problem {problem.name!r} has no start called rest; give numbers, or --starts N")
        return problem.rest
    try:
        return tuple(float(x) for x in text.split(","))
    except ValueError:
        names = ",".join(axis.name for axis in problem.axes)
        raise OptionsError(f"the start {text!r} is no state; write {names} as numbers, or rest") from None


def simulate(
    problem: Discretised,
    values: FloatArray,
    policy: npt.NDArray[np.int32],
    discount: float,
    starts: Sequence[State],
    options: SimulationOptions | None = None,
    *,
    sense: str = "max",
) -> Simulation:
    """Run the continuous dynamics under the policy of a solution, from each start.

    Parameters
    ----------
    values : float64 [n]; in the problem's state order.
    policy : int32 [n]; read by the kinds "vote" and "nearest" only.
    discount : for one unit of duration, as given to solve.
    starts : states within the axes (periodic components anywhere).
    sense : "max" or "min", as solved.

    Raises
    ------
    OptionsError : values or policy of another size, a start outside the axes, more plans than can be weighed, or a
        function of the problem that fails on the way.
    """
    options = options or SimulationOptions()
    if values.shape != (problem.n_states,) or policy.shape != (problem.n_states,):
        raise OptionsError(
            f"{values.size} values and {policy.size} actions for the {problem.n_states} states of {problem.name} on "
            f"a grid of {problem.points}; give the result of this grid"
        )
    if not starts:
        raise OptionsError("there is no start to simulate from")
    plans = problem.n_actions**options.depth
    if options.policy is PolicyKind.LOOKAHEAD and plans > _MOST_PLANS:
        raise OptionsError(
            f"{problem.n_actions} controls give {plans:.3g} plans of depth {options.depth}, all weighed at each "
            f"decision; give a smaller depth, or take another policy than lookahead"
        )
    best = float(values.max()) if sense == "max" else -float(values.min())
    prepared = _Prepared(
        loop=compile_loop(problem.problem),
        grid=_grid(problem),
        limits=_limits(problem, options),
        controls=tuple(tuple(float(u) for u in control) for control in problem.problem.controls),
        p=type(problem.problem.parameters)(*(float(x) for x in problem.problem.parameters)),
        values=np.ascontiguousarray(values, np.float64),
        policy=np.ascontiguousarray(policy, np.int32),
        sign=1.0 if sense == "max" else -1.0,
        decay=-math.log(max(discount, 1e-300)) / problem.options.time_unit,
        promising=PROMISING * best,
    )
    checked = [_checked(problem, start) for start in starts]
    runs = []
    for start in checked:
        try:
            runs.append(_run(prepared, start, options))
        except (ArithmeticError, ValueError) as error:
            place = ", ".join(f"{axis.name} = {x:.6g}" for axis, x in zip(problem.problem.axes, start, strict=True))
            raise OptionsError(
                f"problem {problem.name!r}: {type(error).__name__}: {error} in its functions on the way from the start "
                f"{place}; mend them there, or simulate from other starts"
            ) from error
    return Simulation(problem, options, tuple(runs), best > 0.0)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What every run of a simulation shares."""

    loop: Loop
    grid: Grid
    limits: Limits
    controls: tuple[tuple[float, ...], ...]
    p: Any
    values: FloatArray
    policy: npt.NDArray[np.int32]
    sign: float
    decay: float
    promising: float


def _run(prepared: _Prepared, start: State, options: SimulationOptions) -> Trajectory:
    capacity = math.ceil(options.seconds / options.sample) + 2
    times, values = np.empty(capacity), np.empty(capacity)
    states, actions = np.empty((capacity, len(start))), np.empty(capacity, np.int64)
    samples, over, _, seconds, reward, earned, reached, held_since, inside, inside_last = prepared.loop.run(
        start,
        prepared.grid,
        prepared.limits,
        prepared.controls,
        prepared.p,
        prepared.values,
        prepared.policy,
        _KINDS[options.policy],
        prepared.sign,
        prepared.decay,
        options.past_end,
        times,
        states,
        actions,
        values,
    )
    last = min(options.keep, options.seconds)
    kept = not over and held_since <= options.seconds - last
    if over:
        outcome = RunOutcome.GOAL if prepared.sign * reward > 0.0 else RunOutcome.ENDED
    elif math.isinf(reached):
        outcome = RunOutcome.NOT_REACHED
    else:
        outcome = RunOutcome.KEPT if kept else RunOutcome.NOT_KEPT
    start_value = float(prepared.loop.value_at(start, prepared.grid, prepared.values))
    after = seconds - reached
    return Trajectory(
        outcome=outcome,
        times=times[:samples].copy(),
        states=states[:samples].copy(),
        actions=actions[:samples].copy(),
        values=values[:samples].copy(),
        start_value=start_value,
        promising=prepared.sign * start_value > prepared.promising,
        seconds=float(seconds),
        final_reward=float(reward),
        earned=float(earned),
        reached=None if math.isinf(reached) else float(reached),
        held_since=None if math.isinf(held_since) else float(held_since),
        share_inside=min(1.0, inside / after) if after > 0.0 else None,
        share_inside_last=None if over else min(1.0, inside_last / last),
    )


def _checked(problem: Discretised, start: State) -> State:
    """The start as floats; OptionsError where it is no state of the problem."""
    axes = problem.problem.axes
    if len(start) != len(axes):
        names = ", ".join(axis.name for axis in axes)
        raise OptionsError(f"the start {start} has {len(start)} numbers; {problem.name} needs {len(axes)} ({names})")
    for axis, x in zip(axes, start, strict=True):
        if not math.isfinite(x) or (not axis.periodic and not axis.low <= x <= axis.high):
            raise OptionsError(f"the start has {axis.name} = {x}, outside {axis.low:g} .. {axis.high:g}")
    return tuple(float(x) for x in start)


def _grid(problem: Discretised) -> Grid:
    axes = problem.problem.axes
    return Grid(
        points=problem.points,
        stride=problem.strides,
        low=tuple(float(x.low) for x in axes),
        high=tuple(float(x.high) for x in axes),
        span=tuple(float(x.high - x.low) for x in axes),
        h=problem.steps,
        periodic=tuple(x.periodic for x in axes),
        clipped=tuple(x.clipped for x in axes),
    )


def _limits(problem: Discretised, options: SimulationOptions) -> Limits:
    return Limits(
        longest_step=float(problem.longest_step),
        most_time=float(problem.most_time),
        seconds=float(options.seconds),
        fine_step=_FINER * problem.longest_step,
        sample=float(options.sample),
        keep=float(options.keep),
        period=float(options.period),
        share=float(options.share),
        shortest=_SHORTEST * problem.longest_step,
        cells=float(options.cells),
        depth=options.depth,
    )
