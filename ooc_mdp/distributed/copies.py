"""Copies of all values while solvers work: for checkpoints, and for whoever goes on with the partitions of the lost.

Each solver's part is of its own time, and no bound holds of a copy; one that solvers wait for holds up nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ooc_mdp.distributed.known import Known
from ooc_mdp.distributed.members import Members, on_a_thread
from ooc_mdp.distributed.messages import Report, Values
from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.solver.history import HistoryRecorder

__all__ = ["Copies"]

_FIRST_SECONDS = 5.0
"""After which values are copied for the first time, if that is not due before."""
_LEAST_PAUSE = 20
"""Times what the last copy took: between two of them."""
_WAIT_SECONDS = 0.25


class Copies:
    """Of one solve.

    Parameters
    ----------
    known : values to begin with, and where copies are kept.
    partition_ptr : int [P + 1].
    interval : seconds between two copies.
    save : writes `known` as a checkpoint after each, where that can be done; called on a thread of its own.
    history : takes in what solvers have counted.
    """

    def __init__(
        self,
        solvers: Members,
        known: Known,
        partition_ptr: IntArray,
        interval: float,
        save: Callable[[], object],
        history: HistoryRecorder,
    ) -> None:
        self._solvers, self.known, self._partition_ptr = solvers, known, partition_ptr
        self._interval, self._save, self._history = interval, save, history
        self._keeping = threading.Lock()
        self._copying: asyncio.Task[None] | None = None
        self._copied = time.monotonic()
        self._took = 0.0
        self._activity = -1
        """Of all solvers, at the last copy."""

    def begin(self) -> None:
        """Solvers begin to sweep: the pause before the first copy begins."""
        self._copied = time.monotonic()

    def keep(self, values: Values) -> None:
        """Take in what a solver knows of its partitions."""
        with self._keeping:
            self.known.take(values, self._partition_ptr)

    async def of_all(self) -> dict[int, Values] | None:
        """Have all solvers tell what they know, and keep it; None where an answer is missing."""
        reports = await self._solvers.command_all(Report(), self.keep)
        for number, values in (reports or {}).items():
            if values.counts is not None:
                self._history.take(number, values.counts)
        return reports

    def make_if_due(self, now: float) -> None:
        """Begin a copy where the last is over and long ago."""
        if self._copying is not None:
            if not self._copying.done():
                return
            copying, self._copying = self._copying, None
            copying.result()  # an error of the copy is one of the solve
        due = max(self._interval, _LEAST_PAUSE * self._took)
        if now - self._copied >= (due if self._activity >= 0 else min(due, _FIRST_SECONDS)):
            self._copying = asyncio.ensure_future(self._copy())

    async def end(self) -> None:
        """Give up the copy that is under way, if one is; what it was just writing is there then."""
        copying, self._copying = self._copying, None
        while copying is not None and not copying.done():
            copying.cancel()
            await asyncio.wait({copying}, timeout=_WAIT_SECONDS)
        if copying is not None:
            with suppress(asyncio.CancelledError, StoreError):  # what follows is saved too, or fails in the same way
                copying.result()

    async def _copy(self) -> None:
        activity = sum(m.status.activity + m.status.statistics.backups for m in self._solvers.living())
        if activity == self._activity:
            self._copied = time.monotonic()
            return
        began = time.monotonic()
        reports = await self.of_all()
        if reports is not None:
            await on_a_thread(self._save)
        self._activity = activity
        self._copied = time.monotonic()
        self._took = self._copied - began
