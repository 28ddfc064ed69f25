"""What a continuous-time control problem is: axes, controls, dynamics, rewards. One small file a problem.

    dx/dt = dynamics(x, control, p),     maximise  int gamma**t reward_rate dt + gamma**T terminal_reward(x(T), p)

To add a problem, write a Python file that assigns a :class:`ControlProblem` to the name ``problem``; see
``docs/guides/control-problems.md`` for a whole one. The functions in it are compiled twice, by Numba for the CPU and by
:mod:`ooc_mdp.problems.control.cuda.source` for the GPU, so they keep to a small part of Python: float arithmetic,
``if``, local names, the parameters' fields, and ``math``'s functions. This module compiles and discretises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ooc_mdp.arguments import real_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import shorten

__all__ = ["MAX_DIMENSIONS", "Axis", "ControlProblem", "State"]

MAX_DIMENSIONS = 6

State = tuple[float, ...]
"""A state or its derivative, a component an axis; also a control."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the state space."""

    name: str
    low: float
    high: float
    """The axis reaches from low to high; a periodic one includes only low."""
    periodic: bool = False
    """high is the same place as low, as for angles; the dynamics must not tell them apart."""
    clipped: bool = False
    """A state that would leave is held at the bound, as for velocities; else leaving ends the process."""
    unit: str = ""
    """For plots and listings."""

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            real_number(f"axis {self.name!r}: a bound", bound)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise OptionsError(f"axis {self.name!r} reaches from {self.low} to {self.high}; give finite low < high")
        if self.periodic and self.clipped:
            raise OptionsError(f"axis {self.name!r} is both periodic and clipped; nothing leaves a periodic axis")

    def step(self, points: int) -> float:
        """Distance between neighbours on a grid of so many points."""
        return (self.high - self.low) / (points if self.periodic else points - 1)


class NoParameters(NamedTuple):
    """The parameters of a problem that has none."""


@dataclass(frozen=True, slots=True)
class ControlProblem:
    """A deterministic system in continuous time with finitely many controls."""

    name: str
    summary: str
    """One line for listings."""
    axes: tuple[Axis, ...]
    """1 to 6 dimensions, in the order of the state's components."""
    controls: tuple[tuple[float, ...], ...]
    """The actions: each a tuple of control values, held constant during a step."""
    dynamics: Callable[[State, State, Any], State]
    """(state, control, p) -> time derivative of each component, a tuple."""
    parameters: Any = NoParameters()  # noqa: RUF009 (it is immutable)
    """A NamedTuple of floats with defaults: masses, lengths, ...; given to every function as p."""
    reward_rate: Callable[[State, State, Any], float] | None = None
    """(state, control, p) -> reward a unit of time; None is 0. It is integrated without discount inside a step."""
    terminal_reward: Callable[[State, Any], float] | None = None
    """(state, p) -> reward where the process ends: outside a bounded axis or in the region `is_terminal`; None is 0."""
    is_terminal: Callable[[State, Any], bool] | None = None
    """(state, p) -> whether the process ends here, apart from leaving the axes; None is never."""
    is_goal: Callable[[State, Any], bool] | None = None
    """(state, p) -> whether the goal of a simulation is reached here; None: where reward is paid, or in a problem of
    costs where `is_terminal` ends it without a terminal cost. It has no part in the table."""
    initial_state: State | None = None
    """A natural start for simulations, such as hanging down at rest."""
    default_grid: tuple[int, ...] = ()
    """Points along each axis where the user says nothing; () is 100 on each."""
    max_step: float = 0.1
    """Longest step of the integrator, in the problem's time; cells that are small shorten it."""
    max_duration: float = 1.0
    """Longest duration of a transition: where a state does not leave its cell (an equilibrium) it ends here."""

    def __post_init__(self) -> None:
        if not isinstance(self.axes, Sequence) or not all(isinstance(axis, Axis) for axis in self.axes):
            raise OptionsError(
                f"problem {self.name!r}: axes are {shorten(repr(self.axes))}; give a tuple of Axis, such as "
                f'(Axis("position", -1.0, 1.0),)'
            )
        for name in ("dynamics", "reward_rate", "terminal_reward", "is_terminal", "is_goal"):
            function = getattr(self, name)
            if not callable(function) and (function is not None or name == "dynamics"):
                raise OptionsError(
                    f"problem {self.name!r}: {name} is {shorten(repr(function))}; give a function, by its name without "
                    f"quotes or parentheses"
                )
        d = len(self.axes)
        if not 1 <= d <= MAX_DIMENSIONS:
            raise OptionsError(f"problem {self.name!r} has {d} axes; give 1 to {MAX_DIMENSIONS}")
        if not _are_tuples_of_numbers(self.controls):
            raise OptionsError(
                f"problem {self.name!r}: controls are {self.controls}; give tuples of finite numbers, of equal length, "
                f"such as ((-1.0,), (1.0,))"
            )
        if self.default_grid and len(self.default_grid) != d:
            raise OptionsError(f"problem {self.name!r}: default_grid {self.default_grid} has not {d} numbers")
        if self.initial_state is not None and len(self.initial_state) != d:
            raise OptionsError(f"problem {self.name!r}: initial_state {self.initial_state} has not {d} numbers")
        for axis, x in zip(self.axes, self.initial_state or (), strict=False):
            if not axis.periodic and not axis.low <= x <= axis.high:
                raise OptionsError(
                    f"problem {self.name!r}: initial_state {self.initial_state} has {axis.name} = {x:g}, and the axis "
                    f"reaches from {axis.low:g} to {axis.high:g}; move it inside, or make the axis longer"
                )
        if not (0 < self.max_step <= self.max_duration < math.inf):
            raise OptionsError(
                f"problem {self.name!r}: max_step {self.max_step} and max_duration {self.max_duration} are not "
                f"0 < max_step <= max_duration < inf"
            )
        if not hasattr(self.parameters, "_asdict"):
            raise OptionsError(f"problem {self.name!r}: parameters is no NamedTuple but {self.parameters!r}")
        for name, value in self.parameters._asdict().items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise OptionsError(f"problem {self.name!r}: parameter {name} is {value!r}; parameters are numbers")


def _are_tuples_of_numbers(controls: Any) -> bool:
    """Whether there are controls, each a tuple of as many finite numbers as the others, and of some."""
    return (
        isinstance(controls, Sequence)
        and all(isinstance(control, Sequence) for control in controls)
        and len({len(control) for control in controls}) == 1
        and len(controls[0]) > 0
        and all(_is_finite(u) for control in controls for u in control)
    )


def _is_finite(u: Any) -> bool:
    return isinstance(u, int | float | np.integer | np.floating) and math.isfinite(u)
