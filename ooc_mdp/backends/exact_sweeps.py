"""Visits of full sweeps, one partition after the other, for backends that sweep them so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ooc_mdp.backends.base import FinishedVisit, Resident, SweepLimits, VisitReport
from ooc_mdp.model.mdp import FloatArray

__all__ = ["sweep_each"]

_MEASURE_EVERY = 20
"""Sweeps between two measurements of a partition with durations, whose normalisation differs by pair: the bound that
follows from the last change is loose there."""
_SWEEPS, _RISE, _FALL, _BOUNDARY_RISE, _BOUNDARY_FALL, _BOUNDARY_VALUE, _LARGEST, _SMALLEST = range(8)


def sweep_each(
    residents: Sequence[Resident],
    limits: SweepLimits,
    sweep: Callable[[Resident, float, int], Sequence[float] | FloatArray],
    measure: Callable[[Resident], FloatArray],
) -> FinishedVisit:
    """Sweep partitions in turn, each until a limit is reached.

    Parameters
    ----------
    sweep : of a partition, given the change at which to stop and the sweeps at most: how many there were, rise and fall
        of a value in the last of them, rise and fall of a boundary value over all, largest boundary value that changed,
        largest and smallest value.
    measure : residuals of a partition, float64 [4].
    """
    k = len(residents)
    found, residuals = np.empty((k, 8)), np.full((4, k), np.inf)
    for i, (resident, change) in enumerate(zip(residents, limits.changes(k).tolist(), strict=True)):
        if not resident.has_durations or limits.most == 1:
            found[i] = sweep(resident, change, limits.most)
            continue
        found[i] = sweep(resident, change, min(limits.most, _MEASURE_EVERY))
        while True:
            residuals[:, i] = measure(resident)
            left = residuals[2:, i].max() if limits.plain else residuals[:2, i].max()
            done, still = int(found[i, _SWEEPS]), not found[i, [_RISE, _FALL]].any()
            if left <= limits.residual or still or done >= limits.most:
                break
            found[i] = _followed(found[i], np.asarray(sweep(resident, change, min(limits.most - done, _MEASURE_EVERY))))
    sweeps = found[:, _SWEEPS].astype(np.int64)
    return FinishedVisit(
        VisitReport(
            sweeps=sweeps,
            backups=sweeps * np.array([r.n_states for r in residents]),
            boundary_rise=found[:, _BOUNDARY_RISE],
            boundary_fall=found[:, _BOUNDARY_FALL],
            boundary_value=found[:, _BOUNDARY_VALUE],
            largest_value=found[:, _LARGEST],
            smallest_value=found[:, _SMALLEST],
            residuals=residuals if np.isfinite(residuals).any() else None,
            last_change=found[:, [_RISE, _FALL]].T,
        )
    )


def _followed(before: FloatArray, after: FloatArray) -> FloatArray:
    """Some sweeps of a partition, and then others."""
    both = after.copy()
    summed = [_SWEEPS, _BOUNDARY_RISE, _BOUNDARY_FALL]
    both[summed] += before[summed]
    both[_BOUNDARY_VALUE] = max(before[_BOUNDARY_VALUE], after[_BOUNDARY_VALUE])
    return both
