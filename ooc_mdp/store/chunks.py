"""One chunk: values <-> blosc frame + crc32c <-> file. Knows nothing of partitions, only of arrays and files.

A chunk decodes to max_len values, of which a partition uses the first n. The padding costs no memory on
either side: encoding reads it from untouched zero pages, and decoding stops after the blosc block that holds
value n, by lowering the frame's decoded size (blosc 1 blocks are independent and found through offsets in the
frame's head).

    byte  0 1 2 3   4..7     8..11      12..15   16 ..
          v . f t   nbytes   blocksize  cbytes   offsets of blocks, blocks   | crc32c (little-endian, 4 bytes)
              |
              flags: bit 0 = bytes shuffled, 1 = stored without compression, 2 = bits shuffled, 4 = blocks are one
              stream each, 5-7 = the compressor
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from ooc_mdp.errors import StoreError
from ooc_mdp.store.layout import Field

__all__ = [
    "MAX_CHUNK_BYTES",
    "ChunkDamage",
    "FrameHeader",
    "checked",
    "checksum_of",
    "chunk_file",
    "crc32c_function",
    "decode_chunk",
    "encode_chunk",
    "frame_header",
    "is_intact",
    "read_chunk",
    "read_into",
    "read_plain",
    "write_file",
]

MAX_CHUNK_BYTES = blosc.MAX_BUFFERSIZE
"""Decoded bytes that one blosc frame can hold (2 GiB less a header)."""

_HEADER = 16
_FIELDS = struct.Struct("<2xBBIII")
_FRAME_BYTES = struct.Struct("<12xI")
_CRC = 4
_READ = os.O_RDONLY | os.O_CLOEXEC
_SHUFFLED, _STORED, _BITS_SHUFFLED, _NOT_SPLIT = 0x1, 0x2, 0x4, 0x10
_LZ4 = 1
_MOST_STREAMS, _LEAST_STREAM = 16, 128
"""Blocks are split into as many streams as their values have bytes, within these limits of blosc 1."""
_SHUFFLES = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}

Bytes = npt.NDArray[np.uint8]


class ChunkDamage(Exception):
    """A chunk's bytes are not what was written; the caller knows which chunk it is."""


def own_bytes(size: int) -> Bytes:
    """Memory that nobody else has."""
    return np.empty(size, np.uint8)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The first 16 bytes of a blosc frame."""

    flags: int
    typesize: int
    n_bytes: int
    """Decompressed bytes."""
    block_bytes: int
    """Decompressed bytes of each block but the last."""
    frame_bytes: int
    """Bytes of the frame."""

    SIZE: ClassVar[int] = _HEADER

    @property
    def as_is(self) -> bool:
        """Whether values follow the header, neither compressed nor shuffled."""
        return bool(self.flags & _STORED)

    @property
    def shuffled(self) -> bool:
        """Whether a block holds the first byte of its values, then the second ..."""
        return bool(self.flags & _SHUFFLED) and self.typesize > 1

    @property
    def is_lz4(self) -> bool:
        """Whether blocks are LZ4, of bytes in order or shuffled, and made of whole values."""
        whole = self.typesize > 0 and self.block_bytes > 0 and self.block_bytes % self.typesize == 0
        return self.flags >> 5 == _LZ4 and not self.flags & _BITS_SHUFFLED and whole

    @property
    def streams(self) -> int:
        """Streams of every block of block_bytes; a shorter last block is one stream."""
        split = not self.flags & _NOT_SPLIT and self.typesize <= _MOST_STREAMS
        return self.typesize if split and self.block_bytes // self.typesize >= _LEAST_STREAM else 1


def encode_chunk(
    field: Field, values: npt.NDArray[Any], max_len: int, encoding: str | None = None
) -> tuple[bytes, int]:
    """Blosc frame of the values padded to max_len, and its crc32c.

    Parameters
    ----------
    encoding : the form in which the values are; None for values as they are.

    Raises
    ------
    StoreError : the padded chunk exceeds what one blosc frame can hold.
    """
    nbytes = max_len * values.itemsize
    if nbytes > MAX_CHUNK_BYTES:
        raise StoreError(
            f"a chunk of {field.name} would take {nbytes} bytes, one can hold {MAX_CHUNK_BYTES}; "
            "use more or smaller partitions"
        )
    if values.size == max_len:
        padded = np.ascontiguousarray(values)
    else:
        padded = np.zeros(max_len, values.dtype)
        padded[: values.size] = values
    codec = field.codec(encoding)
    frame = blosc.Blosc(
        cname=codec.cname, clevel=codec.clevel, shuffle=_SHUFFLES[codec.shuffle], typesize=values.itemsize
    ).encode(padded)
    return frame, google_crc32c.value(frame)


def decode_chunk(
    chunk: Bytes, dtype: np.dtype[Any], count: int, max_len: int, new: Callable[[int], Bytes] = own_bytes
) -> npt.NDArray[Any]:
    """The first `count` of a chunk's max_len values, after checking its crc32c.

    Parameters
    ----------
    chunk : the whole file; its header is modified.
    new : gives memory of so many bytes for the values.

    Raises
    ------
    ChunkDamage : the checksum does not hold, or the frame is not one of max_len values.
    """
    frame = checked(chunk)
    header = frame_header(frame, max_len * dtype.itemsize)
    wanted = count * dtype.itemsize
    if wanted == 0:
        return np.empty(0, dtype)
    if header.as_is:
        out = new(wanted)
        out[:] = frame[_HEADER : _HEADER + wanted]
        return out.view(dtype)
    nbytes, blocksize = header.n_bytes, header.block_bytes
    decoded = min(nbytes, -(-wanted // blocksize) * blocksize) if blocksize else nbytes
    frame[4:8].view("<u4")[0] = decoded
    out = new(decoded)
    try:
        blosc.decompress(frame, out)
    except (RuntimeError, ValueError) as error:
        raise ChunkDamage(f"blosc cannot decode it: {error}") from error
    return out[:wanted].view(dtype)


def frame_header(frame: Bytes, n_bytes: int) -> FrameHeader:
    """The header of a whole frame of so many decompressed bytes. Raises ChunkDamage if it is none."""
    if frame.size < _HEADER:
        raise ChunkDamage(f"{frame.size} bytes are no blosc frame")
    header = FrameHeader(*_FIELDS.unpack_from(frame.data))
    if header.n_bytes != n_bytes or header.frame_bytes != frame.size:
        raise ChunkDamage(
            f"a frame of {header.frame_bytes} bytes for {header.n_bytes}, expected {frame.size} for {n_bytes}"
        )
    return header


def read_chunk(
    path: Path | str,
    dtype: np.dtype[Any],
    count: int,
    max_len: int,
    frame: Callable[[int], Bytes] = own_bytes,
    new: Callable[[int], Bytes] = own_bytes,
) -> tuple[npt.NDArray[Any], int]:
    """The first `count` values of a chunk file, in memory of `new`, and the bytes read, in that of `frame`.

    Raises ChunkDamage or OSError.
    """
    chunk = chunk_file(path, frame)
    return decode_chunk(chunk, dtype, count, max_len, new), chunk.size


def is_intact(path: Path, n_bytes: int, crc: int) -> bool:
    """Whether a chunk file is there with so many bytes, and with this crc32c, which also ends it."""
    try:
        chunk = chunk_file(path)
    except FileNotFoundError:
        return False
    return chunk.size == n_bytes and chunk[-_CRC:].tobytes() == crc.to_bytes(_CRC, "little") == _crc_of(chunk[:-_CRC])


def checksum_of(path: Path) -> int:
    """The crc32c that ends a chunk file, which is not held against its content. Raises OSError, or ChunkDamage."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) < _CRC:
            raise ChunkDamage(f"{file.tell()} bytes are no chunk")
        file.seek(-_CRC, os.SEEK_END)
        return int.from_bytes(file.read(_CRC), "little")


