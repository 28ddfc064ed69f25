"""A run of a control problem, how it ended, and the summary of several runs. Computes no run."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.simulation_options import SimulationOptions

__all__ = ["VALUE_THRESHOLD", "RunOutcome", "Simulation", "Trajectory"]

VALUE_THRESHOLD = 0.01
"""A start whose value is above this fraction of the largest value can reach the goal."""

_LARGE_GAP = 0.2
"""Relative difference of return and value above which the values are not to be trusted."""
_SMALL_DIFFERENCE = 0.01
"""Share of the value range below which a difference of return and value does not count."""


class RunOutcome(enum.Enum):
    """How a run ended; the message says what to try next."""

    GOAL = ("goal", "the process ended at the goal")
    HELD = ("held", "the goal was reached and held throughout the last part of the run")
    NOT_HELD = (
        "not held",
        "the goal was reached, but left again or reached too late; try more time or a finer grid",
    )
    CRASHED = ("crashed", "the process ended elsewhere than at the goal: it left the axes, or is_terminal held")
    NOT_REACHED = ("not reached", "the time ran out first; try a longer duration, another start or a finer grid")
    ENDED = ("ended", "the process ended, in a problem without a goal")
    NOT_ENDED = ("not ended", "the process ran for the whole duration, in a problem without a goal")

    message: str

    def __new__(cls, value: str, message: str) -> RunOutcome:
        """A member whose value is the word that `--json` has."""
        outcome = object.__new__(cls)
        outcome._value_, outcome.message = value, message
        return outcome

    @property
    def success(self) -> bool:
        """Whether the goal was reached, and held where it is to be held."""
        return self in (RunOutcome.GOAL, RunOutcome.HELD)


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
    """float64 [m]; interpolated value; the terminal reward where the process ended."""
    start_value: float
    """Interpolated value of the start."""
    above_value_threshold: bool | None
    """Whether start_value is above `VALUE_THRESHOLD` of the largest value; None where no value is above 0."""
    duration: float
    """Length of the run."""
    terminal_reward: float
    """Paid where the process ended; 0 if it did not."""
    discounted_return: float
    """Discounted reward of the run."""
    remaining_value: float
    """Discounted value of the state in which the time ran out; 0 where the process ended."""
    reached: float | None
    """When the goal was first reached; None if never."""
    held_since: float | None
    """Since when the goal was held to the end of the run; None if it was not held at the end."""
    goal_fraction: float | None
    """Share of the time from `reached` to the end that was spent at the goal; None where there is no such time."""
    goal_fraction_last: float | None
    """Share of the last `hold_time` of a full run that was spent at the goal; None where the process ended before."""

    @property
    def total_return(self) -> float:
        """Discounted reward of the run and of what remains after it, as its values have it."""
        return self.discounted_return + self.remaining_value

    @property
    def value_gap(self) -> float:
        """How far the value of the start differs from the return, relative to the larger of both; 0 to 2."""
        larger = max(abs(self.start_value), abs(self.total_return))
        return abs(self.total_return - self.start_value) / larger if larger > 0.0 else 0.0

    def summary(self) -> dict[str, Any]:
        """Figures for JSON, without the samples."""
        return {
            "start": self.states[0].tolist(),
            "start_value": self.start_value,
            "above_value_threshold": self.above_value_threshold,
            "outcome": self.outcome.value,
            "success": self.outcome.success,
            "duration": self.duration,
            "reached": self.reached,
            "held_since": self.held_since,
            "goal_fraction": self.goal_fraction,
            "goal_fraction_last": self.goal_fraction_last,
            "terminal_reward": self.terminal_reward,
            "discounted_return": self.discounted_return,
            "remaining_value": self.remaining_value,
            "value_gap": self.value_gap,
            "end": self.states[-1].tolist(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """Runs from several starts."""

    problem: DiscretisedProblem
    options: SimulationOptions
    trajectories: tuple[Trajectory, ...]
    has_goal: bool = True
    """Whether there is a goal to be reached (see :mod:`ooc_mdp.simulation.simulate`)."""
    value_range: float = 0.0
    """Largest minus least value of all states."""
    sign: float = 1.0
    """1 where rewards are maximised, -1 where they are costs to be minimised."""
    goal_is_end: bool = False
    """Whether the goal is to end without a further cost; it is then not stated by the problem."""
    goal_pays: bool = True
    """Whether states whose reward rate is above 0 are the goal, if the problem states none."""
    other_problem: str | None = None
    """What was simulated, where it is not known to be the problem whose values these are; else None."""

    def warnings(self) -> list[str]:
        """What makes the values doubtful, in sentences: returns that are far from them."""
        if self.options.continue_after_end:  # the values are those of a process that ends
            return []
        doubtful = [
            run
            for run in self.trajectories
            if run.value_gap > _LARGE_GAP
            and abs(run.total_return - run.start_value) > _SMALL_DIFFERENCE * self.value_range
        ]
        if not doubtful:
            return []
        worst = max(doubtful, key=lambda run: run.value_gap)
        start = ", ".join(f"{x:.6g}" for x in worst.states[0])
        cause = "The grid is"
        if self.other_problem is not None:
            cause = (
                f"The runs are of {self.other_problem} and the values are not: where dynamics or rewards differ from "
                f"those of the table, so do the returns. Otherwise the grid is"
            )
        return [
            f"in {len(doubtful)} of {len(self.trajectories)} runs the return differs from the value of the start by "
            f"more than {_LARGE_GAP:.0%}, most from {start}: value {worst.start_value:.4g}, return "
            f"{worst.discounted_return:.4g} and {worst.remaining_value:.4g} that remain. {cause} too coarse for "
            f"the values to be those of the continuous problem, or the controller does not do what they promise: "
            f"compare a finer grid (generate --grid ...), and another --controller"
        ]

    def summary(self) -> dict[str, Any]:
        """Figures for JSON: outcomes, successes among all starts and those above the value threshold, and every run.

        Successes are None where there is no goal, and what is above the threshold where there are only costs.
        """
        above = [t for t in self.trajectories if t.above_value_threshold]
        has_threshold = all(t.above_value_threshold is not None for t in self.trajectories)
        successes = sum(t.outcome.success for t in self.trajectories)
        return {
            "problem": self.problem.name,
            "grid": list(self.problem.points),
            "controller": self.options.controller.value,
            "duration": self.options.duration,
            "hold_time": self.options.hold_time,
            "has_goal": self.has_goal,
            "starts": len(self.trajectories),
            "outcomes": dict(Counter(t.outcome.value for t in self.trajectories)),
            "successes": successes if self.has_goal else None,
            "success_fraction": successes / len(self.trajectories) if self.has_goal else None,
            "starts_above_value_threshold": len(above) if has_threshold else None,
            "successes_above_value_threshold": sum(t.outcome.success for t in above) if has_threshold else None,
            "reached": sum(t.reached is not None for t in self.trajectories),
            "warnings": self.warnings(),
            "runs": [t.summary() for t in self.trajectories],
        }
