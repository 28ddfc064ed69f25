"""Format "umb": the unified Markov binary format that Storm, PRISM and the Modest toolset exchange.

A UMB file is a tar archive (plain, gzip or xz) of index.json and little-endian arrays over states, choices
(our rows) and branches (our transitions):

    state-to-choices.bin   uint64 [n+1]  choices of state s; absent: one choice per state
    choice-to-branches.bin uint64 [m+1]  branches of choice c; absent: one branch per choice
    branch-to-target.bin   uint64 [nnz]  successor           branch-to-probability.bin [nnz]  absent: all 1
    annotations/rewards/ID/{states,choices,branches}/values.bin   r(s), r(s,a), r(s,a,s')

    V(s) = r(s) + opt_a { r(s,a) + sum_s' p(s'|s,a) [ r(s,a,s') + gamma V(s') ] },  V(s) = r(s) if none.

Discrete-time models of one player (MDP) or none (DTMC) are read, fully observed, with doubles or rationals
(rounded to the nearest double). Targets or rewards that are absent are 0 everywhere. Labels and variables of states,
the initial states (label "init"), all reward structures and the names of the choices' actions are kept; valuations of
choices and branches, their labels and actions of branches are not. Every other member is read or refused by name.
Source: "Specification of the UMB Format", https://github.com/pmc-tools/umb, format version 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io import left_out
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.arrays.pointer_stream import IdentityPointers, PointerStream, segments
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.files import open_file
from ooc_mdp.io.left_out import ACTION_NAMES, LeftOut
from ooc_mdp.io.raw_rows import RawRewards, RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions, Source
from ooc_mdp.io.umb.archive import Member, NumberStream, is_archive, locate_members, read_member
from ooc_mdp.io.umb.index import (
    ACTIONS,
    CHOICES,
    ENTITIES,
    INITIAL_STATES,
    PLAYERS,
    PROBABILITIES,
    STATES,
    TARGETS,
    Index,
    read_index,
)
from ooc_mdp.io.umb.strings import MAPPING, STRINGS, read_strings
from ooc_mdp.io.umb.valuations import CLASSES_FILE, VALUATIONS, VALUATIONS_FILE
from ooc_mdp.model.annotations import INITIAL
from ooc_mdp.model.mdp import IntArray

__all__ = ["UMB", "UmbFormat"]

_MAX_INDEX = 64 << 20
_PIECE = 1 << 20


class _Streams:
    """All arrays at their beginning."""

    def __init__(self, path: str, index: Index, members: dict[str, Member], names: IntArray | None) -> None:
        n, m, nnz = (index.counts[entity] for entity in ENTITIES)
        self.states = PointerStream(path, _pointers(members, STATES, n), m, "choices")
        self.rows = PointerStream(path, _pointers(members, CHOICES, m), nnz, "branches")
        self.targets = NumberStream(members[TARGETS], "<u8") if TARGETS in members else None
        """None: every target is 0."""
        self.probabilities = None
        """None: every probability is 1."""
        if index.probabilities is not None and PROBABILITIES in members:
            self.probabilities = index.probabilities.stream(members[PROBABILITIES])
        self.rewards = {
            (structure, entity): numbers.stream(members[index.reward_file(structure, entity)])
            for structure, places in index.rewards.items()
            for entity, numbers in places.items()
            if index.reward_file(structure, entity) in members
        }
        self._names = names
        """Numbers of the names of the choices' actions; None without names."""
        values = members.get(f"{ACTIONS}values.bin")
        self._actions = None if values is None else NumberStream(values, "<u4")
        """None: every choice has action 0."""

    def named_actions(self, path: str, first: int, count: int) -> IntArray | None:
        """Numbers of the names of the next choices, the first of which is given; None without names."""
        if self._names is None:
            return None
        if self._actions is None:
            return np.full(count, self._names[0])
        actions = self._actions.read(count)
        beyond = np.flatnonzero(actions >= self._names.size)
        if beyond.size:
            choice, action = first + int(beyond[0]), actions[beyond[0]]
            what = f"choice {choice} has the action {action}; index.json announces {self._names.size}"
            raise InputError(path, f"{self._actions.name}: {what}")
        return self._names[actions]


def _pointers(members: dict[str, Member], name: str, count: int) -> NumberStream | IdentityPointers:
    return NumberStream(members[name], "<u8") if name in members else IdentityPointers(name, count + 1)


