"""Which partitions are worked on for now, of all that are resident.

A change goes through a table partition by partition. Where all dirty residents were swept together, those that it
reaches last would be swept again and again at values that do not hold yet: a mountain car of 2000 x 2000 states took
two to five times the backups with its whole table cached, or most of it, that it took with a cache of 15%, whose size
had confined the work. Where a device swept those with the largest bounds, each batch went on to other partitions before
these had converged, and a car of 784 million states took twice the backups. So what is worked on stays until it has
converged, and only then makes room for the next by priority (figures: ``benchmarks/notes/2026-11-cpu-engine.md`` and
``2026-11-gpu-engine.md``). Wingate's meta-partitions (2004, section 5.3) are fixed sets of the same purpose.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray

__all__ = ["WorkingSet"]


class WorkingSet:
    """Partitions that are worked on; they are resident.

    Parameters
    ----------
    present : bool [P]; which partitions are resident; read whenever some are chosen.
    size : partitions that it has at most; P confines nothing.
    """

    def __init__(self, present: npt.NDArray[np.bool_], size: int) -> None:
        self._present, self.size = present, size
        self.members = np.zeros(present.size, np.bool_)
        """bool [P]; which partitions are worked on. Those that have converged stay until others need their place, or
        they are evicted: what reads them, and what they read, is the next to be worked on."""
        self._last = np.zeros(present.size, np.int64)
        """int64 [P]; when each was last chosen."""
        self._choices = 0

    def choose(self, dirty: IntArray, by_priority: Callable[[IntArray, npt.NDArray[np.bool_]], IntArray]) -> IntArray:
        """The dirty partitions that are worked on now: members, and in place of clean ones the most urgent others.

        Parameters
        ----------
        dirty : int64 [k], ascending; residents whose bound is above the target.
        by_priority : brings partitions into the order of their priorities, where only those of an array, bool [P],
            count as resident: the members.
        """
        if self.size >= self.members.size:
            return dirty
        self.members &= self._present
        unfinished = self.members[dirty]
        is_clean = self.members.copy()
        is_clean[dirty] = False
        clean = np.flatnonzero(is_clean)
        new = by_priority(dirty[~unfinished], self.members)[: self.size - int(unfinished.sum())]
        leaving = max(0, int(unfinished.sum()) + clean.size + new.size - self.size)
        self.members[clean[np.argsort(self._last[clean], kind="stable")][:leaving]] = False
        self.members[new] = True
        chosen = dirty[self.members[dirty]]
        self._choices += 1
        self._last[chosen] = self._choices
        return chosen
