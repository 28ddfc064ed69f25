"""The plain-text format of Johannsson's MDPReader: one state, its actions and their successors, line by line.

    S:0:0:2        state 0, initial value 0, 2 actions
    A:0:1          action 0, 1 successor
    D:1:0.5:10     to state 1 with probability 0.5, reward r(s,a,s') = 10

States come as 0, 1, 2, ...; a state with 0 actions is terminal. Action numbers that are not 0, 1, ... are
kept as action labels; the probabilities of a successor named twice are added up. Blanks around colons, blank lines,
lines that begin with # and a byte-order mark are accepted, although the format does not define them; lower-case letters
are errors. Source: A. P. Johannsson, "GPU-Based Markov Decision Process Solver", Reykjavik University 2009,
appendix A.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError
from ooc_mdp.io.johannsson.text_lines import parse_letters
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import ReadOptions, Source
from ooc_mdp.io.text.errors import Field, diagnose_fields, encoding_error, error_at, negative_state
from ooc_mdp.io.text.source import (
    Table,
    TextSegment,
    TextSource,
    first_lines,
    read_bytes,
    read_table,
    truncate_rows,
    truncate_table,
)
from ooc_mdp.model.mdp import IntArray

__all__ = ["JOHANNSSON", "JohannssonFormat"]

_S, _A, _D = b"SAD"
_FIELDS = {
    "S": [Field("state id", True), Field("initial value", False), Field("number of actions", True)],
    "A": [Field("action id", True), Field("number of successors", True)],
    "D": [Field("successor", True), Field("probability", False), Field("reward", False)],
}


def _diagnose(raw: bytes) -> str:
    error = encoding_error(raw)
    if error is not None:
        return error
    texts = [text.strip(" \t\r") for text in raw.decode("utf-8").split(":")]
    letter = texts[0]
    if letter.upper() in _FIELDS and letter not in _FIELDS:
        return f"the line begins with {letter!r}; write the capital {letter.upper()}"
    if letter not in _FIELDS:
        return f"the line begins with {letter[:20]!r}; S: (state), A: (action) or D: (successor) is expected"
    return diagnose_fields(texts[1:], _FIELDS[letter], f"{'an' if letter in 'SA' else 'a'} {letter} line")


def _pointers(letters: npt.NDArray[np.uint8], outer: int, inner: int) -> tuple[IntArray, IntArray]:
    """Positions of the `outer` lines, and the number of `inner` lines before each of them and in total [n+1]."""
    at = np.flatnonzero(letters == outer)
    before = np.cumsum(letters == inner, dtype=np.int64)
    return at, np.append(before[at], before[-1] if before.size else 0)


def _first_error(table: Table, segment: TextSegment) -> tuple[int, str] | None:
    """Index (n: what follows the segment) and message of the first line that is out of place; None if none is."""
    letters, ids, counts = table.letters, table.ints[0], table.ints[1]
    n = letters.size
    errors: list[tuple[int, str]] = []
    if n and letters[0] != _S:
        return (
            0,
            f"{'an A' if letters[0] == _A else 'a D'} line before any S line; a file begins with state 0",
        )
    states, action_ptr = _pointers(letters, _S, _A)
    actions, successor_ptr = _pointers(letters, _A, _D)
    successors = np.flatnonzero(letters == _D)
    expected = segment.first_state + np.arange(states.size)
    for i in np.flatnonzero(ids[states] != expected)[:1].tolist():
        errors.append((int(states[i]), _wrong_state(int(ids[states[i]]), int(expected[i]))))
    for i in np.flatnonzero(counts[states] < 0)[:1].tolist():
        errors.append((int(states[i]), f"state {ids[states[i]]} announces {counts[states[i]]} actions"))
    for i in np.flatnonzero(ids[actions] < 0)[:1].tolist():
        errors.append((int(actions[i]), f"action {ids[actions[i]]} is negative; actions are numbered from 0"))
    for i in np.flatnonzero(counts[actions] < 1)[:1].tolist():
        at = int(actions[i])
        why = f"action {ids[at]} announces {counts[at]} successors; leave the action out or give it one"
        errors.append((at, why))
    early = np.flatnonzero((letters[1:] == _D) & (letters[:-1] == _S))[:1] + 1
    for at in early.tolist():
        errors.append((at, f"a D line before any A line of state {ids[at - 1]}"))
    # The last row and state may lack lines only where the table ends at a malformed line.
    open_ended = table.error is not None
    for owners, ptr, children, what in (
        (actions, successor_ptr, successors, "action {} announces {} successors, a D line is expected after {}"),
        (states, action_ptr, actions, "state {} announces {} actions, an A line is expected after {}"),
    ):
        got, announced = np.diff(ptr), counts[owners]
        for i in np.flatnonzero(got > np.maximum(announced, 0))[:1].tolist():
            at = int(children[ptr[i] + max(int(announced[i]), 0)])
            first_part = what.format(ids[owners[i]], announced[i], announced[i]).split(",")[0]
            errors.append((at, f"{first_part}, this is one more"))
        short = got < announced
        if open_ended and short.size:
            short[-1] = False
        for i in np.flatnonzero(short)[:1].tolist():
            behind = letters[owners[i] + 1 :]
            later = np.flatnonzero(behind != _D if owners is actions else behind == _S)
            at = int(owners[i]) + 1 + int(later[0]) if later.size else n
            errors.append((at, what.format(ids[owners[i]], announced[i], got[i])))
    end = segment.first_state + states.size
    if not open_ended and segment.next_state >= 0 and segment.next_state != end:
        errors.append((n, _wrong_state(segment.next_state, end)))
    return min(errors, key=lambda error: error[0]) if errors else None


def _wrong_state(found: int, expected: int) -> str:
    if found < 0:
        return negative_state(found)
    if found < expected:
        above = f"its first definition is among states 0..{expected - 1} above"
        return f"state {found} is defined again ({above}); remove one of the two"
    return f"state {found} where state {expected} is expected: states are numbered 0, 1, 2, ... without gaps"


class _JohannssonSource(TextSource):
    format = "johannsson"
    marker = _S

    def _rows(self, segment: TextSegment) -> tuple[RawRows, InputError | None]:
        buffer = read_bytes(self.file, segment.begin, segment.end)
        table = read_table(self.file, segment.begin, buffer, (2, 2), parse_letters, _diagnose)
        found = _first_error(table, segment)
        if found is not None:
            index, why = found
            if index < table.offsets.size:
                offset = int(table.offsets[index])
            elif segment.last:
                offset = int(table.offsets[-1])
                why = f"{why}, but the file ends"
            else:
                offset = segment.end
            excess = index < table.offsets.size and table.letters[index] == _D
            table = truncate_table(table, index, error_at(self.file, offset, why))
            return _raw(table, excess), table.error
        return _raw(table, False), table.error


def _raw(table: Table, excess: bool) -> RawRows:
    """The rows of a table; where an error follows, without the last row if it is incomplete or (`excess`) continues."""
    letters = table.letters
    states, action_ptr = _pointers(letters, _S, _A)
    actions, successor_ptr = _pointers(letters, _A, _D)
    successors = np.flatnonzero(letters == _D)
    raw = RawRows(
        action_ptr=action_ptr,
        successor_ptr=successor_ptr,
        successors=table.ints[0, successors],
        probabilities=table.floats[0, successors],
        transition_rewards=table.floats[1, successors],
        initial_values=table.floats[0, states],
        action_labels=table.ints[0, actions],
        row_positions=table.offsets[actions],
        transition_positions=table.offsets[successors],
    )
    if table.error is not None and actions.size:
        incomplete = int(successor_ptr[-1] - successor_ptr[-2]) < int(table.ints[1, actions[-1]])
        return truncate_rows(raw, actions.size - (incomplete or excess))
    return raw


class JohannssonFormat:
    """Johannsson's S:/A:/D: text."""

    name = "johannsson"
    description = "S:/A:/D: text of Johannsson's MDPReader"
    reward_options: tuple[str, ...] = ("rewards",)

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the first line that is not blank or a comment begins with S:."""
        lines = first_lines(head)
        return bool(lines) and re.match(rb"[Ss][ \t]*:", lines[0]) is not None

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open a file; raises InputError if it is empty, UTF-16 or not a regular file."""
        if options.rewards is not None:
            raise InputError(source, "this format holds its own rewards; leave out --rewards")
        return _JohannssonSource(source, options)


JOHANNSSON = JohannssonFormat()
