"""The compiled passes of the graph analysis: which states can stay for ever, reach others or end, at what mean reward.

Each works on one partition and vectors of all states, until nothing more changes inside the partition; the caller
(`ooc_mdp.undiscounted.end_components`) repeats it when a neighbour has changed. Labels are uint32, 0 for removed
states; two states are in one block where both of their labels agree. A row is *inside* a block if its state and all
successors of positive probability are, it never ends the process, and its reward lies in the range `kept`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ooc_mdp.backends.cpu.rows import MIN_MASS, ends, first_row, index, past_row, row_begin, row_end
from ooc_mdp.runtime.compiled import loop
from ooc_mdp.undiscounted.kernels.partition_rows import UNIT_ROUNDOFF, expected_change, state_at

__all__ = [
    "ANY_REWARD",
    "NEGATIVE",
    "NO_COMPONENT",
    "NO_REWARD",
    "POSITIVE",
    "can_end",
    "gain",
    "labels",
    "least_loss",
    "lift",
    "rewards_inside",
    "spread_backward",
    "spread_forward",
    "trim",
]

ANY_REWARD = (-np.inf, np.inf)
"""The range of rewards that excludes no row,"""
NO_REWARD = (0.0, 0.0)
"""and the one that keeps rows without reward."""
NO_COMPONENT = np.uint32(0xFFFFFFFF)
"""The component of a state that is in none."""
POSITIVE, NEGATIVE = np.uint8(1), np.uint8(2)
"""Flags of a component: some reward inside has this sign."""


@njit(inline="always")
def _label(s):
    """A state's own label: all are different, none is 0 (the finaliser of MurmurHash3, a bijection that keeps 0)."""
    h = np.uint64(s + 1)
    h ^= h >> np.uint64(16)
    h = (h * np.uint64(0x85EBCA6B)) & np.uint64(0xFFFFFFFF)
    h ^= h >> np.uint64(13)
    h = (h * np.uint64(0xC2B2AE35)) & np.uint64(0xFFFFFFFF)
    h ^= h >> np.uint64(16)
    return np.uint32(h)


@loop
def labels(n):
    """uint32 [n]: the states' own labels."""
    out = np.empty(n, np.uint32)
    for s in range(n):
        out[s] = _label(s)
    return out


@njit(inline="always")
def _stays(t, i, j):
    """Whether a row leads to its own state only."""
    for k in range(row_begin(t, j), row_end(t, j)):
        if t.probabilities[k] > 0 and index(t, t.successors[k]) != t.first + i:
            return False
    return True


@njit(inline="always")
def _inside(t, i, j, kept, ahead, back):
    if ends(t, j) or not kept[0] <= t.rewards[j] <= kept[1]:
        return False
    s = t.first + i
    mass = 0.0
    for k in range(row_begin(t, j), row_end(t, j)):
        p = np.float64(t.probabilities[k])
        if p > 0:
            to = index(t, t.successors[k])
            if ahead[to] != ahead[s] or back[to] != back[s]:
                return False
            mass += p
    return mass >= MIN_MASS


@loop
def trim(t, kept, ahead, back):
    """Remove states without a row inside their block; return whether another partition reads one of them.

    A state that can only stay where it is gets a block of its own, (its label, 0), so that rows to it are dropped at
    once: with a self-loop in each state, blocks would else lose a state in a round.
    """
    seen = False
    forwards = True
    again = True
    while again:
        again = False
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            if ahead[s] == 0:
                continue
            if back[s] == 0:
                continue
            stays = moves = False
            for j in range(first_row(t, i), past_row(t, i)):
                if _inside(t, i, j, kept, ahead, back):
                    stays = True
                    if not _stays(t, i, j):
                        moves = True
                        break
            if not moves:
                ahead[s] = _label(s) if stays else 0
                back[s] = 0
                seen |= t.boundary[i]
                again = True
        forwards = not forwards
    return seen


@loop
def spread_forward(t, kept, ahead, back, label):
    """Each state takes the largest label of those that lead to it; whether one outside the partition did."""
    outside = False
    forwards = True
    again = True
    while again:
        again = False
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            if ahead[s] == 0:
                continue
            for j in range(first_row(t, i), past_row(t, i)):
                if not _inside(t, i, j, kept, ahead, back):
                    continue
                for k in range(row_begin(t, j), row_end(t, j)):
                    to = index(t, t.successors[k])
                    if t.probabilities[k] > 0 and label[to] < label[s]:
                        label[to] = label[s]
                        if np.int64(t.successors[k]) < t.n:
                            again = True
                        else:
                            outside = True
        forwards = not forwards
    return outside


@loop
def spread_backward(t, kept, ahead, back, label):
    """Each state takes the largest label of those that it leads to; whether another partition reads one that did."""
    seen = False
    forwards = False
    again = True
    while again:
        again = False
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            if ahead[s] == 0:
                continue
            for j in range(first_row(t, i), past_row(t, i)):
                if not _inside(t, i, j, kept, ahead, back):
                    continue
                for k in range(row_begin(t, j), row_end(t, j)):
                    to = index(t, t.successors[k])
                    if t.probabilities[k] > 0 and label[to] > label[s]:
                        label[s] = label[to]
                        again = True
                        seen |= t.boundary[i]
        forwards = not forwards
    return seen


