"""Checkpoints: what a solve knows, in one file that is there whole or not at all.

The file holds values, policy, bounds, counters and what is recorded of the method, and ends with the SHA-256 of
everything before it (:mod:`ooc_mdp.store.sealed_file`). It is written under another name, flushed to the disk and
renamed, so that a power cut leaves the previous one. A file that has one of the two names and does not begin as a
checkpoint is never written to, replaced or removed. A checkpoint belongs to one table (fingerprint), sense and
criterion.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.model.criterion import other_identity
from ooc_mdp.model.method_record import MethodRecord
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.store.disk_errors import advice
from ooc_mdp.store.mark import ForeignPathError
from ooc_mdp.store.metadata import PARTIAL_SUFFIX
from ooc_mdp.store.recorded_method import method_record_of
from ooc_mdp.store.sealed_file import (
    ForeignFileError,
    SealError,
    read_sealed_facts,
    read_sealed_file,
    write_sealed_file,
)
from ooc_mdp.store.stage_file import remove_stages, stages_path
from ooc_mdp.store.statistics import resumable_statistics_of
from ooc_mdp.store.transaction import fsync_path

__all__ = [
    "CHECKPOINT_SUFFIX",
    "CheckpointWriteError",
    "check_arrays",
    "check_bounds",
    "check_checkpoint_place",
    "check_policy",
    "check_stages",
    "check_values",
    "checkpoint_path",
    "is_checkpoint",
    "load_checkpoint",
    "load_method",
    "read_checkpoint",
    "remove_checkpoint",
    "save_checkpoint",
]

CHECKPOINT_SUFFIX = ".checkpoint"

T = TypeVar("T")

_VERSION = 5
_FACTS = {"identity", "statistics", "method"}
_TITLE = "ooc-mdp checkpoint"
_ZIP = b"PK"
"""Versions 1 and 2 were NumPy .npz files, which begin with this."""


class CheckpointWriteError(StoreError):
    """A checkpoint could not be written; the one before is as it was."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.what = f"cannot write the checkpoint {path}: {error.strerror or error}"
        self.remedy = advice(error)
        self.before = path.exists()
        """Whether there is one before."""
        kept = "continue from the one before with --resume" if self.before else "solve again, or name another --output"
        super().__init__(f"{self.what}; {self.remedy}, then {kept}")


def checkpoint_path(output: Path) -> Path:
    """Where the checkpoint of a result lies: beside it."""
    return output.with_name(output.name + CHECKPOINT_SUFFIX)


def _temporary(path: Path) -> Path:
    """Where a checkpoint is written before it takes its place."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint that is no longer needed, and what a run that was killed while it wrote one left."""
    for file in (path, _temporary(path)):
        _remove_if_ours(file)
    remove_stages(stages_path(path.with_name(path.name.removesuffix(CHECKPOINT_SUFFIX))))


def check_checkpoint_place(path: Path, resume: bool) -> None:
    """Refuse, before there is any work, what is no checkpoint and would have to be replaced by one.

    Parameters
    ----------
    resume : whether the checkpoint is going to be read, which has its own messages for a damaged one.

    Raises
    ------
    ForeignPathError : the name under which a checkpoint is written is taken by something else.
    StoreError : the checkpoint's own name is.
    """
    if os.path.lexists(_temporary(path)) and not _begins_as_checkpoint(_temporary(path)):
        raise ForeignPathError(_temporary(path))
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link, which no checkpoint replaces; remove it, or name another output")
    if not resume and os.path.lexists(path) and not _begins_as_checkpoint(path):
        raise StoreError(
            f"{path} is no checkpoint of ooc-mdp and is not replaced by one; move it, or name another output"
        )


def _remove_if_ours(path: Path) -> None:
    """Remove what this run or another one wrote or began to write; what else has the name stays."""
    if _begins_as_checkpoint(path):
        path.unlink(missing_ok=True)


def is_checkpoint(path: Path) -> bool:
    """Whether a path looks like a checkpoint of any version, whole or not."""
    return _begins_as_checkpoint(path) and path.stat().st_size > 0