class _UmbSource:
    """An open UMB file."""

    format = "umb"

    def __init__(self, path: str, options: ReadOptions) -> None:
        self.path = path
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self._options = options
        text = read_member(path, "index.json", _MAX_INDEX)
        if text is None:
            raise InputError(path, "index.json is missing; a UMB file is a tar archive with index.json")
        self._index = read_index(path, text, options.reward_model)
        self.n_states: int | None = self._index.counts["states"]
        for kind, names in self._index.annotations.items():
            self.left_out.add(kind, names)
        others = [name for name in self._index.names if name != self._index.reward]
        self.annotations.reward_models = tuple(self._index.names[name] for name in others)
        self.annotations.rewards_chosen = self._index.reward is not None or not others
        if self._index.reward is not None:
            self.annotations.table_rewards = self._index.names[self._index.reward]
        self._files = ExitStack()
        try:
            file = self._files.enter_context(open_file(path))
            self._members = locate_members(
                path, file, self._expected_size, lambda copy: self._files.callback(copy.close)
            )
            self._check_members()
        except BaseException:
            self._files.close()
            raise

    def _expected_size(self, name: str) -> int | None:
        size = self._index.expected_size(name)
        kind = self._index.kind_left_out(name)
        if size is None and kind is not None:
            self.left_out.add(kind)
        return size

    def _check_members(self) -> None:
        index, counts = self._index, self._index.counts
        if index.probabilities is not None and counts["branches"] and PROBABILITIES not in self._members:
            raise InputError(
                self.path, f"{PROBABILITIES} is missing, though index.json gives its type; export it again"
            )
        if index.records.fields and VALUATIONS_FILE not in self._members:
            raise InputError(
                self.path, f"{VALUATIONS_FILE} is missing, though index.json describes it; export it again"
            )
        if PLAYERS in self._members:
            member = self._members[PLAYERS]
            for start in range(0, member.size, _PIECE):
                if any(member.read(start, min(_PIECE, member.size - start))):
                    raise InputError(self.path, f"{PLAYERS} gives states to a second player; only MDPs can be solved")
        for name, source, target in ((STATES, "states", "choices"), (CHOICES, "choices", "branches")):
            if name not in self._members and counts[source] != counts[target]:
                raise InputError(
                    self.path,
                    f"{name} is missing, which means one of the {target} for each of the {source}, "
                    f"but there are {counts[target]} {target} and {counts[source]} {source}",
                )

    def blocks(self) -> Iterator[BlockReader]:
        """Readers of blocks of about options.segment_bytes: arrays are read here, in order, rows are checked there."""
        streams = _Streams(self.path, self._index, self._members, self._numbered_names())
        for first, states, rows in segments(streams.states, streams.rows, self._options.segment_bytes):
            yield partial(
                check_block,
                self.path,
                first,
                self._read_block(streams, first, states, rows),
                n_states=self._index.counts["states"],
                normalize=self._options.normalize,
            )

    def _numbered_names(self) -> IntArray | None:
        """Numbers of the names of the choices' actions; None without names."""
        mapping = self._members.get(ACTIONS + MAPPING)
        if mapping is None:
            if f"{ACTIONS}values.bin" in self._members:
                self.left_out.add(ACTION_NAMES)
            return None
        return self.annotations.number_actions(read_strings(mapping, self._members.get(ACTIONS + STRINGS)))

    def _read_block(self, streams: _Streams, first: int, states: IntArray, rows: IntArray) -> RawRows:
        choices = np.diff(states)
        if self._index.players == 0 and choices.max(initial=0) > 1:
            state = int(np.argmax(choices))
            raise InputError(
                self.path,
                f"{STATES}: state {first + state} has {choices[state]} choices, but index.json says 0 players",
            )
        n, m, nnz = states.size - 1, rows.size - 1, int(rows[-1] - rows[0])
        models = {
            name: _rewards_of(streams, name, {"states": n, "choices": m, "branches": nnz}, choices)
            for name in self._index.names
        }
        own = RawRewards() if self._index.reward is None else models.pop(self._index.reward)
        return RawRows(
            action_ptr=states - states[0],
            successor_ptr=rows - rows[0],
            successors=streams.targets.read(nnz) if streams.targets else np.zeros(nnz, np.int64),
            probabilities=streams.probabilities.read_floats(nnz) if streams.probabilities else np.ones(nnz),
            row_rewards=own.row_rewards,
            transition_rewards=own.transition_rewards,
            terminal_rewards=own.terminal_rewards,
            action_names=streams.named_actions(self.path, int(states[0]), m),
            reward_models={self._index.names[name]: model for name, model in models.items()},
        )

    def check_totals(self) -> None:
        """Read labels and variables; every size was compared with index.json when the file was opened."""
        index = self._index
        files = {name: index.label_file(label) for label, name in index.labels.items()}
        files.setdefault(INITIAL, INITIAL_STATES)
        n = index.counts["states"]
        for name, file in files.items():
            if file in self._members:
                bits = np.frombuffer(self._members[file].read(0, -(-n // 8)), np.uint8)
                self.annotations.set_bits(name, bits)
        if VALUATIONS_FILE in self._members:
            self._keep_variables(n)

    def _keep_variables(self, n_states: int) -> None:
        """Read the records of states."""
        records, members, texts = self._index.records, self._members, list[str]()
        if records.strings:
            mapping = members.get(VALUATIONS + MAPPING)
            if mapping is None:
                raise InputError(self.path, f"{VALUATIONS}{MAPPING} is missing, though index.json announces texts")
            texts = read_strings(mapping, members.get(VALUATIONS + STRINGS))
        for first, values in records.blocks(members[VALUATIONS_FILE], members.get(CLASSES_FILE), n_states, texts):
            self.annotations.variables.put(self.path, first, values)
        dropped = self.annotations.variables.incomplete(n_states)
        if dropped:
            self.left_out.add(left_out.VALUATIONS, dropped)

    def close(self) -> None:
        """Close the archive and its temporary files."""
        self._files.close()


def _rewards_of(streams: _Streams, structure: str, counts: dict[str, int], choices: IntArray) -> RawRewards:
    """The next rewards of one structure, for so many states, choices and branches."""
    rewards = {
        entity: streams.rewards[structure, entity].read_floats(count)
        for entity, count in counts.items()
        if (structure, entity) in streams.rewards
    }
    of_states, of_choices = rewards.get("states"), rewards.get("choices")
    if of_states is not None:
        paid = np.repeat(of_states, choices)
        of_choices = paid if of_choices is None else paid + of_choices
    return RawRewards(of_choices, rewards.get("branches"), of_states)


class UmbFormat:
    """Format "umb": unified Markov binary."""

    name = "umb"
    description = "unified Markov binary (.umb) as Storm and PRISM write it; MDP and DTMC"
    reward_options: tuple[str, ...] = ("reward_model",)

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the file is tar, gzip or xz, as no other format is."""
        return is_archive(head)

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open the archive and compare all sizes; raises InputError."""
        return _UmbSource(source, options)


UMB = UmbFormat()
