"""Where the cache holds all partitions, p-eva works on some of them until they have converged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp.runtime import quotas
from ooc_mdp.scheduling import working_set as working_sets
from ooc_mdp.scheduling.working_set import WorkingSet
from ooc_mdp.solver import start


def first(partitions: Any) -> Any:
    """Lower numbers are more urgent."""
    return partitions


def test_members_stay_until_they_are_clean_and_another_needs_their_place() -> None:
    working = WorkingSet(80, most=64, threads=1)
    assert working.choose(np.arange(30), first).tolist() == list(range(10))
    assert working.choose(np.arange(4, 30), first).tolist() == list(range(4, 14))
    assert working.choose(np.array([8, 9, 20]), first).tolist() == [8, 9, 20]
    assert np.flatnonzero(working.members).tolist() == [*range(5, 14), 20]  # of the clean ones, 4 was the first


@given(size=st.integers(1, 12), rounds=st.lists(st.sets(st.integers(0, 39), min_size=1), max_size=12), data=st.data())
def test_some_are_always_worked_on_and_never_too_many(size: int, rounds: list[set[int]], data: st.DataObject) -> None:
    working = WorkingSet(40, most=size, threads=6)
    for dirty in rounds:
        before = working.members.copy()
        urgency = np.array(data.draw(st.permutations(range(40))))
        numbers = np.array(sorted(dirty))
        chosen = working.choose(numbers, lambda p, u=urgency: p[np.argsort(u[p])])
        assert chosen.size > 0
        assert working.members.sum() <= size
        assert set(chosen.tolist()) == dirty & set(np.flatnonzero(working.members).tolist())
        assert dirty & set(np.flatnonzero(before).tolist()) <= set(chosen.tolist())
        left_out, taken = dirty - set(chosen.tolist()), set(chosen.tolist()) - set(np.flatnonzero(before).tolist())
        assert not left_out or chosen.size == size
        assert all(urgency[p] < urgency[q] for p in taken for q in left_out)


@pytest.mark.parametrize(
    ("partitions", "most", "threads", "size"),
    [(64, 64, 2, 8), (289, 64, 2, 36), (1024, 64, 2, 64), (20, 64, 16, 20), (9, 4, 2, 4)],
)
def test_it_has_an_eighth_of_all_within_a_batch(partitions: int, most: int, threads: int, size: int) -> None:
    working = WorkingSet(partitions, most, threads)
    working.choose(np.arange(partitions), first)
    assert working.members.sum() == size


@pytest.mark.parametrize(
    ("method", "holds_all", "batch", "confined"),
    [("p-eva", True, 64, False), ("p-eva", False, 64, True), ("p-eva", True, 1, True), ("vi", True, 64, True)],
)
def test_a_cache_that_does_not_hold_all_confines_the_work_itself(
    method: str, holds_all: bool, batch: int, confined: bool
) -> None:
    layout, choice = SimpleNamespace(holds_all=holds_all, batch_size=batch), SimpleNamespace(first=method)
    plan: Any = SimpleNamespace(layout=layout, choice=choice)
    assert (start._working_set(plan, 100) is None) == confined


def test_a_cached_car_takes_fewer_backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": (600, 600)}, partitions=256, device="cpu")
    monkeypatch.setattr(quotas, "cores", lambda: 1)  # so that each solve is the same each time
    backups = []
    for share in (working_sets._SHARE, 1):
        monkeypatch.setattr(working_sets, "_SHARE", share)
        solution = ooc_mdp.solve(store, discount=0.9, epsilon=1e-3, cache="100%", device="cpu", method="p-eva")
        assert solution.outcome.proved
        backups.append(solution.statistics.backups / store.n_states)
    assert backups[0] < 0.85 * backups[1]
