"""Threads that sweep a batch of partitions: one at a time is at each, all get their rounds, nobody waits in between."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from cpu_visits import LIMITS, started
from numba import njit

import ooc_mdp
from ooc_mdp.backends.cpu.claims import fetch_increment, release
from ooc_mdp.backends.cpu.rounds import next_member

ROUNDS = 5


@njit
def _release(turns: np.ndarray, m: int) -> None:
    release(turns.ctypes.data + 8 * m)


@njit(nogil=True)
def _draw(turn: np.ndarray, found: np.ndarray) -> None:
    for i in range(found.size):
        found[i] = fetch_increment(turn.ctypes.data)


@pytest.fixture
def visit(tmp_path: Path):
    """Members of one visit, and a way for a thread to take the next: all of eight partitions of a gridworld."""
    backend, residents = started(ooc_mdp.generate("GW-16x4", tmp_path / "s", partitions=8), 0.9)
    shared, batch = backend._shared(), backend._batch_of(len(residents))
    ((group,), _) = batch.take_places(residents, set(), LIMITS)
    values, spec = shared.values, residents[0].arrays[0].spec

    def take(path: np.ndarray) -> int:
        here = spec, path, group.section, batch.members, batch.progress, values, shared.policy, shared.workspace
        return next_member(*here, ROUNDS)

    yield batch, take, values
    backend.close()


def test_no_two_threads_are_at_one_member_and_nobody_gets_more_than_the_rounds(visit) -> None:
    batch, take, _ = visit
    at, turns, faults = Counter(), Counter(), []

    def work() -> None:
        path = np.zeros(3, np.int64)
        while (m := take(path)) >= 0:
            at[m] += 1
            turns[m] += 1
            threading.Event().wait(1e-4)
            if at[m] != 1:
                faults.append(m)
            at[m] -= 1
            path[2] = 1
            _release(batch.progress.claims, m)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert set(turns) == set(range(8))
    assert max(turns.values()) <= ROUNDS


def test_one_thread_goes_round_by_round_in_the_order_of_the_members(visit) -> None:
    batch, take, _ = visit
    path, seen = np.zeros(3, np.int64), []
    while (m := take(path)) >= 0:
        seen.append(m)
        path[2] = 1
        _release(batch.progress.claims, m)
    assert seen == list(range(8)) * ROUNDS


def test_who_is_held_is_passed_by_and_has_its_turn_later(visit) -> None:
    batch, take, _ = visit
    mine, other = np.zeros(3, np.int64), np.zeros(3, np.int64)
    assert take(mine) == 0
    assert [take(other) for _ in range(7)] == list(range(1, 8))
    for m in range(8):
        _release(batch.progress.claims, m)
    assert take(mine) == 0  # nobody else has anything left in the first round


def test_quiescent_members_are_left_alone_until_what_they_read_has_changed(visit) -> None:
    batch, take, values = visit
    path, seen = np.zeros(3, np.int64), []
    for m in range(8):
        assert take(path) == m
        batch.progress.quiescent[m] = m != 0
        path[2] |= m == 0
        _release(batch.progress.claims, m)
    values[int(batch.members.tables[3, 0])] += 1.0  # a state of member 3, on its border
    while (m := take(path)) >= 0:
        seen.append(m)
        batch.progress.quiescent[m] = True
        _release(batch.progress.claims, m)
    assert seen[0] == 0
    assert 3 not in seen
    assert len(seen) == len(set(seen)) > 1  # all are quiet now: there is no third round


@pytest.mark.parametrize(("count", "goes_further"), [(8, True), (9, False)])
def test_a_visit_of_few_partitions_goes_further(tmp_path: Path, count: int, goes_further: bool) -> None:
    """What goes around between the partitions of a pendulum takes as many rounds as a visit makes."""
    store = ooc_mdp.generate("single-pendulum", tmp_path / "s", {"grid": "64"}, partitions=16)
    backend, residents = started(store, 0.9, threads=1)
    with closing(backend):
        most = max(backend.relax(residents[:count], LIMITS).report().sweeps.max() for _ in range(3))
    assert (most > 6 * 4) == goes_further


def test_turns_are_drawn_once_each_by_however_many_threads() -> None:
    turn, found = np.zeros(1, np.int64), [np.zeros(50_000, np.int64) for _ in range(4)]
    threads = [threading.Thread(target=_draw, args=(turn, f)) for f in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.sort(np.concatenate(found)).tolist() == list(range(200_000))
