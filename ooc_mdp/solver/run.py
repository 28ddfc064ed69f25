"""One solve at work: values, bounds, cache, stager and backend together, and the single way to sweep a partition.

Methods (`value_iteration`, `p_eva`, `exact_p_eva`) decide which partition comes next; everything that must stay
consistent when one is swept (values, bounds, priorities, counters, trace, checkpoints) happens here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import (
    Backend,
    BatchReport,
    BatchVisits,
    Evaluation,
    KeepsPolicyRows,
    Resident,
    ShiftsValues,
    SweepLimits,
    SweepsAside,
    SweepsAtOnce,
    SweepsSeveral,
    VisitReport,
    Visits,
)
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome, SolveStatistics
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.priority import Priority
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.stager import Stager
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.history import HistoryRecorder, HistoryRow, row_of
from ooc_mdp.solver.session import Session, StoppedEarly
from ooc_mdp.solver.snapshot import snapshot_of
from ooc_mdp.store.trace import Trace

__all__ = ["SETTLED_SHARE", "BegunVisits", "Run"]

SETTLED_SHARE = 0.25
"""A visit leaves its partition at this share of the target, so that small changes next door do not call it back."""

_MEASURE_EVERY = 20
"""Sweeps between two measurements of a partition with durations."""


@dataclass(frozen=True, slots=True)
class BegunVisits:
    """Partitions that are being swept at the same time."""

    partitions: list[int]
    hits: list[bool]
    visits: Visits


@dataclass(slots=True)
class Run:
    """The state of a solve; one thread owns it."""

    store: TableSource
    options: SolveOptions
    backend: Backend
    bounds: ResidualBounds
    target: Target
    priority: Priority
    cache: PartitionCache[Resident]
    stager: Stager
    statistics: SolveStatistics
    pauses: Session
    largest: FloatArray
    """float64 [P]; largest value of each partition."""
    smallest: FloatArray
    """float64 [P]; smallest value of each partition."""
    visited: npt.NDArray[np.bool_]
    """bool [P]; swept or measured at least once: its states have the policy that the bounds are about."""
    moved: npt.NDArray[np.bool_]
    """bool [P]; whether boundary values have changed since whoever passes them on to others looked last."""
    owned: npt.NDArray[np.bool_] | None = None
    """bool [P]; the partitions that this run solves, where other runs solve the rest; None: all."""
    heard_rise: FloatArray = field(default_factory=lambda: np.empty(0))
    """float64 [P]; by how much values of others' partitions have risen since policy iteration looked last."""
    told: bool = False
    """Whether values of others' partitions have changed since then."""
    exchange: Callable[[], None] = lambda: None
    """Takes in the values of others' partitions, and passes on those of ours; asked between accesses."""
    sharers: int = 1
    """Solvers that sweep a share of the partitions each, this one among them."""
    rest: Callable[[], bool] = lambda: True
    """The target is reached: whether that is the end; where others may disturb it yet, asked until it is."""
    trace: Trace | None = None
    note: Callable[[str], None] = lambda _: None
    """Told in a sentence what is worth knowing about the course of the solve."""
    value_size: float = 0.0
    """Largest |V| so far."""
    taken: list[str] = field(default_factory=list)
    """The methods that auto has taken so far."""
    proved: float = np.inf
    """Least error that was proved whenever a shift was thought of."""
    changed: bool = True
    """Whether the last sweeps changed any value."""
    saved_backups: int = 0
    """Backups that the checkpoint knows of: without new ones there is nothing to save."""
    history: HistoryRecorder = field(init=False)

    def __post_init__(self) -> None:
        """The history begins with the run."""
        self.history = HistoryRecorder(self.cache.loads)

    def reached(self) -> bool:
        """Whether nothing is left to do."""
        while self.target.reached():
            if self.rest():
                return True
        return False

    def refresh_target(self) -> None:
        """Tell the stopping rule the range of the values."""
        smallest, largest = float(self.smallest.min()), float(self.largest.max())
        self.value_size = max(self.value_size, abs(smallest), abs(largest))
        self.target.saw(smallest, largest, self.value_size)

    def sweep(self, partition: int, most: int, settle: bool = True) -> VisitReport:
        """Access a partition, sweep it, and pass on what its changes mean for the others.

        Parameters
        ----------
        most : most sweeps.
        settle : stop earlier once the partition's own residual is a share of the target.
        """
        resident, hit = self.stager.obtain(partition)
        self.cache.pin(partition, True)
        try:
            report = self._visit(resident, self._limits(partition, most, settle))
        finally:
            self.cache.pin(partition, False)
        self._account([partition], [hit], [report])
        return report

    @property
    def alone(self) -> bool:
        """Whether no other run has partitions, so that all values may be changed together."""
        return self.owned is None or bool(self.owned.all())

    def begin(self, partitions: Sequence[int], most: int) -> BegunVisits:
        """Access resident partitions and begin to sweep them at the same time; `finish` must follow.

        They are pinned until then; others may be loaded and evicted meanwhile.
        """
        contents, hits = self.cache.access_all(partitions)
        if self.backend.loads_beside:  # the strictest for all: one object each would keep a device waiting
            limits = [self._limits(np.asarray(partitions), most, settle=True)] * len(partitions)
        else:
            change = self.target.change_limits(np.asarray(partitions), SETTLED_SHARE).tolist()
            settled = SETTLED_SHARE * max(self.target.wanted, 0.0)
            limits = [SweepLimits(c, most, settled, self.target.plain) for c in change]
        return BegunVisits(list(partitions), hits, self.backend.visit_together(contents, limits))

    def sweep_several(self, partitions: Sequence[int], most: int, settle: bool) -> None:
        """:meth:`sweep` of partitions that are resident, at the same time."""
        assert isinstance(self.backend, SweepsSeveral)  # the caller has looked
        contents, hits = self.cache.access_all(partitions)
        limits = self._limits(np.asarray(partitions), most, settle)
        self.finish(BegunVisits(list(partitions), hits, self.backend.visit_several(contents, limits)))

    def finish(self, begun: BegunVisits) -> None:
        """Wait for the sweeps and pass on what their changes mean."""
        visits = begun.visits
        try:
            if isinstance(visits, BatchVisits) and self.priority.name != "h2":
                self._account_batch(begun.partitions, begun.hits, visits.batch_report())
            else:
                self._account(begun.partitions, begun.hits, visits.reports())
        finally:
            for p in begun.partitions:
                self.cache.pin(p, False)

    def sweep_all(self, most: int, drop: float) -> None:
        """Sweep all partitions, which are resident, at once; see `SweepsAtOnce.visit_all`."""
        assert isinstance(self.backend, SweepsAtOnce)  # the caller has looked
        partitions = list(range(self.statistics.n_partitions))
        accessed = [self.stager.obtain(p) for p in partitions]
        visits = self.backend.visit_all([resident for resident, _ in accessed], most, drop)
        self._account(partitions, [hit for _, hit in accessed], visits.reports())

    def _limits(self, partition: int | IntArray, most: int, settle: bool) -> SweepLimits:
        if not settle:
            return SweepLimits(-1.0, most, -1.0, self.target.plain)
        change = self.target.change_limit(partition, SETTLED_SHARE)
        return SweepLimits(change, most, SETTLED_SHARE * max(self.target.wanted, 0.0), self.target.plain)

    def _account(self, partitions: Sequence[int], hits: Sequence[bool], reports: Sequence[VisitReport]) -> None:
        """Bounds, priorities and counters after partitions were swept at the same time.

        What each knows of itself comes first, then what the others' changes may have done to it, since it may have
        seen their old values; bounds that were taken at the values of all of them together come last.
        """
        for p, report in zip(partitions, reports, strict=True):
            if report.measured is None:
                self.bounds.swept(p, report.up, report.down)
            self.visited[p] = True
            self.largest[p], self.smallest[p] = report.largest_value, report.smallest_value
        self.changed = any(report.changed for report in reports)
        self.refresh_target()
        if len(partitions) > 1 and self.priority.name != "h2":
            self._pass_on_together(partitions, reports)
        else:
            for p, report in zip(partitions, reports, strict=True):
                self._pass_on(p, report)
        measured = [report.measured for report in reports if report.measured is not None]
        if len(measured) == len(partitions) > 1:
            bounds = [(m.rise, m.fall, m.plain_rise, m.plain_fall) for m in measured]  # astuple copies deeply
            self.bounds.replaced_many(np.asarray(partitions), np.array(bounds).T)
        else:
            for p, report in zip(partitions, reports, strict=True):
                if report.measured is not None:
                    self.bounds.replaced(p, report.measured)
        levels, wanted = self.target.levels(), self.target.wanted
        for p, hit, report in zip(partitions, hits, reports, strict=True):
            if levels[p] > wanted:
                self.priority.exact(p, float(levels[p]), report.largest_value)
            self._count(p, hit, report)
        self.history.visit_several(partitions, hits, [report.sweeps for report in reports], self.pauses.seconds)

    def _account_batch(self, partitions: Sequence[int], hits: Sequence[bool], report: BatchReport) -> None:
        """:meth:`_account` for many at once, where the priority asks for nothing but the bounds."""
        p = np.asarray(partitions)
        self.visited[p] = True
        self.largest[p], self.smallest[p] = report.largest_value, report.smallest_value
        self.changed = bool(report.changed.any())
        self.refresh_target()
        moved = (report.boundary_up > 0) | (report.boundary_down > 0)
        self.moved[p] |= moved
        self.bounds.disturb_many(p[moved], report.boundary_up[moved], report.boundary_down[moved])
        self.bounds.replaced_many(p, report.measured)
        s = self.statistics
        s.visits += len(hits) - sum(hits)
        s.sweeps += int(report.sweeps.sum())
        s.backups += int(report.backups.sum())
        self.history.visit_several(partitions, hits, report.sweeps, self.pauses.seconds)
        if self.trace is not None:
            for q, hit, sweeps in zip(partitions, hits, report.sweeps.tolist(), strict=True):
                self._note_access(q, False, hit, sweeps)

    def _visit(self, resident: Resident, limits: SweepLimits) -> VisitReport:
        """Sweep one partition alone; its bounds are kept as they come."""
        p = resident.index
        if not resident.has_durations or limits.most == 1:
            return self.backend.visit(resident, limits)
        # With durations the normalisation differs by pair and the bound from changes is loose: measure instead.
        report = self.backend.visit(resident, replace(limits, most=min(limits.most, _MEASURE_EVERY)))
        while report.measured is None:
            self.bounds.swept(p, report.up, report.down)
            self.bounds.measured(p, self.backend.measure(resident, 0.0)[0])
            settled = self.target.levels()[p] <= SETTLED_SHARE * self.target.wanted
            if settled or report.up == report.down == 0 or report.sweeps >= limits.most:
                return replace(report, measured=self.bounds.of(p))
            more = self.backend.visit(resident, replace(limits, most=_MEASURE_EVERY))
            report = replace(
                more,
                sweeps=report.sweeps + more.sweeps,
                boundary_up=report.boundary_up + more.boundary_up,
                boundary_down=report.boundary_down + more.boundary_down,
                boundary_value=max(report.boundary_value, more.boundary_value),
            )
        return report

    def sweep_aside(self, partition: int) -> VisitReport:
        """Access a partition and sweep it without changing a value; its bounds are what that measured."""
        assert isinstance(self.backend, SweepsAside)  # the caller has looked
        resident, hit = self.stager.obtain(partition)
        self.cache.pin(partition, True)
        try:
            report = self.backend.sweep_aside(resident)
        finally:
            self.cache.pin(partition, False)
        assert report.measured is not None  # of sweeps aside always
        self.bounds.replaced(partition, report.measured)
        self.visited[partition] = True
        self.largest[partition], self.smallest[partition] = report.largest_value, report.smallest_value
        self._count(partition, hit, report)
        self.history.visit(partition, not hit, report.sweeps, self.pauses.seconds)
        return report

    def take_aside(self, reports: Sequence[VisitReport]) -> None:
        """The values become what `sweep_aside` of every partition made of them, as its reports say."""
        assert isinstance(self.backend, SweepsAside)  # the caller has looked
        self.largest[:], self.smallest[:] = self.backend.take_aside()
        up, down = (np.array([getattr(report, way) for report in reports]) for way in ("up", "down"))
        self.moved[:] = True
        for p in range(up.size):
            self.bounds.swept(p, up[p], down[p])
        self.bounds.disturb_many(np.arange(up.size), up, down)
        self.refresh_target()

    def improve(self, partitions: Sequence[int], margin: float) -> None:
        """Access partitions and improve their policy; see `KeepsPolicyRows.improve`. Bounds are what that measured."""
        assert isinstance(self.backend, KeepsPolicyRows)  # the caller has looked
        accessed = [self.stager.obtain(p) for p in partitions]
        found = self.backend.improve([resident for resident, _ in accessed], margin)
        p = np.asarray(partitions)
        self.bounds.replaced_many(p, found.measured)
        self.visited[p] = True
        s = self.statistics
        for q, (resident, hit) in zip(partitions, accessed, strict=True):
            s.visits += not hit
            s.sweeps += 1
            s.backups += resident.n_states
            self._note_access(q, False, hit, 1)
        self.history.visit_several(partitions, [hit for _, hit in accessed], 1, self.pauses.seconds)

    def evaluated(self, found: Evaluation, kept: npt.NDArray[np.bool_], bounds: FloatArray) -> None:
        """The policy was evaluated on its rows.

        Parameters
        ----------
        kept : bool [P]; partitions that have rows.
        bounds : float64 [4, P]; rows as in `Measured`, over all actions at the values that resulted, of the kept.
        """
        p = np.flatnonzero(kept)
        self.bounds.disturb_many(p, np.maximum(found.rise[p], 0.0), np.maximum(found.fall[p], 0.0))
        self.moved[p] |= (found.rise[p] > 0) | (found.fall[p] > 0)
        self.bounds.replaced_many(p, bounds[:, p])
        self.largest[p], self.smallest[p] = found.largest_value[p], found.smallest_value[p]
        self.refresh_target()
        self.statistics.evaluations += 1
        self.statistics.backups += found.backups

    def centre(self, only_last: bool = False) -> bool:
        """Shift all values where that brings the error down (`ResidualBounds.centre`); whether it was done.

        Parameters
        ----------
        only_last : only if the target is reached by it.

        Where a model forgets within a few steps where it began (a random MDP), what is left of the error after some
        sweeps is one number for all states, which sweeps reduce by the discount only.
        """
        if not isinstance(self.backend, ShiftsValues):
            return False
        self.proved = min(self.proved, self.bounds.error(self.value_size))
        by = self.bounds.centre(self.value_size, self.proved)
        if by == 0.0:
            return False
        if only_last:
            left = self.bounds.after_shift(by, self.value_size, self.target.plain)
            if left + self.target.rounding > self.target.asked:
                return False
        self.backend.shift(by)
        self.moved[:] = True
        self.bounds.shifted(by, self.value_size)
        self.largest += by
        self.smallest += by
        self.changed = True
        self.refresh_target()
        return True

    def _pass_on(self, partition: int, report: VisitReport) -> None:
        self.priority.visited(partition)
        self.moved[partition] |= report.boundary_up > 0 or report.boundary_down > 0
        self._disturb(partition, report.boundary_up, report.boundary_down, report.boundary_value)

    def heard(self, partitions: IntArray, up: FloatArray, down: FloatArray, value: FloatArray) -> None:
        """Boundary values of partitions changed, by visits of other runs, which only now tell us.

        Parameters
        ----------
        up, down : most that one of each rose and fell, at least 0.
        value : largest value of each that changed.
        """
        self.changed = self.told = True
        self.heard_rise[partitions] += up
        if self.priority.name != "h2":
            self.bounds.disturb_many(partitions, up, down)
            return
        for change in zip(partitions.tolist(), up.tolist(), down.tolist(), value.tolist(), strict=True):
            self._disturb(*change)

    def _disturb(self, partition: int, up: float, down: float, value: float) -> None:
        plain, normalised = self.bounds.disturb(partition, up, down)
        kicks = plain if self.target.plain else normalised
        matters = kicks > 1e-3 * self.target.wanted
        self.priority.inflow(self.bounds.dependents(partition), self.options.discount * value, matters)

    def _pass_on_together(self, partitions: Sequence[int], reports: Sequence[VisitReport]) -> None:
        """:meth:`_pass_on` for many, where the priority asks for nothing but the bounds."""
        q = np.asarray(partitions)
        up, down = (np.array([getattr(r, f"boundary_{way}") for r in reports]) for way in ("up", "down"))
        changed = (up > 0) | (down > 0)
        self.moved[q] |= changed
        self.bounds.disturb_many(q[changed], up[changed], down[changed])

    def _count(self, partition: int, hit: bool, report: VisitReport) -> None:
        s = self.statistics
        s.visits += not hit
        s.sweeps += report.sweeps
        if report.backups is None:
            s.backups += report.sweeps * int(np.diff(self.store.partition_ptr[partition : partition + 2])[0])
        else:
            s.backups += report.backups
        self._note_access(partition, False, hit, report.sweeps)

    def note_auxiliary(self, partition: int, hit: bool) -> None:
        """An access that only recomputed a priority."""
        self._note_access(partition, True, hit, 0)

    def _note_access(self, partition: int, auxiliary: bool, hit: bool, sweeps: int) -> None:
        if self.trace is None:
            return
        levels = self.target.levels()
        # What is clean is ranked by no scheduler, whatever its B + V.
        rank = float(self.priority.rank(levels)[partition]) if self.target.dirty()[partition] else -np.inf
        self.trace.access(partition, auxiliary, hit, sweeps, float(levels[partition]), rank)

    def remark(self, text: str) -> None:
        """Say something about the course of the solve, to whoever looks on and in the trace."""
        self.note(text)
        if self.trace is not None:
            self.trace.remark(text)

    def tick(self) -> None:
        """Between two accesses: exchange values, report, save, and stop where a limit says so."""
        self.exchange()
        self.pauses.report(self.progress)
        self.history.offer(self.row)
        if self.target.out_of_reach:
            raise StoppedEarly(Outcome.PRECISION)
        self.pauses.stop()
        if self.statistics.backups > self.saved_backups and self.pauses.save_if_due(lambda: snapshot_of(self)):
            self.saved_backups = self.statistics.backups

    def progress(self) -> SolveProgress:
        """Where the solve stands."""
        self.collect()
        s = self.statistics
        return SolveProgress(
            error_bound=self.bounds.error(self.value_size),
            residual_bound=float(self.bounds.plain().max(initial=0.0)),
            target=self.target.asked,
            target_kind="residual" if self.target.plain else "epsilon",
            dirty=int(self.target.dirty().sum()),
            partitions=s.n_partitions,
            hit_rate=s.hit_rate,
            bytes_read=s.bytes_read,
            read_rate=0.0,
            loads=s.loads,
            seconds=s.seconds,
        )

    def row(self) -> HistoryRow:
        """Where the solve stands, for the history."""
        self.collect()
        residual = float(self.bounds.plain().max(initial=0.0)) + self.bounds.rounding(self.value_size, plain=True)
        dirty, resident = (int(np.count_nonzero(which)) for which in (self.target.dirty(), self.cache.present))
        return row_of(self.statistics, self.bounds.error(self.value_size), residual, dirty, resident)

    def collect(self) -> None:
        """Bring the cache's counters into the statistics."""
        s = self.statistics
        self.cache.statistics.tell(s)
        s.load_seconds = self.stager.load_seconds
        s.cache_peak_bytes = max(s.cache_peak_bytes, self.cache.peak)
        s.partitions_never_read = int((~self.visited).sum())
        s.seconds = self.pauses.seconds
