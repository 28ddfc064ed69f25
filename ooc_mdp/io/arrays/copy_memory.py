"""What copying P and R into rows holds, counted before it begins.

The rows of a model in memory are copied as a whole: in the order (state, action), without zeros, with columns of 64
bits. The constants are the bytes of the arrays that exist at the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan

__all__ = ["copy_plan"]

_ENTRY = 42
"""Of P and of R as P: columns, values and places as they are found, interleaved and chosen."""
_LOOKUP = 20
"""For each entry of either, where rewards of transitions are looked up: keys, sorted places and their inverse."""
_ROW = 128
"""States, actions, availability, rewards and pointers."""


def copy_plan(P: Any, R: Any, n_rows: int, of_transitions: bool) -> MemoryPlan:
    """The plan of reading P and R, of which `R` is in the layout of P where `of_transitions`."""
    entries, of_rewards = _entries(P), _entries(R) if of_transitions else 0
    lookup = _LOOKUP * (entries + of_rewards) if of_transitions else 0
    return MemoryPlan(
        {
            PROCESS: resident_bytes(),
            "rows of P": _ENTRY * entries + _ROW * n_rows,
            "rewards": _ENTRY * of_rewards + lookup,
        },
        {},
    )


def _entries(value: Any) -> int:
    """Entries that are not 0, of an array, a matrix, or lists of them."""
    if hasattr(value, "tocsr"):
        return int(value.nnz)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return int(np.count_nonzero(value))
    if isinstance(value, list | tuple | np.ndarray):
        return sum(map(_entries, value))
    return 1
