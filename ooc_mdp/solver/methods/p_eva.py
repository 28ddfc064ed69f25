"""P-EVA (Wingate 2004, chapter 5) over bounds in RAM, resident partitions first.

Dirty partitions (R[p] above the target) that are in the cache cost no transfer, so they are swept first, a few sweeps
at a time, largest bound first; only when all of them are quiet is the best absent one, by the priority, brought in.
No partition is read to be ranked.

Reading ahead evicts nothing until the last dirty resident partition is swept, and only fills unused room before.
What was counted (256x256 gridworld of 4 successors, discount 0.95, cache 22%, loads a partition for h1 and h2): as
here 1.7 and 1.7; evicting clean partitions whenever a thread is idle 14 and 53, because what is read early is swept
early, with values that do not hold, and disturbs its neighbours; the best partition whether resident or not 16 and
2.0. Not filling unused room makes each first load disturb what is quiet: with 1% of the successors scrambled and the
whole table cached, 2,491 backups a state instead of 137. Where the CPU sweeps several partitions at the same time,
unused room is filled before anything is swept, on all reading threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.scheduling.stager import ANNOUNCED
from ooc_mdp.solver.methods.at_once import AtOnce
from ooc_mdp.solver.methods.value_iteration import sweeps_aside, value_iteration
from ooc_mdp.solver.run import BegunVisits, Run
from ooc_mdp.solver.session import StoppedEarly

__all__ = ["p_eva"]

_MOST_SWEEPS = 5
"""Sweeps of one access; more of them work on values that neighbours are about to change."""
_STATES_TOGETHER = 32_000_000
"""States of a batch on a device, about, or of those of all devices that share a model: enough to keep it busy, and no
more, since what is swept while its neighbours still change is swept again. On 400 million states, everything in memory
and a proved error, 3.6 s with this and 5.0 s with all dirty partitions; 3.8 s with half of it, 5.5 s with twice of it
(chosen by priority, before bounds chose)."""
_DIRTY_SHARE = 0.5
"""Share of a device's cache that may be dirty while what is clean gives way."""
_POLL_SECONDS = 1e-4
"""Between two looks whether a device's sweeps are done, or a load."""


def p_eva(run: Run, give_up: Callable[[], bool] = lambda: False) -> None:
    """Process partitions by priority until none is dirty, or until one should give up; raises StoppedEarly."""
    if run.backend.loads_beside:
        _sweep_and_load(run, give_up)
        return
    if sweeps_aside(run):
        value_iteration(run)
        return
    present = run.cache.present
    at_once = AtOnce(run)
    run.refresh_target()
    while not (run.reached() or give_up()):
        run.stager.take_over()
        if run.backend.together > 1:
            _fill(run)
        if at_once.due():
            at_once.round()
            run.tick()
            continue
        levels = run.target.levels()
        dirty = run.target.dirty()
        if not dirty.any():
            continue  # an exchange of values while partitions were loaded has changed the target
        here = np.flatnonzero(dirty & present)
        if here.size:
            best = here[np.argsort(-levels[here], kind="stable")[: run.backend.together]]
            begun = run.begin([int(p) for p in best], most=_MOST_SWEEPS)
            absent = np.flatnonzero(dirty & ~present)
            if absent.size and not run.stager.under_way():
                _read_ahead(run, int(absent[np.argmax(run.priority.rank(levels)[absent])]), here.size <= best.size)
            run.finish(begun)
        elif run.backend.together > 1:
            _bring(run, np.flatnonzero(dirty))
        else:
            rank = run.priority.rank(levels)
            candidates = np.asarray([p for p in run.stager.under_way() if dirty[p]] or np.flatnonzero(dirty))
            run.sweep(int(candidates[np.argmax(rank[candidates])]), most=_MOST_SWEEPS)
        run.tick()


