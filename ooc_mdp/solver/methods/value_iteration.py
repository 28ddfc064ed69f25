"""Value iteration, streamed: every partition swept once a pass, the next ones read meanwhile.

Passes run in alternating directions, so that a cache of c bytes saves c bytes of each pass; a one-way scan under LRU
would save nothing. Sweeps are in place: a pass uses what it has just changed.

With more than one sweep per visit (block Gauss-Seidel over partitions) information crosses a partition in one visit
instead of one pass per state, and passes leave out partitions whose bounds meet the target. On the double pendulum,
whose partitions are too strongly coupled for priorities to help, 8 sweeps per visit took a quarter of the passes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.solver.driver import Steps
from ooc_mdp.solver.state import SolveState

__all__ = ["awaited_together", "in_order", "value_iteration"]


def value_iteration(s: SolveState, order: IntArray | None = None) -> Steps:
    """Sweep the table, or what of it is dirty where a visit makes several sweeps, pass after pass."""
    order = np.arange(s.table.n_partitions) if order is None else order
    sweeps = s.plan.options.sweeps_per_visit
    while True:
        for batch in in_order(s, order, s.backend.features.sweep_batch, skip_clean=sweeps > 1):
            with s.access(batch) as access:
                limits = s.limits(batch, sweeps, settle=sweeps > 1)
                s.record(access, s.backend.sweep(access.residents, limits).report())
            yield
        order = order[::-1]


def awaited_together(s: SolveState, most: int) -> int:
    """Partitions that must have been loaded, as far as there is room for them, before a batch of `most` begins.

    Where sweeps and loads take the same cores, all: beginning earlier would gain nothing, and the bookkeeping of a
    batch costs about as much as that of one partition.
    """
    return 1 if s.backend.features.overlaps_loads else most


def in_order(s: SolveState, order: IntArray, most: int, skip_clean: bool = False) -> Iterator[IntArray]:
    """The partitions in this order, neighbours that are resident together, while those that follow are read.

    Parameters
    ----------
    most : partitions of a batch at most.
    skip_clean : leave out partitions that are clean when it is their turn, and not only those of other solvers.
    """
    awaited = awaited_together(s, most)
    while order.size:
        due = s.target.dirty() if skip_clean else s.peers.owned
        order = order if due is None else order[due[order]]
        if not order.size:
            return
        s.stager.load_in_order(order, awaited)
        absent = np.flatnonzero(~s.cache.present[order[1:most]])
        count = 1 + int(absent[0] if absent.size else min(most, order.size) - 1)
        batch, order = order[:count], order[count:]
        yield batch
        s.stager.collect()
