"""Snapshots: copies of the workers' values, from which lost partitions continue and checkpoints are written."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.membership import Membership, run_in_thread
from ooc_mdp.distributed.messages import SnapshotRequest, Values, contiguous_runs
from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.method_record import MethodRecord
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.runtime.threads import map_on_threads, slices
from ooc_mdp.solver.history import HistoryRecorder
from ooc_mdp.solver.session import CheckpointTimer

__all__ = ["SnapshotTaker", "StartingPoint", "ValueSnapshot"]

_COPY_THREADS = 8
"""Threads that copy the values of one worker."""
_BOUNDS = ("rise", "fall", "plain_rise", "plain_fall")
"""Names of the rows of `ValueSnapshot.bounds` in a checkpoint."""


@dataclass(slots=True)
class ValueSnapshot:
    """The coordinator's copies of values, policy and bounds."""

    values: npt.NDArray[np.float64]
    """float64 [n], store order, of the maximisation."""
    policy: npt.NDArray[np.int32]
    visited: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    """bool [P]; whether there is a copy of the partition; otherwise its values are the initial ones."""
    bounds: npt.NDArray[np.float64] | None = None
    """float64 [4, P] as in `Values`; None where no bounds hold for all values together."""
    value_size: float = 0.0

    @classmethod
    def first(cls, n_states: int, n_partitions: int) -> Self:
        """Return a snapshot without a copy of any partition."""
        # Pages are not touched before something is copied there; the policy of unvisited partitions is not read.
        marks = np.zeros((2, n_partitions), np.bool_)
        return cls(np.zeros(n_states), np.zeros(n_states, np.int32), marks[0], marks[1])

    @classmethod
    def of_values(cls, values: npt.NDArray[np.float64], n_partitions: int) -> Self:
        """Return a snapshot of values alone: no partition has been visited, and no bounds hold."""
        marks = np.zeros((2, n_partitions), np.bool_)
        marks[1] = True
        return cls(values, np.full(values.size, -1, np.int32), marks[0], marks[1], None, float(np.abs(values).max()))

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Self:
        """Return the snapshot in the arrays of a checkpoint."""
        visited = arrays["visited"]
        bounds = np.stack([arrays[name] for name in _BOUNDS])
        valid = np.ones(visited.size, np.bool_)
        return cls(arrays["values"], arrays["policy"], visited, valid, bounds, float(arrays["value_size"]))

    def arrays(self, partition_ptr: IntArray) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a checkpoint; bounds are infinite where values are of different times."""
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

    def update(self, values: Values, partition_ptr: IntArray) -> None:
        """Copy the values of some partitions; bounds of all values together no longer hold."""
        self.bounds = None
        pieces = [
            (_part(ours, part), _part(theirs, part))
            for ours, theirs in contiguous_runs(values.partitions, partition_ptr)
            for part in slices(ours.stop - ours.start)
        ]

        def copy(piece: tuple[slice, slice]) -> None:
            ours, theirs = piece
            self.values[ours], self.policy[ours] = values.values[theirs], values.policy[theirs]

        map_on_threads(copy, pieces, _COPY_THREADS)
        self.visited[values.partitions] = values.visited
        self.valid[values.partitions] = True

    def extract(self, partitions: IntArray, partition_ptr: IntArray, with_bounds: bool) -> Values | None:
        """Return the copies of partitions, as far as there are any; None if there are none.

        While another thread updates the snapshot, some values may be newer ones; a visited partition has a policy.
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
    """What is known at the start of a solve: nothing, or the checkpoint of an earlier run."""

    known: ValueSnapshot
    """Initial values; snapshots of this run are copied here."""
    history: HistoryRecorder
    """Receives rows by the last statuses, and the workers' counts by partition with each snapshot and at the end; the
    counts of a lost worker since the last snapshot are missing."""
    earlier: SolveStatistics | None = None
    """Counters of the runs that this one resumes; None for a solve from the start, whose initial values all workers
    know themselves."""
    method: MethodRecord = field(default_factory=MethodRecord)
    """What checkpoints of this run record of its method, those runs included."""

    @property
    def seconds(self) -> float:
        """Seconds of work in those runs."""
        return 0.0 if self.earlier is None else self.earlier.solve_seconds


def _part(piece: slice, part: slice) -> slice:
    return slice(piece.start + part.start, piece.start + part.stop)


_FIRST_SECONDS = 5.0
"""After which the first snapshot is due at the latest."""
_WAIT_SECONDS = 0.25


class SnapshotTaker:
    """Takes the snapshots of one solve.

    Parameters
    ----------
    known : initial values, and where snapshots are copied.
    partition_ptr : int [P + 1].
    interval : seconds between two snapshots.
    save : writes `known` as a checkpoint after each, if possible; called on a thread of its own.
    history : receives the workers' counts.
    """

    def __init__(
        self,
        members: Membership,
        known: ValueSnapshot,
        partition_ptr: IntArray,
        interval: float,
        save: Callable[[], object],
        history: HistoryRecorder,
    ) -> None:
        self._members, self.known, self._partition_ptr = members, known, partition_ptr
        self._timer, self._save, self._history = CheckpointTimer(interval), save, history
        self._lock = threading.Lock()
        self._copying: asyncio.Task[None] | None = None
        self._activity = -1
        """Of all workers, at the last snapshot."""

    def begin(self) -> None:
        """Start the time to the first snapshot: workers begin to sweep."""
        self._timer.begin()

    def apply(self, values: Values) -> None:
        """Copy a worker's values of its partitions."""
        with self._lock:
            self.known.update(values, self._partition_ptr)

    async def take_now(self) -> dict[int, Values] | None:
        """Take a snapshot of all workers; return their answers, or None where one is missing."""
        reports = await self._members.request_snapshots(SnapshotRequest(), self.apply)
        for number, values in (reports or {}).items():
            if values.counts is not None:
                self._history.take(number, values.counts)
        return reports

    def take_if_due(self) -> None:
        """Begin a snapshot in the background if one is due."""
        if self._copying is not None:
            if not self._copying.done():
                return
            copying, self._copying = self._copying, None
            copying.result()  # an error of the snapshot is one of the solve
        if self._timer.over(_FIRST_SECONDS if self._activity < 0 else math.inf):
            self._copying = asyncio.ensure_future(self._copy())

    async def cancel(self) -> None:
        """Cancel a snapshot in the background; a checkpoint that is being written is completed."""
        copying, self._copying = self._copying, None
        while copying is not None and not copying.done():
            copying.cancel()
            await asyncio.wait({copying}, timeout=_WAIT_SECONDS)
        if copying is not None:
            with suppress(asyncio.CancelledError, StoreError):  # what follows is saved too, or fails likewise
                copying.result()

    async def _copy(self) -> None:
        activity = sum(m.status.activity + m.status.statistics.backups for m in self._members.alive_members())
        if activity == self._activity:
            self._timer.begin()
            return
        began = time.monotonic()
        reports = await self.take_now()
        if reports is not None:
            await run_in_thread(self._save)
        self._activity = activity
        self._timer.begin_after(began)
