"""Sweeps of a whole model at once on the CPU: every state over its policy's action, from the values before the sweep.

    V'(s) <- r(s) + sum_k w_k V(succ_k),      r, w = g p and succ of the policy's action in s

Where a model forgets within a few steps where it began, what is left of the error after some sweeps is one number for
all states, which a shift of all values takes away (`ooc_mdp.scheduling.residual_bounds.ResidualBounds.centre`). Sweeps
in place hide that number: the states that are swept last have a residual of 0, whatever their error. After sweeps from
the values before, all residuals show it.

The policy's rows are kept by themselves, padded to the longest of the model, with successors of the whole model. In a
table they lie apart: of 250 bytes that a row of 5 transitions brings into the processor's cache, it needs 68. A
state's row is copied again where its action has changed. No bound rests on these rows: residuals are measured on the
table.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, njit  # type: ignore[attr-defined]

from ooc_mdp.backends.cpu.addresses import pointer
from ooc_mdp.backends.cpu.table import MOST_UNROLLED, row_arrays
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["GreedyRows"]

_ONE = np.uint64(1)
_NOT_KEPT = -2


class GreedyRows:
    """The rows of a policy, for sweeps of all states.

    Parameters
    ----------
    n_states : of the model.
    width : successors of the model's longest row.
    """

    def __init__(self, n_states: int, width: int) -> None:
        self._policy = np.full(n_states, _NOT_KEPT, np.int32)
        """int32 [n]; the action whose row is kept."""
        self._successors = np.empty((n_states, width), np.uint32)
        self._weights = np.empty((n_states, width))
        self._rewards = np.empty(n_states)
        self._after = np.empty(n_states)
        """float64 [n]; values after a sweep."""

    @staticmethod
    def nbytes(n_states: int, width: int) -> int:
        """Bytes of all arrays."""
        return n_states * (4 + 12 * width + 16)

    def update(
        self,
        tables: IntArray,
        types: tuple[npt.NDArray[Any], ...],
        policy: npt.NDArray[np.int32],
        discount: float,
        sign: float,
    ) -> None:
        """Copy rows whose actions are others now: of partitions, int64 [G, 15] as in `ooc_mdp.backends.cpu.table`."""
        _copy_rows(tables, *types, policy, discount, sign, self._policy, self._successors, self._weights, self._rewards)

    def sweep_share(
        self,
        thread: int,
        values: FloatArray,
        most: int,
        drop: float,
        barrier: threading.Barrier,
        ranges: FloatArray,
    ) -> int:
        """One of `barrier.parties` threads' part of at most so many sweeps of all states; returns their number.

        They end once the changes of one differ by no more than a share `drop` of what those of the first did. `ranges`
        (float64 [2, threads, 2]) has every thread's least and largest change.
        """
        first, last = (values.size * t // barrier.parties for t in (thread, thread + 1))
        first_span, sweeps = 0.0, 0
        while sweeps < most:
            seen = ranges[sweeps % 2]
            seen[thread] = self._sweep_states(values, sweeps, first, last)
            barrier.wait()
            span = float(seen[:, 1].max() - seen[:, 0].min())
            first_span = first_span if sweeps else span
            sweeps += 1
            if span <= drop * first_span:
                break
        if sweeps % 2:
            values[first:last] = self._after[first:last]
        return sweeps

    def _sweep_states(self, values: FloatArray, sweeps_before: int, first: int, last: int) -> tuple[float, float]:
        """Back up states first .. last-1: least and largest change. An odd number of sweeps leaves them in `after`."""
        now, after = (values, self._after) if sweeps_before % 2 == 0 else (self._after, values)
        width = self._successors.shape[1]
        unrolled = (0,) * width if width <= MOST_UNROLLED else ()
        least, largest = _sweep(unrolled, self._successors, self._weights, self._rewards, now, after, first, last)
        return float(least), float(largest)


@njit(nogil=True, cache=True)
def _copy_rows(
    tables, successor_type, probability_type, reward_type, policy, discount, sign, kept, kept_successors, weights,
    kept_rewards,
):  # fmt: skip
    """Copy the rows of states whose action is not the kept one; those without action get their terminal reward."""
    width = kept_successors.shape[1]
    for m in range(tables.shape[0]):
        first, n, h, whole = tables[m, 0], tables[m, 1], tables[m, 2], tables[m, 12] != 0
        n_actions, n_width = tables[m, 13], tables[m, 14]
        action_ptr, successor_ptr, successors, probabilities, rewards, discounts, terminal = row_arrays(
            tables[m], successor_type, probability_type, reward_type
        )
        halo = carray(pointer(tables[m, 10]), (h,), np.int64)
        for i in range(n):
            state = first + i
            choice = policy[state]
            if choice == kept[state]:
                continue
            kept[state] = choice
            s = np.uint64(i)
            count = 0
            if choice < 0:
                kept_rewards[state] = sign * terminal[s] if terminal.size > 0 else 0.0
            else:
                if n_actions > 0:
                    j = s * np.uint64(n_actions) + np.uint64(choice)
                else:
                    j = np.uint64(action_ptr[s]) + np.uint64(choice)
                lo = j * np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[j])
                hi = lo + np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[j + _ONE])
                g = discounts[j] if discounts.size > 0 else discount
                kept_rewards[state] = sign * np.float64(rewards[j])
                count = min(np.int64(hi - lo), width)
                for k in range(count):
                    to = np.int64(successors[lo + np.uint64(k)])
                    kept_successors[state, k] = to if whole else (first + to if to < n else halo[to - n])
                    weights[state, k] = g * np.float64(probabilities[lo + np.uint64(k)])
            for k in range(count, width):
                kept_successors[state, k] = state
                weights[state, k] = 0.0


@njit(nogil=True, cache=True)
def _sweep(unrolled, successors, weights, rewards, values, after, first, last):
    """Back up states first .. last-1; `unrolled` is a tuple of as many numbers as a row has, or empty."""
    least = np.inf
    largest = -np.inf
    for i in range(first, last):
        s = np.uint64(i)
        value = rewards[s]
        for k in range(len(unrolled) if len(unrolled) > 0 else successors.shape[1]):
            at = np.uint64(k)
            value += weights[s, at] * values[successors[s, at]]
        change = value - values[s]
        least = min(least, change)
        largest = max(largest, change)
        after[s] = value
    return least, largest
