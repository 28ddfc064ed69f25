"""Membership: which workers take part in a solve, the last status of each, and the requests to them.

Each worker has one open status request at any time. Commands are numbered, and are sent again until they are in the
worker's mailbox or the worker is lost: it does not answer for `worker_timeout` seconds, or its process is known to have
ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ooc_mdp.distributed.messages import (
    MIN_BANDWIDTH,
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
from ooc_mdp.errors import OocMdpError

__all__ = ["Member", "Membership", "Transport", "WorkersLostError", "run_in_thread"]

_COMMAND_SECONDS = 3600.0
"""For the answer of a solver's thread, which looks for commands between two accesses."""
_PROBE_SECONDS = 1.0
"""For an answer where the last one was missing; then the scheduler is asked again which workers are lost."""
_AGAIN_SECONDS = 0.1
"""Until a command that did not arrive is sent again."""
_END_SECONDS = 5.0


class WorkersLostError(OocMdpError):
    """No worker, or no scheduler, is left."""


class Transport(Protocol):
    """How the coordinator reaches the workers."""

    async def request(self, number: int, request: WorkerRequest, timeout: float) -> Any:
        """Return the worker's answer; raises OSError, TimeoutError or NoSuchRunError."""
        ...

    async def lost(self, number: int) -> bool:
        """Return whether the worker's process is known to have ended."""
        ...

    def failure(self, number: int) -> BaseException | None:
        """Return the exception of the worker's task, if it ended with one."""
        ...

    async def discover(self) -> list[int]:
        """Start solvers on workers that have joined since, and return their numbers."""
        ...

    def address(self, number: int) -> str:
        """Return the address of a worker."""
        ...

    async def release(self, number: int) -> None:
        """Release the task of a worker, and evict its solver if it still runs."""
        ...

    def connection_error(self) -> str | None:
        """Return why no worker can be reached any more, or None."""
        ...


@dataclass(slots=True)
class Member:
    """One worker of a solve."""

    address: str
    weight: float = 1.0
    """Relative part of the work."""
    status: Status = field(default_factory=Status)
    alive: bool = True
    answered: float = field(default_factory=time.monotonic)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the worker is lost."""


async def run_in_thread(function: Callable[..., object], *arguments: Any) -> None:
    """Run a function on a thread; a cancellation waits for its end, so that it overwrites nothing later."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        await asyncio.shield(running)
    finally:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})


