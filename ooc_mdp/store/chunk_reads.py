"""Several chunk files read and checked in one call that needs no interpreter's lock; imported on first use.

A partition has a file for each field. Where each is opened, read, closed and checked by calls of its own, a reading
thread gives the lock away four times a file and waits to have it back: with 12 threads a load of 1.7 MB from the page
cache took 5 ms, of which the system's calls are half a millisecond.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding
from numba import njit, types

from ooc_mdp.store.chunk_file import CRC_BYTES, ChunkEntry, crc32c_address

__all__ = ["WholeFiles", "load_code"]

_SYMBOL = "ooc_mdp_crc32c"
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_Int, _Long, _Address = types.int32, types.int64, types.uintp
_openat: Any = types.ExternalFunction("openat", _Int(_Int, _Address, _Int))
_pread: Any = types.ExternalFunction("pread", _Long(_Int, _Address, _Address, _Long))
_close: Any = types.ExternalFunction("close", _Int(_Int))
_crc32c: Any = types.ExternalFunction(_SYMBOL, types.uint32(_Address, _Address))


class WholeFiles:
    """Files that are read together, each from its offset of a buffer on, and what the manifest says of them.

    Parameters
    ----------
    paths, entries : of the files, and their entries.
    offsets : of the buffer, ascending.
    """

    __slots__ = ("_end", "_names", "_offsets", "_sizes", "_starts", "_sums")

    def __init__(self, paths: Sequence[str], entries: Sequence[ChunkEntry], offsets: Sequence[int]) -> None:
        names = [os.fsencode(path) + b"\0" for path in paths]
        self._names = np.frombuffer(bytearray().join(names), np.uint8)
        self._starts = np.array([0, *accumulate(map(len, names[:-1]))], np.int64)
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
        read = _compiled()
        if read is None or self._end >= buffer.size:
            return False
        places = self._offsets, self._sizes, self._sums
        return bool(read(np.int32(directory), self._names, self._starts, buffer, *places))


def load_code() -> None:
    """Compile what reads, so that no clock of a solve counts it."""
    _compiled()


@cache
def _compiled() -> Any:
    """`_read_files` with the checksum's function where it looks for it; None where that cannot be had."""
    address = crc32c_address()
    if address is None:
        return None
    binding.add_symbol(_SYMBOL, address)
    signature = "boolean(int32, uint8[::1], int64[::1], uint8[::1], int64[::1], int64[::1], uint32[::1])"
    return njit(signature, nogil=True, cache=True)(_read_files)


def _read_files(directory, names, starts, buffer, offsets, sizes, sums):  # type: ignore[no-untyped-def]
    """Whether each file has its size and its checksum, which its last four bytes repeat."""
    base = buffer.ctypes.data
    for i in range(starts.size):
        file = _openat(directory, names.ctypes.data + starts[i], _READ)
        if file < 0:
            return False
        at, size = offsets[i], sizes[i]
        read = 0
        while read < size:  # a byte more than there should be is asked for
            more = _pread(file, base + at + read, size + 1 - read, read)
            if more <= 0:
                break
            read += more
        _close(file)
        if read != size:
            return False
        end = at + size - CRC_BYTES
        stored = np.uint32(0)
        for k in range(CRC_BYTES):
            stored |= np.uint32(buffer[end + k]) << np.uint32(8 * k)
        if stored != sums[i] or _crc32c(base + at, size - CRC_BYTES) != sums[i]:
            return False
    return True
