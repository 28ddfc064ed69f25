"""What generating a store will take, estimated from a sample before the work, and refused where it cannot fit.

    disk     bytes of the chunks of some states of a few partitions, encoded as they will be, times all states
    time     seconds that these took, times all states, shared by the threads
    memory   a bit per state (which states others read), what is kept of each partition, partitions at work

A virtual store has no chunks: its estimate is that of the first pass. Nothing is written but the sample, to a temporary
directory. What there is of disk and memory is measured by :class:`ooc_mdp.runtime.room.Room` alone.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.io.conversion.from_problem import ProblemPartitions, known_schema, mean_bytes, partition_problem
from ooc_mdp.io.conversion.partitioning import split_evenly
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.state_order import StateOrder
from ooc_mdp.options import format_bytes
from ooc_mdp.problems.problem import Problem
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan
from ooc_mdp.runtime.room import Room
from ooc_mdp.sizes import format_seconds
from ooc_mdp.store.partition_writer import PartitionWriter
from ooc_mdp.table_options import ConvertOptions

__all__ = ["GenerationEstimate", "check_generation", "confirm_generation", "estimate_generation"]

SOLVE_BYTES = (12, 24)
"""Bytes per state that a solve holds besides its cache, from the simplest method to the most demanding one."""

_SAMPLED_PARTITIONS = 3
_SAMPLED_STATES = 4096
"""Of each sampled partition."""
_PARTITION_BYTES = 4096
"""Kept in memory of each partition that has been written: sizes, ranges, couplings, the manifest's entries."""
_WORKING_COPIES = 5
"""Size of a partition while it is computed, in decoded tables."""
_GRAPH_BYTES = 90
"""For each transition, of the graph that METIS divides, if no two connect the same states."""
_FILE_SLACK = 2048
"""Bytes that a file leaves unused of its last block, on average."""


@dataclass(frozen=True, slots=True)
class GenerationEstimate:
    """What generating a store, or the first pass of a virtual one, takes."""

    states: int
    rows: int
    transitions: int
    partitions: int
    disk: int
    """Bytes of the store; 0 for a virtual one."""
    buffers: dict[str, int]
    """Bytes in RAM that generating holds, by name."""
    seconds: float
    parallel: int
    """Threads or workers."""

    @property
    def memory(self) -> int:
        """Bytes that generating holds."""
        return sum(self.buffers.values())

    def memory_plan(self) -> MemoryPlan:
        """The same, beside what the process has now."""
        return MemoryPlan({PROCESS: resident_bytes(), **self.buffers}, {})

    @property
    def solve_memory(self) -> tuple[int, int]:
        """Least and most bytes that a solve holds besides its cache."""
        return SOLVE_BYTES[0] * self.states, SOLVE_BYTES[1] * self.states

    def summary(self) -> dict[str, Any]:
        """The figures as plain values, as --json prints them."""
        return {
            "n_states": self.states,
            "n_state_actions": self.rows,
            "n_transitions": self.transitions,
            "n_partitions": self.partitions,
            "disk_bytes": self.disk,
            "memory": self.buffers,
            "memory_bytes": self.memory,
            "seconds": self.seconds,
            "threads": self.parallel,
            "solve_memory_bytes": list(self.solve_memory),
        }

    def sentence(self, room: Room) -> str:
        """The estimate in one line, compared with what there is."""
        least, most = map(format_bytes, self.solve_memory)
        disk = f"{format_bytes(self.disk)} on disk{_of(room.disk)}, " if self.disk else ""
        return (
            f"estimate: {self.states:,} states, {self.rows:,} rows and {self.transitions:,} transitions in "
            f"{_counted(self.partitions, 'partition')}; {disk}{format_bytes(self.memory)} of memory{_of(room.memory)}, "
            f"{format_seconds(self.seconds)} on {_counted(self.parallel, 'thread')}; a solve holds "
            f"{least} to {most} besides its cache"
        )


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _of(free: int | None) -> str:
    return "" if free is None else f" ({format_bytes(free)} free)"


