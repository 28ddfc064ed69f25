"""Progress on stderr: bars and a status line in a terminal, plain lines a few seconds apart in a log.

Computes nothing: it renders what it is given.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from ooc_mdp.events import SolveProgress
from ooc_mdp.quoting import printable
from ooc_mdp.report.solve_line import Remaining, clock, fitted, log_line, status_line

__all__ = ["ProgressBar", "SolveProgressLine", "working"]

_LOG_SECONDS = 10.0
_STARTING = "starting"
_SPINNER = 3
"""Columns of a spinner with the space behind it, and one that stays free."""


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, markup=False)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal, meanwhile, what is being done and for how long; nothing in a log."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=_stderr(), transient=True, disable=not sys.stderr.isatty()) as shown:
        shown.add_task(printable(what), total=None)
        yield


class ProgressBar:
    """One progress bar per step, for conversion and validation; in a log, lines of the current step."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._logged = self._began = time.monotonic()
        self._step = ""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=_stderr(),
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        if self._live:
            self._tasks[_STARTING] = self._progress.add_task(_STARTING, total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show `done` of `total` units of a step; in a log, every ten seconds."""
        what = printable(what)
        if not self._live:
            self._log(what, done, total)
            return
        if _STARTING in self._tasks:
            self._progress.remove_task(self._tasks.pop(_STARTING))
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)

    def _log(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if what != self._step:
            self._step, self._began = what, now
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            of = "" if total is None else f" of {total:,}"
            print(f"{what}: {done:,}{of}, {now - self._began:.0f} s", file=sys.stderr, flush=True)


class SolveProgressLine:
    """One line with the state of a solve, as wide as the terminal; in a log, key=value every ten seconds."""

    def __init__(self) -> None:
        self._console = _stderr()
        self._live = sys.stderr.isatty()
        self._status = self._console.status(_STARTING) if self._live else None
        self._logged = time.monotonic()
        self._since: SolveProgress | None = None
        """At the last line of a log; before one, at a solve's first report, which may be of a resumed solve."""
        self._remaining = Remaining()

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, p: SolveProgress) -> None:
        """Show progress; in a log, every ten seconds."""
        if self._since is None or p.seconds < self._since.seconds:  # the first report of a solve
            self._since = p
        self._remaining.add(p)
        if self._status is not None:
            parts = status_line(p, p.read_rate, self._remaining.seconds(p.target))
            end = f" {clock(p.seconds)}"
            room = self._console.width - _SPINNER - len(end)
            self._status.update(printable(fitted(parts, room) + end))
        elif time.monotonic() - self._logged >= _LOG_SECONDS:
            rate = (p.bytes_read - self._since.bytes_read) / max(p.seconds - self._since.seconds, 1e-9)
            self._logged, self._since = time.monotonic(), p
            print(log_line(p, rate, self._remaining.seconds(p.target)), file=sys.stderr, flush=True)
