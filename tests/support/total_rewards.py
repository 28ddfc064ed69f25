"""Undiscounted totals of small models, exact: every stationary policy, in rational arithmetic.

A recurrent class of a policy is worth 0 where all its rewards are 0, and else infinity with the sign of its mean
reward; where that is 0 the total has no limit. If no class of a finite model is worth infinity or has no limit, its
optimum is that of a stationary policy (Puterman 1994, theorem 7.1.9).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from fractions import Fraction

from store_models import Model, State


class Fault(enum.Enum):
    INFINITE = enum.auto()
    NO_LIMIT = enum.auto()
    ENDLESS = enum.auto()


def policies(model: Model) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(len(s.actions)) or (-1,) for s in model.states))


def row(state: State, choice: int) -> dict[int, Fraction]:
    """The distribution that a row stands for: empty where it ends."""
    if choice < 0 or state.actions[choice].duration == float("inf"):
        return {}
    weights = {s: Fraction(p) for s, p in state.actions[choice].successors.items() if p > 0}
    return {s: p / sum(weights.values()) for s, p in weights.items()}


def solve(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    n = len(right)
    for i in range(n):
        pivot = next(k for k in range(i, n) if matrix[k][i])
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        right[i], right[pivot] = right[pivot], right[i]
        for k in range(n):
            if k != i and matrix[k][i]:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [x - factor * y for x, y in zip(matrix[k], matrix[i], strict=True)]
                right[k] -= factor * right[i]
    return [right[i] / matrix[i][i] for i in range(n)]


def policy_total(model: Model, policy: tuple[int, ...], sign: int = 1) -> list[Fraction | float] | Fault:
    """The total reward of a policy from each state, times sign; -inf where it is that; a fault where it is worse."""
    n = len(model.states)
    rows = [row(s, c) for s, c in zip(model.states, policy, strict=True)]
    reach = [{i} for i in range(n)]
    for _ in range(n):
        reach = [set().union(r, *(reach[j] for i in r for j in rows[i])) for r in reach]
    rewards = [
        sign * Fraction(s.actions[c].reward if c >= 0 else s.terminal_reward)
        for s, c in zip(model.states, policy, strict=True)
    ]
    free, lost = set(), set()
    for i in range(n):
        recurrent = bool(rows[i]) and all(i in reach[j] and rows[j] for j in reach[i])
        if not recurrent:
            continue
        if all(rewards[j] == 0 for j in reach[i]):
            free.add(i)
            continue
        inside = sorted(reach[i])
        matrix = [[rows[b].get(a, Fraction(0)) - (a == b) for b in inside] for a in inside]
        matrix[-1] = [Fraction(1)] * len(inside)
        shares = solve(matrix, [Fraction(0)] * (len(inside) - 1) + [Fraction(1)])
        mean = sum(p * rewards[j] for p, j in zip(shares, inside, strict=True))
        if mean > 0:
            return Fault.INFINITE
        if mean == 0:
            return Fault.NO_LIMIT
        lost.add(i)
    finite = [i for i in range(n) if not reach[i] & lost]
    matrix = [
        [Fraction(int(a == b)) - (rows[a].get(b, Fraction(0)) if a not in free else 0) for b in finite] for a in finite
    ]
    found = solve(matrix, [Fraction(0) if a in free else rewards[a] for a in finite])
    totals: list[Fraction | float] = [float("-inf")] * n
    for i, value in zip(finite, found, strict=True):
        totals[i] = value
    return totals


def best_totals(model: Model, sign: int) -> list[Fraction] | set[Fault]:
    """The optimum (times sign), or what is wrong with the model."""
    faults, best = set(), [float("-inf")] * len(model.states)
    for policy in policies(model):
        totals = policy_total(model, policy, sign)
        if isinstance(totals, Fault):
            faults.add(totals)
        else:
            best = [max(a, b) for a, b in zip(best, totals, strict=True)]
    if faults:
        return faults
    if float("-inf") in best:
        return {Fault.ENDLESS}
    return [Fraction(b) for b in best]
