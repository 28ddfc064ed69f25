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
from ooc_mdp.problems.control.definition import ControlProblem, State
from ooc_mdp.problems.control.discretisation import Discretised
from ooc_mdp.problems.control.kuhn import Grid
from ooc_mdp.simulation.closed_loop import (
    LOOKAHEAD,
    NEAREST,
    VOTE,
    Feedback,
    Figures,
    Limits,
    Loop,
    Samples,
    compile_loop,
)
from ooc_mdp.simulation.options import PolicyKind, SimulationOptions

__all__ = [
    "PROMISING",
    "RunOutcome",
    "Simulation",
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

_MOST_PLANS = 1e8
"""Weighed at one decision; of many more the number would not fit into 64 bits."""


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
    grid, controls, p = problem.kernel_arguments()
    feedback = Feedback(
        values=np.ascontiguousarray(values, np.float64),
        policy=np.ascontiguousarray(policy, np.int32),
        kind=_KINDS[options.policy],
        sign=1.0 if sense == "max" else -1.0,
        decay=-math.log(max(discount, 1e-300)) / problem.options.time_unit,
        past_end=options.past_end,
    )
    loop, limits = compile_loop(problem.problem), _limits(problem, options)
    prepared = _Prepared(loop, grid, limits, controls, p, feedback, PROMISING * best)
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
    feedback: Feedback
    promising: float
    """Value, in the direction of the objective, above which a start is promising."""


def _run(prepared: _Prepared, start: State, options: SimulationOptions) -> Trajectory:
    capacity = math.ceil(options.seconds / options.sample) + 2
    samples = Samples(
        times=np.empty(capacity),
        states=np.empty((capacity, len(start))),
        actions=np.empty(capacity, np.int64),
        values=np.empty(capacity),
    )
    figures: Figures = prepared.loop.run(
        start,
        prepared.grid,
        prepared.limits,
        prepared.controls,
        prepared.p,
        prepared.feedback,
        samples,
    )
    goal, over = figures.goal, figures.over
    last = min(options.keep, options.seconds)
    start_value = float(prepared.loop.value_at(start, prepared.grid, prepared.feedback.values))
    after = figures.time - goal.reached
    return Trajectory(
        outcome=_outcome(figures, prepared.feedback.sign, options.seconds - last),
        times=samples.times[: figures.samples].copy(),
        states=samples.states[: figures.samples].copy(),
        actions=samples.actions[: figures.samples].copy(),
        values=samples.values[: figures.samples].copy(),
        start_value=start_value,
        promising=prepared.feedback.sign * start_value > prepared.promising,
        seconds=float(figures.time),
        final_reward=float(figures.final_reward),
        earned=float(figures.earned),
        reached=None if math.isinf(goal.reached) else float(goal.reached),
        held_since=None if math.isinf(goal.held_since) else float(goal.held_since),
        share_inside=min(1.0, goal.inside / after) if after > 0.0 else None,
        share_inside_last=None if over else min(1.0, goal.inside_last / last),
    )


def _outcome(figures: Figures, sign: float, latest: float) -> RunOutcome:
    """How a run ended, whose goal is to be held from the time `latest` on."""
    if figures.over:
        return RunOutcome.GOAL if sign * figures.final_reward > 0.0 else RunOutcome.ENDED
    if math.isinf(figures.goal.reached):
        return RunOutcome.NOT_REACHED
    return RunOutcome.KEPT if figures.goal.held_since <= latest else RunOutcome.NOT_KEPT


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
