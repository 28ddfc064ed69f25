"""Rounds of sweeps in the topological order of the policy, over several partitions, and which partitions they are for.

A visit of a partition alternates between sweeps over its packed rows (`ooc_mdp.backends.cpu.packed`) and full sweeps:
the policy is improved once its sweeps' changes are a tenth of those of the last full sweep, and the visit is over once
those of a full sweep are a tenth of the first. Packed rows outlive visits: rows whose action has changed are patched,
and all are packed again once more than `_MAX_OUTDATED` of the states have another action. There are buffers for as many
partitions as the cache holds: with fewer, rows would be packed again at most visits.

It is for policies that go where they mean to, with some noise (a gridworld's: 0.19 of the probability comes later in
the order). Where next to none does, or much, steps gain nothing or are not safe; such partitions, and those whose
visits ended worse than they began, go back to `ooc_mdp.backends.cpu.rounds` for good. Models with durations are never
swept this way: with discounts up to 0.9999, what a long step does wrong is not forgotten (a car's partitions disturbed
each other without end).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cpu.addresses import load, store
from ooc_mdp.backends.cpu.batch import EXTRAPOLATED, FIRST_CHANGE, FULL, POLICY, Findings, Members, Progress, Shared
from ooc_mdp.backends.cpu.calls import Call, call_of
from ooc_mdp.backends.cpu.claims import release
from ooc_mdp.backends.cpu.loops import full_sweep
from ooc_mdp.backends.cpu.packed import (
    PackScratch,
    PackScratches,
    count_outdated,
    make_plain,
    pack,
    packed_at,
    packed_bytes,
    patch,
    sweep_packed,
)
from ooc_mdp.backends.cpu.rounds import ACCEPTANCE_THRESHOLD, clear, extrapolation_factor, next_member
from ooc_mdp.backends.cpu.table import Specialisation, open_table
from ooc_mdp.backends.cpu.views import order_of_memory, put_back, view_of
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.compiled import loop, part, short_loop

__all__ = [
    "MAX_DIFFERING_PACKED",
    "MAX_FAILURES_PACKED",
    "PackedBuffers",
    "begin_packed",
    "new_packed_progress",
    "topological_rounds",
]

_ROUNDS = 16
"""Rounds over the partitions of a visit."""
_MAX_PASSES = 8
"""Sweeps of the policy between two full ones."""
MAX_DIFFERING_PACKED = 0.5
"""Share of the states whose action may change in a full sweep before sweeps of the policy follow."""
_DROP = 0.1
"""Share of a visit's first change at which it leaves a partition, and of a full sweep's at which the policy is improved
again."""
_RELAXATION = 0.8
"""Relaxation factor: the share of the probability of later successors that is lumped into the step."""
_MAX_OUTDATED = 0.2
"""Share of the states that may have changed their action since the order was found."""
_MIN_LATER, _MAX_LATER = 0.02, 0.3
"""Mean g p_later of partitions that are swept this way."""
_GROWTH = 4.0
"""Changes that many times the first ones end the longer steps."""
MAX_FAILURES_PACKED = 6
"""Failure count beyond which a partition is left to the other rounds."""
_MAX_BUFFER_BYTES = 1 << 20
"""Of one partition's packed rows, which are read from the second-level cache."""
_MAX_BYTES = 16 << 20
"""Of all packed rows, or `_SHARE_OF_CACHE` where that is more: they must not grow with the table."""
_SHARE_OF_CACHE = 1 / 3


class KnownRows(NamedTuple):
    """What is known of the packed rows of each partition, from one visit to the next."""

    packed: npt.NDArray[np.bool_]
    """bool [P]; whether they are those of any policy."""
    changed: npt.NDArray[np.int32]
    """int32 [P]; states whose action has changed since their order was found."""
    relaxation: FloatArray
    """float64 [P]; the relaxation factor c that they were packed with."""


class PackedProgress(NamedTuple):
    """What these rounds note of each member beside `ooc_mdp.backends.cpu.batch.Progress`."""

    wanted: FloatArray
    """float64 [M]; the change at which the policy is improved."""
    converged: npt.NDArray[np.bool_]
    """bool [M]; whether the sweeps of the policy have come down to `wanted`."""
    passes: IntArray
    """int64 [M]; sweeps of the policy since the last full one."""
    addresses: IntArray
    """int64 [M]; of the packed rows."""
    valid: npt.NDArray[np.bool_]
    """bool [M]; whether the packed rows are known to be those of the present policy."""
    relaxation: FloatArray
    """float64 [M]; the relaxation factor c of `ooc_mdp.backends.cpu.packed`."""


