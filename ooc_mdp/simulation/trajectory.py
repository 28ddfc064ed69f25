"""A run of a control problem, how it ended, and the summary of several runs. Computes no run."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.simulation.options import SimulationOptions

__all__ = ["VALUE_THRESHOLD", "RunOutcome", "Simulation", "Trajectory"]

VALUE_THRESHOLD = 0.01
"""A start whose value is above this fraction of the largest value can reach the goal."""


class RunOutcome(enum.Enum):
    """How a run ended; the message says what to try next."""

    GOAL = ("goal", "the process ended with a reward")
    HELD = ("held", "the goal was reached and held throughout the last part of the run")
    NOT_HELD = (
        "not held",
        "the goal was reached, but left again or reached too late; try more time or a finer grid",
    )
    ENDED = ("ended", "the process ended without a reward: left the axes, or was not at the goal")
    NOT_REACHED = ("not reached", "the time ran out first; try a longer duration, another start or a finer grid")

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
    above_value_threshold: bool
    """Whether start_value is above `VALUE_THRESHOLD` of the largest value."""
    duration: float
    """Length of the run."""
    terminal_reward: float
    """Paid where the process ended; 0 if it did not."""
    discounted_return: float
    """Discounted reward of the run."""
    reached: float | None
    """When the goal was first reached; None if never."""
    held_since: float | None
    """Since when the goal was held to the end of the run; None if it was not held at the end."""
    goal_fraction: float | None
    """Share of the time from `reached` to the end that was spent at the goal; None where there is no such time."""
    goal_fraction_last: float | None
    """Share of the last `hold_time` of a full run that was spent at the goal; None where the process ended before."""

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
            "end": self.states[-1].tolist(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """Runs from several starts."""

    problem: DiscretisedProblem
    options: SimulationOptions
    trajectories: tuple[Trajectory, ...]
    has_goal: bool = True
    """Whether some state's value is above 0 (below, in a minimisation); where none is, all there is are costs."""

    def summary(self) -> dict[str, Any]:
        """Figures for JSON: successes among all starts, among those above the value threshold, and every run."""
        above = [t for t in self.trajectories if t.above_value_threshold]
        successes = sum(t.outcome.success for t in self.trajectories)
        return {
            "problem": self.problem.name,
            "grid": list(self.problem.points),
            "controller": self.options.controller.value,
            "duration": self.options.duration,
            "hold_time": self.options.hold_time,
            "has_goal": self.has_goal,
            "starts": len(self.trajectories),
            "successes": successes,
            "success_fraction": successes / len(self.trajectories),
            "starts_above_value_threshold": len(above),
            "successes_above_value_threshold": sum(t.outcome.success for t in above),
            "reached": sum(t.reached is not None for t in self.trajectories),
            "runs": [t.summary() for t in self.trajectories],
        }
