"""What every format's rows must satisfy before they count as an MDP, checked in one place.

    sum_s' p(s'|s,a) = 1 within ROW_SUM_TOLERANCE,   0 <= p <= 1,   0 <= s' < n,   every reward finite,
    r(s,a) = row_rewards(s,a) + sum_s' p(s'|s,a) r(s,a,s').

A reader fills :class:`RawRows` with what its file says, in the file's order; :func:`checked_block` refuses
the first row that breaks a rule, naming line, state and action, then adds up successors named twice, drops
those of probability exactly 0 and sorts the rest. This module reads no file. Its kernels release the GIL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
from numba import njit

from ooc_mdp.errors import InputError
from ooc_mdp.model.mdp import ROW_SUM_TOLERANCE, Block, FloatArray, IntArray, Rows

__all__ = ["RawRows", "checked_block"]

_GOOD, _EMPTY_ROW, _ROW_REWARD, _SUCCESSOR, _PROBABILITY, _REWARD, _DURATION, _SUM, _EXPECTED = range(9)
_SHORT_ROW = 32
"""Longest row that is sorted by insertion."""


@dataclass(frozen=True, slots=True)
class RawRows:
    """Rows as a file gives them: n states, m rows, nnz transitions, nothing checked but the pointers."""

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
    row_lines: IntArray | None = None
    """int64 [m]; 1-based line of each row in the whole file."""
    transition_lines: IntArray | None = None
    """int64 [nnz]; 1-based line of each transition in the whole file."""


class _Given(NamedTuple):
    """The rows, as kernels take them; empty arrays stand for None."""

    successor_ptr: IntArray
    successors: IntArray
    probabilities: FloatArray
    row_rewards: FloatArray
    transition_rewards: FloatArray
    durations: FloatArray


@njit(cache=True, nogil=True, forceinline=True)
def _row_sum(successors, probabilities, transition_rewards, first, last, n_states):  # type: ignore[no-untyped-def]
    """Judge the transitions of a row, first .. last-1.

    Returns (fault, k, total, expected, untidy, largest, where): the first fault and its transition, or _GOOD; the sums
    of p and of p r; whether the row needs sorting, merging or dropping; the largest successor and its position.
    """
    fault = _GOOD
    total = 0.0
    lost = 0.0
    expected = 0.0
    previous = -1
    untidy = False
    largest = -1
    where = -1
    has_rewards = transition_rewards.size > 0
    at = last
    for k in range(first, last):
        successor = successors[k]
        p = probabilities[k]
        if successor < 0 or (n_states >= 0 and successor >= n_states):
            fault, at = _SUCCESSOR, k
            break
        if not (0.0 <= p <= 1.0 + ROW_SUM_TOLERANCE):
            fault, at = _PROBABILITY, k
            break
        if successor > largest:
            largest = successor
            where = k
        if successor <= previous or p == 0.0:
            untidy = True
        previous = successor
        # Neumaier's sum: the lost low bits are kept apart, so that long rows of small terms add up.
        grown = total + p
        if total >= p:
            lost += (total - grown) + p
        else:
            lost += (p - grown) + total
        total = grown
        if has_rewards and p != 0.0:
            if not math.isfinite(transition_rewards[k]):
                fault, at = _REWARD, k
                break
            expected += p * transition_rewards[k]
    return fault, at, total + lost, expected, untidy, largest, where


@njit(cache=True, nogil=True)
def _scan(given, n_states, renormalise, sums, rewards):  # type: ignore[no-untyped-def]
    """Judge all rows in order; fill sums and expected rewards [m].

    Returns (fault, row, transition, untidy, largest, where): the first fault or _GOOD; whether any row needs
    sorting, merging or dropping; the position of the largest successor (-1 if none).
    """
    successor_ptr, successors, probabilities, row_rewards, transition_rewards, durations = given
    untidy = False
    largest = -1
    where = -1
    for row in range(successor_ptr.size - 1):
        first = successor_ptr[row]
        last = successor_ptr[row + 1]
        if row_rewards.size > 0 and not math.isfinite(row_rewards[row]):
            return _ROW_REWARD, row, first, untidy, largest, where
        if durations.size > 0 and not (0.0 < durations[row] < math.inf):
            return _DURATION, row, first, untidy, largest, where
        if first == last:
            return _EMPTY_ROW, row, first, untidy, largest, where
        fault, k, total, expected, row_untidy, row_largest, row_where = _row_sum(
            successors, probabilities, transition_rewards, first, last, n_states
        )
        untidy = untidy or row_untidy
        if row_largest > largest:
            largest = row_largest
            where = row_where
        if fault != _GOOD:
            return fault, row, k, untidy, largest, where
        sums[row] = total
        if abs(total - 1.0) > ROW_SUM_TOLERANCE and not (renormalise and total > 0.0):
            return _SUM, row, first, untidy, largest, where
        if renormalise:
            expected /= total
        if row_rewards.size > 0:
            expected += row_rewards[row]
        if not math.isfinite(expected):
            return _EXPECTED, row, first, untidy, largest, where
        rewards[row] = expected
    return _GOOD, -1, -1, untidy, largest, where


@njit(cache=True, nogil=True)
def _tidy(successor_ptr, successors, probabilities):  # type: ignore[no-untyped-def]
    """Rows with successors strictly increasing, duplicates added up, zeros dropped: (ptr, successors, p)."""
    n_rows = successor_ptr.size - 1
    out_ptr = np.zeros(n_rows + 1, np.int64)
    out_successors = np.empty(successors.size, np.int64)
    out_probabilities = np.empty(successors.size, np.float64)
    end = 0
    for row in range(n_rows):
        begin = end
        rising = True
        for k in range(successor_ptr[row], successor_ptr[row + 1]):
            if probabilities[k] == 0.0:
                continue
            if end > begin and successors[k] <= out_successors[end - 1]:
                rising = False
            out_successors[end] = successors[k]
            out_probabilities[end] = probabilities[k]
            end += 1
        if not rising:
            if end - begin <= _SHORT_ROW:
                for i in range(begin + 1, end):
                    successor = out_successors[i]
                    p = out_probabilities[i]
                    j = i
                    while j > begin and out_successors[j - 1] > successor:
                        out_successors[j] = out_successors[j - 1]
                        out_probabilities[j] = out_probabilities[j - 1]
                        j -= 1
                    out_successors[j] = successor
                    out_probabilities[j] = p
            else:
                order = np.argsort(out_successors[begin:end], kind="mergesort")
                out_successors[begin:end] = out_successors[begin:end][order]
                out_probabilities[begin:end] = out_probabilities[begin:end][order]
            kept = begin
            for i in range(begin + 1, end):
                if out_successors[i] == out_successors[kept]:
                    out_probabilities[kept] += out_probabilities[i]
                else:
                    kept += 1
                    out_successors[kept] = out_successors[i]
                    out_probabilities[kept] = out_probabilities[i]
            end = kept + 1
        out_ptr[row + 1] = end
    return out_ptr, out_successors[:end].copy(), out_probabilities[:end].copy()


def _floats(values: FloatArray | None) -> FloatArray:
    """Contiguous and writeable, as every array of a kernel is, so that each kernel is compiled once."""
    return np.empty(0) if values is None else np.require(values, np.float64, ["C", "A", "W"])


def _integers(values: IntArray) -> IntArray:
    return np.require(values, np.int64, ["C", "A", "W"])


def _or_none(values: FloatArray | None) -> FloatArray | None:
    return None if values is None or not values.any() else values


def _line(lines: IntArray | None, index: int) -> int | None:
    return int(lines[index]) if lines is not None and 0 <= index < lines.size else None


class _Judge:
    """Turns a fault found by :func:`_scan` into an InputError."""

    def __init__(self, path: str, first_state: int, raw: RawRows, n_states: int | None) -> None:
        self.path = path
        self.first_state = first_state
        self.raw = raw
        self.n_states = n_states

    def pair(self, row: int) -> str:
        raw = self.raw
        local = int(np.searchsorted(raw.action_ptr, row, side="right")) - 1
        action = int(raw.action_labels[row]) if raw.action_labels is not None else row - int(raw.action_ptr[local])
        return f"state {self.first_state + local}, action {action}"

    def refuse_row(self, row: int, message: str) -> NoReturn:
        line = _line(self.raw.row_lines, row)
        if line is None and self.raw.successor_ptr[row] < self.raw.successor_ptr[row + 1]:
            line = _line(self.raw.transition_lines, int(self.raw.successor_ptr[row]))
        raise InputError(self.path, f"{self.pair(row)}: {message}", line)

    def refuse_transition(self, row: int, k: int, message: str) -> NoReturn:
        line = _line(self.raw.transition_lines, k)
        if line is None:
            line = _line(self.raw.row_lines, row)
        raise InputError(self.path, f"{self.pair(row)}: {message}", line)

    def refuse(self, fault: int, row: int, k: int, sums: FloatArray) -> NoReturn:
        raw = self.raw
        if fault == _EMPTY_ROW:
            self.refuse_row(row, "has no successors; give it at least one, or leave the action out")
        if fault == _ROW_REWARD:
            assert raw.row_rewards is not None
            self.refuse_row(row, _not_finite("reward", float(raw.row_rewards[row])))
        if fault == _DURATION:
            assert raw.durations is not None
            self.refuse_row(row, f"duration is {raw.durations[row]}; a duration is finite and above 0")
        if fault == _SUCCESSOR:
            self.refuse_transition(row, k, _bad_successor(int(raw.successors[k]), self.n_states))
        if fault == _PROBABILITY:
            self.refuse_transition(row, k, self._bad_probability(k))
        if fault == _REWARD:
            assert raw.transition_rewards is not None
            reward = float(raw.transition_rewards[k])
            self.refuse_transition(row, k, _not_finite(f"reward of successor {raw.successors[k]}", reward))
        if fault == _EXPECTED:
            self.refuse_row(row, "the expected reward overflows float64; scale the rewards down")
        total = float(sums[row])
        remedy = "a row of zeros cannot be renormalised" if total == 0.0 else "correct them or use --renormalise"
        off = f"not 1 (allowed difference {ROW_SUM_TOLERANCE:g})"
        self.refuse_row(row, f"probabilities sum to {_number(total)}, {off}; {remedy}")

    def _bad_probability(self, k: int) -> str:
        p = float(self.raw.probabilities[k])
        what = f"probability of successor {self.raw.successors[k]} is"
        if math.isnan(p):
            return f"{what} NaN; it must lie in [0, 1]"
        return f"{what} {_number(p)}, {'below 0' if p < 0 else 'above 1'}; it must lie in [0, 1]"


def _number(value: float) -> str:
    """Short where that is exact: 0.9 rather than 0.90000000000000002."""
    return f"{value:.12g}" if abs(value - float(f"{value:.12g}")) < 1e-12 else repr(value)


def _bad_successor(successor: int, n_states: int | None) -> str:
    if successor < 0:
        return f"successor {successor} is negative; states are numbered from 0"
    assert n_states is not None
    return f"successor {successor} does not exist: the {n_states} states are 0..{n_states - 1}"


def _not_finite(what: str, value: float) -> str:
    if math.isnan(value):
        return f"{what} is NaN; every reward must be a finite number"
    return f"{what} is {value}; every reward must be finite (to forbid an action, leave it out)"


def _refuse_states(path: str, first_state: int, values: FloatArray | None, what: str) -> None:
    if values is None or np.isfinite(values).all():
        return
    local = int(np.flatnonzero(~np.isfinite(values))[0])
    number = float(values[local])
    word = "NaN" if math.isnan(number) else str(number)
    raise InputError(path, f"state {first_state + local}: {what} is {word}; it must be a finite number")


def _labels(raw: RawRows) -> IntArray | None:
    """The action numbers, or None where they are 0, 1, 2, ... in each state."""
    if raw.action_labels is None:
        return None
    counts = np.diff(raw.action_ptr)
    plain = np.arange(raw.action_labels.size) - np.repeat(raw.action_ptr[:-1], counts)
    return None if np.array_equal(plain, raw.action_labels) else raw.action_labels


def _repeated_label(raw: RawRows) -> int | None:
    """The first row whose action number an earlier row of its state has."""
    labels = raw.action_labels
    if labels is None:
        return None
    state = np.repeat(np.arange(raw.action_ptr.size - 1), np.diff(raw.action_ptr))
    if not ((np.diff(labels) <= 0) & (np.diff(state) == 0)).any():
        return None
    order = np.lexsort([labels, state])  # stable: of equal ones the first row comes first
    again = order[1:][(np.diff(labels[order]) == 0) & (np.diff(state[order]) == 0)]
    return int(again.min()) if again.size else None


def checked_block(path: str, first_state: int, raw: RawRows, *, n_states: int | None, renormalise: bool) -> Block:
    """Check the rows of consecutive states and put them into canonical form.

    Successors named twice in a row are added up (the expected reward is taken before), those of probability
    exactly 0 are dropped whatever their reward, the others sorted. A row is checked from its line downwards,
    and rows in order, so the refusal names the first line at fault.

    Parameters
    ----------
    path : named in messages.
    first_state : number of the first state of `raw`.
    raw : the rows; its arrays are not changed.
    n_states : number of states of the model, to check successors against; None if not known yet.
    renormalise : divide each row by its sum instead of refusing a sum off 1 by more than ROW_SUM_TOLERANCE.

    Raises
    ------
    InputError : an action number given twice in a state; a row without successors; a successor out of
        range; a probability NaN, negative or above 1 (by more than ROW_SUM_TOLERANCE); a sum off 1 (or of 0); a
        reward, duration or value not finite.
    """
    n_rows = raw.successor_ptr.size - 1
    given = _Given(
        _integers(raw.successor_ptr),
        _integers(raw.successors),
        _floats(raw.probabilities),
        _floats(raw.row_rewards),
        _floats(raw.transition_rewards),
        _floats(raw.durations),
    )
    successor_ptr, successors, probabilities = given[:3]
    sums = np.zeros(n_rows)
    rewards = np.zeros(n_rows)
    known = np.int64(-1 if n_states is None else n_states)
    fault, row, k, untidy, largest, where = _scan(given, known, bool(renormalise), sums, rewards)
    judge = _Judge(path, first_state, raw, n_states)
    again = _repeated_label(raw)
    if again is not None and (fault == _GOOD or again <= row):
        judge.refuse_row(again, "the state has an action of this number already; give each action once")
    if fault != _GOOD:
        judge.refuse(int(fault), int(row), int(k), sums)
    terminal_rewards = raw.terminal_rewards
    if terminal_rewards is not None:
        terminal_rewards = np.where(np.diff(raw.action_ptr) == 0, terminal_rewards, 0.0)
    _refuse_states(path, first_state, terminal_rewards, "reward")
    _refuse_states(path, first_state, raw.initial_values, "initial value")
    if renormalise and not (sums == 1.0).all():
        probabilities = probabilities / np.repeat(sums, np.diff(successor_ptr))
    if untidy:
        successor_ptr, successors, probabilities = _tidy(successor_ptr, successors, probabilities)
    rows = Rows(
        action_ptr=raw.action_ptr,
        successor_ptr=successor_ptr,
        successors=successors,
        probabilities=probabilities,
        rewards=rewards,
        terminal_rewards=_or_none(terminal_rewards),
        durations=raw.durations,
        initial_values=_or_none(raw.initial_values),
        action_labels=_labels(raw),
    )
    line = _line(raw.transition_lines, int(where))
    return Block(first_state, rows, max_successor=int(largest), max_successor_line=line)
