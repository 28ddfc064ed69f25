"""Models as a user types them, in every layout of arrays, and what they mean, in plain loops over Python numbers.

Nothing of the package is used: `meaning` is a second reading of P and R, which the package's is compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sparse
from hypothesis import strategies as st

__all__ = ["FORMS", "REWARDS", "Given", "Typed", "given_models", "meaning", "typed"]

FORMS = ("action-first", "state-first", "action matrices", "state matrices", "nested", "pairs", "sparse pairs")
REWARDS = ("states", "actions", "transitions")


@dataclass
class Given:
    """A model by state and action: dense arrays, and what is available."""

    P: np.ndarray
    """float64 [S, A, S]."""
    R: np.ndarray
    """float64 [S], [S, A] or [S, A, S]."""
    available: np.ndarray
    """bool [S, A]; False where the pair is left out, or None in nested lists."""
    terminal: list[int] = field(default_factory=list)


Meaning = list[dict[int, tuple[dict[int, float], float]]]
"""For each state its actions: probabilities by successor, and the expected reward."""


def meaning(given: Given, sense: str = "max") -> Meaning | None:
    """What a model says; None where it is none."""
    n, actions = given.available.shape
    forbidden = -math.inf if sense == "max" else math.inf
    if given.R.ndim == 2 and any(math.isnan(r) or r == -forbidden for r in given.R[given.available]):
        return None
    if given.R.ndim == 1 and not np.isfinite(given.R).all():
        return None
    said: Meaning = []
    for s in range(n):
        own = {}
        for a in range(actions):
            if not given.available[s, a] or (given.R.ndim == 2 and given.R[s, a] == forbidden):
                continue
            row = {t: float(p) for t, p in enumerate(given.P[s, a]) if p != 0}
            if s in given.terminal:
                return None
            if any(not 0 <= p <= 1 for p in row.values()) or abs(math.fsum(row.values()) - 1) > 1e-6:
                return None
            reward = {1: lambda: given.R[s], 2: lambda: given.R[s, a], 3: lambda: 0.0}[given.R.ndim]()  # noqa: B023
            if given.R.ndim == 3:
                reward = math.fsum(p * given.R[s, a, t] for t, p in row.items())
            if not math.isfinite(reward):
                return None
            own[a] = (row, float(reward))
        if not own and s not in given.terminal:
            return None
        said.append(own)
    return said


@dataclass
class Typed:
    """The arguments of `from_arrays`."""

    P: Any
    R: Any
    keywords: dict[str, Any]


def typed(given: Given, form: str, order: np.ndarray | None = None) -> Typed | None:
    """A model in a layout; None where the layout cannot say which actions are available.

    Parameters
    ----------
    order : permutation of the pairs, for layouts of pairs.
    """
    n, actions = given.available.shape
    keywords: dict[str, Any] = {"terminal": given.terminal or None}
    of_transitions = given.R.ndim == 3
    if form.endswith("pairs"):
        if given.R.ndim == 1 and given.terminal:
            return None
        s, a = np.nonzero(given.available)
        order = np.arange(s.size) if order is None else np.asarray(order)[np.asarray(order) < s.size]
        s, a = s[order], a[order]
        P, R = given.P[s, a], given.R[s] if given.R.ndim == 1 else given.R[s, a]
        if form == "sparse pairs":
            P = sparse.csr_matrix(P)
            R = sparse.coo_matrix(R) if of_transitions else R
        return Typed(P, R, keywords | {"s_indices": s.tolist(), "a_indices": a})
    keywords["layout"] = "action-first" if form.startswith("action") else "state-first"
    if form == "nested":
        rows = [[given.P[s, a].tolist() if given.available[s, a] else None for a in range(actions)] for s in range(n)]
        return Typed(rows, given.R.tolist(), keywords)
    if not given.available.all():
        return None
    P, R = (x.transpose(1, 0, 2) if x.ndim == 3 and form.startswith("action") else x for x in (given.P, given.R))
    if form.endswith("matrices"):
        kinds = [sparse.csr_matrix, sparse.coo_array, np.asarray, sparse.csc_matrix]
        P = [kinds[i % 4](p) for i, p in enumerate(P)]
        R = [kinds[(i + 1) % 4](r) for i, r in enumerate(R)] if of_transitions else R
    return Typed(P, R, keywords)


@st.composite
def given_models(draw: st.DrawFn) -> Given:
    """Models whose probabilities are eighths, so that all sums are exact."""
    n, actions = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    P = np.zeros((n, actions, n))
    for s in range(n):
        for a in range(actions):
            for t in draw(st.lists(st.integers(0, n - 1), min_size=8, max_size=8)):
                P[s, a, t] += 1 / 8
    shape = {"states": (n,), "actions": (n, actions), "transitions": (n, actions, n)}[draw(st.sampled_from(REWARDS))]
    numbers = st.lists(st.integers(-8, 8), min_size=math.prod(shape), max_size=math.prod(shape))
    R = np.array(draw(numbers), float).reshape(shape) / 4
    available = np.ones((n, actions), bool)
    terminal: list[int] = []
    if draw(st.booleans()):
        flat = draw(st.lists(st.booleans(), min_size=n * actions, max_size=n * actions))
        available = np.array(flat).reshape(n, actions)
        terminal = np.flatnonzero(~available.any(axis=1)).tolist()
        if len(terminal) == n:
            available[0, 0], terminal = True, terminal[1:]
    elif R.ndim == 2 and draw(st.booleans()):
        R[draw(st.integers(0, n - 1)), 1:] = -np.inf
    return Given(P, R, available, terminal)
