"""Discounts of rows are as close to gamma**tau as the proofs of error bounds assume."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_mdp.backends.cpu.discounts import MAX_EXPONENT, discounts_in_place
from ooc_mdp.model.contraction import UNIT_ROUNDOFF
from ooc_mdp.model.mdp import discounts

EXTENDED = np.finfo(np.longdouble).nmant > 60
GAMMAS = st.sampled_from([1e-300, 0.1, 0.5, 0.9, 0.99, 1 - 1e-9, math.nextafter(1.0, 0.0)]) | st.floats(0.01, 0.999)


@pytest.mark.skipif(not EXTENDED, reason="no floating-point numbers beyond float64 to compare with")
@given(gamma=GAMMAS, seed=st.integers(0, 2**32 - 1), largest=st.floats(1e-9, 2 * MAX_EXPONENT))
@settings(max_examples=100)
def test_the_series_errs_by_two_unit_roundoffs_at_most(gamma: float, seed: int, largest: float) -> None:
    durations = np.random.default_rng(seed).random(500) * (largest / -math.log(gamma))
    exact = np.exp(durations.astype(np.longdouble) * np.log(np.longdouble(gamma)))
    found = discounts_in_place(gamma, durations)
    assert found is durations
    assert float(np.max(np.abs(found - exact) / exact)) <= 2 * UNIT_ROUNDOFF


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 1.0])
def test_the_discount_of_an_infinite_duration_is_0(gamma: float) -> None:
    durations = np.array([0.0, 1e-3, np.inf, 0.1])
    expected = discounts(gamma, durations)
    found = discounts_in_place(gamma, durations.copy())
    np.testing.assert_allclose(found, expected, rtol=4 * UNIT_ROUNDOFF, atol=0)
    assert found[2] == 0.0
    assert found[0] == 1.0


@pytest.mark.parametrize("tau", [1.0, 100.0, 1e308, 5e-324, 0.0])
def test_long_steps_beside_short_ones_are_discounted_as_numpy_does(tau: float) -> None:
    durations = np.array([1e-3, tau, 50.0, np.inf])
    np.testing.assert_array_equal(discounts_in_place(0.9, durations.copy()), discounts(0.9, durations))


def test_no_rows_have_no_discounts() -> None:
    assert discounts_in_place(0.9, np.empty(0)).size == 0


def test_a_duration_that_is_not_a_number_stays_so() -> None:
    found = discounts_in_place(0.9, np.array([1e-3, np.nan]))
    assert np.isnan(found[1])
