"""What surrounds a solve: its clock, its progress callback, its checkpoints, and what ends it early.

After each step of a method the driver calls `after_step`; the coordinator of several workers, which saves by snapshots
of theirs, calls `observe` instead.
Nothing here knows how a solve works.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ooc_mdp.events import SolveProgress, SolveWatcher
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.options import RunOptions
from ooc_mdp.solver.history import HistoryRecorder, HistoryRow
from ooc_mdp.solver.output import Output, Snapshot, TakeSnapshot

__all__ = ["CheckpointTimer", "Clock", "Observed", "Progressing", "Session", "StoppedEarly"]

_REPORT_SECONDS = 0.25
_SAVING_SHARE = 20
"""A checkpoint follows the last after so many times as long as writing that took, at least."""


class Observed(Protocol):
    """A solve as reports and the history see it."""

    history: HistoryRecorder

    def progress(self) -> SolveProgress:
        """Where the solve stands."""
        ...

    def row(self) -> HistoryRow:
        """The same for the history."""
        ...


class Progressing(Observed, Protocol):
    """What a method makes progress on, as reports, checkpoints and the history see it."""

    counters: SolveStatistics

    def snapshot(self) -> Snapshot | None:
        """What a checkpoint holds; None while there is nothing to continue from."""
        ...


class StoppedEarly(Exception):
    """A limit or a signal ends the run; what is known so far is kept."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Clock:
    """For how long a solve has worked, without compiling loops.

    Parameters
    ----------
    earlier : seconds of the runs that this one resumes.
    compiled : for how many seconds loops have been compiled so far.
    """

    def __init__(self, earlier: float = 0.0, compiled: Callable[[], float] = lambda: 0.0) -> None:
        self._compiled = compiled
        self.restart(earlier)
        self._made = self.started

    def restart(self, earlier: float) -> None:
        """This run begins now, after so many seconds of others."""
        self.started, self._earlier = time.monotonic(), earlier
        self._compiled_before = self._compiled()

    def seconds(self) -> float:
        """Seconds of work so far, resumed runs included."""
        return self._earlier + self.of_this_run()

    def since_made(self) -> float:
        """Seconds that count towards a time limit: preparations, such as compiling, included."""
        return time.monotonic() - self._made

    def of_this_run(self) -> float:
        """Seconds of work since it began."""
        return time.monotonic() - self.started - (self._compiled() - self._compiled_before)


class CheckpointTimer:
    """The time between two checkpoints: an interval, and at least 20 times as long as writing the last one took."""

    def __init__(self, interval: float) -> None:
        self._interval, self._took = interval, 0.0
        self.begin()

    def begin(self) -> None:
        """Begin to count it."""
        self._began = time.monotonic()

    def over(self, most: float = math.inf) -> bool:
        """Return whether it has passed, or `most` seconds have."""
        due = max(self._interval, _SAVING_SHARE * self._took)
        return time.monotonic() - self._began >= min(due, most)

    def begin_after(self, began: float) -> None:
        """Begin to count it after a checkpoint whose writing began at a time of :func:`time.monotonic`."""
        self.begin()
        self._took = self._began - began


class Session:
    """One solve's.

    Parameters
    ----------
    output : where checkpoints are saved; by default nowhere.
    run : the time limit, which counts from now on, preparations included, and the interval of checkpoints.
    watch : called with progress a few times a second.
    note : called with sentences about the course of the solve.
    interrupted : whether a signal has asked the solve to end.
    clock : by default one that begins now.
    trial : seconds of work after which a trial ends, preparations excluded; None for a solve.
    """

    def __init__(
        self,
        output: Output | None = None,
        run: RunOptions | None = None,
        *,
        watch: SolveWatcher | None = None,
        note: Callable[[str], None] = lambda _: None,
        interrupted: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        trial: float | None = None,
    ) -> None:
        self.output, self.clock = output or Output(), clock or Clock()
        self.note, self._watch, self._interrupted = note, watch, interrupted
        run = run or RunOptions()
        self.checkpoint_interval, self._time_limit, self._trial = run.checkpoint_interval, run.time_limit, trial
        self._began = False
        """Whether preparations are over, as of the first call of `begin`."""
        self._reported = 0.0
        self._bytes_read = 0
        """At the last report."""
        self._timer, self._saved_backups = CheckpointTimer(run.checkpoint_interval), 0
        """Since the last checkpoint, and the backups that it knows of."""

    def begin(self, earlier: float, backups: int = 0) -> None:
        """Begin to count the time of work, after so many seconds and backups of the runs that this one resumes."""
        self.clock.restart(earlier)
        self._began = True
        self._timer.begin()
        self._saved_backups = backups

    def after_step(self, work: Progressing) -> Outcome | None:
        """Report and save where it is time to; the outcome where a limit or signal ends the solve.

        Without new backups there is nothing to save.
        """
        outcome = self.observe(work)
        if outcome is None and work.counters.backups > self._saved_backups and self.save_if_due(work.snapshot):
            self._saved_backups = work.counters.backups
        return outcome

    def observe(self, work: Observed) -> Outcome | None:
        """Report, and add to the history, where it is time to; the outcome where a limit or signal ends the solve."""
        self.report(work.progress)
        work.history.offer(work.row)
        return self.ended()

    @property
    def seconds(self) -> float:
        """Seconds of work so far, resumed runs included."""
        return self.clock.seconds()

    def hold_reports(self) -> None:
        """Have the first report wait for the usual pause between two of them."""
        self._reported = time.monotonic()

    def report(self, look: Callable[[], SolveProgress]) -> None:
        """Show the watcher where the solve stands, if it is time to; `look` need not know the rate of reading."""
        now = time.monotonic()
        if self._watch is None or now - self._reported < _REPORT_SECONDS:
            return
        seen = look()
        rate = (seen.bytes_read - self._bytes_read) / (now - self._reported) if self._reported else 0.0
        self._watch(replace(seen, read_rate=rate))
        self._reported, self._bytes_read = now, seen.bytes_read

    def ended(self) -> Outcome | None:
        """What asks the solve to end early: a signal, or the time limit."""
        if self._interrupted():
            return Outcome.INTERRUPTED
        if self._trial is not None and self._began and self.clock.of_this_run() >= self._trial:
            return Outcome.TIME_LIMIT
        over = self._time_limit is not None and self.clock.since_made() >= self._time_limit
        return Outcome.TIME_LIMIT if over else None

    def stop(self) -> None:
        """Raise StoppedEarly where something asks the solve to end."""
        outcome = self.ended()
        if outcome is not None:
            raise StoppedEarly(outcome)

    def save_if_due(self, take: TakeSnapshot) -> bool:
        """Write a checkpoint if it is time for one; whether there is a new one.

        One that cannot be written ends no solve: a disk that is full at night may have room in the morning.
        """
        if not self._timer.over():
            return False
        began = time.monotonic()
        saved = self.output.try_save(take)
        self._timer.begin_after(began)
        return saved