@part
def _run_rounds(
    spec, section, model, values, policy, members, progress, findings, state, known, workspace, starts, buffers, thread
):
    """Rounds of sweeps over the members, by several threads at the same time; values and policy are updated."""
    integers, numbers, successors = buffers.integers[thread], buffers.numbers[thread], buffers.successors[thread]
    scratch = PackScratch(workspace, starts[thread], integers, numbers, successors, buffers.alternate)
    path = np.zeros(3, np.int64)
    while True:
        m = next_member(spec, path, section, members, progress, values, policy, workspace, _ROUNDS)
        if m < 0:
            break
        table = open_table(members.tables[m])
        view = view_of(table, members.places[m], workspace, values, policy)
        improving = findings.unstable[table.partition] or state.converged[m] or state.passes[m] >= _MAX_PASSES
        if improving:
            backwards = scratch.alternate and progress.claims[1, m] % 2 == 0
            order = order_of_memory(table.n, backwards, scratch.starts)
            largest = _improve(spec, table, model, view, order, progress, findings, state, m)
        else:
            width = len(spec.width) if len(spec.width) > 0 else table.width
            packed = packed_at(state.addresses[m], table.n, width)
            if not state.valid[m]:
                _bring_up_to_date(
                    spec, table, model, view, packed, known, findings.suited, state.relaxation[m], scratch
                )
                state.valid[m] = True
                progress.squares[m] = 0.0
            largest = _sweep(spec, table, view, packed, progress, state, known, m)
        if progress.swept[m, FIRST_CHANGE] == 0.0:
            progress.swept[m, FIRST_CHANGE] = largest
            progress.goals[m] = max(progress.goals[m], _DROP * largest)
            state.wanted[m] = _DROP * largest
            state.converged[m] = not improving and largest <= progress.limits[m]
            progress.quiescent[m] = largest <= progress.goals[m]
        else:
            progress.quiescent[m] = improving and largest <= progress.goals[m]
        path[2] |= not progress.quiescent[m]
        put_back(spec, table, view, values)
        release(progress.claims.ctypes.data + 8 * m)


@part
def _bring_up_to_date(spec, table, model, view, packed, known, suited, relaxation, scratch):
    """Make the packed rows of a partition those of the present policy; packing tells whether they suit it."""
    p = table.partition
    outdated = 0
    usable = known.packed[p] and known.relaxation[p] == relaxation
    if usable:
        outdated = count_outdated(spec, table, view, packed)
        known.changed[p] += outdated
    if usable and known.changed[p] <= _MAX_OUTDATED * table.n:
        if outdated > 0:
            patch(spec, table, model, view, packed, scratch.integers[3], relaxation)
    else:
        later = pack(spec, table, model, view, packed, scratch, relaxation)
        known.packed[p], known.changed[p], known.relaxation[p] = True, 0, relaxation
        suited[p] &= _MIN_LATER <= later <= _MAX_LATER


@part
def _improve(spec, table, model, view, order, progress, findings, state, m):
    """A full sweep of member m; its largest change."""
    up, down, differing = full_sweep(spec, table, model, view, order)
    largest = max(up, down)
    progress.last_full[m, 0], progress.last_full[m, 1] = up, down
    progress.swept[m, FULL] += 1
    findings.unstable[table.partition] = differing > MAX_DIFFERING_PACKED * table.n
    progress.squares[m] = 0.0
    state.valid[m] = state.valid[m] and differing == 0
    state.converged[m] = False
    state.passes[m] = 0
    state.wanted[m] = _DROP * largest
    return largest


@loop
def _sweep(spec, table, view, packed, progress, state, known, m):
    """A sweep over the packed rows of member m, and extrapolation; the largest change of the sweep."""
    if progress.squares[m] == 0.0:
        clear(spec, view.changes)
    largest, along, square = sweep_packed(spec, table, view, packed)
    progress.last_full[m] = np.inf
    progress.swept[m, POLICY] += 1
    state.passes[m] += 1
    before, progress.squares[m] = progress.squares[m], square
    state.converged[m] = largest <= max(state.wanted[m], progress.limits[m])
    first = progress.swept[m, FIRST_CHANGE]
    if state.relaxation[m] > 0.0 and first > 0.0 and largest > _GROWTH * first:
        make_plain(spec, table, packed)
        state.relaxation[m] = 0.0
        known.packed[table.partition] = False  # another visit takes the longer steps
        progress.squares[m] = 0.0
    elif largest > progress.limits[m]:
        further = extrapolation_factor(spec, view.own, before, along, square, largest, ACCEPTANCE_THRESHOLD)
        if further > 0.0:
            for i in range(table.n):
                at = np.uint64(i)
                s = np.uint64(load(spec, packed.order, at, np.uint32(0)))
                store(spec, view.own, s, load(spec, view.own, s, 0.0) + further * load(spec, view.changes, at, 0.0))
            progress.squares[m] = 0.0
            progress.swept[m, EXTRAPOLATED] += 1
    return largest


