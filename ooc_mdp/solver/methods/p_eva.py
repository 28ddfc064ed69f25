"""P-EVA (Wingate 2004, figure 5.1) over bounds that are kept in memory, on the host's cores.

    1. sweep p            the dirty residents with the largest bounds, up to a batch of them together; where the cache
                          holds many partitions, those of a working set (`ooc_mdp.scheduling.working_set`)
    2. priority of p      measured at the values of all of them (`SolveState.record`)
    3. its dependents     raised by what changed, without reading them (`scheduling.residual_bounds`)
    4. the next p         residents first: they cost no transfer; then the absent partition of highest priority

While the other threads sweep, this one asks for what is read next, reports and saves; then it sweeps as well.

Reading ahead evicts clean partitions only while all dirty residents are in the batch being swept, and at most half of
the residents are dirty; otherwise it only fills unused room. What is read early is swept early, with values that do not
hold, and disturbs its neighbours; what it evicts must be read again. Loads per partition with this rule, without the
half, and evicting whenever a thread is idle: mountain car of 300x300 states in 900 partitions at a cache of 5%, 1.3 and
2.1; gridworld of 256x256, discount 0.95, 3.0 and 3.5 at 5%, 1.6, 1.5 and (h1) 14 at 22%.
With the most urgent partition come a few of those that it reads, so that both are swept at the other's new values. Of
several that do not read each other, each is swept with values that do not hold yet: a car took 1.5 to 1.7 loads per
partition for 1.2 (``benchmarks/notes/2026-11-cpu-engine.md``).

Unused room is filled before anything is swept: otherwise each first load disturbs what is quiescent (with 1% of the
successors scrambled and the whole table cached, 2,491 backups per state instead of 137).
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime import quotas
from ooc_mdp.scheduling.working_set import WorkingSet
from ooc_mdp.solver.driver import Part, Steps
from ooc_mdp.solver.state import SolveState

__all__ = ["MAX_DIRTY", "VISIT_SWEEPS", "p_eva"]

VISIT_SWEEPS = 5
"""Full sweeps of one visit at most; more of them work on values that neighbours are about to change."""
MAX_DIRTY = 0.5
"""Share of the resident partitions that may be dirty while clean ones are evicted for what is read ahead."""
_READ_AHEAD = 1 / 32
"""Partitions that are read ahead at a time, as a share of those that are resident; at least one."""
_WORKING_SET_SHARE = 0.125
"""Share of all partitions that the working set has,"""
_MIN_WORKING_SET = 8
"""but at least so many partitions, and two for each thread that sweeps."""
_MIN_HELD = 4
"""A cache that holds fewer than so many times the partitions of the working set confines the work by itself."""


def p_eva(s: SolveState) -> Steps:
    """Visit dirty partitions by priority, resident ones first."""
    try:
        return (yield from _visits(s))
    finally:
        s.finish()


def _visits(s: SolveState) -> Steps:
    """Begin visits and record them; one may be under way between two steps."""
    working_set = _working_set(s)
    while True:
        s.finish()
        yield from _fill_unused_room(s)
        dirty = s.dirty()
        here = s.cache.present[dirty]
        if here.any():
            worked_on = working_set.choose(dirty[here], s.by_priority)
            batch = s.by_bound(worked_on)[: s.plan.layout.batch_size]
            s.begin(batch, VISIT_SWEEPS, rough=bool(s.cache.present.all()))
            few = batch.size == np.count_nonzero(here) <= max(1, MAX_DIRTY * np.count_nonzero(s.cache.present))
            _read_ahead(s, dirty[~here], may_evict=bool(few))
            if not s.alone:  # what others send is written before the next step
                s.finish()
        elif dirty.size:
            _load(s, s.by_priority(dirty))
        yield


def _working_set(s: SolveState) -> WorkingSet:
    """The working set of this solve; all partitions where the cache is so small that it confines the work itself."""
    layout, n_partitions = s.plan.layout, s.table.n_partitions
    size = min(layout.batch_size, max(int(_WORKING_SET_SHARE * n_partitions), _MIN_WORKING_SET, 2 * quotas.cores()))
    held = layout.cache_bytes / layout.entries.mean()
    confines = layout.batch_size > 1 and held >= min(_MIN_HELD * size, n_partitions)
    return WorkingSet(s.cache.present, size if confines else n_partitions)


def _fill_unused_room(s: SolveState) -> Part:
    """Load dirty partitions while there is room, before what is there is swept with values that do not hold."""
    while True:
        s.stager.collect()
        if s.stager.has_unused_room():
            absent = s.target.dirty() & ~s.cache.present
            absent[s.stager.in_flight()] = False
            for p in s.by_priority(np.flatnonzero(absent)).tolist():
                if not s.stager.prefetch_into_unused_room(p, waiting=s.stager.depth):
                    break
        if not s.stager.in_flight():
            return
        s.stager.wait()
        yield


def _read_ahead(s: SolveState, absent: IntArray, may_evict: bool) -> None:
    """Begin to load the most urgent absent partition, and some that it reads; evict clean ones at the end for them."""
    if not absent.size or s.stager.in_flight() or not (may_evict or s.stager.has_unused_room()):
        return
    order = s.by_priority(absent)
    is_read = np.zeros(s.cache.present.size, np.bool_)
    is_read[s.plan.facts.coupling.read_by(int(order[0]))] = True
    together = order[is_read[order]]
    most = max(1, round(_READ_AHEAD * np.count_nonzero(s.cache.present)))
    for p in together[:most].tolist():
        if may_evict:
            s.stager.prefetch(p, waiting=most)
        else:
            s.stager.prefetch_into_unused_room(p)


def _load(s: SolveState, wanted: IntArray) -> None:
    """Load the most urgent absent partitions, as many as there are threads; at least one."""
    keep = set(wanted.tolist()).__contains__
    for p in wanted[: s.stager.depth].tolist():
        s.stager.prefetch(p, keep)
    if not s.stager.in_flight():
        s.stager.load(int(wanted[0]))
    while s.stager.in_flight():
        s.stager.wait()
        s.stager.collect()
