"""Tasks of a conversion: begun in order, none after one that failed, the first failure raised, whatever runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import pytest
from worker_clusters import Clusters

from ooc_mdp.io.conversion.dask_executor import DaskExecutor
from ooc_mdp.io.conversion.executor import Executor, SerialExecutor, ThreadsExecutor, in_order

KINDS = ["serial", "one thread", "three threads", "dask"]


@pytest.fixture(params=KINDS)
def executor(request: pytest.FixtureRequest) -> Executor:
    match request.param:
        case "serial":
            return SerialExecutor()
        case "one thread":
            return ThreadsExecutor(1)
        case "three threads":
            return ThreadsExecutor(3)
        case _:
            clusters: Clusters = request.getfixturevalue("clusters")
            return DaskExecutor(clusters[2])


def noting(begun: list[int], task: int) -> int:
    begun.append(task)
    return task * task


def failing(begun: list[int], wrong: set[int], task: int) -> int:
    begun.append(task)
    if task in wrong:
        raise ValueError(f"task {task}")
    return task


def square(task: int) -> int:
    return task * task


def test_each_item_gives_one_result(executor: Executor) -> None:
    assert sorted(executor.map(square, range(50))) == [i * i for i in range(50)]


def test_results_in_order_are_in_the_order_of_the_items(executor: Executor) -> None:
    assert list(in_order(executor, square, range(50))) == [i * i for i in range(50)]


def test_no_items_give_no_results(executor: Executor) -> None:
    assert list(executor.map(square, [])) == []


def test_of_several_failures_the_first_item_is_named(executor: Executor) -> None:
    with pytest.raises(ValueError, match="task 7"):
        list(executor.map(partial(failing, [], {7, 8, 9, 10, 40}), range(50)))


def test_the_first_item_is_named_though_its_thread_was_slow_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread has taken task 7, and does nothing with it before task 8 has failed on another."""
    failed = threading.Event()

    class Slow(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            def run() -> Any:
                if args[-1] == 7:
                    assert failed.wait(60)
                try:
                    return fn(*args, **kwargs)
                finally:
                    if args[-1] == 8:
                        failed.set()

            return super().submit(run)

    monkeypatch.setattr("ooc_mdp.io.conversion.executor.ThreadPoolExecutor", Slow)
    with pytest.raises(ValueError, match="task 7"):
        list(ThreadsExecutor(3).map(partial(failing, [], {7, 8}), range(20)))


@pytest.mark.parametrize("threads", [None, 1])
def test_tasks_begin_in_the_order_of_the_items(threads: int | None) -> None:
    begun: list[int] = []
    executor = SerialExecutor() if threads is None else ThreadsExecutor(threads)
    assert list(executor.map(partial(noting, begun), range(20))) == [i * i for i in range(20)]
    assert begun == list(range(20))


@pytest.mark.parametrize("threads", [None, 1])
def test_results_before_a_failure_come_and_nothing_after_it_begins(threads: int | None) -> None:
    begun: list[int] = []
    given: list[int] = []
    executor = SerialExecutor() if threads is None else ThreadsExecutor(threads)
    with pytest.raises(ValueError, match="task 7"):
        given.extend(executor.map(partial(failing, begun, {7, 9}), range(20)))
    assert begun == list(range(8))
    assert given == list(range(7))


def test_of_failures_at_the_same_time_the_first_item_is_named() -> None:
    both = threading.Barrier(2)

    def fail(task: int) -> None:
        both.wait(timeout=300)
        raise ValueError(f"task {task}")

    for _ in range(10):
        with pytest.raises(ValueError, match="task 0"):
            list(ThreadsExecutor(2).map(fail, [0, 1]))


def test_an_earlier_item_that_fails_later_is_the_one_that_is_named() -> None:
    failed = threading.Event()

    def fail(task: int) -> None:
        if task == 0:
            assert failed.wait(300)
        failed.set()
        raise ValueError(f"task {task}")

    with pytest.raises(ValueError, match="task 0"):
        list(ThreadsExecutor(2).map(fail, [0, 1]))


def test_a_failure_of_the_iterable_comes_after_what_it_gave(executor: Executor) -> None:
    def items() -> Iterator[int]:
        yield 0
        yield 1
        raise ValueError("no more")

    given: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        given.extend(executor.map(square, items()))
    assert sorted(given) == [0, 1]


def test_items_are_drawn_in_the_calling_thread_in_bounded_number(executor: Executor) -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for i in range(1000):
            drawn.append(threading.get_ident())
            yield i

    results = executor.map(square, items())
    next(results)
    assert set(drawn) == {threading.get_ident()}
    assert len(drawn) < 100
    assert len(list(results)) == 999


@pytest.mark.parametrize("kind", ["threads", "dask"])
def test_no_task_runs_once_the_results_are_closed(kind: str, clusters: Clusters) -> None:
    """The task that is under way ends, since nobody can end it; those that wait are dropped."""
    begun, ended = list[int](), list[int]()
    in_flight, go_on = threading.Event(), threading.Event()

    def work(task: int) -> int:
        begun.append(task)
        if task:
            in_flight.set()
            assert go_on.wait(300)
        ended.append(task)
        return task

    executor = ThreadsExecutor(1) if kind == "threads" else DaskExecutor(clusters[1])
    with unpickled(work) as function:
        kept = list[int]()
        results = executor.map(function, range(100), kept.append)
        assert next(results) == 0
        assert in_flight.wait(300)
        threading.Timer(0.05, go_on.set).start()
        results.close()
        assert sorted(begun) == sorted(ended) == sorted(kept)
        assert len(begun) < 10
        assert go_on.is_set()


class unpickled:
    """A function of this process that workers in its threads call, although what they are given is pickled."""

    functions: ClassVar[dict[int, Callable[[int], int]]] = {}

    def __init__(self, function: Callable[[int], int]) -> None:
        self._function = function

    def __enter__(self) -> Callable[[int], int]:
        self.functions[id(self)] = self._function
        return partial(call_unpickled, id(self))

    def __exit__(self, *_: object) -> None:
        del self.functions[id(self)]


def call_unpickled(key: int, task: int) -> int:
    return unpickled.functions[key](task)
