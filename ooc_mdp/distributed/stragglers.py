"""Workers that come late or fall behind: late joiners, workers that do not start, and workers whose threads hang.

Late joiners take part once they answer. The others go on without a worker that does not start within the timeout, or
whose thread has not looked for messages for 40 times as long, although its process answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from ooc_mdp.distributed.membership import Member, Membership
from ooc_mdp.distributed.messages import NoSuchRunError, Status, StatusRequest

__all__ = ["LateJoiners", "Stragglers"]

_LOOK_SECONDS = 2.0
"""Between two looks for them."""
_WAIT_SECONDS = 0.25
"""For what a look finds; then it goes on beside everything else."""


class LateJoiners:
    """Of one solve."""

    def __init__(self, solvers: Membership, note: Callable[[str], None]) -> None:
        self._solvers, self._note = solvers, note
        self._arriving: dict[int, Member] = {}
        """Solvers that have been started, and take part once they answer."""
        self._meeting: asyncio.Task[list[int]] | None = None
        """Looks for them."""
        self._met: float | None = None
        """When the last look was over; the first is due some time after it is asked for."""

    def due(self, now: float) -> bool:
        """Whether it is time to look, or a look is under way."""
        if self._met is None:
            self._met = now
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
            self._solvers.release(number)

    async def _meet(self) -> list[int]:
        """Those whose loops run; one that does not answer holds up nothing else."""
        link = self._solvers.link
        for number in await link.discover():
            self._arriving[number] = Member(link.address(number))
        ready = []
        for number, member in list(self._arriving.items()):
            failure, status = link.failure(number), None
            if failure is not None:
                self._note(f"worker {number} ({member.address}) cannot take part: {failure}")
                del self._arriving[number]
                continue
            try:
                status = await link.request(number, StatusRequest(), self._solvers.worker_timeout)
            except NoSuchRunError:
                continue
            except (OSError, TimeoutError):
                pass
            if status is None:
                del self._arriving[number]
                self._solvers.release(number)
            elif isinstance(status, Status) and status.version > 0:  # its loop runs
                ready.append(number)
        return ready


_STILL = 40
"""Times the worker timeout: a worker whose thread has not looked for messages for so long hangs. Reading a partition
from a slow disk must take less."""


class Stragglers:
    """Of one solve."""

    def __init__(self, solvers: Membership, note: Callable[[str], None]) -> None:
        self._solvers, self._note = solvers, note
        self._late, self._late_since = -1, 0.0
        """How many have not begun, and since when there are so many."""
        self._still: dict[int, float] = {}
        """Those whose threads seem to hang, and since when."""

    def drop_unstarted(self) -> None:
        """Go on without solvers that do not begin, once others have for as long as the worker timeout."""
        alive, worker_timeout, now = self._solvers.alive(), self._solvers.worker_timeout, time.monotonic()
        late = [k for k in alive if not self._solvers.of[k].status.started]
        if len(late) != self._late:
            self._late, self._late_since = len(late), now
        if not late or now - self._late_since < worker_timeout:
            return
        why = "busy with other tasks of the cluster, perhaps another solve"
        if len(late) == len(alive):
            self._late_since = np.inf
            self._note(f"no worker has begun in {worker_timeout:g} s: their threads are {why}; waiting for them")
            return
        for k in late:
            self._solvers.lose(
                k,
                f"has not begun in {worker_timeout:g} s: its threads are {why}; the others go on without it until it "
                f"is free",
            )

    def drop_hung(self) -> None:
        """Go on without solvers whose threads hang, where another is left."""
        worker_timeout, now = self._solvers.worker_timeout, time.monotonic()
        alive = self._solvers.alive()
        statuses = {k: self._solvers.of[k].status for k in alive}
        seconds = {k: 0.0 if s.compiling and not s.ready else s.stalled_seconds for k, s in statuses.items()}
        stalled_seconds = [k for k in alive if seconds[k] > _STILL * worker_timeout]
        others = any(statuses[k].started for k in alive if k not in stalled_seconds)
        # Seen for a while, since threads of a process that was stopped have yet to look.
        self._still = {k: self._still.get(k, now) for k in stalled_seconds}
        for k in stalled_seconds:
            if others and now - self._still[k] > worker_timeout:
                self._solvers.lose(
                    k,
                    f"has not finished a step for {seconds[k]:.0f} s: its thread hangs, or waits for a disk or device; "
                    f"the others go on with its partitions (give a longer --worker-timeout if such steps are usual)",
                )
