"""A partition's rows as the loops for undiscounted totals read them: ragged or uniform, successors as global states.

    row j of state i      outcome k of row j      index(t, successors[k]): its state in the whole model

Probabilities are what they are proportional to: a row whose sum lies within :data:`MIN_MASS` of 1 is a distribution
that was rounded (files may be 1e-6 off), and is read as p / sum p. Without a discount nothing else
would do: at a sum of 1 + 1e-11 staying for ever would be worth more and more. A row that sums to less ends the process
with what is missing, and one of infinite duration ends it for certain.

Numba inlines the functions here (`inline="always"`): where LLVM does, references to the arrays of `TableRows` are
counted at each call, and sweeps take eight times as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable

__all__ = ["MIN_MASS", "TableRows", "ends", "first_row", "index", "past_row", "row_begin", "row_end", "table_rows"]

MIN_MASS = 1 - 1e-5
"""Sums from here on are those of rows that never end; what conversion accepts lies within 1e-6 of 1."""


class TableRows(NamedTuple):
    """As `ooc_mdp.model.partition.PartitionTable`, for compiled loops."""

    first: int
    n: int
    actions: int
    """Of every state, 0 where they vary."""
    width: int
    """Transitions of every row, 0 where they vary."""
    action_ptr: npt.NDArray[np.uint32]
    successor_ptr: npt.NDArray[np.uint32]
    successors: npt.NDArray[np.unsignedinteger[Any]]
    probabilities: npt.NDArray[np.floating[Any]]
    rewards: npt.NDArray[np.floating[Any]]
    durations: FloatArray
    terminal: FloatArray
    halo: IntArray
    boundary: npt.NDArray[np.bool_]


def table_rows(table: PartitionTable) -> TableRows:
    """The arrays of a table; nothing is copied."""
    return TableRows(
        table.first_state,
        table.n_states,
        table.actions_per_state,
        table.successors_per_action,
        table.action_ptr,
        table.successor_ptr,
        table.successors,
        table.probabilities,
        table.rewards,
        table.durations,
        table.terminal_rewards,
        table.halo,
        table.boundary,
    )


@njit(inline="always")
def first_row(t, i):
    """First row of the partition's state i."""
    return np.int64(i * t.actions) if t.actions > 0 else np.int64(t.action_ptr[i])


@njit(inline="always")
def past_row(t, i):
    """Row after the last of state i."""
    return np.int64((i + 1) * t.actions) if t.actions > 0 else np.int64(t.action_ptr[i + 1])


@njit(inline="always")
def row_begin(t, j):
    """First transition of row j."""
    return np.int64(j * t.width) if t.width > 0 else np.int64(t.successor_ptr[j])


@njit(inline="always")
def row_end(t, j):
    """Transition after the last of row j."""
    return np.int64((j + 1) * t.width) if t.width > 0 else np.int64(t.successor_ptr[j + 1])


@njit(inline="always")
def index(t, local):
    """The state, in the whole model's store order, that a local successor is."""
    k = np.int64(local)
    return t.first + k if k < t.n else t.halo[k - t.n]


@njit(inline="always")
def ends(t, j):
    """Whether row j ends the process for certain."""
    return t.durations.size > 0 and np.isinf(t.durations[j])
