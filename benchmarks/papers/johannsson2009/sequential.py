"""The thesis's baseline: sequential value iteration on one core (appendix B), in Numba in place of C++.

The loop is that of listing B.1, line by line: in place, in the order of the states, float32, and the same arrays, a
pair of floats and a pair of integers for each transition, those of one action and outcome of all states one after the
other. The second integer says whether the successor lies in the same block, which this loop does not read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
from worlds import Rows

__all__ = ["Sequential", "Solved"]

GAMMA, THRESHOLD = np.float32(0.9), 1e-4


@dataclass(frozen=True, slots=True)
class Solved:
    """One run."""

    outcome: str
    sweeps: int
    seconds: float
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sequential:
    """The tables of one world in the thesis's layout."""

    probability_and_reward: npt.NDArray[np.float32]
    """[4 K, n, 2]; float2 of transition (action, outcome) of each state."""
    result_states: npt.NDArray[np.int32]
    """[4 K, n, 2]; int2 likewise."""

    @classmethod
    def of(cls, rows: Rows) -> Sequential:
        """Lay the rows of a world out."""
        n, actions, k = rows.successors.shape
        pairs = np.empty((actions * k, n, 2), np.float32)
        results = np.zeros((actions * k, n, 2), np.int32)
        pairs[:, :, 0] = rows.probabilities.reshape(n, -1).T
        pairs[:, :, 1] = rows.arrival[rows.successors].reshape(n, -1).T
        results[:, :, 0] = rows.successors.reshape(n, -1).T
        return cls(pairs, results)

    def solve(self, limit: float, actions: int = 4) -> Solved:
        """Sweep until no value changes by the threshold or more, or `limit` seconds are over."""
        outcomes = self.probability_and_reward.shape[0] // actions
        values = np.zeros(self.probability_and_reward.shape[1], np.float32)
        began, sweeps, outcome = time.perf_counter(), 0, "residual_reached"
        while True:
            sweeps += 1
            if _sweep(values, self.probability_and_reward, self.result_states, GAMMA, actions, outcomes) < THRESHOLD:
                break
            if time.perf_counter() - began > limit:
                outcome = "time_limit"
                break
        return Solved(outcome, sweeps, time.perf_counter() - began, values)


@numba.njit(cache=True, nogil=True)
def _sweep(values, pairs, results, gamma, action_count, div_count):  # type: ignore[no-untyped-def]
    delta = np.float32(0.0)
    for state in range(values.size):
        max_value = np.float32(-99999.0)
        old_value = values[state]
        for action in range(action_count):
            new_value = np.float32(0.0)
            for div in range(div_count):
                current = action * div_count + div
                expected = pairs[current, state, 1] + gamma * values[results[current, state, 0]]
                new_value += pairs[current, state, 0] * expected
            max_value = max(new_value, max_value)
        delta = max(delta, abs(old_value - max_value))
        values[state] = max_value
    return delta
