"""What is known of the gain at the values as they stand: per partition, between which numbers max_a x_a lies.

    x_a(s) = r(s,a) + sum_s' p(s'|s,a) (h(s') - h(s)),      min over p of low  <=  g*(s)  <=  max over p of high

A partition that is read gets its bounds anew. Where h becomes h + d elsewhere, its x move by sum p d(s') - d(s): by no
more than the coupling lets the largest d of the partitions that it reads have of a row's mass, less the least d of its
own. So a partition whose actions other than the policy's cannot move the interval is not read again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import MIN_MASS
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling

__all__ = ["GainBounds"]

_OUTWARD = 1e-12
"""Share of the largest change by which sums of a few bounds are rounded outward."""


class GainBounds:
    """Of P partitions, of the maximisation; nothing is known at first.

    Parameters
    ----------
    coupling : largest mass that one row of a partition sends into each other.
    """

    def __init__(self, coupling: Coupling) -> None:
        count = coupling.ptr.size - 1
        self._coupling = coupling
        self._of: IntArray = np.repeat(np.arange(count), np.diff(coupling.ptr))
        self.low = np.full(count, -np.inf)
        """float64 [P]; x of the policy is at least this in every state of the partition."""
        self.high = np.full(count, np.inf)
        """float64 [P]; max_a x_a is at most this."""
        self.others = np.full(count, np.inf)
        """float64 [P]; x of the actions that are not the policy's is at most this."""

    @property
    def interval(self) -> tuple[float, float]:
        """Numbers between which the gain of every state lies."""
        return float(self.low.min()), float(self.high.max())

    @property
    def width(self) -> float:
        """Of the interval, rounded up."""
        low, high = self.interval
        return float(np.nextafter(high - low, np.inf))

    def read(self, p: int, low: float, high: float, others: float) -> None:
        """Partition p was measured over all actions."""
        self.low[p], self.high[p], self.others[p] = low, high, others

    def moved(self, least: FloatArray, largest: FloatArray) -> None:
        """Values have changed by numbers between these (float64 [P]) in each partition."""
        slack = _OUTWARD * float(max(np.abs(least).max(initial=0.0), np.abs(largest).max(initial=0.0)))
        up = self._most(largest) - least + slack
        down = self._most(-least) + largest + slack
        for bounds, change, outward in ((self.high, up, np.inf), (self.others, up, np.inf), (self.low, -down, -np.inf)):
            bounds[:] = np.nextafter(bounds + change, outward)

    def evaluated(self, low: FloatArray, high: FloatArray) -> None:
        """x of the policy lies between these in each partition, at the values after the last `moved`."""
        self.low[:] = low
        self.high[:] = np.maximum(high, self.others)

    def _most(self, change: FloatArray) -> FloatArray:
        """float64 [P]; most that a row's sum p d is where d is at most `change` in each partition.

        The coupling bounds the mass p of each partition; the largest changes get all that they may have, until the
        whole row is given away.
        """
        partitions, mass, of = self._coupling.partitions, self._coupling.mass / MIN_MASS, self._of
        order = np.lexsort((-change[partitions], of))
        given, there = mass[order], change[partitions[order]]
        before = np.cumsum(given) - given
        starts = self._coupling.ptr[:-1]
        before -= before[starts].repeat(np.diff(self._coupling.ptr))
        # What cumulative sums over all partitions lose to rounding goes to the row's largest change.
        taken = np.clip(1.0 - before, 0.0, given)
        left = np.maximum(1.0 - np.add.reduceat(taken, starts), 0.0)
        size = _OUTWARD * float(np.abs(change).max(initial=0.0)) * max(1.0, float(before.size))
        return np.asarray(np.add.reduceat(taken * there, starts) + left * there[starts] + size)


def changes_of(change: FloatArray, partition_ptr: IntArray) -> tuple[FloatArray, FloatArray]:
    """float64 [P] twice: the least and the largest change of each partition's states."""
    starts: npt.NDArray[np.int64] = partition_ptr[:-1]
    return np.minimum.reduceat(change, starts), np.maximum.reduceat(change, starts)
