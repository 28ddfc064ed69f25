"""Models whose partitions are as uneven as rows, actions and halos can make them, as .npz files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Model = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Actions of each state, successors of each row, successors, probabilities."""


def long_row(rng: np.random.Generator, scale: int) -> Model:
    """One row of 200,000 successors; the others lead back."""
    n = 200_000 // scale
    widths = np.concatenate([[n], np.ones(n, int)])
    successors = np.concatenate([np.arange(1, n + 1), np.zeros(n, int)])
    return np.ones(n + 1, int), widths, successors, np.repeat(1 / widths, widths)


def many_actions(rng: np.random.Generator, scale: int) -> Model:
    """One state of 100,000 actions."""
    n = 100_000 // scale
    actions = np.concatenate([[n], np.ones(n - 1, int)])
    rows = int(actions.sum())
    return actions, np.ones(rows, int), rng.integers(0, n, rows), np.ones(rows)


def hubs(rng: np.random.Generator, scale: int) -> Model:
    """Five states that lead everywhere, and to which all others lead."""
    n, k, width = 100_000 // scale, 5, 20_000 // scale
    out = [np.sort(rng.choice(n, width, replace=False)) for _ in range(k)]
    back = np.stack([rng.integers(low, high, n - k) for low, high in ((0, k), (k, n // 2), (n // 2, n))], axis=1)
    widths = np.concatenate([np.full(k, width), np.full(n - k, 3)])
    return np.ones(n, int), widths, np.concatenate([*out, back.ravel()]), np.repeat(1 / widths, widths)


def empty_partitions(rng: np.random.Generator, scale: int) -> Model:
    """Actions in a twentieth of the states: the others' partitions have no row."""
    n = 400_000 // scale
    actions = np.zeros(n, int)
    actions[: n // 20] = 2
    rows = int(actions.sum())
    successors = np.stack([rng.integers(k * (n // 4), (k + 1) * (n // 4), rows) for k in range(4)], axis=1)
    return actions, np.full(rows, 4), successors.ravel(), np.full(4 * rows, 0.25)


def mixed(rng: np.random.Generator, scale: int) -> Model:
    """Rows of 1 to 30,000 successors, few of them long, that lead to states near by."""
    n = 40_000 // scale
    widths = np.clip(1 / (rng.random(n) + scale / 30_000), 1, n // 2).astype(int)
    steps = np.concatenate([np.arange(w) for w in widths])
    successors = (np.repeat(np.arange(n), widths) + steps) % n
    return np.ones(n, int), widths, successors, np.repeat(1 / widths, widths)


UNEVEN: dict[str, Callable[[np.random.Generator, int], Model]] = {
    "long row": long_row,
    "many actions": many_actions,
    "hubs": hubs,
    "empty partitions": empty_partitions,
    "mixed": mixed,
}


def write_uneven(name: str, path: Path, scale: int = 1, ends: bool = False) -> None:
    """Write one of them, with rewards between 0 and 1; a scale above 1 makes it so many times smaller.

    Parameters
    ----------
    ends : whether every row leads to one more state, without actions, with probability 0.1.
    """
    rng = np.random.default_rng(1)
    actions, widths, successors, probabilities = UNEVEN[name](rng, scale)
    rewards = rng.random(widths.size)
    if ends:
        behind = np.cumsum(widths)
        successors = np.insert(successors, behind, actions.size)
        probabilities = np.insert(0.9 * probabilities, behind, 0.1)
        actions, widths = np.append(actions, 0), widths + 1
    pointers = [np.concatenate([[0], np.cumsum(counts)]) for counts in (actions, widths)]
    np.savez(path, state_ptr=pointers[0], indptr=pointers[1], indices=successors, data=probabilities, r_sa=rewards)


def shapes(*quick: str) -> list[Any]:
    """All shapes as parameters of a test, slow but for those that are named."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in UNEVEN]
