"""P-EVA on a device: asynchronous sweeps of a working set, loads of the best absent partitions beside them.

    host      choose batch 2 ─▶ [ admit what was read, begin to read more ] ... ─▶ record batch 1 ─▶ choose batch 3
    device    rounds over dirty tiles of all partitions of batch 1 ....................... ─▶ rounds of batch 2 ........

While a device works on a batch the next one is already there, so that it never waits for the host: batch 3 is chosen by
what is known after batch 1.

A device sweeps tiles in no order, and proves a bound from what has moved since (`docs/theory/gpu-sweeps.md`). Sweeps
leave the host's cores to reading threads, so loads run all the time; clean residents are evicted for them, an eighth of
the cache at a time but at least two, until half of it is dirty, which is work enough.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Visit
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.scheduling.stager import READAHEAD
from ooc_mdp.scheduling.working_set import WorkingSet
from ooc_mdp.solver.driver import Steps
from ooc_mdp.solver.methods.p_eva import MAX_DIRTY, VISIT_SWEEPS
from ooc_mdp.solver.state import SolveState

__all__ = ["p_eva_on_device"]

_WORKING_SET_STATES = 16_000_000
"""States of the working set, about, for each device of a group; several solvers of a model share as many. That keeps a
device busy, and more would be swept while their neighbours still change, and so swept again. A single pendulum of 100
million states, everything in memory, was proved in 12 to 16 s with as many, and not within 20 s with two and four times
as many (`benchmarks/notes/2026-11-gpu-engine.md`)."""
_MIN_WORKING_SET = 2
"""Partitions of the working set at least, however large they are."""
_MAX_READING = 0.125
"""Share of the cache for which clean partitions are evicted at a time. Partitions that are loaded together are swept
with values that do not hold yet, and have evicted those whose values theirs will change: with twelve loads at a time
and 14 slots a gridworld of 64 partitions took 12.4 loads per partition and 1.7 s, with two 2.3 and 0.44 s
(`benchmarks/notes/2026-11-gpu-engine.md`)."""
_MIN_READING = 2
"""Loads at a time in a cache of few slots: one is read while another is on its way to the device."""
_POLL_SECONDS = 1e-4
"""Between two looks whether a device's sweeps are done, or a load."""


def p_eva_on_device(s: SolveState) -> Steps:
    """Visit batches of a working set of residents; ends where float64 changes nothing any more."""
    try:
        return (yield from _batches(s))
    finally:
        s.finish()


def _batches(s: SolveState) -> Steps:
    """Begin batches and record them; one may be under way between two steps."""
    swept, changes, working_set = np.empty(0, np.int64), -1, _working_set(s)
    while True:
        s.stager.collect()
        is_dirty = s.target.dirty()
        dirty = np.flatnonzero(is_dirty)
        here = dirty[s.cache.present[dirty]]
        idle = s.changes == changes
        if here.size and idle and np.isin(dirty, swept).all():
            return Outcome.PRECISION_LIMIT  # all that is dirty was swept just now, and no value changed
        chosen = here if idle else working_set.choose(here, s.by_priority)
        if chosen.size:
            s.begin(chosen, VISIT_SWEEPS, _readers(s, chosen, is_dirty))
        _load(s, is_dirty)
        ahead = 1 if chosen.size and s.alone and not idle else 0
        if len(s.under_way) > ahead:
            swept, changes = s.under_way[0].access.partitions, s.changes
            _load_until_done(s, s.under_way[0].visit, is_dirty)
            s.finish(ahead)
            if s.changes == changes:
                s.finish()
        elif not chosen.size:
            s.stager.wait()
        yield


def _working_set(s: SolveState) -> WorkingSet:
    """The working set of this solve, counted in partitions of mean size, when the method begins."""
    n_partitions, states = s.table.n_partitions, _WORKING_SET_STATES * s.plan.layout.devices / s.peers.count
    return WorkingSet(s.cache.present, max(_MIN_WORKING_SET, round(states * n_partitions / s.table.n_states)))


def _readers(s: SolveState, swept: IntArray, dirty: npt.NDArray[np.bool_]) -> IntArray:
    """Clean residents that read what is swept: a change that reaches them goes on within the same batch."""
    return np.flatnonzero(_clean_readers(s, swept, dirty) & s.cache.present)


def _clean_readers(s: SolveState, changing: IntArray, dirty: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """bool [P]: of partitions that read changing ones, those that are clean and this solver's own."""
    clean = s.bounds.readers(changing) & ~dirty
    return clean if s.target.owned is None else clean & s.target.owned


def _load_until_done(s: SolveState, visit: Visit, dirty: npt.NDArray[np.bool_]) -> None:
    """Keep the reading threads busy until the sweeps are done."""
    while not visit.done():
        if s.stager.collect():
            _load(s, dirty)
        if not s.stager.in_flight():
            return  # nothing to look after: waiting for the device ends sooner than a nap
        time.sleep(_POLL_SECONDS)


def _load(s: SolveState, dirty: npt.NDArray[np.bool_]) -> None:
    """Begin to read the best absent dirty partitions, as many as threads are free and room can be made for."""
    free = s.stager.free_slots()
    if free <= 0:
        return
    absent = dirty & ~s.cache.present
    absent[s.stager.in_flight()] = False
    wanted = s.by_priority(np.flatnonzero(absent)).tolist()
    slots = s.plan.layout.batch_size
    enough = np.count_nonzero(dirty & s.cache.present) > MAX_DIRTY * slots
    most = max(_MIN_READING, _MAX_READING * slots)

    def keep(q: int) -> bool:
        return bool(enough or dirty[q] or len(s.stager.in_flight()) >= most)

    full: set[int] = set()
    for p in wanted:
        if s.stager.free_slots() <= 0 or len(full) == s.plan.layout.devices:
            break
        if s.cache.place_of(p) not in full and not s.stager.prefetch(p, keep):
            full.add(s.cache.place_of(p))
    s.stager.readahead(wanted[free : free + READAHEAD])
    if s.stager.free_slots() > 0:
        _load_ahead(s, dirty)


def _load_ahead(s: SolveState, dirty: npt.NDArray[np.bool_]) -> None:
    """Begin to read clean partitions that read dirty ones, into room that is free: changes are on their way to them."""
    size, places = s.plan.layout.largest_entry, range(s.plan.layout.devices)
    free = np.array([s.cache.room(place) >= size for place in places])
    if not free.any():
        return
    ahead = _clean_readers(s, np.flatnonzero(dirty), dirty) & ~s.cache.present
    ahead[s.stager.in_flight()] = False
    for p in s.by_priority(np.flatnonzero(ahead)).tolist():
        if s.stager.free_slots() <= 0:
            break
        if free[s.cache.place_of(p)]:
            free[s.cache.place_of(p)] = s.stager.prefetch(p, lambda q: True)
