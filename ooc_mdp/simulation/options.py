"""What the user may choose for a simulation, checked once."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from ooc_mdp.arguments import real_number, whole_number
from ooc_mdp.errors import OptionsError

__all__ = ["Controller", "SimulationOptions"]

_MAX_STEPS = 1e8
"""Samples or decisions of a run."""


class Controller(enum.StrEnum):
    """How the controls of states between grid points follow from the solution."""

    LOOKAHEAD = "lookahead"
    """First control of the plan with the largest reward plus discounted interpolated value, from the state itself."""
    VOTE = "vote"
    """The stored actions of the surrounding simplex's vertices vote with their barycentric weights."""
    NEAREST = "nearest"
    """The stored action of the nearest grid point."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How runs are made; times are in the problem's unit."""

    duration: float = 20.0
    """Longest run."""
    controller: Controller = Controller.LOOKAHEAD
    """How controls are chosen between grid points."""
    period: float = 0.0
    """Time between two decisions; 0: one stage of a plan, or for stored actions as `cell_fraction` says."""
    cell_fraction: float = 0.1
    """Stored actions are looked up again when the state has moved by this share of a cell along any axis."""
    hold_time: float = 5.0
    """The goal must be held for this last part of a run (or for all of a shorter one)."""
    sample: float = 0.02
    """Time between two samples of a trajectory."""
    plan_depth: int = 4
    """Controls in turn of a plan that "lookahead" weighs; there are controls**depth plans."""
    cells: float = 2.0
    """That the fastest control crosses in one stage of a plan; the first stage is carried out."""
    continue_after_end: bool = False
    """Continue where the problem's `is_terminal` holds, to see whether the goal is held; leaving the axes ends it."""

    def __post_init__(self) -> None:
        for name in ("duration", "period", "cell_fraction", "hold_time", "sample", "cells"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        object.__setattr__(self, "plan_depth", whole_number("plan_depth", self.plan_depth))
        for name, least in (
            ("duration", 0.0),
            ("hold_time", 0.0),
            ("sample", 0.0),
            ("cell_fraction", 0.0),
            ("cells", 0.0),
        ):
            if not least < getattr(self, name) < math.inf:
                raise OptionsError(f"{name} is {getattr(self, name)}; give a number above {least:g}")
        if not 0.0 <= self.period < math.inf:
            raise OptionsError(f"period is {self.period}; give a time above 0, or 0 to decide by the state's motion")
        if not 1 <= self.plan_depth <= 8:
            raise OptionsError(f"plan_depth is {self.plan_depth}; give 1 to 8 controls in turn")
        if self.duration / self.sample > _MAX_STEPS:
            raise OptionsError(
                f"{self.duration} at {self.sample} per sample are too many samples; give a shorter duration"
            )
        if self.period > 0.0 and self.duration / self.period > _MAX_STEPS:
            raise OptionsError(
                f"{self.duration} at {self.period} per period are too many decisions; give a longer period"
            )
