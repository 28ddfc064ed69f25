"""The example of a perishable product: its demand, one day by hand, and the values of a plain value iteration."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import numpy as np
import pytest
from paths import DOCS

import ooc_mdp


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("inventory", DOCS / "examples" / "inventory_of_rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_demand_has_the_mean_and_the_variation_of_the_paper(example):
    chances = example.demand_chances(100)
    demand = np.arange(chances.size)
    mean = float(chances @ demand)
    assert chances.sum() == pytest.approx(1.0)
    assert mean == pytest.approx(4.0, abs=0.01)
    assert np.sqrt(chances @ demand**2 - mean**2) / mean == pytest.approx(0.5, abs=0.01)


def test_a_day_costs_what_is_ordered_short_wasted_and_held(example):
    problem = example.Inventory(2)
    state = 3 * 121 + 5 * 11 + 2  # 3 in transit, 5 new items and 2 old ones
    successors, _, rewards = problem.rows(np.array([state]))
    assert successors[0, 7, 4] == 7 * 121 + 3 * 11 + 3  # 4 sold: 2 old and 2 new ones; the order is in transit now
    assert rewards[0, 7, 4] == -(3 * 7 + 3)
    assert rewards[0, 0, 1] == -(7 * 1 + 5)
    assert rewards[0, 0, 9] == -(5 * 2)


def test_its_values_are_those_of_value_iteration(example):
    problem = example.Inventory(1)
    successors, chances, rewards = problem.rows(np.arange(problem.n_states))
    successors = np.broadcast_to(successors, rewards.shape)
    values = np.zeros(problem.n_states)
    for _ in range(3000):
        values = ((rewards + 0.99 * values[successors]) @ chances).max(axis=1)
    solution = ooc_mdp.solve(ooc_mdp.from_rows(problem.n_states, problem.rows), discount=0.99, epsilon=1e-6)
    assert solution.values == pytest.approx(values, abs=2e-6)
