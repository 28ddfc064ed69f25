"""The order in which a solve visits partitions, as a sequence of pictures: numbers only, nothing is drawn.

    trace or history  ->  Visits, one after the other  ->  frames at equal numbers of visits  ->  cells of a plane

A frame has a number for each partition: how many visits ago it was last visited, how often it was visited, or the
bound on its residual. Where partitions are blocks of a grid, a cell of the plane of two axes shows the largest number
of the blocks behind it (for the order, that of the latest visit); others are folded into rows by their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import SolveHistory
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.report.cache_trace import AccessTrace
from ooc_mdp.report.maps.slices import GridAxis, plan_slices

__all__ = ["Frame", "Plane", "VisitFigure", "Visits", "block_plane", "folded_plane", "frames_of"]

VisitFigure = Literal["order", "visits", "bound"]
"""What a frame shows of each partition."""


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """The visits of one solve, in order."""

    n_partitions: int
    partition: IntArray
    """int64 [n]."""
    seconds: FloatArray
    """float64 [n], ascending."""
    bound: FloatArray | None
    """float64 [n]; the bound on the partition's residual after the visit."""
    loads: IntArray | None
    """int64 [n]; loads so far."""
    complete: bool = True
    """Whether these are all visits, not only the first and last one of each partition."""

    @staticmethod
    def of_trace(trace: AccessTrace) -> Visits:
        """The accesses of a trace that swept a partition."""
        swept = ~trace.auxiliary
        if not swept.any():
            raise OptionsError(f"the trace {trace.path} has no visit of a partition: there is nothing to animate")
        bound = np.where(np.isfinite(trace.bound[swept]), trace.bound[swept], np.nan)
        loads = np.cumsum(~trace.hit, dtype=np.int64)[swept]
        return Visits(trace.n_partitions, trace.partition[swept], trace.seconds[swept], bound, loads)

    @staticmethod
    def of_history(history: SolveHistory) -> Visits:
        """The first and the last visit of each partition."""
        times = np.concatenate([history.first_visit, history.last_visit])
        partition = np.tile(np.arange(history.loads.size), 2)
        known = np.flatnonzero(np.isfinite(times))
        if not known.size:
            raise OptionsError("no visit of a partition is recorded: there is nothing to animate; solve with --trace")
        order = known[np.argsort(times[known], kind="stable")]
        return Visits(history.loads.size, partition[order], times[order], None, None, complete=False)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture."""

    visits: int
    """Visits so far."""
    numbers: FloatArray
    """float64 [P]; NaN where there is none yet."""


def frames_of(visits: Visits, figure: VisitFigure, most: int) -> Iterator[Frame]:
    """At most so many frames, the last one after the last visit."""
    n, p = visits.partition.size, visits.n_partitions
    latest, counts, bounds = np.full(p, -1, np.int64), np.zeros(p, np.int64), np.full(p, np.nan)
    done = 0
    for stop in np.unique(np.ceil(np.linspace(0, n, min(n, most) + 1)[1:]).astype(np.int64)).tolist():
        part = visits.partition[done:stop]
        latest[part] = np.arange(done, stop)  # of several visits the last one counts
        np.add.at(counts, part, 1)
        if visits.bound is not None:
            bounds[part] = visits.bound[done:stop]
        done = stop
        found = {"order": stop - 1.0 - latest, "visits": counts.astype(np.float64), "bound": bounds}[figure]
        yield Frame(stop, np.where(latest >= 0, found, np.nan))


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """Where partitions are drawn."""

    across: FloatArray
    """float64 [w + 1]; edges of the cells."""
    up: FloatArray
    labels: tuple[str, str]
    blocks: tuple[int, ...]
    """Shape of the partitions, in C order; padded where they are folded."""
    axes: tuple[int, int]
    """Which of the blocks' axes are across and up."""

    def picture(self, numbers: FloatArray, least: bool) -> FloatArray:
        """float64 [h, w]; of the blocks behind each cell the least or largest number, NaN where all are."""
        padded = np.full(math.prod(self.blocks), np.nan)
        padded[: numbers.size] = numbers
        empty = np.inf if least else -np.inf
        behind = tuple(i for i in range(len(self.blocks)) if i not in self.axes)
        shaped = np.where(np.isnan(padded), empty, padded).reshape(self.blocks)
        found = (np.min if least else np.max)(shaped, axis=behind)
        found = found.T if self.axes[0] < self.axes[1] else found
        return np.where(np.isfinite(found), found, np.nan)


def block_plane(axes: tuple[GridAxis, ...], order: Mapping[str, Any], drawn: list[str] | None) -> Plane:
    """The plane of two axes for partitions that are blocks of the grid.

    Parameters
    ----------
    order : shape and edges, as a store's `state_order` has them.
    drawn : names of the axes across and up.

    Raises
    ------
    OptionsError : there are no such axes.
    """
    plan = plan_slices(axes, drawn)
    edges = GridOrder(order["shape"], order["edges"]).edges
    across, up = axes[plan.across], axes[plan.up]
    return Plane(
        _positions(across, edges[plan.across]),
        _positions(up, edges[plan.up]),
        (across.label, up.label),
        tuple(e.size - 1 for e in edges),
        (plan.across, plan.up),
    )


def _positions(axis: GridAxis, edges: IntArray) -> FloatArray:
    """Halfway between the last point of a block and the first of the next."""
    points = axis.positions
    half = 0.5 * float(points[1] - points[0]) if points.size > 1 else 0.5
    return np.append(points[edges[:-1]], points[-1] + 2 * half) - half


def folded_plane(n_partitions: int) -> Plane:
    """Rows of partitions by their number, in a square as far as they go."""
    width = math.isqrt(n_partitions - 1) + 1
    rows = -(-n_partitions // width)
    labels = (f"partition, in rows of {width}", "row of partitions")
    across, up = (np.arange(k + 1, dtype=np.float64) - 0.5 for k in (width, rows))
    return Plane(np.asarray(across), np.asarray(up), labels, (rows, width), (1, 0))
