"""The result of a solve on disk: a Zarr group that is there whole or not at all, and what can be made of it.

    value    float64   in the source's state order and sign
    policy   int32     the state's own action index, -1 where it has none
    action   int64     the source's number of that action, where it does not number them 0, 1, ...
    action_name   int32     which of the names in action_names (uint8, a JSON list in UTF-8) it has, -1 for none
    lower, upper  float64   bounds on V*, of total rewards only
    stage_...               of each stage of a finite horizon (:mod:`ooc_mdp.store.result_stages`)

each of the grid's shape where the table has one, with coordinates; and history/, how the solve progressed. Attributes,
a closed list: format, format_version, of, solution, about, and the seal of :mod:`ooc_mdp.store.sealed_group`.
``docs/reference/result-format.md`` lists them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.named_actions import NamedActions
from ooc_mdp.model.presentation import Presentable
from ooc_mdp.model.solution import Solution
from ooc_mdp.model.stages import StageResults
from ooc_mdp.model.table import Table
from ooc_mdp.quoting import listed, quote
from ooc_mdp.store.checkpoint import CHECKPOINT_SUFFIX, checkpoint_path
from ooc_mdp.store.metadata import PARTIAL_SUFFIX, PREVIOUS_SUFFIX
from ooc_mdp.store.result_attributes import (
    FORMAT,
    HISTORY,
    READABLE,
    ResultAttributes,
    attributes_of,
    grid_partitions,
    history_arrays,
    history_of,
    parse_attributes,
)
from ooc_mdp.store.result_grid import grid_of
from ooc_mdp.store.result_stages import STAGE_ARRAYS, STAGE_LISTS, read_stages, write_stages
from ooc_mdp.store.sealed_file import SealError
from ooc_mdp.store.sealed_group import SealedGroup, SealedGroupWriter, group_attributes
from ooc_mdp.store.transaction import atomic_directory, check_leftovers, check_not_inside_store

__all__ = [
    "Result",
    "check_output",
    "is_result",
    "open_result",
    "stored_stages",
    "unsaved_result",
    "write_result",
]

_ARRAYS = {
    "value": "float64",
    "policy": "int32",
    "action": "int64",
    "action_name": "int32",
    "value_lower": "float64",
    "value_upper": "float64",
}
_NAME, _NAMES = "action_name", "action_names"
_ALWAYS = frozenset({"value", "policy"})
_CHUNKED = frozenset(_ARRAYS) | STAGE_ARRAYS
_RESERVED = (
    frozenset({"state", "stage", HISTORY, _NAMES})
    | _CHUNKED
    | STAGE_LISTS
    | {f"{name}_{part}" for name in _CHUNKED for part in ("chunks", "chunk", "chunk_field")}
)
"""Names that no axis of a grid can have."""


@dataclass(frozen=True, slots=True, eq=False)
class Result(Presentable):
    """A result as it is stored on disk; `plot`, `report` and `to_xarray` show it."""

    path: Path
    identity: dict[str, Any]
    """Fingerprint of the table, sense, and the record of the criterion."""
    solution: Solution
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where the table came from, as its store says it; empty for a solution that was not written."""
    geometry: dict[str, Any] | None = None
    """The grid of the states, as the table's store describes it; None where they are no grid."""
    partitions: dict[str, Any] | None = None
    """Shape and edges of the partitions, as the store's state_order has them; None where they are no blocks of a grid,
    and in results of format 3."""
    peak_memory_bytes: int | None = None
    """Most RAM that the process which wrote the result had had until then; None where it is not known."""

    def __repr__(self) -> str:
        return f"Result({str(self.path)!r}, {self.solution!r})"

    @property
    def values(self) -> FloatArray:
        """float64 [n_states]; the solution's, flat, in the source's state order and sign."""
        return self.solution.values

    @property
    def policy(self) -> npt.NDArray[np.int32]:
        """int32 [n_states]; the solution's, flat: the state's own action index, -1 where it has none."""
        return self.solution.policy

    @property
    def actions(self) -> npt.NDArray[np.integer]:
        """[n_states]; the solution's: the policy by the source's numbers of actions, -1 where a state has none."""
        return self.solution.actions

    def value_at(self, x: Any, *, stage: int = 0) -> FloatArray:
        """As :meth:`ooc_mdp.Solution.value_at`."""
        return self.solution.value_at(x, stage=stage)

    def policy_at(self, x: Any, *, stage: int = 0) -> npt.NDArray[np.int32]:
        """As :meth:`ooc_mdp.Solution.policy_at`."""
        return self.solution.policy_at(x, stage=stage)

    def control_at(self, x: Any, *, stage: int = 0) -> FloatArray:
        """As :meth:`ooc_mdp.Solution.control_at`."""
        return self.solution.control_at(x, stage=stage)


