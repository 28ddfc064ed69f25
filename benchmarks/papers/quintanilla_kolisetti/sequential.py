"""The paper's sequential algorithm on one core, in Numba: two steps a sweep over a list of transitions, two buffers.

    u[s,a] <- sum over the transitions (s, a, s', p) of p U[s'],     U'[s] <- R[s] + discount max_a u[s,a]

Each transition has its state and action with it, as in the paper's files; values and probabilities are float64. The
largest change is found in the second step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import measuring
import numba
import numpy as np
import numpy.typing as npt
from resident import InMemory

__all__ = ["Sequential"]

_ACTIONS = 4


@dataclass(frozen=True, slots=True)
class Sequential:
    """A world as a list of transitions."""

    row: npt.NDArray[np.int32]
    """[transitions]; 4 s + a."""
    successor: npt.NDArray[np.int32]
    probability: npt.NDArray[np.float64]
    reward: npt.NDArray[np.float64]
    """[states]"""
    discount: float

    @classmethod
    def of(cls, table: InMemory, discount: float) -> Sequential:
        """From the only partition of a table, whose rows of a state have one reward."""
        rows = table.tables[0]
        lengths = np.diff(rows.successor_ptr.astype(np.int64))
        numbers = np.repeat(np.arange(rows.n_rows, dtype=np.int32), lengths)
        rewards = rows.rewards[::_ACTIONS].astype(np.float64)
        return cls(numbers, rows.successors.astype(np.int32), rows.probabilities.astype(np.float64), rewards, discount)

    def solve(self, epsilon: float, limit: float) -> tuple[str, int, float, npt.NDArray[np.float64]]:
        """Outcome, sweeps, seconds and values: until no value changes by more than epsilon."""
        values, after = np.zeros(self.reward.size), np.empty(self.reward.size)
        sums = np.empty(self.reward.size * _ACTIONS)
        began, sweeps = time.perf_counter(), 0
        while True:
            _summation(self.row, self.successor, self.probability, values, sums)
            change = _update(self.reward, sums, self.discount, values, after)
            values, after, sweeps = after, values, sweeps + 1
            seconds = time.perf_counter() - began
            if change <= epsilon or seconds > limit:
                return "converged" if change <= epsilon else "time_limit", sweeps, seconds, values

    def steps(self, repeat: int) -> dict[str, Any]:
        """Seconds of one summation and of one update."""
        values, after = np.random.default_rng(1).normal(size=self.reward.size), np.empty(self.reward.size)
        sums, found = np.empty(self.reward.size * _ACTIONS), []
        for _ in range(max(repeat, 3) + 1):
            began = time.perf_counter()
            _summation(self.row, self.successor, self.probability, values, sums)
            middle = time.perf_counter()
            _update(self.reward, sums, self.discount, values, after)
            found.append((middle - began, time.perf_counter() - middle))
        summation, update = zip(*found[1:], strict=True)
        return {"summation": measuring.spread(summation), "update": measuring.spread(update)}


@numba.njit(cache=True, nogil=True)
def _summation(row, successor, probability, values, sums):  # type: ignore[no-untyped-def]
    sums[:] = 0.0
    for k in range(row.size):
        sums[row[k]] += probability[k] * values[successor[k]]


@numba.njit(cache=True, nogil=True)
def _update(reward, sums, discount, values, after):  # type: ignore[no-untyped-def]
    largest = 0.0
    for s in range(reward.size):
        best = sums[4 * s]
        for a in range(1, 4):
            best = max(best, sums[4 * s + a])
        after[s] = reward[s] + discount * best
        largest = max(largest, abs(after[s] - values[s]))
    return largest
