"""What a checkpoint holds of a run: everything that the solve continues from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.scheduling.priority import H2
from ooc_mdp.solver.output import Snapshot

if TYPE_CHECKING:
    from ooc_mdp.solver.run import Run

__all__ = ["OPTIONAL_ARRAYS", "arrays_of", "snapshot_of"]

OPTIONAL_ARRAYS = frozenset({"inflow"})
"""Which only a priority by inflow saves, and misses."""


def arrays_of(run: Run) -> dict[str, npt.NDArray[Any]]:
    """Values, policy, bounds and, where partitions are chosen by inflow, that; the history apart."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "values": run.backend.values(),
        "policy": run.backend.policy(),
        "visited": run.visited,
        "value_size": np.array(run.value_size),
        **run.bounds.arrays(),
    }
    if isinstance(run.priority, H2):
        arrays["inflow"] = run.priority.value
    return arrays


def snapshot_of(run: Run) -> Snapshot:
    """The run as it stands, with its history so far."""
    run.history.row(run.row())
    arrays = {**arrays_of(run), **run.history.arrays()}
    run.collect()
    return Snapshot(arrays, run.statistics)
