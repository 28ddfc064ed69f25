"""Values <-> a blosc frame. Knows nothing of partitions or files.

A frame decodes to a padded length (`ooc_mdp.store.layout.padded_length`), of which a partition uses the first values:
what is decoded is less than 1/32 more than what is used.

    byte  0 1 2 3   4..7     8..11      12..15   16 ..
          v . f t   nbytes   blocksize  cbytes   offsets of blocks, blocks
              |
              flags: bit 0 = bytes shuffled, 1 = stored without compression, 2 = bits shuffled, 4 = blocks are one
              stream each, 5-7 = the compressor
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from ooc_mdp.errors import StoreError
from ooc_mdp.store.chunk_file import CorruptChunkError, allocate
from ooc_mdp.store.layout import BLOCK_BYTES, Field, padded_length

__all__ = [
    "HEADER_BYTES",
    "MAX_CHUNK_BYTES",
    "FrameHeader",
    "decode_frame",
    "decompress_address",
    "encode_frame",
    "frame_header",
]

MAX_CHUNK_BYTES = blosc.MAX_BUFFERSIZE
"""Decoded bytes that one blosc frame can hold (2 GiB less a header)."""

HEADER_BYTES = 16
_FIELDS = struct.Struct("<2xBBIII")
_SHUFFLED, _STORED, _BITS_SHUFFLED, _NOT_SPLIT = 0x1, 0x2, 0x4, 0x10
_LZ4 = 1
_MAX_STREAMS, _MIN_STREAM = 16, 128
"""Blocks are split into as many streams as their values have bytes, within these limits of blosc 1."""
_SHUFFLES = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}

Bytes = npt.NDArray[np.uint8]


class FrameHeader(NamedTuple):
    """The first 16 bytes of a blosc frame."""

    flags: int
    typesize: int
    n_bytes: int
    """Decompressed bytes."""
    block_bytes: int
    """Decompressed bytes of each block but the last."""
    frame_bytes: int
    """Bytes of the frame."""

    @property
    def uncompressed(self) -> bool:
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
    def splits(self) -> int:
        """Streams of every block of block_bytes; a shorter last block is one stream."""
        split = not self.flags & _NOT_SPLIT and self.typesize <= _MAX_STREAMS
        return self.typesize if split and self.block_bytes // self.typesize >= _MIN_STREAM else 1


def encode_frame(field: Field, values: npt.NDArray[Any], encoding: str | None = None) -> bytes:
    """Blosc frame of the values, padded.

    Parameters
    ----------
    encoding : the form in which the values are; None for values as they are.

    Raises
    ------
    StoreError : the padded chunk exceeds what one blosc frame can hold.
    """
    length = padded_length(values.size)
    nbytes = length * values.itemsize
    if nbytes > MAX_CHUNK_BYTES:
        raise StoreError(
            f"a chunk of {field.name} would take {nbytes} bytes, one can hold {MAX_CHUNK_BYTES}; "
            "use more or smaller partitions"
        )
    if values.size == length:
        padded = np.ascontiguousarray(values)
    else:
        padded = np.zeros(length, values.dtype)
        padded[: values.size] = values
    codec = field.codec(encoding)
    frame: bytes = blosc.Blosc(
        cname=codec.cname,
        clevel=codec.clevel,
        shuffle=_SHUFFLES[codec.shuffle],
        blocksize=BLOCK_BYTES,
        typesize=values.itemsize,
    ).encode(padded)
    return frame


def decode_frame(
    frame: Bytes, dtype: np.dtype[Any], count: int, new: Callable[[int], Bytes] = allocate
) -> npt.NDArray[Any]:
    """The `count` values of a frame; they keep its padding, less than 1/32, in memory.

    Parameters
    ----------
    frame : whole, its checksum compared.
    new : gives memory of so many bytes for the values and their padding.

    Raises
    ------
    CorruptChunkError : the frame is not one of so many values.
    """
    header = frame_header(frame, padded_length(count) * dtype.itemsize)
    wanted = count * dtype.itemsize
    if wanted == 0:
        return np.empty(0, dtype)
    out = new(wanted if header.uncompressed else header.n_bytes)
    if header.uncompressed:
        out[:] = frame[HEADER_BYTES : HEADER_BYTES + wanted]
        return out.view(dtype)
    try:
        blosc.decompress(frame, out)
    except (RuntimeError, ValueError) as error:
        raise CorruptChunkError(f"blosc cannot decode it: {error}") from error
    return out[:wanted].view(dtype)


@cache
def decompress_address() -> int | None:
    """Of the C function behind `numcodecs.blosc.decompress`, where the package's extension leads to it.

    It takes addresses of the frame and of the memory for its values, the size of that, and a number of threads; it
    gives the decompressed bytes.
    """
    try:
        function = ctypes.CDLL(blosc.__file__).blosc_decompress_ctx
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def frame_header(frame: Bytes, n_bytes: int) -> FrameHeader:
    """The header of a whole frame of so many decompressed bytes. Raises CorruptChunkError if it is none."""
    if frame.size < HEADER_BYTES:
        raise CorruptChunkError(f"{frame.size} bytes are no blosc frame")
    header = FrameHeader(*_FIELDS.unpack_from(frame.data))
    if header.n_bytes != n_bytes or header.frame_bytes != frame.size:
        raise CorruptChunkError(
            f"a frame of {header.frame_bytes} bytes for {header.n_bytes}, expected {frame.size} for {n_bytes}"
        )
    if header.uncompressed and frame.size != HEADER_BYTES + n_bytes:
        raise CorruptChunkError(f"{frame.size} bytes for {n_bytes} that are stored without compression")
    return header
