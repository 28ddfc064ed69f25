"""One partition as the writer takes it, before anything of it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["PartitionArrays"]


@dataclass(frozen=True, slots=True)
class PartitionArrays:
    """One partition as the writer takes it: n states, m rows, nnz transitions, h halo states."""

    action_ptr: IntArray
    """int64 [n+1]."""
    successor_ptr: IntArray
    """int64 [m+1]."""
    successors: npt.NDArray[np.unsignedinteger[Any]]
    """unsigned [nnz], local, in the narrowest type for n + h."""
    probabilities: npt.NDArray[np.floating[Any]]
    """float32 or float64 [nnz]."""
    rewards: npt.NDArray[np.floating[Any]]
    """float32 or float64 [m]."""
    halo: IntArray
    """int64 [h], ascending new states outside the partition."""
    coupling_partitions: IntArray
    """int64, ascending; the partitions that rows lead to, this one included."""
    coupling_mass: FloatArray
    """float64; largest mass of one row into each, rounded up."""
    row_sum_range: tuple[float, float]
    """Least and largest float64 sum of a row's stored probabilities."""
    terminal_rewards: FloatArray | None = None
    """float64 [n]; None if all are 0."""
    durations: FloatArray | None = None
    """float64 [m]; None if all are 1."""
    initial_values: FloatArray | None = None
    """float64 [n]; None if all are 0."""
    action_labels: IntArray | None = None
    """int64 [m]; None if 0, 1, ... in each state."""
    original_state: IntArray | None = None
    """int64 [n]; None where the numbering can be computed."""
