"""What rows must satisfy before they count as those of an MDP, checked in one place for readers and problems.

    sum_s' p(s'|s,a) = 1 within ROW_SUM_TOLERANCE,   0 <= p <= 1,   0 <= s' < n,   every reward finite,
    r(s,a) = row_rewards(s,a) + sum_s' p(s'|s,a) r(s,a,s').

A reader fills :class:`RawRows` with the contents of its file, in the file's order; :func:`check_block` raises an error
for the first row that breaks a rule, naming line, state and action, and brings the rows into canonical form: successors
named twice are added up, those of probability exactly 0 dropped, the rest sorted. :func:`check_rows` checks rows that
are in canonical form already. This module reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.row_errors import RowErrors, line_of
from ooc_mdp.io.row_kernels import NO_ERROR, RowArrays, RowRules, canonicalise, scan_rows
from ooc_mdp.model.mdp import ROW_SUM_TOLERANCE, Block, FloatArray, IntArray, ModelRewards, Rows

__all__ = ["RawRows", "canonical_rows", "check_block", "check_rows"]

_SECOND_TOLERANCE = ROW_SUM_TOLERANCE * 1.001
"""For rows in canonical form: a reader may have added up a row in another order."""


def check_block(path: str, first_state: int, raw: RawRows, *, n_states: int | None, normalize: bool) -> Block:
    """Check the rows of consecutive states and bring them into canonical form.

    Successors named twice in a row are added up (the expected reward is taken before), those of probability
    exactly 0 are dropped whatever their reward, the others sorted. A row is checked from its line downwards,
    and rows in order, so the error names the first line that breaks a rule.

    Parameters
    ----------
    path : named in messages.
    first_state : number of the first state of `raw`.
    raw : the rows; its arrays are not changed.
    n_states : number of states of the model, to check successors against; None if not known yet.
    normalize : divide each row by its sum instead of refusing a sum that differs from 1 by more than
        ROW_SUM_TOLERANCE.

    Raises
    ------
    InputError : an action number given twice in a state; a row without successors; a successor out of
        range; a probability NaN, negative or above 1 (by more than ROW_SUM_TOLERANCE); a sum that is not 1 (or is 0);
        a reward, duration or value not finite. Its line is the position given with the row: a reader that gives
        bytes finds the line (`ooc_mdp.io.text.errors.error_at`).
    """
    states = range(first_state, first_state + raw.action_ptr.size - 1)
    checked, where = _canonical(path, states, raw, n_states, normalize)
    largest = int(raw.successors[where]) if where >= 0 else -1
    return Block(
        first_state,
        checked,
        max_successor=largest,
        max_successor_line=line_of(raw.transition_positions, where),
        reward_models=_reward_models(path, states, raw, n_states, normalize),
        action_names=raw.action_names,
    )


def _rules(n_states: int | None, normalize: bool) -> RowRules:
    """Of rows as readers give them."""
    return RowRules(-1 if n_states is None else n_states, ROW_SUM_TOLERANCE, bool(normalize), canonical=False)


def canonical_rows(path: str, states: IntArray, raw: RawRows, *, n_states: int, normalize: bool) -> Rows:
    """As :func:`check_block`, for the rows of any states, whose numbers are named in messages."""
    return _canonical(path, states, raw, n_states, normalize)[0]


def _canonical(
    path: str, states: Sequence[int] | IntArray, raw: RawRows, n_states: int | None, normalize: bool
) -> tuple[Rows, int]:
    """Checked rows in canonical form, and the position of the largest successor (-1 if there is none)."""
    rows = _arrays(raw)
    n_rows = rows.successor_ptr.size - 1
    sums, rewards = np.zeros(n_rows), np.zeros(n_rows)
    rules = _rules(n_states, normalize)
    error, row, k, total, needs_canonical_form, where = scan_rows(rows, rules, sums, rewards)
    errors = RowErrors(path, states, raw, rules)
    again = _repeated_label(raw)
    if again is not None and (error == NO_ERROR or again <= row):
        raise errors.at_row(again, "the state has an action of this number already; give each action once")
    if error != NO_ERROR:
        raise errors.error(int(error), int(row), int(k), float(total))
    terminal_rewards = raw.terminal_rewards
    if terminal_rewards is not None:
        terminal_rewards = np.where(np.diff(raw.action_ptr) == 0, terminal_rewards, 0.0)
    _check_state_values(errors, terminal_rewards, raw.initial_values)
    successor_ptr, successors, probabilities = rows[:3]
    if normalize and not (sums == 1.0).all():
        probabilities = probabilities / np.repeat(sums, np.diff(successor_ptr))
    if needs_canonical_form:
        successor_ptr, successors, probabilities = canonicalise(successor_ptr, successors, probabilities)
    checked = Rows(
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
    return checked, int(where)


def _reward_models(
    path: str, states: Sequence[int], raw: RawRows, n_states: int | None, normalize: bool
) -> dict[str, ModelRewards]:
    """The expected rewards of the rows by each further reward model; InputError where one is not finite."""
    found, rows, rules = {}, _arrays(raw), _rules(n_states, normalize)
    for name, given in raw.reward_models.items():
        rewards = np.zeros(rows.successor_ptr.size - 1)
        own = rows._replace(
            row_rewards=_floats(given.row_rewards), transition_rewards=_floats(given.transition_rewards)
        )
        error, row, k, total, _, _ = scan_rows(own, rules, np.zeros_like(rewards), rewards)
        terminal = np.zeros(raw.action_ptr.size - 1)
        if given.terminal_rewards is not None:
            terminal = np.where(np.diff(raw.action_ptr) == 0, given.terminal_rewards, 0.0)
        shown = replace(
            raw,
            row_rewards=given.row_rewards,
            transition_rewards=given.transition_rewards,
            terminal_rewards=terminal,
        )
        errors = RowErrors(path, states, shown, rules)
        if error != NO_ERROR:
            raise errors.error(int(error), int(row), int(k), float(total))
        _check_state_values(errors, terminal, None)
        found[name] = ModelRewards(rewards, terminal)
    return found


def check_rows(path: str, states: Sequence[int] | IntArray, rows: Rows, n_states: int) -> None:
    """Check rows in canonical form, whatever made them: a solver's proofs rest on them.

    Successors must increase strictly inside a row; probabilities of 0 and infinite durations are allowed.

    Parameters
    ----------
    path : named in messages.
    states : numbers of the rows' states, named in messages.
    n_states : number of states of the model.

    Raises
    ------
    InputError : as :func:`check_block`, or the successors of a row do not increase.
    """
    raw = RawRows(
        action_ptr=rows.action_ptr,
        successor_ptr=rows.successor_ptr,
        successors=rows.successors,
        probabilities=rows.probabilities,
        row_rewards=rows.rewards,
        durations=rows.durations,
        action_labels=rows.action_labels,
    )
    rules = RowRules(n_states, _SECOND_TOLERANCE, normalize=False, canonical=True)
    error, row, k, total, _, _ = scan_rows(_arrays(raw), rules, np.empty(0), np.empty(0))
    errors = RowErrors(path, states, raw, rules)
    if error != NO_ERROR:
        raise errors.error(int(error), int(row), int(k), float(total))
    _check_state_values(errors, rows.terminal_rewards, rows.initial_values)


def _arrays(raw: RawRows) -> RowArrays:
    return RowArrays(
        _integers(raw.successor_ptr),
        _integers(raw.successors),
        _floats(raw.probabilities),
        _floats(raw.row_rewards),
        _floats(raw.transition_rewards),
        _floats(raw.durations),
    )


def _floats(values: FloatArray | None) -> FloatArray:
    """Contiguous and writeable, as every array of a kernel is, so that each kernel is compiled once."""
    return np.empty(0) if values is None else np.require(values, np.float64, ["C", "A", "W"])


def _integers(values: IntArray) -> IntArray:
    return np.require(values, np.int64, ["C", "A", "W"])


def _or_none(values: FloatArray | None) -> FloatArray | None:
    return None if values is None or not values.any() else values


def _check_state_values(errors: RowErrors, terminal_rewards: FloatArray | None, values: FloatArray | None) -> None:
    for each, what in ((terminal_rewards, "reward"), (values, "initial value")):
        error = errors.at_state(each, what)
        if error is not None:
            raise error


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
