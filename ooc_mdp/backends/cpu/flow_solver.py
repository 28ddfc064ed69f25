"""Triangular solves along the flow of a policy: what a Krylov solver takes for an approximate inverse of 1 - g P.

    z(s) = { r(s) + g sum_k p_k z(succ_k) } / (1 - g p_self),      the sum over successors that come before s

States are ordered out from where the policy's most likely paths end (`ooc_mdp.backends.cpu.packed`). Where a policy
goes where it means to, nearly all successors come before a state, however long its path: one pass in that order does
what as many products with P as the path has steps would do (an incomplete factorisation without fill-in; Saad 2003,
section 10.3). Nothing rests on it but the solver's speed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.backends.cpu.packed import flow_order
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["MOST_STATES", "STATE_BYTES", "FlowSolver"]

MOST_STATES = 1 << 31
"""Models of as many states have no such order: its numbers have 32 bits."""
STATE_BYTES = 12
"""Of RAM a state, for the order; twice as many while it is made, when a Krylov solver's vectors are not there yet."""


class FlowSolver:
    """Solves with the part of 1 - g P that goes along the flow of the policy.

    Parameters
    ----------
    first, ptr, widths : int64 [P + 1], [P + 1], [P]; partitions' first states, where their rows begin, their lengths.
    kept : bool [P]; partitions that have rows; states of others are taken for such without successors.
    successors, probabilities : of all rows.
    discounts : float64 [n] or [0]; of each state's action, or `discount` for all.
    """

    def __init__(
        self,
        first: IntArray,
        ptr: IntArray,
        widths: npt.NDArray[np.integer],
        kept: npt.NDArray[np.bool_],
        successors: npt.NDArray[np.integer],
        probabilities: npt.NDArray[np.floating],
        discounts: FloatArray,
        discount: float,
    ) -> None:
        n = int(first[-1])
        towards = np.empty(n, np.int32)
        _find_nearest(first, ptr, widths, kept, successors, probabilities, towards)
        after, before, self._place = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
        self._order = np.empty(n, np.uint32)
        flow_order(n, towards, before, after, self._place, self._order)
        self._partition = np.repeat(np.arange(widths.size, dtype=np.int32), np.diff(first))
        self._rows = (first, ptr, widths, kept, successors, probabilities, discounts, discount)

    def solve(self, right: FloatArray, found: FloatArray) -> None:
        """Write z of the right side r (both float64 [n]), one pass over the rows."""
        _solve(self._order, self._place, self._partition, *self._rows, right, found)


@njit(nogil=True, cache=True)
def _find_nearest(first, ptr, widths, kept, successors, probabilities, towards):
    """The most likely successor of each state; -1 where it stays, or has none."""
    for p in range(widths.size):
        for i in range(first[p + 1] - first[p]):
            state = first[p] + i
            nearest = np.int64(-1)
            most = 0.0
            if kept[p]:
                at = np.uint64(ptr[p] + i * widths[p])
                for k in range(widths[p]):
                    if probabilities[at + np.uint64(k)] > most:
                        most = probabilities[at + np.uint64(k)]
                        nearest = np.int64(successors[at + np.uint64(k)])
            towards[state] = -1 if nearest == state else nearest


@njit(nogil=True, cache=True)
def _solve(
    order, place, partition, first, ptr, widths, kept, successors, probabilities, discounts, discount, right, found
):
    """Forward substitution in the order of states."""
    for i in range(order.size):
        state = np.int64(order[i])
        p = partition[state]
        if not kept[p]:
            found[state] = right[state]
            continue
        at = np.uint64(ptr[p] + (state - first[p]) * widths[p])
        total = 0.0
        stays = 0.0
        for k in range(widths[p]):
            to = np.int64(successors[at + np.uint64(k)])
            if to == state:
                stays += probabilities[at + np.uint64(k)]
            elif place[to] < i:
                total += probabilities[at + np.uint64(k)] * found[to]
        g = discounts[state] if discounts.size > 0 else discount
        found[state] = (right[state] + g * total) / max(1.0 - g * stays, 1e-12)
