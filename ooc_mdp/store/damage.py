"""What is said of a store that is damaged: what is wrong, where, and what to do."""

from __future__ import annotations

import errno
from typing import Any

import numpy.typing as npt

from ooc_mdp.errors import DamagedStoreError, StoreError, raise_system_failure
from ooc_mdp.store.directory import Directory

__all__ = ["REMEDY", "refuse_missing_states", "unreadable_chunk"]

REMEDY = "make the store again"


def unreadable_chunk(directory: Directory, chunk: str, name: str, p: int, error: Exception) -> DamagedStoreError:
    """Why a field's chunk of partition p, a file in the store's directory, cannot be read.

    Raises
    ------
    SystemFailureError : it is not the chunk that is at fault.
    """
    path = directory.path / chunk
    raise_system_failure(error, path)
    if not directory.is_at_its_path():
        return DamagedStoreError(
            f"field {name} of partition {p} cannot be read any more ({error}): {directory.path} was replaced or "
            f"removed since it was opened; open it again"
        )
    if isinstance(error, FileNotFoundError):
        return DamagedStoreError(f"field {name} of partition {p} is missing: {path} does not exist; {REMEDY}")
    special = isinstance(error, OSError) and error.errno in (errno.ESPIPE, errno.EISDIR)
    why = "it is not a regular file" if special else error
    return DamagedStoreError(f"field {name} of partition {p} is damaged in {path}: {why}; {REMEDY}")


def refuse_missing_states(name: str, p: int, states: npt.NDArray[Any], count: int) -> None:
    """Refuse states that do not exist: loops follow them without looking."""
    if states.size and not 0 <= int(states.min()) <= int(states.max()) < count:
        wrong = int(states.max()) if int(states.max()) >= count else int(states.min())
        raise StoreError(f"field {name} of partition {p} names state {wrong}, and there are {count}; {REMEDY}")
