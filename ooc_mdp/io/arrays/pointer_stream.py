"""Segment pointers (CSR) read forward with look-ahead, to divide states into blocks that fit in memory.

    pointers   0 ... p[i] p[i+1] ... total        segment i = entries p[i]:p[i+1]

Pointers are checked as they are read: they start at 0, never fall and end at the number of entries. This module opens
no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.block_memory import ENTRY_BYTES, check_block_memory
from ooc_mdp.model.mdp import IntArray

__all__ = ["IdentityPointers", "PointerStream", "ValueReader", "count_that_fits", "segments"]


class ValueReader(Protocol):
    """A one-dimensional array that is read forward."""

    name: str
    count: int

    def read(self, count: int) -> np.ndarray[Any, Any]:
        """The next `count` values."""
        ...


class IdentityPointers:
    """0, 1, 2, ..., count - 1: the pointers of segments of one entry each."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self._next = 0

    def read(self, count: int) -> np.ndarray[Any, Any]:
        """The next `count` values."""
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.int64)


def count_that_fits(pointers: IntArray, limit: int) -> int:
    """Number of leading segments of `pointers` that have at most `limit` entries together, at least 1."""
    return max(1, int(np.searchsorted(pointers, pointers[0] + limit, side="right")) - 1)


class PointerStream:
    """Segment pointers read forward with look-ahead, and checked to rise from 0 to `total`.

        pointers   0 ... p[i] p[i+1] ... total        segment i = entries p[i]:p[i+1]

    Parameters
    ----------
    path : the file named in messages.
    values : the pointers, one more than there are segments.
    total : number of entries.
    entries : the word for the entries in messages.
    """

    def __init__(self, path: str, values: ValueReader, total: int, entries: str) -> None:
        self.path = path
        self.n_segments = values.count - 1
        self._values = values
        self._total = total
        self._entries = entries
        self._position = 0
        if values.count < 1:
            raise self._error("is empty; its first pointer must be 0")
        self._ahead = np.asarray(values.read(1), np.int64)
        if self._ahead[0] != 0:
            raise self._error(f"starts with {self._ahead[0]}; the first pointer must be 0")
        if values.count == 1:
            self._check_end()

    def _error(self, message: str) -> InputError:
        return InputError(self.path, f"{self._values.name}: {message}")

    def _check_end(self) -> None:
        if self._ahead[-1] != self._total:
            raise self._error(f"ends at {self._ahead[-1]}, but there are {self._total} {self._entries}")

    def peek(self, count: int) -> IntArray:
        """The pointers of the next `count` segments (fewer at the end), int64 [segments + 1]."""
        missing = min(count, self.n_segments - self._position) + 1 - self._ahead.size
        if missing > 0:
            first = self._position + self._ahead.size - 1
            new = np.concatenate([self._ahead[-1:], self._values.read(missing).astype(np.int64)])
            falls = np.flatnonzero(np.diff(new) < 0)
            if falls.size:
                at = int(falls[0])
                raise self._error(
                    f"falls from {new[at]} to {new[at + 1]} at entry {first + at + 1}; pointers never fall"
                )
            if new[-1] > self._total:
                at = int(np.argmax(new > self._total))
                raise self._error(f"entry {first + at} is {new[at]}, but there are {self._total} {self._entries}")
            self._ahead = np.concatenate([self._ahead, new[1:]])
            if self._position + self._ahead.size == self.n_segments + 1:
                self._check_end()
        return self._ahead[: count + 1]

    def advance(self, count: int) -> None:
        """Move past `count` segments that were returned by `peek`."""
        self._position += count
        self._ahead = self._ahead[count:].copy()


def segments(states: PointerStream, rows: PointerStream, size: int) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Divide states into blocks of about `size` bytes: (first state, state pointers, row pointers) of each.

    Both pointer arrays have the values of the streams: those of the block's n states [n + 1], and those of its m rows
    [m + 1]. A block has at least one state, whatever its size; MemoryBudgetError where RAM has no room for it.
    """
    first = 0
    while first < states.n_segments:
        state_ptr = states.peek(max(1, size // 64))
        state_ptr = state_ptr[: count_that_fits(state_ptr, size // 32) + 1]
        row_ptr = rows.peek(int(state_ptr[-1] - state_ptr[0]))
        count = count_that_fits(row_ptr[state_ptr - state_ptr[0]], size // 24)
        state_ptr = state_ptr[: count + 1]
        row_ptr = row_ptr[: int(state_ptr[-1] - state_ptr[0]) + 1]
        entries = row_ptr.size + int(row_ptr[-1] - row_ptr[0])
        check_block_memory(states.path, first, count, ENTRY_BYTES * entries)
        states.advance(count)
        rows.advance(row_ptr.size - 1)
        yield first, state_ptr, row_ptr
        first += count
