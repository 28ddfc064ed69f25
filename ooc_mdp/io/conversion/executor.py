"""Executors, which run the tasks of a conversion serially or on threads; `dask_executor.py` uses worker processes.

A task is a function of an item. Results are yielded as tasks end; `in_order` yields them in the order of the items.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

__all__ = ["Executor", "SerialExecutor", "TaskQueue", "ThreadsExecutor", "completed", "ignore", "in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def ignore(_: object) -> None:
    """Do nothing with a result."""


class Executor(Protocol):
    """To add one, write a class with `map`, and pass an instance to `convert` or `generate`.

    ``tests/io/conversion/test_executor.py`` checks the properties. An executor that submits tasks and waits for them
    can build on `completed`, which provides order, errors and stopping.
    """

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_done: Callable[[Result], object] = ignore,
    ) -> Generator[Result, None, None]:
        """Yield results of function(item), in any order; tasks start in the order of items, a bounded number at a time.

        Items are drawn in the calling thread, and only when tasks start. When the generator has ended, raised or was
        closed, no task is running.

        Parameters
        ----------
        on_done : called in the calling thread with each result before it is yielded. Where the generator is closed or
            raises, it is also called with the results of tasks that were still running, so that these are not lost.

        Raises
        ------
        Exception : the exception of the first item, in order, that raised one, once running tasks have ended; no later
            task starts.
        """
        ...


class SerialExecutor:
    """Runs one task after the other in the calling thread: the reference for other executors."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_done: Callable[[Result], object] = ignore,
    ) -> Generator[Result, None, None]:
        """See :class:`Executor`."""
        for item in items:
            result = function(item)
            on_done(result)
            yield result


@dataclass(frozen=True, slots=True)
class ThreadsExecutor:
    """Runs tasks on threads of this process."""

    threads: int

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_done: Callable[[Result], object] = ignore,
    ) -> Generator[Result, None, None]:
        """See :class:`Executor`."""
        numbers = itertools.count()
        # The last task that may begin: a thread may have taken one before it, and not have begun it yet.
        last, lock = [math.inf], threading.Lock()

        def end_at(number: float) -> None:
            with lock:
                last[0] = min(last[0], number)

        def attempt(number: int, item: Item) -> Result:
            if number > last[0]:
                raise Skipped
            try:
                return function(item)
            except BaseException:
                end_at(number)
                raise

        def stop() -> None:
            end_at(-1)
            pool.shutdown()

        with ThreadPoolExecutor(self.threads, thread_name_prefix="convert") as pool:
            queue = TaskQueue(
                submit=lambda item: pool.submit(attempt, next(numbers), item),
                wait=lambda futures: wait_for(futures, return_when=FIRST_COMPLETED).done,
                cancel=lambda future: bool(future.cancel()),
                stop=stop,
                size=4 * self.threads,
            )
            yield from completed(queue, items, on_done)


class Skipped(Exception):
    """A task was not run, because another had failed or the run was stopped."""


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """How tasks are submitted and awaited; futures have the methods of `concurrent.futures.Future`."""

    submit: Callable[[Any], Any]
    """Starts the task of an item; returns its future."""
    wait: Callable[[list[Any]], Iterable[Any]]
    """Waits until at least one of the futures has ended; returns those that have."""
    cancel: Callable[[Any], bool]
    """Cancels a future; returns whether it need not be awaited."""
    stop: Callable[[], None]
    """Starts no more tasks, and waits for those that are running."""
    size: int
    """Largest number of futures at a time."""


def completed(queue: TaskQueue, items: Iterable[Any], on_done: Callable[[Any], object]) -> Generator[Any, None, None]:
    """Yield results as tasks end; see :meth:`Executor.map`."""
    running: dict[Any, int] = {}
    whole = False
    try:
        yield from _results(queue, enumerate(items), running, on_done)
        whole = True
    finally:
        if not whole:
            queue.stop()
            for future in sorted(running, key=running.__getitem__):
                if future.done() and not future.cancelled() and future.exception() is None:
                    on_done(future.result())


def _results(
    queue: TaskQueue, items: Iterator[tuple[int, Any]], running: dict[Any, int], on_done: Callable[[Any], object]
) -> Iterator[Any]:
    """Submit tasks and yield results until a task fails or no item is left; `running` has the unfinished futures."""
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
                on_done(result)
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
    """Yield results in the order of the items; those that end early wait in memory."""
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
    """Calls a function and returns the number of its item with the result; it can be sent to other processes."""

    function: Callable[[Any], Any]

    def __call__(self, numbered: tuple[int, Any]) -> tuple[int, Any]:
        number, item = numbered
        return number, self.function(item)
