"""New numbers of a grid's states, computed on a CUDA device; GridOrder.to_store is the reference, line by line.

Stock CuPy operations over whole arrays: about ten for each axis, of 8 bytes a state each. Tables recomputed on a device
are numbered by it, so that rows need not come to the host to become a partition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc_mdp.model.mdp import IntArray

__all__ = ["GridNumbers"]


class GridNumbers:
    """A grid cut into blocks.

    Parameters
    ----------
    device : CuPy's CUDA device.
    shape : points along each axis, in C order.
    edges : for each axis, int64: where its blocks begin, and its length at the end.
    partition_ptr : int64 [P+1].
    """

    def __init__(
        self, device: Any, shape: tuple[int, ...], edges: tuple[IntArray, ...], partition_ptr: IntArray
    ) -> None:
        import cupy

        self.device = device
        """The CUDA device."""
        with self.device:
            self._first = cupy.asarray(partition_ptr)
            self._axes = [
                (
                    math.prod(shape[i + 1 :]),
                    e.size - 1,
                    cupy.asarray(np.repeat(np.arange(e.size - 1), np.diff(e))),
                    cupy.asarray(e),
                    cupy.asarray(np.diff(e)),
                )
                for i, e in enumerate(edges)
            ]

    def to_store(self, states: Any) -> Any:
        """New numbers (int64) of flat grid indices (int64), both on the device."""
        partition: Any = 0
        inside: Any = 0
        rest = states
        with self.device:
            for stride, blocks, block_of, edges, widths in self._axes:
                x = rest // stride
                rest = rest - x * stride
                block = block_of[x]
                partition = partition * blocks + block
                inside = inside * widths[block] + (x - edges[block])
            return self._first[partition] + inside
