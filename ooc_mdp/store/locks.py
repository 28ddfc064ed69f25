"""Advisory locks on directories: many processes read a store, or one replaces it.

    shared flock on STORE              held by processes that read it (`ooc_mdp.store.directory`)
    exclusive flock on STORE           taken by a process that replaces it, refused while another holds it
    exclusive flock on STORE.partial   held by the process that writes it (`ooc_mdp.store.transaction`)

A lock belongs to the open directory, not to its name: it travels with a rename, and the system gives it back when the
process ends, however it ends. Some file systems have no such locks; there every attempt succeeds without one. Outputs
are locked before the work by `ooc_mdp.store.output_lock`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from pathlib import Path
from typing import Any, Self

from ooc_mdp.errors import StoreError

__all__ = [
    "BusyError",
    "OpenDirectory",
    "holder_of",
    "is_at",
    "lock_against_readers",
    "refuse_readers",
    "try_lock",
]

_UNSUPPORTED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EBADF)
"""How file systems say that they have no flock; NFS answers EBADF to an exclusive one on a descriptor for reading."""
_LOCKS = Path("/proc/locks")


class BusyError(StoreError):
    """Another process reads or writes what was to be written."""


class OpenDirectory:
    """A directory's descriptor, closed with the last reference at the latest: a signal at any line leaves no lock.

    A copy is the object itself, since two owners would close the number twice, the second time as somebody's file.
    """

    fd = -1

    def __init__(self, path: Path, start: int | None = None, *, follow: bool = True) -> None:
        """Open a path, relative to the descriptor `start` where there is one; a link only where links are followed."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        self.fd = os.open(path, flags, dir_fd=start)

    def close(self) -> None:
        """Close it, and give back its lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("an open directory cannot be pickled; pickle its path and open it again")


def try_lock(fd: int, operation: int) -> bool:
    """Apply flock; whether the file system has it.

    Raises
    ------
    BlockingIOError : another descriptor has a lock that excludes this one.
    """
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def is_at(fd: int, path: Path, *, follow: bool = True) -> bool:
    """Whether a path leads to the open file or directory; False after it was moved, replaced or removed."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=follow))
    except FileNotFoundError:
        return False


def refuse_readers(directory: Path) -> None:
    """Refuse to replace a directory that another process holds; what is missing or no directory is held by none.

    Raises
    ------
    BusyError : another process reads it.
    """
    try:
        opened = OpenDirectory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        lock_against_readers(opened.fd, directory)
    finally:
        opened.close()


def lock_against_readers(fd: int, directory: Path) -> None:
    """Take the exclusive lock of an open directory that is to be replaced.

    Raises
    ------
    BusyError : another process reads it.
    """
    try:
        try_lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError(
            f"{directory} is being read by another process{holder_of(fd)}; wait for it or choose another name"
        ) from None


def holder_of(fd: int) -> str:
    """A clause `(pid N on HOST)` for a process that has a lock on an open file; empty where the system does not say."""
    status = os.fstat(fd)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:  # "1: FLOCK  ADVISORY  READ 1234 08:02:131073 0 EOF", with "->" before FLOCK where it waits
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
            return f" (pid {words[4]} on {platform.node()})"
    return ""
