"""What the user may choose for a simulation, checked once."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from ooc_mdp.errors import OptionsError
from ooc_mdp.options import real_number, whole_number

__all__ = ["PolicyKind", "SimulationOptions"]

_MOST_STEPS = 1e8
"""Samples or decisions of a run."""


class PolicyKind(enum.StrEnum):
    """How the policy is taken from the grid to states between its points."""

    LOOKAHEAD = "lookahead"
    """First control of the plan with the largest reward plus discounted interpolated value, from the state itself."""
    VOTE = "vote"
    """The stored actions of the surrounding simplex's vertices vote with their barycentric weights."""
    NEAREST = "nearest"
    """The stored action of the nearest grid point."""


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
