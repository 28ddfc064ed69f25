"""Labels, variables, reward models and names of actions of a store: a sealed group beside its table.

    annotations/
        label_0      uint8 [ceil(n/8)]   one bit per state in the source's order, the first in the lowest bit of a byte
        variable_0   uint8, int32, int64 [n]   values in the source's order, in the first of these types that holds all;
                     float64 [n]               of doubles
        reward_0     float64 [m]         of the table's rows, in the store's order
        terminal_0   float64 [n]         of states without action, in the store's order; where some are not 0
        row_action   uint8, int32 [m]    0 for a row without a name, else 1 + which of the names it has; store's order

No solve of the table reads them. The attributes name them, and the fingerprint of the table that they belong to.
Opening compares the digests; every chunk is compared with the group's manifest when it is read
(`ooc_mdp.store.sealed_group`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import DamagedStoreError, StoreError
from ooc_mdp.model.annotations import (
    BOOL,
    DOUBLE,
    INT,
    NO_ANNOTATIONS,
    STRING,
    Annotations,
    Variable,
    VariableValues,
    unknown_name,
)
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.store.closed_object import FINGERPRINT, Rule, check_object, count, or_null
from ooc_mdp.store.damage import REMEDY
from ooc_mdp.store.sealed_file import SealError
from ooc_mdp.store.sealed_group import SealedGroup, SealedGroupWriter, group_attributes, sealed_names

__all__ = ["ANNOTATIONS", "RewardModel", "RowNames", "StateAnnotations", "open_annotations", "write_annotations"]

ANNOTATIONS = "annotations"
"""The folder in a store's directory."""
_FORMAT, _VERSION = "ooc-mdp-annotations", 3
_TYPES = (np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.int64))


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


_NAMES: Rule = (_are_names, "a list of different names")
_OWN: dict[str, Rule] = {
    "format": (lambda value: value == _FORMAT, _FORMAT),
    "format_version": (lambda value: type(value) is int and value == _VERSION, f"{_VERSION}, which this program reads"),
    "fingerprint": FINGERPRINT,
    "n_states": count(1),
    "n_rows": count(0),
    "labels": _NAMES,
    "variables": (lambda value: _are_variables(value), "a list of different names with types, ranges and texts"),
    "reward_models": _NAMES,
    "reward_ranges": (lambda value: isinstance(value, list) and all(map(_is_range, value)), "a range for each model"),
    "table_rewards": or_null((lambda value: isinstance(value, str), "a name")),
    "rewards_chosen": (lambda value: isinstance(value, bool), "true or false"),
    "action_names": _NAMES,
}


def _are_variables(value: Any) -> bool:
    if not isinstance(value, list) or not all(map(_is_variable, value)):
        return False
    return _are_names([each["name"] for each in value])


def _is_variable(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"name", "type", "low", "high", "texts"}:
        return False
    kind, low, high, texts = value["type"], value["low"], value["high"], value["texts"]
    if not _are_names(texts) or (kind == STRING) != bool(texts):
        return False
    if kind == DOUBLE:
        return _is_range([low, high])
    limits = {BOOL: (0, 1), INT: (-(1 << 63), (1 << 63) - 1), STRING: (0, len(texts) - 1)}
    if kind not in limits:
        return False
    least, most = limits[kind]
    return type(low) is int and type(high) is int and least <= low <= high <= most


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(x) is float for x in value) and value[0] <= value[1]


@dataclass(frozen=True, slots=True)
class StateAnnotations:
    """Labels and variables of states, in the source's order."""

    labels: Mapping[str, npt.NDArray[np.uint8]]
    """For each name the states, packed into bits, uint8 [ceil(n/8)]."""
    variables: Mapping[str, Variable] = field(default_factory=dict)
    values: Callable[[str, int, int], VariableValues] | None = None
    """Returns the values of a variable in consecutive states: name, first, end; where there are variables."""


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A reward model in the table's order."""

    rewards: FloatArray
    """float64 [m]."""
    terminal: FloatArray
    """float64 [n]."""

    @property
    def range(self) -> tuple[float, float]:
        """Least and largest, (0, 0) if there is none."""
        sizes = [each for each in (self.rewards, self.terminal) if each.size and (each is self.rewards or each.any())]
        if not sizes:
            return 0.0, 0.0
        return float(min(each.min() for each in sizes)), float(max(each.max() for each in sizes))


@dataclass(frozen=True, slots=True)
class RowNames:
    """Names of actions in the table's order."""

    names: tuple[str, ...]
    of_rows: npt.NDArray[np.integer[Any]]
    """[m]; which of the names each row has, -1 for none."""

    def stored(self, first: int, end: int) -> npt.NDArray[np.integer[Any]]:
        """As they are stored: 0 for none."""
        return self.of_rows[first:end] + 1


