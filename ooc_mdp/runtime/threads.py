"""Work on large arrays, shared out over threads: NumPy's copies and system calls leave the interpreter to others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ooc_mdp.runtime import quotas

__all__ = ["in_order", "least_and_largest", "map_on_threads", "slices"]

_MOST = 16
_STATES = 4 << 20
"""Elements of a slice: some ten milliseconds of copying."""

_T = TypeVar("_T")
_Found = TypeVar("_Found")


def map_on_threads(work: Callable[[_T], object], items: Iterable[_T], most: int = _MOST) -> None:
    """Do the work for every item, on `most` threads or as many as there are cores; raises what it raises."""
    todo = list(items)
    threads = min(most, len(todo))
    if threads > 1:
        threads = min(threads, quotas.cores())
    if threads < 2:
        for item in todo:
            work(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="arrays") as pool:
        for _ in pool.map(work, todo):
            pass


def in_order(work: Callable[[_T], _Found], items: Iterable[_T], threads: int) -> Iterator[_Found]:
    """What the work finds for each item, in the order of the items; on threads, some items ahead of the caller.

    Raises what the work raises, of the first item where it does; of those after it none is begun then.
    """
    ahead: deque[Future[_Found]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="partitions") as pool:
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                if len(ahead) > 2 * threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def slices(length: int, size: int = _STATES) -> Iterator[slice]:
    """Cut an array of a length into slices."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def least_and_largest(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Of an array that is not empty; NaN where it has one."""
    parts = list(slices(values.size))
    ends = np.empty((2, len(parts)))

    def look(i: int) -> None:
        ends[:, i] = values[parts[i]].min(), values[parts[i]].max()

    map_on_threads(look, range(len(parts)))
    return float(ends[0].min()), float(ends[1].max())
