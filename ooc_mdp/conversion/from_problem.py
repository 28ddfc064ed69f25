"""From a generated problem to a store: partition by partition, in parallel, each row computed once.

The problem is asked for the rows of one partition at a time, so memory does not grow with its number of
states, apart from one bit for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.conversion.assemble import Description, Progress, assemble
from ooc_mdp.conversion.localise import localise
from ooc_mdp.conversion.options import ConvertOptions
from ooc_mdp.conversion.partitioners import (
    check_count,
    default_partition_bytes,
    even_ranges,
    grid_numbering,
    metis_numbering,
)
from ooc_mdp.conversion.table_bytes import TableBytes
from ooc_mdp.mdp import IntArray
from ooc_mdp.problems.base import Problem, provenance_of
from ooc_mdp.store.numbering import Numbering
from ooc_mdp.store.reader import Store, open_store
from ooc_mdp.store.transaction import writing
from ooc_mdp.store.writer import PartitionArrays

__all__ = ["generate", "partition_problem"]

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
    numbering, method = partition_problem(problem, options)
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
            **provenance_of(problem),
            **(provenance or {}),
        },
        geometry=axes or None,
    )
    with writing(path, options.overwrite) as root:
        assemble(root, numbering, arrays, description, options, progress, exact_weights=problem.exact_weights)
    return open_store(path)


def partition_problem(problem: Problem, options: ConvertOptions) -> tuple[Numbering, dict[str, Any]]:
    """The partitions that the options ask for, and what the attributes say of them."""
    n = problem.n_states
    if options.partitions is not None:
        check_count(options.partitions, n)
    method = options.partitioner or ("grid" if problem.shape or options.shape or options.block_shape else "ranges")
    per_state, target = _mean_bytes(problem, options)
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


def _mean_bytes(problem: Problem, options: ConvertOptions) -> tuple[float, int]:
    """Decoded bytes a state, from states spread evenly over the problem, and a partition's target bytes."""
    n = problem.n_states
    count = min(_SAMPLE, n)
    rows = problem.rows(np.arange(count, dtype=np.int64) * n // count)
    partition_states = 0.0
    for _ in range(2):  # the second time with the partition's size, which decides the type of successors
        table = TableBytes.of_rows(rows, options.stored_dtype, partition_states)
        per_state = table.total(count, rows.n_rows, rows.n_transitions) / count
        target = options.partition_size or default_partition_bytes(int(per_state * n))
        partition_states = n / options.partitions if options.partitions else min(target / per_state, n)
    return per_state, target
