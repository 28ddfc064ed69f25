"""Checkpoints: what a solve knows, in one file that is there whole or not at all.

The file is a NumPy .npz of values, policy, bounds and counters, written under another name, flushed to the disk and
renamed; a power cut leaves the previous one. It belongs to one table (fingerprint), sense and discount.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.solution import SolveStatistics
from ooc_mdp.store.disk_faults import remedy
from ooc_mdp.store.metadata import PARTIAL_SUFFIX
from ooc_mdp.store.transaction import InPlaceError, sync

__all__ = [
    "CHECKPOINT_SUFFIX",
    "UnwrittenCheckpointError",
    "check_arrays",
    "checkpoint_path",
    "load_checkpoint",
    "remove_checkpoint",
    "save_checkpoint",
    "saved_or_told",
    "saved_unless_written",
]

CHECKPOINT_SUFFIX = ".checkpoint"

_VERSION = 2


class UnwrittenCheckpointError(StoreError):
    """A checkpoint could not be written; the one before is as it was."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.what = f"cannot write the checkpoint {path}: {error.strerror or error}"
        self.remedy = remedy(error)
        self.before = path.exists()
        """Whether there is one before."""
        kept = "go on from the one before with --resume" if self.before else "solve again, or name another --output"
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
        file.unlink(missing_ok=True)


def save_checkpoint(
    path: Path,
    identity: dict[str, Any],
    arrays: dict[str, npt.NDArray[Any]],
    statistics: SolveStatistics,
) -> None:
    """Replace the checkpoint in one atomic step.

    Raises
    ------
    UnwrittenCheckpointError : disk full, no permission; the previous checkpoint stays.
    """
    facts = json.dumps({"version": _VERSION, "identity": identity, "statistics": asdict(statistics)})
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as f:
            np.savez(f, facts=np.frombuffer(facts.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise UnwrittenCheckpointError(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def saved_or_told(save: Callable[[], None], note: Callable[[str], None], failing: bool) -> bool:
    """Write a checkpoint of a solve that goes on without it where that fails; whether it is written.

    Parameters
    ----------
    failing : the last could not be written; what was said then is not said again.
    """
    try:
        save()
    except UnwrittenCheckpointError as error:
        if not failing:
            left = "goes on from the one before" if error.before else "has nothing to go on from"
            note(f"{error.what}; the solve goes on and tries again: {error.remedy}. Until then --resume {left}")
        return False
    if failing:
        note("checkpoints are written again")
    return True


@contextmanager
def saved_unless_written(save: Callable[[], None] | None, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Where writing a result fails, on a full disk say, keep what was solved as a checkpoint, if that can be written.

    Parameters
    ----------
    save : writes the checkpoint.
    undo : brings what it saves back to what it was before the result was made of it.
    """
    try:
        yield
    except InPlaceError:
        raise
    except BaseException as error:
        if save is None:
            raise
        undo()
        try:
            save()
            kept = True
        except UnwrittenCheckpointError as unwritten:
            kept = unwritten.before
        if kept and isinstance(error, StoreError):
            raise StoreError(f"{error}; what was solved is kept in the checkpoint: then go on with --resume") from error
        raise


def load_checkpoint(path: Path, identity: dict[str, Any]) -> tuple[dict[str, npt.NDArray[Any]], SolveStatistics] | None:
    """Arrays and counters of the checkpoint, or None where there is none.

    Raises
    ------
    StoreError : it is damaged.
    OptionsError : it belongs to another table, sense or discount.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(arrays.pop("facts").tobytes())
        statistics = SolveStatistics(**facts["statistics"])
        version, theirs = facts["version"], facts["identity"]
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever the readers of zip, npy and JSON make of damaged bytes
        raise _damaged(path, error) from error
    if version != _VERSION:
        raise StoreError(
            f"the checkpoint {path} is of version {version}, this release reads version {_VERSION}; "
            f"remove it to solve from the beginning"
        )
    for name, mine in identity.items():
        if theirs.get(name) != mine:
            raise OptionsError(
                f"the checkpoint {path} belongs to {name} {theirs.get(name)}, not {mine}; "
                f"leave out --resume and remove it, or solve what it belongs to"
            )
    return arrays, statistics


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


def _damaged(path: Path, why: object) -> StoreError:
    return StoreError(f"the checkpoint {path} is damaged ({why}); remove it to solve from the beginning")
