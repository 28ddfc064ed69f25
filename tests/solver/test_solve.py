"""Whatever a solve claims holds of the exact optimum: by every method, from every cache, however it ends."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from claims import assert_that_all_claims_hold, plain_residual, scale_of, sign_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, distance, exact_q, make_store, optimum, rows_of, stored
from store_models import Action, Model, State, random_model

import ooc_mdp
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.solver.local import solve as solve_with
from ooc_mdp.solver.plan import staging_depth
from ooc_mdp.store import Store
from ooc_mdp.store.result import Result

METHODS = [
    {"method": "vi"},
    {"method": "vi", "sweeps_per_visit": 7},
    {"method": "p-eva", "priority": "joint"},
    {"method": "p-eva", "priority": "h1"},
    {"method": "p-eva", "priority": "h2"},
    {"method": "p-eva", "priority": "hybrid"},
    {"method": "p-eva", "priority": "exact-h1"},
    {"method": "p-eva", "priority": "exact-h2"},
    {"method": "p-eva", "priority": "exact-hybrid"},
    {"method": "policy-iteration"},
    {"method": "auto"},
]
REPEATABLE = [m for m in METHODS if m["method"] == "vi" or m.get("priority", "").startswith("exact-")]
few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def caches(store: Store) -> list[int]:
    """The whole table, its two largest partitions, its largest."""
    table, sizes = int(store.facts.partition_bytes.sum()), np.sort(store.facts.partition_bytes)
    return [table, int(sizes[-2:].sum()), int(sizes[-1])]


def solve(store: Store, discount: float, method: dict, **options: object) -> Solution:
    return ooc_mdp.solve(store, discount, device="cpu", **method, **options)  # type: ignore[arg-type]


MEASURED_BUT_NEVER_SWEPT = Case(
    Model(
        (
            State((Action(1.0, {0: 1.0}),)),
            State((Action(-1.0, {0: 1.0}), Action(0.0, {1: 1.0}))),
        )
    ),
    partitions=2,
)
"""Exact priorities see that the second state's values are right already; its second action is the one to take."""

LARGE_TERMINAL_START = Case(
    Model(
        (State((Action(8000 / 7, {1: 2 / 3, 0: 1 / 3}),), 0.0, -1000.0), State((), -1 / 3, 5e6)),
        initial_values=True,
    )
)
"""The residual of a terminal state is a difference of unlike numbers, rounded."""

PRODUCTS_THAT_UNDERFLOW = Case(Model((State((Action(0.0, {1: 0.5, 2: 0.5}),)), State((), 5e-324), State(()))))
"""Half of the smallest number above 0 is 0 in float64."""


@few
@given(
    case=cases(shortest=0.3),
    discount=st.sampled_from([0.0, 0.5, 0.9]),
    share=st.sampled_from([1e-9, 1e-6, 1e-2]),
    data=st.data(),
)
def test_each_method_proves_its_bound_from_any_cache(
    case: Case, discount: float, share: float, data: st.DataObject
) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        epsilon = share * scale_of(rows, best)
        for method in METHODS:
            cache = data.draw(st.sampled_from(caches(store)), label="cache")
            # The thesis's H2 finishes what has the largest values before anything else: where partitions form cycles,
            # visits grow exponentially with their number.
            exact = method.get("priority", "").startswith("exact-")
            solution = solve(store, discount, method, cache=cache, epsilon=epsilon, time_limit=0.5 if exact else None)
            assert_that_all_claims_hold(solution, store, rows, best, discount)
            assert solution.outcome is Outcome.PROVED or (exact and solution.outcome is Outcome.TIME_LIMIT)
            assert solution.certificate.target == epsilon


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", [MEASURED_BUT_NEVER_SWEPT, LARGE_TERMINAL_START, PRODUCTS_THAT_UNDERFLOW])
@pytest.mark.parametrize("discount", [0.0, 0.9])
@pytest.mark.parametrize("options", [{"epsilon": 1e-6}, {"epsilon": 1e-300}, {}])
def test_claims_hold_of_cases_that_once_broke_them(case: Case, method: dict, discount: float, options: dict) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        solution = solve(store, discount, method, **options)
        assert_that_all_claims_hold(solution, store, rows, optimum(rows, discount), discount)


