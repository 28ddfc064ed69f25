"""Large answers between processes of one machine: the requesting process copies arrays from the other's memory.

Values of 10^8 states are gigabytes, which a connection of Dask carries at about 1 GB/s, for one worker after the other.
Linux allows a process to read the memory of another that it may trace, as the parent of workers may
(process_vm_readv(2)). Elsewhere, and where this is not allowed, the answer is sent over the connection.
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

_MIN_BYTES = 1 << 20
"""Bytes below which a connection is as fast."""


class Exposable(Protocol):
    """An answer whose arrays the requesting process may read in place."""

    @property
    def state_arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """One-dimensional, contiguous arrays."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process and its machine."""

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
    """An answer whose arrays are in the memory of another process."""

    process: int
    pickled: bytes
    """The answer with the addresses of these arrays."""


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """A received answer whose arrays are in another process, and how to release them."""

    answer: Any
    """With a `RemoteArray` for each of these arrays."""
    release: Callable[[bool], Coroutine[Any, Any, Any]]
    """To be called once: with True after all arrays were copied, which returns True if they were kept until then; with
    False where they cannot be read, which returns the answer with all its arrays."""


class ExposedArrays:
    """Keeps an answer in memory until it has been copied."""

    def __init__(self, answer: Exposable) -> None:
        self.answer = answer
        self._arrays = [array for array in answer.state_arrays if array.nbytes >= _MIN_BYTES]

    @property
    def worthwhile(self) -> bool:
        """Whether any array is large enough to be read in place."""
        return bool(self._arrays)

    def handle(self) -> RemoteHandle:
        """Return the handle to send in place of the answer."""
        file = io.BytesIO()
        _ExposingPickler(file, self._arrays).dump(self.answer)
        return RemoteHandle(os.getpid(), file.getvalue())


class _ExposingPickler(pickle.Pickler):
    """Pickles the addresses of some arrays in place of these."""

    def __init__(self, file: io.BytesIO, arrays: list[npt.NDArray[Any]]) -> None:
        super().__init__(file, protocol=5)
        self._arrays = {id(array): array for array in arrays}

    def persistent_id(self, obj: Any) -> tuple[int, str, int] | None:
        array = self._arrays.get(id(obj))
        return None if array is None else (array.ctypes.data, array.dtype.str, array.size)


class _AttachingUnpickler(pickle.Unpickler):
    """Unpickles these addresses as `RemoteArray`."""

    def __init__(self, handle: RemoteHandle) -> None:
        super().__init__(io.BytesIO(handle.pickled))
        self._process = handle.process

    def persistent_load(self, pid: tuple[int, str, int]) -> RemoteArray:
        return RemoteArray(self._process, *pid)


def can_attach(asker: ProcessId | None) -> bool:
    """Return whether a process can read this one's memory: another process of the same machine."""
    own = this_process()
    return asker is not None and own is not None and asker != own and asker.machine == own.machine


def attach(handle: RemoteHandle) -> Any:
    """Return the answer, with a `RemoteArray` for each array in the other process."""
    return _AttachingUnpickler(handle).load()


def read(array: npt.NDArray[Any] | RemoteArray, part: slice, out: npt.NDArray[Any]) -> None:
    """Copy part of an array of this or another process.

    Parameters
    ----------
    out : contiguous, of the array's type and the part's size.

    Raises
    ------
    OSError : the memory may not be read, or the process has ended.
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
    """Return this process; None where it cannot read others' memory, or its machine is unknown."""
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
    """Return process_vm_readv; None on systems without it."""
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
