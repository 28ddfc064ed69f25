"""Policy iteration and auto: claims hold of exact policy iteration, solves stop, and say what they decide."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claims import assert_that_all_claims_hold, scale_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, make_store, optimum, rows_of, stored
from store_models import Action, Model, State, random_model
from tiled_engine import TILE_STATES, emulated

import ooc_mdp
from ooc_mdp.backends.base import PolicyEvaluation
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.evaluation import CpuEvaluation
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table import Table
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.reference import policy_iteration as exact_policy_iteration
from ooc_mdp.report.cache_trace import read_trace
from ooc_mdp.solver import local
from ooc_mdp.solver.driver import Steps
from ooc_mdp.solver.local import solve
from ooc_mdp.solver.methods import handover as auto
from ooc_mdp.solver.methods import policy_iteration, value_iteration
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.state import Access, SolveState
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.store.result import Result

some = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
METHODS = st.sampled_from(["policy-iteration", "auto"])
DISCOUNTS = st.sampled_from([0.0, 0.3, 0.9, 0.99, 0.9999])
LONG = 600.0
"""Seconds within which everything here must end by itself."""


def solved(store: Table, discount: float, method: str, share: float = 1.0, **options: Any) -> Solution:
    chosen = {"cache": CacheSize(share=share), "device": "cpu", "method": method} | options
    run = RunOptions(time_limit=chosen.pop("time_limit", LONG))  # type: ignore[arg-type]
    return solve(store, SolveOptions(discount, **chosen), run)  # type: ignore[arg-type]


def caches(store: Store) -> list[CacheSize]:
    """Room for the largest partition, for the two largest, for half of the table, for all of it."""
    sizes = np.sort(store.facts.partition_bytes)
    return [
        CacheSize(size=int(size)) for size in (sizes[-1], sizes[-2:].sum(), sizes[-1] + sizes.sum() // 2, sizes.sum())
    ]


def coupled(n: int = 240, partitions: int = 12, seed: int = 1, **model: Any) -> Case:
    """Rows lead anywhere: each partition reads all others."""
    return Case(random_model(seed, n, max_actions=5, **model), partitions=partitions)


# ------------------------------------------------------------------------------------------------ what is claimed


@some
@given(
    case=cases(max_states=10),
    discount=DISCOUNTS,
    method=METHODS,
    share=st.sampled_from([1e-8, 1e-5, 1e-2]),
    target=st.sampled_from(["epsilon", "residual", None]),
    data=st.data(),
)
def test_values_are_within_the_certified_bound_of_exact_policy_iteration(
    case: Case, discount: float, method: str, share: float, target: str | None, data: st.DataObject
) -> None:
    """Ties, equal actions, states that end, that nothing leads to; from a cache of one partition up to all."""
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        limits = {} if target is None else {target: share * scale_of(rows, best)}
        cache = data.draw(st.sampled_from(caches(store)), label="cache")
        solution = solved(store, discount, method, cache=cache, **limits)
        found = ooc_mdp.verify(
            store, Result(Path("result"), {"fingerprint": store.fingerprint, "sense": store.sense}, solution)
        )
    assert_that_all_claims_hold(solution, store, rows, best, discount)
    assert found.holds
    assert found.invalid_policy_states == 0
    wanted = Outcome.RESIDUAL_REACHED if target == "residual" else Outcome.PROVED
    # The default target is a share of the values' range, which may be nothing beside the rewards.
    narrow = target is None and 1e-4 * float(max(best) - min(best)) < 1e-14 * scale_of(rows, best) / (1 - discount)
    lost_to_rounding = (discount > 0.9 and share < 1e-5) or narrow
    assert solution.outcome is wanted or (lost_to_rounding and solution.outcome is Outcome.PRECISION_LIMIT)


@some
@given(
    seed=st.integers(0, 2**16),
    partitions=st.integers(1, 8),
    discount=st.sampled_from([0.5, 0.99, 0.9999]),
    share=st.sampled_from([0.3, 1.0]),
    shape=st.sampled_from([{}, {"uniform": True}, {"durations": True}, {"initial_values": True}, {"terminal": 0.9}]),
    sense=st.sampled_from(["max", "min"]),
)
def test_larger_models_are_proved_and_hardly_read(
    seed: int, partitions: int, discount: float, share: float, shape: dict[str, Any], sense: str
) -> None:
    """Howard's policy iteration takes a few rounds, whatever the discount: so many times a partition is read."""
    case = Case(random_model(seed, 60, max_actions=4, **shape), sense, "float64", partitions)
    with stored(case) as store:
        rows = rows_of(store)
        best = exact_policy_iteration(rows, discount, sense).values
        epsilon = 1e-6 * float(np.abs(best).max())
        solution = solved(store, discount, "policy-iteration", share, epsilon=epsilon)
    assert solution.outcome is Outcome.PROVED
    assert solution.error_bound <= epsilon
    assert np.abs(solution.values - best).max() <= solution.error_bound + 1e-11 * np.abs(best).max()
    assert solution.statistics.loads <= 20 * partitions


