"""Memory as arithmetic: every buffer of a solve by name, before it is allocated.

Whoever adds a buffer to the solver adds it here; a test holds the measured peak against the total.
"""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass

from ooc_mdp.options import format_bytes

__all__ = ["MemoryPlan", "available_bytes", "give_memory_back", "resident_bytes"]

_M_MMAP_THRESHOLD = -3
_THRESHOLD = 128 << 10


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


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a solve will hold at most."""

    host: dict[str, int]
    """Bytes in RAM by name."""
    device: dict[str, int]
    """Bytes on the accelerator by name; empty on the CPU."""

    @property
    def host_bytes(self) -> int:
        """Sum in RAM."""
        return sum(self.host.values())

    @property
    def device_bytes(self) -> int:
        """Sum on the accelerator."""
        return sum(self.device.values())

    def describe(self) -> str:
        """One line for each memory."""
        lines = []
        for place, items in (("RAM", self.host), ("device", self.device)):
            if items:
                parts = " + ".join(f"{name} {format_bytes(size)}" for name, size in items.items())
                lines.append(f"memory plan, {place}: {parts} = {format_bytes(sum(items.values()))}")
        return "\n".join(lines)
