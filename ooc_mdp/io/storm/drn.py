"""Storm's DRN text, for MDPs and DTMCs with double or rational values.

    @type: MDP                    state 0 [r(s)] init
    @reward_models                    action 0 [r(s,a)]
    steps                                 1 : 0.5
    @nr_states                            2 : 0.5
    3                             state 1 [0]
    @model                        ...

A DTMC has one action per state. Rewards are r(s) + r(s,a) of one reward model: the only one, which may have no name, or
the one that --reward-model names; a missing [..] is 0, as in Storm. Others are kept by name, as labels are, and
variables that comments have. A state without action is terminal. Names of actions are left out; an exit rate `!2.5` or
an observation `{3}` in the place of the rewards is an error. CTMCs, Markov automata, POMDPs, games, parameters,
placeholders and intervals are errors.
Source: Storm's DirectEncodingParser and DirectEncodingExporter, stormchecker.org.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.compressed import plain_name
from ooc_mdp.io.foreign import model_kind
from ooc_mdp.io.left_out import ACTION_NAMES, VALUATIONS
from ooc_mdp.io.raw_rows import RawRewards, RawRows
from ooc_mdp.io.source import ReadOptions, Source
from ooc_mdp.io.storm.drn_lines import parse_drn
from ooc_mdp.io.storm.valuations import commented_values
from ooc_mdp.io.text.errors import (
    INTERVALS,
    Field,
    diagnose_fields,
    encoding_error,
    error_at,
    negative_state,
    number_error,
)
from ooc_mdp.io.text.file import Bytes, TextFile
from ooc_mdp.io.text.source import (
    Table,
    TextSegment,
    TextSource,
    first_lines,
    iter_lines,
    read_bytes,
    read_table,
    truncate_rows,
    truncate_table,
)
from ooc_mdp.io.text.words import no_words, texts_of
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


@dataclass(slots=True)
class _Header:
    kind: str | None = None
    value_type: str = "double"
    rewards: list[str] = field(default_factory=list)
    n_states: int | None = None
    n_choices: int | None = None
    seen: dict[str, int] = field(default_factory=dict)


def _header_lines(file: TextFile, begin: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield the offset of a line, the offset of the next, and its text; raises InputError where it is not text."""
    for offset, buffer in iter_lines(file, begin, end, 1 << 16):
        at = offset
        for raw in buffer.tobytes().split(b"\n")[:-1]:
            error = encoding_error(raw)
            if error is not None:
                raise error_at(file, at, error)
            yield at, at + len(raw) + 1, raw.decode("utf-8").strip()
            at += len(raw) + 1


def _count(file: TextFile, offset: int, text: str, name: str) -> int:
    error = number_error(text, Field(name, True))
    if error is None and int(text) < 1:
        error = f"{name} {text} is not positive"
    if error is not None:
        raise error_at(file, offset, error)
    return int(text)


def _read_header(file: TextFile, begin: int, end: int) -> tuple[_Header, int, int]:
    """The sections before @model, the offset after that line, and the offset of @nr_states."""
    header = _Header()
    section = ""
    nr_states_at = begin
    for at, behind, text in _header_lines(file, begin, end):
        if section == "@placeholders" and text.startswith("$"):
            raise error_at(file, at, "placeholders are not read; export the model without them")
        if section in ("@parameters", "@reward_models", "@nr_states", "@nr_choices") and not text.startswith("@"):
            if section == "@parameters" and text:
                raise error_at(file, at, f"the model has parameters ({quote(text)}); instantiate them first")
            if section == "@reward_models":
                header.rewards = text.split()
            if section == "@nr_states":
                header.n_states, nr_states_at = _count(file, at, text, "number of states"), at
            if section == "@nr_choices":
                header.n_choices = _count(file, at, text, "number of choices")
            section = ""
            continue
        if not text or text.startswith("//"):
            continue
        name, _, value = text.partition(":")
        if name in header.seen:
            raise error_at(file, at, f"{name} is declared twice")
        header.seen[name] = at
        section = name
        if name == "@model":
            return header, behind, nr_states_at
        if name == "@type":
            header.kind = value.strip()
            _check_kind(file, at, header.kind)
        elif name == "@value_type":
            _check_value_type(file, at, value.strip())
        elif name not in ("@parameters", "@placeholders", "@reward_models", "@nr_states", "@nr_choices"):
            raise error_at(file, at, f"{quote(text)} is no section of a DRN header; is @model missing?")
    raise error_at(file, end - 1, "the file ends before @model; its header is incomplete")


def _check_value_type(file: TextFile, at: int, kind: str) -> None:
    if kind in ("double", "rational"):
        return
    why = f"values of type {quote(kind)}; double and rational are read"
    if "interval" in kind.lower():
        why = f"an interval model (values of type {quote(kind)}); {INTERVALS}"
    raise error_at(file, at, why)


def _check_kind(file: TextFile, at: int, kind: str) -> None:
    if kind.lower() in ("mdp", "dtmc"):
        return
    why = model_kind(kind) or f"a model of type {quote(kind)}"
    raise error_at(file, at, f"this is {why}; MDP and DTMC are read")


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
        header, self.begin, nr_states_at = _read_header(self.file, self.begin, self.size)
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
        labels, names = np.zeros((int(np.count_nonzero(buffer == 10)), 2), np.int64), no_words()
        table = self._parse(segment, buffer, self._lists[0], labels, names)
        malformed = table.error is not None
        actions = [text for text in texts_of(buffer, names) if text != _NO_NAME]
        if actions:
            self.left_out.add(ACTION_NAMES, actions)
        self._mark_labels(table, buffer, labels)
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
        others = {name: self._parse(segment, buffer, i, labels, no_words()) for i, name in self._others}
        for other in others.values():
            if other.error is not None and other.letters.size < table.letters.size:
                table, malformed = truncate_table(table, other.letters.size, other.error), True
        models = {name: _raw(truncate_table(t, table.letters.size, None)) for name, t in others.items()}
        raw = replace(
            _raw(table),
            reward_models={n: RawRewards(each.row_rewards, None, each.terminal_rewards) for n, each in models.items()},
        )
        if malformed and raw.successor_ptr.size > 1:
            raw = truncate_rows(raw, raw.successor_ptr.size - 2)
        return raw, table.error

    def _parse(self, segment: TextSegment, buffer: Bytes, wanted: int, labels: IntArray, names: IntArray) -> Table:
        """The lines of a segment with the rewards of one reward model; labels and names as `parse_drn` takes them."""
        lists, words = (wanted, self._lists[1]), (labels, names)

        def kernel(buf, pos, end, count, letters, ints, floats, offsets, slow):  # type: ignore[no-untyped-def]
            return parse_drn(buf, pos, end, lists, words, count, (letters, ints, floats, offsets), slow)

        return read_table(self.file, segment.begin, buffer, (1, 1), kernel, partial(_diagnose, n_rewards=lists[1]))

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


def _raw(table: Table) -> RawRows:
    """Rows of a table; transitions right after a state line belong to an action without its own line."""
    letters = table.letters
    opens = letters == _ACTION
    opens[1:] |= (letters[1:] == _TRANSITION) & (letters[:-1] == _STATE)
    states = np.flatnonzero(letters == _STATE)
    rows = np.flatnonzero(opens)
    transitions = np.flatnonzero(letters == _TRANSITION)
    total = np.append(np.cumsum(opens), opens.sum())
    moves = np.cumsum(letters == _TRANSITION) - (letters == _TRANSITION)
    state_rewards = table.floats[0, states]
    action_ptr = total[np.append(states, letters.size)].astype(np.int64)
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
