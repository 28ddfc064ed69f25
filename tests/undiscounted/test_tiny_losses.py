"""Loops that lose next to nothing a step: rewards that would cancel in decimals, as float64 has them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import Case, make_store, stored
from store_models import Action, Model, State
from total_rewards import best_totals

import ooc_mdp
from ooc_mdp.errors import UndefinedTotalError
from ooc_mdp.model.solution import Outcome


def loop(*rewards: float, leaves: float = 1.0, moves: float = 1.0) -> Model:
    """States in a circle that pay these rewards, the second of which may be left for an end."""
    n = len(rewards)

    def state(i: int) -> State:
        to = {(i + 1) % n: moves} | ({i: 1 - moves} if moves < 1 else {})
        leaving = (Action(leaves, {n: 1.0}),) if i == 1 else ()
        return State((Action(rewards[i], to), *leaving))

    return Model((*(state(i) for i in range(n)), State(())))


NESTED = Model(
    (
        State((Action(-1e-15, {1: 1.0}), Action(-2e-16, {2: 1.0}))),
        State((Action(0.0, {0: 1.0}), Action(1.0, {3: 1.0}))),
        State((Action(-1e-14, {0: 0.5, 2: 0.5}), Action(0.0, {1: 1.0}))),
        State(()),
    )
)
TINY = [
    pytest.param(loop(-1e-15, 0.0), id="1e-15"),
    pytest.param(loop(-1e-12, 0.0), id="1e-12"),
    pytest.param(loop(-1e-9, 0.0), id="1e-9"),
    pytest.param(loop(-1e-300, 0.0), id="1e-300"),
    pytest.param(loop(-1e-15, 0.0, leaves=-5.0), id="leaving costs"),
    pytest.param(loop(-1e-15, 0.0, leaves=1000.0), id="large values"),
    pytest.param(loop(-1e-15, *[0.0] * 4), id="longer"),
    pytest.param(loop(-1e-15, -3e-16, -1e-17, 0.0), id="several losses"),
    pytest.param(loop(-1e-15, 0.0, 0.0, moves=0.5), id="at random"),
    pytest.param(loop(-(0.1 * 7 + 0.2 * 7 - 0.7 * 3), 0.0), id="decimals"),
    pytest.param(NESTED, id="nested"),
]


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("sense", ["max", "min"])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-10])
def test_a_loop_that_loses_next_to_nothing_is_solved_in_a_few_visits(
    tmp_path: Path, model: Model, sense: str, epsilon: float
) -> None:
    if sense == "min":
        states = (State(tuple(Action(-a.reward, a.successors) for a in s.actions)) for s in model.states)
        model = Model(tuple(states))
    store = make_store(Case(model, sense, partitions=2), tmp_path / "s")
    solution = ooc_mdp.solve(store, ooc_mdp.TotalReward(), epsilon=epsilon)
    sign = 1 if sense == "max" else -1
    best = best_totals(model, sign)
    assert isinstance(best, list)
    assert solution.outcome is Outcome.PROVED
    error = max(abs(Fraction(v) - sign * b) for v, b in zip(solution.values, best, strict=True))
    assert error <= solution.error_bound <= epsilon
    assert solution.statistics.visits < 100
    assert ooc_mdp.verify(store, solution).holds


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(loop(-2e-15, 1e-15), id="tiny"),
        pytest.param(loop(-2e-15, 5e-16, 5e-16), id="longer"),
        pytest.param(loop(-1.0000000000000002, 1.0), id="large"),
    ],
)
def test_rewards_of_both_signs_that_cancel_but_for_rounding_are_refused_by_name(tmp_path: Path, model: Model) -> None:
    store = make_store(Case(model), tmp_path / "s")
    with pytest.raises(UndefinedTotalError, match=r"rewards of both signs balance .*cannot be told from 0") as refused:
        ooc_mdp.solve(store, ooc_mdp.TotalReward(), epsilon=1e-6)
    assert set(refused.value.states) == set(range(len(model.states) - 1))


def test_a_loop_that_gains_next_to_nothing_is_worth_infinitely_much(tmp_path: Path) -> None:
    store = make_store(Case(loop(1e-15, 0.0)), tmp_path / "s")
    with pytest.raises(UndefinedTotalError, match="states 0 and 1 is infinite"):
        ooc_mdp.solve(store, ooc_mdp.TotalReward(), epsilon=1e-6)


def test_a_small_mean_loss_of_rewards_of_both_signs_limits_the_perturbation(tmp_path: Path) -> None:
    store = make_store(Case(loop(-1.0 - 1e-12, 1.0)), tmp_path / "s")
    solution = ooc_mdp.solve(store, ooc_mdp.TotalReward(), epsilon=1e-6)
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.visits < 100


@settings(max_examples=60, deadline=None)
@given(
    rewards=st.lists(st.sampled_from([0.0, -1e-300, -1e-17, -1e-15, -1e-12, -1e-9, -1e-7]), min_size=2, max_size=5),
    leaves=st.sampled_from([1.0, -3.0, 1e3, 1e-12, 0.0]),
    moves=st.sampled_from([1.0, 0.5, 0.01]),
    epsilon=st.sampled_from([1e-3, 1e-6, 1e-9]),
)
def test_losses_of_any_size_are_proved(rewards: list[float], leaves: float, moves: float, epsilon: float) -> None:
    model = loop(*rewards, leaves=leaves, moves=moves)
    best = best_totals(model, 1)
    assert isinstance(best, list)
    with stored(Case(model)) as store:
        solution = ooc_mdp.solve(store, ooc_mdp.TotalReward(), epsilon=epsilon)
        assert solution.outcome is Outcome.PROVED
        error = max(abs(Fraction(v) - b) for v, b in zip(solution.values, best, strict=True))
        assert error <= solution.error_bound <= epsilon
        assert solution.statistics.visits < 2000
