"""How the rows of all partitions are divided among the devices of a group: whole partitions, one range for each device.

    partitions, in the order of states    0  1  2  3  4 | 5  6  7  8  9 | ...
    devices, with about as many bytes           0       |       1       | ...

Each device adds up its own states, and sums over all of them are those of the devices, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_mdp.model.mdp import IntArray

__all__ = ["RowParts"]


@dataclass(frozen=True, slots=True, eq=False)
class RowParts:
    """Of the rows of P partitions."""

    order: IntArray
    """int64 [P]; the partitions in the order of their states on the devices."""
    ptr: IntArray
    """int64 [devices + 1]; places in `order` at which each device's partitions begin."""

    @classmethod
    def of(cls, first: IntArray, nbytes: IntArray, devices: int) -> RowParts:
        """Parts of partitions with so many bytes of rows.

        Parameters
        ----------
        first : int64 [P]; the first state of each partition on the devices.
        nbytes : int64 [P].
        """
        order = np.argsort(first, kind="stable")
        before = np.concatenate([[0], np.cumsum(nbytes[order])])
        aims = before[-1] * np.arange(devices + 1) / devices
        ptr = np.abs(before[None, :] - aims[:, None]).argmin(axis=1)
        ptr[0], ptr[-1] = 0, order.size
        return cls(order, ptr)

    @property
    def devices(self) -> int:
        """Of the group."""
        return self.ptr.size - 1

    def ends(self, sizes: IntArray) -> tuple[int, ...]:
        """Where each device's part ends of what lies in that order and takes so much of each partition (int64 [P])."""
        return tuple(self._before(sizes)[self.ptr[1:]].tolist())

    def begins(self, sizes: IntArray) -> IntArray:
        """int64 [devices + 1]; where each device's part begins of the same, and the end of the last."""
        return self._before(sizes)[self.ptr]

    def starts(self, sizes: IntArray) -> IntArray:
        """int64 [P]; where each partition's part begins of the same."""
        starts = np.empty_like(sizes)
        starts[self.order] = np.cumsum(sizes[self.order]) - sizes[self.order]
        return starts

    def _before(self, sizes: IntArray) -> IntArray:
        return np.concatenate([[0], np.cumsum(sizes[self.order])])
