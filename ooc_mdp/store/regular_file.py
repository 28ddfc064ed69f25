"""Reads files of stores, results and checkpoints: regular ones only, and never more bytes than the caller allows.

A FIFO in a file's place does not block, a device is refused, and a sparse file of many gigabytes costs no memory: the
size is compared before memory is taken. Knows no formats.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import raise_system_failure

__all__ = ["MAX_METADATA_BYTES", "read_metadata_file", "read_regular_file"]

MAX_METADATA_BYTES = 64 << 20
"""A zarr.json is refused above this; one of a table in 10^6 partitions has a few MiB."""

Bytes = npt.NDArray[np.uint8]


def _allocate(size: int) -> Bytes:
    return np.empty(size, np.uint8)


def read_regular_file(
    path: Path | str,
    max_bytes: int,
    *,
    directory: int | None = None,
    allocate: Callable[[int], Bytes] = _allocate,
) -> Bytes:
    """All bytes of a regular file.

    Parameters
    ----------
    max_bytes : a larger file is refused before memory is taken.
    directory : open descriptor that a relative path starts from.
    allocate : gives memory for so many bytes.

    Raises
    ------
    OSError : it cannot be read, is no regular file (EINVAL), is larger (EFBIG), or shrank while it was read (ENODATA).
    SystemFailureError : the system lacks file descriptors or memory, or the disk fails.
    """
    try:
        return _read(path, max_bytes, directory, allocate)
    except OSError as error:
        raise_system_failure(error, path)
        raise


def _read(path: Path | str, max_bytes: int, directory: int | None, allocate: Callable[[int], Bytes]) -> Bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, at most {max_bytes} are expected", str(path))
        content = allocate(status.st_size)
        view, done = memoryview(content.data), 0
        while done < content.size:
            got = os.preadv(fd, [view[done:]], done)
            if got == 0:
                raise OSError(errno.ENODATA, "the file shrank while it was read", str(path))
            done += got
    finally:
        os.close(fd)
    return content


def read_metadata_file(path: Path | str, *, directory: int | None = None) -> bytes:
    """A zarr.json or another small text; OSError as :func:`read_regular_file`."""
    return read_regular_file(path, MAX_METADATA_BYTES, directory=directory).tobytes()
