"""Value iteration, streamed: every partition swept once a pass, the next ones loaded meanwhile.

Passes run in alternating directions, so that a cache of c bytes saves c bytes of each pass; a one-way scan under LRU
would save nothing. The bounds of `ooc_mdp.bounds` prove the error after any pass.
"""

from __future__ import annotations

from ooc_mdp.methods.run import Run

__all__ = ["value_iteration"]


def value_iteration(run: Run) -> None:
    """Sweep the whole table until the target is reached; raises StoppedEarly."""
    n = run.statistics.n_partitions
    order = list(range(n))
    run.refresh_target()
    while not run.target.reached():
        for i, partition in enumerate(order):
            run.stager.prefetch(partition)  # its room comes before that of the next ones
            for end in range(i + 1, min(i + 3, n)):
                run.stager.prefetch(order[end], frozenset(order[i:end]).__contains__)
            run.sweep(partition, most=1, settle=False)
            run.stager.take_over()
            run.tick()
        order.reverse()
