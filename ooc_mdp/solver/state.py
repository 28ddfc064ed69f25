"""What a solve knows at any time, and the one way in which a visit becomes part of it. One thread owns it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import (
    Backend,
    Backups,
    Evaluation,
    Improvement,
    Resident,
    SweepLimits,
    Visit,
    VisitReport,
)
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.method_record import MethodRecord, Phase
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.priority import Priority
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.stager import Stager
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.history import HistoryRecorder, HistoryRow, progress_of, row_of
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.solver.peers import NO_PEERS, Peers
from ooc_mdp.solver.plan import SolvePlan
from ooc_mdp.store.trace import Trace

__all__ = ["OPTIONAL_ARRAYS", "VISIT_TOLERANCE", "Access", "Batch", "SolveState"]

OPTIONAL_ARRAYS = frozenset({"inflow"})
"""Of a checkpoint, which only a priority by inflow saves, and does without."""

VISIT_TOLERANCE = 0.25
"""A visit leaves its partitions at this share of the target, so that small changes in neighbouring partitions do not
call them back."""


_UNMEASURED = 10.0
"""Times what a visit should leave: a last change beyond which residuals need not be measured where they decide nothing
but that the partition is swept again."""

_NONE: IntArray = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Access:
    """Partitions that are held in the cache while something is done with them.

    The first of them are taken up, and have their `hits`; the others are there in case it comes to them.
    """

    partitions: IntArray
    residents: Sequence[Resident]
    hits: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Batch:
    """Partitions that a device works on."""

    access: Access
    visit: Visit
    held: ExitStack
    """Keeps them from eviction until it is closed."""


@dataclass(slots=True)
class SolveState:
    """The state of a discounted solve."""

    table: Table
    plan: SolvePlan
    backend: Backend
    bounds: ResidualBounds
    target: Target
    priority: Priority
    cache: PartitionCache[Resident]
    stager: Stager
    counters: SolveStatistics
    visited: npt.NDArray[np.bool_]
    """bool [P]; swept or measured at least once: its states have the policy that the bounds are about."""
    history: HistoryRecorder
    peers: Peers = NO_PEERS
    trace: Trace | None = None
    note: Callable[[str], None] = lambda _: None
    """Told in a sentence what is worth knowing about the course of the solve."""
    seconds: Callable[[], float] = lambda: 0.0
    """Of work so far."""
    largest: FloatArray = field(init=False)
    """float64 [P]; largest value of each partition."""
    smallest: FloatArray = field(init=False)
    """float64 [P]; smallest value of each partition."""
    value_size: float = 0.0
    """Largest |V| at any time."""
    changes: int = 0
    """Rises whenever some value has changed."""
    under_way: deque[Batch] = field(default_factory=deque)
    """Batches that have begun and are not recorded, in their order. Bounds are of the values before the first of them:
    they prove nothing of the values that there are until :meth:`finish`."""
    phases: list[Phase] = field(default_factory=list)
    """Methods that were taken, in order, those of resumed runs included."""

    def __post_init__(self) -> None:
        """Values are 0 at first."""
        self.largest, self.smallest = np.zeros((2, self.visited.size))

    @property
    def alone(self) -> bool:
        """Whether no other solver has partitions, so that all values may be changed together."""
        return self.peers.owned is None or bool(self.peers.owned.all())

    # ---------------------------------------------------------------------------------------------- choose

    def dirty(self) -> IntArray:
        """Partitions whose bound is above the target."""
        return np.flatnonzero(self.target.dirty())

    def by_priority(self, partitions: IntArray, resident: npt.NDArray[np.bool_] | None = None) -> IntArray:
        """The partitions by priority, the most urgent first.

        Parameters
        ----------
        resident : bool [P]; which partitions count as resident; None: those that are.
        """
        rank = self.priority.rank(self.target.bounds(), resident)[partitions]
        return partitions[np.argsort(-rank, kind="stable")]

    def by_bound(self, partitions: IntArray) -> IntArray:
        """The partitions by their bounds, the largest first."""
        return partitions[np.argsort(-self.target.bounds()[partitions], kind="stable")]

    # ---------------------------------------------------------------------------------------------- obtain

    @contextmanager
    def access(self, partitions: IntArray, beside: IntArray = _NONE) -> Iterator[Access]:
        """Partitions loaded now where they must be, counted, and kept from eviction until the block ends.

        Room for all of them must be there: those that come after the first are resident, or the only one.

        Parameters
        ----------
        beside : residents that may be swept, too, and count if they are.
        """
        p, others = partitions.tolist(), beside.tolist()
        for q in partitions[~self.cache.present[partitions]].tolist():
            self.stager.load(q)
        residents, hits = self.cache.access_all(p)
        residents += self.cache.pin_all(others)
        try:
            yield Access(np.concatenate([partitions, beside]), residents, np.array(hits, np.bool_))
        finally:
            for q in p + others:
                self.cache.unpin(q)

    # ----------------------------------------------------------------------------------------------- sweep

    def begin(self, partitions: IntArray, most: int, beside: IntArray = _NONE, rough: bool = False) -> None:
        """Have the backend relax partitions, and residents beside them, after what is under way.

        See :meth:`access` and :meth:`limits`.
        """
        with ExitStack() as held:
            access = held.enter_context(self.access(partitions, beside))
            visit = self.backend.relax(access.residents, self.limits(access.partitions, most, rough=rough))
            self.under_way.append(Batch(access, visit, held.pop_all()))

    def finish(self, but: int = 0) -> None:
        """Record what is under way, but for so many batches that began last; waits for it."""
        while len(self.under_way) > but:
            batch = self.under_way.popleft()
            with batch.held:
                self.record(batch.access, batch.visit.report())

    def limits(self, partitions: IntArray, most: int, settle: bool = True, rough: bool = False) -> SweepLimits:
        """Sweep until a partition is settled, at most so often; without `settle` exactly so often.

        Parameters
        ----------
        rough : residuals far above the target need not be measured.
        """
        if not settle:
            return SweepLimits(-1.0, most, -1.0, self.target.plain)
        change, threshold = self.target.change_limits(partitions, VISIT_TOLERANCE), max(self.target.threshold, 0.0)
        return SweepLimits(
            change, most, VISIT_TOLERANCE * threshold, self.target.plain, _UNMEASURED if rough else math.inf
        )

    # ------------------------------------------------------------------------------------------- propagate

    def record(self, access: Access, report: VisitReport) -> None:
        """Take in what a visit did: bounds of the visited and of their dependents, priorities, ranges, counters.

        Residuals that hold at the values of all visited partitions together come last; others come first, since a
        partition may have seen the old values of those that were swept beside it.
        """
        p, bounds = access.partitions, self.bounds
        own = bounds.of_visit(p, report)
        moved = (report.boundary_rise > 0) | (report.boundary_fall > 0)
        if not report.joint:
            bounds.settle(p, own)
        bounds.propagate(p, report.boundary_rise, report.boundary_fall)
        if report.joint:
            bounds.settle(p, own)
        self.update_value_range(p, report.smallest_value, report.largest_value)
        self.priority.after_visit(p, report)
        self.peers.boundary_changed(p[moved])
        self.changes += report.changed
        first = access.hits.size
        taken_up = report.backups > 0
        taken_up[:first] = True
        others = [self.cache.access(q)[1] for q in p[first:][taken_up[first:]].tolist()]
        self.visited[p[taken_up]] = True
        hits = np.concatenate([access.hits, np.array(others, np.bool_)])
        self._count(p[taken_up], hits, report.sweeps[taken_up], int(report.backups.sum()))

    def apply_remote(self, partitions: IntArray, rise: FloatArray, fall: FloatArray, value: FloatArray) -> None:
        """Boundary values of partitions changed, by visits of other solvers, which only now tell us.

        Parameters
        ----------
        rise, fall : most that one of each rose and fell, at least 0.
        value : largest value of each that changed.
        """
        self.changes += 1
        self.bounds.propagate(partitions, rise, fall)
        self.priority.after_change(partitions, np.maximum(rise, fall), value)

    def update_value_range(self, p: IntArray | npt.NDArray[np.bool_] | slice, smallest: Any, largest: Any) -> None:
        """Values of partitions lie between these now; the target may depend on it."""
        self.smallest[p], self.largest[p] = smallest, largest
        low, high = float(self.smallest.min()), float(self.largest.max())
        self.value_size = max(self.value_size, abs(low), abs(high))
        self.target.update_value_range(low, high, self.value_size)

    def see_values(self, values: FloatArray | None) -> None:
        """Take the range of each partition's values from the value vector; None: they are 0."""
        if values is None:
            self.update_value_range(slice(None), 0.0, 0.0)
        else:
            starts = self.table.facts.partition_ptr[:-1]
            self.update_value_range(
                slice(None), np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
            )

    def _count(self, partitions: IntArray, hits: npt.NDArray[np.bool_], sweeps: IntArray, backups: int) -> None:
        """Counters, history and trace of partitions that were taken up."""
        counters = self.counters
        counters.visits += int(np.count_nonzero(~hits))
        counters.sweeps += int(sweeps.sum())
        counters.backups += backups
        self.history.visit_each(partitions, hits, sweeps, self.seconds())
        for p, hit, count in zip(partitions, hits, sweeps, strict=True) if self.trace else ():
            self._trace_access(int(p), False, bool(hit), int(count))

    def _trace_access(self, partition: int, auxiliary: bool, hit: bool, sweeps: int) -> None:
        if self.trace is None:
            return
        levels = self.target.bounds()
        # What is clean is ranked by no scheduler, whatever its B + V.
        rank = float(self.priority.rank(levels)[partition]) if self.target.dirty()[partition] else -np.inf
        self.trace.access(partition, auxiliary, hit, sweeps, float(levels[partition]), rank)

    # ------------------------------------------------------------------------------- what some methods need

    def shift(self, by: float) -> None:
        """Add a number to all values."""
        assert self.backend.synchronous is not None  # the method has looked
        self.backend.synchronous.shift(by)
        self.bounds.apply_shift(by, self.value_size)
        self.peers.boundary_changed(np.arange(self.visited.size))
        self.changes += 1
        self.update_value_range(slice(None), self.smallest + by, self.largest + by)

    def commit(self, rise: FloatArray, fall: FloatArray) -> None:
        """Values become what a synchronous pass made of them, which moves each partition's by so much (float64 [P])."""
        everything = np.arange(self.visited.size)
        assert self.backend.synchronous is not None  # the method has looked
        largest, smallest = self.backend.synchronous.commit()
        self.bounds.settle(everything, self.bounds.after_synchronous_sweep(rise, fall))
        self.peers.boundary_changed(everything)
        self.changes += 1
        self.update_value_range(slice(None), smallest, largest)

    def record_improvement(self, access: Access, found: Improvement, swept: Backups | None = None) -> None:
        """Partitions were read, and their policy improved at values that stay, or at those that a sweep left."""
        p, states = access.partitions, sum(r.n_states for r in access.residents)
        if swept is not None:
            self._take_changes(p, swept.rise, swept.fall)
            self.update_value_range(p, swept.smallest_value, swept.largest_value)
        self.bounds.settle(p, found.measured)
        self.visited[p] = True
        sweeps = 1 if swept is None else 2
        self._count(p, access.hits, np.full(p.size, sweeps), sweeps * states)

    def record_evaluation(self, found: Evaluation, kept: npt.NDArray[np.bool_], residuals: FloatArray) -> None:
        """The policy is being evaluated on its rows: what has been done since the last report.

        Parameters
        ----------
        kept : bool [P]; partitions that have rows.
        residuals : float64 [4, P], over all actions at the values that resulted, of the kept.
        """
        p = np.flatnonzero(kept)
        self._take_changes(p, found.rise[p], found.fall[p])
        self.bounds.settle(p, residuals[:, p])
        self.update_value_range(p, found.smallest_value[p], found.largest_value[p])
        self.counters.backups += found.backups

    def _take_changes(self, p: IntArray, rise: FloatArray, fall: FloatArray) -> None:
        """Values of partitions rose and fell by so much at most, with signs: tell who reads them."""
        self.bounds.propagate(p, np.maximum(rise, 0.0), np.maximum(fall, 0.0))
        self.peers.boundary_changed(p[(rise > 0) | (fall > 0)])
        self.changes += 1

    def recompute_priority(self, partition: int) -> None:
        """Read a partition to know its exact residual and largest B + V: an auxiliary access."""
        resident, hit = self.stager.load_and_access(partition, auxiliary=True)
        measured, value = self.backend.measure(resident, self.target.significant(partition))
        self.bounds.settle(np.array([partition]), measured[:, None])
        self.visited[partition] = True  # measuring chose the actions that its bounds hold for
        self.priority.set_exact(partition, value)
        self._trace_access(partition, True, hit, 0)

    def remark(self, text: str) -> None:
        """Note something about the course of the solve, for the caller and in the trace."""
        self.note(text)
        if self.trace is not None:
            self.trace.remark(text)

    def begin_phase(self, method: str) -> None:
        """A method begins, or goes on where it is the last one of a resumed solve."""
        if not self.phases or self.phases[-1].method != method:
            self.phases.append(Phase(method, self.cache.statistics.loads, self.counters.backups))

    def rebuild_cache(self) -> None:
        """A partition needs more room than slots have: empty the cache, and go on with larger ones."""
        self.stager.cancel()
        self.cache.clear()
        self.plan = replace(self.plan, layout=self.backend.enlarged(self.plan.layout))
        self.cache.budget = self.plan.layout.cache_bytes
        self.counters.cache_bytes = self.cache.capacity
        self.start_backend(self.backend.values(), self.backend.policy())

    def start_backend(self, values: FloatArray | None, policy: npt.NDArray[np.int32] | None) -> None:
        """Have the backend begin at these values; nothing may be resident."""
        layout = self.plan.layout
        if policy is not None:
            # Nobody has chosen actions where no solve has been yet, whatever a backend keeps in their place.
            policy[np.repeat(~self.visited, np.diff(self.table.facts.partition_ptr))] = -1
        self.backend.start(self.plan.facts, layout, values, policy, self.table.loader(self.backend.name))

    # ---------------------------------------------------------------------------------- what others may ask

    def snapshot(self) -> Snapshot:
        """Everything that a solve continues from, with its history so far."""
        self.finish()
        self.history.row(self.row())
        record = MethodRecord.of(self.plan.options, self.phases)
        return Snapshot(self.arrays() | self.history.arrays(), self.statistics(), record)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Values, policy, bounds and what the priority keeps; the history apart."""
        return {
            "values": self.backend.values(),
            "policy": self.backend.policy(),
            "visited": self.visited,
            "value_size": np.array(self.value_size),
            **self.bounds.arrays(),
            **self.priority.arrays(),
        }

    def restore(self, arrays: dict[str, npt.NDArray[Any]], statistics: SolveStatistics) -> None:
        """Go on from a checkpoint: its bounds say what is urgent, and prove nothing before they were measured."""
        self.visited[:] = arrays["visited"]
        self.start_backend(arrays["values"], arrays["policy"])
        self.bounds.restore(arrays, measured=False)
        self.priority.restore(arrays)
        self.value_size = float(arrays["value_size"])
        statistics.cache_bytes, statistics.cache_peak_bytes = self.cache.capacity, 0  # of this cache
        for name in ("n_states", "n_partitions", "table_bytes", "source"):  # of this table
            setattr(statistics, name, getattr(self.counters, name))
        self.counters = statistics
        self.cache.statistics.resume_from(statistics)
        self.stager.load_seconds = statistics.load_seconds
        self.see_values(arrays["values"])

    def progress(self) -> SolveProgress:
        """Where the solve stands."""
        s = self.statistics()
        return progress_of(
            s,
            error_bound=min(self.bounds.error(self.value_size), self.target.trivial_error()),
            residual_bound=self.bounds.residual(),
            target=self.target.tolerance if self.target.known_at(self.target.proved) else None,
            stopping_rule="residual" if self.target.plain else "epsilon",
            dirty=int(self.target.dirty().sum()),
            partition_bounds=self.target.bounds,
            partition_grid=self.plan.facts.partition_grid,
        )

    def row(self) -> HistoryRow:
        """Where the solve stands, for the history."""
        residual = self.bounds.residual() + self.bounds.rounding(self.value_size, plain=True)
        dirty, resident = int(self.target.dirty().sum()), int(self.cache.present.sum())
        return row_of(self.statistics(), self.bounds.error(self.value_size), residual, dirty, resident)

    def statistics(self) -> SolveStatistics:
        """The counters, those of cache and stager among them."""
        counters = self.counters
        self.cache.statistics.copy_to(counters)
        counters.load_seconds = self.stager.load_seconds
        counters.cache_peak_bytes = max(counters.cache_peak_bytes, self.cache.peak)
        counters.partitions_unread = int((~self.visited).sum())
        counters.solve_seconds = self.seconds()
        return counters
