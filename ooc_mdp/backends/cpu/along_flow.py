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

import numpy as np
import numpy.typing as npt
from numba import carray, njit  # type: ignore[attr-defined]

from ooc_mdp.backends.base import ModelConstants, Resident
from ooc_mdp.backends.cpu.addresses import Span, address_of, pointer
from ooc_mdp.backends.cpu.batch import EXTRAPOLATED, FIRST_CHANGE, FULL, POLICY, Group, Shared
from ooc_mdp.backends.cpu.claims import give_back
from ooc_mdp.backends.cpu.loops import full_sweep
from ooc_mdp.backends.cpu.packed import (
    flow_order,
    gather,
    lay_slab,
    mend_slab,
    slab_bytes,
    sweep_slab,
    without_lookahead,
)
from ooc_mdp.backends.cpu.rounds import STRAY_SHARE, beyond, next_member
from ooc_mdp.backends.cpu.table import open_table, row_arrays
from ooc_mdp.backends.cpu.views import Order, view_of

__all__ = ["RoundsAlongFlow", "Slabs"]

_ROUNDS = 16
"""Rounds over the partitions of a visit."""
_MOST_PASSES = 8
"""Sweeps of the policy between two full ones."""
_MOST_DIFFERING = 0.5
"""Share of the states whose action may change in a full sweep before sweeps of the policy follow."""
_DROP = 0.1
"""Share of a visit's first change at which it leaves a partition, and of a full sweep's at which the policy is improved
again."""
_LOOKAHEAD = 0.8
"""Of the probability that flows against the order, how much a step takes along."""
_STALE = 0.03
"""Share of the states that may have changed their action since the order was found."""
_LEAST_LATER, _MOST_LATER = 0.02, 0.3
"""Mean g p_later of partitions that are swept this way."""
_GROWTH = 4.0
"""Changes that many times the first ones end the longer steps."""
_MOST_DOUBTS = 6
_MOST_SLAB_BYTES = 1 << 20
"""Of one partition's slab, which is read from the second-level cache."""
_SLABS_BYTES = 16 << 20
"""Of all slabs: they must not grow with the table."""


