"""From a generated problem to a store: partition by partition, in parallel, each row computed once.

The problem is asked for the rows of one partition at a time, so memory does not grow with its number of states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.convert.assemble import Description, Progress, assemble
from ooc_mdp.convert.localise import localise
from ooc_mdp.convert.options import ConvertOptions
from ooc_mdp.convert.partitioners import (
    check_count,
    default_partition_bytes,
    even_ranges,
    grid_numbering,
    metis_numbering,
)
from ooc_mdp.convert.table_bytes import bytes_per_state
from ooc_mdp.mdp import IntArray
from ooc_mdp.problems.base import Problem
from ooc_mdp.store.numbering import Numbering
from ooc_mdp.store.reader import Store, open_store
from ooc_mdp.store.transaction import writing
from ooc_mdp.store.writer import PartitionArrays

__all__ = ["generate"]

_SAMPLE = 4096
"""States looked at to estimate bytes a state."""
_PIECE = 1 << 16
"""States asked for at a time where the whole graph is needed."""


def generate(
    problem: Problem,
    store: str | PathLike[str],
    options: ConvertOptions | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    geometry: Mapping[str, Any] | None = None,
) -> Store:
    """Write a problem as a store and open it.

    Parameters
    ----------
    geometry : axes of the grid (names, bounds, periodic) for the store's attributes; the shape is added.

    Raises
    ------
    OptionsError : the options do not fit the problem.
    InputError : the problem's rows are no probability distributions.
    StoreError : the store exists, is being written, or cannot be.
    """
    options = options or ConvertOptions()
    numbering, method = _numbering(problem, options)
    path = Path(store)

    def arrays(p: int) -> PartitionArrays:
        states = numbering.states(p)
        rows = problem.rows(states)
        return localise(rows, states, p, numbering, problem.n_states, options.stored_dtype, problem.name)

    axes = dict(geometry or {})
    if problem.shape is not None:
        axes["shape"] = list(problem.shape)
    description = Description(
        sense=options.sense or problem.sense,
        partitioning=method,
        provenance={
            "source": problem.name,
            "format": "problem",
            "options": problem.parameters(),
            **(provenance or {}),
        },
        geometry=axes or None,
    )
    with writing(path, options.overwrite) as root:
        assemble(root, numbering, arrays, description, options, progress)
    return open_store(path)


def _numbering(problem: Problem, options: ConvertOptions) -> tuple[Numbering, dict[str, Any]]:
    n = problem.n_states
    method = options.partitioner or ("grid" if problem.shape or options.shape else "ranges")
    if options.partitions is not None:
        check_count(options.partitions, n)
    per_state = _mean_bytes(problem, options.stored_dtype)
    target = options.partition_size or default_partition_bytes(int(per_state * n))
    states = max(int(target / per_state), 1)
    partitions = options.partitions or -(-n // states)
    if method == "grid":
        shape = options.grid_shape(n, problem.shape)
        grid = grid_numbering(shape, options.block_shape, options.partitions, states)
        return grid, {"method": "grid", "block_shape": grid.state_order()["block_shape"]}
    if method == "metis":
        weights = np.full(n, round(per_state), np.int64)
        return metis_numbering(lambda: _edges(problem), weights, partitions), {"method": "metis"}
    return even_ranges(n, partitions), {"method": "ranges"}


def _edges(problem: Problem) -> Iterator[tuple[IntArray, IntArray]]:
    for first in range(0, problem.n_states, _PIECE):
        states = np.arange(first, min(first + _PIECE, problem.n_states), dtype=np.int64)
        rows = problem.rows(states)
        transitions = np.diff(rows.successor_ptr[rows.action_ptr])
        yield np.repeat(states, transitions), rows.successors


def _mean_bytes(problem: Problem, dtype: np.dtype[np.floating]) -> float:
    """Decoded bytes a state, from states spread evenly over the problem."""
    count = min(_SAMPLE, problem.n_states)
    sample = np.arange(count, dtype=np.int64) * problem.n_states // count
    return max(float(bytes_per_state(problem.rows(sample), dtype).mean()), 1.0)
