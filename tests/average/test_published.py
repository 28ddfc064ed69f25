"""Published models of inventories: two products with substitution, and weekdays, which give the chain a period."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from paths import REPOSITORY
from scipy.stats import nbinom

import ooc_mdp
from ooc_mdp import AverageReward
from ooc_mdp.model.solution import Outcome

MIRJALILI = {
    "n": (3.5, 11.0, 7.2, 11.1, 5.9, 5.5, 2.2),
    "mean": (5.7, 6.9, 6.5, 6.2, 5.8, 3.3, 3.4),
}
"""Negative binomial demands of the seven weekdays (Mirjalili 2022)."""


def example():
    sys.path.insert(0, str(REPOSITORY / "docs" / "examples"))
    try:
        import perishable_inventory
    finally:
        sys.path.pop(0)
    return perishable_inventory


def test_the_example_with_small_stocks_sells_what_a_day_brings(tmp_path: Path) -> None:
    """With stocks of 0 or 1 a unit of each product is ordered daily: it earns 1 unless no customer comes."""
    P, R, states, actions = example().arrays(1)
    store = ooc_mdp.from_arrays(P, R, s_indices=states, a_indices=actions, path=tmp_path / "s", partitions=4)
    solution = ooc_mdp.solve(store, AverageReward(), epsilon=1e-9)
    assert solution.outcome is Outcome.PROVED
    assert solution.gain is not None
    assert 0.9 < solution.gain[0] < 1.0, "two units sold nearly every day, less their cost of 1/2 each"
    assert int(solution.actions[0]) == 3, "with empty shelves one of each is ordered"


@pytest.mark.slow
def test_two_perishable_products_earn_what_other_code_finds(tmp_path: Path) -> None:
    """B of Hendrix et al. 2019 with a useful life of two days: 14,641 states, 121 actions, 64 million transitions.

    Values that were computed with demands cut at 24, and so with rows that sum to 1 - 4e-7, are 7e-8 lower.
    """
    P, R, states, actions = example().arrays()
    store = ooc_mdp.from_arrays(P, R, s_indices=states, a_indices=actions, path=tmp_path / "s")
    solution = ooc_mdp.solve(store, AverageReward(), epsilon=5e-7, cache="20%")
    assert solution.outcome is Outcome.PROVED
    assert solution.gain is not None
    low, high = solution.gain
    assert high - low <= 1e-6
    assert low <= 4.50320305535 <= high
    assert max(abs(low - 4.5032029865), abs(high - 4.5032029865)) <= 1.1e-6
    assert solution.statistics.loads_per_partition < 10
    assert ooc_mdp.verify(store, solution).holds


def platelets(stock: int) -> tuple[np.ndarray, np.ndarray]:
    """P and R of C (Mirjalili 2022), of a useful life of two days and stocks up to `stock`: state (weekday, old units).

    Orders arrive fresh; the oldest units are issued first; those that are old in the evening are wasted.
    """
    side = stock + 1
    P, R = np.zeros((7 * side, side, 7 * side)), np.zeros((7 * side, side))
    for day, old, order in product(range(7), range(side), range(side)):
        n, mean = MIRJALILI["n"][day], MIRJALILI["mean"][day]
        demand = nbinom.pmf(np.arange(side), n, n / (n + mean))
        demand[-1] += 1 - demand.sum()
        s = day * side + old
        for wanted, probability in enumerate(demand):
            left = min(max(old + order - wanted, 0), order)
            wasted, short = max(old - wanted, 0), max(wanted - old - order, 0)
            cost = 10 * (order > 0) + 20 * short + 5 * wasted + left
            P[s, order, (day + 1) % 7 * side + left] += probability
            R[s, order] += probability * cost
    return P, R


def test_weekdays_give_a_period_of_seven_and_do_no_harm(tmp_path: Path) -> None:
    P, R = platelets(12)
    store = ooc_mdp.from_arrays(P, R, layout="state-first", sense="min", path=tmp_path / "s", partitions=7)
    solution = ooc_mdp.solve(store, AverageReward(), epsilon=1e-8, cache="30%")
    assert solution.outcome is Outcome.PROVED
    assert ooc_mdp.verify(store, solution).holds
    # The policy followed from its stationary distribution costs the gain.
    policy = np.arange(store.n_states), solution.actions
    chain, cost = P[policy], R[policy]
    n = store.n_states
    balance = np.vstack([chain.T - np.eye(n), np.ones(n)])
    stationary = np.linalg.lstsq(balance, np.append(np.zeros(n), 1.0), rcond=None)[0]
    assert solution.gain is not None
    assert solution.gain[0] - 1e-9 <= stationary @ cost <= solution.gain[1] + 1e-9