def check_generation(estimate: GenerationEstimate, room: Room, confirmed: bool) -> None:
    """Refuse what cannot fit, and what is large unless it is confirmed.

    Raises
    ------
    OptionsError : more memory or disk than there is; or, unconfirmed, more than an hour, more than 80% of the free
        disk, or more states than a solve could hold on this machine.
    """
    said = estimate.sentence(room)
    smaller = "give a coarser grid or fewer states"
    if room.memory is not None and estimate.memory > room.memory:
        raise OptionsError(
            f"generating needs {format_bytes(estimate.memory)} of memory, {format_bytes(room.memory)} are free: "
            f"{smaller}, or other partitions (--partition-size) and fewer --threads ({said})"
        )
    if room.disk is not None and estimate.disk > room.disk:
        raise OptionsError(
            f"the store needs about {format_bytes(estimate.disk)} of disk, {format_bytes(room.disk)} are free: "
            f"{smaller}, choose another disk, or store no tables (--virtual) ({said})"
        )
    if confirmed:
        return
    reasons = room.reasons_to_confirm(estimate.seconds, estimate.disk)
    if room.memory is not None and estimate.solve_memory[0] > room.memory:
        reasons.append(f"has more states than a solve could hold in the {format_bytes(room.memory)} that are free here")
    if reasons:
        raise OptionsError(
            f"generating this store {' and '.join(reasons)}; confirm with --yes (in Python allow_large=True), or "
            f"{smaller} ({said})"
        )


def confirm_generation(
    problem: Problem,
    options: ConvertOptions,
    store: Path,
    confirmed: bool,
    note: Callable[[str], None] | None,
    *,
    virtual: bool,
    workers: int | None = None,
) -> None:
    """Estimate what generating takes, note it, and refuse what cannot fit, or is large and not confirmed.

    Raises
    ------
    OptionsError : as of :func:`check_generation`; or the options do not fit the problem.
    """
    room = Room.at(store)
    if options.resume:  # part of the disk is taken already, and was confirmed
        room, confirmed = replace(room, disk=None), True
    processes = None if workers is None else max(workers, 1)
    estimate = estimate_generation(problem, options, room, virtual=virtual, workers=processes)
    check_generation(estimate, room, confirmed)
    if note is not None:
        note(estimate.sentence(room))
        if workers is None:
            note(estimate.memory_plan().describe())


