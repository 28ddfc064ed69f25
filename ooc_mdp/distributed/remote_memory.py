"""Large answers between processes of one machine: the asker copies them straight from the answerer's memory.

Values of 10^8 states are gigabytes, which a connection of Dask carries at about 1 GB/s, one worker after the other.
Linux lets a process read another's memory where it may trace it, as the parent of workers may (process_vm_readv(2)).
Elsewhere, and where it may not, the answer travels over the connection.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "Exposable",
    "ExposedArrays",
    "ProcessId",
    "RemoteAnswer",
    "RemoteArray",
    "RemoteHandle",
    "attach",
    "can_attach",
    "read",
    "this_process",
]

_LEAST = 1 << 20
"""Bytes below which a connection is as quick."""


class Exposable(Protocol):
    """An answer with arrays that the asker may read where they are."""

    @property
    def state_arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """One-dimensional and contiguous."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, and the machine on which its number means something."""

    machine: str
    process: int


@dataclass(frozen=True, slots=True)
class RemoteArray:
    """A one-dimensional array in the memory of another process."""

    process: int
    address: int
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class RemoteHandle:
    """Where an answer lies."""

    process: int
    pickled: bytes
    """The answer without the arrays that are lent."""


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """An answer whose arrays are far."""

    answer: Any
    """With `FarArray` for some of its arrays."""
    release: Callable[[bool], Coroutine[Any, Any, Any]]
    """To be called once: with True when all has been read that is wanted, so that the answerer may forget it, and says
    True if it had it until then; with False where it cannot be read, for an answer that holds all its arrays."""


class ExposedArrays:
    """Keeps an answer where it is until it has been copied."""

    def __init__(self, answer: Exposable) -> None:
        self.answer = answer
        self._arrays = [array for array in answer.state_arrays if array.nbytes >= _LEAST]

    @property
    def worth_while(self) -> bool:
        """Whether anything is large enough."""
        return bool(self._arrays)

    def handle(self) -> RemoteHandle:
        """The answer to the process that asked."""
        file = io.BytesIO()
        _Lender(file, self._arrays).dump(self.answer)
        return RemoteHandle(os.getpid(), file.getvalue())


class _Lender(pickle.Pickler):
    """Pickles with the places of some arrays instead of these."""

    def __init__(self, file: io.BytesIO, arrays: list[npt.NDArray[Any]]) -> None:
        super().__init__(file, protocol=5)
        self._arrays = {id(array): array for array in arrays}

    def persistent_id(self, obj: Any) -> tuple[int, str, int] | None:
        array = self._arrays.get(id(obj))
        return None if array is None else (array.ctypes.data, array.dtype.str, array.size)


class _Borrower(pickle.Unpickler):
    def __init__(self, lent: RemoteHandle) -> None:
        super().__init__(io.BytesIO(lent.pickled))
        self._process = lent.process

    def persistent_load(self, pid: tuple[int, str, int]) -> RemoteArray:
        return RemoteArray(self._process, *pid)


def can_attach(asker: ProcessId | None) -> bool:
    """Whether the asker can read this process's memory: another process of the same machine."""
    own = this_process()
    return asker is not None and own is not None and asker != own and asker.machine == own.machine


def attach(lent: RemoteHandle) -> Any:
    """The answer, with `FarArray` for the arrays that are lent."""
    return _Borrower(lent).load()


def read(array: npt.NDArray[Any] | RemoteArray, part: slice, out: npt.NDArray[Any]) -> None:
    """Copy part of an array, here or far.

    Parameters
    ----------
    out : of the array's type and the part's size; contiguous.

    Raises
    ------
    OSError : the memory may not be read, or is gone.
    """
    if not isinstance(array, RemoteArray):
        out[:] = array[part]
        return
    start, stop, _ = part.indices(array.size)
    held = np.dtype(array.dtype)
    if out.dtype != held or out.size != stop - start:
        raise ValueError(f"{stop - start} elements of {held} do not fit {out.size} of {out.dtype}")
    _read(array.process, array.address + start * held.itemsize, out.view(np.uint8))


@cache
def this_process() -> ProcessId | None:
    """This process; None where it cannot read others' memory, or cannot say on which machine it is."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return ProcessId(f"{boot} {os.stat('/proc/self/ns/pid').st_ino}", os.getpid()) if _read_memory() else None
    except OSError:
        return None


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
