"""When a distributed solve ends: Mattern's double wave over acknowledged messages, and the clock of its limits.

A worker is *passive* while it has nothing to sweep, nothing to process and no message without receipt. If all workers
have been passive with the same activity in two successive statuses, there was a moment between the two at which all
were passive and no message was in flight (F. Mattern, *Algorithms for distributed termination detection*, Distributed
Computing 2, 1987; the argument is in docs/theory/several-solvers.md).

    clock   started ─── some load their code ─── all are ready ─────────────── limit
                runs        stands                        runs
"""

from __future__ import annotations

import time
from collections.abc import Collection

from ooc_mdp.distributed.membership import Membership
from ooc_mdp.distributed.messages import Status, StatusRequest
from ooc_mdp.solver.session import Clock

__all__ = ["SolveClock", "confirm_quiescent"]

_MAX_LOADING = 300.0
"""Seconds for which the clock stands at most while workers load their code: one that hangs must not stop it."""


class SolveClock(Clock):
    """Counts the seconds of a solve; those in which workers load or compile code do not count."""

    def __init__(self, earlier: float = 0.0) -> None:
        super().__init__(earlier)
        self._loaded = 0.0
        self._loading_since: float | None = None

    def update(self, statuses: Collection[Status], going: bool) -> None:
        """Stop the clock while workers that have started are not ready; others may be busy with other tasks."""
        now = time.monotonic()
        loading = not going and any(s.started and not s.ready for s in statuses)
        if loading and self._loading_since is None:
            self._loading_since = now
        elif not loading and self._loading_since is not None:
            self._loaded, self._loading_since = self._loaded + now - self._loading_since, None

    def of_this_run(self) -> float:
        """Return the seconds of work in this run, without those in which code was loaded."""
        now = time.monotonic()
        loading = self._loaded + (0.0 if self._loading_since is None else now - self._loading_since)
        return now - self.started - min(loading, _MAX_LOADING)

    def since_made(self) -> float:
        """As :meth:`of_this_run`: a limit of a solve on several workers is of their work."""
        return self.of_this_run()


async def confirm_quiescent(members: Membership, epoch: int) -> bool:
    """Return True when all workers were passive at one moment, with the assignment of this epoch applied.

    The first wave is the last status of each worker, the second a request to all; False also where a worker does not
    answer or is lost meanwhile.
    """
    first = {k: members.by_number[k].status for k in members.alive()}
    if any(s.epoch != epoch for s in first.values()):
        return False
    second = await members.request_all(StatusRequest())
    return second.keys() == first.keys() == set(members.alive()) and all(
        isinstance(s, Status) and s.passive and s.activity == first[k].activity for k, s in second.items()
    )