def check_output(output: Path, replace: bool) -> None:
    """Refuse early what :func:`write_result` would refuse after hours of work.

    Raises
    ------
    StoreError : the directory is missing or inside a store, or something is there that may not be replaced.
    """
    if output.name.endswith((PARTIAL_SUFFIX, PREVIOUS_SUFFIX, CHECKPOINT_SUFFIX)):
        raise StoreError(
            f"{output}: names that end in {PARTIAL_SUFFIX}, {PREVIOUS_SUFFIX} or {CHECKPOINT_SUFFIX} mark what is "
            f"unfinished; name another output"
        )
    if not output.parent.is_dir():
        raise StoreError(f"{output} cannot be written: {output.parent} is no directory")
    check_not_inside_store(output)
    check_leftovers(output)
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise StoreError(f"{output} cannot be written: no permission to write in {output.parent}")
    if output.is_symlink():
        raise StoreError(f"{output} is a symbolic link, which is not replaced; give the path that it points to")
    if output.exists():
        if not replace:
            raise StoreError(f"{output} exists; name another output, or replace it with --overwrite")
        _check_is_result(output)
    if not replace and checkpoint_path(output).exists():
        raise StoreError(
            f"{checkpoint_path(output)} is the checkpoint of an earlier run; continue from it with --resume, or start "
            f"again with --overwrite"
        )


def is_result(path: Path) -> bool:
    """Whether a path looks like what :func:`write_result` wrote, whole or not."""
    try:
        return group_attributes(path).get("format") == FORMAT
    except (OSError, SealError):
        return False


