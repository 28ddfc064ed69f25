"""Where the tasks of a conversion run: one after the other, or on threads. Worker processes: `dask_executor.py`.

A task is a function of an item. Results come as tasks end; `in_order` puts them into the order of the items.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

__all__ = ["Executor", "SerialExecutor", "TaskQueue", "ThreadsExecutor", "completed", "in_order", "nothing"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def nothing(_: object) -> None:
    """Keep no result."""


class Executor(Protocol):
    """To add one, write a class with `map`, and give an instance to `convert` or `generate`.

    ``tests/io/conversion/test_executor.py`` checks what must hold. An executor that submits tasks and waits for them
    can build on `completed`, which provides order, errors and stopping.
    """

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        keep: Callable[[Result], object] = nothing,
    ) -> Generator[Result, None, None]:
        """Results of function(item), in any order; tasks begin in the order of the items, a bounded number at a time.

        Items are drawn in the calling thread, and only as tasks are begun. When the generator has ended, raised or was
        closed, no task is under way.

        Parameters
        ----------
        keep : called in the calling thread with each result before it is yielded, and with those of the tasks that are
            under way where the generator is closed or raises: what is done then is not lost.

        Raises
        ------
        Exception : what the first item in order raised, after the tasks under way; none that comes later begins.
        """
        ...


class SerialExecutor:
    """One task after the other in the calling thread: the one to read, and to compare others with."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        keep: Callable[[Result], object] = nothing,
    ) -> Generator[Result, None, None]:
        """See :class:`Executor`."""
        for item in items:
            result = function(item)
            keep(result)
            yield result


@dataclass(frozen=True, slots=True)
class ThreadsExecutor:
    """Threads of this process."""

    threads: int

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        keep: Callable[[Result], object] = nothing,
    ) -> Generator[Result, None, None]:
        """See :class:`Executor`."""
        stopped = threading.Event()

        def attempt(item: Item) -> Result:
            if stopped.is_set():
                raise Skipped
            try:
                return function(item)
            except BaseException:
                stopped.set()
                raise

        def stop() -> None:
            stopped.set()
            pool.shutdown()

        with ThreadPoolExecutor(self.threads, thread_name_prefix="convert") as pool:
            queue = TaskQueue(
                submit=lambda item: pool.submit(attempt, item),
                wait=lambda futures: wait_for(futures, return_when=FIRST_COMPLETED).done,
                cancel=lambda future: bool(future.cancel()),
                stop=stop,
                size=4 * self.threads,
            )
            yield from completed(queue, items, keep)


class Skipped(Exception):
    """A task was due after another had failed, or nobody waits for it."""


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """Something that runs tasks: futures have `result()`, and `done()`."""

    submit: Callable[[Any], Any]
    """Makes a future of an item."""
    wait: Callable[[list[Any]], Iterable[Any]]
    """Those of the futures that have ended, at least one."""
    cancel: Callable[[Any], bool]
    """Whether nobody needs to wait for the future any more."""
    stop: Callable[[], None]
    """Begins no more tasks, and waits for those under way."""
    size: int
    """Futures at a time."""


def completed(queue: TaskQueue, items: Iterable[Any], keep: Callable[[Any], object]) -> Generator[Any, None, None]:
    """Results as tasks end; see :meth:`Executor.map`."""
    running: dict[Any, int] = {}
    whole = False
    try:
        yield from _results(queue, enumerate(items), running, keep)
        whole = True
    finally:
        if not whole:
            queue.stop()
            for future in sorted(running, key=running.__getitem__):
                if future.done() and not future.cancelled() and future.exception() is None:
                    keep(future.result())


def _results(
    queue: TaskQueue, items: Iterator[tuple[int, Any]], running: dict[Any, int], keep: Callable[[Any], object]
) -> Iterator[Any]:
    """Fill the queue and take what has ended, until a task fails or no item is left; `running` says what is neither."""
    failure: tuple[float, Exception] | None = None
    drawn = False
    while True:
        while not drawn and failure is None and len(running) < queue.size:
            try:
                number, item = next(items)
            except StopIteration:
                drawn = True
            except Exception as error:
                failure = math.inf, error
            else:
                running[queue.submit(item)] = number
        if not running:
            break
        for future in sorted(queue.wait(list(running)), key=running.__getitem__):
            number = running.pop(future)
            try:
                result = future.result()
            except Skipped:
                continue
            except Exception as error:
                if failure is None or number < failure[0]:
                    failure = number, error
            else:
                keep(result)
                yield result
        if failure is not None:
            for future in [future for future, number in running.items() if number > failure[0]]:
                if queue.cancel(future):
                    del running[future]
    if failure is not None:
        raise failure[1]


def in_order(
    executor: Executor, function: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[Result, None, None]:
    """Results in the order of the items; those that come early wait in memory."""
    early: dict[int, Result] = {}
    due = 0
    with closing(executor.map(_Numbered(function), enumerate(items))) as results:
        for number, result in results:
            early[number] = result
            while due in early:
                yield early.pop(due)
                due += 1


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A function that keeps the number of its item, and can be sent to other processes."""

    function: Callable[[Any], Any]

    def __call__(self, numbered: tuple[int, Any]) -> tuple[int, Any]:
        number, item = numbered
        return number, self.function(item)
