"""Threads that share a piece of work: each has its number, the caller takes part, and nothing is left under way."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from numba import njit

from ooc_mdp.backends.cpu.addresses import address_of
from ooc_mdp.backends.cpu.calls import Call, call_of
from ooc_mdp.backends.cpu.claims import fetch_increment
from ooc_mdp.backends.cpu.team import Begun, Team

SIZE = 3


@njit(nogil=True)
def _count(seen: np.ndarray, others: np.ndarray, thread: int) -> None:
    """Count this thread's calls, and note how many calls of others it sees."""
    fetch_increment(address_of(seen) + 8 * thread)
    others[thread] = seen.sum()


@njit(nogil=True)
def _wait(gate: np.ndarray, done: np.ndarray, thread: int) -> None:
    """Wait until the gate is open, unless this is the caller's thread."""
    while thread > 0 and fetch_increment(address_of(gate)) < 1 << 40:
        pass
    fetch_increment(address_of(done))


@njit(nogil=True)
def _fail(which: int, done: np.ndarray, thread: int) -> None:
    if thread == which:
        raise MemoryError("no room for a thread")
    fetch_increment(address_of(done))


class Counted:
    """A call that counts who makes it."""

    def __init__(self) -> None:
        self.seen, self.others = np.zeros((2, SIZE), np.int64)
        self.call = call_of(_count, self.seen, self.others)


@pytest.fixture
def team() -> Iterator[Team]:
    made = Team(SIZE)
    yield made
    made.close()


def make(team: Team, *calls: Call, threads: int = SIZE) -> None:
    team.finish(team.begin(calls, (), threads))


def test_each_thread_makes_each_call_and_the_second_ones_after_all_have_made_the_first(team: Team) -> None:
    first, other, second = Counted(), Counted(), Counted()
    for n in range(1, 200):
        team.finish(team.begin([first.call, other.call], [second.call], SIZE))
        assert first.seen.tolist() == other.seen.tolist() == second.seen.tolist() == [n] * SIZE
    for _ in range(200):
        counted, seen_later = Counted(), np.zeros(SIZE, np.int64)
        team.finish(team.begin([counted.call], [call_of(_count, counted.seen, seen_later)], SIZE))
        assert seen_later.min() > SIZE  # its own second call, after the first ones of all


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_more_threads_take_part_than_are_wanted(team: Team, threads: int) -> None:
    counted = Counted()
    team.finish(team.begin([counted.call], [counted.call], threads))
    assert counted.seen.tolist() == [2] * threads + [0] * (SIZE - threads)


def test_others_begin_while_the_caller_does_something_else(team: Team) -> None:
    """It keeps the interpreter, which they do not need."""
    counted = Counted()
    begun = team.begin([counted.call], (), SIZE)
    until = time.monotonic() + 60.0
    while not team.others_done(begun) and time.monotonic() < until:
        pass
    assert counted.seen.tolist() == [0, 1, 1]
    team.finish(begun)
    assert counted.seen.tolist() == [1, 1, 1]
    team.finish(begun)
    assert counted.seen.tolist() == [1, 1, 1]


@pytest.mark.parametrize("failing", [0, 2])
def test_what_one_thread_raises_is_raised_once_all_are_done(team: Team, failing: int) -> None:
    done, counted = np.zeros(1, np.int64), Counted()
    with pytest.raises(MemoryError, match="no room for a thread"):
        make(team, call_of(_fail, failing, done))
    assert done[0] == SIZE - 1
    make(team, counted.call)
    assert counted.seen.tolist() == [1] * SIZE


def test_calls_that_the_caller_abandons_are_over_before_the_next_begin(team: Team) -> None:
    gate, done, counted = np.zeros(1, np.int64), np.zeros(1, np.int64), Counted()
    abandoned = team.begin([call_of(_wait, gate, done)], (), SIZE)
    assert not team.others_done(abandoned)
    threading.Timer(0.01, lambda: gate.__setitem__(0, 1 << 41)).start()
    begun = team.begin([counted.call], (), SIZE)
    assert done[0] == SIZE
    assert abandoned.finished
    team.finish(begun)
    assert counted.seen.tolist() == [1] * SIZE


def test_calls_that_an_interrupt_kept_from_beginning_are_not_made(team: Team) -> None:
    """Nor are those before them made again, whose arguments may be gone."""
    before, counted = Counted(), Counted()
    make(team, before.call)
    team._begun = Begun(np.array([counted.call.address]), [counted.call], None)  # and no thread was told
    make(team, before.call)
    assert (before.seen.tolist(), counted.seen.tolist()) == ([2] * SIZE, [0] * SIZE)


def test_calls_and_what_they_refer_to_are_kept_while_they_are_made_and_no_longer(team: Team) -> None:
    """That may be most of the memory."""

    class Owner:
        """Of arrays that a call knows the addresses of."""

    owner = Owner()
    held = weakref.ref(owner)
    begun = team.begin([Counted().call], (), SIZE, owner)
    del owner
    assert held() is not None
    team.finish(begun)
    del begun
    assert held() is None


def test_closing_waits_for_calls_that_were_abandoned_and_leaves_no_file_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    team, counted = Team(2), Counted()
    team.begin([counted.call], [counted.call], 2)
    team.close()
    assert counted.seen.tolist() == [2, 2, 0]
    team.close()
    Team(2).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_each_thread_does_its_part_of_work_in_python_and_the_caller_has_number_0(team: Team) -> None:
    by: dict[int, int] = {}
    everyone = threading.Barrier(SIZE)

    def work(thread: int) -> None:
        by[thread] = threading.get_ident()
        everyone.wait()

    team.share(work)
    assert set(by) == {0, 1, 2}
    assert len(set(by.values())) == SIZE
    assert by[0] == threading.get_ident()


@pytest.mark.parametrize("failing", [0, 2])
def test_what_work_in_python_raises_is_raised_once_all_are_done(team: Team, failing: int) -> None:
    done: list[int] = []

    def work(thread: int) -> None:
        if thread == failing:
            raise MemoryError(f"no room for thread {thread}")
        done.append(thread)

    with pytest.raises(MemoryError, match=f"thread {failing}"):
        team.share(work)
    assert sorted(done) == [t for t in range(SIZE) if t != failing]
    team.share(done.append)
    assert sorted(done[2:]) == [0, 1, 2]


def test_work_in_python_that_is_over_is_let_go(team: Team) -> None:
    class Work:
        def __call__(self, thread: int) -> None: ...

    work = Work()
    held = weakref.ref(work)
    team.share(work)
    del work
    assert held() is None
