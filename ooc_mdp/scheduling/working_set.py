"""Which partitions are worked on for now, where the cache holds many more.

A change goes through a table partition by partition. Where all dirty residents were swept together, those that it
reaches last would be swept again and again at values that do not hold yet: a mountain car of 2000 x 2000 states took
two to five times the backups with its whole table cached, or most of it, that it took with a cache of 15%, whose size
had confined the work. So it is confined here as well: what is worked on stays until it has converged, and only then
makes room for the next by priority (figures: ``benchmarks/notes/2026-11-cpu-engine.md``). Wingate's meta-partitions
(2004, section 5.3) are fixed sets of the same purpose.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray

__all__ = ["WorkingSet"]

_SHARE = 8
"""Of all partitions, one in so many is worked on."""
_LEAST = 8
"""Partitions that are worked on at least."""


class WorkingSet:
    """Partitions that are worked on; they are resident.

    Parameters
    ----------
    present : bool [P]; which partitions are resident; read whenever some are chosen.
    most : partitions that can be swept together.
    threads : that sweep them; each should have two.
    """

    def __init__(self, present: npt.NDArray[np.bool_], most: int, threads: int) -> None:
        self._present, n_partitions = present, present.size
        self.size = min(most, max(n_partitions // _SHARE, _LEAST, 2 * threads))
        """Partitions that it has at most."""
        self.members = np.zeros(n_partitions, np.bool_)
        """bool [P]; which partitions are worked on. Those that have converged stay until others need their place, or
        they are evicted: what reads them, and what they read, is the next to be worked on."""
        self._last = np.zeros(n_partitions, np.int64)
        """int64 [P]; when each was last chosen."""
        self._choices = 0

    def choose(self, dirty: IntArray, by_priority: Callable[[IntArray], IntArray]) -> IntArray:
        """The dirty partitions that are worked on now: members, and in place of clean ones the most urgent others.

        Parameters
        ----------
        dirty : int64 [k], ascending; residents whose bound is above the target.
        by_priority : brings partitions into the order of their priorities, for which members alone count as resident.
        """
        self.members &= self._present
        unfinished = self.members[dirty]
        is_clean = self.members.copy()
        is_clean[dirty] = False
        clean = np.flatnonzero(is_clean)
        new = by_priority(dirty[~unfinished])[: self.size - int(unfinished.sum())]
        leaving = max(0, int(unfinished.sum()) + clean.size + new.size - self.size)
        self.members[clean[np.argsort(self._last[clean], kind="stable")][:leaving]] = False
        self.members[new] = True
        chosen = dirty[self.members[dirty]]
        self._choices += 1
        self._last[chosen] = self._choices
        return chosen
