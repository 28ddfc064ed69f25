"""Rows in arrays (n, A, K) become those that the flat arrays become, bit by bit, and errors are left to these."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_mdp import InputError
from ooc_mdp.io.checked_rows import canonical_rows
from ooc_mdp.io.dense_rows import merged_rows
from ooc_mdp.io.state_rows import StateRows, read_rows
from ooc_mdp.model.mdp import Rows

N = 50
FIELDS = ("action_ptr", "successor_ptr", "successors", "probabilities", "rewards")


def arrays(seed: int, n: int, actions: int, outcomes: int) -> StateRows:
    """Random rows, whose arrays are long or of length 1 along any axis."""
    rng = np.random.default_rng(seed)

    def shape(*lengths: int) -> tuple[int, ...]:
        return tuple(length if rng.random() < 0.7 else 1 for length in lengths)

    successors = rng.integers(0, int(rng.choice([3, N])), (n, actions, outcomes))
    if rng.random() < 0.3:
        successors = -np.sort(-successors, axis=2)
    if rng.random() < 0.3:
        successors = successors[:, :1]
    weights = rng.integers(0, 4, (*shape(n, actions), outcomes)) * 1.0
    weights[..., 0] += 1
    probabilities = weights / weights.sum(axis=-1, keepdims=True)
    if rng.random() < 0.3:
        probabilities = probabilities[0, 0]
    rewards = rng.normal(size=shape(n, actions) if rng.random() < 0.5 else shape(n, actions, outcomes))
    return StateRows(np.broadcast_to(successors, (n, actions, outcomes)), probabilities, rewards)


def both(rows: StateRows) -> tuple[Rows | None, Rows]:
    found = read_rows("f", rows, None, "max")
    dense = found.dense()
    merged = None if dense is None else merged_rows(dense, N)
    n = np.asarray(rows.successors).shape[0]
    return merged, canonical_rows("f", np.arange(n), found.raw(), n_states=N, normalize=False)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 5), st.integers(1, 4), st.sampled_from([1, 2, 7, 40, 90]))
def test_dense_rows_are_those_of_flat_arrays(seed: int, n: int, actions: int, outcomes: int):
    merged, flat = both(arrays(seed, n, actions, outcomes))
    assert merged is not None
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(merged, name), getattr(flat, name), name)
    assert all(getattr(merged, name) == getattr(flat, name) for name in ("terminal_rewards", "durations"))


def test_the_successor_of_padding_is_not_read():
    rows = StateRows(np.array([[[7, -1, 99]]]), np.array([1.0, 0.0, 0.0]), np.array([[[2.0, np.nan, np.inf]]]))
    merged, flat = both(rows)
    assert merged is not None
    assert merged.successors.tolist() == flat.successors.tolist() == [7]
    assert merged.rewards.tolist() == flat.rewards.tolist() == [2.0]


@pytest.mark.parametrize(
    ("successors", "probabilities", "rewards"),
    [
        ([[[N, 1]]], [0.5, 0.5], 1.0),
        ([[[-1, 1]]], [0.5, 0.5], 1.0),
        ([[[0, 1]]], [0.5, 0.4], 1.0),
        ([[[0, 1]]], [1.5, -0.5], 1.0),
        ([[[0, 1]]], [np.nan, 0.5], 1.0),
        ([[[0, 1]]], [0.0, 0.0], 1.0),
        ([[[0, 1]]], [0.5, 0.5], np.inf),
        ([[[0, 1]]], [0.5, 0.5], [[[np.nan, 1.0]]]),
        ([[[0, 1]]], [0.5, 0.5], [[[np.inf, -np.inf]]]),
        ([[[0, 1]]], [0.5, 0.5], [[[1.7e308, 1.7e308]]]),
    ],
)
def test_rows_that_break_a_rule_are_refused_as_flat_arrays_are(successors, probabilities, rewards):
    rows = StateRows(np.array(successors), np.array(probabilities), np.array(rewards))
    found = read_rows("f", rows, None, "max")
    dense = found.dense()
    assert dense is not None
    merged = merged_rows(dense, N)
    try:
        flat = canonical_rows("f", np.arange(1), found.raw(), n_states=N, normalize=False)
    except InputError:
        assert merged is None
    else:
        assert merged is not None
        assert merged.rewards.tolist() == flat.rewards.tolist()


@pytest.mark.parametrize(
    "more",
    [{"available": np.ones((1, 1), bool)}, {"durations": 2.0}, {"rewards": np.array([[-np.inf]])}],
)
def test_rows_with_actions_that_may_be_missing_or_take_longer_are_flattened(more: dict):
    rows = StateRows(**({"successors": np.array([[[0, 1]]]), "probabilities": 0.5, "rewards": 1.0} | more))
    assert read_rows("f", rows, None, "max").dense() is None
