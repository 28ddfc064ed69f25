"""Triangular solves in the topological order of a policy: a Krylov solver's approximate inverse of 1 - g P.

    z(s) = { r(s) + g sum_k p_k z(succ_k) } / (1 - g p_self),      the sum over successors that come before s

States are ordered out from where the policy's most likely paths end (`ooc_mdp.backends.cpu.packed`). Where a policy
goes where it means to, nearly all successors come before a state, however long its path: one pass in that order does
what as many products with P as the path has steps would do (an incomplete factorisation without fill-in; Saad 2003,
section 10.3). Nothing rests on it but the solver's speed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ooc_mdp.backends.cpu.addresses import load
from ooc_mdp.backends.cpu.loops import discount_of
from ooc_mdp.backends.cpu.packed import topological_order
from ooc_mdp.backends.cpu.policy_loops import block_of, open_rows
from ooc_mdp.backends.cpu.table import Specialisation
from ooc_mdp.backends.cpu.views import Model
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["MAX_STATES", "STATE_BYTES", "TriangularSolver"]

MAX_STATES = 1 << 31
"""Models of as many states have no such order: its numbers have 32 bits."""
STATE_BYTES = 12
"""Of RAM a state, for the order; twice as many while it is made, when a Krylov solver's vectors are not there yet."""


class TriangularSolver:
    """Solves with the triangle of 1 - g P whose successors come earlier in the topological order of the policy.

    Parameters
    ----------
    spec, model, rows : for loops over the policy's rows (int64 [26]; `ooc_mdp.backends.cpu.policy_loops.open_rows`),
        which outlive this; states of partitions that have none are taken for such without successors.
    partition_ptr : int64 [P + 1]; partitions' first states.
    """

    def __init__(self, spec: Specialisation, model: Model, rows: IntArray, partition_ptr: IntArray) -> None:
        n = int(partition_ptr[-1])
        self._loops = spec, model, rows
        towards = np.empty(n, np.int32)
        _find_nearest(spec, rows, towards)
        after, before, self._place = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
        self._order = np.empty(n, np.uint32)
        topological_order(n, towards, before, after, self._place, self._order)
        sizes = np.diff(partition_ptr)
        self._partition = np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)

    def solve(self, right: FloatArray, found: FloatArray) -> None:
        """Write z of the right side r (both float64 [n]), one pass over the rows."""
        _solve(*self._loops, self._order, self._place, self._partition, right, found)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _solve(spec, model, numbers, order, place, partition, right, found):
    """Forward substitution in the order of states."""
    rows = open_rows(numbers)
    for i in range(order.size):
        state = np.int64(order[i])
        block = block_of(spec, rows, partition[state])
        if not block.valid:
            found[state] = right[state]
            continue
        begin = block.begin + (state - block.first) * block.width
        total = 0.0
        to_self = 0.0
        for k in range(block.width):
            at = np.uint64(begin + k)
            to = np.int64(load(spec, rows.successors, at, spec.successor))
            probability = np.float64(load(spec, rows.probabilities, at, spec.probability))
            if to == state:
                to_self += probability
            elif place[to] < i:
                total += probability * found[to]
        g = discount_of(spec, rows, model, np.uint64(state))
        found[state] = (right[state] + g * total) / max(1.0 - g * to_self, 1e-12)
