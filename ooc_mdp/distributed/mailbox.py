"""Where a solver's messages arrive, and where others see how it stands: between its thread and the event loop's.

The solver's thread takes what has arrived and rests here without spinning; the event loop puts messages in and waits
for the status to change.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ooc_mdp.distributed.messages import Command, Status, Subscribe, Update

__all__ = ["Mailbox", "Request"]


class Request:
    """A command of the coordinator, and the future that its answer goes to."""

    def __init__(self, command: Command) -> None:
        self.number, self.command = command
        self.answer: Future[Any] = Future()
        self.answer.set_running_or_notify_cancel()  # who waits may go away; the solver answers all the same


class Mailbox:
    """One solver's.

    Parameters
    ----------
    loop : event loop in which others ask for the status.
    number : of the solver.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int = 0) -> None:
        self.loop, self.number = loop, number
        self._condition = threading.Condition()
        self._arrived: list[Subscribe | Update | Request] = []
        self._status = Status()
        self._changed = asyncio.Event()
        self._woken = False
        self.evicted = False
        """Whether others have told the solver that they go on without it."""
        self.last_contact = time.monotonic()
        """When the coordinator last asked."""
        self._unheard: float | None = None
        """When the lease was first seen to be over."""
        self._looked: float | None = None
        """When the solver's thread last looked for messages; None before it has started, and while it rests."""

    def begin(self) -> None:
        """The solver's thread has started."""
        with self._condition:
            self._status.started = True
            self._looked = time.monotonic()
            self._tell()

    def compiles(self) -> None:
        """The solver's thread has begun to compile loops."""
        with self._condition:
            self._status.compiling = True
            self._tell()

    def ready(self) -> None:
        """The solver's thread has loaded its code and has its memory."""
        with self._condition:
            self._status.ready = True
            self._tell()

    def lease_expired(self, lease: float) -> bool:
        """Whether the coordinator has not asked for longer than the lease.

        It must be so for another quarter of it: a process that was stopped and goes on has not read the questions yet
        that came meanwhile.
        """
        now = time.monotonic()
        if now - self.last_contact <= lease:
            self._unheard = None
        elif self._unheard is None:
            self._unheard = now
        return self._unheard is not None and now - self._unheard > lease / 4

    def put(self, message: Subscribe | Update | Request) -> None:
        """From any thread."""
        with self._condition:
            self._arrived.append(message)
            self._status.activity += 1
            self._status.passive = False
            self._condition.notify()

    def evict(self) -> None:
        """Others have gone on without the solver."""
        with self._condition:
            self.evicted = True
            self._condition.notify()

    def wake(self) -> None:
        """What the solver had sent has arrived, or failed to."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def take(self) -> list[Subscribe | Update | Request]:
        """Everything that has arrived, in order."""
        with self._condition:
            taken, self._arrived = self._arrived, []
            self._looked = time.monotonic()
        return taken

    def rest(self, passive: Callable[[], bool], timeout: float) -> None:
        """Wait for a message or a wake; `passive` says whether nothing is on its way from here."""
        with self._condition:
            if not (self._arrived or self.evicted or self._woken):
                if passive() and not self._status.passive:
                    self._status.passive = True
                    self._tell()
                self._looked = None
                self._condition.wait(timeout)
                self._looked = time.monotonic()
            self._woken = False

    def publish(self, status: Status, urgent: bool = False) -> None:
        """Let others know how the solver stands; `urgent` where somebody should act on it at once."""
        with self._condition:
            old = self._status
            passive = old.passive and not self._arrived
            self._status = replace(
                status,
                version=old.version,
                activity=old.activity,
                started=old.started,
                compiling=old.compiling,
                ready=old.ready,
                passive=passive,
            )
            if urgent:
                self._tell()

    def _tell(self) -> None:
        self._status.version += 1
        self.loop.call_soon_threadsafe(self._changed.set)

    def look(self) -> Status:
        """How the solver stands."""
        with self._condition:
            stalled_seconds = 0.0 if self._looked is None else time.monotonic() - self._looked
            return replace(self._status, stalled_seconds=stalled_seconds)

    async def changed(self, seen: int, timeout: float) -> Status:
        """How it stands, once the version is another than the one seen, or after `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            self.last_contact = time.monotonic()
            status = self.look()
            left = end - time.monotonic()
            if status.version != seen or left <= 0:
                return status
            self._changed.clear()
            if self.look().version != seen:
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue
