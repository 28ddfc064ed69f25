"""A partition's chunk files read, checked and decompressed in one call that needs no interpreter's lock.

A partition has a file for each field. Where each is opened, read, closed, checked and decompressed by calls of its own,
a reading thread gives the lock away five times a file and waits to have it back: with 12 threads a load of 1.7 MB from
the page cache took 5 ms, of which the system's calls are half a millisecond.

`WholeFiles` leaves frames as they are, for a device that decompresses them; `decompress_files` does that here. Imported
on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding
from numba import njit, types
from numba.extending import register_jitable

from ooc_mdp.store.blosc_frame import HEADER_BYTES, decompress_address
from ooc_mdp.store.chunk_file import CRC_BYTES, ChunkEntry, crc32c_address

__all__ = ["WholeFiles", "decompress_files", "load_code"]

_CHECKSUM, _DECOMPRESS = "ooc_mdp_crc32c", "ooc_mdp_blosc_decompress"
_AT_N_BYTES, _AT_FRAME = 4, 12
"""Of a frame's header (`ooc_mdp.store.blosc_frame`): decompressed bytes, and its own."""
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_Int, _Long, _Address = types.int32, types.int64, types.uintp
_openat: Any = types.ExternalFunction("openat", _Int(_Int, _Address, _Int))
_pread: Any = types.ExternalFunction("pread", _Long(_Int, _Address, _Address, _Long))
_close: Any = types.ExternalFunction("close", _Int(_Int))
_crc32c: Any = types.ExternalFunction(_CHECKSUM, types.uint32(_Address, _Address))
_decompress: Any = types.ExternalFunction(_DECOMPRESS, _Int(_Address, _Address, _Address, _Int))


class WholeFiles:
    """Files that are read together, each from its offset of a buffer on, and what the manifest says of them.

    Parameters
    ----------
    paths, entries : of the files, and their entries.
    offsets : of the buffer, ascending.
    """

    __slots__ = ("_end", "_names", "_offsets", "_sizes", "_starts", "_sums")

    def __init__(self, paths: Sequence[str], entries: Sequence[ChunkEntry], offsets: Sequence[int]) -> None:
        self._names, self._starts = _joined(paths)
        self._offsets = np.array(offsets, np.int64)
        self._sizes = np.array([entry.n_bytes for entry in entries], np.int64)
        self._sums = np.array([entry.crc32c for entry in entries], np.uint32)
        self._end = int(self._offsets[-1] + self._sizes[-1])

    def read(self, directory: int, buffer: npt.NDArray[np.uint8]) -> bool:
        """Whether all files are what the manifest's entries say: then they lie in the buffer.

        Where one is not, or cannot be read, what lies there is undefined; `chunk_file.read_frame_file` says what is
        wrong.

        Parameters
        ----------
        directory : open descriptor that paths start from.
        buffer : uint8; has a byte more than the last file ends at, and is overwritten up to there.
        """
        read = _compiled_reads()
        if read is None or self._end >= buffer.size:
            return False
        places = self._offsets, self._sizes, self._sums
        return bool(read(np.int32(directory), self._names, self._starts, buffer, *places))


def decompress_files(
    directory: int,
    paths: Sequence[str],
    entries: Sequence[ChunkEntry],
    values: Sequence[npt.NDArray[np.uint8]],
    buffer: npt.NDArray[np.uint8],
) -> bool:
    """Whether all files are what the manifest's entries say, and frames of so many values: then these are there.

    Where one is not, or cannot be read, what lies there is undefined; reading them one by one says what is wrong.

    Parameters
    ----------
    directory : open descriptor that paths start from.
    values : of each file, uint8 [decompressed bytes].
    buffer : uint8; has a byte more than the longest file, and is overwritten.
    """
    decompress = _compiled_decompression()
    if decompress is None or max(entry.n_bytes for entry in entries) >= buffer.size:
        return False
    numbers = [
        (entry.n_bytes, entry.crc32c, each.size, each.__array_interface__["data"][0])  # sooner than each.ctypes.data
        for entry, each in zip(entries, values, strict=True)
    ]
    return bool(decompress(np.int32(directory), *_joined(paths), np.array(numbers, np.int64), buffer))


