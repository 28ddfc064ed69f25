"""One chunk: values <-> blosc frame + crc32c <-> file. Knows nothing of partitions, only of arrays and files.

A chunk decodes to max_len values, of which a partition uses the first n. The padding costs no memory on
either side: encoding reads it from untouched zero pages, and decoding stops after the blosc block that holds
value n, by lowering the frame's decoded size (blosc 1 blocks are independent and found through offsets in the
frame's head).

    byte  0 1 2 3   4..7     8..11      12..15   16 ..
          v . f t   nbytes   blocksize  cbytes   offsets of blocks, blocks   | crc32c (little-endian, 4 bytes)
              |
              flags: bit 1 = stored without compression
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from ooc_mdp.errors import StoreError
from ooc_mdp.store.layout import Field

__all__ = [
    "MAX_CHUNK_BYTES",
    "ChunkDamage",
    "decode_chunk",
    "encode_chunk",
    "is_intact",
    "read_chunk",
    "read_plain",
    "write_file",
]

MAX_CHUNK_BYTES = blosc.MAX_BUFFERSIZE
"""Decoded bytes that one blosc frame can hold (2 GiB less a header)."""

_HEADER = 16
_CRC = 4
_STORED = 0x2
_SHUFFLES = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}

Bytes = npt.NDArray[np.uint8]


class ChunkDamage(Exception):
    """A chunk's bytes are not what was written; the caller knows which chunk it is."""


def encode_chunk(field: Field, values: npt.NDArray[Any], max_len: int) -> tuple[bytes, int]:
    """Blosc frame of the values padded to max_len, and its crc32c.

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
    frame = blosc.Blosc(
        cname=field.cname, clevel=field.clevel, shuffle=_SHUFFLES[field.shuffle], typesize=values.itemsize
    ).encode(padded)
    return frame, google_crc32c.value(frame)


def decode_chunk(chunk: Bytes, dtype: np.dtype[Any], count: int, max_len: int) -> npt.NDArray[Any]:
    """The first `count` of a chunk's max_len values, after checking its crc32c.

    `chunk` is the whole file; its header is modified.

    Raises
    ------
    ChunkDamage : the checksum does not hold, or the frame is not one of max_len values.
    """
    frame = _checked(chunk)
    if frame.size < _HEADER:
        raise ChunkDamage(f"{frame.size} bytes are no blosc frame")
    header = frame[4:_HEADER].view("<u4")
    nbytes, blocksize, cbytes = (int(x) for x in header)
    if nbytes != max_len * dtype.itemsize or cbytes != frame.size:
        raise ChunkDamage(
            f"a frame of {cbytes} bytes for {nbytes}, expected {frame.size} for {max_len * dtype.itemsize}"
        )
    wanted = count * dtype.itemsize
    if wanted == 0:
        return np.empty(0, dtype)
    if frame[2] & _STORED:
        return frame[_HEADER : _HEADER + wanted].view(dtype).copy()
    decoded = min(nbytes, -(-wanted // blocksize) * blocksize) if blocksize else nbytes
    header[0] = decoded
    out = np.empty(decoded, np.uint8)
    try:
        blosc.decompress(frame, out)
    except (RuntimeError, ValueError) as error:
        raise ChunkDamage(f"blosc cannot decode it: {error}") from error
    return out[:wanted].view(dtype)


def read_chunk(path: Path, dtype: np.dtype[Any], count: int, max_len: int) -> tuple[npt.NDArray[Any], int]:
    """The first `count` values of a chunk file and the bytes read. Raises ChunkDamage or OSError."""
    chunk = _read_file(path)
    return decode_chunk(chunk, dtype, count, max_len), chunk.size


def is_intact(path: Path, n_bytes: int, crc: int) -> bool:
    """Whether a chunk file is there with so many bytes, and with this crc32c, which also ends it."""
    try:
        chunk = _read_file(path)
    except FileNotFoundError:
        return False
    return chunk.size == n_bytes and chunk[-_CRC:].tobytes() == crc.to_bytes(_CRC, "little") == _crc_of(chunk[:-_CRC])


def read_plain(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A small array's only chunk: values and crc32c. Raises ChunkDamage or FileNotFoundError."""
    values = _checked(_read_file(path))
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


def _checked(chunk: Bytes) -> Bytes:
    if chunk.size < _CRC:
        raise ChunkDamage(f"{chunk.size} bytes leave no room for a checksum")
    body = chunk[:-_CRC]
    if _crc_of(body) != chunk[-_CRC:].tobytes():
        raise ChunkDamage("the checksum does not match")
    return body


def _crc_of(body: Bytes) -> bytes:
    return int(google_crc32c.value(body)).to_bytes(_CRC, "little")


def _read_file(path: Path) -> Bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunk = np.empty(os.fstat(fd).st_size, np.uint8)
        view = memoryview(chunk.data)
        done = 0
        while done < chunk.size:
            got = os.preadv(fd, [view[done:]], done)
            if got == 0:
                raise OSError(errno.EIO, "the file shrank while it was read", str(path))
            done += got
    finally:
        os.close(fd)
    return chunk
