"""Which states of the source each partition has; were one in two partitions, another would have no value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.store.damage import REMEDY

__all__ = ["source_states"]


def source_states(table: Table) -> Iterator[tuple[slice, IntArray]]:
    """The states of each partition: a slice in the order of partitions, and int64 [n], the source's numbers.

    Raises
    ------
    StoreError : a partition repeats a state, or has one that an earlier partition has.
    """
    listed = table.facts.attributes["state_order"]["kind"] == "array"
    taken = np.zeros(table.n_states if listed else 0, np.bool_)
    for p in range(table.n_partitions):
        states = table.original_states(p)
        if listed:
            _take(table.name, p, states, taken)
        yield slice(int(table.facts.partition_ptr[p]), int(table.facts.partition_ptr[p + 1])), states


def _take(name: str, p: int, states: IntArray, taken: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
    """Mark the states of partition p, none of which may be marked."""
    again = taken[states]
    again[1:] |= states[1:] <= states[:-1]
    if again.any():
        raise StoreError(
            f"{name} contradicts itself: original_state of partition {p} names state {states[np.argmax(again)]} twice "
            f"or not in ascending order, or another partition has it too; {REMEDY}"
        )
    taken[states] = True
