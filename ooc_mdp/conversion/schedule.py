"""Runs independent tasks on a few threads through Dask; the only module that imports it.

A failing task lets those under way and those before it end and starts none after it, so that nobody still
writes when the caller cleans up, and the error that is raised is the same in every run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dask.base import compute
from dask.delayed import delayed

__all__ = ["run_in_order"]

T = TypeVar("T")


def run_in_order(tasks: Iterable[Callable[[], T]], workers: int, window: int) -> Iterator[T]:
    """Results of the tasks, in order; `window` are drawn at a time, at most `workers` run at once.

    Raises
    ------
    Exception : what the first task that failed raised, or the iterable where no task before failed.
    """
    first_failed = _Lowest()
    remaining = iter(tasks)
    begun = 0
    with ThreadPoolExecutor(workers, thread_name_prefix="convert") as pool:
        try:
            while True:
                batch, failure = _draw(remaining, window)
                attempts = [
                    delayed(_attempt, pure=False)(task, begun + i, first_failed, dask_key_name=f"task-{begun + i:012d}")
                    for i, task in enumerate(batch)
                ]
                begun += len(batch)
                for result, error in compute(  # type: ignore[no-untyped-call]
                    *attempts, scheduler="threads", pool=pool
                ):
                    if error is not None:
                        raise error
                    yield result
                if failure is not None:
                    raise failure
                if len(batch) < window:
                    return
        finally:
            first_failed.lower(-1)


class _Lowest:
    """The lowest index of a failed task; Dask passes it by reference within a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._index: float = float("inf")

    def lower(self, index: int) -> None:
        with self._lock:
            self._index = min(self._index, index)

    def is_below(self, index: int) -> bool:
        return self._index < index


def _attempt(task: Callable[[], T], index: int, first_failed: _Lowest) -> tuple[T | None, Exception | None]:
    if first_failed.is_below(index):
        return None, None
    try:
        return task(), None
    except Exception as error:
        first_failed.lower(index)
        return None, error


def _draw(tasks: Iterator[Callable[[], T]], count: int) -> tuple[list[Callable[[], T]], Exception | None]:
    """Up to `count` tasks, and what drawing the next one raised."""
    batch: list[Callable[[], T]] = []
    try:
        while len(batch) < count:
            batch.append(next(tasks))
    except StopIteration:
        return batch, None
    except Exception as error:
        return batch, error
    return batch, None
