"""Backward induction against closed forms, and against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from exact_stages import exact_stages, random_stage_model
from store_models import Action, Model, State

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import Rows
from ooc_mdp.reference.finite_horizon import Stages, backward_induction


def rows_of(*states: State, durations: bool = False) -> Rows:
    return Model(states, durations).rows(np.arange(len(states)))


def random_rows(rng: np.random.Generator) -> Rows:
    return rows_of(*random_stage_model(rng).states)


def assert_bounds_hold(found: Stages, exact: list[list[Fraction]]) -> None:
    for values, bound, true in zip(found.values, found.error_bounds, exact, strict=True):
        assert max(abs(Fraction(float(v)) - t) for v, t in zip(values, true, strict=True)) <= Fraction(float(bound))


@pytest.mark.parametrize(
    ("first", "count"), [(0, 60), pytest.param(60, 440, marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_every_stage_is_within_its_bound_of_exact_arithmetic(first: int, count: int) -> None:
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        rows, stages = random_rows(rng), int(rng.integers(0, 31))
        discount, sense = float(rng.choice([1.0, 0.9, 0.5, 0.0])), str(rng.choice(["max", "min"]))
        final = rng.normal(size=rows.n_states) if rng.random() < 0.5 else np.zeros(rows.n_states)
        found = backward_induction(rows, stages, discount, final, sense)
        exact = exact_stages(rows, stages, discount, final, sense)
        assert_bounds_hold(found, exact)
        largest = max(1e-300, max(float(abs(v)) for values in exact for v in values))
        assert found.error_bounds[0] <= 1e-13 * (stages + 1) * max(largest, float(np.abs(rows.rewards).max(initial=0)))


def test_a_reward_per_stage_adds_up_to_the_number_of_stages() -> None:
    found = backward_induction(rows_of(State((Action(2.0, {0: 1.0}),))), 5)
    assert found.values[:, 0].tolist() == [10.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    assert found.policy.tolist() == [[0]] * 5


def test_the_best_action_depends_on_the_stages_to_go() -> None:
    """Waiting for the larger reward pays with two stages to go, and not with one."""
    model = rows_of(State((Action(1.0, {2: 1.0}), Action(0.0, {1: 1.0}))), State((Action(3.0, {2: 1.0}),)), State(()))
    found = backward_induction(model, 2)
    assert found.policy[:, 0].tolist() == [1, 0]
    assert found.values[:, 0].tolist() == [3.0, 1.0, 0.0]


def test_final_values_are_those_of_states_with_actions_and_others_keep_their_rewards() -> None:
    model = rows_of(State((Action(0.0, {1: 1.0}),)), State((), 7.0))
    found = backward_induction(model, 1, final_values=np.array([5.0, 100.0]))
    assert found.values.tolist() == [[7.0, 7.0], [5.0, 7.0]]


def test_without_stages_the_final_values_are_the_answer() -> None:
    found = backward_induction(rows_of(State((Action(1.0, {0: 1.0}),))), 0, final_values=np.array([4.0]))
    assert (found.values.tolist(), found.error_bounds.tolist()) == ([[4.0]], [0.0])


def test_durations_are_refused() -> None:
    model = rows_of(State((Action(1.0, {0: 1.0}, duration=2.0),)), durations=True)
    with pytest.raises(OptionsError, match="stages are all of one length"):
        backward_induction(model, 3)


def test_a_row_of_infinite_duration_ends_the_process() -> None:
    endless = float("inf")
    model = rows_of(State((Action(2.0, {0: 1.0}, duration=endless), Action(1.5, {0: 1.0}))), durations=True)
    found = backward_induction(model, 3)
    assert found.values[:, 0].tolist() == [5.0, 3.5, 2.0, 0.0]
    assert found.policy[:, 0].tolist() == [1, 1, 0]