def write_annotations(
    root: Path,
    fingerprint: str,
    states: StateAnnotations,
    rewards: Mapping[str, RewardModel],
    sizes: tuple[int, int],
    table_rewards: str | None = None,
    rewards_chosen: bool = True,
    actions: RowNames | None = None,
) -> None:
    """Write labels, variables, reward models and names of actions into the directory of a store.

    Parameters
    ----------
    fingerprint : of the store's table.
    rewards : for each name a reward model other than the table's; mapped files of any size.
    sizes : numbers of states and of rows.
    table_rewards, rewards_chosen : as in :class:`~ooc_mdp.model.annotations.Annotations`.
    actions : names of the rows' actions, where there are any.
    """
    place = root / ANNOTATIONS
    if place.exists():  # of a run that was stopped
        shutil.rmtree(place)
    place.mkdir()
    group = SealedGroupWriter(place)
    for i, bits in enumerate(states.labels.values()):
        group.write(f"label_{i}", bits, bits.shape, ("byte",))
    for i, (name, variable) in enumerate(states.variables.items()):
        assert states.values is not None
        dtype = _stored_type(variable)
        group.write_runs(f"variable_{i}", dtype, partial(states.values, name), (sizes[0],), ("state",))
    for i, model in enumerate(rewards.values()):
        if model.rewards.size:
            group.write(f"reward_{i}", model.rewards, model.rewards.shape, ("row",))
        if model.terminal.any():
            group.write(f"terminal_{i}", model.terminal, model.terminal.shape, ("state",))
    if actions is not None:
        group.write_runs("row_action", _type_of_names(actions.names), actions.stored, (sizes[1],), ("row",))
    group.seal(
        {
            "format": _FORMAT,
            "format_version": _VERSION,
            "fingerprint": fingerprint,
            "n_states": sizes[0],
            "n_rows": sizes[1],
            "labels": list(states.labels),
            "variables": [{"name": name, **asdict(variable)} for name, variable in states.variables.items()],
            "reward_models": list(rewards),
            "reward_ranges": [list(model.range) for model in rewards.values()],
            "table_rewards": table_rewards,
            "rewards_chosen": rewards_chosen,
            "action_names": [] if actions is None else list(actions.names),
        }
    )


def _type_of_names(names: Sequence[str]) -> np.dtype[Any]:
    """The type of which of the names a row has."""
    return _stored_type(Variable(INT, 0, len(names)))


def _stored_type(variable: Variable) -> np.dtype[Any]:
    """The first type that holds the values of a variable."""
    if variable.type == DOUBLE:
        return np.dtype(np.float64)
    ranges = ((each, np.iinfo(each)) for each in _TYPES)
    return next(each for each, range_ in ranges if range_.min <= variable.low and variable.high <= range_.max)


def open_annotations(root: Path, fingerprint: str, n_states: int, n_rows: int) -> Annotations:
    """What a store has beside its table; nothing where it has no such group.

    Raises
    ------
    StoreError : they have another format version.
    DamagedStoreError : they are damaged, or belong to another table.
    """
    place = root / ANNOTATIONS
    if not place.is_dir():
        return NO_ANNOTATIONS
    try:
        attributes = group_attributes(place)
        version = attributes.get("format_version")
        if isinstance(version, int) and version != _VERSION:
            raise StoreError(
                f"labels, variables, reward models and names in {place} have format version {version}, this program "
                f"reads {_VERSION}; {REMEDY}, or use the program's version that wrote them"
            )
        check_object(attributes, sealed_names(_OWN), "its attributes")
        found = _StoredAnnotations(place, attributes, SealedGroup(place, attributes))
        found.check(fingerprint, n_states, n_rows)
    except (SealError, OSError) as error:
        raise _damaged(place, error) from error
    return found


