"""What each simple kernel computes in one pass over a partition, in NumPy: the specification that it is tested against.

    local values   own states 0 .. n-1 | halo n .. n+h-1     before a pass ─▶ after it
    V(s) <- max_a { sign r(s,a) + g(s,a) sum_k p_k V(succ_k) },    from which values of V, the schedule says

A schedule also gives the last change of each own state, new - old, which is what a kernel's own test of convergence
looks at. On the CPU the word of a simple kernel runs its schedule (`ooc_mdp.backends.cpu.scheduled`). Nothing here
proves anything: residuals are measured afterwards, by :meth:`LocalRows.measure` or by a kernel of the device.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray, discounts
from ooc_mdp.model.partition import PartitionTable

__all__ = ["Backup", "LocalRows", "Schedule", "bdi", "bdi_priority", "jacobi"]


class Backup(Protocol):
    """max_a Q_a of some own states, from local values."""

    def __call__(self, states: IntArray, values: FloatArray) -> FloatArray:
        """float64, one for each of the states (int64, own ones); `values` is float64 [n + h]."""
        ...


class Schedule(Protocol):
    """One pass of a kernel. To add one, write a function here and name it in the entry of the catalogue."""

    def __call__(self, backup: Backup, n: int, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Local values after the pass (float64 [n + h], halo unchanged), and float64 [n]: each last change, signed."""
        ...


def jacobi(backup: Backup, n: int, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Every state once, from the values before the pass (Puterman 1994, 6.3)."""
    new = values.copy()
    new[:n] = backup(np.arange(n), values)
    return new, new[:n] - values[:n]


def bdi(backup: Backup, n: int, values: FloatArray, *, block: int, iterations: int) -> tuple[FloatArray, FloatArray]:
    """Johannsson 2009, algorithm 2: a block's states `iterations` times, all other values as before the pass."""
    new, seen, change = values.copy(), values.copy(), np.zeros(n)
    for first in range(0, n, block):
        own = np.arange(first, min(first + block, n))
        for _ in range(iterations):
            before = seen[own]
            seen[own] = backup(own, seen)
            change[own] = seen[own] - before
        new[own], seen[own] = seen[own], values[own]
    return new, change


def bdi_priority(
    backup: Backup, n: int, values: FloatArray, *, block: int, states: int, backups: int, update_constant: float
) -> tuple[FloatArray, FloatArray]:
    """Johannsson 2009, 3.3.2: of each thread's states the one with the largest |delta| + U / updates (equation 3.1).

    A thread owns every `block`-th state of a block of `block` x `states`; it updates one at a time, `backups` times as
    many as it owns. Values outside the block are as before the pass.
    """
    new, seen, change = values.copy(), values.copy(), np.zeros(n)
    for first in range(0, n, block * states):
        own = np.arange(first, min(first + block * states, n))
        owned = first + np.arange(min(block, own.size))[:, None] + block * np.arange(states)
        real = owned < n
        delta, updates = np.zeros(owned.shape), np.zeros(owned.shape)
        for done in range(backups * real.sum(axis=1).max()):
            threads = np.flatnonzero(done < backups * real.sum(axis=1))
            due = np.where(updates > 0, np.abs(delta) + update_constant / np.maximum(updates, 1), np.inf)
            chosen = np.where(real, due, -np.inf)[threads].argmax(axis=1)
            picked = owned[threads, chosen]
            found = backup(picked, seen)
            delta[threads, chosen] = found - seen[picked]
            updates[threads, chosen] += 1
            seen[picked] = found
        change[owned[real]] = delta[real]
        new[own], seen[own] = seen[own], values[own]
    return new, change


class LocalRows:
    """The rows of one partition. Transitions are added in stored order, as a thread does, so that bits agree."""

    def __init__(self, table: PartitionTable, discount: float, sign: float) -> None:
        n, m = table.n_states, table.n_rows
        counts = np.arange(n + 1) * table.actions_per_state
        widths = np.arange(m + 1) * table.successors_per_action
        self._action_ptr = table.action_ptr.astype(np.int64) if table.action_ptr.size else counts
        self._successor_ptr = table.successor_ptr.astype(np.int64) if table.successor_ptr.size else widths
        self._successors, self._probabilities = table.successors, table.probabilities
        self._rewards = sign * table.rewards.astype(np.float64)
        self._discounts = discounts(discount, table.durations) if table.durations.size else np.full(m, discount)
        self._terminal = sign * table.terminal_rewards if table.terminal_rewards.size else np.zeros(n)
        self.policy = np.full(n, -1, np.int32)
        """int32 [n]; the action of each own state's last :meth:`backup`, -1 where there is none."""

    def backup(self, states: IntArray, values: FloatArray) -> FloatArray:
        """As :class:`Backup`."""
        best, self.policy[states] = self.greedy(states, values)
        return best

    def greedy(self, states: IntArray, values: FloatArray) -> tuple[FloatArray, npt.NDArray[np.int32]]:
        """Backed-up values of some own states, and the lowest best action of each, -1 where there is none."""
        rows, starts, acting = self._rows_of(states)
        best, action = self._terminal[states], np.full(states.size, -1, np.int32)
        if rows.size:
            q = self._q(rows, values)
            most = np.maximum.reduceat(q, starts)
            counts = np.diff(np.append(starts, rows.size))
            place = np.where(q == np.repeat(most, counts), np.arange(rows.size), rows.size)
            first = np.minimum.reduceat(place, starts)
            best[acting], action[acting] = q[first], first - starts
        return best, action

    def measure(
        self, values: FloatArray, policy: npt.NDArray[np.int32], row_sum: float, significant: float
    ) -> tuple[FloatArray, float]:
        """Residuals at local values: what `ooc_mdp.backends.base.Backend.measure` returns, `policy` likewise."""
        n = policy.size
        best, greedy = self.greedy(np.arange(n), values)
        np.copyto(policy, greedy, where=policy < 0)
        residual = best - values[:n]
        normalised, kept, kept_normalised = residual.copy(), residual.copy(), residual.copy()
        rows, starts, acting = self._rows_of(np.arange(n))
        if rows.size:
            own = np.repeat(values[:n], np.diff(self._action_ptr))
            change = self._q(rows, values) - own
            scaled = change / (1.0 - self._discounts * row_sum)
            chosen = starts + policy[acting]
            normalised[acting] = np.maximum.reduceat(scaled, starts)
            kept[acting], kept_normalised[acting] = change[chosen], scaled[chosen]
        large = best[np.abs(residual) > significant]
        measured = np.array([normalised.max(), -kept_normalised.min(), residual.max(), -kept.min()])
        return measured, float(large.max(initial=-np.inf))

    def _rows_of(self, states: IntArray) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
        """Rows of some states, one state's after the other's; where those of each begin; which states have some."""
        first, last = self._action_ptr[states], self._action_ptr[states + 1]
        acting = last > first
        counts = (last - first)[acting]
        starts = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(first[acting] - starts, counts), starts, acting

    def _q(self, rows: IntArray, values: FloatArray) -> FloatArray:
        """float64: the value of each row."""
        first, last = self._successor_ptr[rows], self._successor_ptr[rows + 1]
        total = np.zeros(rows.size)
        for k in range(int((last - first).max())):
            here = np.flatnonzero(first + k < last)
            at = first[here] + k
            total[here] += self._probabilities[at].astype(np.float64) * values[self._successors[at]]
        found: FloatArray = self._rewards[rows] + self._discounts[rows] * total
        return found
