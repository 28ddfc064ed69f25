"""Open a model's file: regular files only, checked before a byte is read.

Blocks of a file are read in any order, and again where needed, which a pipe, a terminal or /dev/zero does not allow.
This module knows no format.
"""

from __future__ import annotations

import os
import stat
from os import PathLike
from typing import BinaryIO

from ooc_mdp.errors import InputError, raise_system_failure

__all__ = ["file_size", "open_file"]

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def _check_regular(path: str, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((name for test, name in _KINDS if test(mode)), "a special file")
    raise InputError(path, f"this is {kind}, not a regular file; write the model to a file and name that")


def open_file(path: str | PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, unbuffered.

    Raises
    ------
    InputError : it does not exist, may not be read, or is a directory, a pipe or a device. A pipe is refused
        without waiting for its writer.
    SystemFailureError : the system lacks file descriptors, or the disk fails.
    """
    name = os.fspath(path)
    try:
        _check_regular(name, os.stat(name).st_mode)
        descriptor = os.open(
            name,
            os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0),
        )
    except FileNotFoundError:
        raise InputError(name, "no such file; check the path") from None
    except PermissionError:
        raise InputError(name, "no permission to read it; check its owner and mode (chmod u+r)") from None
    except (OSError, ValueError) as error:
        raise_system_failure(error, name)
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(name, f"cannot be opened: {reason}; check the path") from None
    try:
        _check_regular(name, os.fstat(descriptor).st_mode)
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def file_size(path: str | PathLike[str]) -> int:
    """Bytes of a regular file that can be read; raises InputError as :func:`open_file` does."""
    with open_file(path) as file:
        return os.fstat(file.fileno()).st_size
