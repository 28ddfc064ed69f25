"""PRISM's explicit files: .tra transitions of an MDP or DTMC, with .srew and .trew rewards in companion files.

    3 4 6            3 states, 4 choices, 6 transitions
    0 0 0 0.5        state, choice, successor, probability
    0 0 1 0.5 go     perhaps the choice's name, which is kept: that of its first line

Lines are ordered by state, then choice; choices of a state are 0, 1, ... A state without any line is a *state
without action*: it is terminal, its value is its state reward. So the header may announce more states than
appear, and states may be missing between others. The announced numbers of choices and transitions must be those of the
file. The probabilities of a transition given twice are added up. Comments (#), tabs and a byte-order mark are accepted.

    # Transitions (DTMC)
    3 4              3 states, 4 transitions
    0 1 0.5          state, successor, probability

A DTMC is an MDP of one action per state; names of its transitions are left out. Its comment is required, as a CTMC's
file, whose numbers are rates, looks the same without. Other types of models are errors. Rewards are those of --rewards
[NAME=]FILE or of companion files with the same stem; without any they are 0, and with several all are kept by name. All
files may be compressed. Labels of a companion file .lab and variables of one of valuations (.sta) are kept.
Source: prismmodelchecker.org/manual, "Explicit model files".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.compressed import plain_name
from ooc_mdp.io.foreign import PEXP, is_name, model_kind
from ooc_mdp.io.left_out import ACTION_NAMES, REWARD_STRUCTURES
from ooc_mdp.io.prism.header import Header, read_header
from ooc_mdp.io.prism.labels import check_last_state, declared_labels, read_labels
from ooc_mdp.io.prism.rewards import RewardFile, Structure, choose_rewards, companion_files
from ooc_mdp.io.prism.valuations import read_valuations
from ooc_mdp.io.raw_rows import RawRewards, RawRows
from ooc_mdp.io.source import ReadOptions, Source
from ooc_mdp.io.text.columns import column_table, diagnose_columns, group_rows
from ooc_mdp.io.text.errors import Field, error_at
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.source import TextSegment, TextSource, count_lines, first_lines
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.quoting import quote

__all__ = ["PRISM", "PrismFormat"]

_FIELDS = (Field("state", True), Field("choice", True), Field("successor", True), Field("probability", False))
_COUNTS = [
    Field("number of states", True),
    Field("number of choices", True),
    Field("number of transitions", True),
]
_DTMC_FIELDS = (_FIELDS[0], *_FIELDS[2:])
_DTMC_COUNTS = [_COUNTS[0], _COUNTS[2]]
_DTMC = "DTMC"


class _PrismSource(TextSource):
    format = "prism"

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        header = read_header(self.file, (_COUNTS, _DTMC_COUNTS), "an MDP's header `states choices transitions`")
        self._header_at, self.begin = header.at, header.end
        self._dtmc = header.kind == _DTMC
        self._check_type(header)
        self.n_states, self._transitions = header.counts[0], header.counts[-1]
        self._choices = None if self._dtmc else header.counts[1]
        self._check_counts()
        chosen, others, left_out = choose_rewards(path, options, self._dtmc)
        self._rewards = self._reward_files(chosen)
        self._models = {structure.shown: self._reward_files(structure) for structure in others}
        self.annotations.reward_models = tuple(self._models)
        self.annotations.rewards_chosen = chosen is not None or not others
        if chosen is not None and (chosen.name or chosen.label):
            self.annotations.table_rewards = chosen.shown
        if left_out:
            self.left_out.add(REWARD_STRUCTURES, left_out)
        plain = Path(plain_name(path))
        self._valuation_files = [TextFile(companion) for companion in companion_files(plain.with_suffix(".sta"))]
        for file in self._valuation_files:
            check_last_state(file, self.n_states, path, every=True)
        self._label_files = [TextFile(companion) for companion in companion_files(plain.with_suffix(".lab"))]
        for file in self._label_files:
            self.annotations.declare(declared_labels(file).values())
            check_last_state(file, self.n_states, path)

    def _reward_files(self, structure: Structure | None) -> list[RewardFile]:
        """The open files of a reward structure."""
        counts = [count for count in (self.n_states, self._choices) if count is not None]
        files = () if structure is None else structure.files
        return [RewardFile(file, counts, self.path, self._dtmc) for file in files]

    def _check_type(self, header: Header) -> None:
        """Raise InputError for a type of model that is not read."""
        if header.kind not in (None, "MDP", _DTMC):
            why = model_kind(header.kind or "") or f"a model of type {quote(header.kind or '')}"
            raise InputError(self.path, f"this is {why}; MDPs and DTMCs are read")
        if self._dtmc and len(header.counts) != len(_DTMC_COUNTS):
            self._raise_at_header(f"{len(header.counts)} counts; a DTMC's has two, `states transitions`")
        if not self._dtmc and len(header.counts) == len(_DTMC_COUNTS):
            why = "two counts, as a DTMC has, or a CTMC, whose numbers are rates; an MDP has three"
            remedy = f"if the numbers are probabilities, write the line `# Transitions ({_DTMC})` above it"
            self._raise_at_header(f"{why}: {remedy}")

    def _check_counts(self) -> None:
        """Check the counts against the file's bytes, so that nothing is ever allocated from them."""
        if self._choices is not None and self._choices > self._transitions:
            self._raise_at_header(f"{self._choices} choices announced, but only {self._transitions} transitions")
        if self.n_states == 0:
            self._raise_at_header("0 states announced; a model has at least one")
        for count, name in ((self.n_states or 0, "states"), (self._transitions, "transitions")):
            if count > self.size:
                self._raise_at_header(f"{count} {name} announced in a file of {self.size} bytes")

    def _raise_at_header(self, why: str) -> None:
        raise error_at(self.file, self._header_at, f"header: {why}")

    def _rows(self, segment: TextSegment) -> tuple[RawRows, InputError | None]:
        fields, foreign = (_DTMC_FIELDS, _section) if self._dtmc else (_FIELDS, _foreign_line)
        number = self._leave_out_names if self._dtmc else self.annotations.number_actions
        table, names = column_table(self.file, segment.begin, segment.end, fields, number, foreign)
        if self._dtmc:
            table = replace(table, ints=np.insert(table.ints, 1, 0, axis=0))
        raw, error = group_rows(self.file, table, segment, self.n_states, gaps=True, numbered=True, names=names)
        raw = replace(raw, action_labels=None, action_names=None if self._dtmc else raw.action_names)
        if error is None:
            models = {}
            for name, files in self._models.items():
                own = raw
                for file in files:
                    own = _with_rewards(own, file, segment)
                models[name] = own
            for file in self._rewards:
                raw = _with_rewards(raw, file, segment)
            raw = _with_models(raw, models)
        return raw, error

    def _leave_out_names(self, names: list[str]) -> IntArray:
        """Names in a DTMC are of transitions, not of actions."""
        self.left_out.add(ACTION_NAMES, names)
        return np.full(len(names), -1)

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
            marks = count_lines(self.file, self.begin, self.size, self._transitions)[1]
            raise error_at(self.file, int(marks[1]), why)
        if transitions < self._transitions:
            last = count_lines(self.file, self._header_at, self.size, 1 << 40)[2]
            found, announced = f"{transitions} transitions", f"{self._transitions}"
            if self._choices is not None:
                found, announced = f"{found} and {rows} choices", f"{announced} and {self._choices}"
            raise error_at(self.file, last, f"the file ends after {found}, but its header announces {announced}")
        if self._choices is not None and rows != self._choices:
            self._raise_at_header(f"{self._choices} choices announced, but {rows} follow")
        for reward_file in self._all_rewards():
            reward_file.check_totals()
        for label_file in self._label_files:
            read_labels(label_file, self.n_states or 0, self.path, self.annotations)
        for file in self._valuation_files:
            read_valuations(file, self.n_states or 0, self.path, self.annotations.variables)

    def _all_rewards(self) -> list[RewardFile]:
        return [*self._rewards, *(file for files in self._models.values() for file in files)]

    def close(self) -> None:
        """Remove the texts of compressed files."""
        super().close()
        for file in [*(each.file for each in self._all_rewards()), *self._label_files, *self._valuation_files]:
            file.close()