def estimate_generation(
    problem: Problem, options: ConvertOptions, room: Room, *, virtual: bool = False, workers: int | None = None
) -> GenerationEstimate:
    """Estimate what generating takes; computes the rows of some thousand states.

    Parameters
    ----------
    room : memory in which partitions are planned; where these alone do not fit, their sample is smaller.
    virtual : estimate the first pass of a virtual store.
    workers : processes that compute partitions, in place of the options' threads.

    Raises
    ------
    OptionsError : the options do not fit the problem.
    InputError : rows of the sample are no probability distributions.
    """
    n = problem.n_states
    per_state, target = mean_bytes(problem, options)
    partitions = _count_partitions(n, options, target / per_state)
    parallel = options.threads if workers is None else workers
    entries = partitions * _PARTITION_BYTES
    working = int(min(parallel, partitions) * _WORKING_COPIES * per_state * -(-n // partitions))
    fits = room.memory is None or entries + working <= room.memory
    sample = _sample_partitions(problem, options, virtual) if fits else _sample_rows(problem, per_state, virtual)
    partitions = sample.partitions or partitions
    scale = n / sample.states
    buffers = {"boundary": n // 8, "entries of partitions": entries, "partitions under way": working}
    if options.partitioner == "metis":
        buffers["graph of the states"] = 16 * n + round(_GRAPH_BYTES * sample.transitions * scale)
    return GenerationEstimate(
        states=n,
        rows=round(sample.rows * scale),
        transitions=round(sample.transitions * scale),
        partitions=partitions,
        disk=0 if virtual else round(sample.bytes * scale) + partitions * sample.files * _FILE_SLACK,
        buffers=buffers,
        seconds=sample.seconds * scale / min(parallel, partitions),
        parallel=parallel,
    )


@dataclass(slots=True)
class _Sample:
    """Sums over the states of a sample."""

    states: int = 0
    rows: int = 0
    transitions: int = 0
    bytes: int = 0
    """Encoded."""
    seconds: float = 0.0
    files: int = 0
    """Of a partition."""
    partitions: int = 0
    """Of the table; 0 where they were not planned."""


class _FirstStates:
    """A numbering whose partition p has the first states of another's only, and is followed by one of its others."""

    def __init__(self, order: StateOrder, p: int, most: int) -> None:
        self._order, self._p = order, p
        first, last = order.partition_ptr[p : p + 2].tolist()
        self._count = min(most, last - first)
        cut = [first + self._count] if self._count < last - first else []
        self.partition_ptr: IntArray = np.insert(order.partition_ptr, p + 1, cut)

    def to_store(self, states: IntArray) -> IntArray:
        """As in the other numbering."""
        return self._order.to_store(states)

    def states(self, p: int) -> IntArray:
        """The first states of partition p, which must be the one that is divided."""
        assert p == self._p
        return self._order.states(p)[: self._count]

    def state_order(self) -> dict[str, Any]:
        """As in the other numbering."""
        return self._order.state_order()


def _count_partitions(n: int, options: ConvertOptions, partition_states: float) -> int:
    """About the number of partitions, without memory that grows with it."""
    if options.partitions is not None:
        return options.partitions
    if options.partition_grid is not None:
        return math.prod(options.partition_grid)
    if options.partition_shape is not None:
        return max(1, n // math.prod(options.partition_shape))
    return -(-n // max(int(partition_states), 1))


def _sample_partitions(problem: Problem, options: ConvertOptions, virtual: bool) -> _Sample:
    """Compute and encode some states of a few partitions, once before the time is taken."""
    if options.partitioner == "metis":  # which reads the whole graph; ranges are as large
        options = replace(options, partitioner="ranges")
    order, _ = partition_problem(problem, options)
    n = order.partition_ptr.size - 1
    chosen = np.unique(split_evenly(n, min(_SAMPLED_PARTITIONS, n))[:-1] + n // (2 * _SAMPLED_PARTITIONS))
    sample = _Sample(partitions=n)
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-estimate-") as folder:
        writer = PartitionWriter(Path(folder))

        def add(p: int, to: _Sample) -> None:
            first = _FirstStates(order, p, _SAMPLED_STATES)
            part = ProblemPartitions(problem, first, options.stored_dtype)(p)
            states = part.action_ptr.size - 1
            to.states += states
            to.rows += part.successor_ptr.size - 1
            to.transitions += part.successors.size
            if not virtual:
                schema = known_schema(problem, options.stored_dtype)
                entry = writer.write(p, part, schema)
                to.bytes += sum(chunk.entry.n_bytes for chunk in entry.chunks.values()) + -(-states // 8)
                to.files = len(entry.chunks) + 1

        add(int(chosen[0]), _Sample())
        began = time.perf_counter()
        for p in chosen:
            add(int(p), sample)
        sample.seconds = time.perf_counter() - began
    return sample


def _sample_rows(problem: Problem, per_state: float, virtual: bool) -> _Sample:
    """Compute some rows only, for tables whose partitions cannot even be planned; bytes are those before encoding."""
    count = min(_SAMPLED_STATES, problem.n_states)
    states = split_evenly(problem.n_states, count)[:-1]
    rows = problem.rows(states)
    began = time.perf_counter()
    problem.rows(states)
    seconds = time.perf_counter() - began
    return _Sample(count, rows.n_rows, rows.n_transitions, 0 if virtual else round(count * per_state), seconds, 8)
