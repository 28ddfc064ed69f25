"""Memory of this process: how the system gives it and takes it back, and how much there is."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["available_bytes", "give_memory_back", "resident_bytes", "zeros"]

_M_MMAP_THRESHOLD = -3
_THRESHOLD = 128 << 10
_LEAST_HUGE = 4 << 20


def zeros(n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros [n] that take memory where they are first written: in huge pages, if the system has them.

    NumPy asks for huge pages for arrays that it does not clear only. The first writes to 0.8 GB of `numpy.zeros` took
    3.3 s of the system's time on a virtual machine, to these 0.1 s.
    """
    held = np.dtype(dtype)
    size = n * held.itemsize
    if size < _LEAST_HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(n, held)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system built without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, held)


def give_memory_back() -> None:
    """Have glibc return each freed array of 128 KiB or more to the system at once; nothing on other C libraries.

    glibc raises its threshold as large arrays are freed and then keeps them in its heap, where tables that come and
    go leave holes: a solve with a cache of 128 MiB peaked at 1.35 times its plan, and at 1.01 times with this. Naming
    the threshold, at the value that it starts with, keeps it there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)


def resident_bytes() -> int:
    """Bytes of this process in RAM now, or 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def available_bytes() -> float:
    """Bytes of RAM that could be had without swapping; infinite where the system does not say."""
    try:
        with open("/proc/meminfo") as f:
            line = next(line for line in f if line.startswith("MemAvailable:"))
        return 1024.0 * int(line.split()[1])
    except (OSError, ValueError, StopIteration, IndexError):
        return math.inf
