"""What the coordinator of several solvers has of the model's values: copies, of which those of the lost go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.membership import Membership, run_in_thread
from ooc_mdp.distributed.messages import SnapshotRequest, Values, contiguous_runs
from ooc_mdp.distributed.remote_memory import read
from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.solution import SolveStatistics
from ooc_mdp.runtime.threads import map_on_threads, slices
from ooc_mdp.solver.history import HistoryRecorder

__all__ = ["SnapshotTaker", "StartingPoint", "ValueSnapshot"]

_COPY_THREADS = 8
"""That put the values of one solver in their places."""
_BOUNDS = ("rise", "fall", "plain_rise", "plain_fall")
"""Names of the rows of `Known.bounds` in a checkpoint."""


@dataclass(slots=True)
class ValueSnapshot:
    """Values, policy and bounds of all partitions, as far as the coordinator has copies."""

    values: npt.NDArray[np.float64]
    """float64 [n], store order, of the maximisation."""
    policy: npt.NDArray[np.int32]
    visited: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    """bool [P]; whether there is a copy: values that are another's than the first ones."""
    bounds: npt.NDArray[np.float64] | None = None
    """float64 [4, P] as in `Values`; None: nothing is known."""
    value_size: float = 0.0

    @classmethod
    def first(cls, n_states: int, n_partitions: int) -> Self:
        """Nothing: there is no copy of any partition."""
        # Nobody touches these pages before something is copied there; a policy that nobody has chosen is not looked at.
        marks = np.zeros((2, n_partitions), np.bool_)
        return cls(np.zeros(n_states), np.zeros(n_states, np.int32), marks[0], marks[1])

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Self:
        """What a checkpoint holds."""
        visited = arrays["visited"]
        bounds = np.stack([arrays[name] for name in _BOUNDS])
        valid = np.ones(visited.size, np.bool_)
        return cls(arrays["values"], arrays["policy"], visited, valid, bounds, float(arrays["value_size"]))

    def arrays(self, partition_ptr: IntArray) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint holds; bounds are infinite where values are of different times."""
        bounds = np.full((4, self.visited.size), np.inf) if self.bounds is None else self.bounds
        policy = self.policy
        if not self.visited.all():
            policy = np.where(np.repeat(self.visited, np.diff(partition_ptr)), policy, np.int32(-1))
        return {
            "values": self.values,
            "policy": policy,
            "visited": self.visited,
            "value_size": np.array(self.value_size),
            **dict(zip(_BOUNDS, bounds, strict=True)),
        }

    def take(self, values: Values, partition_ptr: IntArray) -> None:
        """Copies of some partitions; bounds of all values together are known no longer.

        Raises
        ------
        OSError : values are in another process's memory, and cannot be read; what there was of them may be gone.
        """
        self.bounds = None
        pieces = [
            (_part(ours, part), _part(theirs, part))
            for ours, theirs in contiguous_runs(values.partitions, partition_ptr)
            for part in slices(ours.stop - ours.start)
        ]

        def copy(piece: tuple[slice, slice]) -> None:
            ours, theirs = piece
            read(values.values, theirs, self.values[ours])
            read(values.policy, theirs, self.policy[ours])

        map_on_threads(copy, pieces, _COPY_THREADS)
        self.visited[values.partitions] = values.visited
        self.valid[values.partitions] = True

    def of(self, partitions: IntArray, partition_ptr: IntArray, with_bounds: bool) -> Values | None:
        """What is known of partitions, of those of which there are copies; None if there are none.

        While another thread takes in newer ones, some values may be those; what counts as visited has a policy.
        """
        partitions = partitions[self.valid[partitions]]
        if not partitions.size:
            return None
        visited = self.visited[partitions]
        pieces = [piece for piece, _ in contiguous_runs(partitions, partition_ptr)]
        return Values(
            partitions,
            np.concatenate([self.values[piece] for piece in pieces]),
            np.concatenate([self.policy[piece] for piece in pieces]),
            visited,
            self.bounds[:, partitions] if with_bounds and self.bounds is not None else None,
        )


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """What is known when a solve begins: nothing, or what the checkpoint of an earlier run holds."""

    known: ValueSnapshot
    """Values to begin with, where copies are kept from then on."""
    history: HistoryRecorder
    """Is given rows by the last statuses, and what solvers count by partition whenever values are copied and at the
    end; what a lost solver has counted since then is lost."""
    earlier: SolveStatistics | None = None
    """Counters of the runs that this one resumes; None for a solve from the start, of which `known` holds nothing that
    the solvers do not know by themselves."""

    @property
    def seconds(self) -> float:
        """Of work in those runs."""
        return 0.0 if self.earlier is None else self.earlier.seconds


def _part(piece: slice, part: slice) -> slice:
    return slice(piece.start + part.start, piece.start + part.stop)


_FIRST_SECONDS = 5.0
"""After which values are copied for the first time, if that is not due before."""
_MIN_PAUSE = 20
"""Times what the last copy took: between two of them."""
_WAIT_SECONDS = 0.25


class SnapshotTaker:
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
        solvers: Membership,
        known: ValueSnapshot,
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

    async def take_now(self) -> dict[int, Values] | None:
        """Have all solvers tell what they know, and keep it; None where an answer is missing."""
        reports = await self._solvers.request_snapshots(SnapshotRequest(), self.keep)
        for number, values in (reports or {}).items():
            if values.counts is not None:
                self._history.take(number, values.counts)
        return reports

    def take_if_due(self, now: float) -> None:
        """Begin a copy where the last is over and long ago."""
        if self._copying is not None:
            if not self._copying.done():
                return
            copying, self._copying = self._copying, None
            copying.result()  # an error of the copy is one of the solve
        due = max(self._interval, _MIN_PAUSE * self._took)
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
        reports = await self.take_now()
        if reports is not None:
            await run_in_thread(self._save)
        self._activity = activity
        self._copied = time.monotonic()
        self._took = self._copied - began
