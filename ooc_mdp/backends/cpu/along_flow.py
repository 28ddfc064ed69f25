"""Rounds of sweeps along the flow of the policy, over several partitions, and which partitions they are for.

A visit of a partition alternates between sweeps over its slab (`ooc_mdp.backends.cpu.packed`) and full sweeps: the
policy is improved once its sweeps' changes are a tenth of those of the last full sweep, and the visit is over once
those of a full sweep are a tenth of the first. Slabs outlive visits, as many as are swept together: what has changed of
the policy is put in its place, and the slab is made again when more than `_STALE` of the states have moved to another
action.

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
from numba import njit

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cpu.addresses import load, store
from ooc_mdp.backends.cpu.batch import EXTRAPOLATED, FIRST_CHANGE, FULL, POLICY, Findings, Group, Shared
from ooc_mdp.backends.cpu.claims import give_back
from ooc_mdp.backends.cpu.loops import full_sweep
from ooc_mdp.backends.cpu.packed import (
    FlowScratch,
    make_plain,
    pack,
    packed_at,
    packed_bytes,
    patch,
    states_moved,
    sweep_packed,
)
from ooc_mdp.backends.cpu.rounds import STRAY_SHARE, beyond, clear, next_member
from ooc_mdp.backends.cpu.table import open_table
from ooc_mdp.backends.cpu.views import order_of, put_back, view_of
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["RoundsAlongFlow", "Slabs"]

_ROUNDS = 16
"""Rounds over the partitions of a visit."""
_MAX_PASSES = 8
"""Sweeps of the policy between two full ones."""
_MAX_DIFFERING = 0.5
"""Share of the states whose action may change in a full sweep before sweeps of the policy follow."""
_DROP = 0.1
"""Share of a visit's first change at which it leaves a partition, and of a full sweep's at which the policy is improved
again."""
_LOOKAHEAD = 0.8
"""Of the probability that flows against the order, how much a step takes along."""
_STALE = 0.03
"""Share of the states that may have changed their action since the order was found."""
_MIN_LATER, _MAX_LATER = 0.02, 0.3
"""Mean g p_later of partitions that are swept this way."""
_GROWTH = 4.0
"""Changes that many times the first ones end the longer steps."""
_MAX_DOUBTS = 6
_MAX_SLAB_BYTES = 1 << 20
"""Of one partition's slab, which is read from the second-level cache."""
_SLABS_BYTES = 16 << 20
"""Of all slabs: they must not grow with the table."""


class FlowProgress(NamedTuple):
    """What these rounds note of each member beside `ooc_mdp.backends.cpu.batch.Progress`."""

    limits: FloatArray
    """float64 [G]; a member is quiescent once a full sweep changes no value by more than this."""
    wanted: FloatArray
    """float64 [G]; the change at which the policy is improved."""
    settled: npt.NDArray[np.bool_]
    """bool [G]; whether the policy's sweeps have come to that,"""
    passes: IntArray
    """int64 [G]; and their number since the last full one."""
    addresses: IntArray
    """int64 [G]; of the packed rows,"""
    valid: npt.NDArray[np.bool_]
    """bool [G]; whether they are known to be those of the present policy,"""
    packed: npt.NDArray[np.bool_]
    """bool [G]; whether they are those of any policy,"""
    moved: IntArray
    """int64 [G]; and states that have moved to another action since their order was found."""
    lookahead: FloatArray
    """float64 [G]; c of `ooc_mdp.backends.cpu.packed`."""
    plain: npt.NDArray[np.bool_]
    """bool [G]; whether steps had to be made plain."""
    later: FloatArray
    """float64 [G]; mean of g p_later; -1: not looked at."""


@njit(nogil=True, cache=True)
def _run_rounds(kind, model, values, policy, members, progress, flow, scratch):
    """Rounds of sweeps over the members, by several threads at the same time; values and policy are updated."""
    path = np.zeros(3, np.int64)
    while True:
        m = next_member(kind, path, members, progress, values, policy, scratch.workspace, _ROUNDS)
        if m < 0:
            break
        table = open_table(members.tables[m])
        view = view_of(table, members.places[m], scratch.workspace, values, policy)
        improving = progress.moving[m] or flow.settled[m] or flow.passes[m] >= _MAX_PASSES
        if improving:
            backwards = scratch.alternate and progress.claims[1, m] % 2 == 0
            order = order_of(progress.walks[m], backwards, scratch.starts)
            largest = _improve(kind, table, model, view, order, progress, flow, m)
        else:
            width = len(kind.width) if len(kind.width) > 0 else table.width
            packed = packed_at(flow.addresses[m], table.n, width)
            if not flow.valid[m]:
                _bring_up_to_date(kind, table, model, view, packed, flow, m, scratch)
                progress.squares[m] = 0.0
            largest = _sweep(kind, table, view, packed, progress, flow, m)
        if progress.swept[m, FIRST_CHANGE] == 0.0:
            progress.swept[m, FIRST_CHANGE] = largest
            progress.goals[m] = max(progress.goals[m], _DROP * largest)
            flow.wanted[m] = _DROP * largest
            flow.settled[m] = not improving and largest <= flow.limits[m]
            progress.quiescent[m] = largest <= progress.goals[m]
        else:
            progress.quiescent[m] = improving and largest <= progress.goals[m]
        path[2] |= not progress.quiescent[m]
        put_back(kind, table, view, values)
        give_back(progress.claims.ctypes.data + 8 * m)


