"""Records how a solve progresses: rows over time, and per partition how often it was loaded, visited and swept.

    offer ─▶ rows [n <= 10,000], at most one per interval; when full, every second row goes and the interval doubles
    visit ─▶ visits, sweeps, first_visit, last_visit [P]       loads [P] are counted by the partition cache

A row costs O(P) (bounds, dirty partitions), so that recording waits after each for a multiple of what it took. The
recorder has neither bounds nor cache: their owner supplies the rows. On several workers each counts for itself,
and the coordinator's recorder adds up what they report.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import SolveHistory
from ooc_mdp.model.statistics import SolveStatistics

__all__ = [
    "HISTORY_PREFIX",
    "MAX_ROWS",
    "HistoryRecorder",
    "HistoryRow",
    "PartitionCounts",
    "history_bytes",
    "progress_of",
    "row_of",
]

MAX_ROWS = 10_000
HISTORY_PREFIX = "history_"
"""Begins the names of a checkpoint's arrays that hold a history."""
_FIRST_INTERVAL = 0.05
"""Seconds between two rows at first."""
_PAUSE = 399.0
"""A row follows the last after so many times as long as that took, at least: rows take a quarter of a percent of the
time. On a device they come between two batches, when it idles: at 1% they slowed solves of a car by as much."""
_FEW = 16
"""Partitions that are counted one by one sooner than together."""
_COUNTS = ("loads", "visits", "sweeps")
_TIMES = ("first_visit", "last_visit")


class HistoryRow(NamedTuple):
    """One row; fields as in `ooc_mdp.model.solution.SolveHistory`."""

    seconds: float
    bytes_read: int
    error_bound: float
    residual_bound: float
    hits: int
    misses: int
    dirty: int
    resident: int


_FLOATS = frozenset({"seconds", "error_bound", "residual_bound"})
_TYPES: dict[str, type] = {name: np.float64 if name in _FLOATS else np.int64 for name in HistoryRow._fields}


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """What one worker did to k partitions since it began; fields as in `ooc_mdp.model.solution.SolveHistory`."""

    partitions: IntArray
    """int64 [k], ascending."""
    loads: IntArray
    visits: IntArray
    sweeps: IntArray
    first_visit: FloatArray
    last_visit: FloatArray


def history_bytes(n_partitions: int) -> int:
    """Bytes that a recorder takes."""
    return 8 * (len(_TYPES) * MAX_ROWS + len(_COUNTS + _TIMES) * n_partitions)


def row_of(
    statistics: SolveStatistics, error_bound: float, residual_bound: float, dirty: int, cached: int
) -> HistoryRow:
    """The row of a solve with these counters; `cached` partitions are resident."""
    s = statistics
    return HistoryRow(s.solve_seconds, s.bytes_read, error_bound, residual_bound, s.hits, s.misses, dirty, cached)


def progress_of(
    statistics: SolveStatistics,
    *,
    error_bound: float,
    residual_bound: float,
    target: float | None,
    stopping_rule: str,
    dirty: int,
    **more: Any,
) -> SolveProgress:
    """Where a solve with these counters stands; parameters are the fields of `ooc_mdp.events.SolveProgress`."""
    s = statistics
    return SolveProgress(
        error_bound=error_bound,
        residual_bound=residual_bound,
        target=target,
        stopping_rule=stopping_rule,
        dirty=dirty,
        partitions=s.n_partitions,
        hit_rate=s.hit_rate,
        bytes_read=s.bytes_read,
        read_rate=0.0,
        loads=s.loads,
        seconds=s.solve_seconds,
        **more,
    )


