"""Convert a model file to a store, in two passes and bounded memory.

    pass 1   blocks are parsed in parallel; each is written to a spool file in the directory of the new store
    plan     the counts of each state, read back from the spool, determine partitions
    pass 2   each partition gathers its rows from the spool, renumbers them and writes its chunks

Memory: `threads` blocks in pass 1, `threads` partitions in pass 2 (about ten times their decoded bytes), one bit per
state, and a few numbers per spool file and partition. The partitioner metis adds the state graph.
Disk: the spool takes 16 bytes per transition and 16 per row until the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.io.annotations import MOST_ACTION_NAMES
from ooc_mdp.io.conversion.executor import Executor, ThreadsExecutor, in_order
from ooc_mdp.io.conversion.memory import check_conversion, conversion_plan, partition_work
from ooc_mdp.io.conversion.partition_builder import build_partition
from ooc_mdp.io.conversion.partitioning import (
    balanced_ranges,
    check_count,
    default_partition_bytes,
    grid_order,
    metis_order,
    ranges_by_size,
)
from ooc_mdp.io.conversion.row_spool import Spool, SpoolFile, write_spool_file
from ooc_mdp.io.conversion.size_estimate import SizeEstimate
from ooc_mdp.io.conversion.state_annotations import state_annotations
from ooc_mdp.io.conversion.write_store import Progress, StoreDescription, write_store
from ooc_mdp.io.left_out import ACTION_NAMES
from ooc_mdp.io.source import BlockReader, Source
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.state_order import StateOrder
from ooc_mdp.store.annotations import RewardModel, RowNames, write_annotations
from ooc_mdp.store.opening import open_store
from ooc_mdp.store.output_lock import locked_output
from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.reader import Store
from ooc_mdp.store.schema import TableSchema
from ooc_mdp.store.sealed_group import group_attributes
from ooc_mdp.store.transaction import atomic_directory, check_destination
from ooc_mdp.table_options import ConvertOptions

__all__ = ["convert", "write_spooled"]


def convert(
    source: Source,
    store: str | PathLike[str],
    options: ConvertOptions | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    geometry: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    note: Callable[[str], None] | None = None,
) -> Store:
    """Write an open source as a store and open it; the source is left open.

    Parameters
    ----------
    provenance : added to the source's path and format in the store's attributes (the user's options).
    geometry : axes of the grid (names, bounds, periodic) for the store's attributes; the shape is added.
    executor : where partitions are computed and written; threads of this process by default. Blocks are always parsed
        on these threads, since a source is one stream.
    note : called with the memory plan of the second pass, where threads of this process do it.

    Raises
    ------
    InputError : the source breaks a rule of its format; of several errors the first in the file.
    OptionsError : the options do not fit the model.
    StoreError : the store exists, is being written or read, or cannot be written.
    MemoryBudgetError : a partition, or as many as there are threads, take more than the RAM that is available.
    """
    options = options or ConvertOptions()
    if options.resume:
        raise OptionsError("a conversion cannot be resumed, only the generation of a problem")
    path = Path(store)
    with (
        locked_output(path, partial(check_destination, overwrite=options.overwrite)),
        atomic_directory(path, options.overwrite) as root,
    ):
        scratch = root / ".spool"
        scratch.mkdir()
        spool = Spool(_read_all(source, scratch, options, progress))
        n_states = _check_states(source, spool)
        origin = {"source": source.path, "format": source.format, **(provenance or {})}
        order = write_spooled(root, spool, n_states, options, origin, progress, geometry, executor, note)
        _write_annotations(root, source, spool, order, scratch)
        shutil.rmtree(scratch)
    return open_store(path)


def write_spooled(
    root: Path,
    spool: Spool,
    n_states: int,
    options: ConvertOptions,
    provenance: Mapping[str, Any],
    progress: Progress | None = None,
    geometry: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    note: Callable[[str], None] | None = None,
) -> StateOrder:
    """Pass 2: write the rows of a spool as a store into the directory `root`; see :func:`convert`.

    Parameters
    ----------
    provenance : its "source" is named in messages.

    Returns
    -------
    StateOrder : the order of the states in the store.
    """
    order, method = _partition_source(spool, n_states, options)
    if executor is None:
        _plan(spool, order, n_states, options, note)
    axes = {**(geometry or {}), **({"shape": list(options.shape)} if options.shape else {})}
    description = StoreDescription(
        sense=options.sense or "max", partitioning=method, provenance=provenance, geometry=axes or None
    )
    schema = _schema(spool, order, options.stored_dtype)
    arrays = _SpooledPartitions(spool, order, n_states, options.stored_dtype, provenance["source"])
    write_store(root, order, arrays, description, schema, executor or ThreadsExecutor(options.threads), progress)
    return order


def _write_annotations(root: Path, source: Source, spool: Spool, order: StateOrder, scratch: Path) -> None:
    """Write what a source has beside its table, if there is anything that is kept."""
    found, n_states = source.annotations, int(order.partition_ptr[-1])
    states = state_annotations(found, n_states)
    if found.too_many_names:
        source.left_out.add(ACTION_NAMES, [f"more than {MOST_ACTION_NAMES}"])
    kept = states.labels or states.variables or found.reward_models or found.action_names
    if not kept and found.table_rewards is None:
        return
    n_rows = sum(file.n_rows for file in spool.files)
    models = {}
    for i, name in enumerate(found.reward_models):
        rewards = _file_array(scratch / f"rewards-{i}", n_rows)
        terminal = _file_array(scratch / f"terminal-{i}", n_states)
        row = 0
        for p in range(order.partition_ptr.size - 1):
            paid, final = spool.gather_reward_model(name, order.states(p))
            rewards[row : row + paid.size] = paid
            terminal[order.partition_ptr[p] : order.partition_ptr[p + 1]] = final
            row += paid.size
        models[name] = RewardModel(rewards, terminal)
    write_annotations(
        root,
        str(group_attributes(root)["fingerprint"]),
        states,
        models,
        (n_states, n_rows),
        found.table_rewards,
        found.rewards_chosen,
        _row_names(found.action_names, spool, order, scratch / "names", n_rows),
    )


def _row_names(names: tuple[str, ...], spool: Spool, order: StateOrder, file: Path, n_rows: int) -> RowNames | None:
    """The names of a source's actions in alphabetical order, with those of all rows in the order of the store."""
    if not names or not n_rows:
        return None
    rank = np.append(np.argsort(sorted(range(len(names)), key=names.__getitem__)), -1)
    of_rows, row = np.memmap(file, np.int32, "w+", shape=(n_rows,)), 0
    for p in range(order.partition_ptr.size - 1):
        found = rank[spool.gather_names(order.states(p))]
        of_rows[row : row + found.size] = found
        row += found.size
    return RowNames(tuple(sorted(names)), of_rows)


def _file_array(path: Path, size: int) -> FloatArray:
    """float64 [size] in a temporary file, which takes no memory of its own."""
    return np.memmap(path, np.float64, "w+", shape=(size,)) if size else np.empty(0)


@dataclass(frozen=True, slots=True)
class _SpooledPartitions:
    """Computes partitions of the source, in any process that sees the spool."""

    spool: Spool
    order: StateOrder
    n_states: int
    dtype: np.dtype[np.floating]
    source: str

    def __call__(self, p: int) -> PartitionArrays:
        """Build partition p from its rows in the spool."""
        states = self.order.states(p)
        rows = self.spool.gather(states)
        return build_partition(rows, states, p, self.order, self.n_states, self.dtype, self.source)


def _read_all(source: Source, scratch: Path, options: ConvertOptions, progress: Progress | None) -> list[SpoolFile]:
    """Pass 1: write every block to the spool."""

    def spool(task: tuple[int, BlockReader]) -> SpoolFile:
        index, read_block = task
        return write_spool_file(scratch / f"{index:08d}", read_block())

    files: list[SpoolFile] = []
    with closing(in_order(ThreadsExecutor(options.threads), spool, enumerate(source.blocks()))) as blocks:
        for file in blocks:
            expected = files[-1].end_state if files else 0
            if file.first_state != expected:
                raise InputError(source.path, f"a block begins at state {file.first_state}, not at {expected}")
            files.append(file)
            if progress is not None:
                progress("read", file.end_state, source.n_states)
    source.check_totals()
    if progress is not None and source.n_states is not None:
        progress("read", source.n_states, source.n_states)  # ends the step's clock
    return files


def _plan(
    spool: Spool, order: StateOrder, n_states: int, options: ConvertOptions, note: Callable[[str], None] | None
) -> None:
    """Refuse partitions that RAM does not hold before any is written."""
    work = partition_work(spool, order)
    couplings = min(work.size**2, sum(s.n_transitions for s in spool.files) + work.size)
    plan = conversion_plan(work, n_states, couplings, options.threads)
    check_conversion(plan, work, order)
    if note is not None:
        note(plan.describe())


def _check_states(source: Source, spool: Spool) -> int:
    """The number of states, after a check that the blocks have all of them and no successor is beyond the last."""
    n_states = source.n_states
    covered = spool.files[-1].end_state if spool.files else 0
    if n_states is None or n_states != covered:
        raise InputError(source.path, f"the blocks hold {covered} states, the model has {n_states}")
    if n_states == 0:
        raise InputError(source.path, "the model has no states")
    for file in spool.files:
        if file.max_successor >= n_states:
            raise InputError(
                source.path,
                f"successor {file.max_successor} is not below the number of states, {n_states}",
                file.max_successor_line,
            )
    return n_states


def _partition_source(spool: Spool, n_states: int, options: ConvertOptions) -> tuple[StateOrder, dict[str, Any]]:
    """The partitions that the options ask for, and their description in the attributes."""
    if options.partitions is not None:
        check_count(options.partitions, n_states)
    shape = options.grid_shape(n_states)
    table, target = _table_bytes(spool, n_states, options)
    total = _total_bytes(spool, table)
    method = options.partitioner or ("grid" if shape or options.in_blocks else "ranges")
    if method == "grid":
        if shape is None:
            raise OptionsError("the partitioner grid needs the points along each axis; give them with --grid 100,200")
        block_states = max(target * n_states // total, 1)
        grid = grid_order(
            shape,
            options.partition_shape,
            options.partitions,
            block_states,
            options.partition_grid,
            at_most=options.partition_size is not None,
        )
        return grid, {"method": "grid", "block_shape": grid.state_order()["block_shape"]}
    if method == "metis":
        weights = np.concatenate([table.per_state(a, t) for _, a, t in spool.counts()])
        partitions = options.partitions or min(-(-total // target), n_states)
        return metis_order(spool.edges, weights, partitions), {"method": "metis"}
    pieces = (table.per_state(a, t) for _, a, t in spool.counts())
    if options.partitions is not None:
        return balanced_ranges(pieces, total, n_states, options.partitions), {"method": "ranges"}
    return ranges_by_size(pieces, target), {"method": "ranges", "partition_size": target}


def _table_bytes(spool: Spool, n_states: int, options: ConvertOptions) -> tuple[SizeEstimate, int]:
    """Bytes per transition, row and state, and the target bytes of a partition."""
    actions = {a for s in spool.files for a in s.actions}
    successors = {k for s in spool.files if s.n_rows for k in s.successors}
    partition_states = 0.0
    for _ in range(2):  # the second time with the partition's size, which determines the type of successors
        table = SizeEstimate.estimate(
            options.stored_dtype,
            partition_states,
            uniform_actions=len(actions) == 1,
            uniform_successors=len(successors) == 1,
            durations=spool.has("durations"),
            state_arrays=spool.has("terminal_rewards") + spool.has("initial_values"),
        )
        total = _total_bytes(spool, table)
        target = options.partition_size or default_partition_bytes(total)
        partition_states = n_states / options.partitions if options.partitions else target * n_states / total
        partition_states = min(partition_states, n_states)
    return table, target


def _total_bytes(spool: Spool, table: SizeEstimate) -> int:
    return sum(table.total(s.n_states, s.n_rows, s.n_transitions) for s in spool.files)


def _schema(spool: Spool, order: StateOrder, dtype: np.dtype[np.floating]) -> TableSchema:
    """The schema of the store; only halos, and with them the type of successors, are not known yet."""
    actions = {a for s in spool.files for a in s.actions}
    successors = {k for s in spool.files if s.n_rows for k in s.successors}
    original = {"original_state"} if order.state_order()["kind"] == "array" else set()
    return replace(
        TableSchema(int(order.partition_ptr[-1]), dtype),
        actions=actions.pop() if len(actions) == 1 else 0,
        successors=successors.pop() if len(successors) == 1 else 0,
        float32_durations=all(s.float32_durations for s in spool.files),
        optional=frozenset(original | spool.optional),
    )
