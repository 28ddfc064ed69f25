"""Which resident partition is missed least: the rank by which the cache gives partitions up, where options ask for it.

Clean partitions, whose bounds are below the target, go first, the least recently used before the others; then dirty
ones, the lowest priority first. Ordering the clean by their bounds too was tried and loads two to nine times as much:
what was swept last has the lowest bound, and its neighbours are about to disturb it (docs/scheduling.md).
This module ranks; the cache evicts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.scheduling.priority import Priority
from ooc_mdp.scheduling.target import Target

__all__ = ["eviction_rank"]

_LOWEST = float(np.finfo(np.float64).min)


def eviction_rank(target: Target, priority: Priority) -> Callable[[IntArray], FloatArray]:
    """The rank for :class:`PartitionCache` that gives up the partition of lowest priority first.

    The cache breaks ties by use, so that all clean partitions are equal here.
    """

    def rank(partitions: IntArray) -> FloatArray:
        dirty = target.dirty()[partitions]
        now = priority.rank(target.levels())[partitions]
        return np.where(dirty, np.maximum(now, _LOWEST), -np.inf)  # a dirty one may rank at -inf itself

    return rank
