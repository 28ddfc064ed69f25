"""Tasks on threads: begun in order, none after one that failed, results in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from ooc_mdp.conversion.schedule import run_all, run_in_order


def noting(begun: list[int], task: int) -> int:
    begun.append(task)
    return task * task


def failing(begun: list[int], wrong: set[int], task: int) -> int:
    begun.append(task)
    if task in wrong:
        raise ValueError(f"task {task}")
    return task


@pytest.mark.parametrize("window", [1, 4, 20, 21, 50])
def test_tasks_begin_and_give_results_in_order(window: int) -> None:
    begun: list[int] = []
    results = list(run_in_order((partial(noting, begun, i) for i in range(20)), 1, window))
    assert begun == list(range(20))
    assert results == [i * i for i in range(20)]


@pytest.mark.parametrize("window", [3, 50])
def test_results_before_a_failure_come_and_nothing_after_it_begins(window: int) -> None:
    begun: list[int] = []
    given: list[int] = []
    with pytest.raises(ValueError, match="task 7"):
        given.extend(run_in_order((partial(failing, begun, {7, 9}, i) for i in range(20)), 1, window))
    assert begun == list(range(8))
    assert given == list(range(7))


def test_of_several_failures_the_first_task_is_named() -> None:
    both = threading.Barrier(2)

    def fail(task: int) -> None:
        both.wait(timeout=300)
        raise ValueError(f"task {task}")

    for _ in range(10):
        with pytest.raises(ValueError, match="task 0"):
            list(run_in_order([partial(fail, 0), partial(fail, 1)], 2, 8))


def test_a_failure_of_the_iterable_comes_after_what_it_gave() -> None:
    begun: list[int] = []

    def tasks() -> Iterator[Callable[[], int]]:
        yield partial(noting, begun, 0)
        yield partial(noting, begun, 1)
        raise ValueError("no more")

    given: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        given.extend(run_in_order(tasks(), 2, 8))
    assert given == [0, 1]


def test_each_success_is_told_in_the_thread_of_the_caller() -> None:
    told: list[tuple[int, int]] = []
    tasks: list[Callable[[], None]] = [lambda: None] * 2500  # more than are given to Dask at a time
    run_all(tasks, 3, lambda done: told.append((done, threading.get_ident())))
    assert told == [(i + 1, threading.get_ident()) for i in range(2500)]