def test_equal_actions_and_ties_of_a_whole_model_end(tmp_path: Path) -> None:
    """All actions of all states are worth the same: another is as good to the last bit or nearly."""
    n = 30
    rng = np.random.default_rng(2)

    def action() -> Action:
        return Action(1.0, dict(zip(rng.choice(n, 3, replace=False).tolist(), [0.3, 0.3, 0.4], strict=True)))

    store = make_store(
        Case(Model(tuple(State((action(), action(), action())) for _ in range(n))), partitions=5), tmp_path / "s"
    )
    for discount in (0.9, 0.9999):
        solution = solved(store, discount, "policy-iteration", epsilon=1e-7 / (1 - discount))
        assert solution.outcome is Outcome.PROVED
        assert np.abs(solution.values * (1 - discount) - 1).max() <= 1e-7
        assert solution.statistics.loads <= 3 * store.n_partitions


def test_states_with_one_action_or_none_are_solved(tmp_path: Path) -> None:
    """No gap is finite where there is no other action; partitions of terminal states alone have no rows at all."""
    model = random_model(4, 80, max_actions=1)
    alone = Model((*model.states, *(State((), float(i)) for i in range(20))))
    store = make_store(Case(alone, partitions=10), tmp_path / "s")
    solution = solved(store, 0.999, "policy-iteration", 0.3, epsilon=1e-6)
    best = exact_policy_iteration(rows_of(store), 0.999).values
    assert solution.outcome is Outcome.PROVED
    assert np.abs(solution.values - best).max() <= solution.error_bound <= 1e-6
    assert solution.statistics.loads <= 8 * store.n_partitions


# ----------------------------------------------------------------------------------------- how little is read


def test_partitions_whose_gaps_are_wide_are_not_read_again(tmp_path: Path) -> None:
    """Each state's other action is worse by far: once residuals are small, the proof takes evaluations alone."""
    n, rng = 120, np.random.default_rng(5)

    def state() -> State:
        first, second = (dict.fromkeys(rng.choice(n, 4, replace=False).tolist(), 0.25) for _ in range(2))
        return State((Action(float(rng.random()), first), Action(-500.0, second)))

    store = make_store(Case(Model(tuple(state() for _ in range(n))), partitions=6), tmp_path / "s")
    best = exact_policy_iteration(rows_of(store), 0.99).values
    solution = solved(store, 0.99, "policy-iteration", 0.4, epsilon=1e-6)
    assert solution.outcome is Outcome.PROVED
    assert np.abs(solution.values - best).max() <= solution.error_bound
    assert solution.statistics.loads <= 4 * store.n_partitions
    assert solution.statistics.policy_evaluations > 0


