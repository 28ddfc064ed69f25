"""The stager: reads and decodes partitions on threads, into room that the cache has set aside.

It keeps a small number of partitions under way (`depth`), so that the host memory for tables in flight is known
beforehand. Reading threads decode a table and prepare it for the backend; the solve's own thread asks, waits and
admits what is prepared. What to load, and when, is decided elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from ooc_mdp.backends.base import Resident
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.options import format_bytes
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.reading import ReadingThreads

__all__ = ["READAHEAD", "Stager", "TakesTables", "short_switch_interval"]

READAHEAD = 32
"""Partitions that the system is asked to read ahead, beyond those that are being read."""
_TURN_SECONDS = 2e-4
"""How long a thread may keep the interpreter from those that read: with the usual 5 ms, each of a read's few steps may
wait so long."""


@contextmanager
def short_switch_interval(wanted: bool) -> Iterator[None]:
    """Shorter turns of all threads at the interpreter, where many threads read while the solve's own works."""
    usual = sys.getswitchinterval()
    if wanted:
        sys.setswitchinterval(_TURN_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


class TakesTables(Protocol):
    """What the stager asks of a `ooc_mdp.backends.base.Backend`, which says what each does."""

    def fetch(self, p: int) -> tuple[Any, int]:
        """Read and prepare partition p, on any thread; with the bytes read."""
        ...

    def admit(self, prepared: Any) -> Resident:
        """Take what was prepared."""
        ...

    def release(self, resident: Resident) -> None:
        """Free it."""
        ...


class Stager:
    """Brings partitions into the cache.

    Parameters
    ----------
    cache : where partitions go; the stager reserves, fills and accesses.
    backend : fetches partitions to the device's layout, and admits them.
    size : what a partition takes of the cache, in bytes.
    depth : most partitions under way at a time, 1 or more.
    prefetch : asks the system to read a partition ahead; None where that is of no use.
    smallest : what the smallest partition takes of the cache, or less.
    """

    def __init__(
        self,
        cache: PartitionCache[Resident],
        backend: TakesTables,
        size: Callable[[int], int],
        depth: int = 2,
        prefetch: Callable[[int], None] | None = None,
        smallest: int = 0,
    ) -> None:
        self._cache = cache
        self._backend = backend
        self._size, self._smallest = size, smallest
        self.depth = depth
        self._reading = ReadingThreads(partial(_fetched, backend), depth)
        self._prefetch = prefetch
        self._adviser = ThreadPoolExecutor(1, thread_name_prefix="announcer")
        self._advised: set[int] = set()
        self.load_seconds = 0.0
        """Seconds of all threads together reading and preparing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def in_flight(self) -> list[int]:
        """Partitions whose loads have begun and were not yet collected."""
        return list(self._reading.requested)

    def free_slots(self) -> int:
        """How many more loads could begin now."""
        return self.depth - len(self._reading.requested)

    def prefetch(self, partition: int, keep: Callable[[int], bool] | None = None, waiting: int = 0) -> bool:
        """Start to load a partition if a thread is free and room can be made without those to keep.

        Parameters
        ----------
        waiting : so many loads may wait for a thread.
        """
        if partition in self._cache or self.free_slots() + waiting <= 0:
            return False
        if not self._cache.reserve(partition, self._size(partition), keep):
            return False
        self._reading.request(partition)
        return True

    def has_unused_room(self) -> bool:
        """Whether the smallest partition would fit without an eviction; larger ones may not."""
        return self._cache.most_room() >= self._smallest

    def prefetch_into_unused_room(self, partition: int, waiting: int = 0) -> bool:
        """:meth:`prefetch` that evicts nothing."""
        unused = self._cache.room(self._cache.place_of(partition))
        return self._size(partition) <= unused and self.prefetch(partition, waiting=waiting)

    def prefetch_in_order(self, order: IntArray, begin: int = 0, waiting: int = 0) -> None:
        """Start to load the first of an order and, as threads are free, the next; advise the system of later ones.

        Room for one is never made by evicting another that comes before it.

        Parameters
        ----------
        begin : so many of the first are resident already.
        waiting : so many loads may wait for a thread.
        """
        end = begin + self.depth + waiting + 1
        first, later = order[:end].tolist(), order[end : end + READAHEAD]
        self.readahead(later.tolist())
        for i, partition in enumerate(first[begin:], begin):
            if i > 0 and self.free_slots() + waiting <= 0:
                break
            if partition not in self._cache:
                self.prefetch(partition, frozenset(first[:i]).__contains__, waiting)

    def load_in_order(self, order: IntArray, count: int, waiting: int = 0) -> None:
        """Load the first of an order, and so many as far as there is room for all of them; the next are under way.

        Parameters
        ----------
        waiting : so many loads may wait for a thread.
        """
        if self._cache.present[order[: count + self.depth + waiting + READAHEAD]].all():
            return
        for i, partition in enumerate(order[:count].tolist()):
            self.prefetch_in_order(order, i, waiting)
            if i > 0 and partition not in self._cache:
                break
            self.load(partition)

    def collect(self) -> int:
        """Admit the partitions whose loads are done to the backend; how many they were."""
        arrived = self._reading.arrived()
        for partition in arrived:
            self._admit(partition)
        return len(arrived)

    def wait(self) -> None:
        """Wait until a load in flight is done; return immediately if there is none."""
        self._reading.wait()

    def readahead(self, partitions: Iterable[int]) -> None:
        """Ask the operating system to read partitions that are needed soon into its page cache, each once."""
        if self._prefetch is None:
            return
        for partition in partitions:
            if partition not in self._advised:
                self._advised.add(partition)
                self._adviser.submit(self._prefetch, partition)

    def load_and_access(self, partition: int, auxiliary: bool = False) -> tuple[Resident, bool]:
        """The resident partition, loaded now if it must be, and whether this access was a hit."""
        self.load(partition)
        return self._cache.access(partition, auxiliary)

    def load(self, partition: int) -> None:
        """Load a partition into the cache, unless it is there."""
        if partition in self._reading.requested:
            self._admit(partition)
        elif partition not in self._cache:
            size = self._size(partition)
            while not self._cache.reserve(partition, size):
                self._evict_in_flight(partition, size)
            self._fill(partition, lambda: _fetched(self._backend, partition))  # a thread would add waiting

    def _evict_in_flight(self, partition: int, size: int) -> None:
        """Finish a load in flight, whose memory can then be evicted for `partition`."""
        if not self._reading.requested:
            raise MemoryBudgetError(
                f"partition {partition} needs {format_bytes(size)} beside the partition in use, the cache holds "
                f"{format_bytes(self._cache.budget)}; raise --cache to at least {self._cache.used + size}"
            )
        self._admit(next(iter(self._reading.requested)))

    def _admit(self, partition: int) -> None:
        self._fill(partition, lambda: self._reading.take(partition))

    def _fill(self, partition: int, read: Callable[[], tuple[Any, int, float]]) -> None:
        try:
            prepared, bytes_read, seconds = read()
            self.load_seconds += seconds
            resident = self._backend.admit(prepared)
        except BaseException:
            self._cache.cancel_reservation(partition)
            raise
        self._cache.fill(partition, resident, bytes_read)

    def close(self) -> None:
        """Cancel loads in flight and end the threads."""
        try:
            self.cancel()
        finally:
            self._adviser.shutdown(wait=True, cancel_futures=True)
            self._reading.close()

    def cancel(self) -> None:
        """Wait for the loads in flight and discard them; all of them, also where one is not admitted."""
        for partition in self._reading.cancel_queued():
            self._cache.cancel_reservation(partition)
        try:
            for partition in self.in_flight():
                self._cache.cancel_reservation(partition)
                try:
                    prepared, _, _ = self._reading.take(partition)
                except Exception:
                    continue  # what could not be read holds nothing
                self._backend.release(self._backend.admit(prepared))
        finally:
            if self._reading.requested:
                self.cancel()


def _fetched(backend: TakesTables, partition: int) -> tuple[Any, int, float]:
    """What a backend prepared of a partition, the bytes read, and the seconds that it took."""
    began = time.monotonic()
    prepared, bytes_read = backend.fetch(partition)
    return prepared, bytes_read, time.monotonic() - began
