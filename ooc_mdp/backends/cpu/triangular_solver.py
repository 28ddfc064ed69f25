"""Triangular solves in the topological order of a policy: a Krylov solver's approximate inverse of 1 - g P.

    z(s) = { r(s) + g sum_k p_k z(succ_k) } / (1 - g p_self),      the sum over successors that come before s

States are ordered out from where the policy's most likely paths end (`ooc_mdp.backends.cpu.packed`). Where a policy
goes where it means to, nearly all successors come before a state, however long its path: one pass in that order does
what as many products with P as the path has steps would do (an incomplete factorisation without fill-in; Saad 2003,
section 10.3). Nothing rests on it but the solver's speed.

The rows are packed in that order, those of successors that come before a state alone, and read from one end to the
other: g p_k (float32), the place of the successor in the order (uint32). Float32 is enough: what is solved is rounded
once, when it is packed, and is the same in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.addresses import load
from ooc_mdp.backends.cpu.loops import discount_of
from ooc_mdp.backends.cpu.packed import topological_order
from ooc_mdp.backends.cpu.policy_loops import block_of, open_rows
from ooc_mdp.backends.cpu.table import Specialisation
from ooc_mdp.backends.cpu.views import Model
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.compiled import loop

__all__ = ["MAX_STATES", "STATE_BYTES", "TriangularSolver", "entry_types"]

Types = Mapping[str, tuple[np.dtype[Any], int]]
"""Types and lengths of arrays by name."""

MAX_STATES = 1 << 31
"""Models of as many states have no such order: its numbers have 32 bits."""
STATE_BYTES = 20
"""Of RAM a state beside the entries; somewhat more while they are packed, when a Krylov solver's vectors are not there
yet."""


class PackedTriangle(NamedTuple):
    """Rows in the topological order, of successors that come earlier."""

    order: npt.NDArray[np.uint32]
    """uint32 [n]; the states,"""
    counts: npt.NDArray[np.uint32]
    """uint32 [n]; and how many entries each has."""
    scale: npt.NDArray[np.float32]
    """float32 [n]; 1 / (1 - g p_self)"""
    weights: npt.NDArray[np.float32]
    """float32, of all entries: g p_k,"""
    columns: npt.NDArray[np.uint32]
    """uint32; and the place of the successor in the order."""


def entry_types(entries: int) -> Types:
    """Arrays of a triangle with so many entries at most."""
    return {"weights": (np.dtype(np.float32), entries), "columns": (np.dtype(np.uint32), entries)}


class TriangularSolver:
    """Solves with the triangle of 1 - g P whose successors come earlier in the topological order of the policy.

    Parameters
    ----------
    spec, model, rows : for loops over the policy's rows (int64 [26]; `ooc_mdp.backends.cpu.policy_loops.open_rows`);
        states of partitions that have none are taken for such without successors.
    partition_ptr : int64 [P + 1]; partitions' first states.
    allocate : gives arrays of types and lengths, those of the entries (:func:`entry_types`).
    """

    def __init__(
        self,
        spec: Specialisation,
        model: Model,
        rows: IntArray,
        partition_ptr: IntArray,
        allocate: Callable[[Types], Mapping[str, npt.NDArray[Any]]],
    ) -> None:
        n = int(partition_ptr[-1])
        place, order = _topological_order(spec, rows, n)
        sizes = np.diff(partition_ptr)
        partition = np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)
        counts = np.empty(n, np.uint32)
        entries = allocate(entry_types(_count_earlier(spec, rows, order, place, partition, counts)))
        scale = np.empty(n, np.float32)
        self._triangle = PackedTriangle(order, counts, scale, entries["weights"], entries["columns"])
        _pack(spec, model, rows, place, partition, *self._triangle)
        self._at_place = np.empty(n)

    @property
    def order(self) -> npt.NDArray[np.uint32]:
        """uint32 [n]; the states in the order in which they are solved for."""
        return self._triangle.order

    def solve(self, right: FloatArray, found: FloatArray) -> None:
        """Write z of the right side r (both float64 [n]), one pass over the rows."""
        _solve(*self._triangle, right, self._at_place, found)


def _topological_order(
    spec: Specialisation, rows: IntArray, n: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]]:
    """The place of each of n states in the order, and the states in their order."""
    towards, after, before = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    place, order = np.empty(n, np.int32), np.empty(n, np.uint32)
    _find_nearest(spec, rows, towards)
    topological_order(n, towards, before, after, place, order)
    return place, order


@loop
def _find_nearest(spec, numbers, towards):
    """The most likely successor of each state; -1 where it to_self, or has none."""
    rows = open_rows(numbers)
    for p in range(rows.valid.size):
        block = block_of(spec, rows, p)
        for i in range(block.n):
            state = block.first + i
            nearest = np.int64(-1)
            most = 0.0
            for k in range(block.width if block.valid else 0):
                at = np.uint64(block.begin + i * block.width + k)
                probability = np.float64(load(spec, rows.probabilities, at, spec.probability))
                if probability > most:
                    most = probability
                    nearest = np.int64(load(spec, rows.successors, at, spec.successor))
            towards[state] = -1 if nearest == state else nearest


@loop
def _count_earlier(spec, numbers, order, place, partition, counts):
    """Count the successors of each state, in the order of states, that come before it; how many there are in all."""
    rows = open_rows(numbers)
    total = 0
    for i in range(order.size):
        state = np.int64(order[i])
        block = block_of(spec, rows, partition[state])
        begin = block.begin + (state - block.first) * block.width
        earlier = 0
        for k in range(block.width if block.valid else 0):
            to = np.int64(load(spec, rows.successors, np.uint64(begin + k), spec.successor))
            earlier += place[to] < i
        counts[i] = earlier
        total += earlier
    return total


@loop
def _pack(spec, model, numbers, place, partition, order, counts, scale, weights, columns):
    """Pack those rows, discounted; `counts` says where each begins."""
    rows = open_rows(numbers)
    at = 0
    for i in range(order.size):
        state = np.int64(order[i])
        block = block_of(spec, rows, partition[state])
        begin = block.begin + (state - block.first) * block.width
        g = discount_of(spec, rows, model, np.uint64(state)) if block.valid else 0.0
        to_self = 0.0
        for k in range(block.width if block.valid else 0):
            to = np.int64(load(spec, rows.successors, np.uint64(begin + k), spec.successor))
            probability = np.float64(load(spec, rows.probabilities, np.uint64(begin + k), spec.probability))
            if to == state:
                to_self += probability
            elif place[to] < i:
                weights[at] = g * probability
                columns[at] = place[to]
                at += 1
        scale[i] = 1.0 / max(1.0 - g * to_self, 1e-12)


@loop
def _solve(order, counts, scale, weights, columns, right, at_place, found):
    """Forward substitution in the order of states."""
    at = np.uint64(0)
    for i in range(order.size):
        state = np.uint64(order[i])
        total = right[state]
        for _ in range(counts[i]):
            total += np.float64(weights[at]) * at_place[np.uint64(columns[at])]
            at += np.uint64(1)
        at_place[i] = total * scale[i]
        found[state] = at_place[i]
