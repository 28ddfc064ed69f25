"""Bellman residuals in twice the precision of float64, in one pass over a partition.

    x(s, a) = r(s, a) + g(s, a) sum_s' p V(s') - V(s),      V(s) = high(s) + low(s), unevaluated

Numbers are pairs of float64 (Dekker 1971; Hida, Li and Bailey 2001): each sum and product gives its rounding error
exactly, and the errors are added up beside the result. What is left of rounding is some 2^-106 of the terms, where a
backup in float64 leaves 2^-53 of them. A row takes about 30 operations per successor, so this is for the end of a
solve and not for its sweeps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.backends.cpu.rows import TableRows, first_row, index, past_row, row_begin, row_end, table_rows
from ooc_mdp.model.mdp import FloatArray, discounts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.runtime.compiled import loop

__all__ = ["PreciseResiduals", "add", "load_code", "precise_residuals"]

_SPLITTER = 2.0**27 + 1
_UNIT_ROUNDOFF = 2.0**-53
_UNDERFLOW = 1e-320
"""At most what is lost where the parts of a product underflow: a few times 5e-324."""


class PreciseResiduals(NamedTuple):
    """What a pass over a partition found; bounds contain all rounding."""

    rewards: FloatArray
    """float64 [m]; x(s, a), rounded once, of every row."""
    terminal_rewards: FloatArray
    """float64 [n]; the terminal reward minus V where a state has no action, else 0."""
    rise: float
    """At least max N, and 0."""
    fall: float
    """At least max -N_pi for the greedy policy pi, and 0."""
    plain: float
    """At least max |max_a x|."""
    rounding: float
    """The part of rise and fall that is rounding, at most."""


@njit(inline="always")
def _two_sum(a, b):
    """a + b, and what rounding took from it."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@njit(inline="always")
def _split(a):
    """A float64 as a sum of two numbers of 26 bits."""
    t = _SPLITTER * a
    high = t - (t - a)
    return high, a - high


@njit(inline="always")
def _two_product(a, b):
    """a b, and what rounding took from it."""
    p = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


@loop
def add(high, low, change):
    """Add a vector to V = high + low, in place: |low| becomes at most half a unit in the last place of `high`."""
    for s in range(high.size):
        total, lost = _two_sum(high[s], change[s])
        high[s], low[s] = _two_sum(total, lost + low[s])


@njit(inline="always")
def _residual(t, i, j, discount, sign, high, low):
    """x of row j of state i, and a bound on its error."""
    s = t.first + i
    total = lost = size = 0.0
    begin, end = row_begin(t, j), row_end(t, j)
    for k in range(begin, end):
        p = np.float64(t.probabilities[k])
        to = index(t, t.successors[k])
        product, error = _two_product(p, high[to])
        total, rounded = _two_sum(total, product)
        lost += rounded + (error + p * low[to])
        size += p * abs(high[to])
    total, error = _two_product(discount, total)
    lost = discount * lost + error
    reward = sign * np.float64(t.rewards[j])
    total, rounded = _two_sum(total, reward)
    lost += rounded
    total, rounded = _two_sum(total, -high[s])
    lost += rounded - low[s]
    size = discount * size + abs(reward) + abs(high[s])
    # At most three additions to `lost` per successor, each of numbers below 4 (K + 4) u `size`.
    terms = end - begin + 8.0
    return total + lost, 16 * terms * terms * _UNIT_ROUNDOFF * _UNIT_ROUNDOFF * size + terms * _UNDERFLOW * (size > 0)


@loop
def _residuals(t, discounts, gamma, sign, high, low, row_sum, policy, rewards, terminal):
    """Fill `rewards` and `terminal`, and make `policy` greedy, the lowest of equals; rise, fall, plain, rounding."""
    rise = fall = plain = rounding = 0.0
    for i in range(t.n):
        s = t.first + i
        row, end = first_row(t, i), past_row(t, i)
        terminal[i] = 0.0
        policy[s] = -1
        best = best_error = 0.0
        best_margin = 1.0
        if row == end:
            final = sign * t.terminal[i] if t.terminal.size > 0 else 0.0
            total, rounded = _two_sum(final, -high[s])
            best = total + (rounded - low[s])
            best_error = 64 * _UNIT_ROUNDOFF * _UNIT_ROUNDOFF * (abs(final) + abs(high[s]))
            terminal[i] = best
            rise = max(rise, best + best_error + _UNIT_ROUNDOFF * abs(best))
        for j in range(row, end):
            g = discounts[j] if discounts.size > 0 else gamma
            x, error = _residual(t, i, j, g, sign, high, low)
            error += 2 * _UNIT_ROUNDOFF * abs(x)
            margin = (1 - g * row_sum) - 4 * _UNIT_ROUNDOFF
            rewards[j] = x
            rise = max(rise, (x + error) / margin) if margin > 0 else np.inf
            rounding = max(rounding, error / margin)
            if policy[s] < 0 or x > best:
                policy[s] = np.int32(j - row)
                best, best_error, best_margin = x, error, margin
        fall = max(fall, (best_error - best) / best_margin) if best_margin > 0 else np.inf
        rounding = max(rounding, best_error)
        plain = max(plain, abs(best) + best_error)
    return rise, fall, plain, rounding


_UP = 1 + 2.0**-48
"""More than the last few operations round away."""


def precise_residuals(
    table: PartitionTable,
    gamma: float,
    sign: float,
    high: FloatArray,
    low: FloatArray,
    row_sum: float,
    policy: npt.NDArray[np.int32],
) -> PreciseResiduals:
    """Measure a partition at V = high + low (float64 [n_states] each, of the maximisation).

    Parameters
    ----------
    row_sum : the partition's largest, rounded up.
    policy : int32 [n_states]; the partition's part becomes greedy.
    """
    rows: TableRows = table_rows(table)
    rewards, terminal = np.empty(table.n_rows), np.empty(table.n_states)
    row_discounts = discounts(gamma, table.durations)
    found = _residuals(rows, row_discounts, gamma, sign, high, low, row_sum, policy, rewards, terminal)
    rise, fall, plain, rounding = (float(x) * _UP for x in found)
    return PreciseResiduals(rewards, terminal, rise, fall, plain, rounding)


def load_code(table: PartitionTable) -> None:
    """Call the loops on a table whose first state is 0, so that a memory plan counts them."""
    high, low, change = np.zeros((3, table.n_states))
    precise_residuals(table, 0.5, 1.0, high, low, 1.0, np.zeros(table.n_states, np.int32))
    add(high, low, change)
