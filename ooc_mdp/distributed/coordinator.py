"""Leads the solvers of one solve: who owns what, when it is over, what is left when one is lost.

It sweeps nothing and no value passes through it, apart from copies for checkpoints and those of partitions that move.
Statuses come as soon as they change (each solver has one open question of ours at any time). The solve is over once all
solvers have been passive through an interval: with the same count of messages taken in at both its ends, and no message
on its way, since each waits for its receipt (Mattern's double wave over acknowledged messages; docs/distributed.md).
What is then proved is worked out here, from the bounds of all partitions by their owners.

A solver that does not answer for `patience` seconds, or whose worker the scheduler has lost, takes part no longer: an
assignment of a new epoch gives its partitions to the others, at the values of the last copy.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.messages import (
    Assignment,
    Command,
    End,
    Go,
    Halt,
    Release,
    Report,
    Span,
    Status,
    Values,
    pieces_of,
)
from ooc_mdp.distributed.placement import PlacementFacts, take_over
from ooc_mdp.errors import OocMdpError
from ooc_mdp.events import SolveProgress, SolveWatcher
from ooc_mdp.methods.start import bounds_of
from ooc_mdp.methods.target import Target
from ooc_mdp.options import SolveOptions
from ooc_mdp.solution import Outcome, SolveStatistics
from ooc_mdp.table_source import TableSource

__all__ = ["Coordinator", "Known", "Link", "Member", "SolversLostError"]

_LOOK_SECONDS = 0.25
"""Between two looks at limits and losses, where no status comes."""
_REPORT_SECONDS = 0.25
_SPAN_GROWTH = 0.01
"""Share by which the range of the values must grow before all solvers are told."""
_MOVE_SECONDS = 0.05
"""Between two moves of partitions to idle solvers."""
_COMMAND_SECONDS = 3600.0
"""In which a solver's thread should find the time to answer: it looks between two accesses."""
_WELCOME_SECONDS = 2.0
"""Between two looks for workers that have come since."""
_PROBE_SECONDS = 1.0
"""To wait for an answer where there was none before: then the scheduler is asked again who has gone."""
_AGAIN_SECONDS = 0.1
"""Before a command that did not arrive is sent again."""
_COPY_THREADS, _COPY_STATES = 8, 4 << 20
"""That put values in their places, and how many states each does at a time."""
_LEAST_LEFT = 4
"""Dirty partitions out of the cache that a solver must have before others take some."""


class SolversLostError(OocMdpError):
    """No solver, or no scheduler, is left."""


class Link(Protocol):
    """How the coordinator reaches solvers."""

    async def ask(self, number: int, verb: str, argument: Any, timeout: float) -> Any:
        """The solver's answer; OSError or TimeoutError where there is none."""
        ...

    async def lost(self, number: int) -> bool:
        """Whether it is known that the solver's worker is gone."""
        ...

    def failure(self, number: int) -> BaseException | None:
        """What the solver's task raised, if it has ended so."""
        ...

    async def newcomers(self) -> list[int]:
        """Start solvers on workers that have come since; their numbers."""
        ...

    def address(self, number: int) -> str:
        """Of a solver's worker."""
        ...

    async def dismiss(self, number: int) -> None:
        """Have nothing more to do with a solver."""
        ...

    def broken(self) -> str | None:
        """Why no solver can be reached any more, if so."""
        ...


@dataclass(slots=True)
class Known:
    """Values, policy and bounds of all partitions, as far as the coordinator has copies."""

    values: npt.NDArray[np.float64]
    """float64 [n], store order, of the maximisation."""
    policy: npt.NDArray[np.int32]
    visited: npt.NDArray[np.bool_]
    copied: npt.NDArray[np.bool_]
    """bool [P]; whether there is a copy: values that are another's than the first ones."""
    bounds: npt.NDArray[np.float64] | None = None
    """float64 [4, P] as in `Values`; None: nothing is known."""
    value_size: float = 0.0


