"""Format "umb": the unified Markov binary format that Storm, PRISM and the Modest toolset exchange.

A UMB file is a tar archive (plain, gzip or xz) of index.json and little-endian arrays over states, choices
(our rows) and branches (our transitions):

    state-to-choices.bin   uint64 [n+1]  choices of state s; absent: one choice per state
    choice-to-branches.bin uint64 [m+1]  branches of choice c; absent: one branch per choice
    branch-to-target.bin   uint64 [nnz]  successor           branch-to-probability.bin [nnz]  absent: all 1
    annotations/rewards/ID/{states,choices,branches}/values.bin   r(s), r(s,a), r(s,a,s')

    V(s) = r(s) + opt_a { r(s,a) + sum_s' p(s'|s,a) [ r(s,a,s') + gamma V(s') ] },  V(s) = r(s) if none.

Discrete-time models of one player (MDP) or none (DTMC) are read, fully observed, with doubles or rationals
(rounded to the nearest double). Initial states, labels, valuations and the names of actions are not kept.
Source: "Specification of the UMB Format", https://github.com/pmc-tools/umb, format version 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.arrays.pointer_stream import IdentityPointers, PointerStream, segments
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.files import open_file
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions, Source
from ooc_mdp.io.umb.archive import Member, NumberStream, RationalStream, is_archive, locate_members, read_member
from ooc_mdp.model.mdp import IntArray

__all__ = ["UMB", "UmbFormat"]

_MAX_INDEX = 64 << 20
_VERSIONS = (0, 1)
_STATES, _CHOICES = "state-to-choices.bin", "choice-to-branches.bin"
_TARGETS, _PROBABILITIES = "branch-to-target.bin", "branch-to-probability.bin"
_ENTITIES = ("states", "choices", "branches")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """How numbers of one file are stored."""

    rational: bool
    width: int
    """Bytes of one number."""

    def stream(self, member: Member) -> NumberStream | RationalStream:
        return RationalStream(member, self.width) if self.rational else NumberStream(member, "<f8")


@dataclass(frozen=True, slots=True)
class _Index:
    """The contents of index.json: the model and the chosen reward structure."""

    counts: dict[str, int]
    """Number of states, choices and branches."""
    players: int
    probabilities: _Numbers | None
    reward: str
    rewards: dict[str, _Numbers]
    """Which of states, choices and branches carry a reward."""

    def reward_file(self, entity: str) -> str:
        return f"annotations/rewards/{self.reward}/{entity}/values.bin"

    def expected_size(self, name: str) -> int | None:
        """Bytes that a member must have, None for members that are not read."""
        if name == _STATES:
            return 8 * (self.counts["states"] + 1)
        if name == _CHOICES:
            return 8 * (self.counts["choices"] + 1)
        if name == _TARGETS:
            return 8 * self.counts["branches"]
        if name == _PROBABILITIES and self.probabilities is not None:
            return self.probabilities.width * self.counts["branches"]
        for entity, numbers in self.rewards.items():
            if name == self.reward_file(entity):
                return numbers.width * self.counts[entity]
        return None


class _IndexReader:
    """Parses index.json into an _Index; raises InputError."""

    def __init__(self, path: str, text: bytes) -> None:
        self.path = path
        try:
            self.index = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"cannot be read as JSON: {error}") from None
        if not isinstance(self.index, dict):
            raise self.error("must be a JSON object")

    def error(self, message: str) -> InputError:
        return InputError(self.path, f"index.json: {message}")

    def section(self, parent: dict[str, Any], key: str) -> dict[str, Any]:
        value = parent.get(key, {})
        if not isinstance(value, dict):
            raise self.error(f"{key!r} must be an object")
        return value

    def count(self, parent: dict[str, Any], key: str, least: int = 0) -> int:
        value = parent.get(key)
        if type(value) is not int or not least <= value < 1 << 62:
            raise self.error(f"{key!r} is {value!r}; it must be a whole number from {least} on")
        return value

    def numbers(self, what: str, value: Any) -> _Numbers:
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "double" and value.get("size", 64) == 64:
            return _Numbers(False, 8)
        if kind == "rational":
            size = value.get("size", 128)
            if type(size) is int and size > 0 and size % 128 == 0:
                return _Numbers(True, size // 8)
        if isinstance(kind, str) and kind.endswith("-interval"):
            raise self.error(f"{what} are intervals ({kind}); only models with single values can be solved")
        raise self.error(f"{what} have type {value!r}; doubles and rationals are read")

    def read(self, reward_model: str | None) -> _Index:
        version = self.index.get("format-version")
        if version not in _VERSIONS or type(version) is not int:
            raise self.error(f"format-version is {version!r}; this reader knows 1")
        system = self.section(self.index, "transition-system")
        self.check_kind(system)
        kind = system.get("branch-probability-type")
        reward, rewards = self.chosen_reward(reward_model)
        return _Index(
            counts={
                "states": self.count(system, "#states", 1),
                "choices": self.count(system, "#choices"),
                "branches": self.count(system, "#branches"),
            },
            players=self.count(system, "#players"),
            probabilities=None if kind is None else self.numbers("probabilities", kind),
            reward=reward,
            rewards=rewards,
        )

    def check_kind(self, system: dict[str, Any]) -> None:
        time = system.get("time")
        if time != "discrete":
            raise self.error(f"time is {time!r}; only discrete-time models (MDP, DTMC) can be solved")
        players = self.count(system, "#players")
        if players > 1:
            raise self.error(f"the model is a game of {players} players; only MDPs and DTMCs can be solved")
        observations = system.get("#observations", 0)
        if observations != 0:
            raise self.error(
                f"the model is partially observed (#observations {observations!r}); only fully observed "
                "models can be solved"
            )

    def chosen_reward(self, wanted: str | None) -> tuple[str, dict[str, _Numbers]]:
        found = self.section(self.section(self.index, "annotations"), "rewards")
        names = {
            name: str(value.get("alias", name)) if isinstance(value, dict) else name for name, value in found.items()
        }
        shown = ", ".join(name if alias == name else f"{name} ({alias})" for name, alias in names.items())
        if not names:
            raise self.error("the model has no rewards; export it with a reward structure")
        if wanted is None:
            if len(names) > 1:
                raise self.error(f"there are {len(names)} reward structures; choose one with --reward-model: {shown}")
            chosen = next(iter(names))
        else:
            matches = [name for name in names if name == wanted] or [n for n, a in names.items() if a == wanted]
            if not matches:
                raise self.error(f"there is no reward structure {wanted!r}; there are: {shown}")
            chosen = matches[0]
        return chosen, self.reward_files(chosen, found[chosen])

    def reward_files(self, name: str, reward: Any) -> dict[str, _Numbers]:
        places = reward.get("applies-to") if isinstance(reward, dict) else None
        if not isinstance(places, list) or not places or any(place not in _ENTITIES for place in places):
            raise self.error(
                f"reward structure {name!r} applies to {places!r}; it must list some of states, choices, branches"
            )
        if "probability-type" in reward:
            raise self.error(f"reward structure {name!r} is stochastic; only expected rewards are read")
        numbers = self.numbers(f"the values of reward structure {name!r}", reward.get("type"))
        return dict.fromkeys(places, numbers)


class _Streams:
    """All arrays at their beginning."""

    def __init__(self, path: str, index: _Index, members: dict[str, Member]) -> None:
        n, m, nnz = (index.counts[entity] for entity in _ENTITIES)
        self.states = PointerStream(path, _pointers(members, _STATES, n), m, "choices")
        self.rows = PointerStream(path, _pointers(members, _CHOICES, m), nnz, "branches")
        self.targets = NumberStream(members[_TARGETS], "<u8")
        self.probabilities = (
            index.probabilities.stream(members[_PROBABILITIES]) if index.probabilities is not None else None
        )
        self.rewards = {
            entity: numbers.stream(members[index.reward_file(entity)]) for entity, numbers in index.rewards.items()
        }


def _pointers(members: dict[str, Member], name: str, count: int) -> NumberStream | IdentityPointers:
    return NumberStream(members[name], "<u8") if name in members else IdentityPointers(name, count + 1)


class _UmbSource:
    """An open UMB file."""

    format = "umb"

    def __init__(self, path: str, options: ReadOptions) -> None:
        self.path = path
        self._options = options
        text = read_member(path, "index.json", _MAX_INDEX)
        if text is None:
            raise InputError(path, "index.json is missing; a UMB file is a tar archive with index.json")
        self._index = _IndexReader(path, text).read(options.reward_model)
        self.n_states: int | None = self._index.counts["states"]
        self._files = ExitStack()
        try:
            file = self._files.enter_context(open_file(path))
            self._members = locate_members(
                path, file, self._index.expected_size, lambda copy: self._files.callback(copy.close)
            )
            self._check_members()
        except BaseException:
            self._files.close()
            raise

    def _check_members(self) -> None:
        index, counts = self._index, self._index.counts
        wanted = [_TARGETS, *(index.reward_file(entity) for entity in index.rewards)]
        if index.probabilities is not None:
            wanted.append(_PROBABILITIES)
        for name in wanted:
            if name not in self._members:
                raise InputError(self.path, f"{name} is missing, though index.json speaks of it; export it again")
        for name, source, target in ((_STATES, "states", "choices"), (_CHOICES, "choices", "branches")):
            if name not in self._members and counts[source] != counts[target]:
                raise InputError(
                    self.path,
                    f"{name} is missing, which means one of the {target} for each of the {source}, "
                    f"but there are {counts[target]} {target} and {counts[source]} {source}",
                )

    def blocks(self) -> Iterator[BlockReader]:
        """Readers of blocks of about options.segment_bytes: arrays are read here, in order, rows are checked there."""
        streams = _Streams(self.path, self._index, self._members)
        for first, states, rows in segments(streams.states, streams.rows, self._options.segment_bytes):
            yield partial(
                check_block,
                self.path,
                first,
                self._read_block(streams, first, states, rows),
                n_states=self._index.counts["states"],
                normalize=self._options.normalize,
            )

    def _read_block(self, streams: _Streams, first: int, states: IntArray, rows: IntArray) -> RawRows:
        choices = np.diff(states)
        if self._index.players == 0 and choices.max(initial=0) > 1:
            state = int(np.argmax(choices))
            raise InputError(
                self.path,
                f"{_STATES}: state {first + state} has {choices[state]} choices, but index.json says 0 players",
            )
        n, m, nnz = states.size - 1, rows.size - 1, int(rows[-1] - rows[0])
        rewards = {
            entity: streams.rewards[entity].read_floats(count)
            for entity, count in (("states", n), ("choices", m), ("branches", nnz))
            if entity in streams.rewards
        }
        choice_rewards = rewards.get("choices")
        state_rewards = rewards.get("states")
        if state_rewards is not None:
            paid = np.repeat(state_rewards, choices)
            choice_rewards = paid if choice_rewards is None else paid + choice_rewards
        return RawRows(
            action_ptr=states - states[0],
            successor_ptr=rows - rows[0],
            successors=streams.targets.read(nnz),
            probabilities=streams.probabilities.read_floats(nnz) if streams.probabilities else np.ones(nnz),
            row_rewards=choice_rewards,
            transition_rewards=rewards.get("branches"),
            terminal_rewards=state_rewards,
        )

    def check_totals(self) -> None:
        """Do nothing: every size was compared with index.json when the file was opened."""

    def close(self) -> None:
        """Close the archive and its temporary files."""
        self._files.close()


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
