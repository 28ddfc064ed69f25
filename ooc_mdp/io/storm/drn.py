"""Storm's DRN text, for MDPs and DTMCs with double or rational values.

    @type: MDP                    state 0 [r(s)] init
    @reward_models                    action 0 [r(s,a)]
    steps                                 1 : 0.5
    @nr_states                            2 : 0.5
    3                             state 1 [0]
    @model                        ...

A DTMC has one action per state. Rewards are r(s) + r(s,a) of one reward model: the only one, which may have no name, or
the one that --reward-model names; a missing [..] is 0, as in Storm. Others are kept by name, as labels are, and
variables that comments have, and names of actions that are no numbers. A state without action is terminal; an exit
rate `!2.5` or an observation `{3}` in the place of the rewards is an error. CTMCs, Markov automata, POMDPs, games,
parameters, placeholders and intervals are errors.
Source: Storm's DirectEncodingParser and DirectEncodingExporter, stormchecker.org.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.compressed import plain_name
from ooc_mdp.io.left_out import VALUATIONS
from ooc_mdp.io.raw_rows import RawRewards, RawRows
from ooc_mdp.io.source import ReadOptions, Source
from ooc_mdp.io.storm.drn_header import read_header
from ooc_mdp.io.storm.drn_lines import parse_drn
from ooc_mdp.io.storm.valuations import commented_values
from ooc_mdp.io.text.errors import (
    Field,
    diagnose_fields,
    encoding_error,
    error_at,
    negative_state,
    number_error,
)
from ooc_mdp.io.text.file import Bytes
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
from ooc_mdp.io.text.words import distinct_words
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.quoting import printable, quote, shorten

__all__ = ["DRN", "DrnFormat"]

_STATE, _ACTION, _TRANSITION = b"sat"
_ID = Field("state id", True)
_REWARD = Field("reward", False)
_TARGET = (Field("successor", True), Field("probability", False))
_BLANKS = " \t\r"
_NO_NAME = "__NOLABEL__"
"""Storm's word for an action without a name."""
_MIN_STATE = len("state 0\n")


def _diagnose(raw: bytes, n_rewards: int) -> str:
    """The message for a malformed line of a model with lists of `n_rewards` rewards."""
    error = encoding_error(raw)
    if error is not None:
        return error
    text = raw.decode("utf-8").strip(_BLANKS)
    word, rest = _first_word(text)
    if word not in ("state", "action"):
        return diagnose_fields([part.strip(_BLANKS) for part in text.split(":")], _TARGET, "a line")
    if not rest:
        return f"{word} without {'an id' if word == 'state' else 'a name'}"
    name, rest = _first_word(rest)
    error = number_error(name, _ID) if word == "state" else None
    return error or _diagnose_rewards(rest, n_rewards)


def _first_word(text: str) -> tuple[str, str]:
    """The first word of a text that begins with one, and what follows the blanks behind it."""
    word = re.split("[ \t\r]", text, maxsplit=1)[0]
    return word, text[len(word) :].strip(_BLANKS)


def _diagnose_rewards(text: str, n_rewards: int) -> str:
    """The message for what follows the id of a state or the name of an action."""
    if text[:1] in ("!", "{"):
        what = "an exit rate" if text[0] == "!" else "an observation"
        return f"{what} ({quote(text, 20)}) is not part of an MDP"
    if not text.startswith("["):
        return f"{quote(text, 20)} after the action's name; [rewards] are expected, and names have no blanks"
    if "]" not in text:
        return "the list of rewards has no closing bracket (a label that begins with a bracket stands after a list)"
    inside, _, behind = text[1:].partition("]")
    rewards = inside.split(",")
    for reward in rewards:
        error = number_error(reward.strip(_BLANKS), _REWARD)
        if error is not None:
            return error
    if len(rewards) != n_rewards:
        return f"{len(rewards)} rewards; the lists of this model have {n_rewards}, as @reward_models says"
    return f"{quote(behind.strip(), 20)} after the rewards"


