"""Calls of the CUDA driver that only queue work, made without giving up the interpreter's lock.

CuPy gives the lock up around each call, however short. Where a dozen threads load partitions, each then waits for the
others a dozen times a load, for longer than the calls take: these are called through ctypes with the lock held, about
2 us each. What waits for the device is left to CuPy. Nothing here knows kernels or tables.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Arguments", "CudaDriver", "address_of", "cuda_library", "error_of"]

_HANDLE, _COUNT, _SIZE = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuCtxGetCurrent": (ctypes.POINTER(_HANDLE),),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuGetErrorString": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuLaunchKernel": (_HANDLE, *[_COUNT] * 7, _HANDLE, _HANDLE, _HANDLE),
    "cuMemcpyAsync": (_HANDLE, _HANDLE, _SIZE, _HANDLE),
    "cuMemsetD8Async": (_HANDLE, ctypes.c_ubyte, _SIZE, _HANDLE),
}


@functools.cache
def cuda_library() -> ctypes.PyDLL:
    """The driver's library, which is there wherever CuPy finds a device. Raises OSError."""
    return ctypes.PyDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def error_of(library: ctypes.CDLL, call: str, status: int) -> str:
    """What the driver says about a status that is not 0."""
    text = ctypes.c_char_p()
    library.cuGetErrorString(status, ctypes.byref(text))
    return f"{call} failed: {(text.value or b'unknown error').decode()} ({status})"


def address_of(array: npt.NDArray[Any]) -> int:
    """Of a contiguous array's first byte; three times as fast as ``array.ctypes.data`` where it may be written."""
    if array.flags.writeable and array.nbytes:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return int(array.ctypes.data)


class Arguments(Sequence[np.generic | npt.NDArray[Any]]):
    """A kernel's arguments as the driver wants them: a list of addresses of their values.

    Parameters
    ----------
    args : NumPy scalars, which are copied, and arrays without axes, which are referred to: a launch reads what is in
        them then.
    """

    def __init__(self, args: Sequence[np.generic | npt.NDArray[Any]]) -> None:
        self._args = args  # whose memory the addresses name
        self._values = (ctypes.c_uint64 * len(args))()
        self._list = (_HANDLE * len(args))()
        first = ctypes.addressof(self._values)
        for i, arg in enumerate(args):
            if isinstance(arg, np.ndarray):
                self._list[i] = address_of(arg)
            else:
                self._values[i] = int.from_bytes(arg.tobytes(), sys.byteorder)
                self._list[i] = first + 8 * i
        self.address = ctypes.addressof(self._list)

    def __getitem__(self, i: Any) -> Any:
        return self._args[i]

    def __len__(self) -> int:
        return len(self._args)


class _Thread(threading.local):
    """What drivers have made of this thread's current context."""

    current: CudaDriver | None = None
    """Whose context is current."""
    before: int | None = None
    """The context that was current before the first of them came."""


_THREADS: weakref.WeakKeyDictionary[ctypes.PyDLL, _Thread] = weakref.WeakKeyDictionary()
"""Of each library: drivers of several devices make their contexts current in turns."""


class CudaDriver:
    """The driver's calls on one device's context.

    Parameters
    ----------
    library : `cuda_library`, or what stands in for it in a test.

    The context is the one that is current where this is made. It is made current on each thread that comes here, and
    stays so until another device's driver makes its own current, or until :meth:`leave`.

    Raises
    ------
    RuntimeError : by any method, if the driver refuses a call.
    """

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        for name, signature in _SIGNATURES.items():
            getattr(library, name).argtypes = signature
        self._launch = library.cuLaunchKernel
        self._copy = library.cuMemcpyAsync
        self._set = library.cuMemsetD8Async
        self._context = self._current()
        self._thread = _THREADS.setdefault(library, _Thread())

    def launch(self, kernel: int, grid: int, block: int, shared: int, stream: int, arguments: Arguments) -> None:
        """Launch a kernel of one-dimensional blocks; arguments are copied before this returns."""
        self.enter()
        status = self._launch(kernel, grid, 1, 1, block, 1, 1, shared, stream, arguments.address, None)
        if status:
            self._refused("cuLaunchKernel", status)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between the device and page-locked memory, or within either."""
        if not nbytes:
            return
        self.enter()
        status = self._copy(to, source, nbytes, stream)
        if status:
            self._refused("cuMemcpyAsync", status)

    def clear(self, at: int, nbytes: int, stream: int) -> None:
        """Fill with zero bytes."""
        self.enter()
        status = self._set(at, 0, nbytes, stream)
        if status:
            self._refused("cuMemsetD8Async", status)

    def leave(self) -> None:
        """Make current on this thread what was so before drivers came; a thread that had nothing keeps what it has."""
        thread = self._thread
        before = thread.before
        if thread.current is not None and before is not None:
            self._library.cuCtxSetCurrent(before)
        thread.current = thread.before = None

    def enter(self) -> None:
        """Make the context current on this thread."""
        thread = self._thread
        if thread.current is self:
            return
        before = self._current() if thread.current is None else thread.before
        status = self._library.cuCtxSetCurrent(self._context)
        if status:
            self._refused("cuCtxSetCurrent", status)
        thread.current, thread.before = self, before

    def _current(self) -> int | None:
        context = _HANDLE()
        status = self._library.cuCtxGetCurrent(ctypes.byref(context))
        if status:
            self._refused("cuCtxGetCurrent", status)
        return context.value

    def _refused(self, call: str, status: int) -> None:
        raise RuntimeError(error_of(self._library, call, status))
