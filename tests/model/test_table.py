"""A table is facts and a reader: what follows from the two alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Loader, Table
from ooc_mdp.store import Store


class Halved(Table):
    """A table with half the rewards of another: it replaces one fact, and reads through the other table."""

    def __init__(self, source: Table) -> None:
        self._source = source
        self.facts = replace(source.facts, reward_range=source.facts.reward_range / 2, stored_fields=())

    def read(self, p: int) -> tuple[PartitionTable, int]:
        table, n_bytes = self._source.read(p)
        return replace(table, rewards=table.rewards / 2, terminal_rewards=table.terminal_rewards / 2), n_bytes

    def loader(self, device: str) -> Loader:
        return Loader(self.read, self._source.loader(device).scratch_bytes)

    def original_states(self, p: int) -> IntArray:
        return self._source.original_states(p)

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._source.to_source(values)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(Case(random_model(3, 40, durations=True), partitions=4), tmp_path / "s")


def test_a_wrapped_table_is_solved_by_its_own_facts_and_reads(store: Store) -> None:
    whole, half = (ooc_mdp.solve(table, 0.9, epsilon=1e-9, device="cpu") for table in (store, Halved(store)))
    np.testing.assert_allclose(half.values, whole.values / 2, atol=2e-9, rtol=0)
    assert ooc_mdp.verify(Halved(store), half).holds
    assert not ooc_mdp.verify(store, half, other_store=True).holds


def test_what_a_table_does_not_define_follows_from_what_it_reads(store: Store) -> None:
    table = Halved(store)
    for p in range(table.n_partitions):
        np.testing.assert_array_equal(table.action_counts(p), store.action_counts(p))
        np.testing.assert_array_equal(table.read_field("rewards", p)[0], store.read(p)[0].rewards / 2)
    assert (table.name, table.sense, table.n_states) == (store.name, store.sense, store.n_states)


def test_the_facts_of_a_table_cannot_be_assigned(store: Store) -> None:
    with pytest.raises(AttributeError):
        store.facts.sense = "min"  # type: ignore[misc]