def _with_rewards(raw: RawRows, file: RewardFile, segment: TextSegment) -> RawRows:
    """The rows with one file's rewards; rows are sorted first where transition rewards are looked up in them."""
    n_states = raw.action_ptr.size - 1
    first, end = segment.first_state, segment.first_state + n_states
    if not file.transitions:
        rewards = file.state_rewards(first, end, segment.last)
        return replace(raw, row_rewards=np.repeat(rewards, np.diff(raw.action_ptr)), terminal_rewards=rewards)
    raw = _sorted(raw)
    return replace(raw, transition_rewards=file.transition_rewards(first, end, segment.last, raw))


def _with_models(raw: RawRows, models: Mapping[str, RawRows]) -> RawRows:
    """The rows with the rewards of further models, each the same rows with its own; all sorted if one is."""
    if not models:
        return raw
    every = [raw, *models.values()]
    if any(each.transition_rewards is not None for each in every):
        every = [_sorted(each) for each in every]
    rewards = {
        name: RawRewards(model.row_rewards, model.transition_rewards, model.terminal_rewards)
        for name, model in zip(models, every[1:], strict=True)
    }
    return replace(every[0], reward_models=rewards)


def _sorted(raw: RawRows) -> RawRows:
    """The rows with successors in ascending order; equal ones stay in the file's."""
    row = np.repeat(np.arange(raw.successor_ptr.size - 1), np.diff(raw.successor_ptr))
    if ((np.diff(raw.successors) < 0) & (np.diff(row) == 0)).any():
        order = np.lexsort([raw.successors, row])
        lines = raw.transition_positions
        return replace(
            raw,
            successors=raw.successors[order],
            probabilities=raw.probabilities[order],
            transition_positions=None if lines is None else lines[order],
        )
    return raw


