"""QuantEcon's R and Q in an archive, by pairs or for all states and actions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from format_checks import SIZES, read, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp.io.arrays.quantecon import QUANTECON

PAIRS = {
    "R": np.array([5.0, 10.0, -1.0]),
    "Q": np.array([(0.5, 0.5), (0, 1), (0, 1)]),
    "s_indices": np.array([0, 0, 1]),
    "a_indices": np.array([0, 1, 0]),
}
"""The two states of QuantEcon's documentation of DiscreteDP."""
PRODUCT = {"R": np.array([[5, 10], [-1, -np.inf]]), "Q": np.array([[(0.5, 0.5), (0, 1)], [(0, 1), (0.5, 0.5)]])}


def archive(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "model.npz", **arrays)
    return folder / "model.npz"


@pytest.mark.parametrize("arrays", [PAIRS, PRODUCT])
def test_quantecon_s_two_states_have_the_values_of_its_documentation(tmp_path, arrays):
    store = ooc_mdp.convert(archive(tmp_path, **arrays), tmp_path / "s")
    solution = ooc_mdp.solve(store, discount=0.95, epsilon=1e-6)
    assert solution.values == pytest.approx([-8.57142857, -20.0], abs=2e-6)
    assert (solution.policy if solution.actions is None else solution.actions).tolist() == [0, 0]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from(SIZES))
def test_an_archive_is_the_model_of_the_same_arrays_in_memory(tmp_path_factory, seed, size):
    rng, n, a = np.random.default_rng(seed), 4, 3
    q = rng.dirichlet(np.ones(n), (n, a))
    r = np.where(rng.random((n, a)) < 0.3, -np.inf, rng.random((n, a)))
    r[np.arange(n), rng.integers(0, a, n)] = 1.0
    folder = tmp_path_factory.mktemp("archives")
    product = read(QUANTECON, archive(folder, R=r, Q=q), segment_bytes=size)
    s, actions = np.nonzero(np.isfinite(r))
    pairs = read(QUANTECON, archive(folder, R=r[s, actions], Q=q[s, actions], s_indices=s, a_indices=actions))
    for name in ("action_ptr", "successor_ptr", "successors", "probabilities", "rewards"):
        np.testing.assert_array_equal(product[name], pairs[name])
    assert product["rewards"].tolist() == r[s, actions].tolist()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"s_indices": None}, "s_indices.npy is missing: pairs are R, Q, s_indices and a_indices"),
        ({"s_indices": np.array([1, 0, 0])}, "entry 1 is 0, after 1; sort R, Q and both indices by numpy.lexsort"),
        ({"s_indices": np.array([0, 0, 2])}, "entry 2 is 2; numbers begin at 0, and Q has 2 states"),
        ({"a_indices": np.array([0, 0, 0])}, "state 0, action 0: the state has an action of this number already"),
        ({"a_indices": np.array([0, 1])}, "has 2 entries, but Q has 3 rows"),
        ({"R": np.zeros((3, 2))}, "has 2 dimensions"),
        ({"R": np.array([1, -np.inf, np.nan])}, "state 1, action 0: reward is NaN"),
        ({"R": np.array([1, 2, -np.inf])}, "state 1 has no available action"),
        ({"R": np.array([1, 2, 2**53 + 1])}, "R[2] is 9007199254740993, which float64 would round"),
        ({"Q": np.array([(0.5, 0.4), (0, 1), (0, 1)])}, "state 0, action 0: probabilities sum to 0.9"),
        ({"Q": np.ones((3, 2, 2))}, "has 3 dimensions"),
        ({"beta": np.array(0.95)}, "member 'beta.npy' is none that is read"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_the_remedy(tmp_path, changed, said):
    arrays = {name: values for name, values in (PAIRS | changed).items() if values is not None}
    assert said in str(refusal(QUANTECON, archive(tmp_path, **arrays)))