@njit(nogil=True, cache=True)
def _bring_up_to_date(kind, table, model, view, packed, flow, m, scratch):
    """Make the packed rows of member m those of the present policy."""
    lookahead = 0.0 if flow.plain[m] else flow.lookahead[m]
    moved = 0
    if flow.packed[m]:
        moved = states_moved(kind, table, view, packed)
        flow.moved[m] += moved
    if flow.packed[m] and flow.moved[m] <= _STALE * table.n:
        if moved > 0:
            patch(kind, table, model, view, packed, scratch.integers[3], lookahead)
    else:
        flow.later[m] = pack(kind, table, model, view, packed, scratch, lookahead)
        flow.moved[m] = 0
    flow.valid[m] = flow.packed[m] = True


@njit(nogil=True, cache=True)
def _improve(kind, table, model, view, order, progress, flow, m):
    """A full sweep of member m; its largest change."""
    up, down, differing = full_sweep(kind, table, model, view, order)
    largest = max(up, down)
    progress.swept[m, FULL] += 1
    progress.moving[m] = differing > _MAX_DIFFERING * table.n
    progress.squares[m] = 0.0
    flow.valid[m] = flow.valid[m] and differing == 0
    flow.settled[m] = False
    flow.passes[m] = 0
    flow.wanted[m] = _DROP * largest
    return largest


@njit(nogil=True, cache=True)
def _sweep(kind, table, view, packed, progress, flow, m):
    """A sweep over the packed rows of member m, and extrapolation; the largest change of the sweep."""
    if progress.squares[m] == 0.0:
        clear(kind, view.changes)
    largest, along, square = sweep_packed(kind, table, view, packed)
    progress.swept[m, POLICY] += 1
    flow.passes[m] += 1
    before, progress.squares[m] = progress.squares[m], square
    flow.settled[m] = largest <= max(flow.wanted[m], flow.limits[m])
    first = progress.swept[m, FIRST_CHANGE]
    if flow.lookahead[m] > 0.0 and not flow.plain[m] and first > 0.0 and largest > _GROWTH * first:
        make_plain(kind, table, packed)
        flow.plain[m] = True
        progress.squares[m] = 0.0
    elif largest > flow.limits[m]:
        further = beyond(kind, view.own, before, along, square, largest, STRAY_SHARE)
        if further > 0.0:
            for i in range(table.n):
                at = np.uint64(i)
                s = np.uint64(load(kind, packed.order, at, np.uint32(0)))
                store(kind, view.own, s, load(kind, view.own, s, 0.0) + further * load(kind, view.changes, at, 0.0))
            progress.squares[m] = 0.0
            progress.swept[m, EXTRAPOLATED] += 1
    return largest


