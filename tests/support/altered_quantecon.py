"""Archives of QuantEcon's R and Q with one member altered, and what the altered arrays say."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from altered_arrays import Made, Members, alter_members, number_array, number_column, save_members
from exact_rows import Entry, Exact, Invalid, Row, random_model, rational, row

__all__ = ["QuantEconMaker"]

_INDICES = {"s_indices", "a_indices"}


class QuantEconMaker:
    """Pairs of states and actions, and products."""

    name = "quantecon"

    def make(self, rng: Random, folder: Path, altered: bool) -> Made:
        """Write a model into a folder: the source, the options for reading it, and what says its meaning."""
        product = rng.random() < 0.4
        model = random_model(rng, actions=rng.randint(1, 2))
        n, actions = len(model.rows), len(model.rows[0])
        q, r = np.zeros((n, actions, n)), np.zeros((n, actions))
        for s, state in enumerate(model.rows):
            for a, action in enumerate(state):
                r[s, a] = rng.choice((0, 1.5, -2)) if a == 0 or rng.random() < 0.7 else -np.inf
                for t, (probability, _) in action.items():
                    q[s, a, t] = probability
        members: Members = {"R": r, "Q": q}
        if not product:
            labels = np.array([sorted(rng.sample(range(6), actions)) for _ in range(n)])
            states = np.repeat(np.arange(n), actions)
            members = {"R": r.ravel(), "Q": q.reshape(-1, n), "s_indices": states, "a_indices": labels.ravel()}
        if altered:
            members = alter_members(rng, members, ("R", "Q", "s_indices", "a_indices", "beta", "P"))
        save_members(folder / "m.npz", members)
        return str(folder / "m.npz"), {}, lambda: _meaning(members)


def _meaning(members: Members) -> Exact:
    pairs = bool(_INDICES & set(members))
    if set(members) != ({"R", "Q"} | _INDICES if pairs else {"R", "Q"}):
        raise Invalid(f"members {sorted(members)}")
    q, r = number_array(members["Q"]), number_array(members["R"])
    if q.ndim != (2 if pairs else 3) or q.size == 0 or r.shape != q.shape[:-1]:
        raise Invalid(f"shapes {q.shape} and {r.shape}")
    n = q.shape[-1]
    if pairs:
        states, actions = (number_column(members, name, "iu") for name in ("s_indices", "a_indices"))
    else:
        states, actions = (each.ravel().tolist() for each in np.indices(q.shape[:2]))
    count = q.size // n
    if len(states) != count or len(actions) != count or sorted(states) != states or (not pairs and q.shape[0] != n):
        raise Invalid("indices")
    if not all(0 <= s < n for s in states) or not all(0 <= a < 2**63 - 1 for a in actions):
        raise Invalid("an index")
    exact: list[list[Row]] = [[] for _ in range(n)]
    everything: Any = zip(states, actions, r.ravel().tolist(), q.reshape(-1, n).tolist(), strict=True)
    for s, a, reward, weights in everything:
        if reward != -np.inf:
            entries = [Entry(t, rational(p)) for t, p in enumerate(weights) if p != 0]
            exact[s].append(row(entries, n, rational(reward), a))
    if not all(exact) or any(len({one.label for one in own}) < len(own) for own in exact):
        raise Invalid("a state without actions, or an action twice")
    return Exact(exact)
