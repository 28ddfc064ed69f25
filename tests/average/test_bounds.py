"""Bounds of a partition hold however values move elsewhere, and are no wider than the coupling makes them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from exact_gains import KINDS, random_gain_model
from small_mdps import Case, rows_of, stored

from ooc_mdp.average.bounds import GainBounds, changes_of
from ooc_mdp.model.partition import Coupling
from ooc_mdp.reference.average_reward import advantages
from ooc_mdp.store import Store


def measured(store: Store, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest max_a x_a of each partition, of the maximisation, as NumPy finds them."""
    rows = rows_of(store)
    best = np.maximum.reduceat(advantages(rows, values)[0], rows.action_ptr[:-1])
    return changes_of(best, store.facts.partition_ptr)


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_that_were_moved_hold_at_the_new_values(kind: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        with stored(Case(model := random_gain_model(seed, kind, 12), partitions=min(4, len(model.states)))) as store:
            values = rng.normal(size=store.n_states)
            bounds = GainBounds(store.facts.coupling)
            for p, (low, high) in enumerate(zip(*measured(store, values), strict=True)):
                bounds.read(p, low, high, high)
            for size in (1.0, 1e-3, 1e6):
                change = size * rng.normal(size=store.n_states) * (rng.random(store.n_states) < 0.5)
                bounds.moved(*changes_of(change, store.facts.partition_ptr))
                values = values + change
                low, high = measured(store, values)
                assert (bounds.low <= low + 1e-9).all()
                assert (bounds.high >= high - 1e-9).all()
                assert (bounds.others >= bounds.high).all()


def test_one_number_for_all_states_moves_no_bound() -> None:
    bounds = GainBounds(Coupling(np.array([0, 2, 3]), np.array([0, 1, 1]), np.array([0.5, 0.5, 1.0])))
    for p in (0, 1):
        bounds.read(p, 1.0, 2.0, 1.5)
    bounds.moved(np.full(2, 7.0), np.full(2, 7.0))
    assert np.abs(bounds.low - 1.0).max() < 1e-9
    assert np.abs(bounds.high - 2.0).max() < 1e-9


def test_a_change_next_door_counts_with_the_mass_that_leads_there() -> None:
    bounds = GainBounds(Coupling(np.array([0, 2, 3]), np.array([0, 1, 1]), np.array([1.0, 0.25, 1.0])))
    for p in (0, 1):
        bounds.read(p, 1.0, 2.0, 1.5)
    bounds.moved(np.array([0.0, -4.0]), np.array([0.0, 8.0]))
    assert bounds.high[0] == pytest.approx(2.0 + 0.25 * 8, abs=1e-4)
    assert bounds.low[0] == pytest.approx(1.0 - 0.25 * 4, abs=1e-4)
    assert bounds.high[1] == pytest.approx(2.0 + 12)


def test_nothing_is_known_before_every_partition_was_read() -> None:
    bounds = GainBounds(Coupling(np.array([0, 1, 2]), np.array([0, 1]), np.ones(2)))
    bounds.read(0, 1.0, 2.0, 1.5)
    assert bounds.interval == (-np.inf, np.inf)
    assert bounds.width == np.inf
    bounds.moved(np.zeros(2), np.zeros(2))
    assert bounds.interval == (-np.inf, np.inf)


def test_others_keep_the_upper_bound_where_only_the_policy_was_evaluated() -> None:
    bounds = GainBounds(Coupling(np.array([0, 1]), np.array([0]), np.ones(1)))
    bounds.read(0, 1.0, 3.0, 2.5)
    bounds.evaluated(np.array([2.0]), np.array([2.1]))
    assert bounds.interval == (2.0, 2.5)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e12])
def test_small_moves_of_large_bounds_are_rounded_outward(size: float) -> None:
    """One partition that reads itself: where h moves by d in one state, x moves by no more than d either way."""
    bounds = GainBounds(Coupling(np.array([0, 1]), np.array([0]), np.array([1.0])))
    bounds.read(0, -size / 3, size / 3, size / 3)
    exact = Fraction(size / 3)
    rng = np.random.default_rng(0)
    for _ in range(200):
        change = float(rng.uniform(0.1, 1)) * np.spacing(size / 3)
        bounds.moved(np.array([0.0]), np.array([change]))
        exact += Fraction(change)
        assert Fraction(float(bounds.high[0])) >= exact
        assert Fraction(float(bounds.others[0])) >= exact
        assert Fraction(float(bounds.low[0])) <= -exact