def _joined(paths: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Names for the system one after the other, and where each begins."""
    names = [os.fsencode(path) + b"\0" for path in paths]
    starts = np.array([0, *accumulate(map(len, names[:-1]))], np.int64)
    return np.frombuffer(bytearray().join(names), np.uint8), starts


def load_code() -> None:
    """Compile what reads, so that no clock of a solve counts it."""
    _compiled_reads()
    _compiled_decompression()


@cache
def _compiled_reads() -> Any:
    """`_read_files` with the checksum's function where it looks for it; None where that cannot be had."""
    signature = "boolean(int32, uint8[::1], int64[::1], uint8[::1], int64[::1], int64[::1], uint32[::1])"
    return _compiled(_read_files, signature, {_CHECKSUM: crc32c_address()})


@cache
def _compiled_decompression() -> Any:
    """`_decompress_files` likewise."""
    signature = "boolean(int32, uint8[::1], int64[::1], int64[:, ::1], uint8[::1])"
    functions = {_CHECKSUM: crc32c_address(), _DECOMPRESS: decompress_address()}
    return _compiled(_decompress_files, signature, functions)


def _compiled(function: Any, signature: str, functions: Mapping[str, int | None]) -> Any:
    for name, address in functions.items():
        if address is None:
            return None
        binding.add_symbol(name, address)
    return njit(signature, nogil=True, cache=True)(function)


@register_jitable
def _read_file(directory: int, name: int, buffer: npt.NDArray[np.uint8], at: int, size: int, checksum: Any) -> bool:
    """Whether a file has its size and its checksum, which its last four bytes repeat: it is in the buffer then."""
    place = buffer.ctypes.data + at
    file = _openat(directory, name, _READ)
    if file < 0:
        return False
    read = 0
    while read < size:  # a byte more than there should be is asked for
        more = _pread(file, place + read, size + 1 - read, read)
        if more <= 0:
            break
        read += more
    _close(file)
    if read != size:
        return False
    end = size - CRC_BYTES
    return bool(_number(buffer, at + end) == checksum and _crc32c(place, end) == checksum)


@register_jitable
def _number(buffer: npt.NDArray[np.uint8], at: int) -> Any:
    """The little-endian number of four bytes."""
    number = np.uint32(0)
    for k in range(4):
        number |= np.uint32(buffer[at + k]) << np.uint32(8 * k)
    return number


def _read_files(directory, names, starts, buffer, offsets, sizes, sums):  # type: ignore[no-untyped-def]
    """Whether each file is what it should be."""
    for i in range(starts.size):
        if not _read_file(directory, names.ctypes.data + starts[i], buffer, offsets[i], sizes[i], sums[i]):
            return False
    return True


def _decompress_files(directory, names, starts, numbers, buffer):  # type: ignore[no-untyped-def]
    """Whether each file is what it should be, and a frame of its number of bytes.

    Parameters
    ----------
    numbers : int64 [files, 4]; size, checksum, decompressed bytes and the address for them.
    """
    for i in range(starts.size):
        size, n_bytes, to = numbers[i, 0], numbers[i, 2], numbers[i, 3]
        if not _read_file(directory, names.ctypes.data + starts[i], buffer, 0, size, np.uint32(numbers[i, 1])):
            return False
        frame = size - CRC_BYTES
        if frame < HEADER_BYTES or _number(buffer, _AT_N_BYTES) != n_bytes or _number(buffer, _AT_FRAME) != frame:
            return False
        if n_bytes > 0 and _decompress(buffer.ctypes.data, to, n_bytes, 1) != n_bytes:
            return False
    return True
