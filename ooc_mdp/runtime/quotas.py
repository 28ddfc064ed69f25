"""What this process may use of the machine: cores and RAM that a job or container leaves to it.

A batch system or container engine sets limits on the group of processes (cgroup) in which a job runs, or on a group
above it, and may bind it to some cores. Without a look at these a solve would start a thread for each core of the
machine, and plan with all of its RAM. Both versions of the interface are read (`cgroups(7)`); other systems have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cores", "memory_left"]

_ROOT = Path("/")


def cores(root: Path = _ROOT) -> int:
    """How many cores this process may keep busy, at least 1: those it is bound to, or a group's share of time."""
    most = [os.cpu_count() or 1, *(-(-quota // period) for quota, period in _shares(root))]
    if hasattr(os, "sched_getaffinity"):
        most.append(len(os.sched_getaffinity(0)))
    return max(1, min(most))


def memory_left(root: Path = _ROOT) -> int | None:
    """Bytes that may still be allocated within the limits of its groups, files in the page cache given up first.

    None where there is no limit.
    """
    left = []
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
        used = _number(group / "memory.current", group / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            left.append(max(0, limit - used + _reclaimable(group / "memory.stat")))
    return min(left, default=None)


def _shares(root: Path) -> Iterator[tuple[int, int]]:
    """Microseconds of all cores together that a group may use in a period of so many."""
    for group in _groups(root, "cpu"):
        numbers = _words(group / "cpu.max") or [
            *_words(group / "cpu.cfs_quota_us"),
            *_words(group / "cpu.cfs_period_us"),
        ]
        if len(numbers) == 2 and all(n.isdecimal() for n in numbers) and int(numbers[1]) > 0:  # not "max", or -1
            yield int(numbers[0]), int(numbers[1])


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups that this process is in, from its own up; within a container the top one is its own."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers  # version 2 names none
        own = top / path.lstrip("/")
        yield from (group for group in [own, *own.parents] if group.is_relative_to(top) and group.is_dir())


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _words(file: Path) -> list[str]:
    return [word for line in _lines(file) for word in line.split()]


def _number(*files: Path) -> int | None:
    """What the first file says that there is; None for "max"."""
    words = next((found for file in files if (found := _words(file))), ["max"])
    return int(words[0]) if words[0].isdecimal() else None


def _reclaimable(file: Path) -> int:
    """Bytes of files that the system would give up first: those of the groups below too."""
    found = dict(line.split(" ", 1) for line in _lines(file) if " " in line)
    names = ("inactive_file", "active_file")
    return sum(int(found.get(f"total_{name}", found.get(name, 0))) for name in names)
