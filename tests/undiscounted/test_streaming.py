"""Partitions come one after the other through a bounded cache, and those that were disturbed come again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import random_model

from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.store import Store
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, Work, finish


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(Case(random_model(3, 90), "max", "float64", 9), tmp_path / "m.store")


def test_wanted_partitions_come_once_in_turns_from_either_end(store: Store) -> None:
    wanted = np.arange(9) % 2 == 0
    with Streamed(store, int(store.facts.partition_bytes.sum()), 2) as tables:
        orders = [[p for p, rows, _ in tables.in_order(wanted) if rows.n] for _ in range(3)]
        assert orders == [[0, 2, 4, 6, 8], [8, 6, 4, 2, 0], [0, 2, 4, 6, 8]]
        assert [p for p, _, _ in tables.in_order(wanted, True)] == orders[0]
        assert [p for p, _, _ in tables.in_order(wanted, False)] == orders[1]
        statistics = SolveStatistics()
        tables.count(statistics)
        assert statistics.loads == 5
        assert statistics.auxiliary_accesses == 25
        assert statistics.auxiliary_hits == 20
        assert len(list(tables.in_order(wanted, sweeps=True))) == 5
        tables.count(statistics)
        assert (statistics.accesses, statistics.hits) == (5, 5)


def test_a_cache_of_one_partition_is_never_exceeded(store: Store) -> None:
    largest = int(store.facts.partition_bytes.max())
    with Streamed(store, largest, 2) as tables:
        for _ in range(2):
            assert len(list(tables.in_order(np.ones(9, np.bool_)))) == 9
        assert tables.cache.peak <= largest


def test_disturbed_partitions_are_visited_until_none_is_left(store: Store) -> None:
    visits = np.zeros(9, np.int64)

    def visit(p: int, rows: object) -> np.ndarray | None:
        visits[p] += 1
        return np.array([p, p + 1]) if p < 8 and visits[p] == 1 else None

    with Streamed(store, int(store.facts.partition_bytes.sum()), 2) as tables:
        dirty = np.arange(9) == 0
        finish(tables.until_clean(dirty, visit))
    assert visits.tolist() == [1] * 9
    assert not dirty.any()


def test_work_pauses_after_each_partition_and_may_be_left_there(store: Store) -> None:
    visited: list[int] = []
    with Streamed(store, int(store.facts.partition_bytes.sum()), 2) as tables:
        work = tables.until_clean(np.ones(9, np.bool_), lambda p, rows: visited.append(p))
        for _ in range(4):
            next(work)
        work.close()
        assert len(visited) == 4
        assert len(list(tables.in_order(np.ones(9, np.bool_)))) == 9


def test_finished_work_returns_what_it_found_and_tells_of_each_pause() -> None:
    def counting() -> Work[str]:
        for _ in range(3):
            yield
        return "found"

    pauses: list[int] = []
    assert finish(counting(), lambda: pauses.append(1)) == "found"
    assert len(pauses) == 3


def test_neighbours_are_the_coupling_both_ways(store: Store) -> None:
    neighbours = Neighbours(store.facts.coupling)
    for p in range(9):
        table, _ = store.read(p)
        owners = np.unique(np.searchsorted(store.facts.partition_ptr, table.halo, side="right") - 1)
        assert set(owners.tolist()) | {p} == set(neighbours.dependencies(p).tolist())
        assert all(p in neighbours.dependents(q) for q in owners)
        assert all(p in neighbours.dependencies(q) for q in neighbours.dependents(p))
