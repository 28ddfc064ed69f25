"""Compare tables and sources of tables, bit by bit."""

from __future__ import annotations

import dataclasses

import numpy as np

from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Table

_SMALL_ARRAYS = (
    "partition_ptr",
    "partition_bytes",
    "partition_halo",
    "reward_range",
    "duration_range",
    "row_sum_range",
    "max_successors",
)


def assert_equal_tables(one: PartitionTable, other: PartitionTable) -> None:
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, field.name)
        else:
            assert a == b, field.name


def assert_equal_sources(one: Table, other: Table) -> None:
    assert (one.n_states, one.n_partitions, one.sense) == (other.n_states, other.n_partitions, other.sense)
    for name in _SMALL_ARRAYS:
        np.testing.assert_array_equal(getattr(one.facts, name), getattr(other.facts, name), name)
    for name in ("ptr", "partitions", "mass"):
        np.testing.assert_array_equal(getattr(one.facts.coupling, name), getattr(other.facts.coupling, name), name)
    for name in ("actions_per_state", "successors_per_action", "state_order", "partitioning", "n_rows", "dtype"):
        assert one.facts.attributes[name] == other.facts.attributes[name], name
    for name in ("dyadic_probabilities", "duration_dtype"):
        assert getattr(one.facts, name) == getattr(other.facts, name), name
    not_read = {"original_state", "action_labels"}
    assert {*one.facts.dtypes} - not_read == {*other.facts.dtypes} - not_read
    for p in range(one.n_partitions):
        assert_equal_tables(one.read(p)[0], other.read(p)[0])
        np.testing.assert_array_equal(one.action_counts(p), other.action_counts(p))
        np.testing.assert_array_equal(one.original_states(p), other.original_states(p))
    numbers = np.arange(one.n_states)
    np.testing.assert_array_equal(one.to_source(numbers), other.to_source(numbers))
