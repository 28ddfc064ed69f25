"""P-EVA as the thesis gives it (Wingate 2004, figure 5.1): exact priorities, auxiliary accesses and all.

After a visit to q the priority of each dependent of q is recomputed from its own table, which has to be in the cache
for that: an auxiliary access, counted apart. Kept as the baseline that the bounds are measured against.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.solver.driver import Steps
from ooc_mdp.solver.state import SolveState

__all__ = ["exact_p_eva"]

_VISIT_SWEEPS = 1000


def exact_p_eva(s: SolveState) -> Steps:
    """Visit the partition of highest exact priority, then recompute those of its dependents."""
    for p in np.flatnonzero(~np.isfinite(s.target.bounds()) | ~(s.visited & s.bounds.measured)).tolist():
        s.recompute_priority(p)
        yield
    while True:
        batch = s.by_priority(s.dirty())[:1]
        with s.access(batch) as access:
            report = s.backend.sweep(access.residents, s.limits(batch, _VISIT_SWEEPS)).report()
            s.record(access, report)
        if report.boundary_rise[0] > 0 or report.boundary_fall[0] > 0:
            for p in s.bounds.dependents(int(batch[0])).tolist():
                s.recompute_priority(p)
                yield
        yield
