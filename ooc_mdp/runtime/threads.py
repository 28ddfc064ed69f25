"""Work on large arrays, shared out over threads: NumPy's copies and system calls leave the interpreter to others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["map_on_threads", "slices"]

_MOST = 16
_STATES = 4 << 20
"""Elements of a slice: some ten milliseconds of copying."""

_T = TypeVar("_T")


def map_on_threads(work: Callable[[_T], object], items: Iterable[_T], most: int = _MOST) -> None:
    """Do the work for every item, on `most` threads or as many as there are cores; raises what it raises."""
    todo = list(items)
    threads = min(most, os.cpu_count() or 1, len(todo))
    if threads < 2:
        for item in todo:
            work(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="arrays") as pool:
        for _ in pool.map(work, todo):
            pass


def slices(length: int, size: int = _STATES) -> Iterator[slice]:
    """Cut an array of a length into slices."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
