"""Compiled loops that update the scheduler after a visit: bounds of dependents, and ranks of partitions.

Each takes some microseconds and keeps the interpreter lock. NumPy releases the lock in every operation on more than 500
numbers and then waits for it; with a dozen reading threads the thirty or so operations of an update took half of the
solving thread's time on two GPUs (``benchmarks/notes/2026-11-several-gpus.md``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.contraction import UNIT_ROUNDOFF, UP
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.compiled import inlined, short_loop

__all__ = [
    "Accumulated",
    "Bounds",
    "Dependents",
    "Factors",
    "Residency",
    "above",
    "load_code",
    "raise_bounds",
    "rank_jointly",
    "settle_bounds",
]

_TINY = float(np.finfo(np.float64).tiny)
_UP_ONE_SUM = 1.0 + 2 * UNIT_ROUNDOFF
"""One sum is rounded up by this: a bound takes in any number of small changes, each of which might be rounded away."""


class Dependents(NamedTuple):
    """The coupling matrix w without its diagonal, by columns: whom a visit to a partition disturbs, and how much."""

    ptr: IntArray
    """int64 [P+1]; column q is entries ptr[q] .. ptr[q+1] - 1,"""
    partitions: IntArray
    """int64 [E]; of which each has a row p,"""
    mass: FloatArray
    """float64 [E]; the mass w[p,q],"""
    places: IntArray
    """int64 [E]; and a place among all entries by rows."""
    row_ptr: IntArray
    """int64 [P+1]; where rows begin there."""


class Accumulated(NamedTuple):
    """How much values that rose (0) and that fell (1) may have moved a row of each partition since its last visit.

    A row of p has at most w[p,q] of its mass in q and at most rho in all, so changes of c[p,q] since p's last visit
    move its expected value by at most min(sum_q w[p,q] c[p,q], rho max_q c[p,q]). The second is what keeps bounds
    finite where many partitions are read: each w[p,q] may come from another row.
    """

    change: FloatArray
    """float64 [2, E]; c[p,q], by rows."""
    sum: FloatArray
    """float64 [2, P]; of w[p,q] c[p,q]."""
    largest: FloatArray
    """float64 [2, P]; of c[p,q]."""


class Factors(NamedTuple):
    """Of `ooc_mdp.model.contraction.Contraction`; each float64 [P]."""

    discount: FloatArray
    row_sum: FloatArray
    normaliser: FloatArray


class Bounds(NamedTuple):
    """Bounds on the residuals of each partition, rows as in `ooc_mdp.backends.base.RESIDUALS`; each float64 [4, P]."""

    present: FloatArray
    """At the present values."""
    settled: FloatArray
    """As the last visit left them."""


@short_loop
def raise_bounds(q, rise, fall, dependents, accumulated, factors, bounds):
    """Boundary values of partitions q rose and fell by so much at most: raise the bounds of those that read them."""
    for i in range(q.size):
        changes = (rise[i], fall[i])
        if changes[0] == 0.0 and changes[1] == 0.0:
            continue
        for k in range(dependents.ptr[q[i]], dependents.ptr[q[i] + 1]):
            p, place = dependents.partitions[k], dependents.places[k]
            for side in range(2):
                change = (accumulated.change[side, place] + changes[side]) * _UP_ONE_SUM
                accumulated.change[side, place] = change
                moved = dependents.mass[k] * changes[side] * UP
                accumulated.sum[side, p] = (accumulated.sum[side, p] + moved) * _UP_ONE_SUM
                if not change <= accumulated.largest[side, p]:
                    accumulated.largest[side, p] = change
                flowed, most = accumulated.sum[side, p], factors.row_sum[p] * accumulated.largest[side, p]
                if most < flowed:  # never where what flowed is not a number: then nothing is proved
                    flowed = most
                plain = factors.discount[p] * UP * flowed
                bounds.present[side, p] = _grown(bounds.settled[side, p], plain * factors.normaliser[p])
                bounds.present[2 + side, p] = _grown(bounds.settled[2 + side, p], plain)


@inlined
def _grown(bound, by):
    """A bound, of either sign, after it has grown."""
    total = bound + by
    return total + abs(total) * (_UP_ONE_SUM - 1.0)


@short_loop
def settle_bounds(p, residuals, share, dependents, accumulated, bounds):
    """Bounds of partitions p are `residuals` (float64 [4, k]), raised by a share of their size."""
    for i in range(p.size):
        q = p[i]
        for j in range(4):
            bound = residuals[j, i]
            if share > 0.0:
                bound += abs(bound) * share
            bounds.present[j, q] = bounds.settled[j, q] = bound
        if accumulated.largest[0, q] != 0.0 or accumulated.largest[1, q] != 0.0:
            for side in range(2):
                accumulated.sum[side, q] = accumulated.largest[side, q] = 0.0
                for place in range(dependents.row_ptr[q], dependents.row_ptr[q + 1]):
                    accumulated.change[side, place] = 0.0


@short_loop
def above(bounds, plain, rounding, target):
    """bool [P]; whether the bound, plain or normalised, is above a target, rounding included; what is no number is."""
    rise, fall = 2 * plain, 2 * plain + 1
    found = np.empty(bounds.present.shape[1], np.bool_)
    for p in range(found.size):
        met = bounds.present[rise, p] + rounding <= target and bounds.present[fall, p] + rounding <= target
        found[p] = not met
    return found


class Residency(NamedTuple):
    """Whom each partition reads, and how many of its dependents are resident."""

    ptr: IntArray
    """int64 [P+1]; partition p reads read[ptr[p]] .. read[ptr[p+1] - 1]."""
    read: IntArray
    counted: npt.NDArray[np.bool_]
    """bool [P]; whose residency is counted."""
    resident: FloatArray
    """float64 [P]; resident dependents of each,"""
    share: FloatArray
    """float64 [P]; and what one of them is of all."""


@short_loop
def rank_jointly(residual, present, visited, residency, power, far, alone):
    """float64 [P]; the rank of `ooc_mdp.scheduling.priority.Joint`, which says what the numbers are."""
    largest = 0.0
    for p in range(residual.size):
        if present[p] != residency.counted[p]:
            residency.counted[p] = present[p]
            for k in range(residency.ptr[p], residency.ptr[p + 1]):
                residency.resident[residency.read[k]] += 1.0 if present[p] else -1.0
        if np.isfinite(residual[p]):
            largest = max(largest, residual[p])
    largest = max(largest, _TINY)
    rank = np.empty(residual.size)
    for p in range(residual.size):
        if visited[p]:
            urgency = min(residual[p] / largest, 1.0) ** power
        else:
            urgency = 1.0 - far / (far + residual[p])
        rank[p] = urgency * (alone + residency.resident[p] * residency.share[p])
    return rank


def load_code() -> None:
    """Call each loop on one partition."""
    one, number, flags = np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.bool_)
    ends, rows = np.zeros(2, np.int64), np.zeros((4, 1))
    dependents = Dependents(ends, one[:0], number[:0], one[:0], ends)
    accumulated = Accumulated(np.zeros((2, 0)), np.zeros((2, 1)), np.zeros((2, 1)))
    bounds = Bounds(rows, rows.copy())
    raise_bounds(one, number, number, dependents, accumulated, Factors(number, number, number), bounds)
    settle_bounds(one, rows.copy(), 0.0, dependents, accumulated, bounds)
    above(bounds, False, 0.0, 0.0)
    rank_jointly(number, flags, flags, Residency(ends, one[:0], flags.copy(), number, number), 0.2, 1.0, 0.01)