@njit(nogil=True, cache=True)
def _rounds(
    kind, model, values, policy, members, progress, types, alternate, limits, wanted, workspace, marks, lookahead,
    slabs, laid_before, changed, scratch, gathered, gathered_rows_at, out,
):  # fmt: skip
    """Rounds of sweeps over the members, by several threads at the same time; values and policy are updated.

    Parameters
    ----------
    limits : float64 [G]; a member is quiescent once a full sweep changes no value by more than this.
    wanted : float64 [G]; the change at which a member's policy is improved; 0 at first.
    marks : int64 [3, G]; whether the policy's sweeps have settled, their number since the last full one, and whether
        the slab holds the present policy; 0 at first.
    lookahead : float64 [G]; c of `ooc_mdp.backends.cpu.packed`.
    slabs : int64 [G]; their addresses.
    laid_before : bool [G]; whether the slab holds the rows of an earlier policy; updated.
    changed : int64 [G]; states that have moved to another action since its order was found; updated.
    scratch : int32 [4, n]; the thread's own, as the next two are.
    gathered, gathered_rows_at : float64 [(K + 1) n], and the address of [n, K] successors.
    out : float64 [G, 2]; the mean of g p_later (-1: not looked at; so at first), and whether steps had to be made
        plain.
    """
    actions, width, discount, sign = kind.actions, kind.width, model.discount, model.sign
    successor_type, probability_type, reward_type = types
    squares, goals, quiet = progress.squares, progress.goals, progress.quiescent
    swept, moving = progress.swept, progress.moving
    settled, passes, laid = marks[0], marks[1], marks[2]
    path = np.zeros(3, np.int64)
    while True:
        m = next_member(kind, path, members, progress, values, policy, workspace, _ROUNDS)
        if m < 0:
            break
        row = members.tables[m]
        table = open_table(row)
        view = view_of(table, members.places[m], workspace, values, policy)
        first, n, h, place = row[0], row[1], row[2], members.places[m]
        changes = workspace[place + n : place + 2 * n]
        local = workspace[place + 2 * n : place + 3 * n + h]
        action_ptr, _, successors, probabilities, rewards, discounts, terminal = row_arrays(
            row, successor_type, probability_type, reward_type
        )
        own_policy = policy[first : first + n]
        rows_each, k_each = row[13], row[14]
        n_width = len(width) if len(width) > 0 else k_each
        improving = moving[m] or settled[m] != 0 or passes[m] >= _MOST_PASSES
        if improving:
            back = alternate and progress.claims[1, m] % 2 == 0
            starts = np.array([n - 1 if back else 0])
            order = Order(Span(address_of(starts), 1), n, -1 if back else 1)
            up, down, differing = full_sweep(kind, table, model, view, order)
            starts[0] = 0  # it is alive until here
            largest = max(up, down)
            swept[m, FULL] += 1
            moving[m] = differing > _MOST_DIFFERING * n
            laid[m] = laid[m] != 0 and differing == 0
            squares[m] = 0.0
            settled[m] = False
            passes[m] = 0
            wanted[m] = _DROP * largest
        else:
            address = slabs[m]
            weights = carray(pointer(address), (n * n_width,), np.float64)
            keep = carray(pointer(address + 8 * n * n_width), (n,), np.float64)
            base = carray(pointer(address + 8 * n * (n_width + 1)), (n,), np.float64)
            flow = carray(pointer(address + 8 * n * (n_width + 2)), (n,), np.uint32)
            choices = carray(pointer(address + 8 * n * (n_width + 2) + 4 * n), (n,), np.int32)
            rows = carray(pointer(address + 8 * n * (n_width + 3)), (n * n_width,), successor_type.dtype)
            gathered_rows = carray(pointer(gathered_rows_at), (n * n_width,), successor_type.dtype)
            c = 0.0 if out[m, 1] > 0.0 else lookahead[m]
            if laid[m] == 0:
                moved = 0
                if laid_before[m]:
                    for i in range(n):
                        moved += own_policy[flow[i]] != choices[i]
                    changed[m] += moved
                if laid_before[m] and changed[m] <= _STALE * n:
                    if moved > 0:
                        mend_slab(
                            actions, width, rows_each, k_each, own_policy, n, action_ptr, successors,
                            probabilities, rewards, discounts, flow, scratch[3], choices, keep, base, weights,
                            rows, discount, sign, c,
                        )  # fmt: skip
                else:
                    gather(
                        actions, width, rows_each, k_each, own_policy, n, action_ptr, successors, probabilities,
                        rewards, discounts, terminal, gathered[:n], gathered[n:], gathered_rows, scratch[0],
                        discount, sign,
                    )  # fmt: skip
                    flow_order(n, scratch[0], scratch[1], scratch[2], scratch[3], flow)
                    out[m, 0] = lay_slab(
                        width, k_each, n, own_policy, gathered[:n], gathered[n:], gathered_rows, flow, scratch[3],
                        choices, keep, base, weights, rows, c,
                    )  # fmt: skip
                    changed[m] = 0
                laid[m] = 1
                laid_before[m] = True
                squares[m] = 0.0
            if squares[m] == 0.0:
                changes[:] = 0.0
            largest, along, square = sweep_slab(width, k_each, n, local, changes, flow, keep, base, weights, rows)
            swept[m, POLICY] += 1
            passes[m] += 1
            before, squares[m] = squares[m], square
            settled[m] = largest <= max(wanted[m], limits[m])
            if c > 0.0 and swept[m, FIRST_CHANGE] > 0.0 and largest > _GROWTH * swept[m, FIRST_CHANGE]:
                without_lookahead(n, n_width, keep, base, weights)
                out[m, 1] = 1.0
                squares[m] = 0.0
            elif largest > limits[m]:
                further = beyond(kind, view.own, before, along, square, largest, STRAY_SHARE)
                if further > 0.0:
                    for i in range(n):
                        local[flow[i]] += further * changes[i]
                    squares[m] = 0.0
                    swept[m, EXTRAPOLATED] += 1
        if swept[m, FIRST_CHANGE] == 0.0:
            swept[m, FIRST_CHANGE] = largest
            goals[m] = max(goals[m], _DROP * largest)
            wanted[m] = _DROP * largest
            settled[m] = not improving and largest <= limits[m]
            quiet[m] = largest <= goals[m]
        else:
            quiet[m] = improving and largest <= goals[m]
        path[2] |= not quiet[m]
        values[first : first + n] = local[:n]
        give_back(progress.claims.ctypes.data + 8 * m)