class Membership:
    """The workers of one solve.

    Parameters
    ----------
    transport : reaches them.
    members : those that begin, by number.
    worker_timeout : seconds without an answer after which a worker is lost.
    """

    def __init__(
        self,
        transport: Transport,
        members: dict[int, Member],
        worker_timeout: float,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.transport, self.by_number, self.worker_timeout, self._note = transport, members, worker_timeout, note
        self.changed = asyncio.Event()
        """Set whenever a status has arrived or a worker is lost."""
        self.stopping = asyncio.Event()
        """Set when answers to commands are no longer waited for."""
        self._followers: list[asyncio.Future[None]] = []
        self._releases: list[asyncio.Future[None]] = []
        self._commands = 0
        self._over = False

    def follow_all(self) -> None:
        """Begin to request statuses."""
        for number in self.by_number:
            self._followers.append(asyncio.ensure_future(self._follow(number)))

    def add(self, number: int, member: Member) -> None:
        """Add a worker that takes part from now on."""
        member.answered = time.monotonic()
        self.by_number[number] = member
        self._followers.append(asyncio.ensure_future(self._follow(number)))
        self._note(f"worker {number} ({member.address}) takes part from now on")

    async def close(self) -> None:
        """Stop requesting statuses, and stop the workers that are alive."""
        self._over = True  # wait_for of Python 3.11 swallows a cancellation that comes together with the answer
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, *self._releases, return_exceptions=True)
        await asyncio.gather(*(self._end(number) for number in self.alive()))

    async def _end(self, number: int) -> None:
        if not self.by_number[number].status.started:
            await self.transport.release(number)
            return
        with suppress(OSError, TimeoutError, NoSuchRunError):
            await self.transport.request(number, PostRequest(self._numbered(Stop())), _END_SECONDS)

    async def _follow(self, number: int) -> None:
        """Keep a request for a worker's status open."""
        member = self.by_number[number]
        well = True
        while member.alive and not self._over:
            status: Any = None
            ended = False
            asked_before = not well
            # Connecting to a worker that has just ended takes long, and the scheduler knows of its end later.
            timeout = self.worker_timeout if well else min(self.worker_timeout, _PROBE_SECONDS)
            try:
                status = await self.transport.request(
                    number, StatusRequest(member.status.version, float(well)), timeout
                )
            except NoSuchRunError:
                ended = True
            except (OSError, TimeoutError):
                pass
            well = isinstance(status, Status)
            self.changed.set()
            if isinstance(status, Status):
                member.answered, member.status = time.monotonic(), status
                await asyncio.sleep(0.005)
                continue
            # No answer, or no solver: if it failed, its task has the exception. One more request is sent, since after a
            # suspension of this process answers may have arrived that it has not read.
            silent = asked_before and time.monotonic() - member.answered > self.worker_timeout
            if silent or (not ended and await self.transport.lost(number)):
                self.mark_lost(number)
                return
            await asyncio.sleep(0.1)

    def raise_failures(self) -> None:
        """Raise the exception of a worker's task, or WorkersLostError where no worker can be reached any more."""
        connection_error = self.transport.connection_error()
        if connection_error is not None:
            raise WorkersLostError(connection_error)
        for number in self.alive():
            failure = self.transport.failure(number)
            if failure is not None:
                raise failure

    def mark_lost(self, number: int, why: str = "is lost: the others continue with its partitions") -> None:
        """Remove a worker."""
        member = self.by_number[number]
        if member.alive:
            member.alive = False
            member.gone.set()
            self._note(f"worker {number} ({member.address}) {why}")
            self.release(number)
        self.changed.set()

    def release(self, number: int) -> None:
        """Release a worker in the background; `close` waits for it."""
        self._releases.append(asyncio.ensure_future(self.transport.release(number)))

    def alive(self) -> list[int]:
        """Return the numbers of the workers that take part."""
        return [k for k, m in self.by_number.items() if m.alive]

    def alive_members(self) -> list[Member]:
        """Return the workers that take part."""
        return [m for m in self.by_number.values() if m.alive]

    async def request_all(self, request: WorkerRequest) -> dict[int, Any]:
        """Send a request to all workers, and return the answers that arrive, by number."""

        async def answer_of(number: int) -> Any:
            try:
                return await self.request(number, request)
            except NoSuchRunError:
                return None

        numbers = self.alive()
        found = await asyncio.gather(*(answer_of(k) for k in numbers))
        return {k: answer for k, answer in zip(numbers, found, strict=True) if answer is not None}

    async def request(self, number: int, request: WorkerRequest, timeout: float | None = None) -> Any:
        """Send a request; return None without an answer in `timeout` (`worker_timeout`), or if the worker is lost."""
        asking = self.transport.request(number, request, timeout or self.worker_timeout)
        return await self._answer_unless(number, asking, self.by_number[number].gone)

    async def _answer_unless(self, number: int, asking: Coroutine[Any, Any, Any], *events: asyncio.Event) -> Any:
        """Return the answer of a worker; None where it fails, or one of the events comes first."""
        asked = asyncio.ensure_future(asking)
        first = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait({asked, *first}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        except (OSError, TimeoutError):
            if await self.transport.lost(number):
                self.mark_lost(number)
            self.changed.set()
            return None
        finally:
            for waiting in (asked, *first):
                waiting.cancel()

    async def request_values(
        self,
        number: int,
        what: SnapshotRequest | MigrateRequest,
        receive: Callable[[Values], None],
        timeout: float = _COMMAND_SECONDS,
    ) -> Values | None:
        """Have the worker's thread execute a command, and return its answer.

        Returns
        -------
        None where the answer or the worker is lost, the time is over, or `stopping` is set.

        Parameters
        ----------
        receive : copies the answer, on a thread of its own.
        """
        asking = self.transport.request(number, CommandRequest(self._numbered(what)), timeout)
        try:
            answer = await self._answer_unless(number, asking, self.by_number[number].gone, self.stopping)
        except NoSuchRunError:
            return None
        if not isinstance(answer, Values):
            return None
        await run_in_thread(receive, answer)
        return answer

    async def request_snapshots(
        self, command: SnapshotRequest, receive: Callable[[Values], None]
    ) -> dict[int, Values] | None:
        """Request snapshots of all workers; return None where an answer is missing."""
        numbers = self.alive()
        found = await asyncio.gather(*(self.request_values(k, command, receive) for k in numbers))
        answers = {k: answer for k, answer in zip(numbers, found, strict=True) if answer is not None}
        return answers if len(answers) == len(numbers) else None

    async def broadcast(self, command: Any) -> None:
        """Send the same command to all workers."""
        await self.send_each(lambda _: command)

    async def broadcast_best_effort(self, command: Any) -> None:
        """Send the same command to all workers, without waiting for its arrival once `stopping` is set."""
        telling, stopped = (asyncio.ensure_future(each) for each in (self.broadcast(command), self.stopping.wait()))
        try:
            await asyncio.wait({telling, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        finally:
            telling.cancel()
            stopped.cancel()

    async def send_each(self, command: Callable[[int], Any]) -> None:
        """Deliver a command to each worker that is not lost meanwhile, without waiting for its execution."""
        await asyncio.gather(*(self.send(k, command(k)) for k in self.alive()))

    async def send(self, number: int, what: Any) -> None:
        """Deliver a command to a worker, unless it is lost meanwhile."""
        command = self._numbered(what)
        timeout = self.worker_timeout + (what.nbytes / MIN_BANDWIDTH if isinstance(what, Assignment) else 0.0)
        with suppress(NoSuchRunError):
            while self.by_number[number].alive and await self.request(number, PostRequest(command), timeout) is None:
                await asyncio.sleep(_AGAIN_SECONDS)

    def _numbered(self, what: Any) -> Command:
        self._commands += 1
        return Command(self._commands, what)
