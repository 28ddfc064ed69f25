"""PRISM's explicit files: .tra transitions of an MDP, with .srew and .trew rewards in companion files.

    3 4 6            3 states, 4 choices, 6 transitions
    0 0 0 0.5        state, choice, successor, probability
    0 0 1 0.5 go     perhaps an action's name, which is dropped

Lines are ordered by state, then choice; choices of a state are 0, 1, ... A state without any line is a *state
without action*: it is terminal, its value is its state reward. So the header may announce more states than
appear, and states may be missing between others. The announced numbers of choices and transitions must be those of the
file. The probabilities of a transition given twice are added up. Comments (#), tabs and a byte-order mark are accepted.
DTMCs are errors. Rewards are those of --rewards FILE or of the companion files with the same stem; without any they
are 0. Companion files .sta and .lab are only compared with the number of states.
Source: prismmodelchecker.org/manual, "Explicit model files".
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.files import file_size
from ooc_mdp.io.prism.rewards import RewardFile, choose_rewards, read_header
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import ReadOptions, Source
from ooc_mdp.io.text.columns import column_table, group_rows
from ooc_mdp.io.text.errors import Field, error_at
from ooc_mdp.io.text.source import TextSegment, TextSource, count_lines, first_lines, read_bytes

__all__ = ["PRISM", "PrismFormat"]

_FIELDS = (Field("state", True), Field("choice", True), Field("successor", True), Field("probability", False))
_COUNTS = [
    Field("number of states", True),
    Field("number of choices", True),
    Field("number of transitions", True),
]


class _PrismSource(TextSource):
    format = "prism"

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        what = "an MDP's header `states choices transitions` (a DTMC's has two numbers, and is not read)"
        counts, self._header_at, self.begin, _ = read_header(path, self.size, _COUNTS, what)
        self.n_states, self._choices, self._transitions = counts
        self._check_counts()
        self._rewards = [RewardFile(file, counts[:2], path) for file in choose_rewards(path, options)]
        for suffix in (".sta", ".lab"):
            companion = Path(path).with_suffix(suffix)
            if companion.exists():
                _check_companion_file(str(companion), counts[0], path)

    def _check_counts(self) -> None:
        """Check the counts against the file's bytes, so that nothing is ever allocated from them."""
        if self._choices > self._transitions:
            self._raise_at_header(f"{self._choices} choices announced, but only {self._transitions} transitions")
        if self.n_states == 0:
            self._raise_at_header("0 states announced; a model has at least one")
        for count, name in ((self.n_states or 0, "states"), (self._transitions, "transitions")):
            if count > self.size:
                self._raise_at_header(f"{count} {name} announced in a file of {self.size} bytes")

    def _raise_at_header(self, why: str) -> None:
        raise error_at(self.path, self._header_at, f"header: {why}")

    def _rows(self, segment: TextSegment) -> tuple[RawRows, InputError | None]:
        table = column_table(self.path, segment.begin, segment.end, _FIELDS, word=True)
        raw, error = group_rows(self.path, table, segment, self.n_states, gaps=True, numbered=True)
        raw = replace(raw, action_labels=None)
        if error is None:
            for file in self._rewards:
                raw = _with_rewards(raw, file, segment)
        return raw, error

    def check_totals(self) -> None:
        """Compare the totals with the header.

        Raises InputError at the header, at the first surplus transition, or at the last line if some are missing.
        """
        super().check_totals()
        rows, transitions, _, _ = self._totals()
        if transitions > self._transitions:
            why = f"transition {self._transitions + 1}, but the header announces {self._transitions}"
            if self._transitions == 0:
                self._raise_at_header(f"0 transitions announced, but {transitions} follow")
            marks = count_lines(self.path, self.begin, self.size, self._transitions)[1]
            raise error_at(self.path, int(marks[1]), why)
        if transitions < self._transitions:
            last = count_lines(self.path, self._header_at, self.size, 1 << 40)[2]
            why = (
                f"the file ends after {transitions} transitions and {rows} choices, but its header announces "
                f"{self._transitions} and {self._choices}"
            )
            raise error_at(self.path, last, why)
        if rows != self._choices:
            self._raise_at_header(f"{self._choices} choices announced, but {rows} follow")
        for file in self._rewards:
            file.check_totals()


def _with_rewards(raw: RawRows, file: RewardFile, segment: TextSegment) -> RawRows:
    """The rows with one file's rewards; rows are sorted first where transition rewards are looked up in them."""
    n_states = raw.action_ptr.size - 1
    first, end = segment.first_state, segment.first_state + n_states
    if not file.transitions:
        rewards = file.state_rewards(first, end, segment.last)
        return replace(raw, row_rewards=np.repeat(rewards, np.diff(raw.action_ptr)), terminal_rewards=rewards)
    row = np.repeat(np.arange(raw.successor_ptr.size - 1), np.diff(raw.successor_ptr))
    if ((np.diff(raw.successors) < 0) & (np.diff(row) == 0)).any():
        order = np.lexsort([raw.successors, row])
        lines = raw.transition_positions
        raw = replace(
            raw,
            successors=raw.successors[order],
            probabilities=raw.probabilities[order],
            transition_positions=None if lines is None else lines[order],
        )
    return replace(raw, transition_rewards=file.transition_rewards(first, end, segment.last, raw))


def _check_companion_file(path: str, n_states: int, tra: str) -> None:
    """Check that the last line of a .sta or .lab file names a state of the .tra file."""
    size = file_size(path)
    tail = read_bytes(path, max(0, size - (1 << 14)), size).tobytes()
    for line in reversed(tail.split(b"\n")):
        match = re.match(rb"[ \t]*([0-9]+)[ \t]*:", line)
        if match:
            last = int(match[1])
            if last >= n_states or (path.endswith(".sta") and last != n_states - 1):
                message = f"its last state is {last}, but {tra} announces {n_states} states"
                raise InputError(path, f"{message}; take it away if they do not belong together")
            return


class PrismFormat:
    """PRISM's .tra files of MDPs."""

    name = "prism"
    description = "PRISM explicit .tra (MDP), with .srew and .trew rewards in companion files or by --rewards"
    reward_options: tuple[str, ...] = ("rewards", "reward_model")

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the name ends in .tra, or the file begins with three counts, then lines of four or five fields."""
        if Path(source).suffix.lower() == ".tra":
            return True
        fields = [line.split() for line in first_lines(head)]
        if len(fields) < 2 or len(fields[0]) != 3:
            return False
        return all(field.isdigit() for field in fields[0]) and all(len(line) in (4, 5) for line in fields[1:])

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open a .tra file and its rewards, and read their headers.

        Raises InputError if a file is empty, not text or not a regular file, if a header is missing, that of
        a DTMC or beyond the file's size, or if several reward structures could be meant.
        """
        return _PrismSource(source, options)


PRISM = PrismFormat()
