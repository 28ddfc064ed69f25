"""Large answers between processes of one machine: the asker copies them straight from the answerer's memory.

Values of 10^8 states are gigabytes, which a connection of Dask carries at about 1 GB/s, one worker after the other.
Linux lets a process read another's memory where it may trace it, as the parent of workers may (process_vm_readv(2)).
Elsewhere, and where it may not, the answer travels over the connection.
"""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Lent", "Loan", "Place", "here", "take"]

_LEAST = 1 << 20
"""Bytes below which a connection is as quick."""
_PIECE = 32 << 20
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A process, and the machine on which its number means something."""

    machine: str
    process: int


@dataclass(frozen=True, slots=True)
class Lent:
    """Where an answer lies."""

    process: int
    head: bytes
    """The answer pickled without its arrays."""
    arrays: list[tuple[int, int]]
    """Addresses and bytes of these."""


class Loan:
    """Keeps an answer where it is until it has been copied.

    Parameters
    ----------
    answer : anything that can be pickled.
    """

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self._buffers: list[npt.NDArray[np.uint8]] = []
        self._head = pickle.dumps(answer, protocol=5, buffer_callback=self._keep)

    def _keep(self, buffer: pickle.PickleBuffer) -> None:
        view = buffer.raw()
        self._buffers.append(np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8))

    @property
    def large(self) -> bool:
        """Whether lending is worth while."""
        return sum(buffer.nbytes for buffer in self._buffers) >= _LEAST

    def lent(self) -> Lent:
        """What the asker is told."""
        return Lent(os.getpid(), self._head, [(b.ctypes.data, b.nbytes) for b in self._buffers])


@cache
def here() -> Place | None:
    """This process; None where it cannot read others' memory, or cannot say on which machine it is."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return Place(f"{boot} {os.stat('/proc/self/ns/pid').st_ino}", os.getpid()) if _read_memory() else None
    except OSError:
        return None


def take(lent: Lent) -> Any:
    """A copy of the answer.

    Raises
    ------
    OSError : its memory may not be read, or is gone.
    """
    buffers = [np.empty(size, np.uint8) for _, size in lent.arrays]
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        for _ in threads.map(lambda piece: _read(lent.process, *piece), _pieces(lent, buffers)):
            pass
    return pickle.loads(lent.head, buffers=buffers)


def _pieces(lent: Lent, buffers: list[npt.NDArray[np.uint8]]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Addresses there, and places here."""
    for (address, size), buffer in zip(lent.arrays, buffers, strict=True):
        for start in range(0, size, _PIECE):
            yield address + start, buffer[start : start + _PIECE]


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@cache
def _read_memory() -> Any:
    """The system's function; None where it has none."""
    try:
        function: Any = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (OSError, AttributeError):
        return None
    vector = ctypes.POINTER(_Vector)
    function.argtypes = (ctypes.c_int, vector, ctypes.c_ulong, vector, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function


def _read(process: int, address: int, to: npt.NDArray[np.uint8]) -> None:
    done = 0
    while done < to.size:
        left = to.size - done
        own, others = starmap(_Vector, ((to.ctypes.data + done, left), (address + done, left)))
        count = _read_memory()(process, ctypes.byref(own), 1, ctypes.byref(others), 1, 0)
        if count <= 0:
            error = ctypes.get_errno()
            raise OSError(error, f"memory of process {process} cannot be read: {os.strerror(error)}")
        done += count