def test_improvements_take_all_partitions_that_there_is_room_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads take the cores of improvements, so that beginning with the first that has arrived gains nothing."""
    store, together = make_store(coupled(), tmp_path / "s"), list[int]()
    record = SolveState.record_improvement

    def counted(self: SolveState, access: Access, *found: Any) -> None:
        together.append(access.partitions.size)
        record(self, access, *found)

    monkeypatch.setattr(SolveState, "record_improvement", counted)
    solved(store, 0.9, "policy-iteration")
    assert together[0] == store.n_partitions
    together.clear()
    room = int(store.facts.partition_bytes.max())
    assert solved(store, 0.9, "policy-iteration", cache=CacheSize(size=room)).outcome is Outcome.PROVED
    assert together[0] == 1


def test_coupled_models_are_read_less_than_by_the_other_methods(tmp_path: Path) -> None:
    store = make_store(coupled(), tmp_path / "s")
    loads = {
        method: solved(store, 0.9, method, 0.25, epsilon=1e-3).statistics.loads
        for method in ("policy-iteration", "p-eva", "vi")
    }
    assert loads["policy-iteration"] < min(loads["p-eva"], loads["vi"])
    assert loads["policy-iteration"] <= 15 * store.n_partitions


# -------------------------------------------------------------------------------------------- it always stops


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Loads of each partition with which policy iteration gave up."""
    loads: list[float] = []

    def counted(s: SolveState) -> Steps:
        loads.append(s.cache.statistics.loads / s.table.n_partitions)
        return (yield from value_iteration.value_iteration(s))

    monkeypatch.setattr(policy_iteration, "value_iteration", counted)
    return loads


def chains(partitions: int = 4, longest: int = 34) -> Model:
    """In each partition chains to a reward of 1: on towards it, or end with little.

    Each improvement sends one more state of a chain on, and its value rises by nearly 1. Fewer and fewer chains are
    long enough for another.
    """
    states: list[State] = []
    for _ in range(partitions):
        ends = len(states)
        states.append(State((), 0.0))
        for length in [k for k in range(1, longest) for _ in range(max(1, round(8 * 0.87**k)))]:
            for to_go in range(length):
                on = Action(0.0, {len(states) - 1: 1.0}) if to_go else Action(1.0, {ends: 1.0})
                states.append(State((Action(0.01, {ends: 1.0}), on)))
    return Model(tuple(states))


@pytest.mark.slow
def test_policy_iteration_goes_on_while_fewer_actions_change_though_bounds_do_not_fall(
    tmp_path: Path, taken_over: list[float]
) -> None:
    """More than 20 times as many are improved as there are, and the largest bound falls by less than a tenth."""
    store = make_store(Case(chains(), partitions=4), tmp_path / "s")
    best = exact_policy_iteration(rows_of(store), 0.999).values
    solution = solved(store, 0.999, "policy-iteration", 0.3, epsilon=1e-2)
    assert solution.outcome is Outcome.PROVED
    assert np.abs(solution.values - best).max() <= solution.error_bound <= 1e-2
    assert solution.statistics.sweeps > 20 * store.n_partitions
    assert not taken_over


