"""Value iteration, streamed: every partition swept once a pass, the next ones loaded meanwhile.

Passes run in alternating directions, so that a cache of c bytes saves c bytes of each pass; a one-way scan under LRU
would save nothing. The bounds of `ooc_mdp.scheduling.residual_bounds` prove the error after any pass.

With more than one sweep a visit (block Gauss-Seidel over partitions) information crosses a partition in one visit
instead of one pass a state, and passes leave out partitions whose bounds meet the target. On the double pendulum,
whose partitions are too strongly coupled for priorities to help, 8 sweeps a visit took a quarter of the passes.

Where partitions read each other everywhere, a pass changes no value until it is done, so that it measures every
residual from both sides as it goes: when what is left is one number for all states, a shift ends the solve
(`ooc_mdp.scheduling.residual_bounds.ResidualBounds.centre`). Passes in place, of which fewer would be needed otherwise,
cannot see that number: what they sweep last has no residual.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np

from ooc_mdp.backends.base import SweepsSeveral
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.scheduling.stager import ANNOUNCED
from ooc_mdp.solver.plan import aside_bytes
from ooc_mdp.solver.run import Run

__all__ = ["read_ahead", "sweeps_aside", "value_iteration"]

_SLOW = 0.8
"""A pass must bring the range of the residuals down to this share, or values are shifted, or else changed in place."""
_SEVERAL = 8
"""Partitions that a device sweeps together: a visit takes the host as long as the sweeps of one."""
_EARLY_PASSES = 4
"""Passes that need not, because the policy is still poor or values have been shifted."""
_MOST_SLOW = 4
"""Passes that did not, one after the other, after which values are changed in place."""


def sweeps_aside(run: Run) -> bool:
    """Whether passes may leave values as they are until they are done; not where others change some meanwhile."""
    return run.alone and aside_bytes(run.store, run.options, run.backend, run.facts, run.cache.budget) > 0


def value_iteration(run: Run) -> None:
    """Sweep the table until the target is reached; raises StoppedEarly."""
    order = np.arange(run.statistics.n_partitions)
    most = run.options.sweeps
    run.refresh_target()
    if sweeps_aside(run):
        order = _sweep_aside(run, order)
    while not run.reached():
        coming = order
        while coming.size:
            due = run.target.dirty() if most > 1 else run.owned
            if due is not None:
                coming = coming[due[coming]]
                if not coming.size:
                    break
            coming = coming[_sweep(run, coming) :]
        order = order[::-1]


def _sweep_aside(run: Run, order: IntArray) -> IntArray:
    """Passes from the values before them, until the target is reached or they no longer help; the next pass's order."""
    width, early, slow = np.inf, _EARLY_PASSES, 0
    while not run.target.reached():
        reports = {}
        for i, partition in enumerate(order.tolist()):
            read_ahead(run, partition, order[i + 1 :])
            reports[partition] = run.sweep_aside(partition)
            run.stager.take_over()
            run.tick()
        run.refresh_target()
        order = order[::-1]
        before, width = width, run.bounds.width()
        early -= 1
        slow = slow + 1 if early < 0 and width > _SLOW * before else 0
        if run.centre(only_last=slow == 0):  # what the pass made is lost with it
            early, slow = _EARLY_PASSES, 0
            continue
        if not run.target.reached():
            run.take_aside([reports[p] for p in range(order.size)])
        if slow == _MOST_SLOW:
            break
    return order


def read_ahead(run: Run, partition: int, coming: IntArray) -> None:
    """Begin to load a partition and those that come next."""
    depth = run.stager.depth
    run.stager.announce(coming[depth : depth + ANNOUNCED].tolist())
    following = coming[:depth].tolist()
    run.stager.prefetch(partition)  # its room comes before that of the next ones
    for i, ahead in enumerate(following):
        if run.stager.free() <= 0:
            break
        run.stager.prefetch(ahead, frozenset([partition, *following[:i]]).__contains__)


def _sweep(run: Run, coming: IntArray) -> int:
    """Visit the next partition while those that come after it are read; where a backend can, all that have arrived.

    Returns how many were visited.
    """
    most, first = run.options.sweeps, int(coming[0])
    read_ahead(run, first, coming[1:])
    together = [first]
    if isinstance(run.backend, SweepsSeveral):
        run.stager.bring(first)
        together += takewhile(run.cache.present.__getitem__, coming[1:_SEVERAL].tolist())
    if len(together) > 1:
        run.sweep_several(together, most=most, settle=most > 1)
    else:
        run.sweep(first, most=most, settle=most > 1)
    run.stager.take_over()
    run.tick()
    return len(together)
