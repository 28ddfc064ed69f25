"""Average rewards lie within their certified interval, in every state, whatever the chains of a model are like."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_gains import KINDS, exact_gains, exact_policy_gains, random_gain_model
from small_mdps import Case, make_store, rows_of, stored
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp import AverageReward
from ooc_mdp.average.differing import prove_differing
from ooc_mdp.average.engine import METHOD, solve
from ooc_mdp.average.host import HostGains
from ooc_mdp.average.iteration import AverageIteration
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.reference.average_reward import measure_gain
from ooc_mdp.solver import run as life_cycle
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.undiscounted.tables import Streamed, finish


def asked(epsilon: float | None = None, **options: Any) -> SolveOptions:
    return SolveOptions(AverageReward(), epsilon=epsilon, **options)


def cycle(n: int) -> Model:
    """Deterministic, of period n: the reward of 1 comes once a round."""
    return Model(tuple(State((Action(float(s == 3), {(s + 1) % n: 1.0}),)) for s in range(n)))


def network(tmp_path: Path, capacity: int = 8, partitions: int = 9) -> Store:
    parameters = {"capacity": capacity}
    return ooc_mdp.generate("queueing-network", tmp_path / "q.store", parameters=parameters, partitions=partitions)


def assert_interval_holds(store: Store, solution: Solution) -> tuple[Fraction, Fraction]:
    """The exact gains lie in their intervals, and so do those of the policy at the end that counts."""
    rows, claims, n = rows_of(store), solution.certificate, store.n_states
    gains, followed = exact_gains(rows, store.sense), exact_policy_gains(rows, solution.policy)
    lower, upper = solution.value_lower, solution.value_upper
    lower = np.full(n, claims.lower) if lower is None else lower
    upper = np.full(n, claims.upper) if upper is None else upper
    assert claims.lower <= lower.min()
    assert upper.max() <= claims.upper
    for gain, own, low, high in zip(gains, followed, lower.tolist(), upper.tolist(), strict=True):
        assert Fraction(low) <= gain <= Fraction(high)
        assert own >= Fraction(low) if store.sense == "max" else own <= Fraction(high)
    return min(gains), max(gains)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("first", "count"), [(0, 12), pytest.param(12, 88, marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_the_interval_holds_the_exact_gains_of_random_models(kind: str, first: int, count: int) -> None:
    for seed in range(first, first + count):
        model = random_gain_model(seed, kind)
        case = Case(model, ("max", "min")[seed % 2], partitions=1 + seed % min(4, len(model.states)))
        with stored(case) as store:
            epsilon = 1e-8 * float(np.abs(store.facts.reward_range).max())
            solution = solve(store, asked(epsilon, cache=CacheSize(share=0.3)))
            least, largest = assert_interval_holds(store, solution)
            assert solution.outcome is Outcome.PROVED
            assert solution.error_bound <= epsilon
            assert (solution.value_lower is None) == (least == largest)
            assert ooc_mdp.verify(store, solution).holds


def test_the_period_of_a_chain_is_no_obstacle(tmp_path: Path) -> None:
    store = make_store(Case(cycle(7), partitions=3), tmp_path / "m.store")
    solution = ooc_mdp.solve(store, AverageReward(), epsilon=1e-10)
    assert solution.outcome is Outcome.PROVED
    assert solution.certificate.lower <= 1 / 7 <= solution.certificate.upper
    assert solution.error_bound <= 1e-10


def test_steps_alone_close_the_interval_where_rows_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ooc_mdp.average.host.rows_bytes", lambda table, cache: 0)
    store = make_store(Case(cycle(7), partitions=3), tmp_path / "m.store")
    solution = solve(store, asked(1e-6))
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.policy_evaluations == 0
    assert solution.certificate.lower <= 1 / 7 <= solution.certificate.upper


def test_the_default_target_is_an_interval_of_a_share_of_the_range_of_rewards(tmp_path: Path) -> None:
    solution = solve(network(tmp_path), asked())
    low, high = 0.0, 4.0 + 8 * 4 + 50
    assert solution.certificate.target == pytest.approx(0.5e-4 * (high - low))
    assert solution.certificate.upper - solution.certificate.lower <= 1.0001e-4 * (high - low)


def test_the_interval_is_what_the_reference_measures_at_the_values(tmp_path: Path) -> None:
    store = network(tmp_path)
    solution = solve(store, asked(1e-6, cache=CacheSize(share=0.2)))
    gain = measure_gain(rows_of(store), solution.values, store.sense)
    claims = solution.certificate
    assert claims.lower <= gain.lower + 1e-12 * abs(gain.lower)
    assert claims.upper >= gain.upper - 1e-12 * abs(gain.upper)
    assert claims.quantity == "gain"
    assert (solution.method, solution.criterion["criterion"]) == (METHOD, "average")


def test_partitions_that_cannot_move_the_interval_are_not_read_again(tmp_path: Path) -> None:
    """The first half of a ring has a choice in each state, the other half has none: it is known after one reading."""
    rng = np.random.default_rng(5)

    def action(s: int) -> Action:
        further = float(rng.uniform(0.1, 0.9))
        return Action(float(rng.normal()), {(s + 1) % 40: further, (s - 1) % 40: 1 - further})

    states = tuple(State(tuple(action(s) for _ in range(3 if s < 20 else 1))) for s in range(40))
    store = make_store(Case(Model(states), partitions=8), tmp_path / "m.store")
    without_choice = store.facts.partition_rows == np.diff(store.facts.partition_ptr)
    solution = solve(store, asked(1e-9))
    assert solution.outcome is Outcome.PROVED
    assert solution.history is not None
    assert solution.history.visits[~without_choice].min() > 1
    assert solution.history.visits[without_choice].tolist() == [1, 1]


def test_a_cache_of_one_partition_is_never_exceeded(tmp_path: Path) -> None:
    store = network(tmp_path)
    largest = int(store.facts.partition_bytes.max())
    solution = solve(store, asked(1e-3, cache=CacheSize(size=largest)))
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.cache_peak_bytes <= largest


def test_values_are_the_same_on_any_number_of_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, found = network(tmp_path), []
    for cores in (1, 3):
        monkeypatch.setattr("ooc_mdp.runtime.quotas.cores", lambda cores=cores: cores)
        found.append(solve(store, asked(1e-3)).values.tolist())
    assert found[0] == found[1]


def test_a_policy_that_is_kept_by_a_wide_margin_shows_no_more_than_it_earns(tmp_path: Path) -> None:
    """In state 1 the policy stays for 0.7; the row that pays 1 leads to state 0, where nothing is ever paid again."""
    poor, rich = State((Action(0.0, {0: 1.0}),)), State((Action(1.0, {0: 1.0}), Action(0.7, {1: 1.0})))
    store = make_store(Case(Model((poor, rich))), tmp_path / "s")
    size = int(store.facts.partition_bytes.sum())
    backend = HostGains()
    backend.plan(store, asked())
    backend.start(store, np.zeros(2))
    with Streamed(store, size, 2, backend) as tables:
        run = AverageIteration(tables, 1e-6, backend, SolveStatistics.of_table(store.facts, size), lambda: 0.0)
        backend.actions[:], run.rounding = [0, 1], 0.1
        finish(run._read(True))
        assert backend.policy().tolist() == [0, 1]
        found = finish(prove_differing(run))
    backend.close()
    assert found is None or found.largest <= 0.7


def test_partitions_without_states_of_either_set_are_not_read_again(tmp_path: Path) -> None:
    """The process goes round all states, so that neither set is closed: its states are left out one after the other,
    until it is empty."""
    n = 64
    ring = Model(tuple(State((Action(float(s), {(s + 1) % n: 1.0}),)) for s in range(n)))
    store = make_store(Case(ring, partitions=16), tmp_path / "s")
    size = int(store.facts.partition_bytes.max())
    backend = HostGains()
    backend.plan(store, asked())
    backend.start(store, np.zeros(n))
    with Streamed(store, 3 * size, 2, backend) as tables:
        run = AverageIteration(tables, 1e-6, backend, SolveStatistics.of_table(store.facts, size), lambda: 0.0)
        finish(run._read(True))
        before = tables.cache.loads.sum()
        assert finish(prove_differing(run)) is None
        assert tables.cache.loads.sum() - before <= 2 * store.n_partitions  # 41 were all read again
    backend.close()


def apart(rewards: tuple[int, ...]) -> Model:
    """States that are never left, each with a reward of its own."""
    return Model(tuple(State((Action(float(r), {s: 1.0}),)) for s, r in enumerate(rewards)))


def test_gains_that_differ_are_an_outcome_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise MemoryBudgetError("needs more")

    monkeypatch.setattr("ooc_mdp.average.by_state.plan_totals", refuse)
    notes: list[str] = []
    store, output = make_store(Case(apart((1, 3, 2)), partitions=3), tmp_path / "m.store"), tmp_path / "r"
    solution = solve(store, asked(1e-6), RunOptions(output=output), note=notes.append)
    assert "the gain of each state is not solved for: needs more" in notes
    assert checkpoint_path(output).exists()
    assert solution.outcome is Outcome.GAIN_DIFFERS
    assert not solution.outcome.proved
    assert (solution.certificate.lower, solution.certificate.upper) == (pytest.approx(1), pytest.approx(3))
    assert "1 states, which nothing leads out of" in solution.certificate.proof


def test_the_gain_of_each_state_is_that_of_the_best_component_it_can_settle_in(tmp_path: Path) -> None:
    stays = [State((Action(float(r), {s: 1.0}),)) for s, r in ((1, 1), (2, 3), (3, 8))]
    chooses = State((Action(100.0, {1: 0.5, 2: 0.5}), Action(0.0, {2: 1.0}), Action(-50.0, {1: 0.75, 3: 0.25})))
    for sense, gain in (("max", 3.0), ("min", 2.0)):
        store = make_store(Case(Model((chooses, *stays)), sense, partitions=2), tmp_path / f"{sense}.store")
        solution = ooc_mdp.solve(store, AverageReward(), epsilon=1e-9)
        assert solution.outcome is Outcome.PROVED
        np.testing.assert_allclose(solution.gains, [gain, 1.0, 3.0, 8.0], rtol=0, atol=1e-9)
        assert solution.gain == (pytest.approx(1), pytest.approx(8))


def test_an_interval_as_wide_as_the_gains_differ_is_proved(tmp_path: Path) -> None:
    model = Model(tuple(State((Action(float(r), {s: 1.0}),)) for s, r in enumerate((1, 3))))
    solution = solve(make_store(Case(model), tmp_path / "m.store"), asked(1.1))
    assert solution.outcome is Outcome.PROVED


def test_less_than_float64_holds_ends_at_its_precision(tmp_path: Path) -> None:
    solution = solve(network(tmp_path), asked(1e-300))
    assert solution.outcome is Outcome.PRECISION_LIMIT
    assert solution.error_bound < 1e-9
    assert solution.least_target is not None


def refusal(model: Model, **options: Any) -> str:
    with pytest.raises(OptionsError) as refused, stored(Case(model, partitions=2)) as store:
        solve(store, asked(**options))
    return str(refused.value)


def test_processes_that_end_are_refused() -> None:
    ends = Model((State((Action(1.0, {1: 1.0}),)), State(())))
    assert "state 1" in refusal(ends)
    endless = Model((State((Action(1.0, {0: 1.0}, duration=float("inf")),)), State((Action(0, {0: 1.0}),))), True)
    assert "durations" in refusal(endless)
    longer = Model((State((Action(1.0, {0: 1.0}, duration=2.0),)), State((Action(0, {0: 1.0}),))), True)
    assert "durations from 2 to 2 in partition 0" in refusal(longer)


def test_what_steers_other_methods_is_refused() -> None:
    assert "--epsilon" in refusal(cycle(5), residual=1e-3)
    for options in ({"method": "vi"}, {"kernel": "plain"}, {"priority": "h1"}):
        with pytest.raises(OptionsError, match="--average"):
            asked(**options)


def interrupted_after(visits: int) -> Callable[[], AbstractContextManager[Callable[[], bool]]]:
    """Signals of which one comes after so many looks."""
    count = itertools.count()
    return lambda: nullcontext(lambda: next(count) >= visits)


@pytest.mark.parametrize("visits", [12, 40, 100])
def test_a_run_that_was_stopped_goes_on_from_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visits: int
) -> None:
    store, output = network(tmp_path), tmp_path / "r"
    notes: list[str] = []

    def run(
        resume: bool, epsilon: float, signals: Callable[[], AbstractContextManager[Callable[[], bool]]]
    ) -> Solution:
        monkeypatch.setattr(life_cycle, "signals", signals)
        return solve(store, asked(epsilon), RunOptions(output, resume=resume), note=notes.append)

    stopped = run(False, 1e-6, interrupted_after(visits))
    assert stopped.outcome is Outcome.INTERRUPTED
    assert not output.exists()
    resumed = run(True, 1e-6, lambda: nullcontext(lambda: False))
    assert resumed.outcome is Outcome.PROVED
    assert any(note.startswith("continuing from the values of the checkpoint") for note in notes)
    assert resumed.statistics.visits > stopped.statistics.visits
    again = run(True, 1e-6, lambda: nullcontext(lambda: False))
    assert again.values.tolist() == resumed.values.tolist()
    finer = run(True, 1e-8, lambda: nullcontext(lambda: False))
    assert finer.outcome is Outcome.PROVED
    assert finer.error_bound <= 1e-8
    assert resumed.certificate.lower <= finer.certificate.lower <= finer.certificate.upper <= resumed.certificate.upper
    assert ooc_mdp.verify(store, output).holds


def test_what_is_proved_of_each_state_at_the_precision_of_float64_holds_for_the_policy(tmp_path: Path) -> None:
    for seed in range(6):
        store = make_store(Case(random_gain_model(seed, "multichain"), partitions=2), tmp_path / f"{seed}.store")
        solution = solve(store, asked(1e-300))
        assert solution.outcome is Outcome.PRECISION_LIMIT
        assert_interval_holds(store, solution)
        if solution.value_lower is not None:
            assert ooc_mdp.verify(store, solution).holds


def test_a_run_that_was_stopped_after_the_gain_was_seen_to_differ_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output = make_store(Case(random_gain_model(5, "multichain"), partitions=3), tmp_path / "m"), tmp_path / "r"
    looks, notes = itertools.count(), list[str]()
    monkeypatch.setattr(life_cycle, "signals", lambda: nullcontext(lambda: next(looks) < 0))
    whole = solve(store, asked(1e-9))
    assert whole.value_lower is not None
    monkeypatch.setattr(life_cycle, "signals", interrupted_after(next(looks) - 4))
    stopped = solve(store, asked(1e-9), RunOptions(output), note=notes.append)
    assert stopped.outcome is Outcome.INTERRUPTED
    assert sum(note.startswith("memory plan") for note in notes) == 2
    assert stopped.gain is not None
    assert whole.gains is not None
    assert stopped.gain[0] <= whole.gains.min() <= whole.gains.max() <= stopped.gain[1]
    monkeypatch.undo()
    resumed = solve(store, asked(1e-9), RunOptions(output, resume=True))
    assert resumed.outcome is Outcome.PROVED
    assert_interval_holds(store, resumed)
    assert ooc_mdp.verify(store, output).holds


@pytest.mark.parametrize("model", [None, random_gain_model(5, "multichain")], ids=["one-gain", "several-gains"])
def test_the_trace_has_every_access(tmp_path: Path, model: Model | None) -> None:
    store = network(tmp_path) if model is None else make_store(Case(model, partitions=3), tmp_path / "m")
    s = solve(store, asked(1e-3), RunOptions(trace=tmp_path / "t.csv")).statistics
    lines = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines() if line[0].isdigit()]
    assert len(lines) == s.accesses + s.auxiliary_accesses
    assert sum(line[2] == "frontier" for line in lines) == s.accesses == s.visits
    assert sum(int(line[5]) for line in lines) == s.sweeps


def test_rows_that_sum_to_a_little_less_are_divided_by_their_sum(tmp_path: Path) -> None:
    model = Model((State((Action(1.0, {0: 0.5, 1: 0.4999995}),)), State((Action(2.0, {0: 1.0}),))))
    store = make_store(Case(model), tmp_path / "m.store")
    assert_interval_holds(store, solve(store, asked(1e-12)))
