"""Partitions of a table one after the other, through a cache of bounded size, the next ones read meanwhile.

For work that is no Bellman sweep of a backend: graph passes, undiscounted totals. What is kept of all states lies with
the caller; here are the cache, the threads that read and the counters. All work pauses between two partitions (`Work`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cpu.rows import TableRows, table_rows
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Loader, Table
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.stager import Stager, TakesTables
from ooc_mdp.store.trace import Trace

__all__ = ["Neighbours", "Streamed", "Work", "finish", "no_states", "partitions_with"]

Found = TypeVar("Found")
Work = Generator[None, None, Found]
"""Work on a table that pauses between two partitions, where its driver reports, saves or ends it."""


def partitions_with(labels: npt.NDArray[np.uint32], table: Table) -> npt.NDArray[np.bool_]:
    """bool [P]: partitions with a state whose label is not 0."""
    return np.maximum.reduceat(labels, table.facts.partition_ptr[:-1]) > 0


def no_states(table: Table) -> TableRows:
    """Rows of no state, with the types of the table's, on which compiled loops are loaded."""
    return table_rows(table.read(int(table.facts.partition_bytes.argmin()))[0])._replace(first=0, n=0)


class _Kept:
    """What the stager asks of a backend: tables stay as they are read."""

    def __init__(self, loader: Loader) -> None:
        self._read = loader.read

    def change(self, loader: Loader) -> None:
        """Read by another loader from now on."""
        self._read = loader.read

    def fetch(self, p: int) -> tuple[Resident, int]:
        """A handle on the arrays of partition p's table."""
        table, n_bytes = self._read(p)
        return Resident(table.index, table.n_states, bool(table.durations.size), [table_rows(table)]), n_bytes

    def admit(self, prepared: Resident) -> Resident:
        """Nothing is left to do."""
        return prepared

    def release(self, resident: Resident) -> None:
        """Nothing to do: the arrays go with their last reference."""


def finish(work: Work[Found], step: Callable[[], None] = lambda: None) -> Found:
    """What some work finds, done to its end; `step` is called between two partitions."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            found: Found = ended.value
            return found
        step()


class Neighbours:
    """Which partitions read which, from the coupling matrix."""

    def __init__(self, coupling: Coupling) -> None:
        self._ptr, self._partitions = coupling.ptr, coupling.partitions
        rows = np.repeat(np.arange(coupling.ptr.size - 1), np.diff(coupling.ptr))
        order = np.argsort(coupling.partitions, kind="stable")
        self._readers: IntArray = rows[order]
        self._readers_ptr = np.searchsorted(coupling.partitions[order], np.arange(coupling.ptr.size))

    def dependencies(self, p: int) -> IntArray:
        """Partitions whose states p reads."""
        return self._partitions[self._ptr[p] : self._ptr[p + 1]]

    def dependents(self, p: int) -> IntArray:
        """Partitions that read states of p."""
        return self._readers[self._readers_ptr[p] : self._readers_ptr[p + 1]]


class Streamed:
    """A table's partitions, brought through a cache.

    Parameters
    ----------
    table : of the tables.
    budget : bytes of the cache.
    depth : partitions that are read at a time.
    backend : reads and holds them; None: tables stay as they are read.
    device : that it holds them on.
    """

    def __init__(
        self, table: Table, budget: int, depth: int, backend: TakesTables | None = None, device: str = "cpu"
    ) -> None:
        self.source = table
        self.depth = depth
        self.trace: Trace | None = None
        """Records accesses; may be set later."""
        self.passes = 0
        """Of searches, by :meth:`until_clean`."""
        self.dirty = np.ones(table.n_partitions, np.bool_)
        """bool [P]; partitions that the search under way has yet to visit."""
        loader, sizes = table.loader(device), table.facts.partition_bytes
        self._kept = _Kept(loader)
        takes = self._kept if backend is None else backend
        self.cache: PartitionCache[Resident] = PartitionCache(budget, table.n_partitions, takes.release)
        self._stager = Stager(self.cache, takes, lambda p: int(sizes[p]), depth, loader.prefetch)
        self._backwards = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, and drop what is in the cache."""
        self._stager.close()
        self.cache.clear()

    def in_order(
        self, wanted: npt.NDArray[np.bool_], forwards: bool | None = None, sweeps: bool = False
    ) -> Iterator[tuple[int, TableRows, bool]]:
        """The wanted partitions (bool [P]) once each, in turns from either end: a cache saves its size in a pass.

        Parameters
        ----------
        forwards : the direction, if it matters.
        sweeps : whether they are swept, which the caller notes in the trace; else accesses are auxiliary.

        Yields
        ------
        partition, its rows, and whether it was in the cache and used before
        """
        for p, resident, hit in self.residents_in_order(wanted, forwards, sweeps):
            yield p, resident.arrays[0], hit

    def residents_in_order(
        self, wanted: npt.NDArray[np.bool_], forwards: bool | None = None, sweeps: bool = False
    ) -> Iterator[tuple[int, Resident, bool]]:
        """:meth:`in_order` for whatever the backend keeps of a partition."""
        order = np.flatnonzero(wanted)
        backwards = self._backwards if forwards is None else not forwards
        if backwards:
            order = order[::-1]
        self._backwards = not backwards
        stager = self._stager
        for at, p in enumerate(order.tolist()):
            stager.prefetch_in_order(order[at:])
            resident, hit = stager.load_and_access(p, auxiliary=not sweeps)
            if self.trace is not None and not sweeps:
                self.trace.access(p, True, hit, 0, np.inf, -np.inf)
            self.cache.pin(p)
            try:
                yield p, resident, hit
            finally:
                self.cache.unpin(p)
            stager.collect()

    def change(self, table: Table) -> None:
        """Read another table from now on, whose partitions have the same sizes; what is in the cache is dropped."""
        self._stager.cancel()
        self.cache.clear()
        self.source = table
        self._kept.change(table.loader("cpu"))

    def until_clean(
        self, dirty: npt.NDArray[np.bool_], visit: Callable[[int, TableRows], IntArray | None]
    ) -> Work[None]:
        """Visit dirty partitions (bool [P], which changes) until none is left.

        Parameters
        ----------
        visit : works on a partition until nothing changes in it; says which partitions are dirty by that.
        """
        self.dirty = dirty
        while dirty.any():
            self.passes += 1
            for p, rows, _ in self.in_order(dirty.copy()):
                dirty[p] = False
                affected = visit(p, rows)
                if affected is not None:
                    dirty[affected[affected != p]] = True
                yield

    def count_on(self, statistics: SolveStatistics) -> None:
        """Count on from the statistics of an earlier run."""
        self.cache.statistics.resume_from(statistics)
        self._stager.load_seconds = statistics.load_seconds

    def count(self, statistics: SolveStatistics) -> None:
        """Bring the cache's counters into the statistics."""
        self.cache.statistics.copy_to(statistics)
        statistics.cache_peak_bytes = max(statistics.cache_peak_bytes, self.cache.peak)
        statistics.load_seconds = self._stager.load_seconds
