"""P-EVA as the thesis gives it (Wingate 2004, figure 5.1): exact priorities, auxiliary accesses and all.

After a visit to q the priority of each dependent of q is recomputed from its own table, which has to be in the cache
for that: an auxiliary access, counted apart. Kept as the baseline that the bounds are measured against.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.solver.run import Run

__all__ = ["exact_p_eva"]

_MOST_SWEEPS = 1000


def exact_p_eva(run: Run) -> None:
    """Process the partition of highest exact priority until none is above the target; raises StoppedEarly."""
    run.refresh_target()
    unknown = np.flatnonzero(~np.isfinite(run.target.levels()) | ~run.visited)
    for p in unknown:
        _recompute(run, int(p))
        run.tick()
    while not run.target.reached():
        dirty = np.flatnonzero(run.target.dirty())
        rank = run.priority.rank(run.target.levels())
        partition = int(dirty[np.argmax(rank[dirty])])
        report = run.sweep(partition, most=_MOST_SWEEPS)
        if report.boundary_up > 0 or report.boundary_down > 0:
            for p in run.bounds.dependents(partition):
                _recompute(run, int(p))
                run.tick()
        run.tick()


def _recompute(run: Run, partition: int) -> None:
    """Read a partition to know its exact residual and its largest B + V."""
    resident, hit = run.stager.obtain(partition, auxiliary=True)
    significant = run.options.residual or run.target.wanted / float(run.bounds.contraction.inverse[partition])
    measured, value = run.backend.measure(resident, max(significant, 0.0))
    run.bounds.replaced(partition, measured)
    run.visited[partition] = True  # measuring chose the actions that its bounds hold for
    run.priority.exact(partition, max(measured.rise, measured.fall), value)
    run.note_auxiliary(partition, hit)
