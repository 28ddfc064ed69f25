"""Exact answers to questions about goals in tiny models: all memoryless policies, solved in fractions.

Deterministic memoryless policies are optimal for every question here (Puterman 1994; Baier and Katoen 2008, chapter
10), so the answer of a state is the best or the least over all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

__all__ = ["INFINITY", "TinyModel", "bounded_reach", "of_policy", "optimal", "random_model"]

INFINITY = float("inf")
Value = Fraction | float
Chain = list[dict[int, Fraction]]


@dataclass(frozen=True)
class TinyModel:
    """A model of few states, each with the same number of actions."""

    rows: list[list[dict[int, Fraction]]]
    """By state and action, the probabilities of successors; exact in float64."""
    rewards: list[list[int]]
    goal: set[int]
    avoid: set[int]

    @property
    def n(self) -> int:
        return len(self.rows)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """P (states, actions, states) and R (states, actions)."""
        P = np.zeros((self.n, len(self.rows[0]), self.n))
        for s, actions in enumerate(self.rows):
            for a, row in enumerate(actions):
                for to, p in row.items():
                    P[s, a, to] = float(p)
        return P, np.array(self.rewards, np.float64)

    def policies(self) -> Iterator[tuple[int, ...]]:
        yield from itertools.product(*(range(len(actions)) for actions in self.rows))


def random_model(seed: int, n: int = 5, actions: int = 2) -> TinyModel:
    """A model with self-loops and cycles of reward 0, in which a goal may be missed."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        own = []
        for _ in range(actions):
            pieces = random.choice([1, 1, 2, 3])
            weights = {1: [1], 2: [1, 1], 3: [2, 1, 1]}[int(pieces)]
            row: dict[int, Fraction] = {}
            for weight in weights:
                to = int(random.integers(n))
                row[to] = row.get(to, Fraction(0)) + Fraction(weight, sum(weights))
            own.append(row)
        rows.append(own)
    rewards = random.choice([0, 0, 0, 1, 3], size=(n, actions)).tolist()
    goal = {int(s) for s in np.flatnonzero(random.random(n) < 0.3)} or {n - 1}
    avoid = {int(s) for s in np.flatnonzero(random.random(n) < 0.2)}
    return TinyModel(rows, rewards, goal, avoid)


def of_policy(model: TinyModel, policy: tuple[int, ...], kind: str) -> list[Value]:
    """The exact answer under a policy; kind is "reach", "reward" (until the goal) or "total" (for ever)."""
    chain = [model.rows[s][a] for s, a in enumerate(policy)]
    paid = [Fraction(model.rewards[s][a]) for s, a in enumerate(policy)]
    if kind == "reach":
        stopped = model.avoid - model.goal
        chain = [{} if s in model.goal or s in stopped else row for s, row in enumerate(chain)]
        value = _solve(chain, [Fraction(0)] * model.n, dict.fromkeys(model.goal, Fraction(1)))
        return list(value)
    if kind == "reward":
        chain = [{} if s in model.goal else row for s, row in enumerate(chain)]
        reached = _solve(chain, [Fraction(0)] * model.n, dict.fromkeys(model.goal, Fraction(1)))
        sure = {s for s in range(model.n) if reached[s] == 1}
        value = _solve(
            [chain[s] if s in sure else {} for s in range(model.n)],
            [paid[s] if s in sure and s not in model.goal else Fraction(0) for s in range(model.n)],
            {},
        )
        return [value[s] if s in sure else INFINITY for s in range(model.n)]
    reach = [_reachable(chain, s) for s in range(model.n)]
    recurrent = {s for s in range(model.n) if all(s in reach[to] for to in reach[s])}
    rich = {s for s in recurrent if any(paid[to] > 0 for to in reach[s])}
    infinite = {s for s in range(model.n) if reach[s] & rich}
    open_ = set(range(model.n)) - infinite - recurrent
    value = _solve([chain[s] if s in open_ else {} for s in range(model.n)],
                   [paid[s] if s in open_ else Fraction(0) for s in range(model.n)], {})  # fmt: skip
    return [INFINITY if s in infinite else value[s] for s in range(model.n)]


def optimal(model: TinyModel, kind: str, sense: str) -> list[Value]:
    """The best, or least, answer of each state over all policies."""
    best = max if sense == "max" else min
    answers = [of_policy(model, policy, kind) for policy in model.policies()]
    return [best(answer[s] for answer in answers) for s in range(model.n)]


def bounded_reach(model: TinyModel, steps: int, sense: str) -> list[Fraction]:
    """The exact probability to reach the goal within so many steps."""
    best = max if sense == "max" else min
    value = [Fraction(s in model.goal) for s in range(model.n)]
    for _ in range(steps):
        value = [
            Fraction(1) if s in model.goal
            else Fraction(0) if s in model.avoid
            else best(sum((p * value[to] for to, p in row.items()), Fraction(0)) for row in model.rows[s])
            for s in range(model.n)
        ]  # fmt: skip
    return value


def _reachable(chain: Chain, start: int) -> set[int]:
    found, left = {start}, [start]
    while left:
        for to in chain[left.pop()]:
            if to not in found:
                found.add(to)
                left.append(to)
    return found


def _solve(chain: Chain, paid: list[Fraction], ends: dict[int, Fraction]) -> list[Fraction]:
    """v = paid + P v where states with `ends` have these values; 0 where neither these nor empty rows are reached."""
    n = len(chain)
    finals = set(ends) | {s for s in range(n) if not chain[s]}
    live = [s for s in range(n) if s not in finals and _reachable(chain, s) & finals]
    at = {s: i for i, s in enumerate(live)}
    value = [ends.get(s, Fraction(0)) for s in range(n)]
    matrix = []
    for s in live:
        row = [Fraction(0)] * (len(live) + 1)
        row[at[s]] += 1
        row[-1] = paid[s]
        for to, p in chain[s].items():
            if to in at:
                row[at[to]] -= p
            else:
                row[-1] += p * value[to]
        matrix.append(row)
    for i in range(len(live)):
        pivot = next(k for k in range(i, len(live)) if matrix[k][i] != 0)
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        matrix[i] = [x / matrix[i][i] for x in matrix[i]]
        for k in range(len(live)):
            if k != i and matrix[k][i] != 0:
                factor = matrix[k][i]
                matrix[k] = [x - factor * y for x, y in zip(matrix[k], matrix[i], strict=True)]
    for s in live:
        value[s] = matrix[at[s]][-1]
    return value