@few
@given(
    case=cases(),
    method=st.sampled_from(METHODS),
    discount=st.sampled_from([0.5, 0.99, 0.9999]),
    seconds=st.sampled_from([1e-9, 0.02]),
)
def test_the_bound_holds_when_the_time_is_up(case: Case, method: dict, discount: float, seconds: float) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        solution = solve(store, discount, method, epsilon=1e-9 * scale_of(rows, best), time_limit=seconds)
        assert_that_all_claims_hold(solution, store, rows, best, discount)
        assert solution.outcome.proved or solution.outcome in (Outcome.TIME_LIMIT, Outcome.PRECISION_LIMIT)


@pytest.mark.parametrize("method", METHODS)
def test_hardly_any_time_is_an_outcome(tmp_path: Path, method: dict) -> None:
    store = make_store(Case(random_model(0, 40), partitions=8), tmp_path / "s")
    solution = solve(store, 0.99, method, time_limit=1e-9, epsilon=1e-9)
    assert solution.outcome is Outcome.TIME_LIMIT
    assert math.isfinite(solution.error_bound)
    later = make_store(Case(random_model(0, 40, initial_values=True), partitions=8), tmp_path / "t")
    assert solve(later, 0.99, method, time_limit=1e-9).outcome is Outcome.TIME_LIMIT


@few
@given(case=cases(shortest=0.3), discount=st.sampled_from([0.0, 0.5, 0.9]), method=st.sampled_from(METHODS))
def test_a_target_below_rounding_ends_and_says_so(case: Case, discount: float, method: dict) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        solution = solve(store, discount, method, epsilon=1e-40)
        assert_that_all_claims_hold(solution, store, rows, best, discount)
        if any(best):
            assert solution.outcome is Outcome.PRECISION_LIMIT


@pytest.mark.parametrize("method", METHODS)
def test_what_is_exact_errs_by_0(tmp_path: Path, method: dict) -> None:
    states = (State((Action(0.0, {0: 1.0}), Action(-1e-7, {0: 1.0}))),)
    solution = solve(make_store(Case(Model(states)), tmp_path / "s"), 0.9, method, epsilon=1e-40)
    assert (solution.outcome, str(solution.error_bound)) == (Outcome.PROVED, "0.0")


@few
@given(
    case=cases(max_states=8, shortest=0.3),
    discount=st.sampled_from([0.0, 0.5, 0.9]),
    share=st.sampled_from([1e-8, 1e-3]),
    data=st.data(),
)
def test_the_papers_rule_stops_at_a_true_plain_residual(
    case: Case, discount: float, share: float, data: st.DataObject
) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        residual = share * scale_of(rows, best)
        for method in METHODS:
            cache = data.draw(st.sampled_from(caches(store)), label="cache")
            solution = solve(store, discount, method, residual=residual, cache=cache)
            assert_that_all_claims_hold(solution, store, rows, best, discount)
            assert solution.outcome is Outcome.RESIDUAL_REACHED
            assert plain_residual(rows, solution.values, discount, sign_of(store)) <= residual


@few
@given(case=cases(shortest=0.3), discount=st.sampled_from([0.0, 0.5, 0.9]), method=st.sampled_from(METHODS))
@example(case=Case(Model((State((Action(0.0, {0: 1.0}), Action(3.0, {0: 1.0}))),)), "min"), discount=0.5, method={})
def test_the_default_target_is_a_share_of_the_range(case: Case, discount: float, method: dict) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        solution = solve(store, discount, method)
        assert_that_all_claims_hold(solution, store, rows, best, discount)
        span, size = float(np.ptp(solution.values)), float(np.abs(solution.values).max())
        if solution.outcome is Outcome.PRECISION_LIMIT:
            assert solution.certificate.rounding_bound > 0.4e-4 * span
        elif span > 2 * solution.error_bound:
            assert solution.certificate.target == pytest.approx(1e-4 * span)
        else:
            assert solution.certificate.target <= max(1e-4 * size, 4 * solution.certificate.rounding_bound)


