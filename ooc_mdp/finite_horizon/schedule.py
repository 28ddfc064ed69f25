"""Which partition does a stage next: several stages for each load, where what partitions read is near in an order.

    a partition may do a stage once no neighbour (that it reads, or that reads it) has done fewer stages than it has

Neighbours are then a stage apart at most, and two value vectors, by the parity of the stages done, hold all that is
still read. In an order in which neighbours are at most b places apart, a pass of w stages goes along the order and lets
the place i do its first stage, i - b its second, i - 2b its third: each partition is resident for (w - 1) b + 1 steps
and loaded once for w stages (skewed stages: Wolf and Lam 1991; Frigo and Strumpen 2005). This module plans, and loads
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import Coupling

__all__ = ["Schedule", "Step", "plan_schedule"]


class Step(NamedTuple):
    """One partition does one stage."""

    place: int
    """In the order of the pass."""
    partition: int
    done: int
    """Stages that it has done before."""
    last: bool
    """Whether it is the last of this pass."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order of the partitions, how far apart neighbours are in it, and how many stages a pass takes."""

    order: IntArray
    """int64 [P]."""
    bandwidth: int
    """Most places between two neighbours, 1 at least."""
    stages: int
    """Of a pass, at most."""

    def passes(self, done: IntArray, stages: int) -> Iterator[tuple[IntArray, Iterator[Step]]]:
        """The passes until all partitions have done all stages, in turns from either end: a cache keeps what is last.

        Parameters
        ----------
        done : int64 [P], which the caller counts on: stages that each partition has done.
        stages : that each is to do.

        Yields
        ------
        order of the partitions in the pass, and its steps
        """
        forwards = True
        while (base := int(done.min())) < stages:
            order = self.order if forwards else self.order[::-1]
            forwards = not forwards
            yield order, _steps(order, self.bandwidth, done, base, min(self.stages, stages - base))


def _steps(order: IntArray, bandwidth: int, done: IntArray, base: int, depth: int) -> Iterator[Step]:
    """The steps of one pass from `base` on; those that were done before, by a run that was stopped, are left out."""
    for front in range(order.size + (depth - 1) * bandwidth):
        for stage in range(depth):
            place = front - stage * bandwidth
            if not 0 <= place < order.size:
                continue
            p = int(order[place])
            if done[p] == base + stage:
                yield Step(place, p, base + stage, stage == depth - 1)


def plan_schedule(
    coupling: Coupling, sizes: IntArray, budget: int, ahead: int, stages: int, grid: tuple[int, ...] | None = None
) -> Schedule:
    """The schedule of most stages for each load that a cache allows.

    Parameters
    ----------
    sizes : int64 [P]; bytes of each partition in the cache.
    budget : bytes of the cache.
    ahead : partitions that are read while another works.
    stages : of the horizon.
    grid : partitions along each axis, where they are blocks of a grid numbered in C order.
    """
    found = [(_bandwidth(coupling, order), i, order) for i, order in enumerate(_orders(coupling, grid))]
    bandwidth, _, order = min(found, key=lambda each: each[:2])
    most = 1
    total = np.concatenate([[0], np.cumsum(sizes[order])])
    while most < stages and _window(total, most * bandwidth + 1 + ahead) <= budget:
        most += 1
    return Schedule(order, bandwidth, most)


def _window(total: IntArray, places: int) -> int:
    """Most bytes of so many places of an order that are next to each other."""
    places = min(places, total.size - 1)
    return int((total[places:] - total[: total.size - places]).max())


def _orders(coupling: Coupling, grid: tuple[int, ...] | None) -> list[IntArray]:
    """Orders in which neighbours may be near: along each axis of a grid, and breadth first from a far end."""
    n_partitions = coupling.ptr.size - 1
    blocks = np.arange(n_partitions).reshape(grid or (n_partitions,))
    orders = [np.moveaxis(blocks, axis, 0).ravel() for axis in range(blocks.ndim)]
    neighbours = _neighbours(coupling)
    reached = _breadth_first(neighbours, 0)
    if reached.size < n_partitions:  # in parts that know nothing of each other
        return orders
    return [*orders, _breadth_first(neighbours, int(reached[-1]))]


def _neighbours(coupling: Coupling) -> list[IntArray]:
    """For each partition those that it reads and those that read it, by their number of neighbours."""
    rows = np.repeat(np.arange(coupling.ptr.size - 1), np.diff(coupling.ptr))
    ends = np.stack([np.concatenate([rows, coupling.partitions]), np.concatenate([coupling.partitions, rows])])
    ends = np.unique(ends, axis=1)
    ptr = np.searchsorted(ends[0], np.arange(coupling.ptr.size))
    degree = np.diff(ptr)
    each = [ends[1, ptr[p] : ptr[p + 1]] for p in range(ptr.size - 1)]
    return [near[np.argsort(degree[near], kind="stable")] for near in each]


def _breadth_first(neighbours: list[IntArray], start: int) -> IntArray:
    """The partitions that are reached from one, nearest first (Cuthill and McKee 1969)."""
    seen = np.zeros(len(neighbours), np.bool_)
    seen[start] = True
    order = [start]
    for p in order:
        for q in neighbours[p].tolist():
            if not seen[q]:
                seen[q] = True
                order.append(q)
    return np.array(order, np.int64)


def _bandwidth(coupling: Coupling, order: IntArray) -> int:
    """Most places between a partition and one that it reads, 1 at least."""
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    rows = np.repeat(np.arange(coupling.ptr.size - 1), np.diff(coupling.ptr))
    return max(1, int(np.abs(place[rows] - place[coupling.partitions]).max()))
