"""Value iteration, streamed: every partition swept once a pass, the next ones loaded meanwhile.

Passes run in alternating directions, so that a cache of c bytes saves c bytes of each pass; a one-way scan under LRU
would save nothing. The bounds of `ooc_mdp.bounds` prove the error after any pass.

With more than one sweep a visit (block Gauss-Seidel over partitions) information crosses a partition in one visit
instead of one pass a state, and passes leave out partitions whose bounds meet the target. On the double pendulum,
whose partitions are too strongly coupled for priorities to help, 8 sweeps a visit took a quarter of the passes.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.methods.run import Run
from ooc_mdp.stager import ANNOUNCED

__all__ = ["value_iteration"]


def value_iteration(run: Run) -> None:
    """Sweep the table until the target is reached; raises StoppedEarly."""
    order = np.arange(run.statistics.n_partitions)
    most = run.options.sweeps
    run.refresh_target()
    while not run.target.reached():
        for i, partition in enumerate(order):
            following = order[i + 1 :]
            if most > 1:
                dirty = run.target.dirty()
                if not dirty[partition]:
                    continue
                following = following[dirty[following]]
            depth = run.stager.depth
            run.stager.announce(following[depth : depth + ANNOUNCED].tolist())
            _sweep(run, int(partition), following[:depth].tolist())
        order = order[::-1]


def _sweep(run: Run, partition: int, following: list[int]) -> None:
    """Visit a partition while those that follow are read."""
    most = run.options.sweeps
    run.stager.prefetch(partition)  # its room comes before that of the next ones
    for i, ahead in enumerate(following):
        if run.stager.free() <= 0:
            break
        run.stager.prefetch(ahead, frozenset([partition, *following[:i]]).__contains__)
    run.sweep(partition, most=most, settle=most > 1)
    run.stager.take_over()
    run.tick()
