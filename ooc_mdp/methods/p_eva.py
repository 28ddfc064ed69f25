"""P-EVA (Wingate 2004, chapter 5) over bounds in RAM, resident partitions first.

Dirty partitions (R[p] above the target) that are in the cache cost no transfer, so they are swept first, a few sweeps
at a time, largest bound first; only when all of them are quiet is the best absent one, by the priority, brought in.
No partition is read to be ranked.

Two things that look like savings and are none, counted on a 256x256 gridworld of 4 successors, cache 22%, in loads a
partition: reading ahead whenever a thread is idle (H1 14, H2 53, against 1.5 and 1.7), because what is read early is
swept early, with values that do not hold, and disturbs its neighbours; and taking the best partition whether it is
resident or not (H1 16, H2 2.0). So reading ahead begins with the last dirty resident partition.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.methods.run import Run

__all__ = ["p_eva"]

_MOST_SWEEPS = 5
"""Sweeps of one access; more of them work on values that neighbours are about to change."""


def p_eva(run: Run) -> None:
    """Process partitions by priority until none is dirty; raises StoppedEarly."""
    present = run.cache.present
    run.refresh_target()
    while not run.target.reached():
        run.stager.take_over()
        levels = run.target.levels()
        dirty = run.target.dirty()
        here = np.flatnonzero(dirty & present)
        if here.size:
            partition = int(here[np.argmax(levels[here])])
            if here.size == 1:
                _read_ahead(run, run.priority.rank(levels), np.flatnonzero(dirty & ~present), partition)
        else:
            rank = run.priority.rank(levels)
            candidates = np.asarray([p for p in run.stager.under_way() if dirty[p]] or np.flatnonzero(dirty))
            partition = int(candidates[np.argmax(rank[candidates])])
        run.sweep(partition, most=_MOST_SWEEPS)
        run.tick()


def _read_ahead(run: Run, rank: FloatArray, absent: IntArray, in_use: int) -> None:
    """Start to load the best absent dirty partition, unless one is on its way already."""
    if absent.size and not run.stager.under_way():
        best = int(absent[np.argmax(rank[absent])])
        run.stager.prefetch(best, lambda p: p == in_use)