class Slabs:
    """The slabs of partitions that are swept along the flow, and what is known of each partition.

    Parameters
    ----------
    members : partitions that are swept together at most, by all threads.
    alternate : whether full sweeps may go either way.
    """

    most_differing = _MOST_DIFFERING

    def __init__(self, model: ModelConstants, threads: int, members: int, alternate: bool) -> None:
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
    def nbytes(model: ModelConstants, threads: int, members: int) -> int:
        """Bytes of slabs and scratch; 0 where no partition can be swept this way."""
        n, k = model.largest_partition, model.longest_row
        slabs = _slabs(model, members)
        scratch = threads * n * (16 + 8 * (k + 1) + 4 * k) + 10 * model.row_sums.size
        return slabs * _slab_of(model) + scratch if slabs else 0

    def suits(self, resident: Resident) -> bool:
        """Whether the resident should be swept along the flow."""
        arrays = resident.arrays[0]
        return bool(self.suited[resident.index]) and len(arrays.kind.width) > 0 and not arrays.whole

    def ready(self, resident: Resident) -> bool:
        """Whether the resident is to be swept along the flow, and there is room for its slab."""
        return self.suits(resident) and resident.index in self.slabs

    def take(self, residents: Sequence[Resident]) -> None:
        """Find room for the slabs of residents that are about to be swept together; the first are served first."""
        suited = [r for r in residents if self.suits(r)]
        together = {r.index for r in suited}
        for r in suited:
            arrays = r.arrays[0]
            slab = self.slabs.pop(r.index, None)
            if slab is None:
                self.laid[r.index] = False
                size = slab_bytes(r.n_states, len(arrays.kind.width), arrays.table.successors.itemsize)
                if len(self.slabs) >= self._members:
                    oldest = next((p for p in self.slabs if p not in together), None)
                    if oldest is None:
                        continue
                    slab = self.slabs.pop(oldest)
                if slab is None or slab.nbytes < size:
                    slab = np.empty(size, np.uint8)
            self.slabs[r.index] = slab


class RoundsAlongFlow:
    """Rounds over residents of one kind that are ready (`Slabs.ready`).

    Parameters
    ----------
    moving : bool [P]; whether a partition's policy is still to be found by full sweeps; updated.
    doubts : int8 [G]; above 0 where steps should be those of plain Gauss-Seidel.
    """

    def __init__(
        self, flow: Slabs, group: Group, shared: Shared, moving: npt.NDArray[np.bool_], doubts: npt.NDArray[np.int8]
    ) -> None:
        index = group.index
        self.group = group
        self._flow, self._shared = flow, shared
        self._all_moving = moving
        group.progress.moving[:] = moving[index]
        self._given_up = doubts > _MOST_DOUBTS
        self._marks = np.zeros((3, index.size), np.int64)
        self._lookahead = np.where(doubts > 0, 0.0, _LOOKAHEAD)
        self._laid = flow.laid[index] & (flow.lookahead[index] == self._lookahead.astype(np.float32))
        self._changed = flow.changed[index].astype(np.int64)
        self._slabs = np.array([flow.slabs[p].ctypes.data for p in index.tolist()])
        self._wanted = np.zeros(index.size)
        self._out = np.zeros((index.size, 2))
        self._out[:, 0] = -1.0

    def prepare(self) -> None:
        """Nothing is to be done."""

    def sweep(self, thread: int) -> None:
        """The compiled loop."""
        shared, flow = self._shared, self._flow
        _rounds(
            self.group.kind,
            shared.model,
            shared.values,
            shared.policy,
            self.group.members,
            self.group.progress,
            self.group.residents[0].arrays[0].types,
            flow.alternate,
            self.group.limits,
            self._wanted,
            shared.workspace,
            self._marks,
            self._lookahead,
            self._slabs,
            self._laid,
            self._changed,
            flow.scratch[thread],
            flow.gathered[thread],
            flow.gathered_rows[thread].ctypes.data,
            self._out,
        )

    def conclude(self) -> None:
        """What slabs hold, and which partitions are to be swept otherwise from now on."""
        flow, index, out = self._flow, self.group.index, self._out
        self._all_moving[index] = self.group.progress.moving
        flow.laid[index] = self._laid & (out[:, 1] == 0.0)
        flow.changed[index], flow.lookahead[index] = self._changed, self._lookahead
        looked_at = out[:, 0] >= 0.0
        unsuited = looked_at & ((out[:, 0] < _LEAST_LATER) | (out[:, 0] > _MOST_LATER))
        flow.suited[index] &= ~(unsuited | self._given_up)


def _slabs(model: ModelConstants, members: int) -> int:
    """Slabs that are kept at most."""
    slab = _slab_of(model)
    return min(members, _SLABS_BYTES // slab) if slab else 0


def _slab_of(model: ModelConstants) -> int:
    """Bytes of the largest partition's slab; 0 where there are none."""
    if model.table is None or model.table.durations is not None or model.longest_row == 0:
        return 0
    size = slab_bytes(model.largest_partition, model.longest_row, model.table.successor.itemsize)
    return size if size <= _MOST_SLAB_BYTES else 0
