"""Models for discount 1 whose states are nearly all in one end component, as .npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

__all__ = ["write_component"]


def write_component(path: Path, n: int, rewards: Literal["zero", "mixed"]) -> None:
    """Write n states that lead to three others each, and one more behind an exit of state 0 that pays 5.

    Parameters
    ----------
    rewards : all 0, so that staying costs nothing; or -1 and 0.25.
    """
    rng = np.random.default_rng(2)
    third = n // 3
    to = np.sort(rng.integers(0, third, (n, 3)) + third * np.arange(3), axis=1)
    successors = np.concatenate([to[0], [n], to[1:].ravel()])
    widths = np.full(n + 1, 3)
    widths[1] = 1
    actions = np.ones(n + 1, int)
    actions[[0, n]] = 2, 0
    paid = np.zeros(n + 1) if rewards == "zero" else rng.choice([-1.0, 0.25], n + 1)
    paid[1] = 5.0
    pointers = [np.concatenate([[0], np.cumsum(counts)]) for counts in (actions, widths)]
    data = np.repeat(1 / widths, widths)
    np.savez(path, state_ptr=pointers[0], indptr=pointers[1], indices=successors, data=data, r_sa=paid)
