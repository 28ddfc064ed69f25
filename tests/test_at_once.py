"""Sweeps of a whole model at once, and shifts of all its values: what is proved holds, and is soon reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from claims import assert_that_all_claims_hold, scale_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, make_store, optimum, rows_of, stored
from store_models import Action, Model, State

from ooc_mdp.kernels import cpu_tables
from ooc_mdp.kernels.base import Resident
from ooc_mdp.kernels.cpu import CpuBackend
from ooc_mdp.mdp import FloatArray, Rows
from ooc_mdp.methods import at_once, plan
from ooc_mdp.methods.plan import at_once_bytes, model_of
from ooc_mdp.methods.solver import solve
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.reference import policy_iteration, q_values
from ooc_mdp.solution import Outcome, Solution
from ooc_mdp.store import Store
from ooc_mdp.table_source import TableSource

few = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is tried at once from the beginning, however small and whatever its shape."""
    monkeypatch.setattr(plan, "_MOST_OF_THE_TABLE", np.inf)
    monkeypatch.setattr(at_once, "_FIRST_PAUSE", 0)


def random_case(n: int, partitions: int, dtype: str = "float64", seed: int = 1, **other: object) -> Case:
    """Six actions of four successors anywhere: values are forgotten within a few steps."""
    rng = np.random.default_rng(seed)

    def action() -> Action:
        chosen, weights = rng.choice(n, 4, replace=False), rng.dirichlet(np.ones(4))
        successors = {int(s): float(w) for s, w in zip(chosen, weights, strict=True)}
        return Action(float(rng.random()), successors, float(rng.uniform(0.5, 2)) if other.get("durations") else 1.0)

    states = tuple(State(tuple(action() for _ in range(6))) for _ in range(n))
    return Case(Model(states, durations=bool(other.get("durations"))), "max", dtype, partitions)


def solved(store: TableSource, discount: float, **options: object) -> Solution:
    chosen = {"epsilon": 1e-6, "cache": CacheSize(share=1.0), "device": "cpu"} | options
    return solve(store, SolveOptions(discount, **chosen))  # type: ignore[arg-type]


@pytest.mark.parametrize("discount", [0.95, 0.99, 0.9999])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_model_that_forgets_soon_takes_as_few_sweeps_at_any_discount(
    tmp_path: Path, discount: float, dtype: str
) -> None:
    store = make_store(random_case(600, 8, dtype), tmp_path / "s")
    solution = solved(store, discount)
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.backups <= 150 * store.n_states  # in place, 1 / (1 - discount) of them and more
    best = policy_iteration(rows_of(store), discount).values
    assert np.abs(solution.values - best).max() <= solution.error_bound


def test_durations_hinder_nothing(tmp_path: Path) -> None:
    store = make_store(random_case(600, 8, durations=True), tmp_path / "s")
    solution = solved(store, 0.999)
    assert solution.statistics.backups <= 150 * store.n_states
    best = policy_iteration(rows_of(store), 0.999).values
    assert np.abs(solution.values - best).max() <= solution.error_bound


@few
@given(
    case=cases(shortest=0.3),
    discount=st.sampled_from([0.0, 0.5, 0.9, 0.9999]),
    share=st.sampled_from([1e-6, 1e-2]),
    target=st.sampled_from(["epsilon", "residual"]),
)
def test_claims_hold_of_any_model_that_is_tried_at_once(
    always: None, case: Case, discount: float, share: float, target: str
) -> None:
    """With states without action, rows that end the process, lossy rows, durations, given values."""
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        size = share * scale_of(rows, best)
        limits = {"epsilon": None, target: size, "time_limit": 0.3 if discount > 0.99 else None}
        solution = solved(store, discount, **limits)
    assert_that_all_claims_hold(solution, store, rows, best, discount)
    assert solution.outcome in (Outcome.PROVED, Outcome.RESIDUAL) or (
        discount > 0.99 and solution.outcome in (Outcome.TIME_LIMIT, Outcome.PRECISION)
    )


@few
@given(case=cases(shortest=0.3), discount=st.sampled_from([0.5, 0.9, 0.9999]))
def test_a_state_without_action_keeps_its_terminal_reward(always: None, case: Case, discount: float) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        size = scale_of(rows, optimum(rows, discount, case.sense))
        solution = solved(store, discount, epsilon=1e-3 * size, time_limit=0.3)
    ends = np.diff(rows.action_ptr) == 0
    terminal = np.zeros(rows.n_states) if rows.terminal_rewards is None else rows.terminal_rewards
    off = np.abs(solution.values - terminal)[ends]
    assert (off <= solution.error_bound).all()
    if rows.initial_values is None:
        untouched = solution.statistics.sweeps == 0 or solution.statistics.partitions_never_read > 0
        assert (off == 0).all() or untouched