def _fill(run: Run) -> None:
    """Load dirty partitions into unused room, before what is there is swept with values that do not hold."""
    while True:
        absent = run.target.dirty() & ~run.cache.present
        absent[run.stager.under_way()] = False
        wanted = np.flatnonzero(absent)
        rank = run.priority.rank(run.target.levels())
        if wanted.size and run.stager.prefetch(int(wanted[np.argmax(rank[wanted])]), lambda _: True):
            continue
        if not run.stager.under_way():
            return
        run.stager.wait()
        run.stager.take_over()
        run.tick()


def _bring(run: Run, wanted: IntArray) -> None:
    """Load the best of the wanted partitions, none of which is there, as many at a time as there are threads for it."""
    rank = run.priority.rank(run.target.levels())
    best = wanted[np.argsort(-rank[wanted], kind="stable")].tolist()
    for p in best[: run.stager.depth]:
        run.stager.prefetch(p, set(best).__contains__)
    if not run.stager.under_way():
        run.stager.obtain(best[0])
    while run.stager.under_way():
        run.stager.wait()
        run.stager.take_over()


def _read_ahead(run: Run, partition: int, last_dirty: bool) -> None:
    """Start to load the best absent dirty partition, if there is unused room or nothing else is left to sweep."""
    run.stager.prefetch(partition, lambda _: not last_dirty)


def _sweep_and_load(run: Run, give_up: Callable[[], bool]) -> None:
    """Batches of the best dirty residents, with loads on all threads meanwhile, until no partition is dirty."""
    present = run.cache.present
    run.refresh_target()
    swept = np.empty(0, np.int64)
    while not (run.reached() or give_up()):
        run.stager.take_over()
        dirty = run.target.dirty()
        here = np.flatnonzero(dirty & present)
        if here.size and not run.changed and np.isin(np.flatnonzero(dirty), swept).all():
            raise StoppedEarly(Outcome.PRECISION)  # all that is dirty was swept just now, and no value changed
        here = swept = _most_promising(run, here)
        begun = run.begin(here.tolist(), most=_MOST_SWEEPS) if here.size else None
        _load(run, dirty)
        if begun is not None:
            _finish(run, begun, dirty)
        else:
            run.stager.wait()
        run.tick()


def _most_promising(run: Run, here: IntArray) -> IntArray:
    """The dirty residents with the largest bounds, as many as a batch should have; all, if the last changed nothing."""
    sizes = np.diff(run.store.partition_ptr)[here]
    most = _STATES_TOGETHER // run.sharers
    if not run.changed or sizes.sum() <= most:
        return here
    best = np.argsort(-run.target.levels()[here], kind="stable")
    before = np.cumsum(sizes[best]) - sizes[best]
    return here[best[before < most]]


def _finish(run: Run, begun: BegunVisits, dirty: npt.NDArray[np.bool_]) -> None:
    """Keep the reading threads busy until the sweeps are done."""
    try:
        while not begun.visits.done():
            if run.stager.take_over():
                _load(run, dirty)
            if not run.stager.under_way():
                break  # nobody to look after: waiting for the device ends sooner than a nap
            time.sleep(_POLL_SECONDS)
    finally:
        run.finish(begun)


def _load(run: Run, dirty: npt.NDArray[np.bool_]) -> None:
    """Start to load the best absent dirty partitions, as many as threads are free and room can be made for."""
    stager, present = run.stager, run.cache.present
    free = stager.free()
    if free <= 0:
        return
    absent = dirty & ~present
    absent[stager.under_way()] = False
    wanted = np.flatnonzero(absent)
    if not wanted.size:
        return
    wanted = wanted[np.argsort(-run.priority.rank(run.target.levels())[wanted], kind="stable")]
    enough = bool(np.count_nonzero(dirty & present) > _DIRTY_SHARE * run.backend.together)
    for p in wanted[:free]:
        if not stager.prefetch(int(p), lambda q: enough or bool(dirty[q])):
            break
    stager.announce([int(p) for p in wanted[free : free + ANNOUNCED]])
