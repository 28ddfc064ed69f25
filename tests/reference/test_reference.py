"""The reference against closed forms, and against the exact optimum in rational arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_mdps import cases, distance, optimum
from store_models import Action, Model, State

from ooc_mdp.model.mdp import Rows, discounts
from ooc_mdp.reference import backup, policy_iteration, q_values


def rows(*states: State, durations: bool = False) -> Rows:
    return Model(states, durations).rows(np.arange(len(states)))


def test_a_reward_for_ever_is_worth_the_geometric_sum() -> None:
    model = rows(State((Action(3.0, {0: 1.0}),)))
    assert policy_iteration(model, 0.75).values == pytest.approx([12.0], rel=1e-15)
    longer = rows(State((Action(3.0, {0: 1.0}, duration=2.0),)), durations=True)
    assert policy_iteration(longer, 0.5).values == pytest.approx([4.0], rel=1e-15)


def test_a_terminal_state_is_worth_its_reward_in_either_sense() -> None:
    model = rows(State((Action(0.0, {1: 1.0}), Action(0.0, {2: 1.0}))), State((), 2.0), State((), -4.0))
    best, worst = policy_iteration(model, 0.5), policy_iteration(model, 0.5, "min")
    assert best.values.tolist() == [1.0, 2.0, -4.0]
    assert worst.values.tolist() == [-2.0, 2.0, -4.0]
    assert best.policy.tolist() == [0, -1, -1]
    assert worst.policy.tolist() == [1, -1, -1]


def test_a_model_of_terminal_states_needs_no_actions() -> None:
    model = rows(State((), 2.0), State(()))
    for found in (policy_iteration(model, 0.9), backup(model, np.ones(2), 0.9)):
        assert found.values.tolist() == [2.0, 0.0]
        assert found.policy.tolist() == [-1, -1]


def test_a_chain_discounts_its_goal_by_the_steps_to_it() -> None:
    n = 12
    chain = [State((Action(0.0, {i: 1.0}), Action(0.0, {i + 1: 1.0}))) for i in range(n - 1)]
    found = policy_iteration(rows(*chain, State((), 1.0)), 0.9)
    assert found.values == pytest.approx(0.9 ** np.arange(n)[::-1], rel=1e-14)
    assert found.policy.tolist() == [1] * (n - 1) + [-1]


def test_ties_go_to_the_lowest_action() -> None:
    same = Action(1.0, {0: 1.0})
    model = rows(State((Action(0.0, {0: 1.0}), same, same)))
    assert backup(model, np.zeros(1), 0.5).policy.tolist() == [1]
    assert policy_iteration(model, 0.5).policy.tolist() == [1]


def test_a_row_of_infinite_duration_ends_the_process_with_its_reward() -> None:
    on, off = Action(1.0, {0: 1.0, 1: 0.0}), Action(3.0, {0: 0.5, 1: 0.5}, duration=np.inf)
    model = rows(State((on, off)), State((off,)), durations=True)
    found = policy_iteration(model, 0.5)
    assert found.values.tolist() == [3.0, 3.0]
    assert found.policy.tolist() == [1, 0]
    assert policy_iteration(model, 0.75).values == pytest.approx([4.0, 3.0], rel=1e-15)


def test_an_infinite_duration_discounts_to_nothing_whatever_the_discount() -> None:
    durations = np.array([np.inf, 1.0, 2.0])
    for gamma in (0.0, 0.5, 1.0):
        assert discounts(gamma, durations).tolist() == [0.0, gamma, gamma**2]
    assert discounts(0.5, np.empty(0)).size == 0


def test_q_is_reward_plus_discounted_expectation() -> None:
    model = rows(
        State((Action(1.0, {0: 0.25, 1: 0.75}, duration=0.5), Action(-1.0, {1: 1.0}, duration=2.0))),
        State((), 0.0),
        durations=True,
    )
    assert q_values(model, np.array([4.0, 8.0]), 0.25).tolist() == [1 + 0.5 * 7, -1 + 0.0625 * 8]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), discount=st.sampled_from([0.0, 0.5, 0.9, 0.9999]))
def test_policy_iteration_finds_the_exact_optimum_to_its_rounding(case, discount) -> None:
    model = case.model.rows(np.arange(len(case.model.states)))
    best = optimum(model, discount, case.sense)
    found = policy_iteration(model, discount, case.sense)
    longest = 1.0 if model.durations is None else model.durations.min(initial=1.0)
    scale = max(1.0, np.abs(model.rewards).max(initial=0.0)) / (1 - discount**longest * (1 + 2e-11))
    assert max(map(abs, distance(found.values, best))) <= 1e-13 * scale / (1 - discount**longest)


def test_policy_iteration_sees_a_difference_of_one_part_in_1e13_of_a_long_run() -> None:
    """1e-9 a step is 1e-5 in the long run at a discount of 0.9999, where values are 1e4."""
    model = rows(State((Action(1.0, {0: 1.0}), Action(1.0 + 1e-9, {0: 1.0}))))
    assert policy_iteration(model, 0.9999).policy.tolist() == [1]
