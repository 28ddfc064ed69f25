"""Rounds of sweeps along the flow of the policy, over several partitions, and which partitions they are for.

A visit of a partition alternates between sweeps over its slab (`ooc_mdp.backends.cpu.packed`) and full sweeps: the
policy is improved once its sweeps' changes are a tenth of those of the last full sweep, and the visit is over once
those of a full sweep are a tenth of the first. Slabs outlive visits, as many as are swept together: what has changed of
the policy is put in its place, and the slab is made again when more than `_STALE` of the states have moved to another
action.

It is for policies that go where they mean to, with some noise (a gridworld's: 0.19 of the probability comes later in
the order). Where next to none does, or much, steps gain nothing or are not safe; such partitions, and those whose
visits ended worse than they began, go back to `ooc_mdp.backends.cpu.loops.evaluate` for good. Models with durations
are never swept this way: with discounts up to 0.9999, what a long step does wrong is not forgotten (a car's partitions
disturbed each other without end).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import carray, njit  # type: ignore[attr-defined]

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cpu.batch import STRAY_SHARE, Members
from ooc_mdp.backends.cpu.claims import give_back
from ooc_mdp.backends.cpu.loops import beyond, full_sweep, next_at_work, pointer, row_arrays
from ooc_mdp.backends.cpu.packed import (
    flow_order,
    gather,
    lay_slab,
    mend_slab,
    slab_bytes,
    sweep_slab,
    without_lookahead,
)
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray

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
    actions, width, values, policy, table, alternate, limits, moving, workspace, places, turns, progress, marks,
    successor_type, probability_type, reward_type, discount, sign, lookahead, slabs, laid_before, changed, scratch,
    gathered, gathered_rows_at, out,
):  # fmt: skip
    """Rounds of sweeps over the members, by several threads at the same time; values and policy are updated.

    Parameters
    ----------
    limits : float64 [G]; a member is quiet once a full sweep changes no value by more than this.
    progress : float64 [4, G]; as for `evaluate`, then the change at which a member's policy is improved; 0 at first.
    marks : int64 [3, G]; whether the policy's sweeps have settled, their number since the last full one, and whether
        the slab holds the present policy; 0 at first.
    lookahead : float64 [G]; c of `ooc_mdp.backends.cpu.packed`.
    slabs : int64 [G]; their addresses.
    laid_before : bool [G]; whether the slab holds the rows of an earlier policy; updated.
    changed : int64 [G]; states that have moved to another action since its order was found; updated.
    scratch : int32 [4, n]; the thread's own, as the next two are.
    gathered, gathered_rows_at : float64 [(K + 1) n], and the address of [n, K] successors.
    out : float64 [G, 9]; as for `evaluate`, then the mean of g p_later (-1: not looked at; so at first), and whether
        steps had to be made plain.
    Others as for `evaluate`; successors are local.
    """
    squares, goals, quiet, wanted = progress[0], progress[1], progress[2], progress[3]
    settled, passes, laid = marks[0], marks[1], marks[2]
    path = np.zeros(3, np.int64)
    while True:
        m = next_at_work(path, table, places, values, workspace, turns, progress, _ROUNDS)
        if m < 0:
            break
        first, n, h, place = table[m, 0], table[m, 1], table[m, 2], places[m]
        changes = workspace[place + n : place + 2 * n]
        local = workspace[place + 2 * n : place + 3 * n + h]
        action_ptr, _, successors, probabilities, rewards, discounts, terminal = row_arrays(
            table[m], successor_type, probability_type, reward_type
        )
        own_policy = policy[first : first + n]
        rows_each, k_each = table[m, 13], table[m, 14]
        n_width = len(width) if len(width) > 0 else k_each
        improving = moving[m] or settled[m] != 0 or passes[m] >= _MOST_PASSES
        if improving:
            back = alternate and turns[1, m] % 2 == 0
            starts = np.array([n - 1 if back else 0])
            up, down, differing = full_sweep(
                actions, width, rows_each, k_each, own_policy, local, np.uint64(0), action_ptr, action_ptr,
                successors, probabilities, rewards, discounts, terminal, starts, n, -1 if back else 1, discount,
                sign,
            )  # fmt: skip
            largest = max(up, down)
            out[m, 0] += 1
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
            order = carray(pointer(address + 8 * n * (n_width + 2)), (n,), np.uint32)
            choices = carray(pointer(address + 8 * n * (n_width + 2) + 4 * n), (n,), np.int32)
            rows = carray(pointer(address + 8 * n * (n_width + 3)), (n * n_width,), successor_type.dtype)
            gathered_rows = carray(pointer(gathered_rows_at), (n * n_width,), successor_type.dtype)
            c = 0.0 if out[m, 8] > 0.0 else lookahead[m]
            if laid[m] == 0:
                moved = 0
                if laid_before[m]:
                    for i in range(n):
                        moved += own_policy[order[i]] != choices[i]
                    changed[m] += moved
                if laid_before[m] and changed[m] <= _STALE * n:
                    if moved > 0:
                        mend_slab(
                            actions, width, rows_each, k_each, own_policy, n, action_ptr, successors,
                            probabilities, rewards, discounts, order, scratch[3], choices, keep, base, weights,
                            rows, discount, sign, c,
                        )  # fmt: skip
                else:
                    gather(
                        actions, width, rows_each, k_each, own_policy, n, action_ptr, successors, probabilities,
                        rewards, discounts, terminal, gathered[:n], gathered[n:], gathered_rows, scratch[0],
                        discount, sign,
                    )  # fmt: skip
                    flow_order(n, scratch[0], scratch[1], scratch[2], scratch[3], order)
                    out[m, 7] = lay_slab(
                        width, k_each, n, own_policy, gathered[:n], gathered[n:], gathered_rows, order, scratch[3],
                        choices, keep, base, weights, rows, c,
                    )  # fmt: skip
                    changed[m] = 0
                laid[m] = 1
                laid_before[m] = True
                squares[m] = 0.0
            if squares[m] == 0.0:
                changes[:] = 0.0
            largest, along, square = sweep_slab(width, k_each, n, local, changes, order, keep, base, weights, rows)
            out[m, 1] += 1
            passes[m] += 1
            before, squares[m] = squares[m], square
            settled[m] = largest <= max(wanted[m], limits[m])
            if c > 0.0 and out[m, 6] > 0.0 and largest > _GROWTH * out[m, 6]:
                without_lookahead(n, n_width, keep, base, weights)
                out[m, 8] = 1.0
                squares[m] = 0.0
            elif largest > limits[m]:
                further = beyond(local[:n], before, along, square, largest, STRAY_SHARE)
                if further > 0.0:
                    for i in range(n):
                        local[order[i]] += further * changes[i]
                    squares[m] = 0.0
                    out[m, 5] += 1
        if out[m, 6] == 0.0:
            out[m, 6] = largest
            goals[m] = max(goals[m], _DROP * largest)
            wanted[m] = _DROP * largest
            settled[m] = not improving and largest <= limits[m]
            quiet[m] = largest <= goals[m]
        else:
            quiet[m] = improving and largest <= goals[m]
        path[2] |= quiet[m] == 0.0
        values[first : first + n] = local[:n]
        give_back(turns.ctypes.data + 8 * m)


class Slabs:
    """The slabs of partitions that are swept along the flow, and what is known of each partition.

    Parameters
    ----------
    members : partitions that are swept together at most, by all threads.
    alternate : whether full sweeps may go either way.
    """

    most_differing = _MOST_DIFFERING

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
        return bool(self.suited[resident.index]) and arrays.kind[1] > 0 and not arrays.whole

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
                size = slab_bytes(r.n_states, arrays.kind[1], arrays.table.successors.itemsize)
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
        self,
        flow: Slabs,
        members: Members,
        moving: npt.NDArray[np.bool_],
        doubts: npt.NDArray[np.int8],
        values: FloatArray,
        policy: npt.NDArray[np.int32],
        workspace: FloatArray,
        model: ModelFacts,
    ) -> None:
        index = members.index
        self.members = members
        self._flow = flow
        self._all_moving, self._moving = moving, moving[index]
        self._given_up = doubts > _MOST_DOUBTS
        self._values, self._policy, self._workspace, self._model = values, policy, workspace, model
        self._marks = np.zeros((3, index.size), np.int64)
        self._lookahead = np.where(doubts > 0, 0.0, _LOOKAHEAD)
        self._laid = flow.laid[index] & (flow.lookahead[index] == self._lookahead.astype(np.float32))
        self._changed = flow.changed[index].astype(np.int64)
        self._slabs = np.array([flow.slabs[p].ctypes.data for p in index.tolist()])
        self._out = np.zeros((index.size, 9))
        self._out[:, 7] = -1.0

    def prepare(self) -> None:
        """Nothing is to be done."""

    def sweep(self, thread: int) -> None:
        """The compiled loop."""
        m = self.members
        _rounds(
            (0,) * m.kind[0],
            (0,) * m.kind[1],
            self._values,
            self._policy,
            m.table,
            self._flow.alternate,
            m.limits,
            self._moving,
            self._workspace,
            m.places,
            m.turns,
            m.progress,
            self._marks,
            *m.types,
            self._model.discount,
            self._model.sign,
            self._lookahead,
            self._slabs,
            self._laid,
            self._changed,
            self._flow.scratch[thread],
            self._flow.gathered[thread],
            self._flow.gathered_rows[thread].ctypes.data,
            self._out,
        )

    def conclude(self) -> None:
        """What slabs hold, and which partitions are to be swept otherwise from now on."""
        flow, index, out = self._flow, self.members.index, self._out
        self.members.swept[:, [0, 1, 5, 6]] = out[:, [0, 1, 5, 6]]
        self._all_moving[index] = self._moving
        flow.laid[index] = self._laid & (out[:, 8] == 0.0)
        flow.changed[index], flow.lookahead[index] = self._changed, self._lookahead
        looked_at = out[:, 7] >= 0.0
        unsuited = looked_at & ((out[:, 7] < _LEAST_LATER) | (out[:, 7] > _MOST_LATER))
        flow.suited[index] &= ~(unsuited | self._given_up)


def _slabs(model: ModelFacts, members: int) -> int:
    """Slabs that are kept at most."""
    slab = _slab_of(model)
    return min(members, _SLABS_BYTES // slab) if slab else 0


def _slab_of(model: ModelFacts) -> int:
    """Bytes of the largest partition's slab; 0 where there are none."""
    if model.duration_dtype is not None or model.longest_row == 0:
        return 0
    size = slab_bytes(model.largest_partition, model.longest_row, model.successor_dtype.itemsize)
    return size if size <= _MOST_SLAB_BYTES else 0
