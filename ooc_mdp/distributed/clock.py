"""For how long several solvers have worked on a solve, and what ends it before they are done.

started ─── some load their code ─── all are ready ─────────────── limit
        runs        stands                        runs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from ooc_mdp.distributed.messages import Status
from ooc_mdp.model.solution import Outcome

__all__ = ["Clock"]

_MOST_LOADING = 300.0
"""Seconds that solvers may load their code before the clock runs: one that hangs must not stop it for ever."""


class Clock:
    """Of one solve. As on one machine, it does not run while code is loaded, which may have to be compiled.

    Parameters
    ----------
    limit : seconds of this run; None for no limit.
    interrupted : whether a signal says to stop.
    earlier : seconds of the runs that this one resumes.
    """

    def __init__(self, limit: float | None, interrupted: Callable[[], bool], earlier: float = 0.0) -> None:
        self._limit, self._interrupted, self._earlier = limit, interrupted, earlier
        self.started = time.monotonic()
        self._loaded = 0.0
        self._loading_since: float | None = None

    def look(self, statuses: Collection[Status], going: bool) -> None:
        """Stop while solvers that have begun are not ready; others may be busy with something else for long."""
        now = time.monotonic()
        loading = not going and any(s.begun and not s.ready for s in statuses)
        if loading and self._loading_since is None:
            self._loading_since = now
        elif not loading and self._loading_since is not None:
            self._loaded, self._loading_since = self._loaded + now - self._loading_since, None

    def seconds(self) -> float:
        """Seconds of work so far, resumed runs included."""
        return self._earlier + self._of_this_run()

    def ends(self) -> Outcome | None:
        """What says to stop, if anything does."""
        if self._interrupted():
            return Outcome.INTERRUPTED
        over = self._limit is not None and self._of_this_run() >= self._limit
        return Outcome.TIME_LIMIT if over else None

    def _of_this_run(self) -> float:
        now = time.monotonic()
        loading = self._loaded + (0.0 if self._loading_since is None else now - self._loading_since)
        return now - self.started - min(loading, _MOST_LOADING)
