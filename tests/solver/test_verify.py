"""Verification: each claim of a certificate is held against the table, and numbers that overflow are refused."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from forge import read_small, seal, write_small
from small_mdps import Case, make_store, rows_of
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.options import parse_bytes
from ooc_mdp.solver.verify import read_checked, verify
from ooc_mdp.store import Store
from ooc_mdp.store.result import Result

SMALLER = {"error_bound": 0.1, "residual_bound": 0.1, "policy_loss_bound": 0.1, "error_upper": 0.0, "error_lower": 0.0}
"""What is left of each bound, of its own size, so that it cannot hold."""


@pytest.fixture(scope="module", params=["max", "min"])
def solved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Result]:
    place = tmp_path_factory.mktemp("verify")
    store = ooc_mdp.generate("GW-16x4", place / "s", {"seed": 1}, sense=request.param, partitions=4)
    ooc_mdp.solve(store, 0.9, epsilon=1e-2, method="vi", device="cpu", output=place / "r")
    return store, ooc_mdp.open_result(place / "r")


def claiming(result: Result, **claims: float) -> Result:
    """The same result with other claims."""
    solution = result.solution
    return replace(result, solution=replace(solution, certificate=replace(solution.certificate, **claims)))


def test_what_a_solve_claims_holds(solved: tuple[Store, Result]) -> None:
    found = verify(*solved)
    assert (found.holds, found.violated_claims) == (True, ())
    assert found.summary()["violated_claims"] == []


def test_a_solution_that_was_not_kept_is_verified_against_the_table_that_is_given(
    solved: tuple[Store, Result], tmp_path: Path
) -> None:
    store, result = solved
    assert ooc_mdp.verify(store, result.solution) == ooc_mdp.verify(store, result)
    assert not ooc_mdp.verify(store, replace(result.solution, values=result.solution.values + 1.0)).holds
    other = ooc_mdp.generate("GW-8x4", tmp_path / "other", partitions=2)
    with pytest.raises(OptionsError, match=r"the solution has 256 values and .*other has 64 states; give the table"):
        ooc_mdp.verify(other, result.solution)


@pytest.mark.parametrize("cores", [1, 3, 7])
def test_partitions_are_measured_on_all_cores_and_found_to_be_the_same(
    solved: tuple[Store, Result], monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    store, result = solved
    values = result.solution.values.copy()
    values[::50] += np.linspace(0.1, 0.2, values[::50].size)
    wrong = replace(result, solution=replace(result.solution, values=values))
    alone, measured_by = verify(store, wrong), set[int]()
    all_at_once = threading.Barrier(min(cores, store.n_partitions))

    def read(store: Store, p: int) -> tuple[PartitionTable, int]:
        if threading.get_ident() not in measured_by:
            measured_by.add(threading.get_ident())
            all_at_once.wait(60)
        return read_checked(store, p)

    monkeypatch.setattr("ooc_mdp.runtime.quotas.cores", lambda: cores)
    monkeypatch.setattr("ooc_mdp.solver.verify.read_checked", read)
    assert verify(store, wrong) == alone
    assert len(measured_by) == min(cores, store.n_partitions)


def test_where_ram_is_short_fewer_partitions_are_measured_at_a_time(
    solved: tuple[Store, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    for available in (1 << 40, 0):
        monkeypatch.setattr("ooc_mdp.runtime.quotas.cores", lambda: 4)
        monkeypatch.setattr("ooc_mdp.solver.verify_memory.available_bytes", lambda available=available: available)
        assert verify(*solved, note=plans.append).holds
    many, one = (_bytes_named("partitions", plan) for plan in plans)
    assert many > 2 * one


def _bytes_named(name: str, plan: str) -> int:
    size, unit = re.search(rf"{name} ([0-9.]+) (\w+)", plan).groups()
    return parse_bytes(f"{size}{unit}")


@pytest.mark.parametrize("sense", ["max", "min", "x", None])
def test_a_result_of_another_sense_is_refused(solved: tuple[Store, Result], sense: str | None) -> None:
    store, result = solved
    other = replace(result, identity=result.identity | {"sense": sense})
    if sense == store.sense:
        assert verify(store, other).holds
        return
    with pytest.raises(OptionsError, match=f"was solved for the sense {sense!r}, and .* has '{store.sense}'"):
        verify(store, other, other_store=True)


@pytest.mark.parametrize("name", SMALLER)
def test_each_bound_that_is_exceeded_is_named(solved: tuple[Store, Result], name: str) -> None:
    store, result = solved
    claims = result.solution.certificate
    if abs(getattr(claims, name)) < 0.1 * verify(store, result).error_bound:
        pytest.skip("all values err to the other side")
    found = verify(store, claiming(result, **{name: SMALLER[name] * getattr(claims, name)}))
    assert not found.holds
    assert found.violated_claims == (name,)


def test_sums_of_rows_in_another_order_refute_nothing_where_discounts_are_next_to_1(tmp_path: Path) -> None:
    """Of 1 - g rho = 1e-10 a unit in the last place of a row's sum is a millionth."""
    rng = np.random.default_rng(2)

    def action() -> Action:
        k = int(rng.integers(2, 5))
        chosen, weights = rng.choice(8, k, replace=False), rng.random(k)
        successors = dict(zip(chosen.tolist(), (weights / weights.sum()).tolist(), strict=True))
        return Action(float(rng.uniform(-1, 1)), successors, 1e-6)

    for i in range(10):
        model = Model(tuple(State((action(), action())) for _ in range(8)), durations=True)
        store = make_store(Case(model), tmp_path / f"s{i}")
        ooc_mdp.solve(store, 0.9999, residual=10.0, priority="exact-h2", device="cpu", output=tmp_path / f"r{i}")
        assert verify(store, ooc_mdp.open_result(tmp_path / f"r{i}")).violated_claims == ()


