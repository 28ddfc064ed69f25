"""The compiled passes over a table that questions about goals need: which states may, or must, reach others.

Each works on one partition and marks of all states, until nothing more changes inside the partition; the caller
(`ooc_mdp.properties.graph`) repeats it when a neighbour has changed.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.backends.cpu.rows import MIN_MASS, ends, first_row, index, past_row, row_begin, row_end
from ooc_mdp.runtime.compiled import loop
from ooc_mdp.undiscounted.kernels.partition_rows import state_at, terminal_value

__all__ = ["backup_bounds", "choose_away", "choose_paying", "reward_ends", "spread_ahead", "spread_marks"]

_ROUNDOFF = 2.0**-53
_TINY = 1e-300
"""More than products that underflow lose."""


@loop
def spread_marks(t, marked, eligible, inside, every, sure, lost, policy):
    """Mark eligible states of which some row, or every row, may lead to a marked state; that row goes to `policy`.

    Parameters
    ----------
    marked, eligible : uint8 [n]; 1 in the states of each set.
    inside : uint32 [n]; a label of each state.
    every : whether every row has to lead to a marked state.
    sure : whether only rows count that stay among states of their state's label and do not end the process.
    lost : whether ending the process counts as leading to a marked state, and as staying.

    Returns
    -------
    whether another partition reads a state that was marked
    """
    seen = False
    forwards = False
    again = True
    while again:
        again = False
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            row, end = first_row(t, i), past_row(t, i)
            if marked[s] != 0 or eligible[s] == 0 or row == end:
                continue
            found = every
            choice = 0
            for j in range(row, end):
                mass = 0.0
                hit = False
                stays = True
                if not ends(t, j):
                    for k in range(row_begin(t, j), row_end(t, j)):
                        if t.probabilities[k] > 0:
                            to = index(t, t.successors[k])
                            mass += np.float64(t.probabilities[k])
                            hit |= marked[to] != 0
                            stays &= inside[to] == inside[s]
                if mass < MIN_MASS:
                    hit |= lost
                    stays &= lost
                leads = hit and (stays or not sure)
                if every and not leads:
                    found = False
                    break
                if leads and not every:
                    found = True
                    choice = j - row
                    break
            if found:
                marked[s] = 1
                policy[s] = choice
                again = True
                seen |= t.boundary[i]
        forwards = not forwards
    return seen


@loop
def spread_ahead(t, marked, expanded):
    """Mark the states that marked states of the partition lead to by rows that do not end the process.

    Parameters
    ----------
    marked, expanded : uint8 [n]; 1 in the states that are reached, and in those whose successors are marked.
    """
    again = True
    while again:
        again = False
        for i in range(t.n):
            s = t.first + i
            if marked[s] == 0 or expanded[s] != 0:
                continue
            expanded[s] = 1
            for j in range(first_row(t, i), past_row(t, i)):
                if ends(t, j):
                    continue
                for k in range(row_begin(t, j), row_end(t, j)):
                    if t.probabilities[k] > 0:
                        to = index(t, t.successors[k])
                        if marked[to] == 0:
                            marked[to] = 1
                            again = True


@loop
def reward_ends(t, marked, low, high):
    """The least and the largest reward of marked states and their rows, and `low` and `high`."""
    for i in range(t.n):
        s = t.first + i
        if marked[s] == 0:
            continue
        row, end = first_row(t, i), past_row(t, i)
        if row == end:
            value = terminal_value(t, i, 1.0)
            low, high = min(low, value), max(high, value)
        for j in range(row, end):
            reward = np.float64(t.rewards[j])
            low, high = min(low, reward), max(high, reward)
    return low, high


@loop
def choose_away(t, reached, wanted, policy):
    """Choose, in the wanted states, the first row that leads to no state of `reached` (uint8 [n])."""
    for i in range(t.n):
        s = t.first + i
        if wanted[s] == 0:
            continue
        for j in range(first_row(t, i), past_row(t, i)):
            away = True
            if not ends(t, j):
                for k in range(row_begin(t, j), row_end(t, j)):
                    if t.probabilities[k] > 0 and reached[index(t, t.successors[k])] != 0:
                        away = False
            if away:
                policy[s] = j - first_row(t, i)
                break


@loop
def choose_paying(t, inside, sign, marked, policy):
    """Mark states of a label (uint32 [n], not 0) with a row that pays (sign r > 0) and stays among states of it."""
    for i in range(t.n):
        s = t.first + i
        if inside[s] == 0:
            continue
        for j in range(first_row(t, i), past_row(t, i)):
            if ends(t, j) or not sign * t.rewards[j] > 0:
                continue
            stays = True
            mass = 0.0
            for k in range(row_begin(t, j), row_end(t, j)):
                if t.probabilities[k] > 0:
                    mass += np.float64(t.probabilities[k])
                    stays &= inside[index(t, t.successors[k])] == inside[s]
            if stays and mass >= MIN_MASS:
                marked[s] = 1
                policy[s] = j - first_row(t, i)
                break


@loop
def backup_bounds(t, before, after, sign, policy):
    """One backup of a lower and an upper bound of probabilities, rounded outwards.

        after(s) = opt_a sum p before(s') / sum p,      terms are at least 0, so that rounding is relative

    Parameters
    ----------
    before, after : float64 [n, 2]; bounds below and above, in the source's sign.
    sign : 1 where the largest probability is meant, -1 where the least is.
    policy : int32 [n]; gets the row that is best by the bound on its side, the lowest of equals.
    """
    for i in range(t.n):
        s = t.first + i
        row, end = first_row(t, i), past_row(t, i)
        if row == end:
            after[s, 0] = after[s, 1] = terminal_value(t, i, 1.0)
            policy[s] = -1
            continue
        low = high = -np.inf
        for j in range(row, end):
            if ends(t, j):
                a = b = float(t.rewards[j])
            else:
                mass = a = b = 0.0
                positive = False
                for k in range(row_begin(t, j), row_end(t, j)):
                    p = np.float64(t.probabilities[k])
                    to = index(t, t.successors[k])
                    mass += p
                    a += p * before[to, 0]
                    b += p * before[to, 1]
                    if p > 0 and before[to, 1] > 0:
                        positive = True
                share = mass if mass >= MIN_MASS else 1.0
                unit = (2 * (row_end(t, j) - row_begin(t, j)) + 8) * _ROUNDOFF
                a = max(a / share * (1 - unit) - _TINY, 0.0)
                b = min(b / share * (1 + unit) + _TINY, 1.0) if positive else 0.0
            if sign > 0:
                if a > low:
                    policy[s] = j - row
                low = max(low, a)
                high = max(high, b)
            else:
                if -b > high:
                    policy[s] = j - row
                low = max(low, -a)
                high = max(high, -b)
        after[s, 0] = low if sign > 0 else -low
        after[s, 1] = high if sign > 0 else -high
