"""The loops behind `ooc_mdp.store.encodings`, both ways; imported on first use, because Numba takes long to import.

Rows are uniform (`actions` a state and `width` transitions a row, pointers empty) or ragged (0 in place of what
differs, pointers given). Planes are decoded a block of states at a time, so that the rows they fill stay in the
processor's cache. Indices are unsigned, which spares a test for negative ones; all of them release the interpreter
lock. A transition of a control problem costs 0.5 ns for its successor and 0.8 ns for its probability, apart from
decompression.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.runtime.compiled import loop

__all__ = [
    "bits_from_planes",
    "from_row_differences",
    "to_planes",
    "to_row_differences",
    "weights_from_planes",
    "weights_from_rows",
    "weights_of_rows",
]

Words = npt.NDArray[np.unsignedinteger[Any]]
Pointers = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.floating[Any]]

_MASK = 0xFFFFFFFF
_ONE = np.uint64(1)
_ONE_IN_UNITS = 1 << 24
_UNIT = 2.0**-24
_BLOCK = 256
"""States whose rows are filled from all planes before the next: 10 to 100 KiB."""


@loop
def to_row_differences(
    values: Words, out: Words, n: int, actions: int, width: int, action_ptr: Pointers, successor_ptr: Pointers
) -> None:
    """The first successor of each row less the state, the others less the one before, modulo the type."""
    for i in range(n):
        s = np.uint64(i)
        if actions > 0:
            row, end = s * np.uint64(actions), (s + _ONE) * np.uint64(actions)
        else:
            row, end = np.uint64(action_ptr[s]), np.uint64(action_ptr[s + _ONE])
        at = row * np.uint64(width) if width > 0 else np.uint64(successor_ptr[row])
        for j in range(np.int64(end - row)):
            count = width if width > 0 else np.int64(np.uint64(successor_ptr[row + np.uint64(j) + _ONE]) - at)
            before = np.int64(i)
            for _ in range(count):
                value = np.int64(values[at])
                out[at] = value - before
                before = value
                at += _ONE


@loop
def from_row_differences(
    values: Words, n: int, actions: int, width: int, action_ptr: Pointers, successor_ptr: Pointers
) -> None:
    """The inverse, in place."""
    for i in range(n):
        s = np.uint64(i)
        if actions > 0:
            row, end = s * np.uint64(actions), (s + _ONE) * np.uint64(actions)
        else:
            row, end = np.uint64(action_ptr[s]), np.uint64(action_ptr[s + _ONE])
        at = row * np.uint64(width) if width > 0 else np.uint64(successor_ptr[row])
        for j in range(np.int64(end - row)):
            count = width if width > 0 else np.int64(np.uint64(successor_ptr[row + np.uint64(j) + _ONE]) - at)
            value = np.int64(i)
            for _ in range(count):
                value += np.int64(values[at])
                values[at] = value
                at += _ONE


@loop
def weights_of_rows(
    probabilities: Floats, out: npt.NDArray[np.uint32], rows: int, width: int, successor_ptr: Pointers
) -> int:
    """Each row but its last value, in units of 2**-24; the first row that is not made of them, or -1."""
    filled = 0
    for j in range(rows):
        if width > 0:
            lo, hi = np.int64(j * width), np.int64((j + 1) * width)
        else:
            lo, hi = np.int64(successor_ptr[j]), np.int64(successor_ptr[j + 1])
        left = _ONE_IN_UNITS
        for k in range(lo, hi):
            units = np.float64(probabilities[k]) * _ONE_IN_UNITS
            if not (0.0 <= units <= _ONE_IN_UNITS) or units != np.floor(units):
                return j
            left -= int(units)
            if k < hi - 1:
                out[filled] = np.int64(units)
                filled += 1
        if left != 0:
            return j
    return -1


@loop
def weights_from_rows(
    stored: npt.NDArray[np.uint32], out: Floats, rows: int, width: int, successor_ptr: Pointers
) -> None:
    """The inverse."""
    taken = 0
    for j in range(rows):
        if width > 0:
            lo, hi = np.int64(j * width), np.int64((j + 1) * width)
        else:
            lo, hi = np.int64(successor_ptr[j]), np.int64(successor_ptr[j + 1])
        left = _ONE_IN_UNITS
        for k in range(lo, hi - 1):
            left -= int(stored[taken])
            out[k] = np.float64(stored[taken]) * _UNIT
            taken += 1
        out[hi - 1] = np.float64(left) * _UNIT


@loop
def to_planes(values: npt.NDArray[np.uint32], out: npt.NDArray[np.uint32], n: int, planes: int) -> None:
    """Value x of state i (values[i * planes + x]) to plane x, as zigzag of its second difference along the states."""
    for x in range(planes):
        before = np.int64(0)
        step = np.int64(0)
        for i in range(n):
            value = np.int64(values[i * planes + x])
            difference = ((value - before) - step) & _MASK
            step = value - before
            before = value
            if difference > _MASK >> 1:
                difference -= _MASK + 1
            out[x * n + i] = (difference << 1) ^ (difference >> 63)


@loop
def bits_from_planes(stored: npt.NDArray[np.uint32], out: npt.NDArray[np.uint32], n: int, planes: int) -> None:
    """The inverse."""
    for x in range(planes):
        value = np.int64(0)
        step = np.int64(0)
        at = np.uint64(x)
        source = np.uint64(x * n)
        for i in range(n):
            z = np.int64(stored[source + np.uint64(i)])
            step += (z >> 1) ^ -(z & 1)
            value += step
            out[at] = value & _MASK
            at += np.uint64(planes)


@loop
def weights_from_planes(stored: npt.NDArray[np.uint32], out: Floats, n: int, actions: int, width: int) -> None:
    """Rows of `width` probabilities from planes of all but the last of each."""
    others = width - 1
    values = np.zeros(actions * others, np.int64)
    steps = np.zeros(actions * others, np.int64)
    left = np.empty(_BLOCK, np.int64)
    stride = np.uint64(actions * width)
    for first in range(0, n, _BLOCK):
        count = min(_BLOCK, n - first)
        for a in range(actions):
            left[:] = _ONE_IN_UNITS
            begin = np.uint64((first * actions + a) * width)
            for k in range(others):
                x = a * others + k
                value, step = values[x], steps[x]
                at = begin + np.uint64(k)
                source = np.uint64(x * n + first)
                for i in range(count):
                    z = np.int64(stored[source + np.uint64(i)])
                    step += (z >> 1) ^ -(z & 1)
                    value += step
                    weight = value & _MASK
                    left[np.uint64(i)] -= weight
                    out[at] = np.float64(weight) * _UNIT
                    at += stride
                values[x], steps[x] = value, step
            at = begin + np.uint64(others)
            for i in range(count):
                out[at] = np.float64(left[np.uint64(i)]) * _UNIT
                at += stride
