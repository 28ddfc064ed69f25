"""The states of a grid, thinned out to what a page can hold, and what is known of each.

Along each axis every k-th point is kept, so that the bytes of all cells stay within a budget. A cell has its value and
action, and the number of its partition, through which it has the partition's loads, visits and times. NumPy only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.model.table import Table
from ooc_mdp.report.cache_trace import AccessTrace
from ooc_mdp.store.result import Result
from ooc_mdp.store.result_grid import ResultGrid, grid_of

__all__ = ["CELL_BYTES", "Field", "GridCells", "cells_of", "grid_of_result", "partition_fields"]

CELL_BYTES = 2_000_000
"""Of all cells of a page, before they are encoded in base64, which takes a third more."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One quantity over the cells; where `of_partition` is set, an entry for each of the partitions that cells have."""

    name: str
    numbers: npt.NDArray[Any]
    """float32, or int16 where it is an action; NaN or -1 where there is none."""
    of_partition: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class GridCells:
    """A thinned grid."""

    axes: tuple[str, ...]
    units: tuple[str, ...]
    positions: tuple[FloatArray, ...]
    """Of the kept points along each axis; their index, where the axis has no coordinates."""
    strides: tuple[int, ...]
    """Every how many points of each axis are kept."""
    owner: npt.NDArray[np.int32] | None
    """int32 [cells]; index into the fields of partitions; None where the partitions' states are not known."""
    fields: tuple[Field, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Kept points along each axis; cells are in C order."""
        return tuple(p.size for p in self.positions)


def grid_of_result(result: Result) -> ResultGrid:
    """The axes of the result's states."""
    return grid_of(result.geometry, result.values.size, frozenset())


def cells_of(
    result: Result, table: Table | None, trace: AccessTrace | None, budget: int = CELL_BYTES
) -> GridCells | None:
    """The cells of a result on a grid of two or more axes; None where there is no such grid."""
    grid = grid_of_result(result)
    if len(grid.shape) < 2:
        return None
    partitioned = partition_fields(result, trace)
    cells = budget // (4 + 2 + 4)
    while True:
        made = _thinned(result, table, grid, partitioned, cells)
        if _bytes(made) <= budget or cells <= 64:
            return made
        cells = cells * 3 // 4


def _bytes(cells: GridCells) -> int:
    return (0 if cells.owner is None else cells.owner.nbytes) + sum(field.numbers.nbytes for field in cells.fields)


def _strides(shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The axis with most kept points loses some, until at most so many cells are left."""
    strides = [1] * len(shape)
    kept = list(shape)
    while math.prod(kept) > most:
        axis = kept.index(max(kept))
        strides[axis] = -(-shape[axis] // (kept[axis] - 1))
        kept[axis] = -(-shape[axis] // strides[axis])
    return tuple(strides)


def _thinned(
    result: Result,
    table: Table | None,
    grid: ResultGrid,
    partitioned: dict[str, FloatArray],
    most: int,
) -> GridCells:
    strides = _strides(grid.shape, most)
    keep = tuple(slice(None, None, k) for k in strides)
    solution = result.solution

    def kept(array: npt.NDArray[Any], dtype: type) -> npt.NDArray[Any]:
        return np.ascontiguousarray(array.reshape(grid.shape)[keep], dtype).ravel()

    fields = [Field("value", kept(solution.values, np.float32))]
    if int(solution.policy.max(initial=0)) <= np.iinfo(np.int16).max:
        fields.append(Field("policy", kept(solution.policy, np.int16)))
    if solution.value_lower is not None and solution.value_upper is not None:
        fields.append(Field("width of the interval", kept(solution.value_upper - solution.value_lower, np.float32)))
    owner = _owners(result, table, grid.shape, keep)
    if owner is not None:
        used, owner = np.unique(owner, return_inverse=True)
        fields += [Field(name, per[used].astype(np.float32), True) for name, per in partitioned.items()]
    positions = []
    for name, n, k in zip(grid.dimensions, grid.shape, strides, strict=True):
        at = grid.coordinates.get(name)
        positions.append((np.arange(n, dtype=np.float64) if at is None else at.positions)[::k])
    units = tuple(
        grid.coordinates[name].attributes["units"] if name in grid.coordinates else "index" for name in grid.dimensions
    )
    return GridCells(
        grid.dimensions,
        units,
        tuple(positions),
        strides,
        None if owner is None else owner.astype(np.int32).ravel(),
        tuple(fields),
    )


def _owners(result: Result, table: Table | None, shape: tuple[int, ...], keep: tuple[slice, ...]) -> IntArray | None:
    """int64 [cells]; the partition of each kept state; None where neither result nor store has it."""
    order = result.partitions
    if order is not None and tuple(order["shape"]) == shape:
        grid = GridOrder(order["shape"], order["edges"])
        owner: IntArray = np.zeros((1,) * len(shape), np.int64)
        for axis, (edges, part) in enumerate(zip(grid.edges, keep, strict=True)):
            blocks = np.repeat(np.arange(edges.size - 1), np.diff(edges))[part]
            along = [1] * len(shape)
            along[axis] = blocks.size
            owner = owner * (edges.size - 1) + blocks.reshape(along)
        return owner.ravel()
    if table is None:
        return None
    all_states = np.zeros(result.values.size, np.int32)
    for p in range(table.n_partitions):
        all_states[table.original_states(p)] = p
    return np.ascontiguousarray(all_states.reshape(shape)[keep], np.int64).ravel()


def partition_fields(result: Result, trace: AccessTrace | None) -> dict[str, FloatArray]:
    """By name what is known of each partition: float64 [P], NaN where there is nothing."""
    history = result.solution.history
    found: dict[str, FloatArray] = {}
    if history is not None:
        found |= {
            "loads": history.loads.astype(np.float64),
            "visits": history.visits.astype(np.float64),
            "sweeps": history.sweeps.astype(np.float64),
            "first visit, s": history.first_visit,
            "last visit, s": history.last_visit,
        }
    if trace is not None:
        last = np.full(trace.n_partitions, np.nan)
        last[trace.partition] = trace.bound
        found["residual bound at the last access"] = np.where(np.isfinite(last), last, np.nan)
    return found
