"""A store of other rewards: it has rewards of its own, and the transitions of another store, its *base*.

    zarr.json            format, format_version
                         table   base (path from here, fingerprint), sense, terminal_rewards, fingerprint
                         about   provenance
                         and the seal of :mod:`ooc_mdp.store.sealed_group`
    rewards/             float64 [rows of the base], in its order
    terminal_rewards/    float64 [states of the base], in its order, if any is not 0
    reward_range/        float64 [2 P]: least and largest reward of each partition, terminal ones included

The base is found by the path and must have the recorded fingerprint. Partitions, states and rows are the base's, so a
load reads a partition of the base and puts other rewards in the place of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import DerivedTable, Loader, TableFacts
from ooc_mdp.quoting import quote
from ooc_mdp.store.check import Finding, Report
from ooc_mdp.store.check_load import LoadCheck
from ooc_mdp.store.check_memory import claims_bytes
from ooc_mdp.store.check_table import check_claims
from ooc_mdp.store.closed_object import FINGERPRINT, OBJECT, TEXT, WORD, Rule, check_object, one_of
from ooc_mdp.store.directory import OF_TEMPORARY, Directory
from ooc_mdp.store.inspect import inspect_reward_store
from ooc_mdp.store.layout import REWARDS_FORMAT
from ooc_mdp.store.metadata import check_is_store
from ooc_mdp.store.opening import open_store
from ooc_mdp.store.reader import Store
from ooc_mdp.store.seal import canonical
from ooc_mdp.store.sealed_file import SealError
from ooc_mdp.store.sealed_group import SealedGroup, SealedGroupWriter, group_attributes, sealed_names

__all__ = ["RewardStore", "is_reward_store", "open_reward_store", "open_table", "write_reward_store"]

VERSION = 1
_REMEDY = "make it again by ooc_mdp.with_rewards"
_TOP = sealed_names({"table": OBJECT, "about": OBJECT})
_TABLE: dict[str, Rule] = {
    "base": OBJECT,
    "sense": one_of("max", "min"),
    "terminal_rewards": one_of(True, False),
    "fingerprint": FINGERPRINT,
}
_BASE: dict[str, Rule] = {"path": WORD, "fingerprint": FINGERPRINT}
_ABOUT: dict[str, Rule] = {"provenance": OBJECT}
_PROVENANCE: dict[str, Rule] = {
    "source": TEXT,
    "format": one_of("rewards"),
    "tool": TEXT,
    "version": TEXT,
    "time": TEXT,
}
_CHUNK = (1 << 12, 1 << 20)
"""Least and most values of a chunk; between them, those of the largest partition, so that a load reads two at most."""


class RewardStore(DerivedTable):
    """The transitions of a store with other rewards; see :func:`open_reward_store`."""

    base: Store

    def __init__(self, path: Path, base: Store, group: SealedGroup, table: Mapping[str, Any], about: Any) -> None:
        self.path, self.base = path, base
        self._directory = Directory(path)
        self._group, self._has_terminal = group, bool(table["terminal_rewards"])
        self._row_ptr: IntArray = np.concatenate([[0], np.cumsum(base.facts.partition_rows)]).astype(np.int64)
        self.facts = _facts(path, base.facts, group, table, about)
        self._load_check = LoadCheck(self.facts)

    def __repr__(self) -> str:
        return f"<RewardStore {self.path} of {self.base!r}>"

    def __copy__(self) -> RewardStore:
        """The store itself, which does not change."""
        return self

    def __deepcopy__(self, memo: object) -> RewardStore:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By its path, which is opened again, and its base with it."""
        from ooc_mdp.store.reopening import reopened

        return reopened, (os.path.abspath(self.path), self.fingerprint, self.base.checks_sha256)

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table and the bytes read from disk for it.

        Raises
        ------
        StoreError : a chunk is missing or damaged, or is not what the base or this store says of it.
        """
        part, n_bytes = self.base.read(p)
        rewards, of_rewards = self.read_field("rewards", p)
        terminal, of_terminal = self.read_field("terminal_rewards", p)
        part = replace(part, rewards=rewards, terminal_rewards=terminal)
        self._load_check.check(part)
        return part, n_bytes + of_rewards + of_terminal

    def read_field(self, name: str, p: int) -> tuple[npt.NDArray[Any], int]:
        """One field of partition p's table, or its action labels; empty if there is none."""
        if name not in ("rewards", "terminal_rewards"):
            return self.base.read_field(name, p)
        if name not in self.facts.dtypes:
            return np.empty(0), 0
        ptr = self._row_ptr if name == "rewards" else self.facts.partition_ptr
        first, last = ptr[p : p + 2].tolist()
        if first == last:
            return np.empty(0, self.facts.dtypes[name]), 0
        try:
            values, n_bytes = self._group.read_run(name, first, last)
        except SealError as error:
            raise StoreError(f"{self.path} is damaged ({error}); {_REMEDY}") from error
        return values.astype(self.facts.dtypes[name], copy=False), n_bytes

    def loader(self, device: str) -> Loader:
        """Tables are made in host memory, whatever the device."""
        return Loader(self.read, self.base.scratch_bytes + 2 * 8 * _chunk(self.facts), prefetch=self.base.prefetch)

    def load_code(self) -> None:
        """Load the loops that decode chunks and compare tables."""
        self.base.load_code()
        self._load_check.load_code()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep others from replacing this store or its base; raises StoreError where one was replaced."""
        with self.base.hold(), self._directory.hold():
            yield

    def checking_sha256(self) -> RewardStore:
        """The same table, whose base compares each chunk's SHA-256."""
        return _of_base(self, self.base.checking_sha256())

    def contradictions(self, part: PartitionTable) -> list[Finding]:
        """What this store and its base say of a partition, and recomputing gives otherwise."""
        return check_claims(self.facts, self.base.sizes(part.index), part)

    def contradictions_bytes(self) -> IntArray:
        """int64 [P]; bytes of RAM that `contradictions` takes beside each partition's table."""
        return claims_bytes(self.facts)

    def check(
        self,
        progress: Callable[[str, int, int | None], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Report:
        """Check every chunk of the base, then all rewards against the ranges and the fingerprint."""
        found = list(self.base.check(progress, note).findings)
        digest = _Fingerprint(self.base.fingerprint, self.facts.sense)
        for p in range(self.n_partitions):
            try:
                part, _ = self.read(p)
            except StoreError as error:
                found.append(Finding("rewards", p, str(error)))
                continue
            digest.add(part.rewards, part.terminal_rewards if self._has_terminal else np.zeros(part.n_states))
            if progress is not None:
                progress("rewards", p + 1, self.n_partitions)
        if not found and digest.hexdigest() != self.fingerprint:
            found.append(Finding("rewards", None, "the rewards are not those of the fingerprint"))
        return Report(self.n_partitions, tuple(found))

    def inspect(self) -> dict[str, Any]:
        """What the table holds, in numbers; stored bytes are those of the base."""
        return inspect_reward_store(self.path, self.facts, self.base)

    def action_labels(self, p: int) -> IntArray | None:
        """int64 [m]; the source's numbers of partition p's actions; None if 0, 1, ... in each state."""
        return self.base.action_labels(p)


def _of_base(store: RewardStore, base: Store) -> RewardStore:
    """The same rewards with a base that reads otherwise."""
    copy = object.__new__(RewardStore)
    vars(copy).update(vars(store) | {"base": base})
    return copy


def _chunk(facts: TableFacts) -> int:
    """Values of a chunk."""
    largest = max(int(facts.partition_rows.max()), int(np.diff(facts.partition_ptr).max()))
    return min(max(largest, _CHUNK[0]), _CHUNK[1])


def _facts(
    path: Path, base: TableFacts, group: SealedGroup, table: Mapping[str, Any], about: Mapping[str, Any]
) -> TableFacts:
    """The base's facts with those that the rewards change."""
    dtypes = {name: dtype for name, dtype in base.dtypes.items() if name != "terminal_rewards"}
    n_bytes = base.partition_bytes.copy()
    for has, sign in (("terminal_rewards" in base.dtypes, -1), (table["terminal_rewards"], 1)):
        n_bytes += sign * has * 8 * np.diff(base.partition_ptr)
    if table["terminal_rewards"]:
        dtypes["terminal_rewards"] = np.dtype(np.float64)
    changed = {"sense": table["sense"], "fingerprint": table["fingerprint"], "provenance": about["provenance"]}
    return replace(
        base,
        name=str(path),
        fingerprint=str(table["fingerprint"]),
        attributes={**base.attributes, **changed},
        dtypes=dtypes,
        sense=str(table["sense"]),
        partition_bytes=n_bytes,
        reward_range=group.read("reward_range").reshape(-1, 2),
        stored_fields=(),
        frame_buffer_bytes=0,
    )


class _Fingerprint:
    """SHA-256 of all that a solve reads: the base's fingerprint, the sense and the rewards of each partition."""

    def __init__(self, base: str, sense: str) -> None:
        self._digest = hashlib.sha256(b"ooc-mdp rewards 1\0" + canonical([base, sense]))

    def add(self, rewards: npt.NDArray[Any], terminal: FloatArray) -> None:
        """Include the rewards of the next partition's rows, and the values of its states."""
        for values in (rewards, terminal):
            self._digest.update(canonical(values.size))
            self._digest.update(values.astype("<f8").tobytes())

    def hexdigest(self) -> str:
        """The fingerprint."""
        return self._digest.hexdigest()


def write_reward_store(
    root: Path,
    path: Path,
    base: Store,
    rewards: Callable[[int], tuple[npt.NDArray[Any], FloatArray]],
    sense: str,
    provenance: Mapping[str, Any],
) -> None:
    """Write a store of other rewards, in bounded memory.

    Parameters
    ----------
    root : an empty directory, which will be moved to `path`.
    rewards : of partition p: rewards of its rows, in the type of the base, and the values of its states, of which those
        with actions are 0.
    """
    facts, digest = base.facts, _Fingerprint(base.fingerprint, sense)
    sizes = {"rewards": base.n_rows, "terminal_rewards": base.n_states}
    scratch = {name: root / f".{name}" for name in sizes}
    ranges, any_terminal = np.zeros((base.n_partitions, 2)), False
    with ExitStack() as opened:
        files = {name: opened.enter_context(open(scratch[name], "wb")) for name in sizes}
        for p in range(base.n_partitions):
            of_rows, of_states = rewards(p)
            digest.add(of_rows, of_states)
            any_terminal |= bool(of_states.any())
            ended = of_states[base.action_counts(p) == 0]
            every = np.concatenate([of_rows.astype(np.float64), ended])
            ranges[p] = (every.min(), every.max()) if every.size else 0.0
            for file, values in zip(files.values(), (of_rows, of_states), strict=True):
                file.write(values.astype(np.float64).tobytes())
    group = SealedGroupWriter(root)
    kept = [name for name in sizes if sizes[name] and (name == "rewards" or any_terminal)]
    for name in kept:
        values = np.memmap(scratch[name], np.float64, "r")
        chunks = (min(_chunk(facts), values.size),)
        group.write(name, values, values.shape, (f"{name}_index",), chunks)
    for file_path in scratch.values():
        file_path.unlink()
    group.write_small("reward_range", ranges.reshape(-1), ("bound",), {})
    group.seal(
        {
            "format": REWARDS_FORMAT,
            "format_version": VERSION,
            "table": {
                "base": {
                    "path": os.path.relpath(base.path.resolve(), path.parent.resolve()),
                    "fingerprint": base.fingerprint,
                },
                "sense": sense,
                "terminal_rewards": any_terminal,
                "fingerprint": digest.hexdigest(),
            },
            "about": {"provenance": dict(provenance)},
        }
    )


def is_reward_store(path: Path) -> bool:
    """Whether a path looks like a store of other rewards, whole or not."""
    try:
        return group_attributes(path).get("format") == REWARDS_FORMAT
    except (OSError, SealError):
        return False


def open_table(path: str | os.PathLike[str]) -> Store | RewardStore:
    """Open a store, or one of other rewards; raises StoreError."""
    return open_reward_store(Path(path)) if is_reward_store(Path(path)) else open_store(path)


def open_reward_store(path: Path, base: Store | None = None) -> RewardStore:
    """Open a store of other rewards, and its base.

    Parameters
    ----------
    base : where it is open already; None to find it by the recorded path.

    Raises
    ------
    StoreError : the path is no such store, half-written, damaged or of another version; or the base is missing,
        damaged, or has other transitions than those that the rewards belong to.
    """
    attributes = check_is_store(path)
    version = attributes.get("format_version")
    if attributes["format"] != REWARDS_FORMAT or version != VERSION:
        raise StoreError(f"{path} has rewards of version {quote(version)}, this release reads {VERSION}; {_REMEDY}")
    try:
        group = SealedGroup(path, attributes)
        table, about = _checked_attributes(attributes)
        base = _base(path, table["base"], base)
        _check_arrays(group, base, table["terminal_rewards"])
    except SealError as error:
        raise StoreError(f"the rewards {path} are damaged ({error}); {_REMEDY}") from error
    return RewardStore(path, base, group, table, about)


def _base(path: Path, said: Mapping[str, Any], opened: Store | None) -> Store:
    """The store whose transitions these are."""
    place = Path(os.path.normpath(path.resolve().parent / said["path"]))
    try:
        base = opened or open_store(place)
    except StoreError as error:
        if not os.path.lexists(place):
            raise StoreError(
                f"{path} has rewards for the transitions of {place}, which is gone; put that store back there (both "
                f"move together), or {_REMEDY}; {OF_TEMPORARY}"
            ) from error
        raise StoreError(
            f"{path} has rewards for the transitions of {place}, which cannot be read: {error}; move both stores "
            f"together, or {_REMEDY}"
        ) from error
    if base.fingerprint != said["fingerprint"]:
        raise StoreError(
            f"{path} has rewards for other transitions than those of {place} (fingerprint {base.fingerprint}, recorded "
            f"{said['fingerprint']}): it was written again since; {_REMEDY}"
        )
    return base


def _checked_attributes(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes `table` and `about`; SealError where they are not as the format has them."""
    check_object(attributes, _TOP, "its attributes")
    table, about = attributes["table"], attributes["about"]
    check_object(table, _TABLE, "table")
    check_object(table["base"], _BASE, "table: base")
    check_object(about, _ABOUT, "about")
    check_object(about["provenance"], _PROVENANCE, "provenance")
    return table, about


def _check_arrays(group: SealedGroup, base: Store, terminal: bool) -> None:
    """Refuse arrays of other names, types or shapes than the base asks for."""
    due = {"reward_range": (2 * base.n_partitions,)}
    if base.n_rows:
        due["rewards"] = (base.n_rows,)
    if terminal:
        due["terminal_rewards"] = (base.n_states,)
    found = {name: array.shape for name, array in group.arrays.items() if array.dtype == np.float64}
    if found != due or len(group.arrays) != len(due):
        raise SealError(f"it has the arrays {found}, and its base asks for {due}, of float64")
    if not np.isfinite(group.read("reward_range")).all():
        raise SealError("reward_range is not finite")