def _check_is_result(path: Path) -> dict[str, Any]:
    """Attributes of a result of any version, whole or not; StoreError where the path is none."""
    if path.name.endswith(PARTIAL_SUFFIX):
        raise StoreError(f"{path} is a half-written result; solve again (with --resume, from its checkpoint)")
    if not path.exists():
        raise StoreError(f"{path} does not exist")
    try:
        attributes = group_attributes(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{path} is no result of ooc-mdp solve: it holds no zarr.json") from None
    except (OSError, SealError) as error:
        why = getattr(error, "strerror", None) or error
        raise StoreError(f"{path} is no result of ooc-mdp solve: {why}") from error
    if attributes.get("format") != FORMAT:
        raise StoreError(f"{path} is no result of ooc-mdp solve; give the directory that --output named")
    return attributes


def write_result(
    output: Path, table: Table, solution: Solution, identity: dict[str, Any], *, replace: bool = False
) -> None:
    """Write a solution as a sealed Zarr group, in one atomic step.

    Parameters
    ----------
    identity : fingerprint of the table, sense, criterion and its parameters.

    Raises
    ------
    StoreError : the place is taken, or the disk is full; a previous result stays.
    """
    attributes, names = attributes_of(table, solution, identity), solution.named_actions
    grid = grid_of(attributes["about"]["geometry"], solution.values.size, _RESERVED)
    with atomic_directory(output, overwrite=replace, check_replaceable=_check_is_result) as place:
        group = SealedGroupWriter(place)
        for name, data in _arrays(solution):
            group.write(name, data, grid.shape, grid.dimensions)
        if names is not None:
            group.write(_NAME, names.of_states, grid.shape, grid.dimensions)
            texts = np.frombuffer(json.dumps(names.names, ensure_ascii=False).encode(), np.uint8)
            group.write_small(
                _NAMES, texts, (f"{_NAMES}_byte",), {"long_name": "names of actions: a JSON list in UTF-8"}
            )
        if solution.stages is not None:
            write_stages(group, solution.stages, grid)
        for name, coordinate in grid.coordinates.items():
            group.write_small(name, coordinate.positions, (name,), coordinate.attributes)
        if solution.history is not None:
            for name, (data, dimension, labels) in history_arrays(solution.history).items():
                group.write_small(f"{HISTORY}/{name}", data, (dimension,), labels)
        group.seal(attributes)


def _arrays(solution: Solution) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The arrays of a result by name."""
    yield "value", solution.values
    yield "policy", solution.policy
    if solution.source_actions is not None:
        yield "action", solution.source_actions
    if solution.value_lower is not None and solution.value_upper is not None:
        yield "value_lower", solution.value_lower
        yield "value_upper", solution.value_upper


def open_result(path: str | Path) -> Result:
    """Read a result back, every file of it compared with the seal.

    Raises
    ------
    StoreError : the path is no result, half-written, damaged, or of another version.
    """
    path = Path(path)
    attributes = _check_is_result(path)
    version = attributes.get("format_version")
    if type(version) is not int or version not in READABLE:
        raise StoreError(
            f"{path} is a result of version {quote(version)}, this release reads "
            f"{', '.join(map(str, READABLE))}; solve again"
        )
    try:
        parsed = parse_attributes(attributes)
        group = SealedGroup(path, attributes)
        solution = _solution(path, group, parsed)
    except SealError as error:
        raise StoreError(f"the result {path} is damaged ({error}); solve again") from error
    return Result(
        path,
        parsed.of,
        solution,
        parsed.provenance,
        parsed.geometry,
        parsed.partitions,
        parsed.peak_memory_bytes,
    )


def _solution(path: Path, group: SealedGroup, parsed: ResultAttributes) -> Solution:
    """What the group's arrays and attributes make; SealError where they do not belong together."""
    grid = grid_of(parsed.geometry, parsed.statistics.n_states, _RESERVED)
    small = {name for name in group.arrays if name.startswith(f"{HISTORY}/")} | set(grid.coordinates) | {_NAMES}
    stages = read_stages(group, grid, path)
    of_stages = set() if stages is None else STAGE_LISTS | STAGE_ARRAYS
    unknown = sorted(set(group.arrays) - set(_ARRAYS) - small - of_stages)
    missing = sorted((_ALWAYS | set(grid.coordinates)) - set(group.arrays))
    if unknown or missing or ("value_lower" in group.arrays) != ("value_upper" in group.arrays):
        raise SealError(f"unknown arrays: {listed(unknown) or 'none'}; missing: {listed(missing) or 'none'}")
    for name in sorted(set(_ARRAYS) & set(group.arrays)):
        array = group.arrays[name]
        if (array.dtype.name, array.shape) != (_ARRAYS[name], grid.shape) or array.chunks is None:
            raise SealError(
                f"{name} is {array.dtype.name} {array.shape}, it must be {_ARRAYS[name]} {grid.shape} in chunks"
            )
    history = {name.partition("/")[2]: group.small[name] for name in small if name.startswith(f"{HISTORY}/")}
    named = _named_actions(group)
    return Solution(
        outcome=parsed.outcome,
        method=parsed.method,
        device=parsed.device,
        criterion={name: value for name, value in parsed.of.items() if name not in ("fingerprint", "sense")},
        certificate=parsed.certificate,
        statistics=parsed.statistics,
        values=group.read("value"),
        policy=group.read("policy"),
        memory_plan=parsed.memory_plan,
        value_lower=group.read("value_lower") if "value_lower" in group.arrays else None,
        value_upper=group.read("value_upper") if "value_upper" in group.arrays else None,
        history=history_of(history) if history else None,
        source_actions=group.read("action") if "action" in group.arrays else None,
        named_actions=named,
        stages=stages,
        geometry=parsed.geometry,
    )


def _named_actions(group: SealedGroup) -> NamedActions | None:
    """The names of the policy's actions, where a result has them; SealError where they do not belong together."""
    if (_NAME in group.arrays) != (_NAMES in group.small):
        raise SealError(f"of {_NAME} and {_NAMES} only one is there")
    if _NAME not in group.arrays:
        return None
    try:
        names = json.loads(group.small[_NAMES].astype(np.uint8).tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise SealError(f"{_NAMES} is no JSON list: {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SealError(f"{_NAMES} is no JSON list of texts")
    found = group.read(_NAME).astype(np.int32, copy=False)
    if found.size and not -1 <= int(found.min()) <= int(found.max()) < len(names):
        raise SealError(f"{_NAME} has numbers beyond the {len(names)} names of {_NAMES}")
    return NamedActions(tuple(names), found)


def stored_stages(path: Path) -> StageResults | None:
    """The stages of a result that was just written, to be read when they are asked for; StoreError as `open_result`."""
    attributes = _check_is_result(path)
    try:
        parsed = parse_attributes(attributes)
        grid = grid_of(parsed.geometry, parsed.statistics.n_states, _RESERVED)
        return read_stages(SealedGroup(path, attributes), grid, path)
    except SealError as error:
        raise StoreError(f"the result {path} is damaged ({error}); solve again") from error


def unsaved_result(solution: Solution, table: Table | None) -> Result:
    """A solution that was not written, as the result of a table; without one its provenance is unknown.

    Raises
    ------
    OptionsError : the table has another number of states.
    """
    place = Path("the solution")
    if table is None:
        return Result(place, dict(solution.criterion), solution, geometry=solution.geometry)
    if solution.values.size != table.n_states:
        raise OptionsError(
            f"the solution has {solution.values.size} values and {table.name} has {table.n_states} states; give the "
            f"table that it was solved from"
        )
    return Result(
        place,
        {"fingerprint": table.fingerprint, "sense": table.sense, **solution.criterion},
        solution,
        dict(table.facts.attributes.get("provenance") or {}),
        geometry=table.facts.attributes.get("geometry"),
        partitions=grid_partitions(table),
    )
