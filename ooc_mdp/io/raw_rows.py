"""RawRows: the (state, action) rows of a source before they are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["RawRewards", "RawRows"]


@dataclass(frozen=True, slots=True)
class RawRewards:
    """Rewards of the rows by one reward model, as :class:`RawRows` has those of the table."""

    row_rewards: FloatArray | None = None
    transition_rewards: FloatArray | None = None
    terminal_rewards: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class RawRows:
    """Rows as a file gives them: n states, m rows, nnz transitions; only the pointers are checked."""

    action_ptr: IntArray
    """int64 [n+1]; from 0 to m, never falling."""
    successor_ptr: IntArray
    """int64 [m+1]; from 0 to nnz, never falling."""
    successors: IntArray
    """int64 [nnz]; in any order inside a row, repeated or not."""
    probabilities: FloatArray
    """float64 [nnz]."""
    row_rewards: FloatArray | None = None
    """float64 [m]; r(s) + r(s,a), already added up; None means 0."""
    transition_rewards: FloatArray | None = None
    """float64 [nnz]; r(s,a,s'); None means 0."""
    terminal_rewards: FloatArray | None = None
    """float64 [n]; r(s) where s has no action, ignored elsewhere; None means 0."""
    durations: FloatArray | None = None
    """float64 [m]; tau(s,a); None means 1."""
    initial_values: FloatArray | None = None
    """float64 [n]; None means 0."""
    action_labels: IntArray | None = None
    """int64 [m]; the source's action numbers; None means 0, 1, ... in each state."""
    row_positions: IntArray | None = None
    """int64 [m]; where each row is in the file: its line, from 1 on, or its byte, for text sources to find the line."""
    transition_positions: IntArray | None = None
    """int64 [nnz]; where each transition is, likewise."""
    action_names: IntArray | None = None
    """int64 [m]; numbers of the rows' names (`SourceAnnotations.number_actions`), -1 for a row without one."""
    reward_models: Mapping[str, RawRewards] = field(default_factory=dict)
    """Rewards of the same rows by further reward models, by name."""
