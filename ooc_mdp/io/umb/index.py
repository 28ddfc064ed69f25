"""index.json of a UMB archive: the model that it announces, and which members hold it.

Keys that the format does not define are errors, as are members that the index does not announce: what they say would be
left out of the model. This module reads no array.
Source: "Specification of the UMB Format", https://github.com/pmc-tools/umb, format version 1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooc_mdp.errors import InputError
from ooc_mdp.io import left_out
from ooc_mdp.io.annotations import MOST_ACTION_NAMES
from ooc_mdp.io.left_out import ACTION_NAMES, LABELS, REWARD_STRUCTURES
from ooc_mdp.io.umb.archive import ANY_SIZE, Member, NumberStream, RationalStream
from ooc_mdp.io.umb.strings import MAPPING, STRINGS
from ooc_mdp.io.umb.valuations import CLASSES_FILE, VALUATIONS, VALUATIONS_FILE, StateRecords, no_records, read_records
from ooc_mdp.quoting import printable, quote, shorten

__all__ = [
    "ACTIONS",
    "CHOICES",
    "ENTITIES",
    "INITIAL_STATES",
    "PLAYERS",
    "PROBABILITIES",
    "STATES",
    "TARGETS",
    "Index",
    "read_index",
]

STATES, CHOICES, PLAYERS = "state-to-choices.bin", "choice-to-branches.bin", "state-to-player.bin"
INITIAL_STATES, ACTIONS = "state-is-initial.bin", "actions/choices/"
TARGETS, PROBABILITIES = "branch-to-target.bin", "branch-to-probability.bin"
ENTITIES = ("states", "choices", "branches")
_VERSIONS = (0, 1)
_INDEX = "index.json"
_FOLDERS = {"actions/": ACTION_NAMES, "valuations/": left_out.VALUATIONS}
"""What members of these folders have."""
_GROUPS = {"aps": LABELS, "rewards": REWARD_STRUCTURES}
_BIT = {"type": "bool", "size": 1}
_WORD = 64
"""Bits of states are padded to words of so many."""
_TOP_KEYS = (
    "format-version",
    "format-revision",
    "model-data",
    "file-data",
    "transition-system",
    "annotations",
    "valuations",
)
_SYSTEM_KEYS = (
    "time",
    "#players",
    "#states",
    "#initial-states",
    "#choices",
    "#choice-actions",
    "#branches",
    "#branch-actions",
    "#observations",
    "observations-apply-to",
    "branch-probability-type",
    "exit-rate-type",
    "observation-probability-type",
    "player-names",
)
_REWARD_KEYS = ("alias", "description", "applies-to", "type", "lower", "upper")


@dataclass(frozen=True, slots=True)
class Numbers:
    """How numbers of one file are stored."""

    rational: bool
    width: int
    """Bytes of one number."""

    def stream(self, member: Member) -> NumberStream | RationalStream:
        """The numbers of a member, at their beginning."""
        return RationalStream(member, self.width) if self.rational else NumberStream(member, "<f8")


@dataclass(frozen=True, slots=True)
class Index:
    """The contents of index.json: the model, its reward structures and labels."""

    path: str
    counts: dict[str, int]
    """Number of states, choices and branches."""
    actions: int
    """Number of actions of choices whose names are read; 0 where there are none, or more than a store keeps."""
    players: int
    probabilities: Numbers | None
    reward: str | None
    """Identifier of the reward structure that is the table's; None where there is none, or none of several."""
    rewards: dict[str, dict[str, Numbers]]
    """By identifier of a reward structure, which of states, choices and branches carry a reward."""
    names: dict[str, str]
    """What each reward structure is called."""
    labels: dict[str, str]
    """By identifier of a label of states, what it is called."""
    records: StateRecords
    """Where the variables of states are."""
    annotations: dict[str, tuple[str, ...]]
    """What is announced and not read, by its kind (`ooc_mdp.io.left_out`)."""
    other_folders: tuple[str, ...]
    """The folders of these annotations."""

    @staticmethod
    def reward_file(structure: str, entity: str) -> str:
        """Name of the member with a structure's rewards of states, choices or branches."""
        return f"annotations/rewards/{structure}/{entity}/values.bin"

    @staticmethod
    def label_file(label: str) -> str:
        """Name of the member with the states of a label."""
        return f"annotations/aps/{label}/states/values.bin"

    def kind_left_out(self, name: str) -> str | None:
        """What a member without an expected size has (`ooc_mdp.io.left_out`), where no annotation announces it."""
        folders = [kind for folder, kind in _FOLDERS.items() if name.startswith(folder)]
        return next(iter(folders), None)

    def expected_size(self, name: str) -> int | None:
        """Bytes that a member must have, None for members that change no value.

        Raises
        ------
        InputError : the member is none that UMB defines for such a model, or index.json does not announce it.
        """
        counts = self.counts
        sizes = {
            STATES: 8 * (counts["states"] + 1),
            CHOICES: 8 * (counts["choices"] + 1),
            TARGETS: 8 * counts["branches"],
        }
        if self.actions:
            sizes[f"{ACTIONS}values.bin"] = 4 * counts["choices"]
            sizes[ACTIONS + MAPPING] = 8 * (self.actions + 1)
            sizes[ACTIONS + STRINGS] = ANY_SIZE
        if self.players:
            sizes[PLAYERS] = 4 * counts["states"]
        if self.probabilities is not None:
            sizes[PROBABILITIES] = self.probabilities.width * counts["branches"]
        for structure, places in self.rewards.items():
            for entity, numbers in places.items():
                sizes[self.reward_file(structure, entity)] = numbers.width * counts[entity]
        bits = -(-counts["states"] // _WORD) * _WORD // 8
        sizes |= dict.fromkeys((INITIAL_STATES, *map(self.label_file, self.labels)), bits)
        if self.records.fields:
            sizes[CLASSES_FILE] = 4 * counts["states"]
            sizes[VALUATIONS_FILE] = self.records.sizes[0] * counts["states"]
            if len(self.records.sizes) > 1:
                sizes[VALUATIONS_FILE] = ANY_SIZE
        if self.records.strings:
            sizes[VALUATIONS + MAPPING] = 8 * (self.records.strings + 1)
            sizes[VALUATIONS + STRINGS] = ANY_SIZE
        if name in sizes:
            return sizes[name]
        if name == _INDEX or self.kind_left_out(name) or name.startswith(self.other_folders):
            return None
        raise InputError(
            self.path,
            f"member {quote(name)} is none that index.json announces for an MDP or DTMC; it would be left out of the "
            f"model: take it away or export the model again",
        )


class _IndexReader:
    """Parses index.json into an Index; raises InputError."""

    def __init__(self, path: str, text: bytes) -> None:
        self.path = path
        try:
            self.index = json.loads(text, object_pairs_hook=_without_repeated_keys)
        except (ValueError, RecursionError) as error:
            raise self.error(f"cannot be read as JSON: {error}") from None
        if not isinstance(self.index, dict):
            raise self.error("must be a JSON object")

    def error(self, message: str) -> InputError:
        return InputError(self.path, f"index.json: {message}")

    def check_keys(self, what: str, found: dict[str, Any], known: Sequence[str]) -> None:
        for key in found:
            if key not in known:
                raise self.error(f"{what} has the key {quote(key)}, which is none of {', '.join(known)}")

    def section(self, parent: dict[str, Any], key: str) -> dict[str, Any]:
        value = parent.get(key, {})
        if not isinstance(value, dict):
            raise self.error(f"{key!r} must be an object")
        return value

    def count(self, parent: dict[str, Any], key: str, least: int = 0) -> int:
        value = parent.get(key)
        if type(value) is not int or not least <= value < 1 << 62:
            raise self.error(f"{key!r} is {quote(value)}; it must be a whole number from {least} on")
        return value

    def numbers(self, what: str, value: Any) -> Numbers:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(value, dict):
            self.check_keys(what, value, ("type", "size"))
        size = value.get("size", 128 if kind == "rational" else 64) if isinstance(value, dict) else None
        if kind == "double" and type(size) is int and size == 64:
            return Numbers(False, 8)
        if kind == "rational" and type(size) is int and size > 0 and size % 128 == 0:
            return Numbers(True, size // 8)
        if isinstance(kind, str) and kind.endswith("-interval"):
            raise self.error(f"{what} are intervals ({shorten(kind)}); only models with single values can be solved")
        raise self.error(f"{what} have type {quote(value)}; doubles and rationals are read")

    def read(self, reward_model: str | None) -> Index:
        self.check_keys("index.json", self.index, _TOP_KEYS)
        version = self.index.get("format-version")
        if version not in _VERSIONS or type(version) is not int:
            raise self.error(f"format-version is {quote(version)}; this reader knows 1")
        system = self.section(self.index, "transition-system")
        self.check_kind(system)
        kind = system.get("branch-probability-type")
        names = self.reward_names()
        reward = self.chosen_reward(names, reward_model)
        labels, rewards, records = self.state_labels(), self.kept_rewards(names, reward), self.state_records()
        return Index(
            path=self.path,
            counts={
                "states": self.count(system, "#states", 1),
                "choices": self.count(system, "#choices"),
                "branches": self.count(system, "#branches"),
            },
            actions=self.choice_actions(system),
            players=self.count(system, "#players"),
            probabilities=None if kind is None else self.numbers("probabilities", kind),
            reward=reward,
            rewards=rewards,
            names={name: names[name] for name in rewards},
            labels=labels,
            records=records,
            annotations=self.left_out(labels, rewards, records),
            other_folders=self.other_folders(labels, rewards),
        )

    def check_kind(self, system: dict[str, Any]) -> None:
        self.check_keys("transition-system", system, _SYSTEM_KEYS)
        time = system.get("time")
        if time != "discrete":
            raise self.error(f"time is {quote(time)}; only discrete-time models (MDP, DTMC) can be solved")
        players = self.count(system, "#players")
        if players > 1:
            raise self.error(f"the model is a game of {players} players; only MDPs and DTMCs can be solved")
        observations = self.count(system, "#observations") if "#observations" in system else 0
        if observations != 0:
            raise self.error(
                f"the model is partially observed (#observations {observations}); only fully observed "
                "models can be solved"
            )
        for key in ("exit-rate-type", "observation-probability-type"):
            if key in system:
                raise self.error(f"{key!r} does not apply to a fully observed model of discrete time; export it again")

    def choice_actions(self, system: dict[str, Any]) -> int:
        """Number of actions of choices, where a store keeps so many names."""
        found = self.count(system, "#choice-actions") if "#choice-actions" in system else 0
        return found if found <= MOST_ACTION_NAMES else 0

    def reward_names(self) -> dict[str, str]:
        """The alias of each reward structure, which is its identifier where it has none."""
        found = self.section(self.section(self.index, "annotations"), "rewards")
        names: dict[str, str] = {}
        for name, value in found.items():
            if not isinstance(value, dict):
                raise self.error(f"reward structure {quote(name)} must be an object")
            names[name] = value.get("alias", name)
            if not isinstance(names[name], str):
                raise self.error(
                    f"the alias of reward structure {quote(name)} is {quote(names[name])}; it must be a text"
                )
        return names

    def state_labels(self) -> dict[str, str]:
        """What each label of states is called, by its identifier; labels of choices and branches are left out."""
        found = self.section(self.section(self.index, "annotations"), "aps")
        labels = {}
        for name, value in found.items():
            if isinstance(value, dict) and value.get("applies-to") == ["states"] and value.get("type") == _BIT:
                labels[name] = self.alias(name, value)
        if len(set(labels.values())) < len(labels):
            raise self.error(f"two labels have one alias: {shorten(', '.join(labels.values()))}; rename one of them")
        return labels

    def state_records(self) -> StateRecords:
        """Where the variables of states are."""
        described = self.section(self.section(self.index, "valuations"), "states")
        try:
            return read_records(described) if described else no_records()
        except ValueError as error:
            raise self.error(f"valuations of states: {error}") from None

    def kept_rewards(self, names: dict[str, str], reward: str | None) -> dict[str, dict[str, Numbers]]:
        """Where each reward structure pays, by identifier; those that cannot be read are left out, if not wanted."""
        kept = {}
        for name in names:
            try:
                kept[name] = self.reward_files(name)
            except InputError:
                if name == reward:
                    raise
        return kept

    def left_out(
        self, labels: dict[str, str], rewards: dict[str, Any], records: StateRecords
    ) -> dict[str, tuple[str, ...]]:
        """Names of labels of choices and branches, of other reward structures and other annotations, by their kind."""
        found: dict[str, tuple[str, ...]] = {}
        annotations = self.section(self.index, "annotations")
        for group in annotations:
            section = self.section(annotations, group)
            kept: dict[str, Any] = {"rewards": rewards, "aps": labels}.get(group, {})
            names = [self.alias(name, section[name]) for name in section if name not in kept]
            if names:
                found[_GROUPS.get(group, f"annotations {group}")] = tuple(names)
        if records.left_out or set(self.section(self.index, "valuations")) - {"states"}:
            found[left_out.VALUATIONS] = records.left_out
        return found

    @staticmethod
    def alias(name: str, annotation: Any) -> str:
        """The name that an annotation gives itself, its identifier without one."""
        alias = annotation.get("alias", name) if isinstance(annotation, dict) else name
        return alias if isinstance(alias, str) else name

    def other_folders(self, labels: dict[str, str], rewards: dict[str, Any]) -> tuple[str, ...]:
        annotations = self.section(self.index, "annotations")
        read = {("aps", name) for name in labels} | {("rewards", name) for name in rewards}
        announced = ((group, name) for group in annotations for name in self.section(annotations, group))
        return tuple(f"annotations/{group}/{name}/" for group, name in announced if (group, name) not in read)

    def chosen_reward(self, names: dict[str, str], wanted: str | None) -> str | None:
        """Identifier of the table's reward structure: the wanted or only one; None where there is none of several."""
        shown = ", ".join(name if alias == name else f"{name} ({alias})" for name, alias in names.items())
        shown = shorten(printable(shown), 300)
        if wanted is None:
            if len(set(names.values())) < len(names):
                raise self.error(f"two reward structures have one alias: {shown}; rename one of them")
            return next(iter(names)) if len(names) == 1 else None
        matches = [name for name in names if name == wanted] or [n for n, a in names.items() if a == wanted]
        if not matches:
            raise self.error(f"there is no reward structure {quote(wanted)}; there are: {shown or 'none'}")
        if len(matches) > 1:
            raise self.error(
                f"{len(matches)} reward structures are called {quote(wanted)}; name one of {', '.join(matches)}"
            )
        return matches[0]

    def reward_files(self, name: str) -> dict[str, Numbers]:
        reward = self.index["annotations"]["rewards"][name]
        places = reward.get("applies-to")
        if not isinstance(places, list) or not places or any(place not in ENTITIES for place in places):
            raise self.error(
                f"reward structure {quote(name)} applies to {quote(places)}; it must list some of states, choices, "
                f"branches"
            )
        if "probability-type" in reward:
            raise self.error(f"reward structure {quote(name)} is stochastic; only expected rewards are read")
        self.check_keys(f"reward structure {quote(name)}", reward, _REWARD_KEYS)
        numbers = self.numbers(f"the values of reward structure {quote(name)}", reward.get("type"))
        return dict.fromkeys(places, numbers)


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises ValueError where a key is given twice, of which json would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the key {quote(twice)} is given twice in one object")
    return found


def read_index(path: str, text: bytes, reward_model: str | None) -> Index:
    """The model that index.json announces, with one reward structure.

    Raises
    ------
    InputError : it is no such JSON, has keys that UMB does not define, or announces a model that is not read.
    """
    return _IndexReader(path, text).read(reward_model)