@dataclass(slots=True)
class Member:
    """One solver."""

    address: str
    share: float = 1.0
    """Its part of the work, relative to the others'."""
    status: Status = field(default_factory=Status)
    alive: bool = True
    answered: float = field(default_factory=time.monotonic)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is lost."""


class _Stop(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Coordinator:
    """Of one solve.

    Parameters
    ----------
    members : by number.
    owner : int [P]; which solver begins with which partition.
    known : values to begin with, and where copies are kept.
    from_start : whether `known` holds nothing that the solvers do not know by themselves.
    patience : seconds without an answer after which a solver is lost.
    copy_interval : seconds between two copies of all values.
    save : given `known` after each copy.
    interrupted : whether a signal says to stop.
    moves : whether idle solvers take dirty partitions from busy ones.
    """

    def __init__(
        self,
        store: TableSource,
        options: SolveOptions,
        link: Link,
        members: dict[int, Member],
        owner: npt.NDArray[np.integer[Any]],
        facts: PlacementFacts,
        known: Known,
        *,
        from_start: bool,
        patience: float = 15.0,
        copy_interval: float = 60.0,
        save: Callable[[Known], None] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
        watch: SolveWatcher | None = None,
        note: Callable[[str], None] = lambda _: None,
        moves: bool = False,
    ) -> None:
        self._store, self._options, self._link, self.members = store, options, link, members
        self._facts, self.known, self._from_start = facts, known, from_start
        self._patience, self._copy_interval, self.save = patience, copy_interval, save
        self._interrupted, self._watch, self._note, self._moves = interrupted, watch, note, moves
        self.bounds = bounds_of(store, options)
        ranges = self.bounds.reward_range
        self.target = Target(options, self.bounds, float(ranges.max() - ranges.min()))
        self._epoch = 0
        self.owner = owner.astype(np.int32)
        self._generation = np.zeros(owner.size, np.int32)
        self._wake = asyncio.Event()
        self._told = Span(0.0, 0.0, 0.0)
        self._started = self._reported = self._copied = self._moved = self._welcomed = time.monotonic()
        self._copying_took = 0.0
        self._activity_copied = -1
        self._followers: list[asyncio.Future[None]] = []
        self._going = self._over = False
        self._commands = 0
        self._dismissals: list[asyncio.Future[None]] = []
        self._arriving: dict[int, Member] = {}
        """Solvers that have been started, and take part once they answer."""
        self.lost: list[int] = []
        """Solvers that were lost, in order."""
        self.earlier_seconds = 0.0

    # ------------------------------------------------------------------------------------------------ the course

    async def lead(self) -> Outcome:
        """Until the target is reached, a limit or signal stops it, or nobody is left.

        Raises
        ------
        SolversLostError : the copies in `known` are what is left.
        """
        for k in self.members:
            self._followers.append(asyncio.ensure_future(self._follow(k)))
        try:
            try:
                await self._begin()
                while True:
                    await self._look()
                    if self._all(lambda s: s.passive) and await self._quiet() and await self._reached():
                        return Outcome.RESIDUAL if self.target.plain else Outcome.PROVED
            except _Stop as stop:
                await self._halt()
                return stop.outcome
        finally:
            self._over = True  # wait_for of Python 3.11 swallows a cancellation that comes together with the answer
            for follower in self._followers:
                follower.cancel()
            await asyncio.gather(*self._followers, *self._dismissals, return_exceptions=True)
            await self._end()

    async def _begin(self) -> None:
        """Give out the partitions; go once everybody knows what it reads."""
        begun = not self._from_start
        await self._assign({k: self._values_for(np.flatnonzero(self.owner == k), begun) for k in self.alive()})
        while not self._all(lambda s: not s.joining):
            await self._look()
        await self._tell_span()
        await self._tell(Go())
        self._going = True

    async def _look(self) -> None:
        """Wait a little for news, and do what is due."""
        await self._look_at_losses()
        now = time.monotonic()
        stuck = {m.status.outcome for m in self._living()}
        for outcome in Outcome:
            if outcome.word in stuck:
                raise _Stop(outcome)
        if self._interrupted():
            raise _Stop(Outcome.INTERRUPTED)
        limit = self._options.time_limit
        if limit is not None and now - self._started >= limit:
            raise _Stop(Outcome.TIME_LIMIT)
        await self._tell_span(_SPAN_GROWTH)
        if self._watch is not None and now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self._watch(self.progress())
        if now - self._copied >= max(self._copy_interval, 20 * self._copying_took):
            await self._copy()
        if not self._going:  # bounds of a checkpoint hold while nobody sweeps
            return
        if now - self._welcomed >= _WELCOME_SECONDS:
            await self._welcome()
        if self._moves and now - self._moved >= _MOVE_SECONDS:
            await self._move()

    async def _follow(self, number: int) -> None:
        """Keep a question for a solver's status open."""
        member = self.members[number]
        well = True
        while member.alive and not self._over:
            status: Any = None
            # A connection to a worker that has just gone is tried for long, before the scheduler knows of it.
            timeout = self._patience if well else min(self._patience, _PROBE_SECONDS)
            with suppress(OSError, TimeoutError):
                status = await self._link.ask(number, "status", (member.status.version, float(well)), timeout)
            well = isinstance(status, Status)
            self._wake.set()
            if isinstance(status, Status):
                member.answered, member.status = time.monotonic(), status
                await asyncio.sleep(0.005)
                continue
            # Silence, or the word that no solver is there: if it failed, its task says so.
            silent = time.monotonic() - member.answered > self._patience
            if silent or (status is None and await self._link.lost(number)):
                self._lose(number)
                return
            await asyncio.sleep(0.1)

    def _raise_failures(self) -> None:
        broken = self._link.broken()
        if broken is not None:
            raise SolversLostError(broken)
        for number in self.alive():
            failure = self._link.failure(number)
            if failure is not None:
                raise failure

    async def _quiet(self) -> bool:
        """Ask all again: whether they were passive all the time since their last statuses, at the present epoch."""
        before = {k: self.members[k].status for k in self.alive()}
        if any(s.epoch != self._epoch for s in before.values()):
            return False
        now = await self._ask_all("status", (-1, 0.0))
        return now.keys() == before.keys() == set(self.alive()) and all(
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
        reports = await self._command_all(Report())
        if reports is None:
            return False
        bounds = np.full((4, self.owner.size), np.inf)
        for values in reports.values():
            self._take(values)
            assert values.bounds is not None  # asked for
            bounds[:, values.partitions] = values.bounds
        self.known.bounds = bounds
        names = ("rise", "fall", "plain_rise", "plain_fall")
        self.bounds.restore(dict(zip(names, bounds, strict=True)))
        span = self._span()
        self.known.value_size = max(self.known.value_size, span.size)
        self.target.saw(span.smallest, span.largest, self.known.value_size)
        return bool(self.known.copied.all())

    async def _halt(self) -> None:
        """Stop the sweeps, and let everything arrive, so that bounds hold of all values together."""
        end = time.monotonic() + self._patience
        try:
            await self._tell(Halt())
            while time.monotonic() < end:
                await self._look_at_losses()
                if self._all(lambda s: s.passive and s.halted) and await self._quiet():
                    await self._collect()
                    return
        except SolversLostError as error:
            self._note(str(error))
        self.known.bounds = None

    async def _look_at_losses(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _LOOK_SECONDS)
        self._wake.clear()
        self._raise_failures()
        await self._replace_lost()

    async def _end(self) -> None:
        for k in self.alive():
            with suppress(OSError, TimeoutError):
                await self._link.ask(k, "post", self._numbered(End()), 5.0)

    # ------------------------------------------------------------------------------------------------ who owns what

    async def _assign(self, adopted: dict[int, Values | None]) -> None:
        """Tell everybody who owns what, and new owners the last known values; in the order of the epochs."""
        self._epoch += 1
        addresses = {k: m.address for k, m in self.members.items() if m.alive}
        await self._each(
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
        alive = self.alive()
        if not alive:
            raise SolversLostError("all workers are lost")
        unowned = np.flatnonzero(~np.isin(self.owner, alive))
        if unowned.size and self._epoch > 0:
            await self._give(unowned, sorted(set(self.owner[unowned].tolist())), alive)

    async def _give(self, partitions: npt.NDArray[np.int64], lost: list[int], to: list[int]) -> None:
        """Divide partitions, all those of the lost, among others."""
        shares = np.array([self.members[k].share for k in to])
        owner = take_over(self._facts, self.owner.astype(np.int64), np.array(lost), np.array(to), shares)
        self.owner[partitions] = owner[partitions]
        self._generation[partitions] = self._epoch + 1
        await self._assign({k: self._values_for(partitions[self.owner[partitions] == k], True) for k in to})

    def _values_for(self, partitions: npt.NDArray[np.int64], begun: bool) -> Values | None:
        """What a new owner is told of partitions; only where there is something to tell."""
        known = self.known
        partitions = partitions[known.copied[partitions]]
        if not begun or not partitions.size:
            return None
        pieces = [piece for piece, _ in pieces_of(partitions, self._store.partition_ptr)]
        first = self._epoch == 0 and known.bounds is not None
        return Values(
            partitions,
            np.concatenate([known.values[piece] for piece in pieces]),
            np.concatenate([known.policy[piece] for piece in pieces]),
            known.visited[partitions],
            known.bounds[:, partitions] if first and known.bounds is not None else None,
        )

    async def _move(self) -> None:
        """Let a solver that has nothing to do take dirty partitions of the one that has most."""
        self._moved = time.monotonic()
        idle = [k for k in self.alive() if self.members[k].status.passive and not self.members[k].status.dirty]
        busy = [k for k in self.alive() if self.members[k].status.absent_dirty >= _LEAST_LEFT]
        if not idle or not busy:
            return
        most = max(busy, key=lambda k: self.members[k].status.absent_dirty)
        count = self.members[most].status.absent_dirty // (len(idle) + 1)
        await self._hand_over(most, max(count, 1), idle)

    async def _welcome(self) -> None:
        """Have workers that came later, or were lost and are there again, take a share of what is dirty."""
        self._welcomed = time.monotonic()
        for number in await self._link.newcomers():
            self._arriving[number] = Member(self._link.address(number))
        for number, member in list(self._arriving.items()):
            try:
                status = await self._link.ask(number, "status", (-1, 0.0), self._patience)
            except (OSError, TimeoutError):
                del self._arriving[number]
                self._dismissals.append(asyncio.ensure_future(self._link.dismiss(number)))
                continue
            if isinstance(status, Status) and status.version > 0:  # its loop runs
                del self._arriving[number]
                await self._admit(number, member)

    async def _admit(self, number: int, member: Member) -> None:
        """A solver takes part from now on; the others give it some of what they have not in their caches."""
        before = self.alive()
        member.answered = time.monotonic()
        self.members[number] = member
        self._followers.append(asyncio.ensure_future(self._follow(number)))
        self._note(f"worker {number} ({member.address}) takes part from now on")
        await self._assign({})
        await self._put(number, self._numbered(self._span()))
        await self._put(number, self._numbered(Go()))
        due = self.owner.size // (len(before) + 1)
        for k in before:
            spare = int((self.owner == k).sum()) - due
            if spare > 0 and self.members[k].alive:
                await self._hand_over(k, spare, [number])

    async def _hand_over(self, giver: int, most: int, to: list[int]) -> None:
        """Have a solver give up dirty partitions for others."""
        given = await self._command(giver, Release(most))
        if given is None:
            # It may have given up some, and forgotten who reads them: it gets them back, and is asked for all anew.
            self._generation[self.owner == giver] = self._epoch + 1
            await self._assign({})
            return
        if not given.partitions.size:
            return
        self._take(given)
        self.owner[given.partitions] = -1
        await self._give(given.partitions, [-1], to)

    def _lose(self, number: int) -> None:
        member = self.members[number]
        if member.alive:
            member.alive = False
            member.gone.set()
            self.lost.append(number)
            self._note(f"worker {number} ({member.address}) is lost: the others go on with its partitions")
            self._dismissals.append(asyncio.ensure_future(self._link.dismiss(number)))
        self._wake.set()

    # ------------------------------------------------------------------------------------------------ copies, figures

    async def _copy(self) -> None:
        """Copy all values, for checkpoints and for the partitions of whoever is lost."""
        activity = sum(m.status.activity + m.status.statistics.backups for m in self._living())
        if activity == self._activity_copied:
            self._copied = time.monotonic()
            return
        began = time.monotonic()
        reports = await self._command_all(Report())
        for values in (reports or {}).values():
            self._take(values)  # each of its own time
        if self.save is not None and reports is not None:
            await asyncio.to_thread(self.save, self.known)
        self._activity_copied = activity
        self._copied = time.monotonic()
        self._copying_took = self._copied - began

    def _take(self, values: Values) -> None:
        known = self.known
        known.bounds = None  # they were of the values together
        copies: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        for all_of, some in pieces_of(values.partitions, self._store.partition_ptr):
            for start in range(0, all_of.stop - all_of.start, _COPY_STATES):
                to = slice(all_of.start + start, min(all_of.start + start + _COPY_STATES, all_of.stop))
                of = slice(some.start + start, min(some.start + start + _COPY_STATES, some.stop))
                copies += [(known.values[to], values.values[of]), (known.policy[to], values.policy[of])]
        with ThreadPoolExecutor(min(_COPY_THREADS, os.cpu_count() or 1)) as threads:
            for _ in threads.map(lambda pair: np.copyto(*pair), copies):
                pass
        known.visited[values.partitions] = values.visited
        known.copied[values.partitions] = True

    async def _tell_span(self, growth: float = 0.0) -> None:
        """Tell everybody the range of all values, where it has grown by the share."""
        span, then = self._span(), self._told
        allowed = growth * (then.largest - then.smallest + then.size)
        differs = max(abs(span.smallest - then.smallest), abs(span.largest - then.largest), span.size - then.size)
        if differs > allowed or growth < 0:
            self._told = span
            await self._tell(span)

    def _span(self) -> Span:
        """The range of all values, by the last statuses."""
        living = [m.status for m in self._living() if m.status.smallest <= m.status.largest]
        return Span(
            min((s.smallest for s in living), default=0.0),
            max((s.largest for s in living), default=0.0),
            max((s.size for s in living), default=0.0),
        )

    def progress(self) -> SolveProgress:
        """Where the solve stands, by the last statuses."""
        s, span = self.statistics(), self._span()
        self.target.saw(span.smallest, span.largest, span.size)
        living = self._living()
        return SolveProgress(
            error_bound=max((m.status.error_bound for m in living), default=np.inf),
            residual_bound=max((m.status.residual_bound for m in living), default=np.inf),
            target=self.target.asked,
            dirty=sum(m.status.dirty for m in living),
            partitions=s.n_partitions,
            hit_rate=s.hit_rate,
            bytes_read=s.bytes_read,
            read_rate=s.bytes_read / max(s.seconds - self.earlier_seconds, 1e-9),
            loads=s.loads,
            seconds=s.seconds,
        )

    def statistics(self) -> SolveStatistics:
        """Counters of all solvers together, those that were lost as far as they had told."""
        total = SolveStatistics(
            n_states=self._store.n_states,
            n_partitions=self._store.n_partitions,
            table_bytes=int(self._store.partition_bytes.sum()),
            source=self._store.kind,
        )
        for member in self.members.values():
            s = member.status.statistics
            for name in _SUMMED:
                setattr(total, name, getattr(total, name) + getattr(s, name))
        total.partitions_never_read = int((~self.known.visited).sum())
        total.seconds = self.earlier_seconds + time.monotonic() - self._started
        return total

    # ------------------------------------------------------------------------------------------------ asking

    def alive(self) -> list[int]:
        """Solvers that take part."""
        return [k for k, m in self.members.items() if m.alive]

    def _living(self) -> list[Member]:
        return [m for m in self.members.values() if m.alive]

    def _all(self, holds: Callable[[Status], bool]) -> bool:
        """Whether it holds of the last status of everybody at the present epoch."""
        return all(m.status.epoch == self._epoch and holds(m.status) for m in self._living())

    async def _ask_all(self, verb: str, argument: Any) -> dict[int, Any]:
        """Answers of those that answer."""
        numbers = self.alive()
        found = await asyncio.gather(*(self._ask(k, verb, argument) for k in numbers))
        return {k: answer for k, answer in zip(numbers, found, strict=True) if answer is not None}

    async def _ask(self, number: int, verb: str, argument: Any, timeout: float | None = None) -> Any:
        """The answer; None where there is none within `timeout` (`patience`), or the solver is lost meanwhile."""
        member = self.members[number]
        asked = asyncio.ensure_future(self._link.ask(number, verb, argument, timeout or self._patience))
        gone = asyncio.ensure_future(member.gone.wait())
        try:
            await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        except (OSError, TimeoutError):
            if await self._link.lost(number):
                self._lose(number)
            self._wake.set()
            return None
        finally:
            gone.cancel()
            asked.cancel()

    async def _command(self, number: int, what: Any) -> Any:
        """What the solver's thread answers once it has done it; None where the answer or the solver is lost."""
        answer = await self._ask(number, "command", self._numbered(what), _COMMAND_SECONDS)
        return None if isinstance(answer, str) else answer

    async def _command_all(self, command: Any) -> dict[int, Any] | None:
        """Answers of everybody; None where one is missing."""
        numbers = self.alive()
        found = await asyncio.gather(*(self._command(k, command) for k in numbers))
        answers = dict(zip(numbers, found, strict=True))
        return None if any(answer is None for answer in answers.values()) else answers

    async def _tell(self, command: Any) -> None:
        await self._each(lambda _: command)

    async def _each(self, command: Callable[[int], Any]) -> None:
        """Put a command into the mailbox of everybody who is not lost meanwhile; what it does is not waited for."""
        await asyncio.gather(*(self._put(k, self._numbered(command(k))) for k in self.alive()))

    async def _put(self, number: int, command: Command) -> None:
        while self.members[number].alive and await self._ask(number, "post", command) is None:
            await asyncio.sleep(_AGAIN_SECONDS)

    def _numbered(self, what: Any) -> Command:
        self._commands += 1
        return Command(self._commands, what)


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
