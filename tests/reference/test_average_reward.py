"""Relative value iteration against closed forms, and its interval against gains in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from exact_gains import KINDS, exact_gains, exact_policy_gains, random_gain_model
from store_models import Action, Model, State

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import Rows
from ooc_mdp.reference.average_reward import measure_gain, relative_value_iteration


def rows_of(*states: State) -> Rows:
    return Model(states).rows(np.arange(len(states)))


CYCLE = rows_of(*(State((Action(float(s == 3), {(s + 1) % 7: 1.0}),)) for s in range(7)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_contains_the_exact_gain_of_every_state(kind: str) -> None:
    for seed in range(100):
        model = random_gain_model(seed, kind)
        rows = model.rows(np.arange(len(model.states)))
        sense = ("max", "min")[seed % 2]
        exact = exact_gains(rows, sense)
        rng, size = np.random.default_rng(seed), float(np.abs(rows.rewards).max())
        found = [measure_gain(rows, size * rng.normal(size=rows.n_states), sense)]
        found.append(relative_value_iteration(rows, 1e-6 * size, sense, most=60))
        for gain in found:
            assert Fraction(gain.lower) <= min(exact) <= max(exact) <= Fraction(gain.upper)
            followed = exact_policy_gains(rows, gain.policy)
            if sense == "max":
                assert min(followed) >= Fraction(gain.lower)
            else:
                assert max(followed) <= Fraction(gain.upper)


def test_the_interval_closes_where_every_policy_returns_to_one_state() -> None:
    for seed in range(20):
        model = random_gain_model(seed, "unichain")
        rows = model.rows(np.arange(len(model.states)))
        size = float(np.abs(rows.rewards).max())
        gain = relative_value_iteration(rows, 1e-9 * size)
        assert gain.upper - gain.lower <= 2e-9 * size


def test_a_cycle_of_seven_states_earns_a_seventh_of_its_reward() -> None:
    gain = relative_value_iteration(CYCLE, 1e-9)
    assert gain.upper - gain.lower <= 2e-9
    assert gain.lower <= 1 / 7 <= gain.upper


def test_two_separate_states_keep_the_interval_as_wide_as_their_gains_differ() -> None:
    gain = relative_value_iteration(rows_of(State((Action(1.0, {0: 1.0}),)), State((Action(3.0, {1: 1.0}),))), 1e-6)
    assert (gain.lower, gain.upper) == (pytest.approx(1), pytest.approx(3))
    assert gain.lower <= 1 < 3 <= gain.upper


def test_a_row_stands_for_its_probabilities_divided_by_their_sum() -> None:
    gain = relative_value_iteration(
        rows_of(State((Action(1.0, {0: 0.5, 1: 0.4999999}),)), State((Action(2.0, {0: 1.0}),))), 1e-12
    )
    assert gain.lower <= (1 + 2 * 0.4999999 / 0.9999999) / (1 + 0.4999999 / 0.9999999) <= gain.upper


def test_a_state_without_action_is_refused() -> None:
    with pytest.raises(OptionsError, match="state 1 has no action"):
        relative_value_iteration(rows_of(State((Action(1.0, {1: 1.0}),)), State(())), 1e-6)
