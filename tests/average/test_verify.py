"""`verify` measures the interval of an average reward by itself, and refutes what is claimed beyond it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp import AverageReward
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.solution import Solution
from ooc_mdp.solver.verify import read_checked
from ooc_mdp.store import Store

SENSES = pytest.mark.parametrize("sense", ["max", "min"])


def solved(folder: Path, sense: str) -> tuple[Store, Solution]:
    """40 states in 5 partitions, actions that tie at no state."""
    rng = np.random.default_rng(3)
    P, R = rng.dirichlet(np.full(40, 0.2), size=(3, 40)), rng.normal(size=(40, 3))
    store = ooc_mdp.from_arrays(P, R, path=folder / "m.store", partitions=5, sense=sense)
    return store, ooc_mdp.solve(store, AverageReward(), epsilon=1e-6, output=folder / "r")


@SENSES
def test_the_measured_interval_lies_in_the_one_that_is_claimed(tmp_path: Path, sense: str) -> None:
    store, solution = solved(tmp_path, sense)
    found = ooc_mdp.verify(store, tmp_path / "r")
    assert found.holds
    assert found.gain is not None
    claims = solution.certificate
    assert claims.lower - 1e-12 <= found.gain[0] <= found.gain[1] <= claims.upper + 1e-12
    assert found.summary()["gain_lower"] == found.gain[0]


@pytest.mark.parametrize("cores", [1, 3, 7])
def test_partitions_are_measured_on_all_cores_and_found_to_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    store, solution = solved(tmp_path, "max")
    wrong = replace(solution, values=solution.values + np.linspace(0.0, 1.0, 40))
    alone, measured_by = ooc_mdp.verify(store, wrong), set[int]()
    all_at_once = threading.Barrier(min(cores, store.n_partitions))

    def read(table: Store, p: int) -> tuple[PartitionTable, int]:
        if threading.get_ident() not in measured_by:
            measured_by.add(threading.get_ident())
            all_at_once.wait(60)
        return read_checked(table, p)

    monkeypatch.setattr("ooc_mdp.runtime.quotas.cores", lambda: cores)
    monkeypatch.setattr("ooc_mdp.average.verify.read_checked", read)
    assert ooc_mdp.verify(store, wrong) == alone
    assert len(measured_by) == min(cores, store.n_partitions)


@SENSES
@pytest.mark.parametrize("name", ["lower", "upper", "error_bound", "policy_loss_bound", "residual_bound"])
def test_a_claim_that_says_more_than_the_table_is_refuted(tmp_path: Path, sense: str, name: str) -> None:
    store, solution = solved(tmp_path, sense)
    claims = solution.certificate
    middle, half = 0.5 * (claims.lower + claims.upper), claims.error_bound
    altered = {"lower": middle, "upper": middle}.get(name, 0.4 * half)
    found = ooc_mdp.verify(store, replace(solution, certificate=replace(claims, **{name: altered})))
    assert not found.holds
    assert name in found.violated_claims


@SENSES
def test_values_and_policies_that_prove_less_are_refuted(tmp_path: Path, sense: str) -> None:
    store, solution = solved(tmp_path, sense)
    values = solution.values.copy()
    values[7] += 1e-3
    found = ooc_mdp.verify(store, replace(solution, values=values))
    assert {"lower", "upper"} & set(found.violated_claims)
    policy = solution.policy.copy()
    policy[7] = (policy[7] + 1) % 3
    worse = "lower" if sense == "max" else "upper"
    assert ooc_mdp.verify(store, replace(solution, policy=policy)).violated_claims == (worse, "residual_bound")
    policy[7] = 3
    found = ooc_mdp.verify(store, replace(solution, policy=policy))
    assert found.invalid_policy_states == 1
    assert "policy" in found.violated_claims


def solved_by_state(folder: Path, sense: str) -> tuple[Store, Solution]:
    """Three groups of 12 states that nothing leads out of, and 12 states that lead to all of them."""
    rng = np.random.default_rng(4)
    P, R = np.zeros((3, 48, 48)), rng.normal(size=(48, 3))
    for first in (0, 12, 24):
        P[:, first : first + 12, first : first + 12] = rng.dirichlet(np.full(12, 0.3), size=(3, 12))
    P[:, 36:] = rng.dirichlet(np.full(48, 0.2), size=(3, 12))
    store = ooc_mdp.from_arrays(P, R, path=folder / "m.store", partitions=5, sense=sense)
    return store, ooc_mdp.solve(store, AverageReward(), epsilon=1e-6, output=folder / "r")


@SENSES
def test_the_gain_of_each_state_is_verified_by_values_policy_and_bounds(tmp_path: Path, sense: str) -> None:
    store, solution = solved_by_state(tmp_path, sense)
    found = ooc_mdp.verify(store, tmp_path / "r")
    assert found.holds
    assert found.gain == (solution.certificate.lower, solution.certificate.upper)
    assert found.error_bound <= 1e-6


@SENSES
@pytest.mark.parametrize("state", [3, 40], ids=["in-a-component", "on-the-way"])
@pytest.mark.parametrize("bound", ["value_lower", "value_upper"])
def test_a_bound_of_a_state_that_says_more_than_the_table_is_refuted(
    tmp_path: Path, sense: str, bound: str, state: int
) -> None:
    store, solution = solved_by_state(tmp_path, sense)
    wrong = getattr(solution, bound).copy()
    wrong[state] += 1e-5 if bound == "value_lower" else -1e-5
    found = ooc_mdp.verify(store, replace(solution, **{bound: wrong}))
    assert not found.holds
    assert found.error_bound == np.inf


@SENSES
def test_relative_values_and_policies_that_prove_less_of_a_state_are_refuted(tmp_path: Path, sense: str) -> None:
    store, solution = solved_by_state(tmp_path, sense)
    values = solution.values.copy()
    values[15] += 1e-3
    assert not ooc_mdp.verify(store, replace(solution, values=values)).holds
    for state in (15, 40):
        policy = solution.policy.copy()
        policy[state] = (policy[state] + 1) % 3
        assert not ooc_mdp.verify(store, replace(solution, policy=policy)).holds
    policy[15] = 3
    assert ooc_mdp.verify(store, replace(solution, policy=policy)).invalid_policy_states == 1


@SENSES
@pytest.mark.parametrize("name", ["lower", "upper", "error_bound", "policy_loss_bound"])
def test_claims_about_all_states_are_compared_with_those_of_each(tmp_path: Path, sense: str, name: str) -> None:
    store, solution = solved_by_state(tmp_path, sense)
    claims = solution.certificate
    middle = 0.5 * (claims.lower + claims.upper)
    altered = {"lower": middle, "upper": middle}.get(name, 0.4 * claims.error_bound)
    found = ooc_mdp.verify(store, replace(solution, certificate=replace(claims, **{name: altered})))
    assert name in found.violated_claims
