"""Runs independent tasks on a few threads through Dask; the only module that imports it.

A failing task lets those under way end and starts no more, so that nobody still writes when the caller cleans up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import dask

__all__ = ["run_in_order"]

T = TypeVar("T")


def run_in_order(tasks: Iterable[Callable[[], T]], workers: int, window: int) -> Iterator[T]:
    """Results of the tasks, in order; at most `window` are drawn and unfinished, at most `workers` run at once.

    Raises
    ------
    Exception : what the earliest failing task of a window raised.
    """
    stop = threading.Event()

    def guarded(task: Callable[[], T]) -> tuple[T | None, Exception | None]:
        if stop.is_set():
            return None, None
        try:
            return task(), None
        except Exception as error:
            stop.set()
            return None, error

    remaining = iter(tasks)
    with ThreadPoolExecutor(workers, thread_name_prefix="convert") as pool:
        try:
            while batch := list(islice(remaining, window)):
                delayed = [dask.delayed(guarded, pure=False)(task) for task in batch]
                results = dask.compute(*delayed, scheduler="threads", pool=pool, optimize_graph=False)
                for _, error in results:
                    if error is not None:
                        raise error
                for result, _ in results:
                    yield result
        finally:
            stop.set()
