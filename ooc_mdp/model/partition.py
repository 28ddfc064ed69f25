"""One partition's transition table as the sweep kernels read it, and how partitions depend on each other.

States are renumbered so that partition p owns partition_ptr[p] .. partition_ptr[p+1]-1. Inside p, successors
are *local*: 0 .. n_own-1 are p's own states, n_own + j is the j-th state of p's sorted halo (the outside states
that p reads). *Boundary* states of p are those in some other partition's halo.

    local successor   0 ........ n_own-1 | n_own ........ n_own + n_halo - 1
    global state      first_state + i    | halo[i - n_own]

What a store's chunks hold of a partition before anything is decompressed is a :class:`RawPartition`: bytes in one
buffer, and where each field's frame lies in it.

The coupling matrix w[p,q] (q = p included) is the largest probability mass that one (state, action) of p sends
into q, rounded up; it carries the bounds of `ooc_mdp.scheduling.residual_bounds` from q to its dependents p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["Coupling", "PartitionTable", "RawField", "RawPartition", "StoredField", "led_back"]


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """Decoded table of one partition: n states, m rows, nnz transitions, h halo states.

    Arrays that a store does not have (uniform pointers, no durations, ...) are empty, never None, so that kernels
    see one set of arguments.
    """

    index: int
    first_state: int
    n_states: int
    actions_per_state: int
    """A where every state of the store has A > 0 rows (action_ptr is empty), else 0."""
    successors_per_action: int
    """K where every row of the store has K transitions (successor_ptr is empty), else 0."""
    action_ptr: npt.NDArray[np.uint32]
    """uint32 [n+1] or empty."""
    successor_ptr: npt.NDArray[np.uint32]
    """uint32 [m+1] or empty."""
    successors: npt.NDArray[np.unsignedinteger[Any]]
    """uint8, uint16 or uint32 [nnz], local."""
    probabilities: npt.NDArray[np.floating[Any]]
    """float32 or float64 [nnz]."""
    rewards: npt.NDArray[np.floating[Any]]
    """float32 or float64 [m]."""
    durations: FloatArray
    """float64 [m] or empty; infinite for rows that end the process."""
    terminal_rewards: FloatArray
    """float64 [n] or empty (all 0)."""
    initial_values: FloatArray
    """float64 [n] or empty (all 0)."""
    halo: IntArray
    """int64 [h], ascending global states."""
    boundary: npt.NDArray[np.bool_]
    """bool [n]."""

    @property
    def n_rows(self) -> int:
        """Number of (state, action) pairs m."""
        return int(self.rewards.size)

    def action_counts(self) -> IntArray:
        """int64 [n]; actions of each state."""
        if self.actions_per_state:
            return np.full(self.n_states, self.actions_per_state, np.int64)
        return _differences(self.action_ptr)

    def row_lengths(self) -> IntArray:
        """int64 [m]; transitions of each row."""
        if self.successors_per_action:
            return np.full(self.n_rows, self.successors_per_action, np.int64)
        return _differences(self.successor_ptr)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays: what the partition takes in the cache."""
        return sum(
            a.nbytes
            for a in (
                self.action_ptr,
                self.successor_ptr,
                self.successors,
                self.probabilities,
                self.rewards,
                self.durations,
                self.terminal_rewards,
                self.initial_values,
                self.halo,
                self.boundary,
            )
        )


def _differences(pointers: npt.NDArray[np.uint32]) -> IntArray:
    """int64; each pointer less the one before it."""
    wide = pointers.astype(np.int64)
    return wide[1:] - wide[:-1]


def led_back(table: PartitionTable, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """[nnz]; successors in which these rows (bool [m]) lead to their own state."""
    row = np.repeat(np.arange(table.n_rows), table.row_lengths())
    own = np.repeat(np.arange(table.n_states, dtype=table.successors.dtype), table.action_counts())
    return np.where(rows[row], own[row], table.successors)


@dataclass(frozen=True, slots=True)
class Coupling:
    """The sparse matrix w[p,q] by rows p (CSR): partition p reads partitions[ptr[p]:ptr[p+1]], p among them."""

    ptr: IntArray
    """int64 [P+1]."""
    partitions: IntArray
    """int64 [entries], ascending in a row."""
    mass: FloatArray
    """float64 [entries], largest mass of one row of p into the partition, rounded up."""

    def read_by(self, p: int) -> IntArray:
        """Partitions that partition p reads, in ascending order, p among them."""
        return self.partitions[self.ptr[p] : self.ptr[p + 1]]


@dataclass(frozen=True, slots=True)
class StoredField:
    """How a store holds one field of its partitions' tables."""

    name: str
    """As PartitionTable calls it."""
    dtype: np.dtype[Any]
    """Type in the table."""
    stored: np.dtype[Any]
    """Type of the chunks' values."""
    encoding: str | None
    """How those stand for the table's (`ooc_mdp.store.encodings`); None where they are those."""
    max_len: int
    """Values in the longest chunk, padding included."""
    max_table_len: int
    """Values of the largest partition's field in the table."""
    compressed: bool
    """Whether chunks are handed over as LZ4 in blosc frames; if not, they are decompressed beforehand."""


@dataclass(frozen=True, slots=True)
class RawField:
    """One field of one partition in the buffer."""

    field: StoredField
    offset: int
    """Where its bytes begin in the buffer: a blosc frame's header, or values."""
    n_bytes: int
    """Bytes of the frame without its checksum, or of the values."""
    count: int
    """Stored values that belong to the partition."""
    length: int
    """Values of the frame, padding included."""
    block_bytes: int
    """Decompressed bytes of each block of the frame but the last; 0 where the buffer has the values."""
    streams: int
    """LZ4 streams of a block other than a short last one, which has one; 0 likewise."""
    shuffled: bool
    """Whether a block holds the first byte of its values, then the second ..."""
    values_at: int
    """Where values begin, from offset, if the frame stores them as they are or they are decompressed; else 0."""


@dataclass(frozen=True, slots=True)
class RawPartition:
    """A partition as its chunks have it."""

    index: int
    first_state: int
    n_states: int
    n_rows: int
    n_transitions: int
    n_halo: int
    actions_per_state: int
    """As PartitionTable has it."""
    successors_per_action: int
    fields: tuple[RawField, ...]
    """The fields that the store has, in the order of PartitionTable's arrays."""
    n_bytes: int
    """Bytes of the buffer that are in use, from its start."""
    read_bytes: int
    """Bytes read from disk."""
