"""Leads the solvers of one solve: has them begin, watches limits, and knows when it is over and what is proved then.

It sweeps nothing and no value passes through it, apart from copies for checkpoints and those of partitions that move.
Statuses come as soon as they change (each solver has one open question of ours at any time). The solve is over once all
solvers have been passive through an interval: with the same count of messages taken in at both its ends, and no message
on its way, since each waits for its receipt (Mattern's double wave over acknowledged messages;
docs/theory/several-solvers.md).
What is then proved is worked out here, from the bounds of all partitions by their owners.

A worker that does not answer for `worker_timeout` seconds, whose process the scheduler has lost, or whose thread has
not finished a step for 40 times as long, takes part no longer: an assignment of a new epoch gives its partitions to the
others, with the values of the last snapshot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.compiling import COMPILING
from ooc_mdp.distributed.membership import Membership, WorkersLostError
from ooc_mdp.distributed.messages import Pause, Start, Status, ValueRange
from ooc_mdp.distributed.ownership import Ownership
from ooc_mdp.distributed.placement import PartitionGraph
from ooc_mdp.distributed.snapshots import SnapshotTaker, StartingPoint
from ooc_mdp.distributed.stragglers import LateJoiners, Stragglers
from ooc_mdp.distributed.termination import SolveClock, confirm_quiescent
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome, SolveStatistics
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.history import HistoryRow, row_of
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.solver.session import Session

__all__ = ["Coordinator", "Division"]

_LOOK_SECONDS = 0.25
"""Between two looks at limits and losses, where no status comes."""
_LATE_SECONDS = 1.0
"""For which a stop waits, before anybody has swept, for a certificate of the first values."""
_SPAN_GROWTH = 0.01
"""Share by which the range of the values must grow before all solvers are told."""


class _Stopped(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Division:
    """How partitions are divided among the solvers."""

    owner: npt.NDArray[np.integer[Any]]
    """int [P]; which solver begins with which partition."""
    facts: PartitionGraph
    moves: bool = False
    """Whether idle solvers take dirty partitions from busy ones."""
    distribute: bool = True
    """Whether partitions are divided among all solvers; else one has all of them, and another if it is lost."""


class Coordinator:
    """Of one solve.

    Parameters
    ----------
    solvers : that begin.
    division : of the partitions among them.
    beginning : what is known of the values.
    clock : by default one that begins now.
    session : what surrounds the solve, with that clock; by default one that saves nothing, shows nothing and knows no
        limit. Its checkpoint interval is that between two copies of all values, after each of which one is saved.
    """

    def __init__(
        self,
        store: TableSource,
        options: SolveOptions,
        solvers: Membership,
        division: Division,
        beginning: StartingPoint,
        clock: SolveClock | None = None,
        session: Session | None = None,
    ) -> None:
        self.known, self.history = beginning.known, beginning.history
        self._earlier = beginning.earlier or SolveStatistics()
        self._store, self._solvers = store, solvers
        self.clock = clock or SolveClock()
        self._session = session or Session(clock=self.clock)
        self._session.hold_reports()  # until solvers have had the time to fail
        self._note, self._moves = self._session.note, division.moves
        self.bounds = ResidualBounds.of_model(ModelFacts.of(store, options.discount))
        ranges = self.bounds.reward_range
        self.target = Target(options, self.bounds, float(ranges.max() - ranges.min()))
        save = partial(self._session.output.try_save, self.snapshot)
        interval, ptr = self._session.checkpoint_interval, store.partition_ptr
        self._copies = SnapshotTaker(solvers, self.known, ptr, interval, save, self.history)
        initial_start = beginning.earlier is None
        self.ownership = Ownership(
            solvers,
            division.facts,
            self._copies,
            division.owner,
            ptr,
            initial_start=initial_start,
            distribute=division.distribute,
        )
        self._stragglers, self._late_joiners = Stragglers(solvers, self._note), LateJoiners(solvers, self._note)
        self._told = ValueRange(0.0, 0.0, 0.0)
        self._note_compiling = False
        self._going = False

    async def run(self) -> Outcome:
        """Until the target is reached, a limit or signal stops it, or nobody is left.

        Raises
        ------
        SolversLostError : the copies in `known` are what is left.
        """
        self.history.row(self.row())
        self._solvers.follow_all()
        watching = asyncio.ensure_future(self._watch_limits())
        try:
            try:
                await self._begin()
                while True:
                    await self._look()
                    if (
                        self._all(lambda s: s.passive)
                        and await confirm_quiescent(self._solvers, self.ownership.epoch)
                        and await self.check_destination()
                    ):
                        return Outcome.RESIDUAL if self.target.plain else Outcome.PROVED
            except _Stopped as stop:
                watching.cancel()
                await self._halt()
                return stop.outcome
        finally:
            watching.cancel()
            await self._late_joiners.close()
            await self._copies.end()
            await self._solvers.close()

    async def _watch_limits(self) -> None:
        """Have answers of solvers waited for no longer once a limit or signal says to stop."""
        while self.check_limits() is None:
            await asyncio.sleep(_LOOK_SECONDS)
        self._solvers.stopping.set()

    def check_limits(self) -> Outcome | None:
        """What says to stop, if anything does; say once where solvers have loops to compile, for which it stands."""
        statuses = [m.status for m in self._solvers.living()]
        if not self._note_compiling and any(s.compiling for s in statuses):
            self._note_compiling = True
            self._note(COMPILING)
        self.clock.look(statuses, self._going)
        return self._session.ended()

    async def _begin(self) -> None:
        """Give out the partitions; go once everybody knows what it reads."""
        await self.ownership.begin()
        while not self._all(lambda s: not s.pending):
            await self._look()
            self._stragglers.drop_unstarted()
        await self.broadcast_value_range()
        await self._solvers.broadcast(Start(self.clock.seconds()))
        self._going = True
        self._copies.begin()

    async def _look(self) -> None:
        """Wait a little for news, and do what is due."""
        await self.handle_failures()
        now = time.monotonic()
        stuck = {m.status.outcome for m in self._solvers.living()}
        for outcome in Outcome:
            if outcome.word in stuck:
                raise _Stopped(outcome)
        ended = self.check_limits()
        if ended is not None:
            raise _Stopped(ended)
        await self.broadcast_value_range(_SPAN_GROWTH)
        self._session.report(self.progress)
        self.history.offer(self.row)
        if not self._going:  # bounds of a checkpoint hold while nobody sweeps
            return
        self._copies.take_if_due(now)
        if self._late_joiners.due(now):
            await self.admit_late_joiners(now)
        if self._moves:
            await self.ownership.move_if_due(now)

    async def admit_late_joiners(self, now: float) -> None:
        """Have workers that came later, or were lost and are there again, take a share of what is dirty."""
        for number, member in (await self._late_joiners.arrived(now)).items():
            await self.ownership.admit(number, member)
            await self._solvers.put(number, self._span())
            await self._solvers.put(number, Start(self.clock.seconds()))
        await self.ownership.share()

    async def check_destination(self) -> bool:
        """Everything is quiet: collect what everybody knows, and see whether it proves what was asked."""
        if not await self.collect_bounds():
            return False
        if self.target.reached():
            return True
        # Solvers know the range of all values only from what they are told; now they have worked with less than that.
        await self.broadcast_value_range(-1.0)
        return False

    async def collect_bounds(self) -> bool:
        """Take in values and bounds of all partitions; False where somebody was lost meanwhile."""
        await self._copies.end()
        reports = await self._copies.take_now()
        if reports is None:
            return False
        bounds = np.full((4, self.ownership.owner.size), np.inf)
        for values in reports.values():
            assert values.bounds is not None  # asked for
            bounds[:, values.partitions] = values.bounds
        self._restore(bounds)
        span = self._span()
        self.known.value_size = max(self.known.value_size, span.size)
        self.target.see(span.smallest, span.largest, self.known.value_size)
        return bool(self.known.valid.all())

    def _restore(self, bounds: npt.NDArray[np.float64]) -> None:
        """Bounds of the values that are known."""
        self.known.bounds = bounds
        names = ("rise", "fall", "plain_rise", "plain_fall")
        self.bounds.restore(dict(zip(names, bounds, strict=True)))

    async def _halt(self) -> None:
        """Stop the sweeps, and let everything arrive, so that bounds hold of all values together."""
        await self._copies.end()
        self._solvers.stopping.clear()
        end = time.monotonic() + (self._solvers.worker_timeout if self._going else _LATE_SECONDS)
        try:
            await self._solvers.broadcast(Pause())
            while time.monotonic() < end:
                await self.handle_failures()
                if self._all(lambda s: s.passive and s.halted) and await confirm_quiescent(
                    self._solvers, self.ownership.epoch
                ):
                    await self.collect_bounds()
                    return
        except WorkersLostError as error:
            self._note(str(error))
        if self._going:
            self.known.bounds = None
        elif self.known.bounds is not None:  # nobody has swept: they are a checkpoint's, and so are the values
            self._restore(self.known.bounds)

    async def handle_failures(self) -> None:
        """Wait for news; then give the partitions of lost workers to the others."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._solvers.news.wait(), _LOOK_SECONDS)
        self._solvers.news.clear()
        self._solvers.raise_failures()
        self._stragglers.drop_hung()
        await self.ownership.replace_lost()

    async def broadcast_value_range(self, growth: float = 0.0) -> None:
        """Tell everybody the range of all values, where it has grown by the share."""
        span, then = self._span(), self._told
        allowed = growth * (then.largest - then.smallest + then.size)
        differs = max(abs(span.smallest - then.smallest), abs(span.largest - then.largest), span.size - then.size)
        if differs > allowed or growth < 0:
            self._told = span
            await self._solvers.broadcast_best_effort(span)

    def _span(self) -> ValueRange:
        """The range of all values, by the last statuses; their size is the largest that anybody has ever seen."""
        living = [m.status for m in self._solvers.living() if m.status.smallest <= m.status.largest]
        return ValueRange(
            min((s.smallest for s in living), default=0.0),
            max((s.largest for s in living), default=0.0),
            max(self.known.value_size, *(m.status.size for m in self._solvers.of.values())),
        )

    def progress(self) -> SolveProgress:
        """Where the solve stands, by the last statuses."""
        s, span = self.statistics(), self._span()
        self.target.see(span.smallest, span.largest, span.size)
        error_bound, residual_bound, dirty = self._bounded()
        return SolveProgress(
            error_bound=error_bound,
            residual_bound=residual_bound,
            target=self.target.tolerance,
            target_kind="residual" if self.target.plain else "epsilon",
            dirty=dirty,
            partitions=s.n_partitions,
            hit_rate=s.hit_rate,
            bytes_read=s.bytes_read,
            read_rate=0.0,
            loads=s.loads,
            seconds=s.seconds,
        )

    def row(self) -> HistoryRow:
        """Where the solve stands, for the history."""
        error_bound, residual_bound, dirty = self._bounded()
        residual_bound += self.bounds.rounding(self._span().size, plain=True)
        return row_of(self.statistics(), error_bound, residual_bound, dirty, self.resident())

    def resident(self) -> int:
        """Partitions in the caches of all solvers."""
        return min(sum(m.status.resident for m in self._solvers.living()), self._store.n_partitions)

    def _bounded(self) -> tuple[float, float, int]:
        """Bounds on the error and the plain residual, and how many partitions are dirty, by the last statuses.

        Bounds are infinite while an owner has not reported its own.
        """
        owners = [self._solvers.of[k] for k in np.unique(self.ownership.owner).tolist() if k >= 0]
        unknown = int(self.ownership.unknown().sum())
        dirty = min(unknown + sum(m.status.dirty for m in self._solvers.living()), self._store.n_partitions)
        if unknown or any(m.status.pending for m in owners):
            return np.inf, np.inf, dirty
        return max(m.status.error_bound for m in owners), max(m.status.residual_bound for m in owners), dirty

    def statistics(self) -> SolveStatistics:
        """Counters of all solvers together, those that were lost as far as they had told, and of earlier runs."""
        total = SolveStatistics(
            n_states=self._store.n_states,
            n_partitions=self._store.n_partitions,
            table_bytes=int(self._store.partition_bytes.sum()),
            source=self._store.kind,
        )
        for name in _SUMMED:
            own = 0 if name in _OF_CACHES else getattr(self._earlier, name)
            setattr(
                total, name, sum((getattr(m.status.statistics, name) for m in self._solvers.of.values()), start=own)
            )
        never = int((~self.known.visited).sum())
        if self.known.bounds is None:  # copies, if there are any, are older than what has been read since
            told = [m.status.statistics for m in self._solvers.of.values()]
            read = sum(s.n_partitions - s.partitions_unread for s in told)
            never = min(never, max(total.n_partitions - read, 0))
        total.partitions_unread = never
        total.seconds = self.clock.seconds()
        return total

    def snapshot(self) -> Snapshot | None:
        """The last copies of the values, as a checkpoint holds them; None where there are none."""
        if not self.known.valid.any():
            return None
        arrays = {**self.known.arrays(self._store.partition_ptr), **self.history.arrays()}
        return Snapshot(arrays, self.statistics())

    def _all(self, holds: Callable[[Status], bool]) -> bool:
        """Whether it holds of the last status of everybody at the present epoch."""
        return all(m.status.epoch == self.ownership.epoch and holds(m.status) for m in self._solvers.living())


_SUMMED = (
    "cache_bytes",
    "cache_peak_bytes",
    "accesses",
    "hits",
    "misses",
    "auxiliary_accesses",
    "auxiliary_hits",
    "loads",
    "bytes_read",
    "bytes_moved",
    "visits",
    "sweeps",
    "backups",
    "policy_evaluations",
    "load_seconds",
)
"""Counters of `SolveStatistics` that add up."""
_OF_CACHES = frozenset({"cache_bytes", "cache_peak_bytes"})
"""Those of them that are of this run's caches alone."""
