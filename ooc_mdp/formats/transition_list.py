"""Transition lists: a line `s a s' p` for each transition, and a file with one reward r(s) a line.

    0 0 0 0.5          5        r(0)
    0 0 1 0.5         -1        r(1)
    1 0 1 1

Lines are ordered by state, then action; every state has at least one action, as the format cannot say "none".
A state's reward is paid at each visit, so r(s,a) = r(s). The rewards file tells the number of states. Action
numbers that are not 0, 1, ... are kept as action labels; a transition given twice counts with the sum of
both. Tabs, blank lines, lines that begin with # and a byte-order mark are taken; state ids such as 1.0 are
refused.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.formats.base import ReadOptions, Source
from ooc_mdp.formats.checks import RawRows
from ooc_mdp.formats.faults import Field, byte_fault, explain_fields, fault_at, line_number, negative_state
from ooc_mdp.formats.files import file_size
from ooc_mdp.formats.text import (
    Segment,
    Table,
    TextSource,
    cut_table,
    data_lines,
    first_lines,
    read_bytes,
    read_table,
    truncated,
)
from ooc_mdp.formats.tokens import parse_columns
from ooc_mdp.model.mdp import FloatArray

__all__ = ["TRANSITION_LIST", "TransitionListFormat", "column_table", "explain_columns", "group_rows"]

_FIELDS = (Field("state", True), Field("action", True), Field("successor", True), Field("probability", False))
_REWARD = (Field("reward", False),)
_STEP = 4096
"""Rewards between two remembered offsets of the rewards file."""
_SORT = "lines must be ordered by state, then action: sort -n -k1,1 -k2,2 -s"


def explain_columns(fields: tuple[Field, ...], raw: bytes, word: bool = False) -> str:
    """Why a line is not these fields (and, if `word`, perhaps a name)."""
    fault = byte_fault(raw)
    if fault is not None:
        return fault
    texts = raw.decode("utf-8").split()
    if word and len(texts) == len(fields) + 1:
        texts.pop()
    fault = explain_fields(texts, fields, "a line")
    return f"{fault} (and perhaps a name without blanks)" if word and len(texts) > len(fields) else fault


def column_table(path: str, begin: int, end: int, fields: tuple[Field, ...], word: bool = False) -> Table:
    """Parse the lines begin:end: integers, then one decimal, and perhaps a name."""
    n_integers = len(fields) - 1

    def kernel(buf, pos, stop, count, letters, ints, floats, offsets, slow):  # type: ignore[no-untyped-def]
        return parse_columns(buf, pos, stop, n_integers, word, count, ints, floats, offsets, slow)

    buffer = read_bytes(path, begin, end)
    return read_table(path, begin, buffer, (n_integers, 1), kernel, partial(explain_columns, fields, word=word))


def _order_fault(table: Table, segment: Segment, gaps: bool, numbered: bool) -> tuple[int, str] | None:
    """The first line out of order: its index and why; for `gaps` and `numbered` see :func:`group_rows`."""
    states, actions = table.ints[0], table.ints[1]
    before = np.concatenate([[segment.first_state - 1], states[:-1]])
    step = states - before
    same = step == 0
    same[:1] = False
    move = np.diff(actions, prepend=0)
    wrong_state = (step < 0) | (~same & (step < 1))
    if not gaps:
        wrong_state |= step > 1
    wrong_action = np.where(same, move < 0, actions < 0)
    if numbered:
        wrong_action |= np.where(same, move > 1, actions != 0)
    wrong = np.flatnonzero(wrong_state | wrong_action)
    if not wrong.size:
        return None
    i = int(wrong[0])
    state, last, action = int(states[i]), int(before[i]), int(actions[i])
    if wrong_state[i]:
        return i, _state_fault(state, last)
    if action < 0:
        return i, f"state {state}: action {action} is negative"
    if same[i] and move[i] < 0:
        return i, f"state {state}: action {action} comes after action {actions[i - 1]}; {_SORT}"
    due = f"{actions[i - 1]} or {actions[i - 1] + 1}" if same[i] else "0"
    return i, f"state {state}: choice {action} where {due} is due; choices of a state are numbered 0, 1, ..."


def _state_fault(state: int, last: int) -> str:
    if state < 0:
        return negative_state(state)
    if state <= last:
        return f"state {state} comes again after state {last}; {_SORT}"
    return (
        f"state {state} where state {last + 1} is due: state {last + 1} has no transition, and this format "
        "cannot say that a state has no action (a loop to itself with probability 1 ends there)"
    )


def group_rows(
    path: str, table: Table, segment: Segment, n_states: int | None, *, gaps: bool, numbered: bool
) -> tuple[RawRows, InputError | None]:
    """Rows (s, a) of columns s, a, s' and p, up to the first line at fault.

    Parameters
    ----------
    n_states : states that exist, if known.
    gaps : states without any line are states without action; they go with the segment before the next state.
    numbered : the actions of a state must be 0, 1, ...
    """
    found = _order_fault(table, segment, gaps, numbered)
    states = table.ints[0]
    if n_states is not None:
        beyond = np.flatnonzero(states >= n_states)
        if beyond.size and (found is None or beyond[0] < found[0]):
            i = int(beyond[0])
            found = i, f"state {states[i]} does not exist: there are {n_states} states, 0..{n_states - 1}"
    if found is not None:
        table = cut_table(table, found[0], fault_at(path, int(table.offsets[found[0]]), found[1]))
        states = table.ints[0]
    fault = table.fault
    first = segment.first_state
    end = int(states[-1]) + 1 if states.size else first
    if fault is None and segment.next_state >= 0:
        following = segment.next_state
        if n_states is not None and following >= n_states:
            why = f"state {following} does not exist: there are {n_states} states, 0..{n_states - 1}"
            fault = fault_at(path, segment.end, why)
        elif following < end or (following > end and not gaps):
            fault = fault_at(path, segment.end, _state_fault(following, end - 1))
        else:
            end = following
    elif fault is None and segment.last and gaps and n_states is not None:
        end = n_states
    opens = np.ones(states.size, np.bool_)
    opens[1:] = (np.diff(states) != 0) | (np.diff(table.ints[1]) != 0)
    starts = np.flatnonzero(opens)
    counts = np.bincount(states[starts] - first, minlength=end - first)
    raw = RawRows(
        action_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        successor_ptr=np.append(starts, states.size).astype(np.int64),
        successors=table.ints[2],
        probabilities=table.floats[0],
        action_labels=table.ints[1, starts],
        row_lines=table.offsets[starts],
        transition_lines=table.offsets,
    )
    if table.fault is not None and found is None and starts.size:
        raw = truncated(raw, starts.size - 1)
    return raw, fault


class _Rewards:
    """One reward a line, read by ranges of states: a few remembered offsets, not the whole file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = file_size(path)
        head = read_bytes(path, 0, min(self.size, 3)).tobytes() if self.size else b""
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(path, "a UTF-16 file (byte-order mark); save it as UTF-8 text", 1)
        begin = 3 if head[:3] == b"\xef\xbb\xbf" else 0
        self.count, self._marks, _ = data_lines(path, begin, self.size, _STEP)
        if self.count == 0:
            raise InputError(path, "holds no reward; one r(s) a line is due", 1)

    def _table(self, first: int, end: int) -> tuple[Table, int]:
        low, high = first // _STEP, -(-end // _STEP)
        stop = int(self._marks[high]) if high < self._marks.size else self.size
        return column_table(self.path, int(self._marks[low]), stop, _REWARD), low * _STEP

    def between(self, first: int, end: int) -> FloatArray:
        """float64 [end - first]: r(s) of these states, which must have lines."""
        if end <= first:
            return np.empty(0)
        table, base = self._table(first, end)
        if base + table.offsets.size < end and table.fault is not None:
            raise table.fault
        return table.floats[0, first - base : end - base]

    def line(self, state: int) -> int:
        """Line of a state's reward."""
        table, base = self._table(state, state + 1)
        return line_number(self.path, int(table.offsets[state - base]))


