"""The solvers of one solve as their coordinator sees them: who takes part, what each said last, and how to ask.

Each solver has one open question for its status at any time. Commands are numbered, and are sent again until they are
in the solver's mailbox or it is lost: does not answer for `worker_timeout` seconds, or its worker is known to be gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ooc_mdp.distributed.messages import (
    SLOWEST,
    Assignment,
    Command,
    CommandRequest,
    MigrateRequest,
    NoSuchRunError,
    PostRequest,
    SnapshotRequest,
    Status,
    StatusRequest,
    Stop,
    Values,
    WorkerRequest,
)
from ooc_mdp.distributed.remote_memory import RemoteAnswer
from ooc_mdp.errors import OocMdpError

__all__ = ["Member", "Membership", "Transport", "WorkersLostError", "run_in_thread"]

_COMMAND_SECONDS = 3600.0
"""In which a solver's thread should find the time to answer: it looks between two accesses."""
_PROBE_SECONDS = 1.0
"""To wait for an answer where there was none before: then the scheduler is asked again who has gone."""
_AGAIN_SECONDS = 0.1
"""Before a command that did not arrive is sent again."""
_END_SECONDS = 5.0


class WorkersLostError(OocMdpError):
    """No solver, or no scheduler, is left."""


class Transport(Protocol):
    """How the coordinator reaches solvers."""

    async def request(self, number: int, request: WorkerRequest, timeout: float) -> Any:
        """The worker's answer, or `RemoteAnswer`; OSError or TimeoutError where there is none, or NoSuchRunError."""
        ...

    async def lost(self, number: int) -> bool:
        """Whether it is known that the solver's worker is gone."""
        ...

    def failure(self, number: int) -> BaseException | None:
        """What the solver's task raised, if it has ended so."""
        ...

    async def discover(self) -> list[int]:
        """Start solvers on workers that have come since; their numbers."""
        ...

    def address(self, number: int) -> str:
        """Of a solver's worker."""
        ...

    async def release(self, number: int) -> None:
        """Have nothing more to do with a solver."""
        ...

    def connection_error(self) -> str | None:
        """Why no solver can be reached any more, if so."""
        ...


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