class PackedBuffers:
    """Packed rows of the partitions that are swept in topological order, and what is known of each partition.

    Parameters
    ----------
    members : partitions of a batch at most, which all threads sweep.
    cache : bytes of tables that are resident at most.
    alternate : whether full sweeps may go either way.
    """

    def __init__(self, facts: ModelFacts, threads: int, members: int, cache: int, alternate: bool) -> None:
        n, k = facts.largest_partition, facts.longest_row
        self._count = _buffer_count(facts, members, cache)
        self.suited = np.full(facts.row_sums.size, bool(self._count))
        """bool [P]; whether sweeps in topological order are, or may be, the right ones."""
        partitions = facts.row_sums.size
        self.known = KnownRows(np.zeros(partitions, np.bool_), np.zeros(partitions, np.int32), np.zeros(partitions))
        self.addresses = np.zeros(partitions, np.int64)
        """int64 [P]; of the buffers,"""
        self.by_partition: dict[int, npt.NDArray[np.uint8]] = {}
        """which are these, the least recently visited first."""
        n *= 1 if self._count else 0
        self.scratch = PackScratches(
            np.empty((threads, 4, n), np.int32),
            np.empty((threads, n * (k + 1))),
            np.empty((threads, n * k), np.uint32),
            alternate,
        )

    @staticmethod
    def nbytes(facts: ModelFacts, threads: int, members: int, cache: int) -> int:
        """Bytes of packed rows and scratch; 0 where no partition can be swept this way."""
        n, k = facts.largest_partition, facts.longest_row
        buffers = _buffer_count(facts, members, cache)
        scratch = threads * n * (16 + 8 * (k + 1) + 4 * k) + 22 * facts.row_sums.size
        return buffers * _buffer_bytes(facts) + scratch if buffers else 0

    def suits(self, resident: Resident) -> bool:
        """Whether the resident should be swept in topological order."""
        arrays = resident.arrays[0]
        return bool(self.suited[resident.index]) and len(arrays.spec.width) > 0 and not arrays.global_successors

    def assign(self, residents: Sequence[Resident]) -> set[int]:
        """Find a buffer for each resident of a batch that is about to be swept; the first are served first.

        Returns
        -------
        Numbers of those that suit and have a buffer.
        """
        suited = [r for r in residents if self.suits(r)] if self._count else []
        batch, served = {r.index for r in suited}, set()
        for r in suited:
            arrays = r.arrays[0]
            buffer = self.by_partition.pop(r.index, None)
            if buffer is None:
                self.known.packed[r.index] = False
                size = packed_bytes(r.n_states, len(arrays.spec.width), arrays.table.successors.itemsize)
                if len(self.by_partition) >= self._count:
                    oldest = next((p for p in self.by_partition if p not in batch), None)
                    if oldest is None:
                        continue
                    buffer = self.by_partition.pop(oldest)
                if buffer is None or buffer.nbytes < size:
                    buffer = np.empty(size, np.uint8)
                self.addresses[r.index] = buffer.ctypes.data
            self.by_partition[r.index] = buffer
            served.add(r.index)
        return served


def new_packed_progress(count: int) -> PackedProgress:
    """Places for so many members; what is there is written by `begin_packed`."""
    return PackedProgress(
        wanted=np.zeros(count),
        converged=np.zeros(count, np.bool_),
        passes=np.zeros(count, np.int64),
        addresses=np.zeros(count, np.int64),
        valid=np.zeros(count, np.bool_),
        relaxation=np.zeros(count),
    )


@short_loop
def begin_packed(section, members, state, findings, addresses):
    """Begin a visit of a section of the members; failures have made steps those of plain Gauss-Seidel (c = 0).

    Parameters
    ----------
    addresses : int64 [P]; of each partition's packed rows.
    """
    for m in range(section[0], section[1]):
        p = open_table(members.tables[m]).partition
        state.wanted[m] = 0.0
        state.converged[m] = state.valid[m] = False
        state.passes[m] = 0
        state.addresses[m] = addresses[p]
        state.relaxation[m] = 0.0 if findings.failures[p] > 0 else _RELAXATION


def topological_rounds(
    spec: Specialisation,
    section: IntArray,
    shared: Shared,
    members: Members,
    progress: Progress,
    findings: Findings,
    state: PackedProgress,
    buffers: PackedBuffers,
) -> Call:
    """Rounds over a section of the members, which have buffers (`PackedBuffers.assign`)."""
    of_all = shared.model, shared.values, shared.policy, members, progress, findings
    scratch = shared.workspace, shared.starts, buffers.scratch
    return call_of(_run_rounds, spec, section, *of_all, state, buffers.known, *scratch)


def _buffer_count(facts: ModelFacts, members: int, cache: int) -> int:
    """Partitions whose rows are packed at most: those that are resident, or swept in a batch if these are more."""
    size = _buffer_bytes(facts)
    if not size:
        return 0
    residents = min(facts.n_partitions, cache * facts.n_partitions // facts.table_bytes)
    return min(max(members, residents), max(_MAX_BYTES, int(_SHARE_OF_CACHE * cache)) // size)


def _buffer_bytes(facts: ModelFacts) -> int:
    """Bytes of the largest partition's packed rows; 0 where there are none."""
    if facts.duration_dtype is not None or facts.longest_row == 0:
        return 0
    size = packed_bytes(facts.largest_partition, facts.longest_row, facts.successor_dtype.itemsize)
    return size if size <= _MAX_BUFFER_BYTES else 0