@pytest.mark.parametrize(("share", "work"), [(0.3, 1e9), (1.0, 1000)])
def test_value_iteration_takes_over_where_nothing_gets_better(
    share: float, work: float, tmp_path: Path, taken_over: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations that take back what improvements gain: loads end that, or work where all is cached."""

    def idle(evaluation: CpuEvaluation, seconds: float) -> bool:
        evaluation._values[:] = 0.0
        evaluation._backups += 64 * evaluation._states
        return True

    store = make_store(coupled(), tmp_path / "s")
    best = exact_policy_iteration(rows_of(store), 0.9).values
    monkeypatch.setattr(policy_iteration, "_MAX_STALLED_BACKUPS", work)
    monkeypatch.setattr(CpuEvaluation, "advance", idle)
    solution = solved(store, 0.9, "policy-iteration", share, epsilon=1e-6)
    (loads,) = taken_over
    assert 20 < loads < 28 if share < 1 else loads == 1
    assert solution.outcome is Outcome.PROVED
    assert np.abs(solution.values - best).max() <= solution.error_bound <= 1e-6


def test_progress_is_fewer_changes_than_ever_or_residuals_below_those_since() -> None:
    progress = policy_iteration._Progress(0.0, 0.0)
    assert not progress.stalled(0.5, 0.5, 1.0, 1.0, 0.0)
    assert not progress.stalled(0.5, 0.5, 1.0, 15.0, 0.0)  # all change, of as many as there are
    assert not progress.stalled(1.0, 0.5, 9.0, 34.0, 0.0)  # fewer
    assert not progress.stalled(1.0, 0.5, 8.0, 53.0, 0.0)  # a residual that is less than since then
    assert not progress.stalled(1.0, 0.5, 8.0, 72.0, 0.0)
    assert progress.stalled(1.0, 0.46, 7.3, 73.5, 0.0)  # by less than a tenth
    assert progress.stalled(0.0, 0.0, 7.3, 53.0, 10_001.0)


@some
@given(case=cases(shortest=0.3), discount=st.sampled_from([0.5, 0.9]), method=METHODS)
def test_a_target_below_rounding_ends_and_says_so(case: Case, discount: float, method: str) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        solution = solved(store, discount, method, epsilon=1e-300)
    assert_that_all_claims_hold(solution, store, rows, best, discount)
    assert solution.outcome in (Outcome.PROVED, Outcome.PRECISION_LIMIT)


@some
@given(
    case=cases(shortest=0.3),
    discount=st.sampled_from([0.5, 0.9]),
    max_sweeps=st.integers(1, 3),
    forcing=st.sampled_from([0.02, 0.9]),
)
def test_short_evaluations_prove_no_less(
    monkeypatch: pytest.MonkeyPatch, case: Case, discount: float, max_sweeps: int, forcing: float
) -> None:
    """Modified policy iteration down to value iteration: bounds hold however far evaluations are from their limits."""
    with stored(case) as store, monkeypatch.context() as patch:
        patch.setattr(policy_iteration, "_MAX_SWEEPS", max_sweeps)
        patch.setattr(policy_iteration, "_FORCING_TERM", forcing)
        patch.setattr(policy_iteration, "_FORCING_TERM_CACHED", forcing)
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        solution = solved(store, discount, "policy-iteration", epsilon=1e-5 * scale_of(rows, best))
    assert solution.outcome is Outcome.PROVED
    assert_that_all_claims_hold(solution, store, rows, best, discount)


def test_an_evaluation_that_is_left_often_takes_no_more_work(maze: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near discount 1 a solver does most of it; a solve that looks at limits after each iteration loses none."""
    best = exact_policy_iteration(rows_of(maze), 0.9995).values
    ticks: list[int] = []
    after = Session.after_step
    monkeypatch.setattr(
        Session, "after_step", lambda b, s: (ticks.append(s.counters.policy_evaluations), after(b, s))[1]
    )
    monkeypatch.setattr(policy_iteration, "_REPORTING_SHARE", 0.0)
    backups, looks = {}, {}
    for pieces, seconds in {"whole": 60.0, "small": 0.0}.items():
        monkeypatch.setattr(policy_iteration, "_SECONDS", seconds)
        ticks.clear()
        found = [solved(maze, 0.9995, "policy-iteration", epsilon=1e-3) for _ in range(3)]
        for solution in found:
            assert np.abs(solution.values - best).max() <= solution.error_bound <= 1e-3
        backups[pieces] = min(solution.statistics.backups for solution in found)
        looks[pieces] = len(ticks)
    assert looks["small"] > 3 * looks["whole"]
    assert backups["small"] <= 1.2 * backups["whole"]  # threads that sweep side by side differ by as much


# ---------------------------------------------------------------------------------------- checkpoints and traces


@pytest.mark.parametrize("method", ["policy-iteration", "auto"])
def test_a_solve_that_was_stopped_midway_is_resumed_and_proved(tmp_path: Path, method: Any) -> None:
    store = make_store(coupled(), tmp_path / "s")
    best = exact_policy_iteration(rows_of(store), 0.99).values
    options: dict[str, Any] = {"method": method, "device": "cpu", "cache": CacheSize(share=0.3), "epsilon": 1e-7}
    output, asked = tmp_path / "r", SolveOptions(0.99, **options)
    stopped, first = 0, solve(store, asked, RunOptions(output, time_limit=1e-9))
    while first.outcome is Outcome.TIME_LIMIT:
        assert checkpoint_path(output).exists()
        assert np.abs(first.values - best).max() <= first.error_bound
        stopped += 1
        before = first.statistics
        first = solve(store, asked, RunOptions(output, resume=True, time_limit=0.004 * stopped))
        assert first.statistics.loads >= before.loads
        assert first.statistics.policy_evaluations >= before.policy_evaluations
    assert stopped > 0
    assert first.outcome is Outcome.PROVED
    assert np.abs(first.values - best).max() <= first.error_bound <= 1e-7
    assert ooc_mdp.verify(store, output).holds


def test_the_trace_says_what_auto_decided_and_can_be_read_again(tmp_path: Path) -> None:
    store = make_store(coupled(), tmp_path / "s")
    said: list[str] = []
    options = SolveOptions(0.9, cache=CacheSize(share=0.3), device="cpu", epsilon=1e-5)
    solution = solve(store, options, RunOptions(trace=tmp_path / "t.csv"), note=said.append)
    _plan, remark = said
    assert "policy iteration" in remark
    assert "11.0 of the 11 others" in remark
    lines = (tmp_path / "t.csv").read_text().splitlines()
    (noted,) = [line for line in lines if line.startswith("# remark after ")]
    assert noted.endswith(remark)
    trace = read_trace(tmp_path / "t.csv")
    assert trace.partition.size == solution.statistics.accesses
    assert int((~trace.hit).sum()) == solution.statistics.misses
    assert trace.facts["method"] == "auto"
    assert set(trace.partition.tolist()) == set(range(12))


# ----------------------------------------------------------------------------------------------------------- auto


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A partition reads its neighbours only."""
    place = tmp_path_factory.mktemp("maze") / "s"
    return ooc_mdp.generate("GW-30x4", place, {"seed": 1}, partitions=30)


@pytest.mark.parametrize(("cached", "share"), [(1.0, 0.1), (0.4, 0.02)], ids=["cached", "streamed"])
def test_evaluations_are_more_precise_where_improvements_load(
    maze: Store, cached: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    evaluation = CpuBackend.evaluation

    def measured(self: CpuBackend, limit: float, most: int) -> PolicyEvaluation:
        rows = self._rows
        assert rows is not None
        first = CpuEvaluation(rows, self._values, self._policy, np.inf, 0).report()
        limits.append(limit / max(first.measured[2].max(), first.measured[3].max()))
        return evaluation(self, limit, most)

    monkeypatch.setattr(CpuBackend, "evaluation", measured)
    solution = solved(maze, 0.95, "policy-iteration", cached, epsilon=1e-6)
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.loads_per_partition > 1.0 or cached == 1.0
    before_last = limits[:-2]  # the last ones follow from the target
    assert len(before_last) >= 3
    assert np.median(before_last) == pytest.approx(share, rel=0.1)
    assert max(before_last) <= 1.1 * share  # less where a batch has changed what others, improved before it, miss


@pytest.mark.parametrize(("cached", "term"), [(1.0, "_FORCING_TERM_CACHED"), (0.4, "_FORCING_TERM")])
def test_a_device_s_cache_holds_the_table_if_it_has_a_slot_for_each_partition(
    tmp_path: Path, cached: float, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four slots have more bytes than the nine tables as the CPU decodes them."""
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": (48, 48)}, partitions=9)
    slot = TiledBackend(emulated(), TILE_STATES).layout(ModelFacts.of(store.facts, 0.9), Needs()).largest_entry
    cache = CacheSize(size=math.ceil(cached * store.n_partitions) * slot)
    assert cache.size is not None
    assert cache.size > store.facts.partition_bytes.sum()
    terms = forcing_terms(monkeypatch)
    monkeypatch.setattr(local, "select_backend", lambda *_, **__: TiledBackend(emulated(), TILE_STATES))
    solution = solved(store, 0.9, "policy-iteration", cache=cache, residual=1e-2)
    assert solution.outcome is Outcome.RESIDUAL_REACHED
    assert terms == [getattr(policy_iteration, term)]


def test_policies_are_evaluated_more_precisely_where_everything_depends_on_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 2000, "actions": 3, "successors": 4}, partitions=8)
    terms = forcing_terms(monkeypatch)
    for share, term in ((1.0, policy_iteration._FORCING_TERM_CACHED), (0.5, policy_iteration._FORCING_TERM_DENSE)):
        solution = solved(store, 0.9, "policy-iteration", cache=CacheSize(share=share), epsilon=1e-3)
        assert solution.outcome is Outcome.PROVED
        assert terms.pop() == term


