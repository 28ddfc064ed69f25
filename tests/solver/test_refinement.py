"""What is proved where float64 sweeps prove too little: measured and refined in a higher precision."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from claims import assert_that_all_claims_hold, plain_residual, sign_of
from small_mdps import Case, distance, make_store, optimum, rows_of
from store_models import Action, Model, State, random_model

import ooc_mdp
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver.refinement import error_of, refine
from ooc_mdp.solver.session import Session
from ooc_mdp.store import Store
from ooc_mdp.store.result import Result

TWO_STATES = Case(
    Model(
        (
            State((Action(5.0, {0: 0.5, 1: 0.5}), Action(10.0, {1: 1.0}))),
            State((Action(-1.0, {1: 1.0}), Action(2.0, {0: 1.0}))),
        )
    )
)
"""Exact values are known to any number of digits, and near 1 / (1 - discount)."""


def exact_error(solution: Solution, best: list[Fraction]) -> Fraction:
    return max(map(abs, distance(solution.values, best)))


def solve(store: Store, discount: float, **options: object) -> Solution:
    return ooc_mdp.solve(store, discount, device="cpu", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["policy-iteration", "auto"])
@pytest.mark.parametrize(("discount", "epsilon"), [(0.9999, 1e-6), (0.999999, 0.01), (0.99999999, 100.0)])
def test_a_bound_that_is_mostly_rounding_is_proved_where_it_meets_the_target(
    tmp_path: Path, method: str, discount: float, epsilon: float
) -> None:
    store = make_store(TWO_STATES, tmp_path / "s")
    solution = solve(store, discount, epsilon=epsilon, method=method)
    assert solution.outcome is Outcome.PROVED
    assert solution.error_bound <= epsilon


@pytest.mark.parametrize("method", ["vi", "p-eva", "policy-iteration", "auto"])
@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99])
def test_values_come_as_near_as_float64_has_numbers(tmp_path: Path, method: str, discount: float) -> None:
    case = Case(random_model(5, 30), "min", partitions=4)
    store = make_store(case, tmp_path / "s")
    rows = rows_of(store)
    best = optimum(rows, discount, "min")
    solution = solve(store, discount, epsilon=1e-30, method=method)
    assert_that_all_claims_hold(solution, store, rows, best, discount)
    assert solution.outcome is Outcome.PRECISION_LIMIT
    nearest = [Fraction(float(v)) for v in best]
    assert solution.error_bound <= 1.01 * float(max(abs(a - b) for a, b in zip(nearest, best, strict=True))) + 1e-25


@pytest.mark.parametrize("discount", [0.9, 0.9999, 1 - 1e-8])
def test_the_least_epsilon_that_is_named_is_proved_when_it_is_asked_for(tmp_path: Path, discount: float) -> None:
    store = make_store(Case(random_model(2, 12), partitions=3), tmp_path / "s")
    first = solve(store, discount, epsilon=1e-30, method="policy-iteration")
    assert first.least_target is not None
    assert first.error_bound < first.least_target < 1.2 * first.error_bound
    again = solve(store, discount, epsilon=first.least_target, method="policy-iteration")
    assert again.outcome is Outcome.PROVED
    assert again.least_target is None
    assert exact_error(again, optimum(rows_of(store), discount)) <= first.least_target


def test_float32_tables_are_refined_as_well(tmp_path: Path) -> None:
    store = make_store(Case(random_model(3, 20), dtype="float32", partitions=2), tmp_path / "s")
    rows = rows_of(store)
    solution = solve(store, 0.999, epsilon=1e-11)
    assert solution.outcome is Outcome.PROVED
    assert exact_error(solution, optimum(rows, 0.999)) <= 1e-11


@pytest.mark.parametrize("discount", [0.5, 0.999])
def test_a_plain_residual_is_measured_of_the_values_that_are_returned(tmp_path: Path, discount: float) -> None:
    store = make_store(Case(random_model(4, 20), partitions=2), tmp_path / "s")
    rows = rows_of(store)
    solution = solve(store, discount, residual=1e-30)
    assert solution.outcome is Outcome.PRECISION_LIMIT
    found = plain_residual(rows, solution.values, discount, sign_of(store))
    assert found <= solution.certificate.residual_bound <= 4 * np.spacing(np.abs(solution.values).max())
    again = solve(store, discount, residual=solution.least_target)
    assert again.outcome is Outcome.RESIDUAL_REACHED
    assert plain_residual(rows, again.values, discount, sign_of(store)) <= solution.least_target


def test_rewards_of_actions_that_nobody_takes_do_not_limit_what_is_proved(tmp_path: Path) -> None:
    model = Model((State((Action(1 / 3, {0: 1.0}), Action(-1e12, {0: 1.0}))), State((Action(0.1, {0: 0.3, 1: 0.7}),))))
    store = make_store(Case(model), tmp_path / "s")
    solution = solve(store, 0.99, epsilon=1e-13)
    assert solution.outcome is Outcome.PROVED
    assert exact_error(solution, optimum(rows_of(store), 0.99)) <= 1e-13


def test_verify_confirms_what_was_refined(tmp_path: Path) -> None:
    store = make_store(Case(random_model(6, 40), partitions=4), tmp_path / "s")
    solution = solve(store, 0.9999, epsilon=5e-12, method="policy-iteration")
    assert solution.outcome is Outcome.PROVED
    identity = {"fingerprint": store.fingerprint, "sense": store.sense}
    assert ooc_mdp.verify(store, Result(Path("result"), identity, solution)).holds


def test_no_refinement_is_begun_where_sweeps_prove_the_target(tmp_path: Path) -> None:
    store = make_store(Case(random_model(6, 40), partitions=4), tmp_path / "s")
    assert "twice" not in solve(store, 0.9, epsilon=1e-9).certificate.proof
    assert "twice" in solve(store, 0.9, epsilon=1e-14).certificate.proof


def test_a_limit_ends_a_refinement_and_what_was_measured_holds(tmp_path: Path) -> None:
    store = make_store(Case(random_model(3, 30), partitions=3), tmp_path / "s")
    rows, options = rows_of(store), SolveOptions(0.99, epsilon=1e-30, device="cpu")
    values = np.asarray(solve(store, 0.99, epsilon=1e-6).values)
    looks = 0

    def interrupted() -> bool:
        nonlocal looks
        looks += 1
        return looks > store.n_partitions + 1

    in_order = np.concatenate([values[store.original_states(p)] for p in range(store.n_partitions)])
    refined = refine(store, options, in_order, Session(interrupted=interrupted))
    assert refined is not None
    assert refined.outcome is Outcome.INTERRUPTED
    errors = distance(store.to_source(refined.values), optimum(rows, 0.99))
    assert Fraction(refined.lower) <= min(errors)
    assert max(errors) <= Fraction(refined.upper)
    assert refine(store, options, in_order, Session(interrupted=lambda: True)) is None


@pytest.mark.parametrize(
    ("lower", "upper", "error"),
    [(0.0, -0.0, "0.0"), (-0.0, 0.0, "0.0"), (-2.0, 1.0, "2.0"), (math.nan, 0.0, "nan"), (0.0, math.nan, "nan")],
)
def test_an_error_is_0_or_more_and_unknown_where_an_end_is(lower: float, upper: float, error: str) -> None:
    assert str(error_of(lower, upper)) == error
