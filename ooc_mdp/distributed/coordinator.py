"""The coordinator of one solve: starts the workers, polls them, and computes what is proved at the end.

It sweeps nothing, and no values pass through it except copies for checkpoints and those of partitions that move.
Statuses arrive as soon as they change (each worker has one open status request at any time). The solve ends once all
workers were passive at one moment (`termination.py`; docs/theory/several-solvers.md has the argument); the coordinator
then computes from the bounds of all partitions what is proved.

A worker is removed when it does not answer for `worker_timeout` seconds, when the scheduler has lost its process, or
when its thread has not finished a step for 40 times as long. An assignment of a new epoch then gives its partitions to
the others, with the values of the last snapshot.
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
from ooc_mdp.distributed.partition_graph import PartitionGraph
from ooc_mdp.distributed.snapshots import SnapshotTaker, StartingPoint
from ooc_mdp.distributed.stragglers import LateJoiners, Stragglers
from ooc_mdp.distributed.termination import SolveClock, confirm_quiescent
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.history import HistoryRow, progress_of, row_of
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.solver.session import Session

__all__ = ["Coordinator", "Division"]

_POLL_SECONDS = 0.25
"""Between two checks of limits and losses while no status arrives."""
_LATE_SECONDS = 1.0
"""How long a stop before the first sweep waits for a certificate of the initial values."""
_RANGE_GROWTH = 0.01
"""Relative growth of the value range after which it is sent to all workers."""


class _Stopped(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Division:
    """How partitions are divided among the workers."""

    owner: npt.NDArray[np.integer[Any]]
    """int [P]; number of the worker that begins with each partition."""
    graph: PartitionGraph
    rebalance: bool = False
    """Whether idle workers take dirty partitions from busy ones."""
    distribute: bool = True
    """Whether partitions are divided among all workers; otherwise one owns all, and another one after its loss."""


class Coordinator:
    """Starts, polls and stops the workers of one solve.

    Parameters
    ----------
    members : the workers that begin.
    division : their partitions.
    start : the values that are known at the start.
    clock : a new one by default.
    session : with the same clock; by default one that saves and reports nothing and has no limits. Its checkpoint
        interval is the time between two snapshots of all values; each snapshot is saved as a checkpoint.
    """

    def __init__(
        self,
        table: Table,
        options: SolveOptions,
        members: Membership,
        division: Division,
        start: StartingPoint,
        clock: SolveClock | None = None,
        session: Session | None = None,
    ) -> None:
        self.known, self.history = start.known, start.history
        self._earlier, self._method = start.earlier or SolveStatistics(), start.method
        self._store, self._members = table, members
        self.clock = clock or SolveClock()
        self._session = session or Session(clock=self.clock)
        self._session.hold_reports()  # until workers have had the time to fail
        self._note, self._rebalance = self._session.note, division.rebalance
        self.bounds = ResidualBounds.of_model(ModelFacts.of(table.facts, options.discount))
        ranges = self.bounds.reward_range
        self.target = Target(options, self.bounds, float(ranges.max() - ranges.min()))
        save = partial(self._session.output.try_save, self.snapshot)
        interval, ptr = self._session.checkpoint_interval, table.facts.partition_ptr
        self._snapshots = SnapshotTaker(members, self.known, ptr, interval, save, self.history)
        initial_start = start.earlier is None
        self.ownership = Ownership(
            members,
            division.graph,
            self._snapshots,
            division.owner,
            ptr,
            initial_start=initial_start,
            distribute=division.distribute,
        )
        self._stragglers, self._late_joiners = Stragglers(members, self._note), LateJoiners(members, self._note)
        self._sent_range = ValueRange(0.0, 0.0, 0.0)
        self._note_compiling = False
        self._started = False

    async def run(self) -> Outcome:
        """Run the solve until the target is reached, a limit or signal stops it, or no worker is left.

        Raises
        ------
        WorkersLostError : no worker is left; `known` has the values of the last snapshot.
        """
        self.history.row(self.row())
        self._members.follow_all()
        watching = asyncio.ensure_future(self._watch_limits())
        try:
            try:
                await self._begin()
                while True:
                    await self._poll()
                    if (
                        self._all(lambda s: s.passive)
                        and await confirm_quiescent(self._members, self.ownership.epoch)
                        and await self.check_target()
                    ):
                        return self.target.outcome
            except _Stopped as stop:
                watching.cancel()
                await self._pause()
                return stop.outcome
        finally:
            watching.cancel()
            await self._late_joiners.close()
            await self._snapshots.cancel()
            await self._members.close()

    async def _watch_limits(self) -> None:
        """Stop waiting for answers of workers once a limit or signal ends the solve."""
        while self._session.ended() is None:
            await asyncio.sleep(_POLL_SECONDS)
            self._update_clock()
        self._members.stopping.set()

    def _update_clock(self) -> None:
        """Stop the clock while workers load their code, and run it otherwise; report once that they compile loops."""
        statuses = [m.status for m in self._members.alive_members()]
        if not self._note_compiling and any(s.compiling for s in statuses):
            self._note_compiling = True
            self._note(COMPILING)
        self.clock.update(statuses, self._started)

    async def _begin(self) -> None:
        """Assign the partitions, and start sweeps once each worker knows the values that it reads."""
        await self.ownership.begin()
        while not self._all(lambda s: not s.pending):
            await self._poll()
            self._stragglers.drop_unstarted()
        await self.broadcast_value_range()
        await self._members.broadcast(Start(self.clock.seconds()))
        self._started = True
        self._snapshots.begin()

    async def _poll(self) -> None:
        """Wait for a change, handle failures and limits, and do what is due."""
        await self.handle_failures()
        now = time.monotonic()
        stuck = {m.status.outcome for m in self._members.alive_members()}
        for outcome in Outcome:
            if outcome.value in stuck:
                raise _Stopped(outcome)
        self._update_clock()
        ended = self._session.observe(self)
        if ended is not None:
            raise _Stopped(ended)
        await self.broadcast_value_range(_RANGE_GROWTH)
        if not self._started:  # bounds of a checkpoint hold while no worker sweeps
            return
        self._snapshots.take_if_due()
        if self._late_joiners.due(now):
            await self.admit_late_joiners(now)
        if self._rebalance:
            await self.ownership.rebalance_if_due(now)

    async def admit_late_joiners(self, now: float) -> None:
        """Let workers that joined late, or came back after a loss, take some of the dirty partitions."""
        for number, member in (await self._late_joiners.ready(now)).items():
            await self.ownership.admit(number, member)
            await self._members.send(number, self._value_range())
            await self._members.send(number, Start(self.clock.seconds()))
        await self.ownership.fill_idle()

    async def check_target(self) -> bool:
        """Collect all bounds while all workers are quiescent, and return whether they prove the target."""
        if not await self.collect_bounds():
            return False
        if self.target.reached():
            return True
        # Workers know the range of all values from broadcasts only, and the last one was smaller than the true range.
        await self.broadcast_value_range(-1.0)
        return False

    async def collect_bounds(self) -> bool:
        """Take a snapshot of the values and bounds of all partitions; return False if a worker was lost meanwhile."""
        await self._snapshots.cancel()
        reports = await self._snapshots.take_now()
        if reports is None:
            return False
        bounds = np.full((4, self.ownership.owner.size), np.inf)
        for values in reports.values():
            assert values.bounds is not None  # as requested
            bounds[:, values.partitions] = values.bounds
        self._restore(bounds, measured=True)
        found = self._value_range()
        self.known.value_size = max(self.known.value_size, found.size)
        self.target.update_value_range(found.smallest, found.largest, self.known.value_size)
        return bool(self.known.valid.all())

    def _restore(self, bounds: npt.NDArray[np.float64], measured: bool) -> None:
        """Install bounds for the known values: those that workers have measured, or those of a checkpoint."""
        self.known.bounds = bounds
        names = ("rise", "fall", "plain_rise", "plain_fall")
        self.bounds.restore(dict(zip(names, bounds, strict=True)), measured)

    async def _pause(self) -> None:
        """Stop the sweeps and wait until all messages have arrived, so that bounds hold for all values together."""
        await self._snapshots.cancel()
        self._members.stopping.clear()
        end = time.monotonic() + (self._members.worker_timeout if self._started else _LATE_SECONDS)
        try:
            await self._members.broadcast(Pause())
            while time.monotonic() < end:
                await self.handle_failures()
                if self._all(lambda s: s.passive and s.paused) and await confirm_quiescent(
                    self._members, self.ownership.epoch
                ):
                    await self.collect_bounds()
                    return
        except WorkersLostError as error:
            self._note(str(error))
        if self._started:
            self.known.bounds = None
        elif self.known.bounds is not None:  # no worker has swept: values and bounds are still those of the checkpoint
            self._restore(self.known.bounds, measured=False)

    async def handle_failures(self) -> None:
        """Wait for a change, then give the partitions of lost workers to the others."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._members.changed.wait(), _POLL_SECONDS)
        self._members.changed.clear()
        self._members.raise_failures()
        self._stragglers.drop_hung()
        await self.ownership.replace_lost()

    async def broadcast_value_range(self, growth: float = 0.0) -> None:
        """Send the range of all values to all workers if it has grown by more than a fraction (negative: always)."""
        now, sent = self._value_range(), self._sent_range
        allowed = growth * (sent.largest - sent.smallest + sent.size)
        differs = max(abs(now.smallest - sent.smallest), abs(now.largest - sent.largest), now.size - sent.size)
        if differs > allowed or growth < 0:
            self._sent_range = now
            await self._members.broadcast_best_effort(now)

    def _value_range(self) -> ValueRange:
        """Return the range of all values by the last statuses, with the largest size that was ever reported."""
        statuses = [m.status for m in self._members.alive_members() if m.status.smallest <= m.status.largest]
        return ValueRange(
            min((s.smallest for s in statuses), default=0.0),
            max((s.largest for s in statuses), default=0.0),
            max(self.known.value_size, *(m.status.size for m in self._members.by_number.values())),
        )

    def progress(self) -> SolveProgress:
        """Return the progress of the solve by the last statuses."""
        s, values = self.statistics(), self._value_range()
        self.target.update_value_range(values.smallest, values.largest, values.size)
        error_bound, residual_bound, dirty = self._bounded()
        return progress_of(
            s,
            error_bound=min(error_bound, self.target.trivial_error()) if np.isfinite(error_bound) else error_bound,
            residual_bound=residual_bound,
            target=self.target.tolerance if self.target.known_at(error_bound) else None,
            stopping_rule="residual" if self.target.plain else "epsilon",
            dirty=dirty,
        )

    def row(self) -> HistoryRow:
        """Return a row of the history, by the last statuses."""
        error_bound, residual_bound, dirty = self._bounded()
        residual_bound += self.bounds.rounding(self._value_range().size, plain=True)
        return row_of(self.statistics(), error_bound, residual_bound, dirty, self.resident())

    def resident(self) -> int:
        """Return how many partitions the caches of all workers hold."""
        return min(sum(m.status.resident for m in self._members.alive_members()), self._store.n_partitions)

    def _bounded(self) -> tuple[float, float, int]:
        """Return bounds on the error and the plain residual, and the number of dirty partitions, by the last statuses.

        The bounds are infinite while an owner has not reported its own.
        """
        owners = [self._members.by_number[k] for k in np.unique(self.ownership.owner).tolist() if k >= 0]
        unknown = int(self.ownership.unacknowledged().sum())
        dirty = min(unknown + sum(m.status.dirty for m in self._members.alive_members()), self._store.n_partitions)
        if unknown or any(m.status.pending for m in owners):
            return np.inf, np.inf, dirty
        return max(m.status.error_bound for m in owners), max(m.status.residual_bound for m in owners), dirty

    def statistics(self) -> SolveStatistics:
        """Sum the counters of all workers and earlier runs; for lost workers, as last reported."""
        total = SolveStatistics(
            n_states=self._store.n_states,
            n_partitions=self._store.n_partitions,
            table_bytes=int(self._store.facts.partition_bytes.sum()),
            source=self._store.facts.kind,
        )
        reported = [m.status.statistics for m in self._members.by_number.values()]
        for name in _SUMMED:
            own = 0 if name in _OF_CACHES else getattr(self._earlier, name)
            setattr(total, name, own + sum(getattr(s, name) for s in reported))
        never = int((~self.known.visited).sum())
        if self.known.bounds is None:  # a snapshot, if there is one, is older than the counters
            read = sum(s.n_partitions - s.partitions_unread for s in reported)
            never = min(never, max(total.n_partitions - read, 0))
        total.partitions_unread = never
        total.solve_seconds = self.clock.seconds()
        return total

    def snapshot(self) -> Snapshot | None:
        """Return the last snapshot in the form of a checkpoint; None where there is none."""
        if not self.known.valid.any():
            return None
        arrays = {**self.known.arrays(self._store.facts.partition_ptr), **self.history.arrays()}
        return Snapshot(arrays, self.statistics(), self._method)

    def _all(self, holds: Callable[[Status], bool]) -> bool:
        """Return whether all workers have applied the present epoch and a predicate holds for their last statuses."""
        return all(m.status.epoch == self.ownership.epoch and holds(m.status) for m in self._members.alive_members())


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
    "bytes_decoded",
    "visits",
    "sweeps",
    "backups",
    "policy_evaluations",
    "load_seconds",
)
"""Counters of `SolveStatistics` that are summed over workers and runs."""
_OF_CACHES = frozenset({"cache_bytes", "cache_peak_bytes"})
"""Those that are summed over the workers of this run only."""