class HistoryRecorder:
    """Of one solve, or of one worker's share of it.

    Rows and other workers' counts may come from one thread while another asks for `arrays`. The first row stays, and so
    does the last one that `end` records; seconds ascend strictly: a row of the time of the last one takes its place.

    Parameters
    ----------
    loads : int64 [P]; counts that the owner of the cache keeps up.
    """

    def __init__(self, loads: IntArray) -> None:
        partitions = loads.size
        self.loads = loads
        self.visits, self.sweeps = np.zeros(partitions, np.int64), np.zeros(partitions, np.int64)
        self.first_visit, self.last_visit = np.full(partitions, np.nan), np.full(partitions, np.nan)
        self._views: list[Any] = [self.visits.data, self.sweeps.data, self.first_visit.data, self.last_visit.data]
        """Of the same numbers: one of them is read and written several times as fast as through an array."""
        self.interval = _FIRST_INTERVAL
        """Seconds between two rows, at least; infinite where none are recorded."""
        self._next = 0.0
        """Time of the monotonic clock from which on a row is due."""
        self._rows: dict[str, npt.NDArray[Any]] = {name: np.empty(MAX_ROWS, kind) for name, kind in _TYPES.items()}
        self._count = 0
        self._others: dict[int, PartitionCounts] = {}
        """What other workers have reported last."""
        self._lock = threading.Lock()

    def visit(self, partition: int, visits: int, sweeps: int, seconds: float) -> None:
        """Count an access that swept a partition, at a time of the solve.

        Parameters
        ----------
        visits, sweeps : by how much the solve's statistics count on.
        """
        of_visits, of_sweeps, first, last = self._views
        of_visits[partition] += visits
        of_sweeps[partition] += sweeps
        last[partition] = seconds
        if math.isnan(first[partition]):
            first[partition] = seconds

    def visit_each(self, partitions: IntArray, hits: npt.NDArray[np.bool_], sweeps: IntArray, seconds: float) -> None:
        """:meth:`visit` to partitions, each once (arrays [k]); those that were not hits begin a visit."""
        if partitions.size <= _FEW:
            for q, hit, of_one in zip(partitions.tolist(), hits.tolist(), sweeps.tolist(), strict=True):
                self.visit(q, not hit, of_one, seconds)
            return
        self.visits[partitions] += ~hits
        self.sweeps[partitions] += sweeps
        self.last_visit[partitions] = seconds
        self.first_visit[partitions] = np.fmin(self.first_visit[partitions], seconds)

    def offer(self, look: Callable[[], HistoryRow]) -> None:
        """Record the row that `look` returns, if one is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self.row(look())
        after = time.monotonic()
        self._next = after + max(self.interval, _PAUSE * (after - now))

    def row(self, row: HistoryRow) -> None:
        """Record a row, whether or not one is due."""
        with self._lock:
            self._append(row)

    def end(self, row: HistoryRow) -> SolveHistory:
        """The history, which this row ends."""
        self.row(row)
        return SolveHistory(**self._snapshot())

    def counts(self) -> PartitionCounts:
        """What was counted here, for the recorder of another process."""
        touched = np.flatnonzero((self.loads > 0) | ~np.isnan(self.first_visit))
        return PartitionCounts(touched, *(getattr(self, name)[touched] for name in _COUNTS + _TIMES))

    def take(self, worker: int, counts: PartitionCounts) -> None:
        """Take in what a worker has counted since it began, in place of what it reported before."""
        with self._lock:
            self._others[worker] = counts

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The history so far as a checkpoint keeps it, with what other workers have reported."""
        arrays = {HISTORY_PREFIX + name: array for name, array in self._snapshot().items()}
        return {**arrays, HISTORY_PREFIX + "interval": np.array(self.interval)}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], where: Path) -> None:
        """Continue the history of the checkpoint `where`; a checkpoint without one begins it anew.

        Raises
        ------
        StoreError : the history is damaged.
        """
        found = {n.removeprefix(HISTORY_PREFIX): a for n, a in arrays.items() if n.startswith(HISTORY_PREFIX)}
        if not found:
            return
        fault = _fault_of(found, self.loads.size)
        if fault is not None:
            raise StoreError(
                f"the checkpoint {where} is damaged (in its history {fault}); remove it to solve from the beginning"
            )
        self.interval = float(found["interval"])
        self._count = found["seconds"].size
        for name, rows in self._rows.items():
            rows[: self._count] = found[name]
        for name in _COUNTS + _TIMES:
            getattr(self, name)[:] = found[name]

    def _append(self, row: HistoryRow) -> None:
        seconds, last = row.seconds, self._count - 1
        if last >= 0 and seconds <= self._rows["seconds"][last]:
            seconds = float(self._rows["seconds"][last])
            if last == 0:
                seconds = float(np.nextafter(seconds, np.inf))
            else:
                self._count = last
        if self._count == MAX_ROWS:
            self._count = -(-MAX_ROWS // 2)
            for rows in self._rows.values():
                rows[: self._count] = rows[::2].copy()
            self.interval *= 2.0
        for name, value in row._replace(seconds=seconds)._asdict().items():
            self._rows[name][self._count] = (
                np.inf if math.isnan(value) else value
            )  # what is not a number proves nothing
        self._count += 1

    def _snapshot(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all arrays, other workers' counts added."""
        with self._lock:
            rows = {name: rows[: self._count].copy() for name, rows in self._rows.items()}
            others = list(self._others.values())
        return rows | self._added(others)

    def _added(self, others: Iterable[PartitionCounts]) -> dict[str, npt.NDArray[Any]]:
        total: dict[str, npt.NDArray[Any]] = {name: getattr(self, name).copy() for name in _COUNTS + _TIMES}
        for other in others:
            p = other.partitions
            for name in _COUNTS:
                total[name][p] += getattr(other, name)
            for name, best in zip(_TIMES, (np.fmin, np.fmax), strict=True):
                total[name][p] = best(total[name][p], getattr(other, name))
        return total


def _fault_of(found: Mapping[str, npt.NDArray[Any]], n_partitions: int) -> str | None:
    """What is wrong with the arrays of a history, if anything is."""
    n = found["seconds"].size if "seconds" in found else 0
    due: dict[str, tuple[tuple[int, ...], type]] = {name: ((n,), kind) for name, kind in _TYPES.items()}
    due |= dict.fromkeys(_COUNTS, ((n_partitions,), np.int64))
    due |= dict.fromkeys(_TIMES, ((n_partitions,), np.float64))
    due["interval"] = ((), np.float64)
    for name, (shape, kind) in due.items():
        array = found.get(name)
        if array is None:
            return f"it holds no {name}"
        if (array.shape, array.dtype) != (shape, np.dtype(kind)):
            return f"{name} is {array.dtype} {array.shape}, due is {np.dtype(kind)} {shape}"
    if not 1 <= n <= MAX_ROWS:
        return f"there are {n} rows, due are 1 to {MAX_ROWS}"
    seconds, interval = found["seconds"], float(found["interval"])
    if not (np.isfinite(seconds).all() and seconds[0] >= 0 and (np.diff(seconds) > 0).all()):
        return "the rows' seconds do not ascend from 0 or later"
    if not _FIRST_INTERVAL <= interval < np.inf:
        return f"rows are {interval} s apart, due are {_FIRST_INTERVAL} s at least"
    for name in (*HistoryRow._fields, *_COUNTS):
        if not (found[name] >= 0).all():
            return f"{name} is negative or not a number"
    for name in ("dirty", "resident"):
        if found[name].max() > n_partitions:
            return f"{name} is {found[name].max()} of {n_partitions} partitions"
    first, last = found["first_visit"], found["last_visit"]
    never = np.isnan(first)
    if (never != np.isnan(last)).any() or (found["visits"][never] + found["sweeps"][never]).any():
        return "visits and their times contradict each other"
    if not ((first[~never] >= 0) & (first[~never] <= last[~never]) & (last[~never] < np.inf)).all():
        return "a partition's last visit is before its first, or one is at no time of the solve"
    return None