def read_plain(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A small array's only chunk: values and crc32c. Raises ChunkDamage or FileNotFoundError."""
    values = checked(chunk_file(path))
    if values.size != int(np.prod(shape)) * dtype.itemsize:
        raise ChunkDamage(f"{values.size} bytes for an array of shape {shape} and type {dtype}")
    return values.view(dtype).reshape(shape)


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


def checked(chunk: Bytes) -> Bytes:
    """A chunk file's bytes without the checksum that ends them. Raises ChunkDamage where it does not hold."""
    if chunk.size < _CRC:
        raise ChunkDamage(f"{chunk.size} bytes leave no room for a checksum")
    body = chunk[:-_CRC]
    if _crc_of(body) != chunk[-_CRC:].tobytes():
        raise ChunkDamage("the checksum does not match")
    return body


def chunk_file(path: Path | str, new: Callable[[int], Bytes] = own_bytes) -> Bytes:
    """A file's bytes, in memory of `new`."""
    with _opened(path) as fd:
        chunk = new(os.fstat(fd).st_size)
        _fill(fd, chunk, path)
    return chunk


def read_into(path: Path | str, buffer: Bytes) -> Bytes:
    """A chunk file's bytes, read into the start of a buffer: that part of it.

    A frame's head says how long its file is, so that one call of the system is enough: threads that read wait for the
    interpreter's lock after each.

    Raises
    ------
    ChunkDamage : the file is larger than the buffer.
    """
    fd = os.open(path, _READ)
    try:
        size = os.preadv(fd, [buffer.data], 0)
        while size < _HEADER or size != _FRAME_BYTES.unpack_from(buffer.data)[0] + _CRC:
            if size == buffer.size and os.fstat(fd).st_size > size:
                raise ChunkDamage(
                    f"the file has {os.fstat(fd).st_size} bytes where {size} are left of what the store says"
                )
            more = os.preadv(fd, [buffer.data[size:]], size)
            if more == 0:
                break
            size += more
    finally:
        os.close(fd)
    return buffer[:size]


def _crc_of(body: Bytes) -> bytes:
    return crc32c_function()(body).to_bytes(_CRC, "little")


@cache
def crc32c_function() -> Callable[[Bytes], int]:
    """The crc32c of contiguous bytes, without the interpreter's lock where that can be had.

    ``google_crc32c.value`` holds the lock, so that all reading threads wait while one of them checks (70 ms a
    gigabyte). The C function behind it needs no lock: it is called through ctypes where the package's own extension
    leads to it.
    """
    try:
        extension = importlib.import_module("google_crc32c._crc32c").__file__
        function = ctypes.CDLL(extension).crc32c_value
    except (ImportError, OSError, AttributeError):
        return lambda body: int(google_crc32c.value(body))
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    function.restype = ctypes.c_uint32
    return lambda body: int(function(body.ctypes.data, body.nbytes))


@contextmanager
def _opened(path: Path | str) -> Iterator[int]:
    fd = os.open(path, _READ)
    try:
        yield fd
    finally:
        os.close(fd)


def _fill(fd: int, chunk: Bytes, path: Path | str) -> None:
    view = memoryview(chunk.data)
    done = 0
    while done < chunk.size:
        got = os.preadv(fd, [view[done:]], done)
        if got == 0:
            raise OSError(errno.EIO, "the file shrank while it was read", str(path))
        done += got
