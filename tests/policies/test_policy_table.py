"""A policy's table can be made of every kind of table, and one read of it takes no more memory than its loader says."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.model.table import Table
from ooc_mdp.policies.given import given_policy
from ooc_mdp.policies.table import policy_table

GRID = {"grid": "40,30"}


@pytest.fixture
def store(tmp_path: Path) -> ooc_mdp.Store:
    return ooc_mdp.generate("mountain-car", tmp_path / "car.store", GRID, partitions=6)


def constant(table: Table) -> np.ndarray:
    counts = np.concatenate([table.action_counts(p) for p in range(table.n_partitions)])
    found: np.ndarray = table.to_source(np.where(counts > 0, counts - 1, -1))
    return found


def test_stored_recomputed_and_rewarded_tables_give_one_value(tmp_path: Path, store: ooc_mdp.Store) -> None:
    virtual = ooc_mdp.generate("mountain-car", tmp_path / "car.virtual", GRID, partitions=6, virtual=True)
    rewards = np.concatenate([store.read(p)[0].rewards for p in range(store.n_partitions)])
    doubled = ooc_mdp.with_rewards(store, 2 * in_source_order(store, rewards), tmp_path / "doubled.store")
    how = {"discount": 0.95, "epsilon": 1e-7, "policy": constant(store), "device": "cpu", "cache": "40%"}
    stored, recomputed, twice = (ooc_mdp.solve(table, **how) for table in (store, virtual, doubled))
    bounds = stored.error_bound + recomputed.error_bound
    assert np.abs(stored.values - recomputed.values).max() <= bounds
    assert recomputed.statistics.source == "recomputed"
    assert np.abs(2 * stored.values - twice.values).max() <= 2 * stored.error_bound + twice.error_bound
    for table, solution in ((store, stored), (virtual, recomputed), (doubled, twice)):
        assert solution.statistics.cache_peak_bytes <= solution.statistics.cache_bytes
        assert ooc_mdp.verify(table, solution).holds


def in_source_order(store: ooc_mdp.Store, rewards: np.ndarray) -> np.ndarray:
    """[states, actions]; a store's rewards of rows, all states having as many."""
    found = np.empty((store.n_states, store.facts.actions_per_state))
    states = np.concatenate([store.original_states(p) for p in range(store.n_partitions)])
    found[states] = rewards.reshape(store.n_states, -1)
    return found


def test_a_partition_takes_no_more_memory_than_the_loader_says(tmp_path: Path) -> None:
    store = ooc_mdp.generate("mountain-car", tmp_path / "car.store", {"grid": "240,200"}, partitions=2)
    table = policy_table(store, given_policy(constant(store)))
    table.read(0)
    tracemalloc.start()
    try:
        part = table.read(0)[0]
        held = tracemalloc.get_traced_memory()[1] - part.nbytes
    finally:
        tracemalloc.stop()
    assert 0.4 < held / table.loader("cpu").scratch_bytes < 1
