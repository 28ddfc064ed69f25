"""A worker's inbox and published status, between the thread of its solver and the event loop.

The solver's thread takes messages and waits here without spinning; the event loop delivers messages and waits for
changes of the status.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal

from ooc_mdp.distributed.messages import Command, Status, Subscribe, Update

__all__ = ["Mailbox", "Request"]


class Request:
    """A command of the coordinator, and the future of its answer."""

    def __init__(self, command: Command) -> None:
        self.number, self.command = command
        self.answer: Future[Any] = Future()
        self.answer.set_running_or_notify_cancel()  # a caller that no longer waits does not cancel it


class Mailbox:
    """The messages for one solver, and its status.

    Parameters
    ----------
    loop : event loop that delivers messages and requests the status.
    number : of the worker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int = 0) -> None:
        self.loop, self.number = loop, number
        self._condition = threading.Condition()
        self._messages: list[Subscribe | Update | Request] = []
        self._status = Status()
        self._changed = asyncio.Event()
        self._woken = False
        self.evicted = False
        """Whether the others continue without this worker."""
        self.last_contact = time.monotonic()
        """When the coordinator last requested the status."""
        self._expired_since: float | None = None
        """When the lease was first found to have expired."""
        self._last_take: float | None = None
        """When the solver's thread last took messages; None before it has started, and while it waits."""

    def mark(self, step: Literal["started", "compiling", "ready"]) -> None:
        """Publish a step of the solver's start."""
        with self._condition:
            setattr(self._status, step, True)
            self._last_take = self._last_take or time.monotonic()
            self._notify()

    def lease_expired(self, lease: float) -> bool:
        """Return whether the coordinator has not requested the status for longer than the lease.

        It must be so for another quarter of the lease: a process that was suspended has not yet read the requests that
        arrived meanwhile.
        """
        now = time.monotonic()
        if now - self.last_contact <= lease:
            self._expired_since = None
        elif self._expired_since is None:
            self._expired_since = now
        return self._expired_since is not None and now - self._expired_since > lease / 4

    def put(self, message: Subscribe | Update | Request) -> None:
        """Deliver a message; from any thread."""
        with self._condition:
            self._messages.append(message)
            self._status.activity += 1
            self._status.passive = False
            self._condition.notify()

    def evict(self) -> None:
        """End the solver: the others continue without it."""
        with self._condition:
            self.evicted = True
            self._condition.notify()

    def wake(self) -> None:
        """Wake the solver: one of its messages has arrived, or failed to."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def take(self) -> list[Subscribe | Update | Request]:
        """Return all messages that have arrived, in order."""
        with self._condition:
            taken, self._messages = self._messages, []
            self._last_take = time.monotonic()
        return taken

    def wait(self, passive: Callable[[], bool], timeout: float) -> None:
        """Wait for a message or a wake; `passive` returns whether all messages of this worker were received."""
        with self._condition:
            if not (self._messages or self.evicted or self._woken):
                if passive() and not self._status.passive:
                    self._status.passive = True
                    self._notify()
                self._last_take = None
                self._condition.wait(timeout)
                self._last_take = time.monotonic()
            self._woken = False

    def publish(self, status: Status, urgent: bool = False) -> None:
        """Publish the status of the solver; `urgent` wakes the coordinator."""
        with self._condition:
            old = self._status
            passive = old.passive and not self._messages
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
                self._notify()

    def _notify(self) -> None:
        self._status.version += 1
        self.loop.call_soon_threadsafe(self._changed.set)

    def status(self) -> Status:
        """Return the status, with the seconds since the thread last took messages."""
        with self._condition:
            stalled_seconds = 0.0 if self._last_take is None else time.monotonic() - self._last_take
            return replace(self._status, stalled_seconds=stalled_seconds)

    async def wait_for_change(self, seen: int, timeout: float) -> Status:
        """Return the status once its version differs from the one seen, or after `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            self.last_contact = time.monotonic()
            status = self.status()
            left = end - time.monotonic()
            if status.version != seen or left <= 0:
                return status
            self._changed.clear()
            if self.status().version != seen:
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue
