"""Write a generated problem as a store, partition by partition, in parallel; each row is computed once.

The problem computes the rows of one partition at a time, so that memory does not grow with the number of states, apart
from one bit per state. A run that is stopped leaves a journal with its chunks, and another run with the same options
continues from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError, OptionsError, StoreError, SystemFailureError
from ooc_mdp.io.conversion.executor import Executor, ThreadsExecutor
from ooc_mdp.io.conversion.partition_builder import build_partition
from ooc_mdp.io.conversion.partitioning import (
    check_count,
    default_partition_bytes,
    even_ranges,
    grid_order,
    metis_order,
    split_evenly,
)
from ooc_mdp.io.conversion.size_estimate import SizeEstimate
from ooc_mdp.io.conversion.state_annotations import write_state_annotations
from ooc_mdp.io.conversion.write_store import Progress, StoreDescription, tool_provenance, write_store
from ooc_mdp.io.problem_labels import packed_labels
from ooc_mdp.model.mdp import IntArray, Rows
from ooc_mdp.model.state_order import StateOrder
from ooc_mdp.problems.problem import Problem, provenance_of
from ooc_mdp.store.annotations import StateAnnotations
from ooc_mdp.store.journal import Journal, describe_differences
from ooc_mdp.store.layout import FORMAT_VERSION
from ooc_mdp.store.locks import BusyError, OpenDirectory
from ooc_mdp.store.mark import empty_directory
from ooc_mdp.store.opening import open_store
from ooc_mdp.store.output_lock import locked_output
from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.reader import Store
from ooc_mdp.store.schema import TableSchema
from ooc_mdp.store.transaction import atomic_directory, check_destination
from ooc_mdp.store.zarr_metadata import remove_metadata
from ooc_mdp.table_options import ConvertOptions

__all__ = ["ProblemPartitions", "generate", "known_schema", "mean_bytes", "open_journal", "partition_problem"]

_SAMPLE = 4096
"""States whose rows are computed to estimate the bytes per state."""
_PIECE = 1 << 16
"""States whose rows are computed at a time where the whole graph is needed."""


def generate(
    problem: Problem,
    store: str | PathLike[str],
    options: ConvertOptions | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    geometry: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    annotations: StateAnnotations | None = None,
) -> Store:
    """Write a problem as a store and open it.

    Parameters
    ----------
    geometry : axes of the grid for the store's attributes, instead of the problem's own; the shape is added.
    executor : where partitions are computed and written; threads of this process by default.
    annotations : labels and variables of the states; the problem's own labels by default. They may differ from those
        of the run that is resumed.

    Raises
    ------
    OptionsError : the options do not fit the problem.
    InputError : the problem's rows are no probability distributions.
    StoreError : the store exists, is being written or read, cannot be written, or was begun with other options.
    """
    options = options or ConvertOptions()
    path = Path(store)
    with locked_output(path, partial(check_destination, overwrite=options.overwrite)):
        executor = executor or ThreadsExecutor(options.threads)
        _write(problem, path, options, provenance, progress, geometry, executor, annotations)
    return open_store(path)


def _write(
    problem: Problem,
    path: Path,
    options: ConvertOptions,
    provenance: Mapping[str, Any] | None,
    progress: Progress | None,
    geometry: Mapping[str, Any] | None,
    executor: Executor,
    annotations: StateAnnotations | None,
) -> None:
    """Write the store; its place has been checked and locked."""
    order, method = partition_problem(problem, options)
    arrays = ProblemPartitions(problem, order, options.stored_dtype)
    axes = dict(geometry or problem.geometry() or {})
    if problem.shape is not None:
        axes["shape"] = list(problem.shape)
    description = StoreDescription(
        sense=options.sense or problem.sense,
        partitioning=method,
        provenance={
            **provenance_of(problem),
            **(provenance or {}),
        },
        geometry=axes or None,
    )
    header = _header(problem, options, description, order)
    run = _Run(options.resume)
    with (
        atomic_directory(path, options.overwrite, resume=options.resume, keep_partial=run.keep_partial) as root,
        open_journal(root, header, options.resume) as run.journal,
    ):
        schema = known_schema(problem, options.stored_dtype)
        states = annotations or StateAnnotations(packed_labels(problem))
        write_store(root, order, arrays, description, schema, executor, progress, run.journal)
        write_state_annotations(root, states)


def known_schema(problem: Problem, dtype: np.dtype[np.floating]) -> TableSchema:
    """The schema of the store as far as the problem states it."""
    stated = problem.row_bounds
    schema = TableSchema(problem.n_states, dtype, problem.dyadic_probabilities)
    if stated is None:
        return schema
    if stated.uniform_actions:
        schema = replace(schema, actions=stated.max_actions)
    if stated.uniform_successors:
        schema = replace(schema, successors=stated.max_successors)
    return replace(schema, optional=frozenset(stated.optional))


def _check_bounds(problem: Problem, rows: Rows, states: IntArray, p: int) -> None:
    """Check the rows of partition p against the bounds that the problem states; raises InputError."""
    stated = problem.row_bounds
    if stated is None:
        return

    def error(place: str, found: str, bound: str) -> InputError:
        return InputError(problem.name, f"partition {p}, {place} has {found}; row_bounds states {bound}: correct one")

    actions, counts = np.diff(rows.action_ptr), np.diff(rows.successor_ptr)
    state = _first_breach(actions, stated.max_actions, stated.uniform_actions)
    if state is not None:
        bound = f"{stated.max_actions} {'for every state' if stated.uniform_actions else 'at most'}"
        raise error(f"state {states[state]}", f"{actions[state]} actions", bound)
    row = _first_breach(counts, stated.max_successors, stated.uniform_successors)
    if row is not None:
        i = int(np.searchsorted(rows.action_ptr, row, side="right")) - 1
        bound = f"{stated.max_successors} {'for every row' if stated.uniform_successors else 'at most'}"
        raise error(f"state {states[i]}, action {row - rows.action_ptr[i]}", f"{counts[row]} successors", bound)
    for name in ("durations", "terminal_rewards", "initial_values", "action_labels"):
        if getattr(rows, name) is not None and name not in stated.optional:
            raise error(f"state {states[0]}", name, f"{', '.join(stated.optional) or 'no optional arrays'}")


def _first_breach(counts: IntArray, bound: int, uniform: bool) -> int | None:
    """Index of the first count that is not the bound (`uniform`) or above it; None if there is none."""
    wrong = counts != bound if uniform else counts > bound
    return int(wrong.argmax()) if wrong.any() else None


@dataclass(frozen=True, slots=True)
class ProblemPartitions:
    """Computes partitions of a problem, in any process."""

    problem: Problem
    order: StateOrder
    dtype: np.dtype[np.floating]

    def __call__(self, p: int) -> PartitionArrays:
        """Compute partition p."""
        states, problem = self.order.states(p), self.problem
        rows = problem.rows(states)
        _check_bounds(problem, rows, states, p)
        return build_partition(rows, states, p, self.order, problem.n_states, self.dtype, problem.name)


@dataclass
class _Run:
    """Decides whether a run that fails leaves its chunks for another to continue."""

    resumes: bool
    journal: Journal | None = None

    def keep_partial(self, error: BaseException) -> bool:
        """Return True for signals, full disks, locks of the old store and the like, False for the problem's errors."""
        if isinstance(error, _ResumeMismatchError):
            return True
        of_the_system = (OSError, MemoryError, BusyError, SystemFailureError)
        in_problem = isinstance(error, Exception) and not isinstance(error, of_the_system)
        if in_problem or not (self.resumes if self.journal is None else self.journal.has_entries):
            return False
        error.add_note("what is done was kept: the same command continues with --resume, and starts over without it")
        return True


class _ResumeMismatchError(StoreError):
    """The run to resume was begun with other options."""


def _header(
    problem: Problem, options: ConvertOptions, description: StoreDescription, order: StateOrder
) -> dict[str, Any]:
    """Everything that determines the contents of chunks."""
    partitions = json.dumps([order.state_order(), order.partition_ptr.tolist()]).encode()
    return {
        "format_version": FORMAT_VERSION,
        "version": tool_provenance()["version"],
        "provenance": dict(description.provenance),
        "sense": description.sense,
        "dtype": options.dtype,
        "dyadic_probabilities": problem.dyadic_probabilities,
        "states": problem.n_states,
        "partitioning": dict(description.partitioning),
        "partitions": order.partition_ptr.size - 1,
        "partition_hash": hashlib.blake2b(partitions, digest_size=8).hexdigest(),
    }


def open_journal(root: Path, header: Mapping[str, Any], resume: bool) -> Journal:
    """The journal of a directory, which is emptied, or which a run with the same header left.

    Raises
    ------
    StoreError : a run with another header left it.
    """
    journal = Journal.resume(root) if resume else None
    if journal is None:
        with closing(OpenDirectory(root, follow=False)) as directory:
            empty_directory(directory.fd)
        return Journal.create(root, header)
    different = describe_differences(journal.header, header)
    if different:
        journal.close()
        raise _ResumeMismatchError(
            f"{root} was begun otherwise and cannot be resumed: {'; '.join(different)}. Give the same options, or "
            "leave out --resume to start over"
        )
    remove_metadata(root)
    return journal


