"""Workers that are late: late joiners, workers that do not start, and workers whose threads hang.

Late joiners take part once they answer. The others continue without a worker that does not start within the timeout,
or whose thread has not looked for messages for 40 times as long although its process answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from ooc_mdp.distributed.membership import Member, Membership
from ooc_mdp.distributed.messages import NoSuchRunError, Status, StatusRequest

__all__ = ["LateJoiners", "Stragglers"]

_DISCOVERY_SECONDS = 2.0
"""Between two searches for late joiners."""
_WAIT_SECONDS = 0.25
"""How long a search is waited for; then it continues in the background."""


class LateJoiners:
    """Starts solvers on workers that join a solve late."""

    def __init__(self, members: Membership, note: Callable[[str], None]) -> None:
        self._members, self._note = members, note
        self._starting: dict[int, Member] = {}
        """Workers whose solvers have been started, and which take part once these answer."""
        self._discovery: asyncio.Task[list[int]] | None = None
        """The search in the background."""
        self._last_discovery: float | None = None
        """When the last search ended; before the first, when it was first asked whether one is due."""

    def due(self, now: float) -> bool:
        """Return whether a search is due or in progress."""
        if self._last_discovery is None:
            self._last_discovery = now
        return now - self._last_discovery >= _DISCOVERY_SECONDS

    async def ready(self, now: float) -> dict[int, Member]:
        """Search, and return the workers that can take part from now on."""
        if self._discovery is None:
            self._discovery = asyncio.ensure_future(self._discover())
            await asyncio.wait({self._discovery}, timeout=_WAIT_SECONDS)
        if not self._discovery.done():
            return {}
        discovery, self._discovery, self._last_discovery = self._discovery, None, now
        return {number: self._starting.pop(number) for number in discovery.result()}

    async def close(self) -> None:
        """End the search, and release workers that have not answered yet."""
        if self._discovery is not None:
            self._discovery.cancel()
            await asyncio.wait({self._discovery}, timeout=_WAIT_SECONDS)
        for number in self._starting:
            self._members.release(number)

    async def _discover(self) -> list[int]:
        """Start solvers on new workers, and return those whose solver's thread has started."""
        transport = self._members.transport
        for number in await transport.discover():
            self._starting[number] = Member(transport.address(number))
        ready = []
        for number, member in list(self._starting.items()):
            failure, status = transport.failure(number), None
            if failure is not None:
                self._note(f"worker {number} ({member.address}) cannot take part: {failure}")
                del self._starting[number]
                continue
            try:
                status = await transport.request(number, StatusRequest(), self._members.worker_timeout)
            except NoSuchRunError:
                continue
            except (OSError, TimeoutError):
                pass
            if status is None:
                del self._starting[number]
                self._members.release(number)
            elif isinstance(status, Status) and status.version > 0:  # its thread has started
                ready.append(number)
        return ready


_HUNG_FACTOR = 40
"""Times the worker timeout after which a thread that has not looked for messages counts as hung. Reading a partition
from a slow disk must take less."""


class Stragglers:
    """Removes workers that do not start or whose threads hang."""

    def __init__(self, members: Membership, note: Callable[[str], None]) -> None:
        self._members, self._note = members, note
        self._late, self._late_since = -1, 0.0
        """How many workers have not started, and since when there are so many."""
        self._hung_since: dict[int, float] = {}
        """Workers whose threads seem to hang, and since when."""

    def drop_unstarted(self) -> None:
        """Remove workers that have not started, once the others have for as long as the worker timeout."""
        alive, worker_timeout, now = self._members.alive(), self._members.worker_timeout, time.monotonic()
        late = [k for k in alive if not self._members.by_number[k].status.started]
        if len(late) != self._late:
            self._late, self._late_since = len(late), now
        if not late or now - self._late_since < worker_timeout:
            return
        why = "busy with other tasks of the cluster, perhaps another solve"
        if len(late) == len(alive):
            self._late_since = np.inf
            self._note(f"no worker has started in {worker_timeout:g} s: their threads are {why}; waiting for them")
            return
        for k in late:
            self._members.mark_lost(
                k,
                f"has not started in {worker_timeout:g} s: its threads are {why}; the others continue without it until "
                f"it is free",
            )

    def drop_hung(self) -> None:
        """Remove workers whose threads hang, where another worker is left."""
        worker_timeout, now = self._members.worker_timeout, time.monotonic()
        alive = self._members.alive()
        statuses = {k: self._members.by_number[k].status for k in alive}
        seconds = {k: 0.0 if s.compiling and not s.ready else s.stalled_seconds for k, s in statuses.items()}
        hung = [k for k in alive if seconds[k] > _HUNG_FACTOR * worker_timeout]
        others = any(statuses[k].started for k in alive if k not in hung)
        # Confirmed for a while, since the threads of a process that was suspended have yet to look.
        self._hung_since = {k: self._hung_since.get(k, now) for k in hung}
        for k in hung:
            if others and now - self._hung_since[k] > worker_timeout:
                self._members.mark_lost(
                    k,
                    f"has not finished a step for {seconds[k]:.0f} s: its thread hangs, or waits for a disk or device; "
                    f"the others continue with its partitions (give a longer --worker-timeout if such steps are usual)",
                )
