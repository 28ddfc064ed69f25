"""In which order Gauss-Seidel sweeps back up the states of a partition; votes decide it (Wingate 2004, section 5.4).

A partition's states fill a block of a grid in C order. An order gives each axis a direction, and a sweep is as many
nested loops. A state should come after the successors that its value depends on, so each pair votes, for each axis,

    vote(s,a) = g(s,a) * sum_k p_k * sign(x(succ_k) - x(s))      over successors in the same partition

and an axis whose votes sum to more than 0 is traversed from high to low. Once a state has been backed up only its
greedy action votes. Rows that end the process have g = 0, so what stands as their successors has no say. Without a grid
the local state number is the one axis. A sample of the states votes where there are many: a sign is all that is asked.
Neighbouring axes of one direction are one axis: a block traversed up (or down)
in all of them is one contiguous run of memory, and only where directions differ does a sweep jump between runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.addresses import load
from ooc_mdp.backends.cpu.table import Specialisation, first_probability, first_row, open_table, row_begin
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.options import SweepOrder
from ooc_mdp.runtime.compiled import inlined, loop

__all__ = ["SweepOrders", "Votes", "axes_of", "cast_votes", "choose_traversal", "of_any_shape", "traverse"]

_SAMPLED = 448
"""States of a partition from which on a sample of them votes."""
_TIE = 1e-9
"""Votes below this share of a vote a state are rounding: memory order stays."""


class Votes(NamedTuple):
    """Which members of a batch vote before they are swept, and on what."""

    due: npt.NDArray[np.bool_]
    """bool [M]"""
    shapes: IntArray
    """int64 [P, d]; points along each axis of each partition's block."""
    traversals: IntArray
    """int64 [P, 2, d]; what they choose: extents and strides of nested loops, outermost first."""


@loop
def traverse(shape, descending, traversal):
    """The nested loops over a block in C order; neighbouring axes of one direction are one.

    Parameters
    ----------
    shape : int64 [d]; points along each axis.
    descending : bit i says that axis i is traversed from high to low.
    traversal : int64 [2, d]; gets extents and signed strides, the last of them 1 or -1; unused axes come first.
    """
    inner = shape.size - 1
    for axis in range(shape.size):
        traversal[0, axis] = traversal[1, axis] = 1
    stride = 1
    for axis in range(shape.size - 1, -1, -1):
        if shape[axis] == 1:
            continue
        sign = -1 if descending >> axis & 1 else 1
        if stride == 1:
            traversal[0, inner], traversal[1, inner] = shape[axis], sign
        elif traversal[1, inner] * sign > 0:
            traversal[0, inner] *= shape[axis]
        else:
            inner -= 1
            traversal[0, inner], traversal[1, inner] = shape[axis], sign * stride
        stride *= shape[axis]


@loop
def choose_traversal(spec, row, shape, policy, discount, traversal):
    """Let a partition choose its traversal by votes; what reads most of the model has none that matters.

    Parameters
    ----------
    traversal : int64 [2, d]; see :func:`traverse`. The others are those of :func:`cast_votes`.
    """
    if open_table(row).global_successors:
        return
    votes, descending = cast_votes(spec, row, shape, policy, discount), 0
    for axis in range(shape.size):
        if votes[axis] > _TIE * row[1]:
            descending |= 1 << axis
    traverse(shape, descending, traversal)


@inlined
def of_any_shape(spec):
    """What loops over tables with any numbers of actions and successors are compiled for: a vote is rare."""
    return Specialisation((), (), spec.successor, spec.probability, spec.reward, spec.checked)