class Slabs:
    """The slabs of partitions that are swept along the flow, and what is known of each partition.

    Parameters
    ----------
    members : partitions that are swept together at most, by all threads.
    alternate : whether full sweeps may go either way.
    """

    max_differing = _MAX_DIFFERING

    def __init__(self, model: ModelFacts, threads: int, members: int, alternate: bool) -> None:
        n, k = model.largest_partition, model.longest_row
        self.alternate = alternate
        self._members = _slabs(model, members)
        self.suited = np.full(model.row_sums.size, bool(self._members))
        """bool [P]; whether sweeps along the flow are, or may be, the right ones."""
        self.laid = np.zeros(model.row_sums.size, np.bool_)
        self.changed = np.zeros(model.row_sums.size, np.int32)
        self.lookahead = np.zeros(model.row_sums.size, np.float32)
        self.slabs: dict[int, npt.NDArray[np.uint8]] = {}
        """Least recently visited first."""
        room = 1 if self._members else 0
        self.scratch = [np.empty((4 * room, n * room), np.int32) for _ in range(threads)]
        self.gathered = [np.empty(n * (k + 1) * room) for _ in range(threads)]
        self.gathered_rows = [np.empty(n * k * room, np.uint32) for _ in range(threads)]

    @staticmethod
    def nbytes(model: ModelFacts, threads: int, members: int) -> int:
        """Bytes of slabs and scratch; 0 where no partition can be swept this way."""
        n, k = model.largest_partition, model.longest_row
        slabs = _slabs(model, members)
        scratch = threads * n * (16 + 8 * (k + 1) + 4 * k) + 10 * model.row_sums.size
        return slabs * _slab_of(model) + scratch if slabs else 0

    def suits(self, resident: Resident) -> bool:
        """Whether the resident should be swept along the flow."""
        arrays = resident.arrays[0]
        return bool(self.suited[resident.index]) and len(arrays.kind.width) > 0 and not arrays.whole

    def take(self, residents: Sequence[Resident]) -> set[int]:
        """Find room for the slabs of residents that are about to be swept together; the first are served first.

        Returns
        -------
        Numbers of those that suit and have a slab.
        """
        suited = [r for r in residents if self.suits(r)]
        together, served = {r.index for r in suited}, set()
        for r in suited:
            arrays = r.arrays[0]
            slab = self.slabs.pop(r.index, None)
            if slab is None:
                self.laid[r.index] = False
                size = packed_bytes(r.n_states, len(arrays.kind.width), arrays.table.successors.itemsize)
                if len(self.slabs) >= self._members:
                    oldest = next((p for p in self.slabs if p not in together), None)
                    if oldest is None:
                        continue
                    slab = self.slabs.pop(oldest)
                if slab is None or slab.nbytes < size:
                    slab = np.empty(size, np.uint8)
            self.slabs[r.index] = slab
            served.add(r.index)
        return served


class RoundsAlongFlow:
    """Rounds over residents of one kind that have slabs (`Slabs.take`).

    Parameters
    ----------
    findings : of all partitions; `moving` is updated, and steps of members with `doubts` are those of plain
        Gauss-Seidel.
    """

    def __init__(self, flow: Slabs, group: Group, shared: Shared, findings: Findings) -> None:
        index = group.index
        doubts = findings.doubts[index]
        self.group = group
        self._flow, self._shared = flow, shared
        self._findings = findings
        group.progress.moving[:] = findings.moving[index]
        self._given_up = doubts > _MAX_DOUBTS
        lookahead = np.where(doubts > 0, 0.0, _LOOKAHEAD)
        count = index.size
        group.progress.walks[:, 0, -1] = group.members.tables[:, 1]
        self._state = FlowProgress(
            limits=group.limits,
            wanted=np.zeros(count),
            settled=np.zeros(count, np.bool_),
            passes=np.zeros(count, np.int64),
            addresses=np.array([flow.slabs[p].ctypes.data for p in index.tolist()]),
            valid=np.zeros(count, np.bool_),
            packed=flow.laid[index] & (flow.lookahead[index] == lookahead.astype(np.float32)),
            moved=flow.changed[index].astype(np.int64),
            lookahead=lookahead,
            plain=np.zeros(count, np.bool_),
            later=np.full(count, -1.0),
        )

    def prepare(self) -> None:
        """Nothing is to be done."""

    def sweep(self, thread: int) -> None:
        """The compiled loop."""
        shared, flow = self._shared, self._flow
        arrays = flow.scratch[thread], flow.gathered[thread], flow.gathered_rows[thread]
        _run_rounds(
            self.group.kind,
            shared.model,
            shared.values,
            shared.policy,
            self.group.members,
            self.group.progress,
            self._state,
            FlowScratch(shared.workspace, shared.starts[thread], *arrays, flow.alternate),
        )

    def conclude(self) -> None:
        """What slabs hold, and which partitions are to be swept otherwise from now on."""
        flow, index, state = self._flow, self.group.index, self._state
        self._findings.moving[index] = self.group.progress.moving
        flow.laid[index] = state.packed & ~state.plain
        flow.changed[index], flow.lookahead[index] = state.moved, state.lookahead
        looked_at = state.later >= 0.0
        unsuited = looked_at & ((state.later < _MIN_LATER) | (state.later > _MAX_LATER))
        flow.suited[index] &= ~(unsuited | self._given_up)


def _slabs(model: ModelFacts, members: int) -> int:
    """Slabs that are kept at most."""
    slab = _slab_of(model)
    return min(members, _SLABS_BYTES // slab) if slab else 0


def _slab_of(model: ModelFacts) -> int:
    """Bytes of the largest partition's slab; 0 where there are none."""
    if model.duration_dtype is not None or model.longest_row == 0:
        return 0
    size = packed_bytes(model.largest_partition, model.longest_row, model.successor_dtype.itemsize)
    return size if size <= _MAX_SLAB_BYTES else 0
