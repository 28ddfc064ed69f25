"""Leads the solvers of one solve: who owns what, when it is over, what is left when one is lost.

It sweeps nothing and no value passes through it, apart from copies for checkpoints and those of partitions that move.
Statuses come as soon as they change (each solver has one open question of ours at any time). The solve is over once all
solvers have been passive through an interval: with the same count of messages taken in at both its ends, and no message
on its way, since each waits for its receipt (Mattern's double wave over acknowledged messages; docs/distributed.md).
What is then proved is worked out here, from the bounds of all partitions by their owners.

A solver that does not answer for `patience` seconds, whose worker the scheduler has lost, or whose thread has not
finished a step for 40 times the patience, takes part no longer: an assignment of a new epoch gives its partitions to
the others, at the values of the last copy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.clock import Clock
from ooc_mdp.distributed.known import Known
from ooc_mdp.distributed.members import Member, Members, SolversLostError, on_a_thread
from ooc_mdp.distributed.messages import (
    Assignment,
    Go,
    Halt,
    Release,
    Report,
    Span,
    Status,
    Values,
)
from ooc_mdp.distributed.placement import PlacementFacts, take_over
from ooc_mdp.errors import StoreError
from ooc_mdp.events import SolveProgress, SolveWatcher
from ooc_mdp.kernels.compiling import COMPILING
from ooc_mdp.methods.checkpoint import saved_or_told
from ooc_mdp.methods.start import bounds_of
from ooc_mdp.methods.target import Target
from ooc_mdp.options import SolveOptions
from ooc_mdp.solution import Outcome, SolveStatistics
from ooc_mdp.table_source import TableSource

__all__ = ["Coordinator"]

_LOOK_SECONDS = 0.25
"""Between two looks at limits and losses, where no status comes."""
_REPORT_SECONDS = 0.25
_FIRST_COPY_SECONDS = 5.0
"""After which values are copied for the first time, if that is not due before."""
_LATE_SECONDS = 1.0
"""For which a stop waits, before anybody has swept, for a certificate of the first values."""
_GIVING = 4
"""Times the patience: for which a solver is waited for that is to give up partitions."""
_STILL = 40
"""Times the patience: a solver whose thread has not looked for messages for so long hangs. A read of a partition from a
slow disk must take less."""
_SPAN_GROWTH = 0.01
"""Share by which the range of the values must grow before all solvers are told."""
_MOVE_SECONDS = 0.05
"""Between two moves of partitions to idle solvers."""
_WELCOME_SECONDS = 2.0
"""Between two looks for workers that have come since."""
_LEAST_LEFT = 4
"""Dirty partitions out of the cache that a solver must have before others take some."""


class _Stop(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Coordinator:
    """Of one solve.

    Parameters
    ----------
    solvers : that begin.
    owner : int [P]; which solver begins with which partition.
    known : values to begin with, and where copies are kept.
    from_start : whether `known` holds nothing that the solvers do not know by themselves.
    copy_interval : seconds between two copies of all values.
    save : given `known` after each copy.
    clock : by default one that begins now, and knows of no signals.
    moves : whether idle solvers take dirty partitions from busy ones.
    spreads : whether partitions are divided among all solvers; else one has all of them, and another if it is lost.
    """

    def __init__(
        self,
        store: TableSource,
        options: SolveOptions,
        solvers: Members,
        owner: npt.NDArray[np.integer[Any]],
        facts: PlacementFacts,
        known: Known,
        *,
        from_start: bool,
        copy_interval: float = 60.0,
        save: Callable[[Known], None] | None = None,
        clock: Clock | None = None,
        watch: SolveWatcher | None = None,
        note: Callable[[str], None] = lambda _: None,
        moves: bool = False,
        spreads: bool = True,
    ) -> None:
        self._store, self._options, self._solvers = store, options, solvers
        self._facts, self.known, self._from_start = facts, known, from_start
        self._copy_interval, self.save = copy_interval, save
        self._watch, self._note = watch, note
        self._moves, self._spreads = moves, spreads
        self.bounds = bounds_of(store, options)
        ranges = self.bounds.reward_range
        self.target = Target(options, self.bounds, float(ranges.max() - ranges.min()))
        self._epoch = 0
        self.owner = owner.astype(np.int32)
        self._generation = np.zeros(owner.size, np.int32)
        self._told = Span(0.0, 0.0, 0.0)
        self.clock = clock or Clock(options.time_limit, lambda: False)
        self._reported = self._copied = self._moved = self._welcomed = self.clock.started
        self._last_report = self.clock.started, 0
        """When progress was told last, and what had been read then."""
        self._told_of_compiling = False
        self._copying: asyncio.Task[None] | None = None
        self._copying_took = 0.0
        self._keeping = threading.Lock()
        self._activity_copied = -1
        self._failing = False
        """Whether the last checkpoint could not be written."""
        self._going = False
        self._late, self._late_since = -1, 0.0
        """How many solvers have not begun, and since when there are so many."""
        self._still: dict[int, float] = {}
        """Solvers whose threads seem to hang, and since when."""
        self._arriving: dict[int, Member] = {}
        """Solvers that have been started, and take part once they answer."""
        self._meeting: asyncio.Task[list[int]] | None = None
        """Looks for them."""

    # ------------------------------------------------------------------------------------------------ the course

    async def lead(self) -> Outcome:
        """Until the target is reached, a limit or signal stops it, or nobody is left.

        Raises
        ------
        SolversLostError : the copies in `known` are what is left.
        """
        self._solvers.follow_all()
        watching = asyncio.ensure_future(self._watch_limits())
        try:
            try:
                await self._begin()
                while True:
                    await self._look()
                    if self._all(lambda s: s.passive) and await self._quiet() and await self._reached():
                        return Outcome.RESIDUAL if self.target.plain else Outcome.PROVED
            except _Stop as stop:
                watching.cancel()
                await self._halt()
                return stop.outcome
        finally:
            watching.cancel()
            if self._meeting is not None:
                self._meeting.cancel()
                await asyncio.wait({self._meeting}, timeout=_LOOK_SECONDS)
            await self._end_copy()
            for number in self._arriving:
                self._solvers.dismiss(number)
            await self._solvers.close()

    async def _watch_limits(self) -> None:
        """Have answers of solvers waited for no longer once a limit or signal says to stop."""
        while self._look_at_the_clock() is None:
            await asyncio.sleep(_LOOK_SECONDS)
        self._solvers.hurry.set()

    def _look_at_the_clock(self) -> Outcome | None:
        """What says to stop, if anything does; say once where solvers have loops to compile, for which it stands."""
        statuses = [m.status for m in self._solvers.living()]
        if not self._told_of_compiling and any(s.compiling for s in statuses):
            self._told_of_compiling = True
            self._note(COMPILING)
        self.clock.look(statuses, self._going)
        return self.clock.ends()

    async def _begin(self) -> None:
        """Give out the partitions; go once everybody knows what it reads."""
        first = {} if self._from_start else self._known_of(np.arange(self.owner.size), self._solvers.alive(), True)
        await self._assign(first)
        while not self._all(lambda s: not s.joining):
            await self._look()
            self._give_up_late()
        await self._tell_span()
        await self._solvers.tell(Go())
        self._going = True
        self._copied = time.monotonic()

    def _give_up_late(self) -> None:
        """Go on without solvers that do not begin, once others have for as long as the patience."""
        alive, patience, now = self._solvers.alive(), self._solvers.patience, time.monotonic()
        late = [k for k in alive if not self._solvers.of[k].status.begun]
        if len(late) != self._late:
            self._late, self._late_since = len(late), now
        if not late or now - self._late_since < patience:
            return
        why = "busy with other tasks of the cluster, perhaps another solve"
        if len(late) == len(alive):
            self._late_since = np.inf
            self._note(f"no worker has begun in {patience:g} s: their threads are {why}; waiting for them")
            return
        for k in late:
            self._solvers.lose(
                k,
                f"has not begun in {patience:g} s: its threads are {why}; the others go on without it until it is free",
            )

    def _give_up_still(self) -> None:
        """Go on without solvers whose threads hang while their workers answer, where another is left."""
        patience, now = self._solvers.patience, time.monotonic()
        alive = self._solvers.alive()
        statuses = {k: self._solvers.of[k].status for k in alive}
        seconds = {k: 0.0 if s.compiling and not s.ready else s.still for k, s in statuses.items()}
        still = [k for k in alive if seconds[k] > _STILL * patience]
        others = any(statuses[k].begun for k in alive if k not in still)
        # Seen for a while, since threads of a process that was stopped have yet to look.
        self._still = {k: self._still.get(k, now) for k in still}
        for k in still:
            if others and now - self._still[k] > patience:
                self._solvers.lose(
                    k,
                    f"has not finished a step for {seconds[k]:.0f} s: its thread hangs, or waits for a disk or device; "
                    f"the others go on with its partitions (give a longer --patience if such steps are usual)",
                )

    async def _look(self) -> None:
        """Wait a little for news, and do what is due."""
        await self._look_at_losses()
        now = time.monotonic()
        stuck = {m.status.outcome for m in self._solvers.living()}
        for outcome in Outcome:
            if outcome.word in stuck:
                raise _Stop(outcome)
        ended = self._look_at_the_clock()
        if ended is not None:
            raise _Stop(ended)
        await self._tell_span(_SPAN_GROWTH)
        if self._watch is not None and now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self._watch(self.progress())
        if not self._going:  # bounds of a checkpoint hold while nobody sweeps
            return
        self._copy_if_due(now)
        if now - self._welcomed >= _WELCOME_SECONDS:
            await self._welcome(now)
        if self._moves and now - self._moved >= _MOVE_SECONDS:
            await self._move()

    async def _quiet(self) -> bool:
        """Ask all again: whether they were passive all the time since their last statuses, at the present epoch."""
        before = {k: self._solvers.of[k].status for k in self._solvers.alive()}
        if any(s.epoch != self._epoch for s in before.values()):
            return False
        now = await self._solvers.ask_all("status", (-1, 0.0))
        return now.keys() == before.keys() == set(self._solvers.alive()) and all(
            isinstance(s, Status) and s.passive and s.activity == before[k].activity for k, s in now.items()
        )

    async def _reached(self) -> bool:
        """Everything is quiet: collect what everybody knows, and see whether it proves what was asked."""
        if not await self._collect():
            return False
        if self.target.reached():
            return True
        # Solvers know the range of all values only from what they are told; now they have worked with less than that.
        await self._tell_span(-1.0)
        return False

    async def _collect(self) -> bool:
        """Take in values and bounds of all partitions; False where somebody was lost meanwhile."""
        await self._end_copy()
        reports = await self._solvers.command_all(Report(), self._keep)
        if reports is None:
            return False
        bounds = np.full((4, self.owner.size), np.inf)
        for values in reports.values():
            assert values.bounds is not None  # asked for
            bounds[:, values.partitions] = values.bounds
        self._restore(bounds)
        span = self._span()
        self.known.value_size = max(self.known.value_size, span.size)
        self.target.saw(span.smallest, span.largest, self.known.value_size)
        return bool(self.known.copied.all())

    def _restore(self, bounds: npt.NDArray[np.float64]) -> None:
        """Bounds of the values that are known."""
        self.known.bounds = bounds
        names = ("rise", "fall", "plain_rise", "plain_fall")
        self.bounds.restore(dict(zip(names, bounds, strict=True)))

    async def _halt(self) -> None:
        """Stop the sweeps, and let everything arrive, so that bounds hold of all values together."""
        await self._end_copy()
        self._solvers.hurry.clear()
        end = time.monotonic() + (self._solvers.patience if self._going else _LATE_SECONDS)
        try:
            await self._solvers.tell(Halt())
            while time.monotonic() < end:
                await self._look_at_losses()
                if self._all(lambda s: s.passive and s.halted) and await self._quiet():
                    await self._collect()
                    return
        except SolversLostError as error:
            self._note(str(error))
        if self._going:
            self.known.bounds = None
        elif self.known.bounds is not None:  # nobody has swept: they are a checkpoint's, and so are the values
            self._restore(self.known.bounds)

    async def _look_at_losses(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._solvers.news.wait(), _LOOK_SECONDS)
        self._solvers.news.clear()
        self._solvers.raise_failures()
        self._give_up_still()
        await self._replace_lost()

    # ------------------------------------------------------------------------------------------------ who owns what

    async def _assign(self, adopted: dict[int, Values | None]) -> None:
        """Tell everybody who owns what, and new owners the last known values; in the order of the epochs."""
        self._epoch += 1
        addresses = {k: m.address for k, m in self._solvers.of.items() if m.alive}
        await self._solvers.each(
            lambda k: Assignment(
                self._epoch,
                self.owner.copy(),
                self._generation.copy(),
                addresses,
                adopted.get(k),
                from_start=self._from_start and self._epoch == 1,
            )
        )

    async def _replace_lost(self) -> None:
        """Give the partitions of solvers that were just lost to the others."""
        alive = self._solvers.alive()
        if not alive:
            raise SolversLostError("all workers are lost")
        unowned = np.flatnonzero(~np.isin(self.owner, alive))
        if unowned.size and self._epoch > 0:
            await self._give(unowned, sorted(set(self.owner[unowned].tolist())), alive)

    async def _give(self, partitions: npt.NDArray[np.int64], lost: list[int], to: list[int]) -> None:
        """Divide partitions, all those of the lost, among others."""
        if not self._spreads:
            to = [max(to, key=lambda k: self._solvers.of[k].share)]
        shares = np.array([self._solvers.of[k].share for k in to])
        owner = take_over(self._facts, self.owner.astype(np.int64), np.array(lost), np.array(to), shares)
        self.owner[partitions] = owner[partitions]
        self._generation[partitions] = self._epoch + 1
        await self._assign(self._known_of(partitions, to, False))

    def _known_of(
        self, partitions: npt.NDArray[np.int64], owners: list[int], with_bounds: bool
    ) -> dict[int, Values | None]:
        """What each of the new owners of partitions is told of them."""
        ptr, of = self._store.partition_ptr, self.owner[partitions]
        return {k: self.known.of(partitions[of == k], ptr, with_bounds) for k in owners}

    async def _move(self) -> None:
        """Let a solver that has nothing to do take dirty partitions of the one that has most."""
        self._moved = time.monotonic()
        stand = {k: self._solvers.of[k].status for k in self._solvers.alive()}
        idle = [k for k, status in stand.items() if status.passive and not status.dirty]
        busy = [k for k, status in stand.items() if status.absent_dirty >= _LEAST_LEFT]
        if not idle or not busy:
            return
        most = max(busy, key=lambda k: stand[k].absent_dirty)
        count = stand[most].absent_dirty // (len(idle) + 1)
        await self._hand_over(most, max(count, 1), idle)

    async def _welcome(self, now: float) -> None:
        """Have workers that came later, or were lost and are there again, take a share of what is dirty."""
        if self._meeting is None:
            self._meeting = asyncio.ensure_future(self._meet())
            await asyncio.wait({self._meeting}, timeout=_LOOK_SECONDS)
        if self._meeting.done():
            meeting, self._meeting, self._welcomed = self._meeting, None, now
            for number in meeting.result():
                await self._admit(number, self._arriving.pop(number))
        if self._spreads:
            await self._share()

    async def _meet(self) -> list[int]:
        """Solvers on workers that came later, once their loops run; one that does not answer holds up nothing else."""
        link = self._solvers.link
        for number in await link.newcomers():
            self._arriving[number] = Member(link.address(number))
        ready = []
        for number, member in list(self._arriving.items()):
            failure, status = link.failure(number), None
            if failure is not None:
                self._note(f"worker {number} ({member.address}) cannot take part: {failure}")
                del self._arriving[number]
                continue
            with suppress(OSError, TimeoutError):
                status = await link.ask(number, "status", (-1, 0.0), self._solvers.patience)
            if status is None:
                del self._arriving[number]
                self._solvers.dismiss(number)
            elif isinstance(status, Status) and status.version > 0:  # its loop runs
                ready.append(number)
        return ready

    async def _admit(self, number: int, member: Member) -> None:
        """A solver takes part from now on."""
        self._solvers.add(number, member)
        await self._assign({})
        await self._solvers.put(number, self._span())
        await self._solvers.put(number, Go())

    async def _share(self) -> None:
        """Have solvers that own nothing get dirty partitions that are in no cache, or where none are, some that are."""
        alive = self._solvers.alive()
        due = max(self.owner.size // max(len(alive), 1), 1)
        for poor in alive:
            for cached in (False, True):
                if (self.owner == poor).any():
                    break
                for k in alive:
                    member, spare = self._solvers.of[k], int((self.owner == k).sum()) - due
                    dirty = member.status.dirty if cached else member.status.absent_dirty
                    if spare > 0 and dirty and member.alive and self._solvers.of[poor].alive:
                        await self._hand_over(k, spare, [poor], cached)

    async def _hand_over(self, giver: int, most: int, to: list[int], cached: bool = False) -> None:
        """Have a solver give up dirty partitions for others."""
        given = await self._solvers.command(giver, Release(most, cached), self._keep, _GIVING * self._solvers.patience)
        if given is None:
            # It may have given up some, and forgotten who reads them: it gets them back, and is asked for all anew.
            self._generation[self.owner == giver] = self._epoch + 1
            await self._assign({})
            return
        if not given.partitions.size:
            return
        self.owner[given.partitions] = -1
        await self._give(given.partitions, [-1], to)

    # ------------------------------------------------------------------------------------------------ copies, figures

    def _copy_if_due(self, now: float) -> None:
        """Begin a copy where the last is over and long ago; solvers that are slow to answer hold up nothing else."""
        if self._copying is not None:
            if not self._copying.done():
                return
            copying, self._copying = self._copying, None
            copying.result()  # an error of the copy is one of the solve
        due = max(self._copy_interval, 20 * self._copying_took)
        if now - self._copied >= (due if self._activity_copied >= 0 else min(due, _FIRST_COPY_SECONDS)):
            self._copying = asyncio.ensure_future(self._copy())

    async def _end_copy(self) -> None:
        """Give up the copy that is under way, if one is; what it was just writing is there then."""
        copying, self._copying = self._copying, None
        while copying is not None and not copying.done():
            copying.cancel()
            await asyncio.wait({copying}, timeout=_LOOK_SECONDS)
        if copying is not None:
            with suppress(asyncio.CancelledError, StoreError):  # what follows is saved too, or fails in the same way
                copying.result()

    async def _copy(self) -> None:
        """Copy all values, for checkpoints and for the partitions of whoever is lost."""
        activity = sum(m.status.activity + m.status.statistics.backups for m in self._solvers.living())
        if activity == self._activity_copied:
            self._copied = time.monotonic()
            return
        began = time.monotonic()
        reports = await self._solvers.command_all(Report(), self._keep)  # each of its own time
        if self.save is not None and reports is not None:
            await on_a_thread(self._write, self.known)
        self._activity_copied = activity
        self._copied = time.monotonic()
        self._copying_took = self._copied - began

    def _write(self, known: Known) -> None:
        """Write a checkpoint, where that can be done."""
        assert self.save is not None  # who calls has looked
        self._failing = not saved_or_told(partial(self.save, known), self._note, self._failing)

    def _keep(self, values: Values) -> None:
        with self._keeping:
            self.known.take(values, self._store.partition_ptr)

    async def _tell_span(self, growth: float = 0.0) -> None:
        """Tell everybody the range of all values, where it has grown by the share."""
        span, then = self._span(), self._told
        allowed = growth * (then.largest - then.smallest + then.size)
        differs = max(abs(span.smallest - then.smallest), abs(span.largest - then.largest), span.size - then.size)
        if differs > allowed or growth < 0:
            self._told = span
            await self._solvers.hint(span)

    def _span(self) -> Span:
        """The range of all values, by the last statuses; their size is the largest that anybody has ever seen."""
        living = [m.status for m in self._solvers.living() if m.status.smallest <= m.status.largest]
        return Span(
            min((s.smallest for s in living), default=0.0),
            max((s.largest for s in living), default=0.0),
            max(self.known.value_size, *(m.status.size for m in self._solvers.of.values())),
        )

    def progress(self) -> SolveProgress:
        """Where the solve stands, by the last statuses."""
        s, span = self.statistics(), self._span()
        self.target.saw(span.smallest, span.largest, span.size)
        owners = [self._solvers.of[k] for k in np.unique(self.owner).tolist() if k >= 0]
        unknown = int(self._unknown().sum())
        bounded = not unknown and not any(m.status.joining for m in owners)
        dirty = unknown + sum(m.status.dirty for m in self._solvers.living())
        now, (then, read) = time.monotonic(), self._last_report
        self._last_report = now, s.bytes_read
        return SolveProgress(
            error_bound=max(m.status.error_bound for m in owners) if bounded else np.inf,
            residual_bound=max(m.status.residual_bound for m in owners) if bounded else np.inf,
            target=self.target.asked,
            target_kind="residual" if self.target.plain else "epsilon",
            dirty=min(dirty, s.n_partitions),
            partitions=s.n_partitions,
            hit_rate=s.hit_rate,
            bytes_read=s.bytes_read,
            read_rate=(s.bytes_read - read) / max(now - then, 1e-9),
            loads=s.loads,
            seconds=s.seconds,
        )

    def _unknown(self) -> npt.NDArray[np.bool_]:
        """bool [P]: partitions that nobody alive owns, or whose owner has not told of them yet."""
        epochs = {k: m.status.epoch for k, m in self._solvers.of.items() if m.alive}
        told = np.array([epochs.get(k, -1) for k in self.owner.tolist()])
        unknown: npt.NDArray[np.bool_] = told < np.maximum(self._generation, 1)
        return unknown

    def statistics(self) -> SolveStatistics:
        """Counters of all solvers together, those that were lost as far as they had told."""
        total = SolveStatistics(
            n_states=self._store.n_states,
            n_partitions=self._store.n_partitions,
            table_bytes=int(self._store.partition_bytes.sum()),
            source=self._store.kind,
        )
        for member in self._solvers.of.values():
            s = member.status.statistics
            for name in _SUMMED:
                setattr(total, name, getattr(total, name) + getattr(s, name))
        never = int((~self.known.visited).sum())
        if self.known.bounds is None:  # copies, if there are any, are older than what has been read since
            told = [m.status.statistics for m in self._solvers.of.values()]
            read = sum(s.n_partitions - s.partitions_never_read for s in told)
            never = min(never, max(total.n_partitions - read, 0))
        total.partitions_never_read = never
        total.seconds = self.clock.seconds()
        return total

    def _all(self, holds: Callable[[Status], bool]) -> bool:
        """Whether it holds of the last status of everybody at the present epoch."""
        return all(m.status.epoch == self._epoch and holds(m.status) for m in self._solvers.living())


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
    "evaluations",
    "load_seconds",
)
"""Counters of `SolveStatistics` that add up."""
