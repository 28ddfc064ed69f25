"""The loops behind `ooc_mdp.store.check_load`; imported on first use, because Numba takes long to import.

They allocate nothing and release the interpreter lock. Indices were compared with the arrays before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["mark_halo", "mark_own", "measure_rows"]

Words = npt.NDArray[np.unsignedinteger[Any]]
Floats = npt.NDArray[np.floating[Any]]


@njit(nogil=True, cache=True)
def measure_rows(
    successors: Words, probabilities: Floats, successor_ptr: npt.NDArray[np.uint32], width: int,
    durations: Floats, n: int, own: int, slots: npt.NDArray[np.int32], mass: Floats, row_mass: Floats,
) -> tuple[float, float, float, int]:  # fmt: skip
    """Sums of the rows that do not end the process (least, largest), how far any sum is from 1, and a wrong row or -1.

    Parameters
    ----------
    successors, probabilities : [z]; row j's lie at j * width, or from successor_ptr[j] where `width` is 0.
    durations : [m] or empty; infinite for rows that end the process.
    n : own states, whose slot is `own`; that of halo state i is slots[i].
    mass : float64 [slots], 0 before; the largest mass that a row sends into each.
    row_mass : float64 [slots], 0 before and after.
    """
    rows = probabilities.size // width if width > 0 else max(successor_ptr.size - 1, 0)
    least, largest, apart, wrong = np.inf, -np.inf, 0.0, -1
    for j in range(rows):
        lo = np.uint64(j * width) if width > 0 else np.uint64(successor_ptr[j])
        count = width if width > 0 else np.int64(successor_ptr[j + 1]) - np.int64(successor_ptr[j])
        total, furthest, unsound = 0.0, np.int64(0), 0
        for k in range(count):
            at = lo + np.uint64(k)
            p = np.float64(probabilities[at])
            unsound += not p >= 0.0  # true where it is no number
            total += p
            furthest = max(furthest, np.int64(successors[at]))
        if unsound > 0 and wrong < 0:
            wrong = j
        apart = max(apart, abs(total - 1.0))
        if durations.size > 0 and np.isinf(durations[j]):
            continue
        least, largest = min(least, total), max(largest, total)
        if furthest < n:
            mass[own] = max(mass[own], total)
            continue
        for k in range(count):
            at = lo + np.uint64(k)
            s = np.int64(successors[at])
            row_mass[own if s < n else slots[s - n]] += np.float64(probabilities[at])
        for k in range(count):
            s = np.int64(successors[lo + np.uint64(k)])
            q = own if s < n else slots[s - n]
            mass[q] = max(mass[q], row_mass[q])
            row_mass[q] = 0.0
    return least, largest, apart, wrong


@njit(nogil=True, cache=True)
def mark_own(bits: npt.NDArray[np.uint8], first: int, boundary: npt.NDArray[np.bool_]) -> int:
    """Replace the marks of states from `first` on by those of `boundary`; a state that would lose its mark, or -1."""
    for i in range(boundary.size):
        state = first + i
        bit = np.uint8(1 << (state & 7))
        if boundary[i]:
            bits[state >> 3] |= bit
        elif bits[state >> 3] & bit:
            return state
    return -1


@njit(nogil=True, cache=True)
def mark_halo(bits: npt.NDArray[np.uint8], halo: npt.NDArray[np.int64], known: bool) -> int:
    """Mark states of one partition; where its marks are `known`, a state without one instead, or -1."""
    for state in halo:
        bit = np.uint8(1 << (state & 7))
        if not known:
            bits[state >> 3] |= bit
        elif not bits[state >> 3] & bit:
            return state
    return -1
