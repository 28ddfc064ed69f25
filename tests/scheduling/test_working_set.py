"""P-eva works on some of the residents until they have converged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp.runtime import quotas
from ooc_mdp.scheduling.working_set import WorkingSet
from ooc_mdp.solver.methods import p_eva


def first(partitions: Any, _: Any) -> Any:
    """Lower numbers are more urgent."""
    return partitions


def all_present(partitions: int) -> Any:
    """All are resident."""
    return np.ones(partitions, np.bool_)


def test_members_stay_until_they_are_clean_and_another_needs_their_place() -> None:
    working = WorkingSet(all_present(80), 10)
    assert working.choose(np.arange(30), first).tolist() == list(range(10))
    assert working.choose(np.arange(4, 30), first).tolist() == list(range(4, 14))
    assert working.choose(np.array([8, 9, 20]), first).tolist() == [8, 9, 20]
    assert np.flatnonzero(working.members).tolist() == [*range(5, 14), 20]  # of the clean ones, 4 was the first


def test_what_is_evicted_is_no_longer_a_member() -> None:
    present = all_present(80)
    working = WorkingSet(present, 10)
    working.choose(np.arange(30), first)
    present[[0, 1]] = False  # clean by now
    assert working.choose(np.arange(2, 30), first).tolist() == list(range(2, 12))
    assert np.flatnonzero(working.members).tolist() == list(range(2, 12))


@given(size=st.integers(1, 12), rounds=st.lists(st.sets(st.integers(0, 39), min_size=1), max_size=12), data=st.data())
def test_some_are_always_worked_on_and_never_too_many(size: int, rounds: list[set[int]], data: st.DataObject) -> None:
    working = WorkingSet(all_present(40), size)
    for dirty in rounds:
        before = working.members.copy()
        urgency = np.array(data.draw(st.permutations(range(40))))
        numbers = np.array(sorted(dirty))
        chosen = working.choose(numbers, lambda p, _, u=urgency: p[np.argsort(u[p])])
        assert chosen.size > 0
        assert working.members.sum() <= size
        assert set(chosen.tolist()) == dirty & set(np.flatnonzero(working.members).tolist())
        assert dirty & set(np.flatnonzero(before).tolist()) <= set(chosen.tolist())
        left_out, taken = dirty - set(chosen.tolist()), set(chosen.tolist()) - set(np.flatnonzero(before).tolist())
        assert not left_out or chosen.size == size
        assert all(urgency[p] < urgency[q] for p in taken for q in left_out)


def test_one_of_all_partitions_confines_nothing() -> None:
    working = WorkingSet(all_present(5), 5)
    assert working.choose(np.array([0, 3, 4]), first).tolist() == [0, 3, 4]


def test_what_waits_is_ranked_beside_the_members() -> None:
    working, seen = WorkingSet(all_present(9), 2), list[list[int]]()

    def by_priority(waiting: Any, resident: Any) -> Any:
        seen.append(np.flatnonzero(resident).tolist())
        return waiting

    working.choose(np.array([3, 5, 7]), by_priority)
    working.choose(np.array([5, 7]), by_priority)
    assert seen == [[], [3, 5]]


@pytest.mark.parametrize("cache", ["100%", "80%"])
def test_a_car_takes_fewer_backups_with_a_working_set(
    tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": (600, 600)}, partitions=256, device="cpu")
    monkeypatch.setattr(quotas, "cores", lambda: 1)  # so that each solve is the same each time
    backups = []
    for share in (p_eva._WORKING_SET_SHARE, 1.0):
        monkeypatch.setattr(p_eva, "_WORKING_SET_SHARE", share)
        solution = ooc_mdp.solve(store, discount=0.9, epsilon=1e-3, cache=cache, device="cpu", method="p-eva")
        assert solution.outcome.proved
        backups.append(solution.statistics.backups / store.n_states)
    assert backups[0] < 0.85 * backups[1]
