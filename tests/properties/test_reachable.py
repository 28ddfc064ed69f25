"""Questions about the states that initial ones lead to have their answers whatever other states do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp import OptionsError, RewardToGoal, TotalReward, UndefinedTotalError

BALANCED = [(4, 1.0, 5.0), (3, 1.0, -5.0)]
GAINING = [(4, 1.0, 5.0), (3, 1.0, -4.0)]
STAYING = [(4, 1.0, -5.0), (3, 1.0, -4.0)]
"""Rows of the states 3 and 4: successor, probability, reward. No reachable state leads to them."""


def model(junk: list[tuple[int, float, float]], partitions: int = 2, initial: int | None = 0) -> ooc_mdp.Store:
    """0 pays 3 and comes to 1, or pays 1 and comes to 1 or 2; 1 costs 2 and stays half of the time, or ends in 2."""
    P, R = np.zeros((5, 2, 5)), np.zeros((5, 2))
    P[0, 0, 1], R[0, 0] = 1, 3
    P[0, 1, [1, 2]], R[0, 1] = 0.5, 1
    P[1, 0, [1, 2]], R[1, 0] = 0.5, -2
    P[1, 1, 2], R[1, 1] = 1, -7
    for state, (successor, probability, reward) in zip((3, 4), junk, strict=True):
        P[state, :, successor], R[state] = probability, reward
    given = {} if initial is None else {"initial": initial}
    labels = {"done": [2]}
    return ooc_mdp.from_arrays(
        P, R, layout="state-first", terminal=[2], labels=labels, partitions=partitions, **given
    )  # fmt: skip


@pytest.mark.parametrize("junk", [BALANCED, GAINING, STAYING])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_totals_of_both_signs_ignore_states_that_are_not_reached(junk: list, partitions: int, tmp_path: Path):
    store = model(junk, partitions)
    with pytest.raises(UndefinedTotalError, match="--reachable"):
        ooc_mdp.solve(store, TotalReward())
    for sense, values in (("max", [-1, -4, 0, 0, 0]), ("min", [-4, -7, 0, 0, 0])):
        question, output = TotalReward(sense=sense, reachable=True), tmp_path / sense
        solution = ooc_mdp.solve(store, question, epsilon=1e-9, output=output)
        np.testing.assert_allclose(solution.values, values, atol=1e-9)
        assert ooc_mdp.verify(store, output).holds


@pytest.mark.parametrize("junk", [BALANCED, GAINING, STAYING])
def test_rewards_of_both_signs_to_a_goal_that_is_always_reached_are_answered(junk: list, tmp_path: Path):
    store = model(junk)
    with pytest.raises(OptionsError, match="from states 3 and 4 a policy may miss the goal"):
        ooc_mdp.solve(store, RewardToGoal("done"))
    for sense, values in (("max", [-1, -4, 0, 0, 0]), ("min", [-4, -7, 0, 0, 0])):
        question, output = RewardToGoal("done", sense=sense, reachable=True), tmp_path / sense
        solution = ooc_mdp.solve(store, question, epsilon=1e-9, output=output)
        np.testing.assert_allclose(solution.values, values, atol=1e-9)
        assert (solution.value_lower <= np.array(values)).all()
        assert (solution.value_upper >= np.array(values)).all()
        assert ooc_mdp.verify(store, output).holds


def test_a_goal_that_a_reachable_state_may_miss_is_refused_with_rewards_of_both_signs():
    store = model(BALANCED)
    with pytest.raises(OptionsError, match="from states 0, 1 and 2 a policy may miss the goal"):
        ooc_mdp.solve(model(BALANCED, initial=0), RewardToGoal("false", reachable=True))
    answered = ooc_mdp.solve(store, RewardToGoal("init", reachable=True))
    assert answered.values.tolist() == [0] * 5


def test_infinite_totals_are_told_by_the_signs_of_reachable_rewards():
    P, R = np.eye(4)[None], np.array([[2.0], [0], [0], [-1]])
    P[0, 0, [0, 1]] = 0.5
    for initial, sense, value in ((0, "max", 4.0), (1, "max", 0.0), (3, "max", -np.inf)):
        store = ooc_mdp.from_arrays(P, R, layout="action-first", initial=initial, partitions=2)
        solution = ooc_mdp.solve(store, TotalReward(sense=sense, infinite=True, reachable=True), epsilon=1e-9)
        assert solution.initial[0].value == pytest.approx(value, abs=1e-9)
    with pytest.raises(OptionsError, match="a total that may be infinite is defined for rewards of one sign"):
        ooc_mdp.solve(store, TotalReward(infinite=True))


def test_random_models_have_the_answers_of_their_reachable_part():
    rng = np.random.default_rng(7)
    for _ in range(10):
        n, reached = 12, 6
        P, R = np.zeros((n, 2, n)), rng.normal(size=(n, 2))
        for state in range(1, reached):
            P[state, :, :state] = rng.dirichlet(np.ones(state), 2)
            P[state] *= rng.random(P[state].shape) < 0.8
            P[state, P[state].sum(axis=1) == 0, 0] = 1
            P[state] /= P[state].sum(axis=1, keepdims=True)
        P[reached:] = rng.dirichlet(np.ones(n), (n - reached, 2))
        P[n - 1], R[n - 1], R[0] = np.eye(n)[n - 1], 1, 0
        order = rng.permutation(n)
        shuffled = P[np.ix_(order, [0, 1], order)]
        names = np.argsort(order)
        found = np.zeros(reached)
        for state in range(1, reached):
            found[state] = (R[state] + P[state, :, :reached] @ found).max()
        store = ooc_mdp.from_arrays(
            shuffled, R[order], layout="state-first", terminal=[int(names[0])],
            initial=int(names[reached - 1]), labels={"end": [int(names[0])]}, partitions=4,
        )  # fmt: skip
        for question in (TotalReward(reachable=True), RewardToGoal("end", reachable=True)):
            solution = ooc_mdp.solve(store, question, epsilon=1e-9)
            assert solution.initial[0].value == pytest.approx(found[reached - 1], abs=1e-8)


def test_the_command_line_asks_and_records_it(tmp_path: Path):
    built = model(GAINING)
    ran = ooc("solve", built.path, "--total", "--reachable", "--output", tmp_path / "r", "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["initial"][0]["value"] == pytest.approx(-1, abs=1e-3)
    assert "--total --reachable" in ooc("inspect", tmp_path / "r").out
    goal = ooc("solve", built.path, "--reward", "table", "--goal", "done", "--reachable", "--json")
    assert json.loads(goal.out)["initial"][0]["value"] == pytest.approx(-1, abs=1e-3)
    other = ooc("solve", built.path, "--goal", "done", "--reachable")
    assert other.status == 2
    assert "--reachable belongs to --total" in other.err


def test_a_model_without_initial_states_is_refused():
    with pytest.raises(OptionsError, match="names no initial states, which --reachable asks about"):
        ooc_mdp.solve(model(GAINING, initial=None), TotalReward(reachable=True))
