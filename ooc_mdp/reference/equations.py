"""The equations in NumPy, for one MDP in memory: what every kernel is compared with.

    Q(s,a) = r(s,a) + gamma**tau(s,a) sum_s' p(s'|s,a) V(s'),     V(s) = opt_a Q(s,a)

Written to be read, not to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray, Rows, discounts

__all__ = ["Evaluation", "backup", "policy_iteration", "q_values"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One synchronous backup of every state."""

    values: FloatArray
    """float64 [n]."""
    policy: IntArray
    """int64 [n]; the lowest best action of each state, -1 where there is none."""


def _discounts(rows: Rows, discount: float) -> FloatArray:
    if rows.durations is None:
        return np.full(rows.n_rows, discount)
    return discounts(discount, rows.durations)


def q_values(rows: Rows, values: FloatArray, discount: float) -> FloatArray:
    """float64 [m]: value of each row of an MDP whose states are all in `rows`."""
    expected = np.add.reduceat(np.append(rows.probabilities * values[rows.successors], 0.0), rows.successor_ptr[:-1])
    return rows.rewards + _discounts(rows, discount) * expected


def backup(rows: Rows, values: FloatArray, discount: float, sense: str = "max") -> Evaluation:
    """Back up every state once from the same values."""
    sign = 1.0 if sense == "max" else -1.0
    q = sign * q_values(rows, values, discount) if rows.n_rows else np.empty(0)
    new = np.zeros(rows.n_states) if rows.terminal_rewards is None else rows.terminal_rewards.copy()
    policy = np.full(rows.n_states, -1, np.int64)
    for s in range(rows.n_states):
        lo, hi = rows.action_ptr[s], rows.action_ptr[s + 1]
        if hi > lo:
            policy[s] = np.argmax(q[lo:hi])
            new[s] = sign * q[lo + policy[s]]
    return Evaluation(new, policy)


def policy_iteration(rows: Rows, discount: float, sense: str = "max") -> Evaluation:
    """Optimal values and policy by Howard's policy iteration with a dense linear solve.

    An action replaces the present one only where it is better by more than the rounding of a backup; where the
    rounding of the linear solve is larger than that, the search ends with the first policy that comes back.
    """
    n = rows.n_states
    sign = 1.0 if sense == "max" else -1.0
    terminal = np.zeros(n) if rows.terminal_rewards is None else rows.terminal_rewards
    policy = np.where(np.diff(rows.action_ptr) > 0, 0, -1)
    g = _discounts(rows, discount)
    tie = (4 + int(np.diff(rows.successor_ptr).max(initial=0))) * 2.0**-52
    seen = set()
    while True:
        matrix, right = np.eye(n), terminal.copy()
        for s in np.flatnonzero(policy >= 0):
            j = rows.action_ptr[s] + policy[s]
            lo, hi = rows.successor_ptr[j], rows.successor_ptr[j + 1]
            np.subtract.at(matrix[s], rows.successors[lo:hi], g[j] * rows.probabilities[lo:hi])
            right[s] = rows.rewards[j]
        values: FloatArray = np.asarray(np.linalg.solve(matrix, right), np.float64)
        q = sign * q_values(rows, values, discount) if rows.n_rows else np.empty(0)
        improved = policy.copy()
        for s in np.flatnonzero(policy >= 0):
            lo, hi = rows.action_ptr[s], rows.action_ptr[s + 1]
            best = int(np.argmax(q[lo:hi]))
            if q[lo + best] > q[lo + policy[s]] + tie * abs(q[lo + best]):
                improved[s] = best
        seen.add(policy.tobytes())
        if improved.tobytes() in seen:
            return Evaluation(values, policy)
        policy = improved