def _begins_as_checkpoint(path: Path) -> bool:
    """Whether a path is a file that begins as a checkpoint of any version, as far as it goes: a kill may cut it off."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        title = _TITLE.encode()
        return stat.S_ISREG(os.fstat(fd).st_mode) and title.startswith(os.read(fd, len(title)).rstrip(b"\0"))
    finally:
        os.close(fd)


def save_checkpoint(
    path: Path,
    identity: dict[str, Any],
    arrays: dict[str, npt.NDArray[Any]],
    statistics: SolveStatistics,
    method: MethodRecord | None = None,
) -> None:
    """Replace the checkpoint in one atomic step.

    Parameters
    ----------
    method : what a resumed solve continues by; None records that the solve chose itself.

    Raises
    ------
    CheckpointWriteError : disk full, no permission; the previous checkpoint stays.
    """
    facts = {"identity": identity, "statistics": asdict(statistics), "method": asdict(method or MethodRecord())}
    temporary = _temporary(path)
    try:
        _remove_if_ours(temporary)
        write_sealed_file(temporary, f"{_TITLE} {_VERSION}", facts, arrays)
        fsync_path(temporary)
        if os.path.lexists(path) and not _begins_as_checkpoint(path):
            raise FileExistsError(errno.EEXIST, "something else has its name", str(path))
        temporary.replace(path)
        fsync_path(path.parent)
    except OSError as error:
        raise CheckpointWriteError(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            _remove_if_ours(temporary)


def load_checkpoint(path: Path, identity: dict[str, Any]) -> tuple[dict[str, npt.NDArray[Any]], SolveStatistics] | None:
    """Arrays and counters of the checkpoint, or None where there is none.

    Raises
    ------
    StoreError : it is damaged, or of another version.
    OptionsError : it belongs to another table, sense or criterion.
    """
    try:
        facts, arrays = read_checkpoint(path)
    except FileNotFoundError:
        return None
    _check_identity(path, facts["identity"], identity)
    try:
        return arrays, resumable_statistics_of(facts["statistics"])
    except SealError as error:
        raise _damaged(path, error) from error


def load_method(path: Path, identity: dict[str, Any]) -> MethodRecord | None:
    """What the checkpoint records of its method, or None where there is none; errors as of :func:`load_checkpoint`."""
    try:
        facts = _read(path, read_sealed_facts)
    except FileNotFoundError:
        return None
    _check_facts(path, facts)
    _check_identity(path, facts["identity"], identity)
    try:
        return method_record_of(facts["method"])
    except SealError as error:
        raise _damaged(path, error) from error


def _check_identity(path: Path, theirs: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse a checkpoint of another table, sense or criterion."""
    difference = other_identity(theirs, identity)
    if difference is not None:
        raise OptionsError(
            f"the checkpoint {path} belongs to {difference}; leave out --resume and remove it, or solve what it "
            f"belongs to"
        )


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Facts (identity, statistics and method, as JSON has them) and arrays of a checkpoint, whatever it belongs to.

    Raises
    ------
    FileNotFoundError : there is none.
    StoreError : it is damaged, or of another version.
    """
    facts, arrays = _read(path, read_sealed_file)
    _check_facts(path, facts)
    return facts, arrays


def _read(path: Path, read: Callable[[Path, str], T]) -> T:
    """What a function reads of a checkpoint's sealed file; StoreError unless there is none."""
    try:
        return read(path, f"{_TITLE} {_VERSION}")
    except FileNotFoundError:
        raise
    except ForeignFileError as error:
        raise _foreign(path, error) from error
    except (SealError, OSError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or error) from error


def _check_facts(path: Path, facts: dict[str, Any]) -> None:
    if set(facts) != _FACTS or not all(isinstance(fact, dict) for fact in facts.values()):
        raise _damaged(path, f"it states {', '.join(sorted(facts)) or 'nothing'}, not identity, statistics and method")


