"""Exact gains of small MDPs: Howard's multichain policy iteration in rational arithmetic (Puterman 1994, 9.2.1).

Also the random models that average rewards are tested on. A row represents p / sum p.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from store_models import Action, Model, State

from ooc_mdp.model.mdp import Rows

KINDS = ("unichain", "periodic", "multichain")
Row = tuple[Fraction, dict[int, Fraction]]


def exact_gains(rows: Rows, sense: str = "max") -> list[Fraction]:
    """g*(s) of every state; `exact_policy_gains` of the best policy."""
    sign = 1 if sense == "max" else -1
    table = [
        [_row(rows, j, sign) for j in range(rows.action_ptr[s], rows.action_ptr[s + 1])] for s in range(rows.n_states)
    ]
    policy = [0] * rows.n_states
    while True:
        gains, bias = _evaluate([actions[a] for actions, a in zip(table, policy, strict=True)])
        improved = [_improved([_mean(row, gains) for row in actions], policy[s]) for s, actions in enumerate(table)]
        if improved == policy:
            for s, actions in enumerate(table):
                level = [_mean(row, gains) == gains[s] for row in actions]
                action_values = [
                    row[0] + _mean(row, bias) if same else None for row, same in zip(actions, level, strict=True)
                ]
                best = max(w for w in action_values if w is not None)
                if best > action_values[policy[s]]:
                    improved[s] = action_values.index(best)
        if improved == policy:
            return [sign * g for g in gains]
        policy = improved


def _improved(found: list[Fraction], present: int) -> int:
    best = max(found)
    return present if found[present] == best else found.index(best)


def exact_policy_gains(rows: Rows, policy: np.ndarray) -> list[Fraction]:
    """The gain of a policy in every state."""
    return _evaluate([_row(rows, rows.action_ptr[s] + int(policy[s]), 1) for s in range(rows.n_states)])[0]


def _row(rows: Rows, j: int, sign: int) -> Row:
    span = range(rows.successor_ptr[j], rows.successor_ptr[j + 1])
    weights = {int(rows.successors[k]): Fraction(float(rows.probabilities[k])) for k in span if rows.probabilities[k]}
    total = sum(weights.values())
    return sign * Fraction(float(rows.rewards[j])), {s: w / total for s, w in weights.items()}


def _mean(row: Row, values: list[Fraction]) -> Fraction:
    return sum((p * values[s] for s, p in row[1].items()), Fraction(0))


def _evaluate(chain: list[Row]) -> tuple[list[Fraction], list[Fraction]]:
    """Gain and bias of a Markov chain, whose bias is 0 in one state of each recurrent class."""
    n = len(chain)
    reached = [_reachable(chain, s) for s in range(n)]
    recurrent = [all(s in reached[t] for t in reached[s]) for s in range(n)]
    first = [min(reached[s]) if recurrent[s] else -1 for s in range(n)]
    gains: list[Fraction | None] = [None] * n
    bias: list[Fraction | None] = [None] * n
    for start in sorted({f for f in first if f >= 0}):
        members = [s for s in range(n) if first[s] == start]
        # unknowns: the gain in place of the bias of `start`, which is 0
        matrix = [
            [Fraction(1) if t == start else Fraction(int(s == t)) - chain[s][1].get(t, Fraction(0)) for t in members]
            for s in members
        ]
        solved = _solve(matrix, [[chain[s][0]] for s in members])
        for t, (value,) in zip(members, solved, strict=True):
            gains[t], bias[t] = solved[members.index(start)][0], Fraction(0) if t == start else value
    transient = [s for s in range(n) if not recurrent[s]]
    matrix = [[Fraction(int(s == t)) - chain[s][1].get(t, Fraction(0)) for t in transient] for s in transient]
    into = [[sum((p * gains[t] for t, p in chain[s][1].items() if recurrent[t]), Fraction(0))] for s in transient]
    for s, (value,) in zip(transient, _solve(matrix, into), strict=True):
        gains[s] = value
    right = [
        [chain[s][0] - gains[s] + sum((p * bias[t] for t, p in chain[s][1].items() if recurrent[t]), Fraction(0))]
        for s in transient
    ]
    for s, (value,) in zip(transient, _solve(matrix, right), strict=True):
        bias[s] = value
    return gains, bias


def _reachable(chain: list[Row], start: int) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        for t in chain[waiting.pop()][1]:
            if t not in found:
                found.add(t)
                waiting.append(t)
    return found


def _solve(matrix: list[list[Fraction]], right: list[list[Fraction]]) -> list[list[Fraction]]:
    """Gauss-Jordan elimination."""
    n = len(matrix)
    rows = [list(a) + list(b) for a, b in zip(matrix, right, strict=True)]
    for i in range(n):
        pivot = next(k for k in range(i, n) if rows[k][i] != 0)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        scale = rows[i][i]
        rows[i] = [x / scale for x in rows[i]]
        for k in range(n):
            if k != i and rows[k][i] != 0:
                factor = rows[k][i]
                rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i], strict=True)]
    return [row[n:] for row in rows]


def random_gain_model(seed: int, kind: str, most: int = 10) -> Model:
    """A model in which every policy returns to state 0, one with a period, or one with closed classes and transient
    states."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    n, size = int(rng.integers(2, most + 1)), 10.0 ** rng.integers(-3, 4)
    period = int(rng.integers(2, min(n, 7) + 1))
    closed = int(rng.integers(1, n)) if kind == "multichain" else n

    def allowed(s: int) -> np.ndarray:
        states = np.arange(n)
        if kind == "periodic":
            return states[states % period == (s + 1) % period]
        if kind == "multichain" and s < closed:
            return states[(states < closed) & (states % 2 == s % 2)]
        return states

    def action(s: int) -> Action:
        reached = allowed(s)
        chosen = rng.choice(reached, size=int(rng.integers(1, min(reached.size, 4) + 1)), replace=False)
        weights = dict(zip(chosen.tolist(), rng.dirichlet(np.ones(chosen.size)).tolist(), strict=True))
        if kind == "unichain":
            weights = {t: 0.9 * w for t, w in weights.items()}
            weights[0] = weights.get(0, 0.0) + 0.1
        return Action(float(size * rng.normal()), weights)

    return Model(tuple(State(tuple(action(s) for _ in range(int(rng.integers(1, 4))))) for s in range(n)))