def partition_problem(problem: Problem, options: ConvertOptions) -> tuple[StateOrder, dict[str, Any]]:
    """The partitions that the options ask for, and their description in the attributes."""
    n = problem.n_states
    if options.partitions is not None:
        check_count(options.partitions, n)
    shape = options.grid_shape(n, problem.shape)
    method = options.partitioner or ("grid" if shape or options.in_blocks else "ranges")
    if method == "grid" and shape is None:
        raise OptionsError(
            f"{problem.name} has no grid to cut into blocks; leave out --partitioner grid, --partition-grid and "
            "--partition-shape"
        )
    per_state, target = mean_bytes(problem, options)
    states = max(int(target / per_state), 1)
    partitions = options.partitions or -(-n // states)
    if method == "grid" and shape is not None:
        grid = grid_order(
            shape,
            options.partition_shape,
            options.partitions,
            states,
            options.partition_grid,
            at_most=options.partition_size is not None,
        )
        return grid, {"method": "grid", "block_shape": grid.state_order()["block_shape"]}
    if method == "metis":
        weights = np.full(n, round(per_state), np.int64)
        return metis_order(lambda: _edges(problem), weights, partitions), {"method": "metis"}
    return even_ranges(n, partitions), {"method": "ranges"}


def _edges(problem: Problem) -> Iterator[tuple[IntArray, IntArray]]:
    for first in range(0, problem.n_states, _PIECE):
        states = np.arange(first, min(first + _PIECE, problem.n_states), dtype=np.int64)
        rows = problem.rows(states)
        transitions = np.diff(rows.successor_ptr[rows.action_ptr])
        yield np.repeat(states, transitions), rows.successors


def mean_bytes(problem: Problem, options: ConvertOptions) -> tuple[float, int]:
    """Decoded bytes per state, from states spread evenly over the problem, and a partition's target bytes."""
    n = problem.n_states
    count = min(_SAMPLE, n)
    rows = problem.rows(split_evenly(n, count)[:-1])
    partition_states = 0.0
    for _ in range(2):  # the second time with the partition's size, which determines the type of successors
        table = SizeEstimate.of_rows(rows, options.stored_dtype, partition_states)
        per_state = table.total(count, rows.n_rows, rows.n_transitions) / count
        target = options.partition_size or default_partition_bytes(int(per_state * n))
        partition_states = n / options.partitions if options.partitions else min(target / per_state, n)
    return per_state, target
