"""The compiled loops for undiscounted totals: sweeps of a lower and an upper value at once, and the inductive check.

    values[s] = (L(s), U(s)),      q_a = (r + sum_{s' not with s} p V(s')) / (1 - p(with s)) -+ perturbation

*With s* are s itself and the states of its zero-reward component, where a policy may stay without reward: the
probability that a row keeps there is summed up as a geometric series, so that a state left with probability 1e-13 takes
one backup. Each exit is charged to L and paid to U, which makes both of them strictly inductive where the sweeps end
(``docs/theory/undiscounted.md``). The check uses neither zero-reward components nor perturbations, only the table and
the numbers, with its rounding on the safe side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.backends.cpu.rows import MIN_MASS, ends, first_row, index, past_row, row_begin, row_end
from ooc_mdp.runtime.compiled import loop
from ooc_mdp.undiscounted.kernels.end_components import NO_COMPONENT
from ooc_mdp.undiscounted.kernels.partition_rows import (
    UNIT_ROUNDOFF,
    expected_change,
    leaving,
    state_at,
    terminal_value,
)

__all__ = ["Components", "check", "greedy", "reach_strict", "relax", "rows_of_policy", "stay_level", "sweep"]

_DROP = 0.1
"""A visit ends once its changes have fallen to this share."""
_TINY = 1e-310
"""At least the rounding of products that underflow."""


class Components(NamedTuple):
    """Sets of states that share a value."""

    labels: npt.NDArray[np.uint32]
    """uint32 [n]; the component of each state, or NO_COMPONENT."""
    members: npt.NDArray[np.int64]
    """int64 [k], ascending; states of components of several states."""
    exits: npt.NDArray[np.float64]
    """float64 [k]; value of the best exit of each of them, which sweeps update."""
    staying: npt.NDArray[np.float64]
    """float64 [n]; value of staying for ever in the zero-reward component of each state."""


@njit(inline="always")
def _outflow(t, i, j, zero_reward, x):
    """Of row j of state i: sum p, sum p over what lies outside its component, and sum p x(s') of both columns."""
    s = t.first + i
    own = zero_reward[s]
    mass = away = first = second = 0.0
    for k in range(row_begin(t, j), row_end(t, j)):
        p = np.float64(t.probabilities[k])
        to = index(t, t.successors[k])
        mass += p
        if to == s or (own != NO_COMPONENT and zero_reward[to] == own) or p == 0:
            continue
        away += p
        first += p * x[to, 0]
        second += p * x[to, 1]
    return mass, away, first, second


@njit(inline="always")
def _exit_value(t, i, j, zero_reward, values, sign):
    """Values of row j by L and by U, given that it leaves the zero-reward component; -inf where it never does."""
    r = sign * np.float64(t.rewards[j])
    if ends(t, j):
        return r, r
    mass, away, low, high = _outflow(t, i, j, zero_reward, values)
    if mass >= MIN_MASS and away == 0:
        return -np.inf, -np.inf
    weight, left = leaving(mass, away)
    return (r * weight + low) / left, (r * weight + high) / left


@njit(inline="always")
def _place(labels, members, s):
    """Index of state s among the members of components of several states; -1 where it is none."""
    if labels[s] == NO_COMPONENT:
        return -1
    k = np.searchsorted(members, s)
    return k if k < members.size and members[k] == s else -1


@loop
def sweep(t, values, lower, upper, alike, perturbation, sign, most, tolerance, forwards):
    """Gauss-Seidel sweeps of a partition, at most `most`, until one changes no value by more than the tolerance.

    They also end once a sweep changes values by a small share of the first sweep's change only, as values of other
    partitions matter more then. Members of components of several states keep their values: the values of their best
    exits go to `exits`.

    Parameters
    ----------
    lower, upper : `Components` of L and U.
    alike : whether they are the same.

    Returns
    -------
    sweeps, the largest change of the last, the largest change of a boundary value in all of them
    """
    before = values[t.first : t.first + t.n].copy()
    change = 0.0
    sweeps = 0
    while sweeps < most:
        change = 0.0
        sweeps += 1
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            row, end = first_row(t, i), past_row(t, i)
            low = high = -np.inf
            if row == end:
                low = high = terminal_value(t, i, sign)
            for j in range(row, end):
                a, b = _exit_value(t, i, j, lower.labels, values, sign)
                if not alike:
                    _, b = _exit_value(t, i, j, upper.labels, values, sign)
                low = max(low, a - perturbation)
                high = max(high, b + perturbation)
            at_low = _place(lower.labels, lower.members, s)
            at_high = at_low if alike else _place(upper.labels, upper.members, s)
            stays = lower.labels[s] != NO_COMPONENT
            if at_low >= 0:
                lower.exits[at_low] = low
            else:
                low = max(low, lower.staying[s]) if stays else low
                change = max(change, abs(low - values[s, 0]))
                values[s, 0] = low
            if at_high >= 0:
                upper.exits[at_high] = high
            else:
                high = max(high, upper.staying[s]) if stays else high
                change = max(change, abs(high - values[s, 1]))
                values[s, 1] = high
        forwards = not forwards
        if sweeps == 1:
            tolerance = max(tolerance, _DROP * change)
        if change <= tolerance:
            break
    moved = 0.0
    for i in range(t.n):
        if t.boundary[i]:
            s = t.first + i
            moved = max(moved, abs(values[s, 0] - before[i, 0]), abs(values[s, 1] - before[i, 1]))
    return sweeps, change, moved


@loop
def greedy(t, values, lower, perturbation, sign, policy):
    """The exit of largest value by L, the lowest of equals; -1 without actions, -2 where no row leaves."""
    for i in range(t.n):
        s = t.first + i
        row, end = first_row(t, i), past_row(t, i)
        choice = -1 if row == end else -2
        best = -np.inf
        for j in range(row, end):
            a, _ = _exit_value(t, i, j, lower.labels, values, sign)
            if a > best:
                best = a
                choice = j - row
        policy[s] = choice
        at = _place(lower.labels, lower.members, s)
        if at >= 0:
            lower.exits[at] = best - perturbation
        elif lower.labels[s] != NO_COMPONENT and best - perturbation <= lower.staying[s]:
            policy[s] = -2


@loop
def rows_of_policy(t, policy):
    """The policy's rows of a partition: pointers to them and to transitions, their arrays as in the table."""
    action_ptr = np.zeros(t.n + 1, np.uint32)
    count = 0
    for i in range(t.n):
        j = first_row(t, i) + policy[t.first + i]
        action_ptr[i + 1] = action_ptr[i]
        if policy[t.first + i] >= 0:
            action_ptr[i + 1] += np.uint32(1)
            count += row_end(t, j) - row_begin(t, j)
    rows = np.int64(action_ptr[t.n])
    successor_ptr = np.zeros(rows + 1, np.uint32)
    successors = np.empty(count, t.successors.dtype)
    probabilities = np.empty(count, t.probabilities.dtype)
    rewards = np.empty(rows, t.rewards.dtype)
    durations = np.empty(rows if t.durations.size > 0 else 0, np.float64)
    row = at = 0
    for i in range(t.n):
        if policy[t.first + i] < 0:
            continue
        j = first_row(t, i) + policy[t.first + i]
        for k in range(row_begin(t, j), row_end(t, j)):
            successors[at] = t.successors[k]
            probabilities[at] = t.probabilities[k]
            at += 1
        rewards[row] = t.rewards[j]
        if t.durations.size > 0:
            durations[row] = t.durations[j]
        row += 1
        successor_ptr[row] = at
    return action_ptr, successor_ptr, successors, probabilities, rewards, durations


@loop
def relax(t, x, zero_reward, members, exits, staying, policy, only, right, sweeps, forwards):
    """Gauss-Seidel sweeps over the policy's exits: x(s) = (c r, d) + sum p x(s') / (1 - p(with s)).

    The first column is the policy's total reward, the second its exits. Policy: -1 without actions, -2 where it
    stays; sums of states in components of several states go to `exits`. `only` means that the table has no rows but
    the policy's (:func:`rows_of_policy`).

    Parameters
    ----------
    staying : float64 [n]; value of staying for ever, where it is finite; else 0 is taken.
    right : c and d, the sign of the rewards and 1, or 0 and 0 for the linear part alone.
    """
    scale, one_exit = right
    for _ in range(sweeps):
        for y in range(t.n):
            i = state_at(t, y, forwards)
            s = t.first + i
            total = count = 0.0
            if policy[s] == -1:
                total = terminal_value(t, i, scale)
            elif policy[s] >= 0:
                j = first_row(t, i) + (0 if only else policy[s])
                r = scale * np.float64(t.rewards[j])
                if ends(t, j):
                    total = r
                else:
                    mass, away, total, count = _outflow(t, i, j, zero_reward, x)
                    weight, left = leaving(mass, away)
                    total = (r * weight + total) / left
                    count /= left
                count += one_exit
            elif np.isfinite(staying[s]):
                total = one_exit * staying[s]
            k = _place(zero_reward, members, s)
            if k >= 0:
                exits[k, 0] = total
                exits[k, 1] = count
            else:
                x[s, 0] = total
                x[s, 1] = count


@njit(inline="always")
def _drift(t, i, j, values, sign):
    """An interval about r + sum p V(s') - V(s), and whether the row is level: it never ends, and all V(s') are V(s)."""
    s = t.first + i
    own = values[s]
    r = sign * np.float64(t.rewards[j])
    if ends(t, j):
        size = abs(r) + abs(own)
        error = 4 * UNIT_ROUNDOFF * size + _TINY
        return r - own - error, r - own + error, False
    mass, moved, size, level = expected_change(t, j, values, own)
    unit = 1.01 * (row_end(t, j) - row_begin(t, j) + 8) * UNIT_ROUNDOFF
    if mass >= MIN_MASS:
        size += abs(r) * mass
        drift = (r * mass + moved) / mass
        error = unit * size / mass * 2 + _TINY
        return drift - error, drift + error, level
    lost = (1 - mass) * own
    drift = r + moved - lost
    error = unit * (abs(r) + size + abs(lost) + abs(own)) + _TINY
    return drift - error, drift + error, False


@loop
def check(t, values, middle, policy, sign, staying_low, staying_high, pending, idle):
    """Whether U and L of the partition's states are inductive, L under the policy; see ``docs/theory/undiscounted.md``.

    Parameters
    ----------
    values : float64 [n, 2]; L and U.
    middle : float64 [n]; V, of which the plain residual is measured.
    staying_low, staying_high : float64 [n]; bounds on the value of staying in a zero-reward component for ever.
    pending : uint8 [n]; becomes 1 where L is above that of staying and the policy's row is level and without reward,
        else 0.
    idle : uint8 [n]; becomes 1 where U is below that of staying and some row is level and without reward, else 0.

    Returns
    -------
    faults of U, of L, of the policy (no action of the state), a state at fault (-1: none), states that are pending,
    states that are idle, largest |opt_a Q_a - V|, the largest rounding in a Q_a - V
    """
    low, high = values[:, 0], values[:, 1]
    upper, lower, wrong, waiting, idling, at = 0, 0, 0, 0, 0, -1
    residual = rounding = 0.0
    for i in range(t.n):
        s = t.first + i
        row, end = first_row(t, i), past_row(t, i)
        pending[s] = idle[s] = 0
        if row == end:
            final = terminal_value(t, i, sign)
            if not low[s] <= final <= high[s]:
                upper += not final <= high[s]
                lower += not low[s] <= final
                at = s
            if policy[s] != -1:
                wrong += 1
                at = s
            residual = max(residual, abs(final - middle[s]))
            continue
        best = -np.inf
        for j in range(row, end):
            _, most, level = _drift(t, i, j, high, sign)
            r = sign * t.rewards[j]
            if not (r <= high[s] if ends(t, j) else most < 0 or (level and r <= 0)):
                upper += 1
                at = s
            elif level and r == 0 and high[s] < staying_high[s]:
                idle[s] = 1
            least, most, _ = _drift(t, i, j, middle, sign)
            best = max(best, 0.5 * (least + most))
            rounding = max(rounding, most - least)
        idling += idle[s]
        residual = max(residual, abs(best))
        if policy[s] < 0 or policy[s] >= end - row:
            wrong += 1
            at = s
            continue
        j = row + policy[s]
        least, _, level = _drift(t, i, j, low, sign)
        if level and t.rewards[j] == 0:
            if low[s] > staying_low[s]:
                pending[s] = 1
                waiting += 1
        elif not (low[s] <= sign * t.rewards[j] if ends(t, j) else least > 0):
            lower += 1
            at = s
    return upper, lower, wrong, at, waiting, idling, residual, rounding


@loop
def stay_level(t, high, idle, sign):
    """Clear `idle` of states without a level row among idle states and without reward; whether there were any."""
    fewer = False
    forwards = False
    again = True
    while again:
        again = False
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            if idle[s] == 0:
                continue
            stays = False
            for j in range(first_row(t, i), past_row(t, i)):
                _, _, level = _drift(t, i, j, high, sign)
                inside = level and t.rewards[j] == 0
                for k in range(row_begin(t, j), row_end(t, j)):
                    if inside and t.probabilities[k] > 0 and idle[index(t, t.successors[k])] == 0:
                        inside = False
                stays |= inside
            if not stays:
                idle[s] = 0
                fewer = again = True
        forwards = not forwards
    return fewer


@loop
def reach_strict(t, policy, pending):
    """Clear `pending` of states whose policy may reach one that is not pending; how many are left, whether fewer."""
    left = 0
    before = 0
    forwards = False
    again = True
    for i in range(t.n):
        before += pending[t.first + i] != 0
    while again:
        again = False
        left = 0
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            if pending[s] == 0:
                continue
            left += 1
            j = first_row(t, i) + policy[s]
            for k in range(row_begin(t, j), row_end(t, j)):
                if t.probabilities[k] > 0 and pending[index(t, t.successors[k])] == 0:
                    pending[s] = 0
                    left -= 1
                    again = True
                    break
        forwards = not forwards
    return left, left < before
