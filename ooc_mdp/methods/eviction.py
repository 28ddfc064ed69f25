"""Which resident partition is missed least: the rank by which the cache gives partitions up, where options ask for it.

Clean partitions, whose bounds are below the target, go before dirty ones, and of either kind the lowest first: of the
clean by their bounds, which say how little is missing until they are dirty again; of the dirty by the priority by which
they would be brought back. This module ranks; the cache evicts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.methods.target import Target
from ooc_mdp.priority import Priority

__all__ = ["eviction_rank"]


def eviction_rank(target: Target, priority: Priority) -> Callable[[IntArray], FloatArray]:
    """The rank for :class:`~ooc_mdp.cache.PartitionCache` that gives up the partition of lowest priority first."""

    def rank(partitions: IntArray) -> FloatArray:
        levels = target.levels()
        dirty = target.dirty()[partitions]
        key = np.where(dirty, priority.rank(levels)[partitions], levels[partitions])
        place = np.empty(partitions.size)
        place[np.lexsort((key, dirty))] = np.arange(partitions.size)
        return place

    return rank
