"""What a solve does between two accesses: report, save, and end where a limit or a signal says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ooc_mdp.events import SolveProgress, SolveWatcher
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import SolveOptions

__all__ = ["Pauses", "StoppedEarly"]

_REPORT_SECONDS = 0.25
_SAVING_SHARE = 20
"""A checkpoint follows the last after so many times as long as writing that took, at least."""


class StoppedEarly(Exception):
    """A limit or a signal ends the run; what is known so far is kept."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


@dataclass(slots=True)
class Pauses:
    """The clock of a solve, and who is told and asked at what times."""

    options: SolveOptions
    watch: SolveWatcher | None = None
    interrupted: Callable[[], bool] = lambda: False
    save: Callable[[], bool] | None = None
    """Writes a checkpoint, if it can; whether it has."""
    started: float = field(default_factory=time.monotonic)
    earlier_seconds: float = 0.0
    """Seconds of the runs that this one resumes."""
    _reported: float = 0.0
    _bytes_read: int = 0
    """At the last report."""
    _saved: float = field(default_factory=time.monotonic)
    _saving_took: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of work so far, resumed runs included."""
        return self.earlier_seconds + time.monotonic() - self.started

    def report(self, look: Callable[[], SolveProgress]) -> None:
        """Tell the watcher where the solve stands, a few times a second; `look` need not know the rate of reading."""
        now = time.monotonic()
        if self.watch is None or now - self._reported < _REPORT_SECONDS:
            return
        seen = look()
        rate = (seen.bytes_read - self._bytes_read) / (now - self._reported) if self._reported else 0.0
        self.watch(replace(seen, read_rate=rate))
        self._reported, self._bytes_read = now, seen.bytes_read

    def stop(self) -> None:
        """Raise StoppedEarly where a signal has come, or the time is up."""
        if self.interrupted():
            raise StoppedEarly(Outcome.INTERRUPTED)
        limit = self.options.time_limit
        if limit is not None and time.monotonic() - self.started >= limit:
            raise StoppedEarly(Outcome.TIME_LIMIT)

    def keep(self) -> bool:
        """Write a checkpoint if it is time for one; whether there is a new one.

        One that cannot be written ends no solve: a disk that is full at night may have room in the morning.
        """
        now = time.monotonic()
        pause = max(self.options.checkpoint_interval, _SAVING_SHARE * self._saving_took)
        if self.save is None or now - self._saved < pause:
            return False
        written = self.save()
        self._saved = time.monotonic()
        self._saving_took = self._saved - now
        return written
