"""Memory of this process: how the system gives it and takes it back, and how much there is."""

from __future__ import annotations

import ctypes
import os

from ooc_mdp.runtime.quotas import memory_left

__all__ = [
    "KEPT_PER_THREAD",
    "address_space_limit",
    "available_bytes",
    "keep_freed_buffers",
    "peak_bytes",
    "resident_bytes",
    "return_freed_memory",
]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_THRESHOLD = 128 << 10
_LARGE = 2 << 20
KEPT_PER_THREAD = 4 << 20
"""Bytes of freed memory at most that glibc keeps for a thread after :func:`keep_freed_buffers`, which a plan counts."""


def return_freed_memory() -> None:
    """Have glibc return each freed array of 128 KiB or more to the system at once; nothing on other C libraries.

    glibc raises its threshold as large arrays are freed and then keeps them in its heap, where tables that come and
    go leave holes: a solve with a cache of 128 MiB peaked at 1.35 times its plan, and at 1.01 times with this. Naming
    the threshold, at the value that it starts with, keeps it there.
    """
    _set_thresholds(_THRESHOLD, _THRESHOLD)


def keep_freed_buffers() -> None:
    """The same from 2 MiB on; smaller freed arrays are kept, up to `KEPT_PER_THREAD` bytes, and used again.

    A decoder (Blosc) allocates its buffers anew for each chunk. Given back and mapped again they were 240 page faults
    a partition, a quarter of the processor time of a solve that loads each of its partitions six times.
    """
    _set_thresholds(_LARGE, KEPT_PER_THREAD)


def _set_thresholds(mapped: int, kept: int) -> None:
    """Arrays from so many bytes on are mapped by themselves; a heap that ends with more free bytes is cut back."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, mapped)
        mallopt(_M_TRIM_THRESHOLD, kept)


def resident_bytes() -> int:
    """Bytes of this process in RAM now, or 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def peak_bytes() -> int:
    """Most bytes of RAM that this process has had so far, or 0 where the system does not say."""
    return _kibibytes("/proc/self/status", "VmHWM:") or 0


def available_bytes() -> int | None:
    """Bytes of RAM that this process could have without swapping; None where the system does not report it."""
    found = _kibibytes("/proc/meminfo", "MemAvailable:"), memory_left(), _address_space_left()
    return min((left for left in found if left is not None), default=None)


def address_space_limit() -> int | None:
    """Bytes of address space that this process may have (`ulimit -v`); None where there is no limit."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _address_space_left() -> int | None:
    """What is left of that limit; None where there is none, or the system does not say what is in use."""
    limit, used = address_space_limit(), _kibibytes("/proc/self/status", "VmSize:")
    return None if limit is None or used is None else max(0, limit - used)


def _kibibytes(path: str, name: str) -> int | None:
    """Bytes that a line of such a file states; None where it does not."""
    try:
        with open(path) as f:
            line = next(line for line in f if line.startswith(name))
        return 1024 * int(line.split()[1])
    except (OSError, ValueError, StopIteration, IndexError):
        return None
