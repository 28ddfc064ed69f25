"""Passes that change no value until they are done: what they prove holds, and a shift ends them soon."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accounting import figures
from claims import assert_that_all_claims_hold, scale_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, make_store, optimum, rows_of, stored
from store_models import Action, Model, State

from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.reference import backup, policy_iteration
from ooc_mdp.solver.local import solve
from ooc_mdp.solver.plan import plan_solve
from ooc_mdp.store import Store

N = 300


def random_store(path: Path, dtype: str = "float64", durations: bool = False) -> Store:
    """Six actions of four successors anywhere."""
    rng = np.random.default_rng(3)

    def action() -> Action:
        successors = zip(rng.choice(N, 4, replace=False).tolist(), rng.dirichlet(np.ones(4)).tolist(), strict=True)
        return Action(float(rng.random()), dict(successors), float(rng.uniform(0.5, 2)) if durations else 1.0)

    states = tuple(State(tuple(action() for _ in range(6))) for _ in range(N))
    return make_store(Case(Model(states, durations=durations), "max", dtype, 8), path)


@pytest.fixture(scope="module")
def random_stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Store]:
    """Random stores by the type of their numbers and whether they have durations."""
    return cache(lambda dtype, durations: random_store(tmp_path_factory.mktemp("random") / "s", dtype, durations))


@pytest.fixture(scope="module")
def optima(random_stores: Callable[[str, bool], Store]) -> Callable[[str, bool, float], FloatArray]:
    """The optimal values of such a store at a discount, found once for all methods that are to prove them."""
    return cache(
        lambda dtype, durations, discount: policy_iteration(rows_of(random_stores(dtype, durations)), discount).values
    )


def solved(store: Store, discount: float, method: str, share: float, **options: Any) -> Solution:
    run, cache = RunOptions(time_limit=options.pop("time_limit", None)), CacheSize(share=share)
    return solve(store, SolveOptions(discount, method=method, cache=cache, device="cpu", **options), run)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "share"), [("vi", 1.0), ("vi", 0.25), ("p-eva", 0.25)])
@pytest.mark.parametrize(("dtype", "durations"), [("float64", False), ("float32", False), ("float64", True)])
@pytest.mark.parametrize("discount", [0.95, 0.9999])
def test_a_random_model_takes_few_passes_at_any_discount(
    random_stores: Callable[[str, bool], Store],
    optima: Callable[[str, bool, float], FloatArray],
    method: str,
    share: float,
    dtype: str,
    durations: bool,
    discount: float,
) -> None:
    store = random_stores(dtype, durations)
    epsilon = 1e-4 if durations else 1e-6
    solution = solved(store, discount, method, share, epsilon=epsilon)
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.backups <= (120 if durations else 60) * N  # in place some 20 / (1 - discount)
    best = optima(dtype, durations, discount)
    assert np.abs(solution.values - best).max() <= solution.error_bound <= epsilon


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    case=cases(shortest=0.3),
    discount=st.sampled_from([0.0, 0.5, 0.9, 0.9999]),
    share=st.sampled_from([1e-6, 1e-2]),
    target=st.sampled_from(["epsilon", "residual"]),
    method=st.sampled_from(["vi", "p-eva"]),
)
def test_claims_hold_of_any_model_that_passes_aside_are_tried_on(
    monkeypatch: pytest.MonkeyPatch, case: Case, discount: float, share: float, target: str, method: str
) -> None:
    with stored(case) as store, monkeypatch.context() as patch:
        patch.setattr(ModelFacts, "densely_coupled", True)
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        slow = discount > 0.99
        limits = {target: share * scale_of(rows, best), "time_limit": 0.3 if slow else None}
        solution = solved(store, discount, method, 0.5, **limits)
    assert_that_all_claims_hold(solution, store, rows, best, discount)
    ended = solution.outcome in (Outcome.PROVED, Outcome.RESIDUAL_REACHED)
    assert ended or (slow and solution.outcome in (Outcome.TIME_LIMIT, Outcome.PRECISION_LIMIT))


@settings(max_examples=40)
@given(case=cases(), discount=st.sampled_from([0.5, 0.99]))
def test_values_stay_until_a_pass_aside_is_taken(case: Case, discount: float) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        backend = CpuBackend("voted", 2)
        model = ModelFacts.of(store.facts, discount)
        backend.start(model, backend.layout(model, Needs()), None, None)
        residents = [backend.admit(backend.prepare(store.read(p)[0])) for p in range(store.n_partitions)]
        sign = 1.0 if case.sense == "max" else -1.0
        for _ in range(3):
            before = backend.values().copy()
            report = backend.sweep_synchronously(residents)
            alone = [figures(backend.sweep_synchronously([resident])) for resident in reversed(residents)][::-1]
            together = figures(report)
            assert together["residuals"] == np.hstack([a["residuals"] for a in alone]).tolist()
            assert together["largest_value"] == [a["largest_value"][0] for a in alone]
            np.testing.assert_array_equal(backend.values(), before)
            largest, smallest = backend.commit()
            own = np.split(backend.values(), store.facts.partition_ptr[1:-1])
            assert largest.tolist() == [values.max() for values in own]
            assert smallest.tolist() == [values.min() for values in own]
            expected = backup(rows, sign * store.to_source(before), discount, case.sense)
            taken = sign * store.to_source(backend.values().copy())
            np.testing.assert_allclose(taken, expected.values, rtol=1e-12, atol=1e-12 * np.abs(taken).max())
        backend.close()


def test_a_second_value_vector_is_planned_where_it_is_used(tmp_path: Path) -> None:
    store = random_store(tmp_path / "s")

    def taken(share: float, **options: Any) -> str:
        chosen = SolveOptions(0.9, cache=CacheSize(share=share), device="cpu", **options)
        with closing(CpuBackend()) as backend:
            facts = ModelFacts.of(store.facts, chosen.discount)
            return plan_solve(store, chosen, backend, facts, writes=False).choice.first

    by_passes = [taken(0.25, method="p-eva"), taken(0.25, method="vi"), taken(1.0, method="vi"), taken(1.0)]
    assert by_passes == ["synchronous vi"] * 4
    assert taken(1.0, method="p-eva") == "synchronous vi"
    assert taken(0.25) == "policy-iteration"
    assert taken(0.25, method="vi", sweeps_per_visit=4) == "vi"
    assert taken(0.25, priority="exact-h2") == "exact p-eva"
    solution = solved(store, 0.9, "vi", 0.25)
    assert solution.memory_plan["host"]["commit buffer"] == 8 * N