class _DrnSource(TextSource):
    format = "drn"
    marker = _STATE

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        header, self.begin, nr_states_at = read_header(self.file, self.begin, self.size)
        if header.kind is None:
            raise error_at(self.file, self.begin - 1, "the header has no @type")
        if header.n_states is None:
            raise error_at(self.file, self.begin - 1, "the header has no @nr_states")
        room = -(-(self.size - self.begin) // _MIN_STATE)
        if header.n_states > room:
            why = f"{header.n_states} states announced, but the file has room for {room} at most"
            raise error_at(self.file, nr_states_at, why)
        self.n_states = header.n_states
        self._n_choices = header.n_choices
        self._choices_at = header.seen.get("@nr_choices", 0)
        self._deterministic = header.kind.lower() == "dtmc"
        wanted = self._reward_index(header.rewards, header.seen.get("@reward_models", 0))
        self._lists = wanted, max(1, len(header.rewards))
        """Which reward of a list of how many is the table's, -1 for none, and how many there are."""
        self._others = [(i, name) for i, name in enumerate(header.rewards) if i != wanted]
        self.annotations.reward_models = tuple(name for _, name in self._others)
        self.annotations.rewards_chosen = wanted >= 0
        if header.rewards and wanted >= 0:
            self.annotations.table_rewards = header.rewards[wanted]

    def _reward_index(self, names: list[str], at: int) -> int:
        """Position of the table's reward model: 0 without names, as a single one may have none; -1: none of several."""
        name = self._options.reward_model
        listed = shorten(printable(", ".join(names)), 200)
        if name is not None:
            if names.count(name) != 1:
                many = "are several reward models" if name in names else "is no reward model"
                raise error_at(self.file, at, f"there {many} {quote(name)}; there are: {listed or 'none'}")
            return names.index(name)
        if len(set(names)) < len(names):
            raise error_at(self.file, at, f"two reward models have one name: {listed}; rename one of them")
        return -1 if len(names) > 1 else 0

    def _rows(self, segment: TextSegment) -> tuple[RawRows, InputError | None]:
        buffer = read_bytes(self.file, segment.begin, segment.end)
        words = np.full((int(np.count_nonzero(buffer == 10)), 2), -1)
        table = self._parse(segment, buffer, self._lists[0], words)
        malformed = table.error is not None
        self._mark_labels(table, buffer, words)
        self._keep_variables(table, buffer, segment)
        found = self._order_error(table, segment)
        if found is not None:
            index, why = found
            if index < table.offsets.size:
                offset = int(table.offsets[index])
            elif segment.last:
                offset = int(table.offsets[-1]) if table.offsets.size else self.size - 1
            else:
                offset = segment.end
            table = truncate_table(table, index, error_at(self.file, offset, why))
            malformed = False
        others = {name: self._parse(segment, buffer, i, words) for i, name in self._others}
        for other in others.values():
            if other.error is not None and other.letters.size < table.letters.size:
                table, malformed = truncate_table(table, other.letters.size, other.error), True
        models = {name: _raw(truncate_table(t, table.letters.size, None)) for name, t in others.items()}
        raw = _raw(table)
        raw = replace(
            raw,
            action_names=self._names(table, buffer, words),
            reward_models={n: RawRewards(each.row_rewards, None, each.terminal_rewards) for n, each in models.items()},
        )
        if malformed and raw.successor_ptr.size > 1:
            raw = truncate_rows(raw, raw.successor_ptr.size - 2)
        return raw, table.error

    def _parse(self, segment: TextSegment, buffer: Bytes, wanted: int, words: IntArray) -> Table:
        """The lines of a segment with the rewards of one reward model; words as `parse_drn` takes them."""
        lists = wanted, self._lists[1]

        def kernel(buf, pos, end, count, letters, ints, floats, offsets, slow):  # type: ignore[no-untyped-def]
            return parse_drn(buf, pos, end, lists, words, count, (letters, ints, floats, offsets), slow)

        return read_table(self.file, segment.begin, buffer, (1, 1), kernel, partial(_diagnose, n_rewards=lists[1]))

    def _names(self, table: Table, buffer: Bytes, words: IntArray) -> IntArray | None:
        """Numbers of the names of a table's rows; None where none has one."""
        rows = _first_lines(table)
        of_rows = np.where((table.letters[rows] == _ACTION)[:, None], words[rows], -1)
        if not (of_rows[:, 0] >= 0).any():
            return None
        found, names = distinct_words(buffer, of_rows)
        numbers = self.annotations.number_actions(["" if name == _NO_NAME else name for name in names])
        return np.append(numbers, -1)[found]

    def _mark_labels(self, table: Table, buffer: Bytes, spans: IntArray) -> None:
        """Give the states of a segment the labels of their lines; spans [lines, 2] is where these are."""
        owners: dict[bytes, list[int]] = {}
        of_states = np.flatnonzero(table.letters == _STATE)
        for at in of_states[spans[of_states, 1] > spans[of_states, 0]].tolist():
            owners.setdefault(buffer[spans[at, 0] : spans[at, 1]].tobytes(), []).append(int(table.ints[0, at]))
        for line, states in owners.items():
            known = np.array([state for state in states if 0 <= state < (self.n_states or 0)], np.int64)
            for label in re.findall(r'"[^"\n]*"?|[^ \t\r]+', line.decode("utf-8", "replace")):
                self.annotations.mark(label.strip('"'), known)

    def _keep_variables(self, table: Table, buffer: Bytes, segment: TextSegment) -> None:
        """Keep the values of variables that comments behind a segment's states have."""
        states = table.offsets[table.letters == _STATE] - segment.begin
        values, left_out = commented_values(buffer.tobytes(), states)
        self.annotations.variables.put(self.path, segment.first_state, values)
        if left_out:
            self.left_out.add(VALUATIONS)

    def _order_error(self, table: Table, segment: TextSegment) -> tuple[int, str] | None:
        letters, n_states = table.letters, self.n_states or 0
        errors: list[tuple[int, str]] = []
        if letters.size and letters[0] != _STATE:
            return 0, "a line before the first `state 0`"
        states = np.flatnonzero(letters == _STATE)
        ids = table.ints[0, states]
        expected = segment.first_state + np.arange(states.size)
        for i in np.flatnonzero((ids != expected) | (ids >= n_states))[:1].tolist():
            errors.append((int(states[i]), self._wrong_state(int(ids[i]), int(expected[i]))))
        end = segment.first_state + states.size
        if table.error is None:
            if segment.last and end < n_states:
                errors.append((letters.size, f"the file ends after {end} states, but announces {n_states}"))
            elif segment.next_state >= 0 and (segment.next_state != end or end >= n_states):
                errors.append((letters.size, self._wrong_state(segment.next_state, end)))
        if self._deterministic:
            owner = np.cumsum(letters == _STATE)
            actions = np.flatnonzero(letters == _ACTION)
            again = actions[1:][owner[actions[1:]] == owner[actions[:-1]]]
            for at in again[:1].tolist():
                errors.append((at, f"state {expected[owner[at] - 1]} of a DTMC has a second action"))
        return min(errors, key=lambda error: error[0]) if errors else None

    def _wrong_state(self, found: int, expected: int) -> str:
        if found < 0:
            return negative_state(found)
        if found == expected:
            return f"state {found} follows, but only {self.n_states} states are announced"
        if found < expected:
            return f"state {found} is defined again; states 0..{expected - 1} are defined above"
        return f"state {found} where state {expected} is expected: states are numbered 0, 1, 2, ... without gaps"

    def check_totals(self) -> None:
        """Compare the number of choices with the header; raises InputError at @nr_choices."""
        super().check_totals()
        rows, _, _, end = self._totals()
        if end == 0:
            raise error_at(self.file, self.size - 1, f"no state follows @model, but {self.n_states} are announced")
        incomplete = self.annotations.variables.incomplete(self.n_states or 0)
        if incomplete:
            self.left_out.add(VALUATIONS, incomplete)
        if self._n_choices is not None and rows != self._n_choices:
            raise error_at(self.file, self._choices_at, f"{self._n_choices} choices announced, {rows} are given")


def _first_lines(table: Table) -> IntArray:
    """Lines at which rows begin: those of actions, and of transitions right after a state."""
    opens = table.letters == _ACTION
    opens[1:] |= (table.letters[1:] == _TRANSITION) & (table.letters[:-1] == _STATE)
    return np.flatnonzero(opens)


def _raw(table: Table) -> RawRows:
    """Rows of a table; transitions right after a state line belong to an action without its own line."""
    letters, rows = table.letters, _first_lines(table)
    states = np.flatnonzero(letters == _STATE)
    transitions = np.flatnonzero(letters == _TRANSITION)
    moves = np.cumsum(letters == _TRANSITION) - (letters == _TRANSITION)
    state_rewards = table.floats[0, states]
    action_ptr = np.searchsorted(rows, np.append(states, letters.size)).astype(np.int64)
    own = np.where(letters[rows] == _ACTION, table.floats[0, rows], 0.0)
    return RawRows(
        action_ptr=action_ptr,
        successor_ptr=np.append(moves[rows], transitions.size).astype(np.int64),
        successors=table.ints[0, transitions],
        probabilities=table.floats[0, transitions],
        row_rewards=own + np.repeat(state_rewards, np.diff(action_ptr)),
        terminal_rewards=state_rewards,
        row_positions=table.offsets[rows],
        transition_positions=table.offsets[transitions],
    )


class DrnFormat:
    """Storm's DRN."""

    name = "drn"
    description = "Storm's DRN text (MDP or DTMC)"
    reward_options: tuple[str, ...] = ("rewards", "reward_model")

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the section @type comes first after // comments, or is near the top of a file *.drn."""
        lines = first_lines(head, b"//")
        near = lines if plain_name(source).lower().endswith(".drn") else lines[:1]
        return any(re.match(rb"@type[ \t]*:", line) for line in near)

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open a file and read its header.

        Raises InputError if it is not a regular file or text, not an MDP or DTMC of doubles, or several
        reward models could be meant.
        """
        if options.rewards is not None:
            raise InputError(source, "DRN holds its own rewards; choose among them by --reward-model, not --rewards")
        return _DrnSource(source, options)


DRN = DrnFormat()
