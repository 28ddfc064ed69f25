"""The partition cache: least recently used out first, under a budget that is never exceeded.

    invariant 1: the bytes of all entries of a place, reserved ones included, never exceed the budget
    invariant 2: a pinned entry is never evicted
    invariant 3: every access is a hit or a miss; a miss is the first access after a load

Room is reserved *before* a partition is read, so bytes in flight count. The cache stores whatever a backend made
of a partition and knows nothing of it but its size and its place: each device of a group has a budget of its own, and
holds certain partitions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.options import format_bytes

__all__ = ["CacheStatistics", "PartitionCache"]

T = TypeVar("T")


@dataclass(slots=True)
class CacheStatistics:
    """Counts since the start of a solve (a resumed one goes on counting)."""

    accesses: int = 0
    """Partitions taken up to be swept (frontier accesses)."""
    hits: int = 0
    """Accesses that found the partition resident and already used since its load."""
    misses: int = 0
    """Accesses for which the partition had to be loaded."""
    auxiliary_accesses: int = 0
    """Partitions taken up only to recompute a priority."""
    auxiliary_hits: int = 0
    """Auxiliary accesses that needed no load."""
    loads: int = 0
    """Transfers into the cache, for frontier, auxiliary and unused prefetched partitions alike."""
    bytes_read: int = 0
    """Compressed bytes read from the store."""
    bytes_decoded: int = 0
    """Decoded bytes moved into the cache."""
    evictions: int = 0

    def copy_to(self, solve: object) -> None:
        """Bring the counts into a solve's statistics, which have them under the same names."""
        for name in _SHARED_COUNTERS:
            setattr(solve, name, getattr(self, name))

    def resume_from(self, solve: object) -> None:
        """Count on from what a solve's statistics say."""
        for name in _SHARED_COUNTERS:
            setattr(self, name, getattr(solve, name))


_SHARED_COUNTERS = (
    "accesses",
    "hits",
    "misses",
    "auxiliary_accesses",
    "auxiliary_hits",
    "loads",
    "bytes_read",
    "bytes_decoded",
)


@dataclass(slots=True)
class _Entry(Generic[T]):
    size: int
    content: T | None = None
    unused: bool = True
    pins: int = field(default=0)
    """Uses that keep it from eviction."""


