"""P-EVA (Wingate 2004, chapter 5) over bounds in RAM, resident partitions first.

Dirty partitions (R[p] above the target) that are in the cache cost no transfer, so they are swept first, in order of
priority; only when all of them are quiet is the best absent one brought in. While a partition is swept, the best
absent dirty one is read ahead, into room that no dirty resident one needs. No partition is read to be ranked.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.solve.run import Run

__all__ = ["p_eva"]

_MOST_SWEEPS = 100
"""Sweeps of one access: a bound on how long a limit or a signal waits, and on work with stale halo values."""


def p_eva(run: Run) -> None:
    """Process partitions by priority until none is dirty; raises StoppedEarly."""
    present = run.cache.present
    run.refresh_target()
    while not run.target.reached():
        run.stager.take_over()
        dirty = run.target.dirty()
        rank = run.priority.rank(run.target.levels())
        here = np.flatnonzero(dirty & present)
        if here.size:
            partition = int(here[np.argmax(rank[here])])
            _read_ahead(run, rank, np.flatnonzero(dirty & ~present), dirty)
        else:
            candidates = np.asarray([p for p in run.stager.under_way() if dirty[p]] or np.flatnonzero(dirty))
            partition = int(candidates[np.argmax(rank[candidates])])
        run.sweep(partition, most=_MOST_SWEEPS)
        run.tick()


def _read_ahead(run: Run, rank: np.ndarray, absent: np.ndarray, dirty: np.ndarray) -> None:  # type: ignore[type-arg]
    """Start to load the best absent dirty partition, unless one is on its way already."""
    if absent.size and not run.stager.under_way():
        best = int(absent[np.argmax(rank[absent])])
        run.stager.prefetch(best, lambda p: bool(dirty[p]))
