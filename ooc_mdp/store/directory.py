"""A store's directory, open: everything that is read through it belongs to the store that was opened.

A path may come to stand for another store at any time (`convert --overwrite`); an open directory does not. Files are
opened relative to its descriptor. A shared lock on it refuses `--overwrite` while a solve reads the store. Knows no
formats.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ooc_mdp.errors import StoreError

__all__ = ["Directory"]

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EINVAL)
"""What file systems answer that have no locks on directories."""


class Directory:
    """An open directory, closed when nothing refers to it any more.

    Raises
    ------
    OSError : there is none, or it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)

    def is_at_its_path(self) -> bool:
        """Whether the path still leads to this directory."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except OSError:
            return False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep others from replacing the directory, where the file system has locks.

        Raises
        ------
        StoreError : another process is replacing it.
        """
        held = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)  # a lock of its own
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"{self.path} is being replaced by another process; try again when it ends") from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            if not self.is_at_its_path():
                raise StoreError(f"{self.path} was replaced since it was opened; open it again")
            yield
        finally:
            os.close(held)
