"""Discounts of rows: as near to gamma**tau as the proof of a bound takes them to be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_mdp.backends.cpu.discounts import MAX_EXPONENT, replace_durations
from ooc_mdp.model.contraction import UNIT_ROUNDOFF
from ooc_mdp.model.mdp import discounts

EXTENDED = np.finfo(np.longdouble).nmant > 60
GAMMAS = st.sampled_from([1e-300, 0.1, 0.5, 0.9, 0.99, 1 - 1e-9, math.nextafter(1.0, 0.0)]) | st.floats(0.01, 0.999)


@pytest.mark.skipif(not EXTENDED, reason="no floating-point numbers beyond float64 to compare with")
@given(gamma=GAMMAS, seed=st.integers(0, 2**32 - 1), largest=st.floats(1e-9, 2 * MAX_EXPONENT))
@settings(max_examples=100)
def test_they_are_right_to_two_units(gamma: float, seed: int, largest: float) -> None:
    durations = np.random.default_rng(seed).random(500) * (largest / -math.log(gamma))
    exact = np.exp(durations.astype(np.longdouble) * np.log(np.longdouble(gamma)))
    found = replace_durations(gamma, durations)
    assert found is durations
    assert float(np.max(np.abs(found - exact) / exact)) <= 2 * UNIT_ROUNDOFF


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 1.0])
def test_nothing_follows_a_step_without_end(gamma: float) -> None:
    durations = np.array([0.0, 1e-3, np.inf, 0.1])
    expected = discounts(gamma, durations)
    found = replace_durations(gamma, durations.copy())
    np.testing.assert_allclose(found, expected, rtol=4 * UNIT_ROUNDOFF, atol=0)
    assert found[2] == 0.0
    assert found[0] == 1.0


@pytest.mark.parametrize("tau", [1.0, 100.0, 1e308, 5e-324, 0.0])
def test_long_steps_beside_short_ones_are_discounted_as_numpy_does(tau: float) -> None:
    durations = np.array([1e-3, tau, 50.0, np.inf])
    np.testing.assert_array_equal(replace_durations(0.9, durations.copy()), discounts(0.9, durations))


def test_no_rows_have_no_discounts() -> None:
    assert replace_durations(0.9, np.empty(0)).size == 0


def test_what_is_no_duration_stays_recognisable() -> None:
    """Stores are checked for it; what is not a number does not become one."""
    found = replace_durations(0.9, np.array([1e-3, np.nan]))
    assert np.isnan(found[1])
