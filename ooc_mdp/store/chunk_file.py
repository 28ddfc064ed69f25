"""One chunk file: a frame and its CRC-32C, read whole against the manifest's entry, or written whole.

    file    | frame: manifest's length - 4 bytes | crc32c (little-endian, 4 bytes) |

A read asks for one byte more than the manifest says, in one system call and into memory of that size: a longer or
shorter file is refused, and neither a sparse giant nor a FIFO can take memory or block. What is handed on has the
checksum of the manifest, so it is the chunk of that field and partition, not only a whole chunk.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from ooc_mdp.store.regular_file import read_regular_file

__all__ = [
    "CRC_BYTES",
    "ChunkEntry",
    "CorruptChunkError",
    "allocate",
    "crc32c_address",
    "crc32c_function",
    "is_intact",
    "read_frame_file",
    "read_uncompressed",
    "write_chunk",
    "write_file",
]

CRC_BYTES = 4
_CRC = struct.Struct("<I")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

Bytes = npt.NDArray[np.uint8]


class CorruptChunkError(Exception):
    """A chunk's bytes are not those that were written; the caller knows which chunk it is."""


class ChunkEntry(NamedTuple):
    """What the manifest says of one chunk file."""

    n_bytes: int
    """Bytes of the file, its checksum included."""
    crc32c: int
    """Of the frame, without the four bytes that end the file."""
    sha256: bytes | None = None
    """Of the whole file; None where a read does not check it."""


def allocate(size: int) -> Bytes:
    """New memory for so many bytes."""
    return np.empty(size, np.uint8)


def read_frame_file(path: Path | str, entry: ChunkEntry, buffer: Bytes, directory: int | None = None) -> Bytes:
    """The frame of a chunk file, in the start of a buffer.

    One call of the system is enough for a file of the right length: threads that read wait for the interpreter's lock
    after each.

    Parameters
    ----------
    buffer : uint8, at least one byte longer than the file.
    directory : open descriptor that a relative path starts from.

    Raises
    ------
    CorruptChunkError : length or checksum is not the manifest's.
    OSError : it cannot be read.
    """
    wanted, crc32c, sha256 = entry
    if not CRC_BYTES <= wanted < buffer.size:
        raise CorruptChunkError(f"the manifest says {wanted} bytes, and {buffer.size - 1} are left in the buffer")
    view = buffer.data
    fd = os.open(path, _READ, dir_fd=directory)
    try:
        size = os.preadv(fd, [view[: wanted + 1]], 0)
        while size < wanted and (more := os.preadv(fd, [view[size : wanted + 1]], size)):
            size += more
    finally:
        os.close(fd)
    if size != wanted:
        raise CorruptChunkError(f"the file has {'more' if size > wanted else size} bytes, the manifest says {wanted}")
    frame = buffer[: wanted - CRC_BYTES]
    found = crc32c_function()(frame)
    if found != crc32c or _CRC.unpack_from(view, wanted - CRC_BYTES)[0] != crc32c:
        raise CorruptChunkError(_mismatch(found, _CRC.unpack_from(view, wanted - CRC_BYTES)[0]))
    if sha256 is not None and hashlib.sha256(view[:wanted]).digest() != sha256:
        raise CorruptChunkError("its SHA-256 is not the manifest's, although its CRC-32C is: it was forged")
    return frame


def _mismatch(found: int, stored: int) -> str:
    if found != stored:
        return "the checksum does not match"
    return "it is an intact chunk, but not the one in the manifest: exchanged or replaced"


def is_intact(path: Path, entry: ChunkEntry) -> bool:
    """Whether a chunk file is there and is what the entry says."""
    try:
        read_frame_file(path, entry, allocate(entry.n_bytes + 1))
    except (FileNotFoundError, CorruptChunkError):
        return False
    return True


def read_uncompressed(
    path: Path | str, dtype: np.dtype[Any], shape: tuple[int, ...], directory: int | None = None
) -> npt.NDArray[Any]:
    """A small array's only chunk: its values, and their CRC-32C.

    Raises
    ------
    CorruptChunkError : the file's length is not that of such an array, or the checksum does not match.
    OSError : it cannot be read.
    """
    n_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize + CRC_BYTES
    content = read_regular_file(path, n_bytes, directory=directory)
    if content.size != n_bytes:
        raise CorruptChunkError(f"the file has {content.size} bytes, an array of shape {shape} takes {n_bytes}")
    values = content[:-CRC_BYTES]
    if _checksum(values) != content[-CRC_BYTES:].tobytes():
        raise CorruptChunkError("the checksum does not match")
    return values.view(dtype).reshape(shape)


def write_chunk(path: Path, frame: bytes) -> ChunkEntry:
    """Write a frame and its checksum, and return the manifest's entry."""
    crc = google_crc32c.value(frame)
    end = crc.to_bytes(CRC_BYTES, "little")
    digest = hashlib.sha256(frame)
    digest.update(end)
    path.parent.mkdir(parents=True, exist_ok=True)
    return ChunkEntry(write_file(path, frame, end), crc, digest.digest())


def write_file(path: Path, *parts: bytes | memoryview) -> int:
    """Write a file whole, from parts, and return its size."""
    size = 0
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                written = file.write(view)
                size += written
                view = view[written:]
    return size


def _checksum(body: Bytes) -> bytes:
    return crc32c_function()(body).to_bytes(CRC_BYTES, "little")


@cache
def crc32c_function() -> Callable[[Bytes], int]:
    """The crc32c of contiguous bytes, without the interpreter's lock where that can be had.

    ``google_crc32c.value`` holds the lock, so that all reading threads wait while one of them checks (70 ms a
    gigabyte). The C function behind it needs no lock: it is called through ctypes where the package's own extension
    leads to it.
    """
    function = _crc32c_value()
    if function is None:
        return lambda body: int(google_crc32c.value(body))
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    function.restype = ctypes.c_uint32
    return lambda body: function(body.__array_interface__["data"][0], body.nbytes)  # sooner than body.ctypes.data


def crc32c_address() -> int | None:
    """Of the C function behind `google_crc32c.value`, which takes an address and a size; None without it."""
    function = _crc32c_value()
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@cache
def _crc32c_value() -> Any:
    try:
        return ctypes.CDLL(importlib.import_module("google_crc32c._crc32c").__file__).crc32c_value
    except (ImportError, OSError, AttributeError):
        return None
