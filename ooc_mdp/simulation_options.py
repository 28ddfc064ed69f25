"""What the user may choose for a simulation, checked once; the command line's options are made of the fields."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from ooc_mdp.arguments import Kind, whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.option_fields import FLAG, POSITIVE, OptionType, option, read_options
from ooc_mdp.quoting import quote

__all__ = ["Controller", "SimulationKeywords", "SimulationOptions"]

_MAX_STEPS = 1e8
"""Samples or decisions of a run."""
_MAX_DEPTH = 8
"""Controls of a plan."""


class Controller(enum.StrEnum):
    """How the controls of states between grid points follow from the solution."""

    LOOKAHEAD = "lookahead"
    """First control of the plan with the largest reward plus discounted interpolated value, from the state itself."""
    VOTE = "vote"
    """The stored actions of the surrounding simplex's vertices vote with their barycentric weights."""
    NEAREST = "nearest"
    """The stored action of the nearest grid point."""


_WORD = Kind(lambda value: isinstance(value, str), f"one of {', '.join(Controller)}")


def _read_controller(name: str, value: Any) -> Controller:
    _WORD.check(name, value)
    try:
        return Controller(value)
    except ValueError:
        raise OptionsError(f"unknown {name} {quote(str(value))}; there are {', '.join(Controller)}") from None


def _read_depth(name: str, value: Any) -> int:
    depth = whole_number(name, value)
    if not 1 <= depth <= _MAX_DEPTH:
        raise OptionsError(f"{name} is {depth}; give 1 to {_MAX_DEPTH} controls in turn")
    return depth


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How runs are made; times are in the problem's unit."""

    heading: ClassVar[str] = "Runs"

    duration: float = option(20.0, POSITIVE, "Longest run, in the problem's unit of time.")
    controller: Controller = option(
        Controller.LOOKAHEAD,
        OptionType(str, _read_controller),
        "How controls follow between grid points; lookahead: plans are compared by interpolated values; vote, nearest: "
        "stored actions of the vertices around, or of the nearest one.",
        metavar="|".join(Controller),
    )
    plan_depth: int = option(4, OptionType(int, _read_depth), "Number of controls in a plan (lookahead).")
    period: float | None = option(
        None, POSITIVE, "Time between decisions.  [default: one stage of a plan, or as the state moves]"
    )
    cell_fraction: float = option(
        0.1,
        POSITIVE,
        "Stored actions are looked up again when the state has moved by this share of a cell.",
    )
    hold_time: float = option(
        5.0, POSITIVE, "The goal must be held for this last part of a run, or for all of a shorter one."
    )
    sample: float = option(0.02, POSITIVE, "Time between two samples of a run.")
    cells: float = option(2.0, POSITIVE, "Cells that the fastest control crosses in one stage of a plan.")
    continue_after_end: bool = option(
        False, FLAG, "Continue where the problem ends inside its axes, to see whether the goal is held."
    )

    def __post_init__(self) -> None:
        read_options(self)
        if self.duration / self.sample > _MAX_STEPS:
            raise OptionsError(
                f"{self.duration} at {self.sample} per sample are too many samples; give a shorter duration"
            )
        if self.period is not None and self.duration / self.period > _MAX_STEPS:
            raise OptionsError(
                f"{self.duration} at {self.period} per period are too many decisions; give a longer period"
            )


class SimulationKeywords(TypedDict, total=False):
    """The options as keywords of `ooc_mdp.simulate`."""

    duration: float
    controller: Controller | str
    plan_depth: int
    period: float | None
    cell_fraction: float
    hold_time: float
    sample: float
    cells: float
    continue_after_end: bool
