"""The policy's rows of one partition, laid out along the flow of the policy, and sweeps over them.

    V(s) <- V(s) + w(s) { sign r(s,b) + g(s,b) sum_k p_k V(succ_k) - V(s) },      b the policy's action in s
    w(s) = 1 / (1 - g p_self - c g p_later)

States are swept out from where the policy's most likely path ends (a state that stays, a cycle, another partition), so
that nearly every value comes after those that it depends on. What a sweep leaves is then due to successors that come
later, of probability p_later. They will change much as the state itself does, and the step w(s) takes them along, c of
it: Gauss-Seidel with what it neglects lumped into the diagonal, as in modified incomplete factorisations (Gustafsson
1978). It is no contraction for every policy: who uses it looks at the changes, and falls back on c = 0, plain
Gauss-Seidel but for states that stay. No bound rests on it.

A slab holds, for each state in that order, w g p_k (float64 [n, K]) | 1 - w (float64 [n]) | w r (float64 [n]) | the
state (uint32 [n]) | its action (int32 [n]) | successors ([n, K], local), and is read from one end to the other; the
table holds a state's greedy row among its others.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["flow_order", "gather", "lay_slab", "mend_slab", "slab_bytes", "sweep_slab", "without_lookahead"]

_MOST_LATER = 0.3
"""Largest g p_later of a state that gets a longer step."""


def slab_bytes(n: int, width: int, successor_bytes: int) -> int:
    """Bytes of the slab of n states with so many successors each, a multiple of 8."""
    return n * (8 * width + 8 + 8 + 4 + 4) + -(-n * successor_bytes * width // 8) * 8


@njit(nogil=True, cache=True)
def gather(
    actions, width, rows_each, width_each, policy, n, action_ptr, successors, probabilities, rewards, discounts,
    terminal, base, weights, rows, towards, discount, sign,
):  # fmt: skip
    """The policy's rows in the order of states, and where each state most likely goes: one pass along the table.

    Parameters
    ----------
    base : float64 [n]; signed rewards.
    weights : float64 [n, K]; g p.
    rows : [n, K]; successors, local.
    towards : int32 [n]; most likely successor; -1 where the state stays, leaves the partition, or ends the process.
    """
    n_actions = len(actions) if len(actions) > 0 else rows_each
    n_width = len(width) if len(width) > 0 else width_each
    for i in range(n):
        s = np.uint64(i)
        at = s * np.uint64(n_width)
        choice = policy[s]
        nearest = np.int64(-1)
        if choice >= 0:
            j = (s * np.uint64(n_actions) if n_actions > 0 else np.uint64(action_ptr[s])) + np.uint64(choice)
            lo = j * np.uint64(n_width)
            g = discounts[j] if discounts.size > 0 else discount
            base[s] = sign * np.float64(rewards[j])
            most = 0.0
            for k in range(len(width) if len(width) > 0 else width_each):
                transition = lo + np.uint64(k)
                weight = g * np.float64(probabilities[transition])
                weights[at + np.uint64(k)] = weight
                successor = successors[transition]
                rows[at + np.uint64(k)] = successor
                nearest = np.int64(successor) if weight > most else nearest
                most = weight if weight > most else most
            if nearest == i or nearest >= n:
                nearest = np.int64(-1)
        else:
            base[s] = sign * terminal[s] if terminal.size > 0 else 0.0
            for k in range(len(width) if len(width) > 0 else width_each):
                weights[at + np.uint64(k)] = 0.0
                rows[at + np.uint64(k)] = 0
        towards[i] = nearest


@njit(nogil=True, cache=True)
def flow_order(n, towards, first, after, place, order):
    """Order states out from where the paths along `towards` end: at -1, or in a cycle.

    Parameters
    ----------
    first, after, place : int32 [n]; scratch, the last of them the place of each state in the order.
    order : uint32 [n]; the result, each state once.
    """
    filled = 0
    for i in range(n):
        first[i] = -1
    for i in range(n):
        nearest = towards[i]
        if nearest >= 0:
            after[i] = first[nearest]
            first[nearest] = i
            place[i] = -1
        else:
            order[filled] = i
            filled += 1
            place[i] = 0
    for i in range(n):  # -1: not seen, -2 - i: on the path from i, -2 - n: on an earlier one, 0: ordered
        t = i
        while place[t] == -1:
            place[t] = -2 - i
            t = towards[t]
        if place[t] == -2 - i:
            last, t = t, towards[t]
            length = 1
            while t != last:
                length += 1
                t = towards[t]
            order[filled] = last
            place[last] = 0
            t = towards[last]
            for k in range(length - 1, 0, -1):
                order[filled + k] = t
                place[t] = 0
                t = towards[t]
            filled += length
        t = i
        while place[t] == -2 - i:
            place[t] = -2 - n
            t = towards[t]
    done = 0
    while done < filled:
        t = first[order[done]]
        done += 1
        while t >= 0:
            if place[t] != 0:
                order[filled] = t
                filled += 1
            t = after[t]
    for i in range(n):
        place[order[i]] = i


@njit(nogil=True, cache=True)
def lay_slab(
    width, width_each, n, policy, gathered_base, gathered_weights, gathered_rows, order, place, choices, keep, base,
    weights, rows, lookahead,
):  # fmt: skip
    """Bring gathered rows into their order, with the steps of their backups; the mean of g p_later."""
    n_width = len(width) if len(width) > 0 else width_each
    mean = 0.0
    for i in range(n):
        s = np.uint64(order[i])
        source = s * np.uint64(n_width)
        at = np.uint64(i) * np.uint64(n_width)
        stays = 0.0
        later = 0.0
        for k in range(len(width) if len(width) > 0 else width_each):
            t = np.int64(gathered_rows[source + np.uint64(k)])
            if t < n:
                weight = gathered_weights[source + np.uint64(k)]
                where = place[t]
                stays += weight if where == i else 0.0
                later += weight if where > i else 0.0
        mean += later / n
        w = 1.0 / (1.0 - stays - (lookahead * later if later <= _MOST_LATER else 0.0))
        keep[i] = 1.0 - w
        base[i] = w * gathered_base[s]
        choices[i] = policy[s]
        for k in range(len(width) if len(width) > 0 else width_each):
            weights[at + np.uint64(k)] = w * gathered_weights[source + np.uint64(k)]
            rows[at + np.uint64(k)] = gathered_rows[source + np.uint64(k)]
    return mean


@njit(nogil=True, cache=True)
def mend_slab(
    actions, width, rows_each, width_each, policy, n, action_ptr, successors, probabilities, rewards, discounts,
    order, place, choices, keep, base, weights, rows, discount, sign, lookahead,
):  # fmt: skip
    """Replace the rows of states whose action has changed; the order stays as it is."""
    n_actions = len(actions) if len(actions) > 0 else rows_each
    n_width = len(width) if len(width) > 0 else width_each
    for i in range(n):
        place[order[i]] = i
    for i in range(n):
        s = np.uint64(order[i])
        choice = policy[s]
        if choice == choices[i]:
            continue
        choices[i] = choice
        at = np.uint64(i) * np.uint64(n_width)
        j = (s * np.uint64(n_actions) if n_actions > 0 else np.uint64(action_ptr[s])) + np.uint64(choice)
        lo = j * np.uint64(n_width)
        g = discounts[j] if discounts.size > 0 else discount
        stays = 0.0
        later = 0.0
        for k in range(len(width) if len(width) > 0 else width_each):
            transition = lo + np.uint64(k)
            successor = successors[transition]
            rows[at + np.uint64(k)] = successor
            t = np.int64(successor)
            if t < n:
                weight = g * np.float64(probabilities[transition])
                stays += weight if place[t] == i else 0.0
                later += weight if place[t] > i else 0.0
        w = 1.0 / (1.0 - stays - (lookahead * later if later <= _MOST_LATER else 0.0))
        keep[i] = 1.0 - w
        base[i] = w * sign * np.float64(rewards[j])
        for k in range(len(width) if len(width) > 0 else width_each):
            weights[at + np.uint64(k)] = w * g * np.float64(probabilities[lo + np.uint64(k)])


@njit(nogil=True, cache=True)
def without_lookahead(n, n_width, keep, base, weights):
    """Make the slab's steps those of plain Gauss-Seidel."""
    for i in range(n):
        w = 1.0 - keep[i]
        keep[i] = 0.0
        base[i] /= w
        for k in range(i * n_width, (i + 1) * n_width):
            weights[k] /= w


@njit(nogil=True, cache=True)
def sweep_slab(width, width_each, n, local, changes, order, keep, base, weights, rows):
    """Back up every state: the largest change, and its products with the last and itself.

    Parameters
    ----------
    local : own and halo values; updated.
    changes : float64 [n]; the last sweep's, in the slab's order; updated.
    """
    n_width = len(width) if len(width) > 0 else width_each
    largest = 0.0
    along = 0.0
    square = 0.0
    for i in range(n):
        at = np.uint64(i) * np.uint64(n_width)
        s = np.uint64(order[i])
        old = local[s]
        value = base[i] + keep[i] * old
        for k in range(len(width) if len(width) > 0 else width_each):
            value += weights[at + np.uint64(k)] * local[rows[at + np.uint64(k)]]
        change = value - old
        local[s] = value
        largest = max(largest, abs(change))
        along += change * changes[i]
        square += change * change
        changes[i] = change
    return largest, along, square
