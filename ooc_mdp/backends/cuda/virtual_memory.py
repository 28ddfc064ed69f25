"""One range of addresses whose pages lie in the memory of several devices: calls of the CUDA driver that CuPy lacks.

    reserve ─▶ (create on a device ─▶ map ─▶ release the handle) for each piece ─▶ set access of all devices
    unmap each piece ─▶ free the addresses

A kernel of any of the devices indexes such a range like any other memory; what lies on another device comes over the
link between them. Memory never moves: it is neither managed nor multicast. Unlike the calls of `driver.py` these give
up the interpreter's lock, since creating memory takes milliseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from ooc_mdp.backends.cuda.driver import error_of

__all__ = ["VirtualMemory"]

_OUT_OF_MEMORY = 2
_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3
"""CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE."""
_ADDRESS, _SIZE, _FLAGS = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_ulonglong


class _Location(ctypes.Structure):
    _fields_: ClassVar = [("kind", ctypes.c_int), ("device", ctypes.c_int)]


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp; what is not named here is 0."""

    _fields_: ClassVar = [
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_: ClassVar = [("location", _Location), ("flags", ctypes.c_int)]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuMemGetAllocationGranularity": (ctypes.POINTER(_SIZE), ctypes.POINTER(_Allocation), ctypes.c_int),
    "cuMemAddressReserve": (ctypes.POINTER(_ADDRESS), _SIZE, _SIZE, _ADDRESS, _FLAGS),
    "cuMemAddressFree": (_ADDRESS, _SIZE),
    "cuMemCreate": (ctypes.POINTER(_FLAGS), _SIZE, ctypes.POINTER(_Allocation), _FLAGS),
    "cuMemRelease": (_FLAGS,),
    "cuMemMap": (_ADDRESS, _SIZE, _SIZE, _FLAGS, _FLAGS),
    "cuMemUnmap": (_ADDRESS, _SIZE),
    "cuMemSetAccess": (_ADDRESS, _SIZE, ctypes.POINTER(_Access), _SIZE),
    "cuGetErrorString": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}


class VirtualMemory:
    """The calls for one group of devices.

    Parameters
    ----------
    library : the driver's, loaded so that calls give up the interpreter's lock.
    devices : numbers of the devices of the group.
    current : makes a device's context current while it is entered.

    Raises
    ------
    MemoryError : by any method, if there is not so much memory.
    RuntimeError : by any method, if the driver refuses a call.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        devices: Sequence[int],
        current: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._library, self._current = library, current
        for name, signature in _SIGNATURES.items():
            getattr(library, name).argtypes = signature
        self._devices = tuple(devices)
        self.page = max(self._granularity(device) for device in self._devices)
        """Bytes of whose multiples pieces consist."""

    def reserve(self, nbytes: int) -> int:
        """First of so many addresses without memory."""
        at = _ADDRESS()
        self._call("cuMemAddressReserve", ctypes.byref(at), nbytes, self.page, 0, 0)
        return at.value

    def place(self, at: int, nbytes: int, member: int) -> None:
        """Put new memory of a device of the group at reserved addresses."""
        handle, allocation = _FLAGS(), self._allocation(self._devices[member])
        self._call("cuMemCreate", ctypes.byref(handle), nbytes, ctypes.byref(allocation), 0)
        try:
            self._call("cuMemMap", at, nbytes, 0, handle, 0)
        finally:
            self._call("cuMemRelease", handle)  # what is mapped stays until it is unmapped

    def open(self, at: int, nbytes: int) -> None:
        """All devices may read and write what has memory there."""
        access = (_Access * len(self._devices))(
            *(_Access(_Location(_ON_DEVICE, device), _READ_AND_WRITE) for device in self._devices)
        )
        self._call("cuMemSetAccess", at, nbytes, access, len(self._devices))

    def remove(self, at: int, nbytes: int) -> None:
        """Free a piece's memory."""
        self._call("cuMemUnmap", at, nbytes)

    def release(self, at: int, nbytes: int) -> None:
        """Give reserved addresses back, which have no memory any more."""
        self._call("cuMemAddressFree", at, nbytes)

    @staticmethod
    def _allocation(device: int) -> _Allocation:
        return _Allocation(kind=_PINNED, location=_Location(_ON_DEVICE, device))

    def _granularity(self, device: int) -> int:
        size, allocation = _SIZE(), self._allocation(device)
        self._call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(allocation), 0)
        return int(size.value)

    def _call(self, name: str, *arguments: Any) -> None:
        with self._current():
            status = getattr(self._library, name)(*arguments)
        if status:
            kind = MemoryError if status == _OUT_OF_MEMORY else RuntimeError
            raise kind(error_of(self._library, name, status))