@loop
def can_end(t, zero_reward, reached, policy):
    """Mark states from which some policy ends or reaches a zero-reward component with positive probability.

    `policy` gets a row that does, or the likeliest to reach a state that was marked before: -1 without actions, -2 in a
    zero-reward component.
    """
    seen = False
    forwards = False
    again = True
    while again:
        again = False
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            if reached[s] != 0:
                continue
            found = zero_reward[s] != NO_COMPONENT or first_row(t, i) == past_row(t, i)
            policy[s] = -2 if zero_reward[s] != NO_COMPONENT else -1
            if not found:
                most = 0.0
                for j in range(first_row(t, i), past_row(t, i)):
                    mass = comes = 0.0
                    for k in range(row_begin(t, j), row_end(t, j)):
                        p = np.float64(t.probabilities[k])
                        mass += p
                        if reached[index(t, t.successors[k])] != 0:
                            comes += p
                    if ends(t, j):
                        comes = 1.0
                    elif mass < MIN_MASS:
                        comes += 1 - mass
                    if comes > most:
                        most = comes
                        policy[s] = j - first_row(t, i)
                found = most > 0
            if found:
                reached[s] = 1
                again = True
                seen |= t.boundary[i]
        forwards = not forwards
    return seen


@njit(inline="always")
def _free(t, i, j, zero_reward):
    """Whether a row that never ends stays in its state's zero-reward component, without reward."""
    s = t.first + i
    if zero_reward[s] == NO_COMPONENT or t.rewards[j] != 0:
        return False
    for k in range(row_begin(t, j), row_end(t, j)):
        if t.probabilities[k] > 0 and zero_reward[index(t, t.successors[k])] != zero_reward[s]:
            return False
    return True


@loop
def rewards_inside(t, blocks, components, zero_reward, sign, found):
    """Flag the components, at the states that represent them, with rows inside that have rewards of either sign."""
    for i in range(t.n):
        s = t.first + i
        if blocks[s] == 0:
            continue
        for j in range(first_row(t, i), past_row(t, i)):
            if _inside(t, i, j, ANY_REWARD, blocks, blocks) and not _free(t, i, j, zero_reward):
                if sign * t.rewards[j] > 0:
                    found[components[s]] |= POSITIVE
                elif sign * t.rewards[j] < 0:
                    found[components[s]] |= NEGATIVE


@loop
def least_loss(t, sign):
    """The least that a row of the partition loses, of those that lose something and do not end; else infinite."""
    least = np.inf
    for i in range(t.n):
        for j in range(first_row(t, i), past_row(t, i)):
            r = sign * np.float64(t.rewards[j])
            if r < 0 and not ends(t, j):
                least = min(least, -r)
    return least


@loop
def gain(t, blocks, zero_reward, potential, sign, best):
    """best(s) = max over rows inside, but free ones, of r + sum p (h(s') - h(s)), at least -inf; the rounding in it."""
    rounding = 0.0
    for i in range(t.n):
        s = t.first + i
        if blocks[s] == 0:
            continue
        best[s] = -np.inf
        for j in range(first_row(t, i), past_row(t, i)):
            if not _inside(t, i, j, ANY_REWARD, blocks, blocks) or _free(t, i, j, zero_reward):
                continue
            r = sign * np.float64(t.rewards[j])
            mass, moved, size, _ = expected_change(t, j, potential, potential[s])
            best[s] = max(best[s], r + moved / mass)
            unit = (2 * (row_end(t, j) - row_begin(t, j)) + 8) * UNIT_ROUNDOFF
            rounding = max(rounding, unit * (abs(r) + size / mass))
    return rounding


@loop
def lift(t, zero_reward, stays, settled, policy):
    """Choose, in states whose policy is -2, a free row of their zero-reward component that may reach a settled state.

    States of zero-reward components in which the policy stays (`stays`) take any free row. Returns how many states have
    none.
    """
    left = 0
    forwards = False
    again = True
    while again:
        again = False
        left = 0
        for x in range(t.n):
            i = state_at(t, x, forwards)
            s = t.first + i
            if policy[s] != -2:
                continue
            left += 1
            for j in range(first_row(t, i), past_row(t, i)):
                if ends(t, j) or not _free(t, i, j, zero_reward):
                    continue
                mass = 0.0
                comes = stays[s] != 0
                for k in range(row_begin(t, j), row_end(t, j)):
                    mass += np.float64(t.probabilities[k])
                    if t.probabilities[k] > 0 and settled[index(t, t.successors[k])] != 0:
                        comes = True
                if comes and mass >= MIN_MASS:
                    policy[s] = np.int32(j - first_row(t, i))
                    settled[s] = 1
                    left -= 1
                    again = True
                    break
        forwards = not forwards
    return left
