"""Workers that come while others solve, or come again: solvers are started there, and take part once they answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from ooc_mdp.distributed.members import Member, Members
from ooc_mdp.distributed.messages import Status

__all__ = ["Newcomers"]

_LOOK_SECONDS = 2.0
"""Between two looks for them."""
_WAIT_SECONDS = 0.25
"""For what a look finds; then it goes on beside everything else."""


class Newcomers:
    """Of one solve."""

    def __init__(self, solvers: Members, note: Callable[[str], None]) -> None:
        self._solvers, self._note = solvers, note
        self._arriving: dict[int, Member] = {}
        """Solvers that have been started, and take part once they answer."""
        self._meeting: asyncio.Task[list[int]] | None = None
        """Looks for them."""
        self._met = time.monotonic()

    def due(self, now: float) -> bool:
        """Whether it is time to look, or a look is under way."""
        return now - self._met >= _LOOK_SECONDS

    async def arrived(self, now: float) -> dict[int, Member]:
        """Those that can take part from now on, as far as is known soon."""
        if self._meeting is None:
            self._meeting = asyncio.ensure_future(self._meet())
            await asyncio.wait({self._meeting}, timeout=_WAIT_SECONDS)
        if not self._meeting.done():
            return {}
        meeting, self._meeting, self._met = self._meeting, None, now
        return {number: self._arriving.pop(number) for number in meeting.result()}

    async def close(self) -> None:
        """Look no more, and have nothing to do with those that have not answered yet."""
        if self._meeting is not None:
            self._meeting.cancel()
            await asyncio.wait({self._meeting}, timeout=_WAIT_SECONDS)
        for number in self._arriving:
            self._solvers.dismiss(number)

    async def _meet(self) -> list[int]:
        """Those whose loops run; one that does not answer holds up nothing else."""
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