def damaged(solution: Solution, **arrays: np.ndarray) -> Solution:
    return replace(solution, **arrays)


@few
@given(case=cases(shortest=0.3), discount=st.sampled_from([0.0, 0.5, 0.9]), data=st.data())
def test_verify_agrees_with_every_certificate_and_catches_a_change(
    case: Case, discount: float, data: st.DataObject
) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        scale = scale_of(rows, best)
        options = data.draw(st.sampled_from([{"epsilon": 1e-9 * scale}, {"residual": 1e-4 * scale}, {}]))
        solution = solve(store, discount, data.draw(st.sampled_from(METHODS)), **options)
        identity = {"fingerprint": store.fingerprint, "sense": store.sense}
        found = ooc_mdp.verify(store, Result(Path("result"), identity, solution))
        assert found.holds
        assert found.invalid_policy_states == 0
        assert found.bytes_read == store.chunk_bytes.sum()
        assert max(map(abs, distance(solution.values, best))) <= found.error_bound
        s = data.draw(st.integers(0, store.n_states - 1), label="state")
        values = solution.values.copy()
        values[s] += data.draw(st.sampled_from([-1, 1])) * (3 * solution.error_bound + 1e-6 * scale)
        changed = damaged(solution, values=values)
        assert not ooc_mdp.verify(store, Result(Path("result"), identity, changed)).holds
        counts = np.diff(rows.action_ptr)
        for wrong in {-2, -1, int(counts[s])} - ({-1} if counts[s] == 0 else set()):
            policy = solution.policy.copy()
            policy[s] = wrong
            found = ooc_mdp.verify(store, Result(Path("result"), identity, damaged(solution, policy=policy)))
            assert (found.holds, found.invalid_policy_states) == (False, 1)
        for action in range(counts[s]):
            j = int(rows.action_ptr[s]) + action
            loss = sign_of(store) * (best[s] - exact_q(rows, best, j, discount))
            if loss > 3 * solution.error_bound + 1e-6 * scale:
                policy = solution.policy.copy()
                policy[s] = action
                found = ooc_mdp.verify(store, Result(Path("result"), identity, damaged(solution, policy=policy)))
                assert not found.holds


@pytest.mark.parametrize("action", [-2, 3, 2**31 - 1])
def test_verify_reads_no_row_that_a_state_does_not_have(tmp_path: Path, action: int) -> None:
    store = make_store(Case(random_model(0, 20, terminal=0, durations=True), partitions=3), tmp_path / "s")
    solution = ooc_mdp.solve(store, 0.9, device="cpu")
    policy = solution.policy.copy()
    policy[-1] = action
    result = Result(
        Path("result"), {"fingerprint": store.fingerprint, "sense": store.sense}, damaged(solution, policy=policy)
    )
    found = ooc_mdp.verify(store, result)
    assert (found.holds, found.invalid_policy_states) == (False, 1)


def test_verify_refuses_what_is_no_number_and_another_table(tmp_path: Path) -> None:
    store = make_store(Case(random_model(0, 20), partitions=3), tmp_path / "s")
    solution = ooc_mdp.solve(store, 0.9, device="cpu")
    values = solution.values.copy()
    values[7] = np.nan
    identity = {"fingerprint": store.fingerprint, "sense": store.sense}
    with pytest.raises(StoreError, match="no finite value for state 7"):
        ooc_mdp.verify(store, Result(Path("result"), identity, damaged(solution, values=values)))
    with pytest.raises(OptionsError, match="another table"):
        ooc_mdp.verify(store, Result(Path("result"), {"fingerprint": "x"}, solution))