async def run_in_thread(function: Callable[..., object], *arguments: Any) -> None:
    """Run it, to its end even where that is waited for no longer: what follows must not be overwritten by it."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        await asyncio.shield(running)
    finally:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})


class Membership:
    """Of one solve.

    Parameters
    ----------
    link : reaches them.
    of : those that begin, by number.
    worker_timeout : seconds without an answer after which a solver is lost.
    """

    def __init__(
        self,
        link: Transport,
        of: dict[int, Member],
        worker_timeout: float,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.link, self.of, self.worker_timeout, self._note = link, of, worker_timeout, note
        self.news = asyncio.Event()
        """Set whenever one has said something, or is lost."""
        self.stopping = asyncio.Event()
        """Set where answers to commands are waited for no longer."""
        self._followers: list[asyncio.Future[None]] = []
        self._dismissals: list[asyncio.Future[None]] = []
        self._commands = 0
        self._over = False

    def follow_all(self) -> None:
        """Begin to ask for statuses."""
        for number in self.of:
            self._followers.append(asyncio.ensure_future(self._follow(number)))

    def add(self, number: int, member: Member) -> None:
        """Another takes part from now on."""
        member.answered = time.monotonic()
        self.of[number] = member
        self._followers.append(asyncio.ensure_future(self._follow(number)))
        self._note(f"worker {number} ({member.address}) takes part from now on")

    async def close(self) -> None:
        """Ask no more, and end those that are alive."""
        self._over = True  # wait_for of Python 3.11 swallows a cancellation that comes together with the answer
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, *self._dismissals, return_exceptions=True)
        await asyncio.gather(*(self._end(number) for number in self.alive()))

    async def _end(self, number: int) -> None:
        if not self.of[number].status.started:
            await self.link.release(number)
            return
        with suppress(OSError, TimeoutError, NoSuchRunError):
            await self.link.request(number, PostRequest(self._numbered(Stop())), _END_SECONDS)

    async def _follow(self, number: int) -> None:
        """Keep a question for a solver's status open."""
        member = self.of[number]
        well = True
        while member.alive and not self._over:
            status: Any = None
            ended = False
            asked_before = not well
            # A connection to a worker that has just gone is tried for long, before the scheduler knows of it.
            timeout = self.worker_timeout if well else min(self.worker_timeout, _PROBE_SECONDS)
            try:
                status = await self.link.request(number, StatusRequest(member.status.version, float(well)), timeout)
            except NoSuchRunError:
                ended = True
            except (OSError, TimeoutError):
                pass
            well = isinstance(status, Status)
            self.news.set()
            if isinstance(status, Status):
                member.answered, member.status = time.monotonic(), status
                await asyncio.sleep(0.005)
                continue
            # Silence, or the word that no solver is there: if it failed, its task says so. One question more is asked,
            # since where this process itself was stopped, answers have come that it has not read.
            silent = asked_before and time.monotonic() - member.answered > self.worker_timeout
            if silent or (not ended and await self.link.lost(number)):
                self.lose(number)
                return
            await asyncio.sleep(0.1)

    def raise_failures(self) -> None:
        """What a solver's task raised; SolversLostError where nobody can be reached any more."""
        connection_error = self.link.connection_error()
        if connection_error is not None:
            raise WorkersLostError(connection_error)
        for number in self.alive():
            failure = self.link.failure(number)
            if failure is not None:
                raise failure

    def lose(self, number: int, why: str = "is lost: the others go on with its partitions") -> None:
        """A solver takes part no longer."""
        member = self.of[number]
        if member.alive:
            member.alive = False
            member.gone.set()
            self._note(f"worker {number} ({member.address}) {why}")
            self.release(number)
        self.news.set()

    def release(self, number: int) -> None:
        """Have nothing more to do with a solver; its end is waited for in `close`."""
        self._dismissals.append(asyncio.ensure_future(self.link.release(number)))

    def alive(self) -> list[int]:
        """Solvers that take part."""
        return [k for k, m in self.of.items() if m.alive]

    def living(self) -> list[Member]:
        """The same, as they stand."""
        return [m for m in self.of.values() if m.alive]

    async def request_all(self, request: WorkerRequest) -> dict[int, Any]:
        """Answers of those that answer."""

        async def answer_of(number: int) -> Any:
            try:
                return await self.request(number, request)
            except NoSuchRunError:
                return None

        numbers = self.alive()
        found = await asyncio.gather(*(answer_of(k) for k in numbers))
        return {k: answer for k, answer in zip(numbers, found, strict=True) if answer is not None}

    async def request(self, number: int, request: WorkerRequest, timeout: float | None = None) -> Any:
        """The answer; None where there is none within `timeout` (`worker_timeout`), or the solver is lost meanwhile."""
        asking = self.link.request(number, request, timeout or self.worker_timeout)
        return await self._unless(number, asking, self.of[number].gone)

    async def _unless(self, number: int, asking: Coroutine[Any, Any, Any], *events: asyncio.Event) -> Any:
        """What comes of asking a solver; None where nothing does, or one of the events comes first."""
        asked = asyncio.ensure_future(asking)
        first = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait({asked, *first}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        except (OSError, TimeoutError):
            if await self.link.lost(number):
                self.lose(number)
            self.news.set()
            return None
        finally:
            for waiting in (asked, *first):
                waiting.cancel()

    async def command(
        self,
        number: int,
        what: SnapshotRequest | MigrateRequest,
        receive: Callable[[Values], None],
        timeout: float = _COMMAND_SECONDS,
    ) -> Values | None:
        """What the solver's thread answers once it has done it.

        None where the answer or the solver is lost, the time is up, or there is a `hurry`.

        Parameters
        ----------
        receive : takes in the answer, on a thread of its own: once this returns, `values` and `policy` may be gone. It
            may be called again where it raised OSError.
        """
        asking = self.link.request(number, CommandRequest(self._numbered(what)), timeout)
        try:
            answer = await self._unless(number, asking, self.of[number].gone, self.stopping)
        except NoSuchRunError:
            return None
        if isinstance(answer, RemoteAnswer):
            return await self._copied(number, answer, receive)
        if not isinstance(answer, Values):
            return None
        await run_in_thread(receive, answer)
        return answer

    async def _copied(self, number: int, borrowed: RemoteAnswer, receive: Callable[[Values], None]) -> Values | None:
        try:
            await run_in_thread(receive, borrowed.answer)
            copied = True
        except OSError:  # it comes over the connection
            copied = False
        whole = await self._unless(number, borrowed.release(copied), self.of[number].gone, self.stopping)
        if copied:  # if the loan was there all the time, and no other array in its place
            return cast(Values, borrowed.answer) if whole else None
        if not isinstance(whole, Values):
            return None
        await run_in_thread(receive, whole)
        return whole

    async def request_snapshots(
        self, command: SnapshotRequest, receive: Callable[[Values], None]
    ) -> dict[int, Values] | None:
        """Answers of everybody; None where one is missing."""
        numbers = self.alive()
        found = await asyncio.gather(*(self.command(k, command, receive) for k in numbers))
        answers = {k: answer for k, answer in zip(numbers, found, strict=True) if answer is not None}
        return answers if len(answers) == len(numbers) else None

    async def broadcast(self, command: Any) -> None:
        """The same command to everybody."""
        await self.each(lambda _: command)

    async def broadcast_best_effort(self, command: Any) -> None:
        """The same, where it does not matter if it arrives: in a `hurry` that is not waited for."""
        telling, hurried = (asyncio.ensure_future(each) for each in (self.broadcast(command), self.stopping.wait()))
        try:
            await asyncio.wait({telling, hurried}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        finally:
            telling.cancel()
            hurried.cancel()

    async def each(self, command: Callable[[int], Any]) -> None:
        """Put a command into the mailbox of everybody who is not lost meanwhile; what it does is not waited for."""
        await asyncio.gather(*(self.put(k, command(k)) for k in self.alive()))

    async def put(self, number: int, what: Any) -> None:
        """Put a command into the mailbox of one who is not lost meanwhile."""
        command = self._numbered(what)
        timeout = self.worker_timeout + (what.nbytes / SLOWEST if isinstance(what, Assignment) else 0.0)
        with suppress(NoSuchRunError):
            while self.of[number].alive and await self.request(number, PostRequest(command), timeout) is None:
                await asyncio.sleep(_AGAIN_SECONDS)

    def _numbered(self, what: Any) -> Command:
        self._commands += 1
        return Command(self._commands, what)
