"""Which device of a group owns each partition, and the order in which their states and tiles lie in memory.

    store order     0  1  2  3  4  5      owner  0 1 0 1 0 1
    device order    0  2  4 | 1  3  5     each device's partitions follow each other, in store order

A device loads, sweeps and reports its own partitions; values and what is kept for each tile are in device order, so
that each device's part is one piece of a spread allocation. With one device, device order is store order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray

__all__ = ["Division"]


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Of P partitions among the devices of a group."""

    owner: npt.NDArray[np.uint8]
    """uint8 [P]; number of the device in its group."""
    order: IntArray
    """int64 [P]; the partitions in device order."""
    first: IntArray
    """int64 [P]; first state of each partition in device order."""
    stored: IntArray
    """int64 [P]; the same in store order."""
    runs: IntArray
    """int64 [r]; first states, in store order, of the longest runs that follow each other in both orders."""
    shifts: IntArray
    """int64 [r]; what makes a state's number in store order that in device order."""
    devices: int

    @classmethod
    def of(cls, owner: IntArray, sizes: IntArray, devices: int) -> Division:
        """Partitions of so many states (int64 [P]), each with its owner, a number below `devices`."""
        order = np.argsort(owner, kind="stable")
        first, stored = _starts(order, sizes), np.cumsum(sizes) - sizes
        begins = np.flatnonzero(np.diff(first - stored, prepend=-1))
        return cls(owner.astype(np.uint8), order, first, stored, stored[begins], (first - stored)[begins], devices)

    @classmethod
    def choose(cls, facts: ModelFacts, devices: int) -> Division:
        """Contiguous for strongly coupled models, so that device order is store order, else cyclic."""
        return cls.contiguous(facts, devices) if facts.strongly_coupled else cls.cyclic(facts, devices)

    @classmethod
    def cyclic(cls, facts: ModelFacts, devices: int) -> Division:
        """Neighbouring partitions on different devices, so that a wave of information gives work to all of them.

        On a grid of partitions each row is dealt out in turn, and begins one device further than the row before, or two
        after as many rows as there are devices, so that diagonals meet all devices, too. Without a grid partitions are
        dealt out by their numbers. Then single partitions change hands until bytes are balanced.
        """
        grid = facts.partition_grid or (facts.n_partitions,)
        *rows, last = np.indices(grid).reshape(len(grid), -1)
        turn = last + sum(row + row // devices for row in rows)
        return cls.of(_balanced(turn % devices, facts.partition_bytes, devices), _sizes(facts), devices)

    @classmethod
    def contiguous(cls, facts: ModelFacts, devices: int) -> Division:
        """Ranges in store order, cut where bytes come nearest to equal parts; none is empty if partitions suffice."""
        parts = min(devices, facts.n_partitions)
        before = np.concatenate([[0], np.cumsum(facts.partition_bytes)])
        cuts = [0]
        for k in range(1, parts):
            nearest = int(np.abs(before - before[-1] * (k / parts)).argmin())
            cuts.append(min(max(nearest, cuts[-1] + 1), facts.n_partitions - (parts - k)))
        owner = np.repeat(np.arange(parts), np.diff([*cuts, facts.n_partitions]))
        return cls.of(owner, _sizes(facts), devices)

    @property
    def reordered(self) -> bool:
        """Whether device order is not store order."""
        return bool((np.diff(self.order) < 0).any())

    def starts(self, sizes: IntArray) -> IntArray:
        """int64 [P]; where each partition begins in device order, if partitions have so many states, tiles or bytes."""
        return _starts(self.order, sizes)

    def shares(self, sizes: IntArray) -> IntArray:
        """int64 [devices]; the sum of such sizes over the partitions of each device."""
        return np.array([int(sizes[self.owner == device].sum()) for device in range(self.devices)], np.int64)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Runs of states that follow each other in both orders: first in store order, first in device order, number.

        Parameters
        ----------
        begin, end : states, in store order, that they make up.
        """
        run = int(np.searchsorted(self.runs, begin, side="right")) - 1
        while begin < end:
            stop = end if run + 1 == self.runs.size else min(end, int(self.runs[run + 1]))
            yield begin, begin + int(self.shifts[run]), stop - begin
            begin, run = stop, run + 1

    def members(self, partitions: IntArray) -> list[IntArray]:
        """For each device, the places in a list of partitions of those that it owns."""
        owner = self.owner[partitions]
        return [np.flatnonzero(owner == device) for device in range(self.devices)]


def _sizes(facts: ModelFacts) -> IntArray:
    return np.diff(facts.partition_ptr)


def _starts(order: IntArray, sizes: IntArray) -> IntArray:
    starts = np.empty_like(sizes)
    starts[order] = np.cumsum(sizes[order]) - sizes[order]
    return starts


def _balanced(owner: IntArray, sizes: IntArray, devices: int) -> IntArray:
    """Owners once partitions have gone from the fullest device to the emptiest while it evens them out."""
    owner = owner.copy()
    bytes_of = np.bincount(owner, sizes, devices)
    while True:
        most, least = int(bytes_of.argmax()), int(bytes_of.argmin())
        gap = bytes_of[most] - bytes_of[least]
        movable = np.flatnonzero((owner == most) & (sizes > 0) & (sizes < gap))
        if not movable.size:
            return owner
        chosen = movable[np.abs(sizes[movable] - gap / 2).argmin()]
        owner[chosen] = least
        bytes_of[most] -= sizes[chosen]
        bytes_of[least] += sizes[chosen]
