"""One partition's transition table as the sweep kernels read it, and how partitions depend on each other.

States are renumbered so that partition p owns partition_ptr[p] .. partition_ptr[p+1]-1. Inside p, successors
are *local*: 0 .. n_own-1 are p's own states, n_own + j is the j-th state of p's sorted halo (the outside states
that p reads). *Boundary* states of p are those in some other partition's halo.

    local successor   0 ........ n_own-1 | n_own ........ n_own + n_halo - 1
    global state      first_state + i    | halo[i - n_own]

The coupling matrix w[p,q] (q = p included) is the largest probability mass that one (state, action) of p sends
into q, rounded up; it carries the bounds of `ooc_mdp.bounds` from q to its dependents p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.mdp import FloatArray, IntArray

__all__ = ["Coupling", "PartitionTable"]


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


@dataclass(frozen=True, slots=True)
class Coupling:
    """The sparse matrix w[p,q] by rows p (CSR): partition p reads partitions[ptr[p]:ptr[p+1]], p among them."""

    ptr: IntArray
    """int64 [P+1]."""
    partitions: IntArray
    """int64 [entries], ascending in a row."""
    mass: FloatArray
    """float64 [entries], largest mass of one row of p into the partition, rounded up."""