def _section(raw: bytes) -> str | None:
    """The message for the first line of states or labels, which PRISM's export in one file has; None for another."""
    if raw.lstrip().startswith(b"(") or re.match(rb'[ \t]*[0-9]+="', raw):
        return f"a section of states or labels begins: this is {PEXP}"
    return None


def _foreign_line(raw: bytes) -> str | None:
    """The message for a line of another format of PRISM; None if it is none."""
    fields = raw.split()
    integers = len(fields) >= 3 and all(field.isdigit() for field in fields[:3])
    if integers and (len(fields) == 3 or (len(fields) == 4 and is_name(fields[3]))):
        return f"{diagnose_columns(_FIELDS, raw, word=True)}; an LTS, which has no probabilities, is not read"
    return _section(raw)


class PrismFormat:
    """PRISM's .tra files of MDPs and DTMCs."""

    name = "prism"
    description = "PRISM explicit .tra (MDP or DTMC), with .srew and .trew rewards in companion files or by --rewards"
    reward_options: tuple[str, ...] = ("rewards", "named_rewards", "reward_model")

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the name ends in .tra, or the file begins with counts, then lines of one or two fields more."""
        if Path(plain_name(source)).suffix.lower() == ".tra":
            return True
        fields = [line.split() for line in first_lines(head)]
        if len(fields) < 2 or len(fields[0]) not in (2, 3) or not all(field.isdigit() for field in fields[0]):
            return False
        least = len(fields[0]) + 1
        return all(len(line) in (least, least + 1) for line in fields[1:])

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open a .tra file and its rewards, and read their headers.

        Raises InputError if a file is empty, not text or not a regular file, if a header is missing, that of
        another type of model or beyond the file's size, or if several reward structures could be meant.
        """
        return _PrismSource(source, options)


PRISM = PrismFormat()
