"""Threads that share a piece of work: each has its number, the caller takes part, and nothing is left under way."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from ooc_mdp.backends.cpu.team import Team


@pytest.fixture
def team() -> Iterator[Team]:
    made = Team(3)
    yield made
    made.close()


def test_each_thread_does_its_part_and_the_caller_has_number_0(team: Team) -> None:
    by: dict[int, int] = {}
    everyone = threading.Barrier(3)

    def work(thread: int) -> None:
        by[thread] = threading.get_ident()
        everyone.wait()

    team.share(work)
    assert set(by) == {0, 1, 2}
    assert len(set(by.values())) == 3
    assert by[0] == threading.get_ident()


def test_no_more_threads_take_part_than_are_wanted(team: Team) -> None:
    seen: list[int] = []
    team.share(seen.append, 1)
    assert seen == [0]
    team.share(seen.append, 2)
    assert sorted(seen) == [0, 0, 1]


@pytest.mark.parametrize("failing", [0, 2])
def test_what_one_thread_raises_is_raised_once_all_are_done(team: Team, failing: int) -> None:
    done: list[int] = []

    def work(thread: int) -> None:
        if thread == failing:
            raise MemoryError(f"no room for thread {thread}")
        done.append(thread)

    with pytest.raises(MemoryError, match=f"thread {failing}"):
        team.share(work)
    assert sorted(done) == [t for t in range(3) if t != failing]
    team.share(done.append)
    assert sorted(done[2:]) == [0, 1, 2]


def test_work_that_the_caller_abandons_is_over_before_the_next_begins(team: Team) -> None:
    go, done = threading.Event(), list[str]()

    def abandoned(thread: int) -> None:
        go.wait(10)
        done.append("abandoned")

    team.begin(abandoned)
    assert not team.others_done()
    threading.Timer(0.01, go.set).start()
    team.share(lambda thread: done.append("next"))
    assert done == ["abandoned"] * 2 + ["next"] * 3
    assert team.others_done()


def test_work_that_is_over_is_let_go(team: Team) -> None:
    """It holds the arrays of a solve, which may be most of the memory."""

    class Work:
        def __call__(self, thread: int) -> None: ...

    work = Work()
    held = weakref.ref(work)
    team.share(work)
    del work
    assert held() is None


def test_closing_waits_for_work_that_was_abandoned() -> None:
    done: list[int] = []
    team = Team(2)
    team.begin(done.append)
    team.close()
    assert done == [1]
    team.close()