def forcing_terms(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of each policy iteration from here on."""
    terms: list[float] = []
    steps = policy_iteration._PolicyIteration.steps
    monkeypatch.setattr(
        policy_iteration._PolicyIteration, "steps", lambda self: (terms.append(self._forcing_term), steps(self))[1]
    )
    return terms


def test_auto_takes_p_eva_where_partitions_read_few_others(maze: Store) -> None:
    said: list[str] = []
    options = SolveOptions(0.95, epsilon=1e-3, device="cpu", cache=CacheSize(share=0.4))
    solution = solve(maze, options, note=said.append)
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.policy_evaluations == 0
    _plan, remark = said
    assert remark.startswith("auto: p-eva, since a partition reads ")


def test_auto_changes_its_mind_where_p_eva_reads_too_much(
    maze: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(auto, "_SWITCH_LOADS", 1.5)
    said: list[str] = []
    options = SolveOptions(0.99, epsilon=1e-4, device="cpu", cache=CacheSize(share=0.2))
    solution = solve(maze, options, RunOptions(trace=tmp_path / "t.csv"), note=said.append)
    best = exact_policy_iteration(rows_of(maze), 0.99).values
    assert np.abs(solution.values - best).max() <= solution.error_bound <= 1e-4
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.policy_evaluations > 0
    _plan, begun, changed = said
    assert begun.startswith("auto: p-eva")
    assert changed.startswith("auto: policy iteration from here on, with ")
    assert "p-eva has taken 1." in changed
    read_trace(tmp_path / "t.csv")
    noted = [line for line in (tmp_path / "t.csv").read_text().splitlines() if line.startswith("# remark")]
    assert [line.split(" s: ", 1)[1] for line in noted] == said[1:]


def test_auto_changes_its_mind_where_p_eva_sweeps_too_much_without_loading(maze: Store) -> None:
    """Everything is in memory, and near discount 1 sweeps take thousands of backups where evaluations take hundreds."""
    said: list[str] = []
    solution = solve(
        maze, SolveOptions(0.9995, epsilon=1e-3, device="cpu", cache=CacheSize(share=1.0)), note=said.append
    )
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.loads == maze.n_partitions
    assert solution.statistics.policy_evaluations > 0
    assert solution.statistics.backups < 6000 * maze.n_states
    assert [text.split(",")[0] for text in said[1:]] == ["auto: p-eva", "auto: policy iteration from here on"]


def test_what_belongs_to_p_eva_alone_makes_auto_take_it(tmp_path: Path) -> None:
    store = make_store(coupled(), tmp_path / "s")
    asked: list[dict[str, Any]] = [{"priority": "h1"}, {"priority": "exact-h2"}]
    for options in asked:
        solution = solved(store, 0.5, "auto", 0.5, **options)
        assert solution.outcome is Outcome.PROVED
        assert solution.method.startswith("p-eva")
        assert solution.statistics.policy_evaluations == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "pi"}, "there are auto, vi, p-eva, policy-iteration"),
        ({"method": "policy-iteration", "priority": "exact-h2"}, "exact priorities belong to the method p-eva"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        SolveOptions(0.9, **options)
