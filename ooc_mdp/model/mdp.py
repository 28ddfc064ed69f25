"""The rows of an MDP as plain arrays: what readers and problems produce and the store's writer takes.

    V(s) = opt_a { r(s,a) + gamma**tau(s,a) * sum_s' p(s'|s,a) V(s') },      V(s) = terminal_rewards[s] where s
    has no action.

Every reward convention of the input is folded into r(s,a) before it gets here:
r(s,a) = r(s) + r_sa(s,a) + sum_s' p(s'|s,a) r(s,a,s'). A pair of infinite duration ends the process: it pays r(s,a)
and nothing after, whatever its successors are (they are there so that rows may all have the same length; the convention
is that of Wingate, *Solving Large MDPs Quickly with Partitioned Value Iteration*, M.Sc. thesis, 2004, chapter 9). This
module knows no file and no partition.

    state      0         1   2 (no action)
    action_ptr 0         2   3   3
    row        0    1    2
    successor_ptr 0 2  3    5
    successors    . .  .    . .
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ROW_SUM_TOLERANCE", "Block", "FloatArray", "IntArray", "ModelRewards", "Rows", "discounts", "joined_rows"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

ROW_SUM_TOLERANCE = 1e-6 + 2.0**-50
"""A row whose probabilities sum to 1 within this is accepted as published; others are refused or normalized.

A sum that differs by 1e-6 exactly in decimals, such as 0.333333 three times, is accepted: the rounding of the
probabilities to float64 moves their compensated sum by less than 2**-50.
"""


@dataclass(frozen=True, slots=True)
class ModelRewards:
    """Rewards of n states' m rows by one reward model."""

    rewards: FloatArray
    """float64 [m]; as `Rows.rewards`."""
    terminal_rewards: FloatArray
    """float64 [n]; as `Rows.terminal_rewards`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The (state, action) rows of n states: m rows with nnz transitions, in CSR form twice over."""

    action_ptr: IntArray
    """int64 [n+1]; rows of the i-th state are action_ptr[i]:action_ptr[i+1], none for a terminal state."""
    successor_ptr: IntArray
    """int64 [m+1]; transitions of row j are successor_ptr[j]:successor_ptr[j+1], at least one."""
    successors: IntArray
    """int64 [nnz]; successor states in the source's numbering, strictly increasing inside a row."""
    probabilities: FloatArray
    """float64 [nnz]; at least 0, and they sum to 1 in each row."""
    rewards: FloatArray
    """float64 [m]; expected reward r(s,a) of one step, in the source's sign."""
    terminal_rewards: FloatArray | None = None
    """float64 [n]; the value of a state without action (0 elsewhere); None if all are 0."""
    durations: FloatArray | None = None
    """float64 [m]; tau(s,a) > 0 of a semi-Markov model, infinite where the row ends the process; None: 1 everywhere."""
    initial_values: FloatArray | None = None
    """float64 [n]; starting values that the source brings; None means 0."""
    action_labels: IntArray | None = None
    """int64 [m]; the source's action numbers where they differ from 0, 1, ... in each state; else None."""

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.action_ptr.size - 1

    @property
    def n_rows(self) -> int:
        """Number of (state, action) pairs."""
        return self.successor_ptr.size - 1

    @property
    def n_transitions(self) -> int:
        """Number of stored transitions."""
        return self.successors.size


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of the consecutive states first_state, first_state + 1, ... as a reader yields them."""

    first_state: int
    rows: Rows
    max_successor: int = -1
    """Largest successor in the block (-1 if none), for sources that learn their number of states at the end."""
    max_successor_line: int | None = None
    """Line of that successor, counted from the start of the file."""
    reward_models: Mapping[str, ModelRewards] = field(default_factory=dict)
    """Rewards of the rows by further reward models, by name."""
    action_names: IntArray | None = None
    """int64 [m]; numbers of the rows' names in the source's annotations, -1 for a row without one; None without any."""


def joined_rows(pieces: Sequence[Rows]) -> Rows:
    """The rows of several runs of states, one after the other."""

    def together(name: str) -> npt.NDArray[Any] | None:
        parts = [getattr(piece, name) for piece in pieces]
        if all(part is None for part in parts):
            return None
        return np.concatenate([_default(name, q) if x is None else x for q, x in zip(pieces, parts, strict=True)])

    def pointers(name: str) -> IntArray:
        counts = [np.diff(getattr(piece, name)) for piece in pieces]
        return np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)

    names = [known.name for known in fields(Rows) if not known.name.endswith("_ptr")]
    arrays: dict[str, Any] = {name: together(name) for name in names}
    return Rows(action_ptr=pointers("action_ptr"), successor_ptr=pointers("successor_ptr"), **arrays)


def _default(name: str, rows: Rows) -> npt.NDArray[Any]:
    """The entries of an optional array that a piece lacks."""
    if name == "durations":
        return np.ones(rows.n_rows)
    if name == "action_labels":
        return np.arange(rows.n_rows) - np.repeat(rows.action_ptr[:-1], np.diff(rows.action_ptr))
    return np.zeros(rows.n_states)


def discounts(gamma: float, durations: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """float64, of the durations' shape: gamma**tau, 0 where tau is infinite whatever gamma is (1**inf would be 1).

    Parameters
    ----------
    out : where they go, which may be the durations themselves; new memory if None.
    """
    never = np.isinf(durations)
    powers: FloatArray = np.power(gamma, durations, out=out)
    powers[never] = 0.0
    return powers