def check_arrays(
    path: Path, arrays: dict[str, npt.NDArray[Any]], expected: dict[str, npt.NDArray[Any]], optional: frozenset[str]
) -> None:
    """Refuse a checkpoint whose arrays are not of the expected shapes and types.

    Raises
    ------
    StoreError : one is missing (and not optional) or of another shape or type.
    """
    for name, due in expected.items():
        found = arrays.get(name)
        if found is None:
            if name not in optional:
                raise _damaged(path, f"it holds no {name}")
        elif (found.shape, found.dtype) != (due.shape, due.dtype):
            raise _damaged(path, f"{name} is {found.dtype} {found.shape}, due is {due.dtype} {due.shape}")


def check_values(path: Path, arrays: Mapping[str, npt.NDArray[Any]], largest: float) -> None:
    """Refuse a checkpoint with numbers that no solve has: values above `largest` in size, bounds that are below 0.

    Parameters
    ----------
    arrays : of a discounted solve; `largest` of the size of a value.

    Raises
    ------
    StoreError : it has.
    """
    for name in ("values", "value_size"):
        if not (np.abs(arrays[name]) <= largest).all():
            raise _damaged(path, f"{name} has numbers that are none, or above {largest:.0e}")
    for rise, fall in (("rise", "fall"), ("plain_rise", "plain_fall")):
        if not (np.maximum(arrays[rise], arrays[fall]) >= 0).all():
            raise _damaged(path, f"{rise} and {fall} are not numbers, or both below 0")


def check_bounds(path: Path, bounds: npt.NDArray[np.float64]) -> None:
    """Refuse a checkpoint of an undiscounted solve whose lower and upper values are not finite; StoreError."""
    if not np.isfinite(bounds).all():
        raise _damaged(path, "its bounds have numbers that are not finite")


def check_stages(path: Path, arrays: Mapping[str, npt.NDArray[Any]], stages: int) -> None:
    """Refuse a checkpoint of a finite horizon whose values are not finite, or that names stages that there are not.

    Raises
    ------
    StoreError : it does.
    """
    done = arrays["done"]
    if not (np.isfinite(arrays["values"]).all() and ((done >= 0) & (done <= stages)).all()):
        raise _damaged(path, f"its values are not finite, or a partition has done more than {stages} stages")
    if not all((arrays[name] >= 0).all() for name in ("errors", "sizes", "stage_errors", "residual")):
        raise _damaged(path, "its bounds have numbers that are below 0 or none")


def check_policy(path: Path, policy: npt.NDArray[np.int32], visited: npt.NDArray[np.bool_], table: Table) -> None:
    """Refuse a checkpoint whose policy names actions that states lack: loops read the row of an action unchecked.

    Parameters
    ----------
    policy : int32 [states], in the order of the table.
    visited : bool [partitions]; the policy of the others is not used.

    Raises
    ------
    StoreError : it does.
    """
    for p in np.flatnonzero(visited).tolist():
        own = policy[table.facts.partition_ptr[p] : table.facts.partition_ptr[p + 1]]
        wrong = np.flatnonzero((own < -1) | (own >= table.action_counts(p)))
        if wrong.size:
            i = int(wrong[0])
            raise _damaged(path, f"its policy names action {own[i]} in state {table.facts.partition_ptr[p] + i}")


def _foreign(path: Path, error: ForeignFileError) -> StoreError:
    """What to do about a file that does not begin as this version's checkpoints do."""
    title, _, version = error.beginning.decode("ascii", "replace").rstrip("\n").rpartition(" ")
    if error.beginning.startswith(_ZIP):
        version = "2 or earlier"
    elif title != _TITLE or not version.isdigit():
        return _damaged(path, f"it does not begin with {_TITLE!r}")
    return StoreError(
        f"the checkpoint {path} is of version {version}, this release reads version {_VERSION}; "
        f"remove it to solve from the beginning"
    )


def _damaged(path: Path, why: object) -> StoreError:
    return StoreError(f"the checkpoint {path} is damaged ({why}); remove it to solve from the beginning")
