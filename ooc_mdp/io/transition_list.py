"""Transition lists: a line `s a s' p` for each transition, and a file with one reward r(s) per line.

    0 0 0 0.5          5        r(0)
    0 0 1 0.5         -1        r(1)
    1 0 1 1

Lines are ordered by state, then action; every state has at least one action, as the format cannot express "none".
A state's reward is paid at each visit, so r(s,a) = r(s). The number of lines of the rewards file is the number of
states. Action numbers that are not 0, 1, ... are kept as action labels; the probabilities of a transition given twice
are added up. Tabs, blank lines, lines that begin with # and a byte-order mark are accepted; state ids such as 1.0 are
errors.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.compressed import plain_name
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import ReadOptions, Source
from ooc_mdp.io.text.columns import column_table, group_rows
from ooc_mdp.io.text.errors import Field, error_at, line_number
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.source import (
    Table,
    TextSegment,
    TextSource,
    count_lines,
    first_lines,
    truncate_rows,
)
from ooc_mdp.model.mdp import FloatArray

__all__ = ["TRANSITION_LIST", "TransitionListFormat"]

_FIELDS = (Field("state", True), Field("action", True), Field("successor", True), Field("probability", False))
_REWARD = (Field("reward", False),)
_STEP = 4096
"""Rewards between two remembered offsets of the rewards file."""


class _Rewards:
    """One reward per line, read by ranges of states: a few remembered offsets, not the whole file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = TextFile(path)
        size = self.file.size
        head = self.file.read(0, 3)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(path, "a UTF-16 file (byte-order mark); save it as UTF-8 text", 1)
        begin = 3 if head[:3] == b"\xef\xbb\xbf" else 0
        self.count, self._marks, _ = count_lines(self.file, begin, size, _STEP)
        if self.count == 0:
            raise InputError(path, "holds no reward; one r(s) a line is expected", 1)

    def _table(self, first: int, end: int) -> tuple[Table, int]:
        low, high = first // _STEP, -(-end // _STEP)
        stop = int(self._marks[high]) if high < self._marks.size else self.file.size
        return column_table(self.file, int(self._marks[low]), stop, _REWARD)[0], low * _STEP

    def _until(self, first: int, end: int) -> tuple[Table, int]:
        """A table that holds the rewards of these states, and the state of its first line; InputError at a bad one."""
        table, base = self._table(first, end)
        if base + table.offsets.size < end and table.error is not None:
            raise table.error
        return table, base

    def between(self, first: int, end: int) -> FloatArray:
        """float64 [end - first]: r(s) of these states, which must have lines."""
        if end <= first:
            return np.empty(0)
        table, base = self._until(first, end)
        return table.floats[0, first - base : end - base]

    def line(self, state: int) -> int:
        """Line number of a state's reward; raises InputError where that line, or one before it, is malformed."""
        table, base = self._until(state, state + 1)
        return line_number(self.file, int(table.offsets[state - base]))


class _TransitionListSource(TextSource):
    format = "transition-list"

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        if count_lines(self.file, self.begin, min(self.size, self.begin + (1 << 16)), 1)[0] == 0:
            self._check_not_blank()
        if options.rewards is None:
            raise InputError(
                path,
                "a transition list holds no rewards: name a file with one r(s) a line by --rewards FILE",
            )
        self._rewards = _Rewards(os.fspath(options.rewards))
        self.n_states = self._rewards.count

    def _check_not_blank(self) -> None:
        if count_lines(self.file, self.begin, self.size, 1 << 40)[0] == 0:
            raise error_at(self.file, self.size - 1, "nothing but blank lines and comments; no transition is given")

    def _rows(self, segment: TextSegment) -> tuple[RawRows, InputError | None]:
        table, _ = column_table(self.file, segment.begin, segment.end, _FIELDS)
        raw, error = group_rows(self.file, table, segment, None, gaps=False, numbered=False)
        first = segment.first_state
        end = first + raw.action_ptr.size - 1
        known = min(end, self._rewards.count)
        if end > known:
            row = int(raw.action_ptr[max(known - first, 0)])
            why = (
                f"state {max(known, first)} has no reward: {self._rewards.path} holds {known} rewards, "
                f"for the states 0..{known - 1}"
            )
            error = error_at(self.file, int(raw.row_positions[row]) if raw.row_positions is not None else 0, why)
            rows = row
            raw = truncate_rows(raw, rows)
        rewards = np.zeros(end - first)
        rewards[: max(known - first, 0)] = self._rewards.between(first, known)
        return replace(raw, row_rewards=np.repeat(rewards, np.diff(raw.action_ptr))), error

    def check_totals(self) -> None:
        """Check that every reward's state has a transition; raises InputError in the rewards file."""
        super().check_totals()
        end = self._totals()[3]
        count = self._rewards.count
        if end < count:
            why = (
                f"{count} rewards, but {self.path} ends with state {end - 1}; give one reward a state, "
                "and each state at least one transition"
            )
            raise InputError(self._rewards.path, why, self._rewards.line(end))

    def close(self) -> None:
        """Remove the texts of compressed files."""
        super().close()
        self._rewards.file.close()


class TransitionListFormat:
    """Lines `s a s' p` with a file of state rewards."""

    name = "transition-list"
    description = "lines `state action successor probability`, with --rewards FILE of one r(s) a line"
    reward_options: tuple[str, ...] = ("rewards",)

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the first data line has four fields that look like numbers (and the name is not .tra)."""
        lines = first_lines(head)
        if not lines or Path(plain_name(source)).suffix.lower() == ".tra":
            return False
        fields = lines[0].split()
        return len(fields) == 4 and all(re.match(rb"[-+.]?[0-9]", field) for field in fields)

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open a list and its rewards.

        Raises InputError if a file is empty, UTF-16 or not a regular file, or no rewards are named.
        """
        return _TransitionListSource(source, options)


TRANSITION_LIST = TransitionListFormat()
