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

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.addresses import load
from ooc_mdp.backends.cpu.table import SweptTable, first_row, open_table, row_begin
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.options import SweepOrder
from ooc_mdp.runtime.compiled import inlined, loop

__all__ = ["SweepOrders", "Traversal", "axes_of", "cast_votes", "traversal"]

Traversal = tuple[IntArray, IntArray]
"""int64 extents and signed strides of the merged axes, outermost first; the last one's stride is 1 or -1."""

_SAMPLED = 448
"""States of a partition from which on a sample of them votes."""
_TIE = 1e-9
"""Votes below this share of a vote a state are rounding: memory order stays."""


@lru_cache(maxsize=4096)
def traversal(shape: tuple[int, ...], descending: int) -> Traversal:
    """The nested loops over a block in C order.

    Parameters
    ----------
    shape : points along each axis.
    descending : bit i says that axis i is traversed from high to low.

    Returns
    -------
    extents, strides : axes of length 1 left out, neighbours of one direction merged; at least one axis.
    """
    extents, strides = [1], [1]
    stride = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            continue
        sign = -1 if descending >> axis & 1 else 1
        if stride == 1:
            extents[-1], strides[-1] = shape[axis], sign
        elif strides[-1] * sign > 0:
            extents[-1] *= shape[axis]
        else:
            extents.append(shape[axis])
            strides.append(sign * stride)
        stride *= shape[axis]
    return np.array(extents[::-1], np.int64), np.array(strides[::-1], np.int64)


@loop
def cast_votes(spec, row, shape, policy, discount):
    """float64 [d]: the votes of a partition, or of a sample of it; positive where probability goes further up.

    Parameters
    ----------
    row : int64 [25]; the table (`ooc_mdp.backends.cpu.table`).
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
    for k in range(np.int64(end - begin) if g != 0.0 else 0):
        transition = begin + np.uint64(k)
        successor = np.int64(load(spec, table.successors, transition, spec.successor))
        if successor >= table.n or successor == s:
            continue
        weight = g * np.float64(load(spec, table.probabilities, transition, spec.probability))
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
        self._voted = kind == "voted"
        self._shapes = shapes
        size = sizes.size if self._voted else 0
        self._visits = np.zeros(size, np.int32)
        self._due = np.ones(size, np.int32)

    @staticmethod
    def nbytes(kind: SweepOrder, n_partitions: int, shapes: npt.NDArray[np.int32] | None) -> int:
        """Bytes that votes keep of P partitions, beside the traversals."""
        return 8 * n_partitions + (0 if shapes is None else shapes.nbytes) if kind == "voted" else 0

    def begin_visits(self, p: IntArray) -> npt.NDArray[np.bool_]:
        """Count a visit of each of the partitions p; bool [p.size]: which are due to vote."""
        if not self._voted:
            return np.zeros(p.size, np.bool_)
        self._visits[p] += 1
        return np.asarray(self._visits[p] >= self._due[p])

    def vote(self, index: int, policy: npt.NDArray[np.int32], swept: SweptTable, discount: float) -> None:
        """Let a partition choose its traversal by votes; what reads most of the model has none that matters."""
        visits, n = int(self._visits[index]), swept.table.n_states
        self._due[index] = visits + max(1, visits // 2)
        if swept.global_successors:
            return
        shape = (n,) if self._shapes is None else tuple(self._shapes[index].tolist())
        any_shape = swept.spec._replace(actions=(), width=())  # one loop for all specialisations: a vote is rare
        votes = cast_votes(any_shape, swept.row, np.array(shape, np.int64), policy, float(discount))
        self.choose(index, shape, sum(1 << axis for axis, vote in enumerate(votes) if vote > _TIE * n))

    def choose(self, index: int, shape: tuple[int, ...], descending: int) -> None:
        """From now on the axes of a partition's block are traversed like that; see :func:`traversal`."""
        extents, strides = traversal(shape, descending)
        self.traversals[index] = 1
        self.traversals[index, :, -extents.size :] = extents, strides
