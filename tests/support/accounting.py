"""Bounds of one partition at a time, as tests think of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ooc_mdp.backends.base import VisitReport
from ooc_mdp.scheduling.residual_bounds import ResidualBounds

__all__ = ["disturb", "figures", "settle", "swept"]


def settle(bounds: ResidualBounds, p: int, *residuals: float) -> None:
    """A pass measured p at the present values: rise, fall, plain rise, plain fall."""
    bounds.settle(np.array([p]), np.array(residuals, np.float64).reshape(4, 1))


def swept(bounds: ResidualBounds, p: int, rise: float, fall: float) -> None:
    """A last sweep moved the values of p by so much at most."""
    one = np.array([p])
    bounds.settle(one, bounds.after_sweep(one, np.array([rise]), np.array([fall])))


def disturb(bounds: ResidualBounds, q: int, rise: float, fall: float) -> None:
    """Boundary values of q rose and fell by so much at most."""
    bounds.propagate(np.array([q]), np.array([rise]), np.array([fall]))


def figures(report: VisitReport) -> dict[str, Any]:
    """A report's arrays as lists, which can be compared."""
    return {name: None if x is None else np.asarray(x).tolist() for name, x in asdict(report).items()}
