"""The bound on sweeps of Inamoto, Higami and Kobayashi, equation 17, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_facts import facts_with

from ooc_mdp.model.contraction import Contraction
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.sweep_bound import describe_sweep_bound, sweep_bound


@pytest.mark.parametrize(
    ("discount", "epsilon", "largest", "sweeps"),
    [
        (0.5, 2.0, 1.0, 0),  # 0.5 * 2 / (2 * 0.5 * 1) = 1: the first sweep is enough
        (0.5, 1.0, 1.0, 1),  # 1/2
        (0.5, 0.125, 1.0, 4),  # 1/16
        (0.5, 0.1, 1.0, 5),  # 1/20, between 2^-4 and 2^-5
        (0.9, 0.1, 1.0, 50),  # 0.01 / 1.8 = 1/180: ln 180 / -ln 0.9 = 5.19296 / 0.105361 = 49.29
        (0.8, 0.001, 10.0, 51),  # 0.0002 / 16 = 1/80000: 11.28978 / 0.2231436 = 50.59
        (0.99, 0.01, 20.0, 1283),  # 0.0001 / 39.6 = 1/396000: 12.88917 / 0.01005034 = 1282.46
        (0.0, 0.1, 7.0, 0),
        (0.9, 0.1, 0.0, 0),
    ],
)
def test_the_bound_is_the_one_worked_out_by_hand(discount: float, epsilon: float, largest: float, sweeps: int) -> None:
    assert sweep_bound(discount, epsilon, largest) == sweeps


@given(st.floats(0.01, 0.99), st.floats(1e-6, 1e3), st.floats(1e-3, 1e4))
def test_it_is_the_least_power_of_the_discount_that_meets_equation_15(
    discount: float, epsilon: float, c: float
) -> None:
    sweeps, limit = sweep_bound(discount, epsilon, c), (1 - discount) * epsilon / (2 * discount)
    assert discount**sweeps * c <= limit * (1 + 1e-9)
    assert sweeps == 0 or discount ** (sweeps - 1) * c > limit * (1 - 1e-9)


def described(**options: float) -> str:
    facts = facts_with(
        [0, 4, 9],
        reward_range=np.array([[-3.0, 1.0], [0.0, 1.0]]),
        contraction=Contraction(np.array([0.5, 0.25]), np.ones(2), np.ones(2), np.ones(2), np.ones(2)),
    )
    return describe_sweep_bound(facts, SolveOptions(0.5, kernel="plain", **options))


def test_a_plan_names_alpha_epsilon_cost_and_sweeps() -> None:
    assert "I(0.5, 0.1, 3) = 6: 7 sweeps of all states" in described(epsilon=0.1)  # 0.05 / 3 = 1/60
    assert described(epsilon=0.1).endswith("enough for an error of 0.1 (Inamoto, Higami and Kobayashi, equation 17)")


def test_a_residual_counts_the_sweeps_until_changes_are_so_small() -> None:
    sweeps = math.ceil(math.log2(3 / 0.01))
    assert f"= {sweeps}: {sweeps + 1} sweeps of all states" in described(residual=0.01)
    assert "enough for changes of at most 0.01" in described(residual=0.01)


def test_without_a_target_the_range_of_rewards_stands_for_that_of_the_values() -> None:
    assert "an error of 0.0004" in described()
