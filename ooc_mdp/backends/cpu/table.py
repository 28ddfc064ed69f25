"""A partition's table as the CPU's loops read it: uniform rows where they cost no memory, and where its arrays lie.

A store whose rows are ragged often has partitions, most of them or all, whose rows are all alike: a gridworld's corners
have fewer successors than the other states. Such a partition needs no pointers, and where a few transitions are
missing they are filled in with probability 0, if that takes no more bytes than the pointers did. Where a partition
reads several times as many outside states as it has own ones, gathering them would take longer than a sweep: its
successors are made global states, in place, and its halo is let go.

    0 first | 1 n | 2 h | 3 action_ptr | 4 successor_ptr | 5 successors | 6 probabilities | 7 rewards | 8 discounts |
    9 terminal rewards | 10 halo | 11 boundary | 12 whether successors are global | 13 actions of every state |
    14 transitions of every row (0: they vary)                                             (3 to 11 are addresses)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable

__all__ = ["MOST_GATHERED", "MOST_UNROLLED", "SweptTable", "describe", "swept_table"]

MOST_GATHERED = 2
"""Outside states read for each own one, above which successors are made global."""
MOST_UNROLLED = 16
"""Actions of a state and successors of a row up to which loops are compiled for their number."""
_LEAST_COMPILED_FOR = 256
"""States of a partition that is worth loops of its own."""
_LARGEST = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class SweptTable:
    """A resident partition as sweeps read it."""

    table: PartitionTable
    """Kept for its arrays."""
    discounts: FloatArray
    """float64 [m] or empty."""
    whole: bool
    """Whether successors are global."""
    row: IntArray
    """int64 [15]; see above."""

    @property
    def kind(self) -> tuple[int, int]:
        """Actions a state and transitions a row for which the loops are compiled; 0 stands for any number."""
        t = self.table
        worth = t.n_states >= _LEAST_COMPILED_FOR
        return (
            t.actions_per_state if worth and t.actions_per_state <= MOST_UNROLLED else 0,
            t.successors_per_action if worth and t.successors_per_action <= MOST_UNROLLED else 0,
        )

    @property
    def types(self) -> tuple[npt.NDArray[Any], ...]:
        """Empty arrays of the types that loops over the table are compiled for."""
        return self.table.successors[:0], self.table.probabilities[:0], self.table.rewards[:0]


def swept_table(table: PartitionTable) -> tuple[PartitionTable, bool]:
    """The table in the form that sweeps read fastest, in no more bytes, and whether its successors are global now.

    The table's own arrays may change.
    """
    table = _uniform_rows(table)
    n, halo = table.n_states, table.halo
    if table.successors.dtype != np.uint32 or halo.size <= MOST_GATHERED * n or halo[-1] > _LARGEST:
        return table, False
    _make_global(table.successors, table.first_state, n, halo.astype(np.uint32))
    return replace(table, halo=np.empty(0, np.int64)), True


@njit(nogil=True, cache=True)
def _make_global(successors, first, n, halo):
    """Number successors by the whole model's states, in place."""
    for i in range(successors.size):
        to = successors[i]
        successors[i] = np.uint32(first + to) if to < n else halo[np.uint64(to - n)]


def _uniform_rows(table: PartitionTable) -> PartitionTable:
    """The same table without pointers where its rows are alike, or can be made so within the same bytes."""
    if table.n_rows == 0 or table.successors_per_action:
        return table
    counts = np.diff(table.successor_ptr)
    width = int(counts.max())
    missing = width * table.n_rows - table.successors.size
    added = missing * (table.successors.itemsize + table.probabilities.itemsize)
    if width == 0 or added > table.successor_ptr.nbytes:
        return table
    successors, probabilities = table.successors, table.probabilities
    if missing:
        short = np.flatnonzero(counts < width)
        where = np.repeat(table.successor_ptr[short + 1].astype(np.int64), width - counts[short])
        successors = np.insert(successors, where, 0)
        probabilities = np.insert(probabilities, where, 0)
    return replace(
        table,
        successors_per_action=width,
        successor_ptr=np.empty(0, np.uint32),
        successors=successors,
        probabilities=probabilities,
    )


def describe(table: PartitionTable, discounts: FloatArray, whole: bool) -> IntArray:
    """int64 [15]: sizes and addresses; the arrays must outlive it. Absent arrays have the address 0."""
    arrays: tuple[npt.NDArray[Any], ...] = (
        table.action_ptr,
        table.successor_ptr,
        table.successors,
        table.probabilities,
        table.rewards,
        discounts,
        table.terminal_rewards,
        table.halo,
        table.boundary,
    )
    places = [a.ctypes.data if a.size else 0 for a in arrays]
    each = table.actions_per_state, table.successors_per_action
    return np.array([table.first_state, table.n_states, table.halo.size, *places, whole, *each], np.int64)