@loop
def cast_votes(spec, row, shape, policy, discount):
    """float64 [d]: the votes of a partition, or of a sample of it; positive where probability goes further up.

    Parameters
    ----------
    row : int64 [27]; the table (`ooc_mdp.backends.cpu.table`).
    shape : int64 [d]; points along each axis, n in all.
    policy : int32; states whose entry is -1 vote with all actions, others with that one.
    """
    table = open_table(row)
    d = shape.size
    votes = np.zeros(d)
    here = np.zeros(d, np.int64)
    strides = np.ones(d, np.int64)
    for axis in range(d - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    for s in range(0, table.n, _sample_step(shape, table.n)):
        rest = s
        for axis in range(d):
            here[axis] = rest // strides[axis]
            rest -= here[axis] * strides[axis]
        j, end = first_row(spec, table, np.uint64(s)), first_row(spec, table, np.uint64(s + 1))
        chosen = policy[table.first + s]
        if 0 <= chosen < np.int64(end - j):
            j += np.uint64(chosen)
            end = j + np.uint64(1)
        for a in range(np.int64(end - j)):
            _vote(spec, table, j + np.uint64(a), s, discount, here, strides, votes)
    return votes


@inlined
def _sample_step(shape, n):
    """Every so many states votes: a step that divides no side of the block, so that no line of it has all the votes."""
    for step in (7, 11, 13):
        divided = 0
        for points in shape:
            divided += points % step == 0
        if n >= _SAMPLED and divided == 0:
            return step
    return 1


@inlined
def _vote(spec, table, j, s, discount, here, strides, votes):
    """Add the votes of row j of state s, whose coordinates are `here`."""
    g = load(spec, table.discounts, j, 0.0) if table.discounts.address != 0 else discount
    begin, end = row_begin(spec, table, j), row_begin(spec, table, j + np.uint64(1))
    first = first_probability(spec, table, j)
    for k in range(np.int64(end - begin) if g != 0.0 else 0):
        transition = begin + np.uint64(k)
        successor = np.int64(load(spec, table.successors, transition, spec.successor))
        if successor >= table.n or successor == s:
            continue
        weight = g * np.float64(load(spec, table.probabilities, first + np.uint64(k), spec.probability))
        rest = successor
        for axis in range(strides.size):
            stride = strides[axis]
            offset = rest - here[axis] * stride
            if offset >= stride:
                votes[axis] += weight
                rest = offset - stride if offset < 2 * stride else rest % stride
            elif offset < 0:
                votes[axis] -= weight
                rest = offset + stride if offset >= -stride else rest % stride
            else:
                rest = offset


def axes_of(shapes: npt.NDArray[np.int32] | None) -> int:
    """Axes of a traversal, for blocks of these shapes (int32 [P, d]) or none."""
    return 1 if shapes is None else max(1, shapes.shape[1])


class SweepOrders:
    """The traversal of each partition's next sweep.

    A partition votes at its visits 1, 2, 3, 4, 6, 9, 13, 19, ...: each half as late again as the one before, because
    greedy actions change ever less and a vote costs a good part of a sweep.

    Parameters
    ----------
    kind : "forward" and "alternating" begin in memory order, "voted" as the votes say.
    sizes : int64 [P]; states of each partition.
    shapes : int32 [P, d], or None; points along each axis of each partition's block.
    """

    def __init__(self, kind: SweepOrder, sizes: IntArray, shapes: npt.NDArray[np.int32] | None) -> None:
        self.alternate = kind == "alternating"
        """Whether every second sweep of a visit goes the other way, in all axes."""
        self.traversals = np.ones((sizes.size, 2, axes_of(shapes)), np.int64)
        """int64 [P, 2, d]; extents and strides of each one's axes, merged ones last."""
        self.traversals[:, 0, -1] = sizes
        voted = kind == "voted"
        self.shapes = np.asarray(sizes[:, None] if shapes is None else shapes, np.int64)[: None if voted else 0]
        """int64 [P, d] where partitions vote; points along each axis of each one's block."""
        self._visits = np.zeros(len(self.shapes), np.int32)
        self._due = np.ones(len(self.shapes), np.int32)

    @staticmethod
    def nbytes(kind: SweepOrder, n_partitions: int, shapes: npt.NDArray[np.int32] | None) -> int:
        """Bytes that votes keep of P partitions, beside the traversals."""
        return 8 * n_partitions * (1 + axes_of(shapes)) if kind == "voted" else 0

    def begin_visits(self, p: IntArray) -> npt.NDArray[np.bool_]:
        """Count a visit of each of the partitions p; bool [k], those that are due to vote now."""
        due = np.zeros(p.size, np.bool_)
        if self._visits.size:
            self._visits[p] += 1
            visits = self._visits[p]
            due = np.asarray(visits >= self._due[p])
            self._due[p[due]] = (visits + np.maximum(1, visits // 2))[due]
        return due
