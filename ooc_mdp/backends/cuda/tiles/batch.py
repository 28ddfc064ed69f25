"""A batch of tiles' rounds on its way, and its report of each partition: row by row as `report_partitions` leaves it.

Each device of a group reports its own partitions.

Columns: plain residual, normalised residual, tiles still due, rise and fall of boundary values, largest boundary value
that changed, largest and smallest value, backups of a state, and the largest change of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import VisitReport
from ooc_mdp.backends.cuda.device import Mark
from ooc_mdp.model.mdp import IntArray

__all__ = ["ReportPart", "TileBatch"]


@dataclass(frozen=True, slots=True)
class ReportPart:
    """A device's report on its way."""

    arrived: Mark
    rows: npt.NDArray[np.float64]
    """float64 [k, 10]; where the device leaves it."""
    places: IntArray
    """int64 [k]; its partitions' places in the batch."""


@dataclass(frozen=True, slots=True)
class TileBatch:
    """Rounds under way."""

    parts: Sequence[ReportPart]
    states: IntArray
    """int64 [k]; of each partition of the batch."""

    def done(self) -> bool:
        """Whether the report is on the host."""
        return all(part.arrived.done() for part in self.parts)

    def report(self) -> VisitReport:
        """Wait, and say what was done."""
        columns = np.empty((self.parts[0].rows.shape[1], self.states.size))
        for part in self.parts:
            part.arrived.wait()
            columns[:, part.places] = part.rows.T
        _, _, _, rise, fall, boundary_value, largest, smallest, backups, change = columns
        return VisitReport(
            sweeps=np.rint(backups / np.maximum(self.states, 1)).astype(np.int64),
            backups=backups.astype(np.int64),
            boundary_rise=rise,
            boundary_fall=fall,
            boundary_value=boundary_value,
            largest_value=largest,
            smallest_value=smallest,
            residuals=columns[[1, 1, 0, 0]],
            joint=True,
            changed=bool((change > 0).any()),
        )
