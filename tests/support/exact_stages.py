"""Backward induction in rational arithmetic, and small random models for it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from store_models import Action, Model, State

from ooc_mdp.model.mdp import Rows

__all__ = ["exact_stages", "random_stage_model"]


def random_stage_model(rng: np.random.Generator) -> Model:
    """Up to 12 states with up to 3 actions of up to 4 successors; some states have no action."""
    n, size = int(rng.integers(1, 13)), 10.0 ** rng.integers(-6, 7)
    states = []
    for _ in range(n):
        actions = []
        for _ in range(int(rng.integers(0, 4))):
            reached = rng.choice(n, size=int(rng.integers(1, min(n, 4) + 1)), replace=False)
            weights = rng.dirichlet(np.ones(reached.size))
            successors = dict(zip(reached.tolist(), weights.tolist(), strict=True))
            actions.append(Action(float(size * rng.normal()), successors))
        states.append(State(tuple(actions), 0.0 if actions else float(size * rng.normal())))
    return Model(tuple(states))


def exact_stages(rows: Rows, stages: int, discount: float, final: np.ndarray, sense: str) -> list[list[Fraction]]:
    """V_0 ... V_T in rational arithmetic."""
    best = max if sense == "max" else min
    paid = np.zeros(rows.n_states) if rows.terminal_rewards is None else rows.terminal_rewards
    ends = np.diff(rows.action_ptr) == 0
    values = [Fraction(float(paid[s] if ends[s] else final[s])) for s in range(rows.n_states)]
    found = [values]
    for _ in range(stages):
        following, values = values, []
        for s in range(rows.n_states):
            action_values = []
            for j in range(rows.action_ptr[s], rows.action_ptr[s + 1]):
                span = range(rows.successor_ptr[j], rows.successor_ptr[j + 1])
                expected = sum(
                    (Fraction(float(rows.probabilities[k])) * following[rows.successors[k]] for k in span), Fraction(0)
                )
                action_values.append(Fraction(float(rows.rewards[j])) + Fraction(discount) * expected)
            values.append(best(action_values) if action_values else Fraction(float(paid[s])))
        found.append(values)
    return found[::-1]
