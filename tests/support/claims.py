"""What a solve claims, held against exact arithmetic; what a partition's residuals are, in NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from small_mdps import distance, evaluate, exact_q

from ooc_mdp.model.mdp import FloatArray, Rows, discounts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.store import Store

__all__ = ["assert_that_all_claims_hold", "plain_residual", "residuals", "scale_of", "sign_of"]


def sign_of(store: Store) -> int:
    return 1 if store.sense == "max" else -1


def scale_of(rows: Rows, best: list[Fraction]) -> float:
    """Largest number that a solve meets: float64 cannot be asked for much less than 1e-15 of it."""
    numbers = [np.abs(rows.rewards).max(initial=0.0), float(max(map(abs, best)))]
    if rows.initial_values is not None:
        numbers.append(np.abs(rows.initial_values).max())
    return float(max(numbers)) or 1.0


def plain_residual(rows: Rows, values: np.ndarray, discount: float, sign: int) -> Fraction:
    """Largest |opt_a Q_a - V|, exact."""
    exact = [Fraction(v) for v in values]
    largest = Fraction(0)
    for s in range(rows.n_states):
        pairs = range(rows.action_ptr[s], rows.action_ptr[s + 1])
        terminal = Fraction(0) if rows.terminal_rewards is None else Fraction(rows.terminal_rewards[s])
        q = max((sign * exact_q(rows, exact, j, discount) for j in pairs), default=sign * terminal)
        largest = max(largest, abs(q - sign * exact[s]))
    return largest


def assert_that_all_claims_hold(
    solution: Solution, store: Store, rows: Rows, best: list[Fraction], discount: float
) -> None:
    c, s, sign = solution.certificate, solution.statistics, sign_of(store)
    errors = [sign * d for d in distance(solution.values, best)]
    assert c.error_lower <= min(errors)
    assert max(errors) <= c.error_upper
    assert max(map(abs, errors)) <= c.error_bound
    assert plain_residual(rows, solution.values, discount, sign) <= c.residual_bound
    counts = np.diff(rows.action_ptr)
    assert np.where(counts > 0, (solution.policy >= 0) & (solution.policy < counts), solution.policy == -1).all()
    loss = [sign * d for d in distance(evaluate(rows, solution.policy, discount), best)]
    assert min(loss) >= 0
    assert max(loss) <= c.policy_loss_bound
    if solution.outcome is Outcome.PROVED:
        assert c.error_bound <= c.target
    if solution.outcome is Outcome.RESIDUAL_REACHED:
        assert c.residual_bound <= c.target
    assert s.cache_peak_bytes <= s.cache_bytes
    assert s.hits + s.misses == s.accesses
    assert s.auxiliary_hits <= s.auxiliary_accesses
    assert s.loads >= s.misses == s.visits
    assert s.partitions_unread >= s.n_partitions - s.loads


class Residuals(NamedTuple):
    """Of a partition, as in `backends.base.RESIDUALS`."""

    rise: float
    fall: float
    plain_rise: float
    plain_fall: float


def residuals(
    table: PartitionTable,
    values: FloatArray,
    policy: np.ndarray,
    sign: float,
    discount: float,
    row_sum: float,
) -> Residuals:
    """Residuals of a partition at the values (float64 [n], of the maximisation), by NumPy.

    Falls are those of the policy's actions; of every action where a state has none (-1).
    """
    n, m = table.n_states, table.n_rows
    own = values[table.first_state : table.first_state + n]
    local = np.concatenate([own, values[table.halo]])
    counts = np.diff(table.action_ptr) if table.action_ptr.size else np.full(n, table.actions_per_state)
    widths = np.diff(table.successor_ptr) if table.successor_ptr.size else np.full(m, table.successors_per_action)
    state, row = np.repeat(np.arange(n), counts), np.repeat(np.arange(m), widths)
    expected = np.bincount(row, table.probabilities.astype(np.float64) * local[table.successors], m)
    g = discounts(discount, table.durations.astype(np.float64)) if table.durations.size else np.full(m, discount)
    plain = sign * table.rewards.astype(np.float64) + g * expected - own[state]
    normalised = plain / (1 - g * row_sum)
    action = np.arange(m) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = policy[table.first_state : table.first_state + n][state]
    kept = (action == chosen) | (chosen < 0)
    assert np.isin(np.flatnonzero(counts), state[kept]).all(), "a policy names an action that is not there"
    ends = counts == 0
    reward = sign * table.terminal_rewards[ends] if table.terminal_rewards.size else np.zeros(int(ends.sum()))
    terminal = reward - own[ends]
    rise, plain_rise = (float(np.append(x, terminal).max()) for x in (normalised, plain))
    fall, plain_fall = (float(-np.append(x[kept], terminal).min()) for x in (normalised, plain))
    return Residuals(rise, fall, plain_rise, plain_fall)