@pytest.mark.parametrize("sense", ["max", "min"])
@pytest.mark.parametrize("method", METHODS)
def test_a_model_of_one_value_is_solved_at_its_default_target(tmp_path: Path, method: dict, sense: str) -> None:
    rng = np.random.default_rng(0)
    states = tuple(State((Action(1.0, {int(rng.integers(12)): 0.5, 12: 0.5}),)) for _ in range(13))
    store = make_store(Case(Model(states), sense, partitions=4), tmp_path / "s")
    solution = solve(store, 0.9, method)
    assert solution.outcome is Outcome.PROVED
    assert np.abs(solution.values - 10.0).max() <= solution.error_bound <= 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_rewards_is_proved_once_each_partition_was_read(tmp_path: Path, method: dict) -> None:
    states = tuple(State((Action(0.0, {(i + 1) % 9: 1.0}),)) for i in range(9))
    store = make_store(Case(Model(states), partitions=3), tmp_path / "s")
    solution = solve(store, 0.999, method)
    assert (solution.outcome, solution.error_bound) == (Outcome.PROVED, 0.0)
    assert solution.statistics.loads == 3
    assert solution.statistics.partitions_unread == 0
    assert not solution.values.any()


def test_states_that_were_never_read_have_the_first_action(tmp_path: Path) -> None:
    store = ooc_mdp.generate("mountain-car", tmp_path / "car", parameters={"grid": "23,19"}, partition_grid=[4, 3])
    solution = ooc_mdp.solve(store, discount=0.9, epsilon=1e-6, cache="30%", method="p-eva", time_limit=1e-9)
    assert solution.statistics.partitions_unread == store.n_partitions
    assert not solution.policy.any()


@pytest.mark.parametrize("method", METHODS)
def test_values_that_fade_to_nothing_end(tmp_path: Path, method: dict) -> None:
    states = tuple(State((Action(0.0, {(i + 1) % 5: 1.0}),), 0.0, float(i)) for i in range(5))
    store = make_store(Case(Model(states, initial_values=True), partitions=2), tmp_path / "s")
    solution = solve(store, 0.9, method)
    assert solution.outcome is Outcome.PROVED
    assert solution.error_bound <= 1e-4


def fine_grid(n: int, step: float) -> Model:
    """A car on a line, left or right by one cell a step, in time proportional to the cell: goals at both ends."""

    def state(i: int) -> State:
        if i in (0, n - 1):
            return State((), 1.0 if i else 0.5)
        moves = tuple(Action(0.0, {i + d: 0.75, i: 0.125, i - d: 0.125}, duration=step) for d in (-1, 1))
        return State((*moves, Action(1e-5, {i: 1.0}, duration=step)))

    return Model(tuple(state(i) for i in range(n)), durations=True)


def test_methods_agree_on_a_fine_grid_of_short_durations(tmp_path: Path) -> None:
    store = make_store(Case(fine_grid(64, 1e-3), partitions=8), tmp_path / "s")
    rows = rows_of(store)
    solutions = [solve(store, 0.9, m, epsilon=1e-5, cache="50%") for m in METHODS if m["method"] == "p-eva"]
    for solution in solutions:
        assert solution.outcome is Outcome.PROVED
        expected = ooc_mdp.reference.policy_iteration(rows, 0.9).values
        assert np.abs(solution.values - expected).max() <= solution.error_bound <= 1e-5
    for solution in solutions[:2]:  # by bounds
        assert solution.statistics.loads_per_partition <= 200
    for a, b in itertools.pairwise(solutions):
        assert np.abs(a.values - b.values).max() <= a.error_bound + b.error_bound