def test_two_states_that_follow_each_other_are_solved_by_one_shift(tmp_path: Path, always: None) -> None:
    """V(0) = 1 + g V(1), V(1) = 1 + g V(0): V = 1 / (1 - g)."""
    states = tuple(State((Action(1.0, {1 - s: 1.0}),)) for s in range(2))
    solution = solved(make_store(Case(Model(states), partitions=2), tmp_path / "s"), 0.9999)
    assert solution.values == pytest.approx(np.full(2, 1e4), abs=1e-6)
    assert solution.statistics.sweeps == 0


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("sweeps", [0, 1, 2, 3])
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(case=cases(), discount=st.sampled_from([0.5, 0.99]))
def test_a_sweep_at_once_takes_every_state_from_the_values_before(
    monkeypatch: pytest.MonkeyPatch, wide: bool, sweeps: int, case: Case, discount: float
) -> None:
    """Of two rounds, the second after the policy has changed, on threads that share out the states."""
    with stored(case) as store, monkeypatch.context() as patch:
        if wide:
            patch.setattr(cpu_tables, "MOST_GATHERED", 0)
        rows = rows_of(store)
        backend, residents = started(store, discount, wide)
        backend.visit_all(residents, 0, 0.0).reports()
        for _ in range(2):
            values, policy = backend.values().copy(), store.to_original(backend.policy().copy())
            reports = backend.visit_all(residents, sweeps, 0.0).reports()
            expected = swept(store, rows, values, policy, discount, reports[0].sweeps)
            np.testing.assert_allclose(backend.values(), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())
            assert reports[0].sweeps <= sweeps
            for resident, report in zip(residents, reports, strict=True):
                assert report.measured == backend.measure(resident, 0.0)[0]
        backend.close()


def started(store: Store, discount: float, wide: bool) -> tuple[CpuBackend, list[Resident]]:
    backend = CpuBackend("voted", 2)
    backend.start(model_of(store, SolveOptions(discount)), None, None)
    tables = [store.read(p)[0] for p in range(store.n_partitions)]
    if wide:
        tables = [replace(t, successors=t.successors.astype(np.uint32)) for t in tables]
    return backend, [backend.admit(backend.prepare(t)) for t in tables]


def swept(store: Store, rows: Rows, values: FloatArray, policy: np.ndarray, discount: float, sweeps: int) -> FloatArray:
    """Values in the store's order after sweeps over a policy, by NumPy."""
    sign = 1.0 if store.sense == "max" else -1.0
    own = sign * store.to_original(values)
    terminal = np.zeros(rows.n_states) if rows.terminal_rewards is None else rows.terminal_rewards
    for _ in range(sweeps):
        q = np.append(q_values(rows, own, discount) if rows.n_rows else np.empty(0), 0.0)
        own = np.where(policy >= 0, q[np.minimum(rows.action_ptr[:-1] + np.maximum(policy, 0), rows.n_rows)], terminal)
    after = np.empty_like(values)
    for p in range(store.n_partitions):
        after[store.partition_ptr[p] : store.partition_ptr[p + 1]] = sign * own[store.original_states(p)]
    return after


def test_a_model_that_does_not_forget_is_left_to_visits_of_some_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring: values flow one state a sweep."""
    n = 400
    states = tuple(
        State(tuple(Action(float(s == 0), {(s + step) % n: 0.9, s: 0.1}) for step in (1, n - 1))) for s in range(n)
    )
    rounds: list[int] = []
    whole: Callable[..., object] = at_once.AtOnce.round

    def counted(self: at_once.AtOnce) -> None:
        rounds.append(1)
        whole(self)

    monkeypatch.setattr(plan, "_MOST_OF_THE_TABLE", np.inf)
    monkeypatch.setattr(at_once.AtOnce, "round", counted)
    store = make_store(Case(Model(states), partitions=5), tmp_path / "s")
    solution = solved(store, 0.99)
    assert solution.outcome is Outcome.PROVED
    assert len(rounds) <= 12
    best = policy_iteration(rows_of(store), 0.99).values
    assert np.abs(solution.values - best).max() <= solution.error_bound


def test_sweeps_at_once_are_planned_where_the_cache_holds_all(tmp_path: Path) -> None:
    store = make_store(random_case(400, 4), tmp_path / "s")
    backend = CpuBackend()

    def planned(**options: object) -> int:
        chosen = SolveOptions(0.9, **options)  # type: ignore[arg-type]
        model = model_of(store, chosen)
        return at_once_bytes(store, chosen, backend, model, plan.cache_budget(store, chosen, backend, model))

    assert planned(cache=CacheSize(share=1.0)) == 400 * (4 + 4 * 12 + 16)
    assert planned(cache=CacheSize(share=0.9)) == 0
    assert planned(cache=CacheSize(share=1.0), method="vi") == 0
    assert planned(cache=CacheSize(share=1.0), exact_priorities=True, priority="h2") == 0
    solution = solved(store, 0.9)
    assert solution.memory_plan["host"]["rows of the policy"] == planned(cache=CacheSize(share=1.0))