class _StoredAnnotations(Annotations):
    """Those of a store; arrays are read when they are asked for."""

    def __init__(self, place: Path, attributes: Mapping[str, Any], group: SealedGroup) -> None:
        self._place, self._attributes, self._group = place, attributes, group
        self.n_states: int = attributes["n_states"]
        self.labels: Sequence[str] = tuple(attributes["labels"])
        self.variables: Mapping[str, Variable] = {
            each["name"]: Variable(each["type"], each["low"], each["high"], tuple(each["texts"]))
            for each in attributes["variables"]
        }
        self.reward_models: Sequence[str] = tuple(attributes["reward_models"])
        self.table_rewards: str | None = attributes["table_rewards"]
        self.rewards_chosen: bool = attributes["rewards_chosen"]
        self.action_names: Sequence[str] = tuple(attributes["action_names"])

    def check(self, fingerprint: str, n_states: int, n_rows: int) -> None:
        """Compare what the attributes and the list of arrays say with the table; SealError where they differ."""
        found = self._attributes
        for name, due in (("fingerprint", fingerprint), ("n_states", n_states), ("n_rows", n_rows)):
            if found[name] != due:
                raise SealError(f"it belongs to a table of {name} {found[name]}, not {due}")
        if len(found["reward_ranges"]) != len(self.reward_models):
            raise SealError(f"it has {len(found['reward_ranges'])} ranges of {len(self.reward_models)} reward models")
        expected = {f"label_{i}": ("uint8", (-(-n_states // 8),)) for i in range(len(self.labels))}
        variables = enumerate(self.variables.values())
        expected |= {f"variable_{i}": (_stored_type(each).name, (n_states,)) for i, each in variables}
        models = range(len(self.reward_models))
        expected |= {f"reward_{i}": ("float64", (n_rows,)) for i in models if n_rows}
        expected |= {f"terminal_{i}": ("float64", (n_states,)) for i in models if f"terminal_{i}" in self._group.arrays}
        if self.action_names:
            expected["row_action"] = (_type_of_names(self.action_names).name, (n_rows,))
        given = {name: (array.dtype.name, array.shape) for name, array in self._group.arrays.items()}
        if given != expected:
            wrong = sorted(name for name in {*given, *expected} if given.get(name) != expected.get(name))
            raise SealError(f"its arrays {', '.join(wrong)} are not those that its attributes name")

    def label_bits(self, name: str) -> npt.NDArray[np.uint8]:
        """Read a label."""
        if name not in self.labels:
            raise unknown_name("label", name, self.labels)
        try:
            return self._group.read(f"label_{self.labels.index(name)}")
        except SealError as error:
            raise _damaged(self._place, error) from error

    def values(self, name: str, first: int, end: int) -> VariableValues:
        """Read values of a variable."""
        if name not in self.variables:
            raise unknown_name("variable", name, tuple(self.variables))
        array, variable = f"variable_{list(self.variables).index(name)}", self.variables[name]
        try:
            dtype = np.float64 if variable.type == DOUBLE else np.int64
            values: VariableValues = self._group.read_run(array, first, end)[0].astype(dtype)
            if values.size and not variable.low <= values.min() <= values.max() <= variable.high:
                raise SealError(f"{array} has values outside {variable.low} to {variable.high}, as its attributes say")
        except SealError as error:
            raise _damaged(self._place, error) from error
        return values

    def rewards(self, name: str, first: int, end: int) -> FloatArray:
        """Read rewards of some rows."""
        return self._range("reward", name, first, end)

    def terminal_rewards(self, name: str, first: int, end: int) -> FloatArray:
        """Read values of some states without action."""
        return self._range("terminal", name, first, end)

    def reward_range(self, name: str) -> tuple[float, float]:
        """As it was computed when they were written."""
        low, high = self._attributes["reward_ranges"][self._index(name)]
        return low, high

    def row_names(self, first: int, end: int) -> IntArray:
        """Read which names some rows have."""
        if not self.action_names or first == end:
            return np.full(end - first, -1)
        try:
            found = self._group.read_run("row_action", first, end)[0].astype(np.int64) - 1
            if not -1 <= int(found.min()) <= int(found.max()) < len(self.action_names):
                raise SealError(f"row_action has values beyond the {len(self.action_names)} names of its attributes")
        except SealError as error:
            raise _damaged(self._place, error) from error
        return found

    def _index(self, name: str) -> int:
        if name not in self.reward_models:
            raise unknown_name("reward model", name, self.reward_models)
        return self.reward_models.index(name)

    def _range(self, kind: str, name: str, first: int, end: int) -> FloatArray:
        array, (low, high) = f"{kind}_{self._index(name)}", self.reward_range(name)
        if array not in self._group.arrays or first == end:
            return np.zeros(end - first)
        try:
            values = self._group.read_run(array, first, end)[0]
            if not (values.min() >= low and values.max() <= high):
                raise SealError(f"{array} has values outside the range {low:g} to {high:g} of its attributes")
        except SealError as error:
            raise _damaged(self._place, error) from error
        return values

    def faults(self) -> list[str]:
        """Read everything, and return what is damaged."""
        found = []
        for name in self._group.arrays:
            try:
                self._group.read(name)
            except SealError as error:
                found.append(str(error))
        return found


def _damaged(place: Path, error: Exception) -> DamagedStoreError:
    return DamagedStoreError(
        f"the labels, variables, reward models and names in {place} are damaged: {error}; {REMEDY}"
    )
