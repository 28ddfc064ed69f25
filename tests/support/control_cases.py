"""Control problems whose rows two makers are compared by, and what they must agree in."""

from __future__ import annotations

from pathlib import Path

import every_construct
import numpy as np

from ooc_mdp.model.mdp import Rows
from ooc_mdp.problems.registry import PROBLEMS

__all__ = ["CASES", "NAMES", "agree"]

CASES = [
    ("mountain-car", {"grid": "50"}),
    ("mountain-car", {"grid": "37,21", "thrust": "6", "tolerance": "2", "max_step": "0.02"}),
    ("single-pendulum", {"grid": "50"}),
    ("single-pendulum", {"grid": "50", "hold": "0", "friction": "0.3", "time_unit": "0.01"}),
    ("double-pendulum", {"grid": "8"}),
    ("double-pendulum", {"grid": "9,3,8,2", "mass1": "0.5", "length2": "1.5", "max_duration": "0.2"}),
    ("triple-pendulum", {"grid": "5"}),
    (every_construct.__file__, {}),
    (every_construct.__file__, {"mass": "4", "grid": "3,2,5"}),
]
CASES += [(name, {"grid": "5"}) for name, e in PROBLEMS.items() if e.grid and name not in dict(CASES)]
NAMES = [f"{Path(name).stem}-{','.join(f'{k}={v}' for k, v in given.items())}" for name, given in CASES]


def agree(one: Rows, other: Rows, width: int, ascending: bool = True) -> None:
    """The same rows, but for one in 10,000 where the last bit of a sine chose another cell or step.

    ascending : whether the successors of a row must be, as they are in the problem's own numbering.
    """
    assert np.array_equal(one.action_ptr, other.action_ptr)
    assert np.array_equal(one.successor_ptr, other.successor_ptr)
    same = (one.successors == other.successors).reshape(-1, width).all(axis=1)
    same &= (np.abs(one.probabilities - other.probabilities) <= 1e-6).reshape(-1, width).all(axis=1)
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.durations - other.durations) > 1e-6 * one.durations
    same &= (np.isinf(one.durations) == np.isinf(other.durations)) & ~apart
    same &= np.abs(one.rewards - other.rewards) <= 1e-6 * np.maximum(np.abs(one.rewards), 1.0)
    assert (~same).sum() <= max(1e-4 * same.size, 1)
    sums = other.probabilities.reshape(-1, width).sum(axis=1)
    assert (sums == 1.0).all()
    assert not ascending or (np.diff(other.successors.reshape(-1, width), axis=1) > 0).all()
