"""Decoded bytes that a state will take in its partition's table, before the partition exists.

An estimate, because two things settle late: successors are counted as 2 bytes each (the type depends on the
partition), and pointers are left out where this block alone has no need of them. Halos are not counted.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.mdp import IntArray, Rows

__all__ = ["SUCCESSOR_BYTES", "bytes_per_state"]

SUCCESSOR_BYTES = 2
_BOUNDARY_BYTES = 1
_PTR_BYTES = 4


def bytes_per_state(rows: Rows, dtype: np.dtype[np.floating]) -> IntArray:
    """int64 [n]; estimated bytes of each state's part of the table."""
    actions = np.diff(rows.action_ptr)
    successors = np.diff(rows.successor_ptr)
    transitions = np.diff(rows.successor_ptr[rows.action_ptr])
    per_row = dtype.itemsize
    per_state = _BOUNDARY_BYTES
    if rows.durations is not None:
        per_row += 8
    if successors.size and successors.min() != successors.max():
        per_row += _PTR_BYTES
    if actions.size and actions.min() != actions.max():
        per_state += _PTR_BYTES
    for values in (rows.terminal_rewards, rows.initial_values):
        if values is not None:
            per_state += 8
    return transitions * (dtype.itemsize + SUCCESSOR_BYTES) + actions * per_row + per_state
