"""Memory that tables are decoded into again and again, so that the system need not give it anew each time.

Memory that is freed and allocated once more comes back page by page, each a fault of some microseconds: with those a
read took twice the processor time. An arena is one allocation, out of which arrays are cut and to which they return
with their last reference.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["SYSTEM_MEMORY", "Arena", "Scratch", "TableMemory"]

_LEAST = 16 << 10
"""Bytes of an array that the arena cares for: smaller ones the C library keeps for itself."""
_ALIGNMENT = 64


class Scratch:
    """Buffers of one read at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, npt.NDArray[np.uint8]] = {}

    def buffer(self, name: str, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Uint8 [n_bytes], the same memory each time; what it holds is anything."""
        kept = self._kept.get(name)
        if kept is None or kept.size < n_bytes:
            kept = self._kept[name] = np.empty(n_bytes, np.uint8)
        return kept[:n_bytes]


class TableMemory(Protocol):
    """Where the arrays of tables come from."""

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array [count] that holds anything; any thread."""
        ...

    def scratch(self) -> Any:
        """Context manager with a `Scratch` of the caller's own."""
        ...


class _Fresh:
    """Memory of the system, each time anew."""

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.empty(count, dtype)

    @contextmanager
    def scratch(self) -> Iterator[Scratch]:
        yield Scratch()


SYSTEM_MEMORY: TableMemory = _Fresh()


class Arena:
    """Tables of at most so many bytes together; what does not fit is allocated apart.

    An array goes into the smallest hole that takes it, and neighbouring holes are one. Where no hole takes an array, it
    is allocated apart, and the holes give their pages back to the system, so that both together are at most `n_bytes`.

    Parameters
    ----------
    n_bytes : as in the cache's budget.
    """

    def __init__(self, n_bytes: int) -> None:
        # In pages of the usual size: NumPy would ask for huge ones, and 390 MB of those, new from the host of a virtual
        # machine, took 0.3 s longer than this.
        pages = mmap.mmap(-1, max(n_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._pages = pages
        self._memory = np.frombuffer(pages, np.uint8)
        self._address = self._memory.ctypes.data
        self._lock = threading.Lock()
        self._by_size: list[tuple[int, int]] = []
        """Holes, by size and place."""
        self._size_at: dict[int, int] = {}
        self._begin_of: dict[int, int] = {}
        """Of the hole that ends there."""
        self._returned: deque[tuple[int, int]] = deque()
        """What arrays have left, from whatever thread: taken in with the next allocation."""
        self._idle: list[Scratch] = []
        self._add(0, self._memory.size // _ALIGNMENT * _ALIGNMENT)

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array [count] that holds anything."""
        held = np.dtype(dtype)
        size = -(-count * held.itemsize // _ALIGNMENT) * _ALIGNMENT
        if size < _LEAST:
            return np.empty(count, held)
        with self._lock:
            while self._returned:
                self._add(*self._returned.popleft())
            fitting = bisect_left(self._by_size, (size, 0))
            if fitting == len(self._by_size):
                self._return_holes()
                return np.empty(count, held)
            hole, start = self._by_size[fitting]
            self._drop(start, hole)
            if hole > size:
                self._add(start + size, hole - size)
        return np.asarray(_Piece(self, self._address + start, start, size))[: count * held.itemsize].view(held)

    @property
    def free_bytes(self) -> int:
        """Bytes of all holes."""
        with self._lock:
            while self._returned:
                self._add(*self._returned.popleft())
            return sum(size for size, _ in self._by_size)

    @contextmanager
    def scratch(self) -> Iterator[Scratch]:
        """Buffers that no other read has meanwhile."""
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = Scratch()
        try:
            yield scratch
        finally:
            self._idle.append(scratch)

    def _return_holes(self) -> None:
        """Have the system take back the pages that lie in holes; they come anew when they are written to."""
        for size, start in self._by_size:
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            whole = (start + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
            if whole > 0:
                self._pages.madvise(mmap.MADV_DONTNEED, first, whole)

    def _free(self, start: int, size: int) -> None:
        self._returned.append((start, size))

    def _add(self, start: int, size: int) -> None:
        """A hole, together with those at both its ends."""
        after = self._size_at.get(start + size)
        if after is not None:
            self._drop(start + size, after)
            size += after
        before = self._begin_of.get(start)
        if before is not None:
            self._drop(before, start - before)
            start, size = before, size + start - before
        if size:
            insort(self._by_size, (size, start))
            self._size_at[start], self._begin_of[start + size] = size, start

    def _drop(self, start: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._size_at[start], self._begin_of[start + size]


class _Piece:
    """What an array of the arena stands on: it goes with the last of the array's views."""

    __slots__ = ("__array_interface__", "_arena", "_size", "_start")

    def __init__(self, arena: Arena, address: int, start: int, size: int) -> None:
        self._arena, self._start, self._size = arena, start, size
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (size,), "typestr": "|u1"}

    def __del__(self) -> None:
        self._arena._free(self._start, self._size)
