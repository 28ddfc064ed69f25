"""What this process may use of the machine: cores and RAM that a job or container leaves to it.

A batch system or container engine sets limits on the group of processes (cgroup) in which a job runs, or on a group
above it, and may bind it to some cores. Without a look at these a solve would start a thread for each core of the
machine, and plan with all of its RAM. Both versions of the interface are read (`cgroups(7)`); other systems have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["cores", "memory_left"]


def cores(root: str | os.PathLike[str] = "/") -> int:
    """How many cores this process may keep busy, at least 1: those it is bound to, or a group's share of time."""
    most = [os.cpu_count() or 1, *(-(-quota // period) for quota, period in _shares(root))]
    if hasattr(os, "sched_getaffinity"):
        most.append(len(os.sched_getaffinity(0)))
    return max(1, min(most))


def memory_left(root: str | os.PathLike[str] = "/") -> int | None:
    """Bytes that may still be allocated within the limits of its groups, files in the page cache given up first.

    None where there is no limit.
    """
    left = []
    for group in _groups(root, "memory"):
        limit = _number(f"{group}/memory.max", f"{group}/memory.limit_in_bytes")
        used = _number(f"{group}/memory.current", f"{group}/memory.usage_in_bytes")
        if limit is not None and used is not None:
            left.append(max(0, limit - used + _reclaimable(f"{group}/memory.stat")))
    return min(left, default=None)


def _shares(root: str | os.PathLike[str]) -> Iterator[tuple[int, int]]:
    """Microseconds of all cores together that a group may use in a period of so many."""
    for group in _groups(root, "cpu"):
        numbers = _words(f"{group}/cpu.max") or [
            *_words(f"{group}/cpu.cfs_quota_us"),
            *_words(f"{group}/cpu.cfs_period_us"),
        ]
        if len(numbers) == 2 and all(n.isdecimal() for n in numbers) and int(numbers[1]) > 0:  # not "max", or -1
            yield int(numbers[0]), int(numbers[1])


def _groups(root: str | os.PathLike[str], controller: str) -> Iterator[str]:
    """Folders of the groups that this process is in, from its own up; within a container the top one is its own."""
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = os.path.join(root, "sys/fs/cgroup", controllers)  # version 2 names none
        names = path.strip("/").split("/")
        for depth in range(len(names), -1, -1):
            group = os.path.join(top, *names[:depth])
            if os.path.isdir(group):
                yield group


def _lines(file: str) -> list[str]:
    try:
        with open(file) as lines:
            return lines.read().splitlines()
    except OSError:
        return []


def _words(file: str) -> list[str]:
    return [word for line in _lines(file) for word in line.split()]


def _number(*files: str) -> int | None:
    """What the first file says that there is; None for "max"."""
    words = next((found for file in files if (found := _words(file))), ["max"])
    return int(words[0]) if words[0].isdecimal() else None


def _reclaimable(file: str) -> int:
    """Bytes of files that the system would give up first: those of the groups below too."""
    found = dict(line.split(" ", 1) for line in _lines(file) if " " in line)
    names = ("inactive_file", "active_file")
    return sum(int(found.get(f"total_{name}", found.get(name, 0))) for name in names)
