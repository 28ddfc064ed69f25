"""Storm's DRN text, for MDPs and DTMCs with double values.

    @type: MDP                    state 0 [r(s)] init
    @reward_models                    action 0 [r(s,a)]
    steps                                 1 : 0.5
    @nr_states                            2 : 0.5
    3                             state 1 [0]
    @model                        ...

A DTMC has one action per state. Rewards are r(s) + r(s,a) of one reward model: the only one, or the one that
--reward-model names; a missing [..] is 0, as in Storm. A state without action is terminal. Labels and action
names are dropped. CTMCs, Markov automata, POMDPs, games, parameters, placeholders, intervals and rationals
are errors. Source: Storm's DirectEncodingParser and DirectEncodingExporter, stormchecker.org.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import ReadOptions, Source
from ooc_mdp.io.storm.drn_lines import parse_drn
from ooc_mdp.io.text.errors import Field, diagnose_fields, encoding_error, error_at, negative_state, number_error
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

__all__ = ["DRN", "DrnFormat"]

_STATE, _ACTION, _TRANSITION = b"sat"
_ID = Field("state id", True)
_REWARD = Field("reward", False)
_TARGET = (Field("successor", True), Field("probability", False))
_REFUSED = {
    "ctmc": "a CTMC (rates in continuous time); uniformise it, or export a DTMC or an MDP",
    "markov automaton": "a Markov automaton (continuous time); export an MDP",
    "ma": "a Markov automaton (continuous time); export an MDP",
    "pomdp": "a POMDP; states must be observable: export its underlying MDP",
    "smg": "a stochastic game; only one player is solved for",
    "s2pg": "a stochastic game; only one player is solved for",
}
_MIN_STATE = len("state 0\n")


@dataclass(slots=True)
class _Header:
    kind: str | None = None
    value_type: str = "double"
    rewards: list[str] = field(default_factory=list)
    n_states: int | None = None
    n_choices: int | None = None
    seen: dict[str, int] = field(default_factory=dict)


def _header_lines(path: str, begin: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield the offset of a line, the offset of the next, and its text; raises InputError where it is not text."""
    for offset, buffer in iter_lines(path, begin, end, 1 << 16):
        at = offset
        for raw in buffer.tobytes().split(b"\n")[:-1]:
            error = encoding_error(raw)
            if error is not None:
                raise error_at(path, at, error)
            yield at, at + len(raw) + 1, raw.decode("utf-8").strip()
            at += len(raw) + 1


def _count(path: str, offset: int, text: str, name: str) -> int:
    error = number_error(text, Field(name, True))
    if error is None and int(text) < 1:
        error = f"{name} {text} is not positive"
    if error is not None:
        raise error_at(path, offset, error)
    return int(text)


def _read_header(path: str, begin: int, end: int) -> tuple[_Header, int, int]:
    """The sections before @model, the offset after that line, and the offset of @nr_states."""
    header = _Header()
    section = ""
    nr_states_at = begin
    for at, behind, text in _header_lines(path, begin, end):
        if section == "@placeholders" and text.startswith("$"):
            raise error_at(path, at, "placeholders are not read; export the model without them")
        if section in ("@parameters", "@reward_models", "@nr_states", "@nr_choices") and not text.startswith("@"):
            if section == "@parameters" and text:
                raise error_at(path, at, f"the model has parameters ({text[:40]}); instantiate them first")
            if section == "@reward_models":
                header.rewards = text.split()
            if section == "@nr_states":
                header.n_states, nr_states_at = _count(path, at, text, "number of states"), at
            if section == "@nr_choices":
                header.n_choices = _count(path, at, text, "number of choices")
            section = ""
            continue
        if not text or text.startswith("//"):
            continue
        name, _, value = text.partition(":")
        if name in header.seen:
            raise error_at(path, at, f"{name} is declared twice")
        header.seen[name] = at
        section = name
        if name == "@model":
            return header, behind, nr_states_at
        if name == "@type":
            header.kind = value.strip()
            _check_kind(path, at, header.kind)
        elif name == "@value_type":
            if value.strip() != "double":
                raise error_at(path, at, f"values of type {value.strip()!r}; only double is read: export with doubles")
        elif name not in ("@parameters", "@placeholders", "@reward_models", "@nr_states", "@nr_choices"):
            raise error_at(path, at, f"{text[:40]!r} is no section of a DRN header; is @model missing?")
    raise error_at(path, end - 1, "the file ends before @model; its header is incomplete")