def test_a_proof_of_an_infinite_error_is_none(solved: tuple[Store, Result]) -> None:
    store, result = solved
    found = verify(store, claiming(result, error_bound=np.inf))
    assert (found.holds, found.violated_claims) == (False, ("outcome",))
    assert verify(store, claiming(result, error_bound=np.nan)).violated_claims == ("error_bound", "outcome")


def test_a_residual_that_is_larger_than_was_reached_is_refuted(solved: tuple[Store, Result]) -> None:
    store, result = solved
    values = result.solution.values.copy()
    values[7] += 0.5
    found = verify(store, replace(result, solution=replace(result.solution, values=values)))
    assert "residual_bound" in found.violated_claims


@pytest.mark.parametrize("method", ["auto", "vi", "p-eva", "policy-iteration"])
@pytest.mark.parametrize("size", [1e305, 1e146, 1e-300])
def test_rewards_whose_sum_is_too_large_for_float64_are_refused_and_others_solved(
    tmp_path: Path, method: str, size: float
) -> None:
    states = (
        State((Action(size, {0: 0.5, 1: 0.5}), Action(0.1 * size, {1: 1.0}))),
        State((Action(0.1 * size, {0: 1.0}), Action(0.9 * size, {1: 1.0}))),
    )
    store = make_store(Case(Model(states), dtype="float64"), tmp_path / "s")
    if size > 1e150:
        with pytest.raises(OptionsError, match="too large for float64 once they are squared; give rewards in a larger"):
            ooc_mdp.solve(store, 0.99, device="cpu", method=method)
        return
    solution = ooc_mdp.solve(store, 0.99, device="cpu", method=method)
    exact = ooc_mdp.reference.policy_iteration(rows_of(store), 0.99)
    assert solution.outcome.proved
    assert np.abs(solution.values - exact.values).max() <= solution.error_bound < size


@pytest.mark.parametrize("size", [1.7e308, 1e140])
def test_initial_values_that_are_too_large_for_float64_are_refused_and_others_solved(
    tmp_path: Path, size: float
) -> None:
    states = tuple(State((Action(1.0, {i: 0.5, 1 - i: 0.5}),), 0.0, (-1) ** i * size) for i in range(2))
    store = make_store(Case(Model(states, initial_values=True)), tmp_path / "s")
    if size > 1e150:
        with pytest.raises(OptionsError, match=r"initial values up to 1\.7e\+308 .*start the solve from others"):
            ooc_mdp.solve(store, 0.9, device="cpu")
        return
    solution = ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-3, method="policy-iteration")
    exact = 1 / (1 - Fraction(0.9))
    assert max(abs(Fraction(value) - exact) for value in solution.values.tolist()) <= solution.error_bound


def test_a_store_whose_small_arrays_are_not_its_chunks_is_refused(tmp_path):
    """A sealed store that claims too small a range of rewards would make the certificate's rounding too small."""
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 40, "seed": 1}, partitions=4)
    ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-6, output=tmp_path / "r")
    ranges = read_small(store.path, "reward_range")
    ranges[2] *= 0.5
    write_small(store.path, "reward_range", ranges)
    seal(store.path)
    with pytest.raises(StoreError, match=r"s contradicts itself: reward_range of partition 2: says"):
        ooc_mdp.verify(store.path, tmp_path / "r", other_store=True)


def test_a_result_is_measured_on_another_table_only_if_that_is_asked_for(tmp_path):
    stores = [ooc_mdp.generate("random", tmp_path / f"s{i}", {"states": 40, "seed": i}, partitions=4) for i in (1, 2)]
    ooc_mdp.solve(stores[0], 0.9, device="cpu", epsilon=1e-6, output=tmp_path / "r")
    with pytest.raises(OptionsError, match="measure it on this one with --other-store"):
        ooc_mdp.verify(stores[1], tmp_path / "r")
    found = ooc_mdp.verify(stores[1], tmp_path / "r", other_store=True)
    assert not found.holds
    assert "error_bound" in found.violated_claims
    assert ooc_mdp.verify(stores[0], tmp_path / "r", other_store=True).holds
    smaller = ooc_mdp.generate("random", tmp_path / "s3", {"states": 30, "seed": 1}, partitions=4)
    with pytest.raises(OptionsError, match=r"has values of 40 states, .* has 30"):
        ooc_mdp.verify(smaller, tmp_path / "r", other_store=True)
