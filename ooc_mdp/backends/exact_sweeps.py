"""Visits of full sweeps, one partition after the other, and what backends have in common that know no others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ooc_mdp.backends.base import Features, FinishedVisit, Resident, SweepLimits, VisitReport
from ooc_mdp.backends.cuda.simple.literature.catalogue import SimpleKernel
from ooc_mdp.backends.layout import Layout
from ooc_mdp.backends.state_lists import HostLists
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Loader

__all__ = ["SimpleSweeps", "sweep_each"]

_MEASURE_EVERY = 20
"""Sweeps between two measurements of a partition with durations, whose normalisation differs by pair: the bound that
follows from the last change is loose there."""
_SWEEPS, _RISE, _FALL, _BOUNDARY_RISE, _BOUNDARY_FALL, _BOUNDARY_VALUE, _LARGEST, _SMALLEST = range(8)


def sweep_each(
    residents: Sequence[Resident],
    limits: SweepLimits,
    sweep: Callable[[Resident, float, int], Sequence[float] | FloatArray],
    measure: Callable[[Resident], FloatArray],
    *,
    by_changes: bool = True,
    backups: int = 1,
) -> FinishedVisit:
    """Sweep partitions in turn, each until a limit is reached.

    Parameters
    ----------
    sweep : of a partition, given the change at which to stop and the sweeps at most: how many there were, rise and fall
        of a value in the last of them, rise and fall of a boundary value over all, largest boundary value that changed,
        largest and smallest value.
    measure : residuals of a partition, float64 [4].
    by_changes : whether the changes of the last sweep bound the residual; if not, it is measured after every visit.
    backups : of each state in a sweep.
    """
    k = len(residents)
    found, residuals, measured = np.empty((k, 8)), np.full((4, k), np.inf), not by_changes
    for i, (resident, change) in enumerate(zip(residents, limits.changes(k).tolist(), strict=True)):
        if not resident.has_durations or limits.most == 1:
            found[i] = sweep(resident, change, limits.most)
            if not by_changes:
                residuals[:, i] = measure(resident)
            continue
        found[i], measured = sweep(resident, change, min(limits.most, _MEASURE_EVERY)), True
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
            backups=backups * sweeps * np.array([r.n_states for r in residents]),
            boundary_rise=found[:, _BOUNDARY_RISE],
            boundary_fall=found[:, _BOUNDARY_FALL],
            boundary_value=found[:, _BOUNDARY_VALUE],
            largest_value=found[:, _LARGEST],
            smallest_value=found[:, _SMALLEST],
            residuals=residuals if measured else None,
            last_change=found[:, _RISE : _FALL + 1].T if by_changes else None,
        )
    )


def _followed(before: FloatArray, after: FloatArray) -> FloatArray:
    """Some sweeps of a partition, and then others."""
    both = after.copy()
    summed = [_SWEEPS, _BOUNDARY_RISE, _BOUNDARY_FALL]
    both[summed] += before[summed]
    both[_BOUNDARY_VALUE] = max(before[_BOUNDARY_VALUE], after[_BOUNDARY_VALUE])
    return both


class SimpleSweeps(HostLists, ABC):
    """Visits by passes of a simple kernel, one partition after the other; each partition takes its own size."""

    features = Features(overlaps_loads=False)
    synchronous = None
    policy_rows = None

    def __init__(self, kernel: SimpleKernel) -> None:
        self._kernel = kernel
        self._loader: Loader | None = None

    def enlarged(self, layout: Layout) -> Layout:
        """There are no slots."""
        return layout

    def fetch(self, p: int) -> tuple[Any, int]:
        """Read partition p as its table has it, and prepare it."""
        assert self._loader is not None  # given to `start`
        table, n_bytes = self._loader.read(p)
        return self.prepare(table), n_bytes

    @abstractmethod
    def prepare(self, table: PartitionTable) -> Any:
        """As :class:`~ooc_mdp.backends.base.Backend` has it."""

    def sweep(self, residents: Sequence[Resident], limits: SweepLimits) -> FinishedVisit:
        """Passes over one partition after the other, and a measurement where they prove nothing themselves."""
        return sweep_each(
            residents,
            limits,
            self._visit,
            lambda resident: self.measure(resident, 0.0)[0],
            by_changes=self._kernel.bounds_by_changes,
            backups=self._kernel.backups,
        )

    relax = sweep

    @abstractmethod
    def measure(self, resident: Resident, significant: float) -> tuple[FloatArray, float]:
        """As :class:`~ooc_mdp.backends.base.Backend` has it."""

    @abstractmethod
    def _visit(self, resident: Resident, change: float, most: int) -> tuple[float, ...]:
        """Passes until none changes a value by more, `most` of them at most: what `sweep` of :func:`sweep_each` is."""
