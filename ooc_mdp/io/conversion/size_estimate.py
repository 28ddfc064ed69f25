"""Estimate the decoded bytes of states in their partition's table, before the partition exists.

Halos are not known and not counted. The type of local successors depends on them: these are counted as 2 bytes where a
partition has fewer than 32768 states, so that a halo of the same size still fits, else as 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_mdp.model.mdp import IntArray, Rows

__all__ = ["SizeEstimate"]

_BOUNDARY_BYTES = 1
_PTR_BYTES = 4
_MANY_STATES = 1 << 15


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Bytes per transition, row and state."""

    transition: int
    row: int
    state: int

    @staticmethod
    def estimate(
        dtype: np.dtype[np.floating],
        partition_states: float,
        uniform_actions: bool,
        uniform_successors: bool,
        durations: bool,
        state_arrays: int,
    ) -> SizeEstimate:
        """From the layout of the table; `state_arrays` counts terminal rewards and initial values, 0 to 2."""
        return SizeEstimate(
            transition=dtype.itemsize + (2 if partition_states < _MANY_STATES else 4),
            row=dtype.itemsize + 8 * durations + _PTR_BYTES * (not uniform_successors),
            state=_BOUNDARY_BYTES + _PTR_BYTES * (not uniform_actions) + 8 * state_arrays,
        )

    @staticmethod
    def of_rows(rows: Rows, dtype: np.dtype[np.floating], partition_states: float) -> SizeEstimate:
        """From a sample of the table."""
        actions, successors = np.diff(rows.action_ptr), np.diff(rows.successor_ptr)
        return SizeEstimate.estimate(
            dtype,
            partition_states,
            uniform_actions=actions.min() == actions.max(),
            uniform_successors=bool(successors.size) and successors.min() == successors.max(),
            durations=rows.durations is not None,
            state_arrays=(rows.terminal_rewards is not None) + (rows.initial_values is not None),
        )

    def total(self, states: int, rows: int, transitions: int) -> int:
        """Bytes of these numbers of states, rows and transitions."""
        return states * self.state + rows * self.row + transitions * self.transition

    def per_state(self, actions: IntArray, transitions: IntArray) -> IntArray:
        """int64 [n]; bytes of each state."""
        return self.state + actions * self.row + transitions * self.transition
