"""A batch of tiles' rounds on its way, and its report of each partition: row by row as `report_partitions` leaves it.

Columns: plain residual, normalised residual, tiles still due, rise and fall of boundary values, largest boundary value
that changed, largest and smallest value, backups of a state, and by how much a tile moved at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import BatchReport, Measured, VisitReport
from ooc_mdp.backends.cuda.device import Stream
from ooc_mdp.model.mdp import IntArray

__all__ = ["TileBatch"]


@dataclass(frozen=True, slots=True)
class TileBatch:
    """Rounds under way."""

    stream: Stream
    done_yet: Callable[[], bool]
    report: npt.NDArray[np.float64]
    states: IntArray
    """int64 [k]; of each partition."""

    def done(self) -> bool:
        """Whether the report is on the host."""
        return self.done_yet()

    def reports(self) -> list[VisitReport]:
        """Wait, and say what was done to each partition."""
        self.stream.wait()
        return [_visit_report(row, n) for row, n in zip(self.report.tolist(), self.states.tolist(), strict=True)]

    def batch_report(self) -> BatchReport:
        """The same as arrays."""
        self.stream.wait()
        columns = self.report.T.copy()
        _, _, _, rise, fall, _, largest, smallest, backups, moved = columns
        return BatchReport(
            sweeps=np.rint(backups / np.maximum(self.states, 1)).astype(np.int64),
            boundary_up=rise,
            boundary_down=fall,
            largest_value=largest,
            smallest_value=smallest,
            measured=columns[[1, 1, 0, 0]],
            backups=backups.astype(np.int64),
            changed=moved > 0,
        )


def _visit_report(row: list[float], n_states: int) -> VisitReport:
    plain, normalised, _, rise, fall, boundary_value, largest, smallest, backups, moved = row
    return VisitReport(
        sweeps=round(backups / max(n_states, 1)),
        up=plain,
        down=plain,
        boundary_up=rise,
        boundary_down=fall,
        boundary_value=boundary_value,
        largest_value=largest,
        smallest_value=smallest,
        measured=Measured(normalised, normalised, plain, plain),
        backups=int(backups),
        changed=moved > 0,
    )
