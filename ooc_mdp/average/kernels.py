"""The compiled loops for average rewards.

    x_a(s) = r(s,a) + sum p (h(s') - h(s)) / sum p

Differences of values are added up, so that rounding grows with them and not with the values. Loops over the table
measure x over all actions; loops over a policy's rows (`ooc_mdp.average.policy`), one per state, whose successors are
states of the whole model, measure and evaluate it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ooc_mdp.backends.cpu.rows import first_row, index, past_row, row_begin, row_end
from ooc_mdp.runtime.compiled import loop

__all__ = ["any_row_leaves", "improve", "measure", "policy_leaves", "relax"]

_UNIT_ROUNDOFF = 2.0**-53
_TINY = 1e-310
"""At least the rounding of products that underflow."""
_LEAST_AWAY = 0.01
"""Share of a row that leaves its state, below which sweeps do not divide by it."""


@njit(inline="always")
def _rounding(length, size):
    """At least what rounding does to x of a row of so many transitions, whose terms have that size together."""
    return 2.02 * (length + 8) * _UNIT_ROUNDOFF * size + _TINY


@njit(inline="always")
def _advantage(t, i, j, values, sign):
    """x of row j of state i, and at least its rounding."""
    own = values[t.first + i]
    r = sign * np.float64(t.rewards[j])
    mass = moved = size = 0.0
    begin, end = row_begin(t, j), row_end(t, j)
    for k in range(begin, end):
        p = np.float64(t.probabilities[k])
        change = p * (values[index(t, t.successors[k])] - own)
        mass += p
        moved += change
        size += abs(change)
    return r + moved / mass, _rounding(end - begin, abs(r) + size / mass)


@loop
def improve(t, begin, end, values, policy, advantage, margin, sign, found):
    """Make the policy of states begin .. end-1 of a partition greedy; values stay.

    A state keeps its action unless another is better by more than `margin`: where actions tie, a policy that changes
    with the rounding would never be done. Of others the lowest best is taken.

    Parameters
    ----------
    advantage : float64 [n]; gets max_a x_a(s).
    found : float64 [FOUND]; gets what `ooc_mdp.average.backends.FOUND` names.
    """
    low, high, others, most, changed, without = np.inf, -np.inf, -np.inf, 0.0, 0, 0
    for i in range(begin, end):
        s = t.first + i
        first, past = first_row(t, i), past_row(t, i)
        if first == past:
            without = i + 1
            continue
        kept = policy[s]
        best = top = second = kept_x = -np.inf
        error = kept_error = 0.0
        chosen = -1
        for j in range(first, past):
            x, e = _advantage(t, i, j, values, sign)
            most = max(most, e)
            if x > best:
                second = top
                best, error, chosen = x, e, j - first
            elif x + e > second:
                second = x + e
            top = max(top, x + e)
            if j - first == kept:
                kept_x, kept_error = x, e
        advantage[s] = best
        if kept >= 0 and kept != chosen and kept_x >= best - margin:
            second = max(second, best + error)
            best, error, chosen = kept_x, kept_error, kept
        changed += chosen != kept
        policy[s] = chosen
        low = min(low, best - error)
        high = max(high, top)
        others = max(others, second)
    found[0], found[1], found[2], found[3], found[4], found[5] = low, high, others, most, changed, without


@loop
def measure(t, values, advantage, sign):
    """x of the rows of a policy: at most the least, at least the largest, the largest rounding; each x goes to
    `advantage` (float64 [n])."""
    low, high, most = np.inf, -np.inf, 0.0
    for i in range(t.n):
        own = values[t.first + i]
        r = sign * np.float64(t.rewards[i])
        mass = moved = size = 0.0
        begin, end = row_begin(t, i), row_end(t, i)
        for k in range(begin, end):
            p = np.float64(t.probabilities[k])
            part = p * (values[t.successors[k]] - own)
            mass += p
            moved += part
            size += abs(part)
        x, e = r + moved / mass, _rounding(end - begin, abs(r) + size / mass)
        advantage[t.first + i] = x
        low = min(low, x - e)
        high = max(high, x + e)
        most = max(most, e)
    return low, high, most


@loop
def relax(t, old, out, begin, end, gain, discount, sign, forwards):
    """A Gauss-Seidel sweep over the rows of a policy towards r - gain + discount P h = h; with sign 0 the linear part.

    Parameters
    ----------
    old : float64 [n]; values of states outside begin .. end-1, whose sweeps run beside this one.
    out : float64 [n]; values of the others, which change.
    """
    for y in range(t.n):
        i = y if forwards else t.n - 1 - y
        s = t.first + i
        own = out[s]
        mass = away = moved = 0.0
        for k in range(row_begin(t, i), row_end(t, i)):
            p = np.float64(t.probabilities[k])
            to = np.int64(t.successors[k])
            mass += p
            if to != s:
                away += p
                moved += p * ((out[to] if begin <= to < end else old[to]) - own)
        left = sign * np.float64(t.rewards[i]) - gain + discount * moved / mass - (1.0 - discount) * own
        out[s] = own + left / max(1.0 - discount + discount * away / mass, _LEAST_AWAY)


@loop
def policy_leaves(t, policy, inside):
    """Clear `inside` (uint8 [n]) of states whose row of the policy leaves it; how many were cleared."""
    cleared = 0
    for i in range(t.n):
        s = t.first + i
        if inside[s] == 0:
            continue
        j = first_row(t, i) + policy[s]
        for k in range(row_begin(t, j), row_end(t, j)):
            if t.probabilities[k] > 0 and inside[index(t, t.successors[k])] == 0:
                inside[s] = 0
                cleared += 1
                break
    return cleared


@loop
def any_row_leaves(t, inside):
    """Clear `inside` (uint8 [n]) of states of which some row leaves it; how many were cleared."""
    cleared = 0
    for i in range(t.n):
        s = t.first + i
        if inside[s] == 0:
            continue
        if first_row(t, i) == past_row(t, i):
            continue
        for k in range(row_begin(t, first_row(t, i)), row_end(t, past_row(t, i) - 1)):
            if t.probabilities[k] > 0 and inside[index(t, t.successors[k])] == 0:
                inside[s] = 0
                cleared += 1
                break
    return cleared