class _TransitionListSource(TextSource):
    format = "transition-list"

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        if data_lines(path, self.begin, min(self.size, self.begin + (1 << 16)), 1)[0] == 0:
            self._refuse_blank()
        if options.rewards is None:
            raise InputError(
                path,
                "a transition list holds no rewards: name a file with one r(s) a line by --rewards FILE",
            )
        self._rewards = _Rewards(os.fspath(options.rewards))
        self.n_states = self._rewards.count

    def _refuse_blank(self) -> None:
        if data_lines(self.path, self.begin, self.size, 1 << 40)[0] == 0:
            raise fault_at(self.path, self.size - 1, "nothing but blank lines and comments; no transition is given")

    def _rows(self, segment: Segment) -> tuple[RawRows, InputError | None]:
        table = column_table(self.path, segment.begin, segment.end, _FIELDS)
        raw, fault = group_rows(self.path, table, segment, None, gaps=False, numbered=False)
        first = segment.first_state
        end = first + raw.action_ptr.size - 1
        known = min(end, self._rewards.count)
        if end > known:
            row = int(raw.action_ptr[max(known - first, 0)])
            why = (
                f"state {max(known, first)} has no reward: {self._rewards.path} holds {known} rewards, "
                f"for the states 0..{known - 1}"
            )
            fault = fault_at(self.path, int(raw.row_lines[row]) if raw.row_lines is not None else 0, why)
            rows = row
            raw = truncated(raw, rows)
        rewards = np.zeros(end - first)
        rewards[: max(known - first, 0)] = self._rewards.between(first, known)
        return replace(raw, row_rewards=np.repeat(rewards, np.diff(raw.action_ptr))), fault

    def finish(self) -> None:
        """Refuse rewards of states that have no transition; raises InputError in the rewards file."""
        super().finish()
        end = self._totals()[3]
        count = self._rewards.count
        if end < count:
            why = (
                f"{count} rewards, but {self.path} ends with state {end - 1}; give one reward a state, "
                "and each state at least one transition"
            )
            raise InputError(self._rewards.path, why, self._rewards.line(end))


class TransitionListFormat:
    """Lines `s a s' p` with a file of state rewards."""

    name = "transition-list"
    description = "lines `state action successor probability`, with --rewards FILE of one r(s) a line"

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the first data line has four fields that look like numbers (and the name is not .tra)."""
        lines = first_lines(head)
        if not lines or Path(source).suffix.lower() == ".tra":
            return False
        fields = lines[0].split()
        return len(fields) == 4 and all(re.match(rb"[-+.]?[0-9]", field) for field in fields)

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open a list and its rewards.

        Raises InputError if a file is empty, UTF-16 or not a regular file, or no rewards are named.
        """
        return _TransitionListSource(source, options)


TRANSITION_LIST = TransitionListFormat()
