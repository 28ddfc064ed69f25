"""What long-running work reports of its progress: plain values, no printing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["SolveProgress", "SolveWatcher", "Watcher"]

Watcher = Callable[[str, int, int | None], None]
"""Called with (what is being done, units done, units in all if known), for conversion and validation."""


@dataclass(frozen=True, slots=True, eq=False)
class SolveProgress:
    """Where a solve stands."""

    error_bound: float
    """Proved bound on ||V - V*|| now; infinite until every partition's residual is bounded."""
    residual_bound: float
    """Bound on the plain Bellman residual now."""
    target: float | None
    """What the bound in force must come down to; None while that is not known: it is a share of the range of the values
    where no other was asked for."""
    stopping_rule: str
    """Which bound that is: "epsilon", of the error, or "residual", the plain one."""
    dirty: int
    """Partitions whose bound is above the target."""
    partitions: int
    hit_rate: float
    bytes_read: int
    """Compressed bytes read so far."""
    read_rate: float
    """Compressed bytes a second since the last report."""
    loads: int
    seconds: float
    stages: tuple[int, int] | None = None
    """Of a finite horizon: stages that all partitions have done, and stages in all."""
    partition_bounds: Callable[[], npt.NDArray[np.float64]] | None = None
    """Computes float64 [P], the bound in force of each partition now; to be called before the report returns."""
    partition_grid: tuple[int, ...] | None = None
    """Partitions along each axis, numbered in C order, where they are blocks of a grid."""


SolveWatcher = Callable[[SolveProgress], None]