class PartitionCache(Generic[T]):
    """Cache of partitions by index. Not thread-safe: one owner decides.

    Parameters
    ----------
    budget : bytes of each place.
    n_partitions : number of partitions that there are.
    release : called with the content of each evicted entry.
    places : int [P]; number of the place where each partition is held, from 0; None for one place.
    """

    def __init__(
        self,
        budget: int,
        n_partitions: int,
        release: Callable[[T], None],
        places: npt.NDArray[np.integer] | None = None,
    ) -> None:
        self.budget = budget
        self._places: list[int] = [0] * n_partitions if places is None else places.tolist()
        self._used = [0] * (max(self._places, default=0) + 1)
        self.present = np.zeros(n_partitions, np.bool_)
        """bool [P]: whose content is there; for reading only."""
        self.loads = np.zeros(n_partitions, np.int64)
        """int64 [P]: transfers of each partition into the cache; a resumed solve counts on."""
        self.peak = 0
        self.statistics = CacheStatistics()
        self._release = release
        self._entries: OrderedDict[int, _Entry[T]] = OrderedDict()

    def __contains__(self, partition: int) -> bool:
        return partition in self._entries

    def __iter__(self) -> Iterator[int]:
        """Partitions from the least to the most recently used, reserved ones included."""
        return iter(self._entries)

    @property
    def capacity(self) -> int:
        """Bytes of the budgets of all places."""
        return self.budget * len(self._used)

    @property
    def used(self) -> int:
        """Bytes of all entries, reserved ones included."""
        return sum(self._used)

    def place_of(self, partition: int) -> int:
        """Number of the place where a partition is held."""
        return self._places[partition]

    def room(self, place: int = 0) -> int:
        """Bytes of a place that are free without an eviction."""
        return self.budget - self._used[place]

    def most_room(self) -> int:
        """The most that any place has of it."""
        return self.budget - min(self._used)

    def make_room(self, size: int, keep: Callable[[int], bool] | None = None, place: int = 0) -> bool:
        """Evict entries of a place, the least recently used first, until `size` bytes fit there.

        Parameters
        ----------
        keep : partitions for which it is true are not evicted either.

        Returns
        -------
        Whether the room is there; if not, nothing was evicted.
        """
        missing = self._used[place] + size - self.budget
        victims = []
        for p in self._entries if missing > 0 else ():
            if missing <= 0:
                break
            entry = self._entries[p]
            if self._places[p] != place or entry.pins or entry.content is None or (keep is not None and keep(p)):
                continue
            victims.append(p)
            missing -= entry.size
        if missing > 0:
            return False
        for p in victims:
            entry = self._entries.pop(p)
            self.present[p] = False
            self._used[place] -= entry.size
            self.statistics.evictions += 1
            if entry.content is not None:
                self._release(entry.content)
        return True

    def reserve(self, partition: int, size: int, keep: Callable[[int], bool] | None = None) -> bool:
        """Set `size` bytes aside for a partition that is about to be read; False where they cannot be had.

        Raises
        ------
        MemoryBudgetError : the partition is larger than the whole budget.
        """
        if size > self.budget:
            raise MemoryBudgetError(
                f"partition {partition} needs {format_bytes(size)}, the cache holds {format_bytes(self.budget)}; "
                f"raise --cache to at least {size}, or make the store again with smaller partitions "
                f"(--partition-size {max(1, self.budget // 2)}, in Python partition_size)"
            )
        place = self._places[partition]
        if not self.make_room(size, keep, place):
            return False
        self._entries[partition] = _Entry(size)
        self._used[place] += size
        self.peak = max(self.peak, self.used)
        return True

    def fill(self, partition: int, content: T, bytes_read: int) -> None:
        """Put the loaded content where room was reserved."""
        entry = self._entries[partition]
        entry.content = content
        self.present[partition] = True
        self.statistics.loads += 1
        self.loads[partition] += 1
        self.statistics.bytes_read += bytes_read
        self.statistics.bytes_decoded += entry.size

    def cancel_reservation(self, partition: int) -> None:
        """Give back a reservation whose load failed."""
        self._used[self._places[partition]] -= self._entries.pop(partition).size

    def access(self, partition: int, auxiliary: bool = False) -> tuple[T, bool]:
        """The content of a resident partition, now the most recently used, and whether this was a hit."""
        entry = self._entries[partition]
        content = entry.content
        if content is None:
            raise KeyError(f"partition {partition} is reserved but not loaded")
        self._entries.move_to_end(partition)
        hit, entry.unused = not entry.unused, False
        if auxiliary:
            self.statistics.auxiliary_accesses += 1
            self.statistics.auxiliary_hits += hit
        else:
            self.statistics.accesses += 1
            self.statistics.hits += hit
            self.statistics.misses += not hit
        return content, hit

    def pin(self, partition: int) -> None:
        """Keep an entry from eviction until :meth:`unpin`; it may be pinned several times."""
        self._entries[partition].pins += 1

    def unpin(self, partition: int) -> None:
        """One use of a pinned entry has ended."""
        self._entries[partition].pins -= 1

    def pin_all(self, partitions: Sequence[int]) -> list[T]:
        """Contents of resident partitions, which are pinned; no accesses until :meth:`access` counts them."""
        contents = []
        for p in partitions:
            entry = self._entries[p]
            if entry.content is None:
                raise KeyError(f"partition {p} is reserved but not loaded")
            contents.append(entry.content)
            entry.pins += 1
        return contents

    def access_all(self, partitions: Sequence[int]) -> tuple[list[T], list[bool]]:
        """:meth:`access` to many, in this order, which are pinned: contents, and which were hits."""
        entries, contents, hits = self._entries, [], []
        for p in partitions:
            entry = entries[p]
            if entry.content is None:
                raise KeyError(f"partition {p} is reserved but not loaded")
            entries.move_to_end(p)
            contents.append(entry.content)
            hits.append(not entry.unused)
            entry.unused = False
            entry.pins += 1
        s = self.statistics
        found = sum(hits)
        s.accesses += len(hits)
        s.hits += found
        s.misses += len(hits) - found
        return contents, hits

    def clear(self) -> None:
        """Release everything."""
        for entry in self._entries.values():
            if entry.content is not None:
                self._release(entry.content)
        self._entries.clear()
        self.present[:] = False
        self._used = [0] * len(self._used)
