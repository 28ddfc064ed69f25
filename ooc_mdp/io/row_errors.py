"""Messages for rows that are not those of an MDP: state, action, number and remedy, and the line where there is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io import row_kernels
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.row_kernels import RowRules
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["RowErrors", "line_of"]


@dataclass(frozen=True, slots=True)
class RowErrors:
    """Turns an error found by :func:`~ooc_mdp.io.row_kernels.scan_rows` into an InputError."""

    path: str
    states: Sequence[int] | IntArray
    """Numbers of the states, for messages."""
    raw: RawRows
    rules: RowRules

    def at_row(self, row: int, message: str) -> InputError:
        """An error of a row."""
        line = line_of(self.raw.row_positions, row)
        if line is None and self.raw.successor_ptr[row] < self.raw.successor_ptr[row + 1]:
            line = line_of(self.raw.transition_positions, int(self.raw.successor_ptr[row]))
        return InputError(self.path, f"{self._pair(row)}: {message}", line)

    def at_state(self, values: FloatArray | None, what: str) -> InputError | None:
        """The error of the first value of a state that is not finite; None if all are."""
        if values is None or np.isfinite(values).all():
            return None
        i = int(np.flatnonzero(~np.isfinite(values))[0])
        word = "NaN" if math.isnan(values[i]) else str(float(values[i]))
        return InputError(self.path, f"state {self.states[i]}: {what} is {word}; it must be a finite number")

    def error(self, code: int, row: int, k: int, total: float) -> InputError:
        """The error of a code, at a row, its transition k and its sum of probabilities."""
        raw = self.raw
        match code:
            case row_kernels.EMPTY_ROW:
                return self.at_row(row, "has no successors; give it at least one, or leave the action out")
            case row_kernels.ROW_REWARD:
                assert raw.row_rewards is not None
                return self.at_row(row, _not_finite("reward", float(raw.row_rewards[row])))
            case row_kernels.DURATION:
                assert raw.durations is not None
                rule = "above 0" if self.rules.canonical else "finite and above 0"
                return self.at_row(row, f"duration is {raw.durations[row]}; a duration is {rule}")
            case row_kernels.SUCCESSOR:
                return self._at_transition(row, k, self._bad_successor(int(raw.successors[k])))
            case row_kernels.PROBABILITY:
                return self._at_transition(row, k, self._bad_probability(k))
            case row_kernels.REWARD:
                assert raw.transition_rewards is not None
                reward = float(raw.transition_rewards[k])
                return self._at_transition(row, k, _not_finite(f"reward of successor {raw.successors[k]}", reward))
            case row_kernels.EXPECTED_REWARD:
                return self.at_row(row, "the expected reward overflows float64; scale the rewards down")
            case row_kernels.ORDER:
                before, after = raw.successors[k - 1 : k + 1]
                message = f"successor {after} follows {before}; the successors of a row must increase"
                return self._at_transition(row, k, message)
            case _:
                return self.at_row(row, self._bad_sum(total))

    def _pair(self, row: int) -> str:
        raw = self.raw
        local = int(np.searchsorted(raw.action_ptr, row, side="right")) - 1
        action = int(raw.action_labels[row]) if raw.action_labels is not None else row - int(raw.action_ptr[local])
        return f"state {self.states[local]}, action {action}"

    def _at_transition(self, row: int, k: int, message: str) -> InputError:
        line = line_of(self.raw.transition_positions, k)
        if line is None:
            line = line_of(self.raw.row_positions, row)
        return InputError(self.path, f"{self._pair(row)}: {message}", line)

    def _bad_sum(self, total: float) -> str:
        remedy = "correct them or use --normalize (normalize=True)"
        if total == 0.0:
            remedy = "a row of zeros cannot be normalized"
        elif self.rules.canonical:
            remedy = "correct them"
        return f"probabilities sum to {_number(total)}, not 1 (allowed difference {self.rules.tolerance:.2g}); {remedy}"

    def _bad_probability(self, k: int) -> str:
        p = float(self.raw.probabilities[k])
        what = f"probability of successor {self.raw.successors[k]} is"
        if math.isnan(p):
            return f"{what} NaN; it must lie in [0, 1]"
        return f"{what} {_number(p)}, {'below 0' if p < 0 else 'above 1'}; it must lie in [0, 1]"

    def _bad_successor(self, successor: int) -> str:
        if successor < 0:
            return f"successor {successor} is negative; states are numbered from 0"
        n = self.rules.n_states
        return f"successor {successor} does not exist: the {n} states are 0..{n - 1}"


def line_of(lines: IntArray | None, index: int) -> int | None:
    """The line at an index, where lines are known."""
    return int(lines[index]) if lines is not None and 0 <= index < lines.size else None


def _number(value: float) -> str:
    """Short where that is exact: 0.9 rather than 0.90000000000000002."""
    return f"{value:.12g}" if abs(value - float(f"{value:.12g}")) < 1e-12 else repr(value)


def _not_finite(what: str, value: float) -> str:
    if math.isnan(value):
        return f"{what} is NaN; every reward must be a finite number"
    return f"{what} is {value}; every reward must be finite (to forbid an action, leave it out)"
