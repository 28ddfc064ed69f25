"""`GridOrder.to_store` as a compiled loop over states; the NumPy version is its reference.

On a grid of 1500 x 1500 points NumPy takes 47 ns per state, in several passes that hold the interpreter's lock in
between; the compiled loop takes 17 ns, in one pass that releases it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.runtime.compiled import loop

__all__ = ["CompiledGridOrder"]


class CompiledGridOrder(GridOrder):
    """A GridOrder whose `to_store` is compiled."""

    def __init__(self, shape: Sequence[int], edges: Sequence[Sequence[int]]) -> None:
        super().__init__(shape, edges)
        # The block of each coordinate, and the edges of blocks, concatenated axis by axis.
        self._shape = np.array(self.shape, np.int64)
        self._blocks_of = np.concatenate(self._block_of)
        self._edges = np.concatenate(self.edges)

    def to_store(self, states: IntArray) -> IntArray:
        """New numbers of flat grid indices."""
        return _to_store(states, self._shape, self._blocks_of, self._edges, self.partition_ptr)


@loop
def _to_store(
    states: IntArray, shape: IntArray, blocks_of: IntArray, edges: IntArray, partition_ptr: IntArray
) -> IntArray:
    out = np.empty(states.size, np.int64)
    n_axes = shape.size
    for i in range(states.size):
        rest = states[i]
        partition, inside = 0, 0
        n_blocks, n_inside = 1, 1
        axis_end, edges_end = blocks_of.size, edges.size
        # From the last axis, whose index is the remainder; strides of blocks and states grow on the way.
        for axis in range(n_axes - 1, -1, -1):
            n = shape[axis]
            axis_end -= n
            x = rest % n
            rest //= n
            block = blocks_of[axis_end + x]
            blocks = blocks_of[axis_end + n - 1] + 1
            edges_end -= blocks + 1
            begin = edges[edges_end + block]
            inside += (x - begin) * n_inside
            n_inside *= edges[edges_end + block + 1] - begin
            partition += block * n_blocks
            n_blocks *= blocks
        out[i] = partition_ptr[partition] + inside
    return out
