"""A store's directory, open: everything that is read through it belongs to the store that was opened.

A path may come to stand for another store at any time (`convert --overwrite`); an open directory does not. Files are
opened relative to its descriptor. Knows no formats.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ooc_mdp.errors import StoreError, raise_system_failure
from ooc_mdp.store.locks import OpenDirectory, is_at, try_lock

__all__ = ["OF_TEMPORARY", "Directory"]

OF_TEMPORARY = (
    "if it was a temporary store (from_arrays, from_rows or from_gymnasium without a path), keep the object that made "
    "it, or give path="
)
"""What to do where a store is gone; a temporary one is removed with the last object that holds its directory open."""


class Directory(OpenDirectory):
    """An open directory that knows its path, closed with the last reference.

    Raises
    ------
    OSError : there is none, or it cannot be opened.
    SystemFailureError : the system lacks file descriptors, or the disk fails.
    """

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path)
        except OSError as error:
            raise_system_failure(error, path)
            raise
        self.path = path

    def is_at_its_path(self) -> bool:
        """Whether the path still leads to this directory."""
        return is_at(self.fd, self.path)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep others from replacing the directory (a shared flock), where the file system has locks.

        Raises
        ------
        StoreError : another process is replacing it, or it was replaced or removed since it was opened.
        """
        try:
            lock = OpenDirectory(Path("."), self.fd)  # opened again, so that each holder has a lock of its own
        except OSError as error:
            raise_system_failure(error, self.path)
            raise
        try:
            try:
                try_lock(lock.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"{self.path} is being replaced by another process; try again when it ends") from None
            if not self.is_at_its_path():
                if self.path.exists():
                    raise StoreError(f"{self.path} was replaced since it was opened; open it again")
                raise StoreError(f"{self.path} was removed since it was opened; {OF_TEMPORARY}")
            yield
        finally:
            lock.close()