def _check_kind(path: str, at: int, kind: str) -> None:
    if kind.lower() in ("mdp", "dtmc"):
        return
    why = _REFUSED.get(kind.lower(), f"a model of type {kind[:40]!r}")
    raise error_at(path, at, f"this is {why}; MDP and DTMC are read")


def _diagnose(raw: bytes, wanted: int) -> str:
    error = encoding_error(raw)
    if error is not None:
        return error
    text = raw.decode("utf-8").strip(" \t\r")
    word, _, rest = text.partition(" ")
    if word not in ("state", "action"):
        return diagnose_fields([part.strip(" \t") for part in text.split(":")], _TARGET, "a line")
    name, _, rest = rest.strip(" \t").partition(" ")
    if not name:
        return f"{word} without {'an id' if word == 'state' else 'a name'}"
    error = number_error(name, _ID) if word == "state" else None
    if error is not None:
        return error
    rest = rest.strip(" \t")
    if rest[:1] in ("!", "{"):
        what = "an exit rate" if rest[0] == "!" else "an observation"
        return f"{what} ({rest[:20]!r}) is not part of an MDP"
    if not rest.startswith("["):
        return f"{rest[:20]!r} after the action's name; [rewards] are expected, and names have no blanks"
    if "]" not in rest:
        return "the list of rewards has no closing bracket"
    rewards = rest[1 : rest.index("]")].split(",")
    for reward in rewards:
        error = number_error(reward.strip(" \t"), _REWARD)
        if error is not None:
            return error
    if len(rewards) <= wanted:
        return f"{len(rewards)} rewards; reward model {wanted + 1} needs more"
    return f"{rest[rest.index(']') + 1 :][:20].strip()!r} after the rewards"


class _DrnSource(TextSource):
    format = "drn"
    marker = _STATE

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        header, self.begin, nr_states_at = _read_header(path, self.begin, self.size)
        if header.kind is None:
            raise error_at(path, self.begin - 1, "the header has no @type")
        if header.n_states is None:
            raise error_at(path, self.begin - 1, "the header has no @nr_states")
        room = -(-(self.size - self.begin) // _MIN_STATE)
        if header.n_states > room:
            why = f"{header.n_states} states announced, but the file has room for {room} at most"
            raise error_at(path, nr_states_at, why)
        self.n_states = header.n_states
        self._n_choices = header.n_choices
        self._choices_at = header.seen.get("@nr_choices", 0)
        self._deterministic = header.kind.lower() == "dtmc"
        self._wanted = self._reward_index(header.rewards, header.seen.get("@reward_models", 0))

    def _reward_index(self, names: list[str], at: int) -> int:
        """Position of the reward model to read; -1 without any."""
        name = self._options.reward_model
        listed = ", ".join(names)
        if name is not None:
            if name not in names:
                raise error_at(self.path, at, f"there is no reward model {name!r}; there are: {listed or 'none'}")
            return names.index(name)
        if len(names) > 1:
            raise error_at(self.path, at, f"several reward models; choose one by --reward-model: {listed}")
        return 0 if names else -1

    def _rows(self, segment: TextSegment) -> tuple[RawRows, InputError | None]:
        wanted = self._wanted

        def kernel(buf, pos, end, count, letters, ints, floats, offsets, slow):  # type: ignore[no-untyped-def]
            return parse_drn(buf, pos, end, wanted, count, letters, ints, floats, offsets, slow)

        buffer = read_bytes(self.path, segment.begin, segment.end)
        diagnose = lambda raw: _diagnose(raw, wanted)  # noqa: E731
        table = read_table(self.path, segment.begin, buffer, (1, 1), kernel, diagnose)
        malformed = table.error is not None
        found = self._order_error(table, segment)
        if found is not None:
            index, why = found
            if index < table.offsets.size:
                offset = int(table.offsets[index])
            elif segment.last:
                offset = int(table.offsets[-1]) if table.offsets.size else self.size - 1
            else:
                offset = segment.end
            table = truncate_table(table, index, error_at(self.path, offset, why))
            malformed = False
        raw = _raw(table)
        if malformed and raw.successor_ptr.size > 1:
            raw = truncate_rows(raw, raw.successor_ptr.size - 2)
        return raw, table.error

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
            raise error_at(self.path, self.size - 1, f"no state follows @model, but {self.n_states} are announced")
        if self._n_choices is not None and rows != self._n_choices:
            raise error_at(self.path, self._choices_at, f"{self._n_choices} choices announced, {rows} are given")


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
        near = lines if source.lower().endswith(".drn") else lines[:1]
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
