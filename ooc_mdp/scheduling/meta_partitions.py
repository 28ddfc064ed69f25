"""Meta-partitions: neighbouring partitions that a priority ranks as one (Wingate 2004, sections 5.3 and 11.1).

The thesis asks for clusters of highly interdependent states that depend weakly on each other, and names no rule that
finds them. Here they are boxes of the partition grid where the states are a grid, and else runs of consecutive
partitions, which is the order in which the states came. An axis of b partitions is cut into about sqrt(b) pieces, so
that there are about as many meta-partitions as partitions in each:

    grid of 5 x 4 partitions      0  0  1  1
    (2 pieces along each axis)    0  0  1  1
                                  0  0  1  1
                                  2  2  3  3
                                  2  2  3  3
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ooc_mdp.model.mdp import IntArray

__all__ = ["meta_partitions"]


def meta_partitions(n_partitions: int, grid: Sequence[int] | None) -> IntArray:
    """int64 [P]: number of the meta-partition of each partition, 0 .. M-1.

    Parameters
    ----------
    grid : partitions along each axis, in C order; None where the states are no grid: then they are one axis.
    """
    found = np.zeros(n_partitions, np.int64)
    places = np.unravel_index(np.arange(n_partitions), tuple(grid or (n_partitions,)))
    for along, length in zip(places, grid or (n_partitions,), strict=True):
        pieces = max(1, round(math.sqrt(length)))
        found = found * pieces + along * pieces // length
    return found