def corridor(n: int, step: float) -> Model:
    """A walk that pays a little a step and ends with 1 where it leaves to the right, with -1 to the left."""

    def move(i: int, by: int) -> Action:
        low, high = max(i - 1, 0), min(i + 1, n - 1)
        if not 0 <= i + by < n:
            return Action(float(by), {low: 0.5, high: 0.5}, duration=math.inf)
        return Action(-1e-3, {i: 0.0, i + by: 1.0}, duration=step)

    return Model(tuple(State((move(i, -1), move(i, 1))) for i in range(n)), durations=True)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_rows_that_end_the_process_pay_once_and_no_more(tmp_path: Path, method: dict) -> None:
    n, g = 48, 0.9**0.25
    store = make_store(Case(corridor(n, 0.25), dtype="float32", partitions=8), tmp_path / "s")
    assert store.facts.attributes["successors_per_action"] == 2
    solution = solve(store, 0.9, method, epsilon=1e-9, cache="50%", output=tmp_path / "r")
    assert solution.outcome is Outcome.PROVED
    cost, steps = float(np.float32(1e-3)), np.arange(n)[::-1]
    expected = g**steps - cost * (1 - g**steps) / (1 - g)
    assert np.abs(solution.values - expected).max() <= solution.error_bound + 1e-14
    assert solution.policy.tolist() == [1] * n
    assert ooc_mdp.verify(store, tmp_path / "r").holds


@pytest.mark.parametrize("held", [1, 2, 3, 5, 10])
def test_passes_in_turn_save_what_the_cache_holds(tmp_path: Path, held: int) -> None:
    store = make_store(Case(random_model(1, 60, terminal=0, uniform=True), partitions=10), tmp_path / "s")
    solution = solve(store, 0.9, {"method": "vi"}, epsilon=1e-6, cache=held * int(store.facts.partition_bytes.max()))
    s = solution.statistics
    passes = s.accesses // 10
    assert s.loads == s.misses == 10 + (passes - 1) * (10 - held)


@settings(max_examples=10, deadline=None)
@given(case=cases(shortest=0.3), method=st.sampled_from(REPEATABLE))
def test_a_solve_that_does_not_read_ahead_by_priority_repeats_itself(case: Case, method: dict) -> None:
    with stored(case) as store:
        options = SolveOptions(0.8, **method, cache=CacheSize(size=caches(store)[1]), device="cpu")
        first, second = solve_with(store, options), solve_with(store, options)
        np.testing.assert_array_equal(first.values, second.values)
        np.testing.assert_array_equal(first.policy, second.policy)


def test_a_solve_by_priority_says_where_partitions_are_strongly_coupled(tmp_path) -> None:
    """In a random MDP of 30 partitions each reads nearly all others; in a gridworld its neighbours."""
    options = SolveOptions(0.5, device="cpu", method="p-eva")
    random = ooc_mdp.generate("random", tmp_path / "r", {"states": 900, "seed": 1}, partitions=30)
    grid = ooc_mdp.generate("GW-30x4", tmp_path / "g", {"seed": 1}, partitions=30)
    said: list[str] = []

    def note(text: str) -> None:
        if not text.startswith("memory plan"):
            said.append(text)

    solve_with(grid, options, note=note)
    solve_with(random, SolveOptions(0.5, device="cpu", method="vi"), note=note)
    solve_with(random, options, note=note)  # swept at once
    assert said == []
    solve_with(random, SolveOptions(0.5, device="cpu", priority="exact-h2"), note=note)
    (line,) = said
    assert "of the 29 others" in line
    assert "--method policy-iteration" in line


class AnnouncedStore(Store):
    """Notes which partitions the system is asked to read ahead."""

    def prefetch(self, p: int) -> None:
        self.__dict__.setdefault("asked", []).append(p)
        super().prefetch(p)


def test_value_iteration_has_what_comes_after_the_next_partitions_read_ahead_once(tmp_path: Path) -> None:
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": "400", "seed": "1"}, partitions=60)
    watched = AnnouncedStore(**{f.name: getattr(store, f.name) for f in fields(Store)})
    solution = ooc_mdp.solve(watched, discount=0.5, residual=1e-3, method="vi", cache="10%", device="cpu")
    assert solution.outcome is Outcome.RESIDUAL_REACHED
    asked = watched.__dict__["asked"]
    assert len(set(asked)) == len(asked)
    assert set(range(staging_depth(CpuBackend.features) + 1, 60)) <= set(asked)
