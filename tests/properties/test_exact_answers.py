"""Bounds of probabilities and rewards hold the exact answers of random models with free cycles, infinities included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from exact_properties import INFINITY, TinyModel, bounded_reach, of_policy, optimal, random_model

import ooc_mdp
from ooc_mdp import Reachability, RewardToGoal, TotalReward

SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 40))]
EPSILON = 1e-7


def store_of(model: TinyModel, partitions: int) -> ooc_mdp.Store:
    P, R = model.arrays()
    labels = {"goal": sorted(model.goal), "avoid": sorted(model.avoid)}
    return ooc_mdp.from_arrays(P, R, layout="state-first", labels=labels, partitions=partitions)


def questions(model: TinyModel, sense: str) -> Iterator[tuple[str, ooc_mdp.model.criterion.Criterion]]:
    yield "reach", Reachability("goal", "avoid", sense=sense)
    yield "reward", RewardToGoal("goal", sense=sense)
    yield "total", TotalReward(sense=sense, infinite=True)


def exactly(value: float) -> Fraction | float:
    return value if np.isinf(value) else Fraction(value)


@pytest.mark.parametrize("sense", ["max", "min"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_exact_answer_lies_within_the_bounds(seed: int, sense: str):
    model = random_model(seed)
    store = store_of(model, 1 + seed % 3)
    for kind, question in questions(model, sense):
        solution = ooc_mdp.solve(store, question, epsilon=EPSILON)
        assert solution.outcome is ooc_mdp.Outcome.PROVED
        exact = optimal(model, kind, sense)
        for s in range(model.n):
            low, high = exactly(solution.value_lower[s]), exactly(solution.value_upper[s])
            assert low <= exact[s] <= high, (kind, s, low, exact[s], high)
            if exact[s] in (0, 1, INFINITY) and kind == "reach":
                assert solution.values[s] == exact[s]
            assert (exact[s] == INFINITY) == (solution.values[s] == INFINITY)
            if exact[s] != INFINITY:
                assert abs(Fraction(solution.values[s]) - Fraction(exact[s])) <= EPSILON
        assert ooc_mdp.verify(store, solution).holds


@pytest.mark.parametrize("sense", ["max", "min"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_policy_attains_the_answer(seed: int, sense: str):
    model = random_model(seed)
    store = store_of(model, 1 + seed % 3)
    for kind, question in questions(model, sense):
        solution = ooc_mdp.solve(store, question, epsilon=EPSILON)
        attained = of_policy(model, tuple(solution.policy.tolist()), kind)
        for s, exact in enumerate(optimal(model, kind, sense)):
            if exact == INFINITY and sense == "min":
                continue  # every policy has the answer, or a larger one
            assert exact == attained[s] or abs(exact - attained[s]) <= solution.certificate.policy_loss_bound, (kind, s)


@pytest.mark.parametrize("sense", ["max", "min"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_bounded_probability_is_the_exact_one(seed: int, steps: int, sense: str):
    model = random_model(seed, n=6)
    store = store_of(model, 1 + seed % 4)
    solution = ooc_mdp.solve(store, Reachability("goal", "avoid", steps, sense))
    exact = bounded_reach(model, steps, sense)
    for s in range(model.n):
        assert exactly(solution.value_lower[s]) <= exact[s] <= exactly(solution.value_upper[s])
        assert abs(Fraction(solution.values[s]) - exact[s]) <= 1e-14
    assert ooc_mdp.verify(store, solution).holds


def test_rewards_below_0_are_gains_of_the_other_sense():
    model = random_model(7)
    P, R = model.arrays()
    labels = {"goal": sorted(model.goal)}
    gains = ooc_mdp.from_arrays(P, R, layout="state-first", labels=labels)
    losses = ooc_mdp.from_arrays(P, -R, layout="state-first", labels=labels)
    for sense, other in (("max", "min"), ("min", "max")):
        one = ooc_mdp.solve(gains, RewardToGoal("goal", sense=sense), epsilon=EPSILON)
        two = ooc_mdp.solve(losses, RewardToGoal("goal", sense=other), epsilon=EPSILON)
        np.testing.assert_allclose(one.values, -two.values, atol=2 * EPSILON)


def test_rewards_of_both_signs_are_refused():
    store = ooc_mdp.from_arrays(np.eye(2)[None], np.array([[1.0], [-1.0]]), labels={"goal": [0]})
    refusal = r"between -1 and 1, and from state 1 a policy may miss the goal: .* rewards of one sign"
    with pytest.raises(ooc_mdp.OptionsError, match=refusal):
        ooc_mdp.solve(store, RewardToGoal("goal"))


def test_a_forged_bound_is_refuted():
    model = random_model(3)
    store = store_of(model, 2)
    for kind, question in questions(model, "max"):
        solution = ooc_mdp.solve(store, question, epsilon=EPSILON)
        for s in range(model.n):
            forged = solution.value_lower.copy()
            forged[s] = forged[s] + 0.01 if np.isfinite(forged[s]) else 5.0
            claims = ooc_mdp.verify(store, replace(solution, value_lower=forged))
            if np.isfinite(solution.value_lower[s]):
                assert not claims.holds, (kind, s)
