"""How the rows of all partitions are divided: into shares, whose sums are added up by themselves, and among devices.

    partitions, in the order of states    0  1  2 | 3  4 | 5  6  7 | 8 ...
    shares, of about as many bytes            0   |   1  |    2    | ...     the same for groups of any size
    devices                                   0          |         1 ...     whole shares each

A sum over all states is that of the shares' sums, in their order, and so the same on groups of any size. One device has
one share: more of them cost its kernels up to 30%. Arithmetic only; `policy/krylov.cu` adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_mdp.model.mdp import IntArray

__all__ = ["RowShares"]

SHARES = 24
"""Of a large model on a group: a multiple of 2, 3, 4, 6 and 8."""
MIN_CHUNKS = 1024
"""Of a share on average; smaller models are one share, since each takes every block some microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class RowShares:
    """Of the rows of P partitions."""

    order: IntArray
    """int64 [P]; the partitions in the order of their states on the devices."""
    ptr: IntArray
    """int64 [shares + 1]; places in `order` at which shares begin."""
    device_ptr: IntArray
    """int64 [devices + 1]; the first share of each device."""

    @classmethod
    def of(cls, first: IntArray, nbytes: IntArray, chunks: int, devices: int) -> RowShares:
        """Shares of partitions with so many bytes of rows.

        Parameters
        ----------
        first : int64 [P]; the first state of each partition on the devices.
        nbytes : int64 [P].
        chunks : of all of them.
        """
        order = np.argsort(first, kind="stable")
        shares = SHARES if devices > 1 and chunks >= SHARES * MIN_CHUNKS else 1
        before = np.concatenate([[0], np.cumsum(nbytes[order])])
        aims = before[-1] * np.arange(shares + 1) / shares
        ptr = np.abs(before[None, :] - aims[:, None]).argmin(axis=1)
        ptr[0], ptr[-1] = 0, order.size
        return cls(order, ptr, -(-shares * np.arange(devices + 1) // devices))

    @property
    def devices(self) -> int:
        """Of the group."""
        return self.device_ptr.size - 1

    def ends(self, sizes: IntArray) -> tuple[int, ...]:
        """Where each device's part ends of what lies in that order and takes so much of each partition (int64 [P])."""
        before = np.concatenate([[0], np.cumsum(sizes[self.order])])
        return tuple(before[self.ptr[self.device_ptr[1:]]].tolist())

    def starts(self, sizes: IntArray) -> IntArray:
        """int64 [P]; where each partition's part begins of the same."""
        starts = np.empty_like(sizes)
        starts[self.order] = np.cumsum(sizes[self.order]) - sizes[self.order]
        return starts

    def chunk_ptr(self, chunks: IntArray) -> IntArray:
        """int64 [shares + 1]; numbers of the chunks at which shares begin; `chunks` (int64 [P]) of each partition."""
        return np.concatenate([[0], np.cumsum(chunks[self.order])])[self.ptr]
