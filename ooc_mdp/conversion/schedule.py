"""Runs independent tasks on a few threads through Dask; the only module that imports it.

Tasks begin in order. A failing task lets those under way end and starts none after it, so that nobody still
writes when the caller cleans up, and the error that is raised is the same in every run.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from dask.base import compute
from dask.delayed import delayed

__all__ = ["run_all", "run_in_order"]

T = TypeVar("T")

_WINDOW = 1024
"""Tasks without results given to Dask at a time; only the graph takes memory."""


def run_all(tasks: Iterable[Callable[[], object]], workers: int, ended: Callable[[int], None]) -> None:
    """Run tasks for what they do; `ended` is told in this thread, at each that succeeds, how many have.

    Raises
    ------
    Exception : as :func:`run_in_order`.
    """
    counts = itertools.count(1)
    for _ in run_in_order(tasks, workers, _WINDOW, lambda: ended(next(counts))):
        pass


def run_in_order(
    tasks: Iterable[Callable[[], T]], workers: int, window: int, ended: Callable[[], None] = lambda: None
) -> Iterator[T]:
    """Results of the tasks, in order; `window` are drawn at a time, at most `workers` run at once.

    Parameters
    ----------
    ended : called in this thread whenever a task has succeeded, which is before its window's results come.

    Raises
    ------
    Exception : what the first task that failed raised, or the iterable where no task before failed.
    """
    stop = threading.Event()
    remaining = iter(tasks)
    with ThreadPoolExecutor(workers, thread_name_prefix="convert") as pool:
        try:
            while True:
                batch, failure = _draw(remaining, window)
                attempts = _Attempts(batch, stop)
                turns = [delayed(attempts.make_next, pure=False)(dask_key_name=f"turn-{i}") for i in range(len(batch))]
                # (start, start_state, pretask, posttask, finish) as dask.callbacks.Callback orders them
                callbacks = [(None, None, None, lambda *_, a=attempts: a.report(ended), None)]
                compute(*turns, scheduler="threads", pool=pool, callbacks=callbacks)  # type: ignore[no-untyped-call]
                yield from attempts.results()
                if failure is not None:
                    raise failure
                if len(batch) < window:
                    return
        finally:
            stop.set()


class _Attempts(Generic[T]):
    """The tasks of a window, each made in its turn: Dask runs turns in an order of its own."""

    def __init__(self, tasks: list[Callable[[], T]], stop: threading.Event) -> None:
        self._tasks = tasks
        self._stop = stop
        self._turns = itertools.count()
        self._results: dict[int, T] = {}
        self._errors: dict[int, Exception] = {}
        self._reported = 0

    def make_next(self) -> None:
        """Run the first task that nobody has begun, unless one has failed; any thread."""
        turn = next(self._turns)
        if self._stop.is_set():
            return
        try:
            self._results[turn] = self._tasks[turn]()
        except Exception as error:
            self._errors[turn] = error
            self._stop.set()

    def report(self, ended: Callable[[], None]) -> None:
        """Call `ended` for each success since the last report."""
        while self._reported < len(self._results):
            self._reported += 1
            ended()

    def results(self) -> Iterator[T]:
        """What the tasks gave, in order, up to the first that failed, whose error is raised."""
        for turn in range(len(self._tasks)):
            if turn in self._errors:
                raise self._errors[turn]
            yield self._results[turn]


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
