"""Undiscounted totals lie within their certified bounds, and what has none is refused with its states named."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from small_mdps import Case, make_store, stored
from store_models import Action, Model, ModelProblem, State
from total_rewards import Fault, best_totals, policy_total

import ooc_mdp
from ooc_mdp.errors import OptionsError, StoreError, UndefinedTotalError
from ooc_mdp.io.conversion import ConvertOptions, generate
from ooc_mdp.model.criterion import TotalReward
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.solver import run as life_cycle
from ooc_mdp.store.result import open_result, write_result
from ooc_mdp.undiscounted import totals
from ooc_mdp.undiscounted.totals import solve


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Up to five states; probabilities are multiples of 1/8, rewards small and often 0, so that classes arise."""
    n = draw(st.integers(1, 5))
    endings = draw(st.booleans())
    rewards = st.sampled_from(draw(st.sampled_from([(0, -1), (0, 0, -1, 2), (-3, -1, 0.5), (0, 0, 1)])))

    def action() -> Action:
        chosen = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3, unique=True))
        cuts = sorted(draw(st.lists(st.integers(0, 8), min_size=len(chosen) - 1, max_size=len(chosen) - 1)))
        weights = np.diff([0, *cuts, 8]) / 8
        ended = endings and draw(st.integers(0, 5)) == 0
        successors = {s: float(w) for s, w in zip(chosen, weights, strict=True) if w > 0}
        return Action(float(draw(rewards)), successors, math.inf if ended else draw(st.sampled_from([1.0, 0.3])))

    def state() -> State:
        own = [action() for _ in range(draw(st.sampled_from([0, 1, 1, 2, 2])))]
        if own and draw(st.integers(0, 3)) == 0:
            own.append(own[0])  # a tie
        return State(tuple(own), 0.0 if own else float(draw(st.sampled_from([0, 1, -2, 5]))))

    return Model(tuple(state() for _ in range(n)), durations=True)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = draw(models())
    return Case(
        model,
        draw(st.sampled_from(["max", "min"])),
        draw(st.sampled_from(["float64", "float32"])),
        draw(st.integers(1, len(model.states))),
    )


def holds(case: Case, solution: Solution, exact: list[Fraction]) -> None:
    """The certificate tells the truth, of the values, of both bounds and of the policy."""
    sign = 1 if case.sense == "max" else -1
    assert solution.value_lower is not None
    assert solution.value_upper is not None
    for s, best in enumerate(exact):
        assert Fraction(solution.value_lower[s]) <= sign * best <= Fraction(solution.value_upper[s])
        difference = sign * best - Fraction(solution.values[s])
        assert abs(difference) <= Fraction(solution.error_bound)
        c = solution.certificate
        assert Fraction(c.error_lower) <= sign * difference <= Fraction(c.error_upper)
    totals = policy_total(case.model, tuple(solution.policy.tolist()), sign)
    assert not isinstance(totals, Fault)
    for best, total in zip(exact, totals, strict=True):
        assert best - total <= solution.certificate.policy_loss_bound


@given(cases(), st.sampled_from([None, 1e-3, 1e-8]))
@settings(max_examples=60)
def test_totals_lie_within_their_bounds_and_ill_defined_ones_are_refused(case: Case, epsilon: float | None) -> None:
    exact = best_totals(case.model, 1 if case.sense == "max" else -1)
    with stored(case) as store:
        options = SolveOptions(
            TotalReward(), epsilon=epsilon, cache=CacheSize(size=int(store.facts.partition_bytes.max()))
        )
        if isinstance(exact, set):
            event(f"refused: {sorted(f.name for f in exact)}")
            with pytest.raises(UndefinedTotalError) as refused:
                solve(store, options)
            assert set(refused.value.states) <= set(range(store.n_states))
            text = str(refused.value)
            bad = "minus infinity" if case.sense == "max" else "infinite"
            if exact == {Fault.ENDLESS}:
                assert f"is {bad}: from there no policy ever ends" in text
            elif Fault.ENDLESS not in exact:
                assert "is not supported here" in text or "may stay among these states for ever" in text
            return
        event("solved")
        solution = solve(store, options)
        assert solution.outcome is Outcome.PROVED
        if epsilon is not None:
            assert solution.error_bound <= epsilon
        holds(case, solution, exact)


@given(cases())
@settings(max_examples=60)
def test_a_residual_is_reached_and_what_it_proves_is_true(case: Case) -> None:
    exact = best_totals(case.model, 1 if case.sense == "max" else -1)
    if isinstance(exact, set):
        return
    with stored(case) as store:
        solution = solve(store, SolveOptions(TotalReward(), residual=1e-5))
    assert solution.outcome is Outcome.RESIDUAL_REACHED
    assert solution.certificate.residual_bound <= 1e-5
    holds(case, solution, exact)


@given(cases(), st.integers(0, 2**31))
@settings(max_examples=60)
def test_results_are_verified_from_the_table_alone_and_tampered_ones_are_not(
    tmp_path_factory: pytest.TempPathFactory, case: Case, seed: int
) -> None:
    exact = best_totals(case.model, 1 if case.sense == "max" else -1)
    if isinstance(exact, set):
        return
    rng = np.random.default_rng(seed)
    with stored(case) as store:
        output = tmp_path_factory.mktemp("results") / "r"
        solution = solve(store, SolveOptions(TotalReward(), epsilon=1e-4), RunOptions(output))
        found = ooc_mdp.verify(store, output)
        assert found.holds
        assert found.error_bound <= solution.error_bound * (1 + 1e-9)
        result = open_result(output)
        s = int(rng.integers(store.n_states))
        assert solution.value_lower is not None
        best = float((1 if case.sense == "max" else -1) * exact[s])
        wrong = solution.value_lower.copy()
        wrong[s] = best + 1e-3  # above the optimum: no table can bear it out
        tampered = dataclasses.replace(solution, value_lower=wrong)
        write_result(output, store, tampered, result.identity, replace=True)
        refuted = ooc_mdp.verify(store, output)
        assert not refuted.holds
        assert refuted.error_bound == math.inf
        moved = solution.values.copy()
        moved[s] += 1e-3
        write_result(output, store, dataclasses.replace(solution, values=moved), result.identity, replace=True)
        refuted = ooc_mdp.verify(store, output)
        assert not refuted.holds
        assert refuted.error_bound >= 9e-4
        assert refuted.worst_state == s


def end(reward: float = 0.0) -> State:
    return State((), reward)


def to(reward: float, **successors: float) -> Action:
    return Action(reward, {int(name[1:]): p for name, p in successors.items()})


def solved(tmp_path: Path, model: Model, sense: str = "max", partitions: int = 1, **options: object) -> Solution:
    store = make_store(Case(model, sense, "float64", min(partitions, len(model.states))), tmp_path / "m.store")
    run = RunOptions(time_limit=options.pop("time_limit", None))  # type: ignore[arg-type]
    return solve(store, SolveOptions(TotalReward(), **options), run)  # type: ignore[arg-type]


def gambler(heads: float, goal: int) -> Model:
    """Sutton and Barto, example 4.3: stakes 1, 2, ... on a coin, until nothing or the goal is left."""

    def state(capital: int) -> State:
        if capital in (0, goal):
            return end(float(capital == goal))
        stakes = range(1, min(capital, goal - capital) + 1)
        return State(tuple(Action(0.0, {capital + k: heads, capital - k: 1 - heads}) for k in stakes))

    return Model(tuple(state(c) for c in range(goal + 1)))


def test_the_gambler_of_sutton_and_barto_wins_as_often_as_a_linear_program_says(tmp_path: Path) -> None:
    model, n = gambler(0.4, 100), 101
    solution = solved(tmp_path, model, partitions=7, epsilon=1e-10)
    rows, right = [], []
    for s, state in enumerate(model.states):
        for a in state.actions:
            line = np.zeros(n)
            line[s] -= 1.0
            for t, p in a.successors.items():
                line[t] += p
            rows.append(line)
            right.append(-a.reward)
    fixed = [(s.terminal_reward, s.terminal_reward) if not s.actions else (0, None) for s in model.states]
    optimum = linprog(np.ones(n), np.array(rows), right, bounds=fixed, method="highs").x
    np.testing.assert_allclose(solution.values, optimum, atol=1e-7)
    assert solution.values[50] == pytest.approx(0.4, abs=1e-9)  # bold play: all on one toss
    assert solution.values[25] == pytest.approx(0.16, abs=1e-9)


def test_a_fair_game_of_unit_stakes_has_the_values_of_the_martingale(tmp_path: Path) -> None:
    unit = Model(tuple(State(s.actions[:1], s.terminal_reward) for s in gambler(0.5, 60).states))
    solution = solved(tmp_path, unit, partitions=5, epsilon=1e-9)
    np.testing.assert_allclose(solution.values, np.arange(61) / 60, atol=solution.error_bound)


def four_by_four() -> Model:
    """Sutton and Barto, example 4.1: -1 a step, two corners end."""

    def state(s: int) -> State:
        if s in (0, 15):
            return end()
        x, y = s % 4, s // 4
        moved = [(x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)]
        return State(tuple(Action(-1.0, {min(max(b, 0), 3) * 4 + min(max(a, 0), 3): 1.0}) for a, b in moved))

    return Model(tuple(state(s) for s in range(16)))


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_the_grid_of_sutton_and_barto_is_worth_minus_the_distance(tmp_path: Path, partitions: int) -> None:
    solution = solved(tmp_path, four_by_four(), partitions=partitions, epsilon=1e-9)
    distance = [min(s % 4 + s // 4, 6 - s % 4 - s // 4) for s in range(16)]
    np.testing.assert_allclose(solution.values, np.negative(distance), atol=1e-9)
    totals = policy_total(four_by_four(), tuple(solution.policy.tolist()))
    assert totals == [-d for d in distance]


@pytest.mark.parametrize("partitions", [1, 6])
def test_a_class_where_staying_is_free_is_left_by_the_best_way_out_and_not_idled_in(
    tmp_path: Path, partitions: int
) -> None:
    """A ring of free steps with one good way out; the greedy action of a plain fixed point might circle for ever."""
    n = 12
    ring = [State((to(0, **{f"s{(i + 1) % n}": 1.0}),)) for i in range(n)]
    ring[5] = State((to(0, s6=1.0), to(3.0, s12=0.5, s4=0.5), to(-9.0, s12=1.0)))
    ring[8] = State((to(0, s9=1.0), to(1.0, s12=1.0)))
    model = Model((*ring, end(1.0)))
    solution = solved(tmp_path, model, partitions=partitions, epsilon=1e-9)
    np.testing.assert_allclose(solution.values, [7.0] * n + [1.0], atol=1e-9)  # 3 (1 + 1/2 + ...) + 1
    assert solution.policy[5] == 1
    assert policy_total(model, tuple(solution.policy.tolist())) == [7] * n + [1]


@pytest.mark.parametrize("sense", ["max", "min"])
@pytest.mark.parametrize("partitions", [1, 6])
def test_states_that_no_row_leaves_a_class_from_do_not_idle_in_it(tmp_path: Path, partitions: int, sense: str) -> None:
    """A corridor to walk in for nothing, with a reward behind its last state: all others may stand still or go back."""
    n, reward = 12, 1.0 if sense == "max" else -1.0

    def step(i: int) -> Action:
        return to(0, **{f"s{min(max(i, 0), n - 1)}": 1.0})

    corridor = [State((step(i), step(i - 1), step(i + 1))) for i in range(n)]
    corridor[-1] = State((*corridor[-1].actions, to(reward, s12=1.0)))
    model = Model((*corridor, end()))
    solution = solved(tmp_path, model, sense, partitions=partitions, epsilon=1e-9)
    assert solution.outcome is Outcome.PROVED
    np.testing.assert_allclose(solution.values, [reward] * n + [0.0], atol=1e-9)
    assert policy_total(model, tuple(solution.policy.tolist())) == [reward] * n + [0]


def test_one_stays_for_nothing_where_every_way_out_costs(tmp_path: Path) -> None:
    model = Model((State((to(0, s1=1.0), to(-1, s2=1.0))), State((to(0, s0=1.0),)), end()))
    solution = solved(tmp_path, model)
    assert solution.values.tolist() == [0.0, 0.0, 0.0]
    assert solution.policy.tolist() == [0, 0, -1]
    costs = dataclasses.replace(solution)
    assert costs.error_bound <= 1e-4


def test_rewards_of_both_signs_are_solved_where_staying_loses_in_the_mean(tmp_path: Path) -> None:
    model = Model((State((to(2.0, s1=1.0), to(-7.0, s2=1.0))), State((to(-3.0, s0=1.0), to(-4.0, s2=1.0))), end()))
    solution = solved(tmp_path, model, partitions=3, epsilon=1e-8)
    np.testing.assert_allclose(solution.values, [-2.0, -4.0, 0.0], atol=1e-8)


@pytest.mark.parametrize(("sense", "sign", "worth"), [("max", 1.0, "infinite"), ("min", -1.0, "minus infinity")])
def test_a_reward_that_can_be_had_for_ever_is_refused_with_its_states(
    tmp_path: Path, sense: str, sign: float, worth: str
) -> None:
    model = Model((State((to(-sign, s3=1.0),)), State((to(0, s2=1.0),)), State((to(sign, s1=1.0),)), end()))
    with pytest.raises(UndefinedTotalError, match=f"reward of states 1 and 2 is {worth}: .*none of the other") as error:
        solved(tmp_path, model, sense, partitions=2)
    assert error.value.states == (1, 2)


def test_a_loss_on_the_way_does_not_hide_a_gain_in_the_mean(tmp_path: Path) -> None:
    model = Model((State((to(3.0, s1=1.0), to(0, s2=1.0))), State((to(-2.0, s0=1.0),)), end()))
    with pytest.raises(UndefinedTotalError, match=r"states 0 and 1 is infinite: .* by 0.5 a step or more in the mean"):
        solved(tmp_path, model)


def test_a_balance_of_gains_and_losses_is_refused_as_unsupported(tmp_path: Path) -> None:
    model = Model((State((to(3.0, s1=1.0), to(0, s2=1.0))), State((to(-3.0, s0=1.0),)), end()))
    with pytest.raises(UndefinedTotalError, match=r"not supported here: .* states 0 and 1, where .* balance"):
        solved(tmp_path, model)


@pytest.mark.parametrize(("sense", "sign", "worth"), [("max", 1.0, "minus infinity"), ("min", -1.0, "infinite")])
def test_states_that_never_end_and_pay_for_ever_are_named(tmp_path: Path, sense: str, sign: float, worth: str) -> None:
    trap = [State((to(-sign, **{f"s{3 + (i + 1) % 12}": 1.0}),)) for i in range(12)]
    model = Model((State((to(-sign, s1=0.5, s3=0.5), to(-sign, s1=1.0))), end(), State((to(0, s2=1.0),)), *trap))
    with pytest.raises(UndefinedTotalError, match=f"states 3, 4, .*10 and 4 more is {worth}: .*no policy") as error:
        solved(tmp_path, model, sense, partitions=4)
    assert error.value.states == tuple(range(3, 11))


def test_the_states_named_are_the_sources_own(tmp_path: Path) -> None:
    """A grid in blocks is stored in another order."""
    states = [State((to(-1.0, **{f"s{s}": 1.0}),)) if s in (9, 14) else end() for s in range(16)]
    problem = ModelProblem(Model(tuple(states)), (4, 4))
    store = generate(problem, tmp_path / "m.store", ConvertOptions(sense="max", partition_grid=(2, 2)))
    with pytest.raises(UndefinedTotalError, match="states 9 and 14 is minus infinity"):
        solve(store, SolveOptions(TotalReward()))


def test_a_state_that_is_hardly_ever_left_takes_few_sweeps(tmp_path: Path) -> None:
    model = Model((State((to(-1e-13, s0=1 - 2**-43, s1=2**-43),)), end(2.0)))
    solution = solved(tmp_path, model, epsilon=1e-9)
    assert solution.values[0] == pytest.approx(2.0 - 1e-13 * 2**43, abs=1e-9)
    assert solution.statistics.sweeps < 20


def test_rows_stand_for_the_distribution_that_they_are_proportional_to(tmp_path: Path) -> None:
    """Staying is free whether the row sums to a little more or less than 1."""
    for fault in (2e-11, -2e-11):
        place = tmp_path / str(fault)
        place.mkdir()
        model = Model((State((to(0, s0=0.5 + fault, s1=0.5),)), State((to(0, s0=1 + fault), to(-1, s2=1.0))), end(4.0)))
        solution = solved(place, model, epsilon=1e-10)
        np.testing.assert_allclose(solution.values, [3.0, 3.0, 4.0], atol=1e-10)


def test_a_discount_of_one_is_the_cpus_alone_and_has_its_own_method() -> None:
    for device in ("cuda", "cuda:0"):
        with pytest.raises(OptionsError, match="solved on the CPU only"):
            SolveOptions(TotalReward(), device=device)
    with pytest.raises(OptionsError, match="a method of its own"):
        SolveOptions(TotalReward(), method="policy-iteration")
    with pytest.raises(OptionsError, match="a method of its own"):
        SolveOptions(TotalReward(), priority="h1")


def random_walk(n: int) -> Model:
    """-1 a step until either end: s (n - s) steps on average."""
    inner = [State((Action(-1.0, {s - 1: 0.5, s + 1: 0.5}),)) for s in range(1, n)]
    return Model((end(), *inner, end()))


def test_a_policy_that_idles_on_the_way_is_refuted_by_verify(tmp_path: Path) -> None:
    """Values and bounds are right; the policy circles in the class that it should leave."""
    ring = (State((to(0, s1=1.0),)), State((to(0, s0=1.0), to(0, s2=1.0))), end(5.0))
    store = make_store(Case(Model(ring), "max", "float64", 2), tmp_path / "m.store")
    solution = solve(store, SolveOptions(TotalReward()), RunOptions(tmp_path / "r"))
    assert solution.policy.tolist() == [0, 1, -1]
    assert ooc_mdp.verify(store, tmp_path / "r").holds
    identity = open_result(tmp_path / "r").identity
    for policy in ([0, 0, -1], [0, 2, -1], [0, 1, 0]):
        idle = dataclasses.replace(solution, policy=np.array(policy, np.int32))
        write_result(tmp_path / "r", store, idle, identity, replace=True)
        found = ooc_mdp.verify(store, tmp_path / "r")
        assert not found.holds
        assert found.invalid_policy_states == (policy != [0, 0, -1])
    without = dataclasses.replace(solution, value_lower=None, value_upper=None)
    write_result(tmp_path / "r", store, without, identity, replace=True)
    with pytest.raises(StoreError, match="has no lower and upper values"):
        ooc_mdp.verify(store, tmp_path / "r")


def interrupted_after(visits: int) -> Callable[[], AbstractContextManager[Callable[[], bool]]]:
    """Signals of which one comes after so many visits of partitions."""
    count = itertools.count()
    return lambda: nullcontext(lambda: next(count) >= visits)


@pytest.mark.parametrize("visits", [0, 20, 60, 100])
def test_a_run_that_was_stopped_goes_on_from_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visits: int
) -> None:
    store = make_store(Case(gambler(0.4, 100), "max", "float64", 10), tmp_path / "m.store")
    whole = solve(store, SolveOptions(TotalReward(), epsilon=1e-9))
    output, options = tmp_path / "r", SolveOptions(TotalReward(), epsilon=1e-9)
    notes: list[str] = []

    def told(text: str) -> None:
        if not text.startswith("memory plan"):
            notes.append(text)

    def run(resume: bool, signals: Callable[[], AbstractContextManager[Callable[[], bool]]]) -> Solution:
        monkeypatch.setattr(life_cycle, "signals", signals)
        return totals.solve(store, options, RunOptions(output, resume=resume), note=told)

    stopped = run(False, interrupted_after(visits))
    assert stopped.outcome is Outcome.INTERRUPTED
    assert stopped.error_bound == math.inf
    assert stopped.value_lower is None
    assert not output.exists()
    resumed = run(True, lambda: nullcontext(lambda: False))
    assert resumed.outcome is Outcome.PROVED
    assert resumed.statistics.visits > stopped.statistics.visits
    assert np.abs(resumed.values - whole.values).max() <= resumed.error_bound + whole.error_bound
    assert notes[0].startswith(
        "continuing from the values of the checkpoint" if visits > 60 else ("continuing", "there is")
    )
    if notes[0].startswith("continuing"):
        assert resumed.statistics.loads >= stopped.statistics.loads + 10  # the analysis reads everything once more
    assert not (tmp_path / "r.checkpoint").exists()
    again = run(True, lambda: nullcontext(lambda: False))
    assert again.values.tolist() == resumed.values.tolist()
    assert "nothing is left to do" in notes[1]


def test_the_trace_has_every_access(tmp_path: Path) -> None:
    store = make_store(Case(gambler(0.4, 30), "max", "float64", 4), tmp_path / "m.store")
    s = solve(store, SolveOptions(TotalReward()), RunOptions(trace=tmp_path / "t.csv")).statistics
    lines = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines() if line[0].isdigit()]
    assert [line[2] for line in lines].count("frontier") == s.accesses == s.visits
    assert [line[2] for line in lines].count("auxiliary") == s.auxiliary_accesses
    assert sum(int(line[5]) for line in lines) == s.sweeps


def test_a_time_limit_ends_a_run_without_a_claim(tmp_path: Path) -> None:
    stopped = solved(tmp_path, gambler(0.4, 100), partitions=5, time_limit=1e-9)
    assert stopped.outcome is Outcome.TIME_LIMIT
    assert stopped.error_bound == math.inf
    assert stopped.value_upper is None


def test_what_float64_cannot_tell_apart_ends_as_a_matter_of_precision(tmp_path: Path) -> None:
    model = Model((State((to(-1e9, s1=1.0),)), State((to(-0.1, s2=0.5, s0=0.5),)), end()))
    solution = solved(tmp_path, model, epsilon=1e-12)
    assert solution.outcome is Outcome.PRECISION_LIMIT
    assert solution.error_bound == math.inf


def test_totals_beyond_float64_end_as_a_matter_of_precision_without_warnings(tmp_path: Path) -> None:
    """They are -1e312."""
    solution = solved(tmp_path, Model((State((to(-1e12, s0=1.0, s1=1e-300),)), end(0.0))))
    assert solution.outcome is Outcome.PRECISION_LIMIT
    assert solution.error_bound == math.inf


def test_a_stop_for_precision_does_not_keep_a_looser_target_from_being_reached(tmp_path: Path) -> None:
    store = make_store(Case(gambler(0.5, 50), "max", "float64", 5), tmp_path / "m.store")
    output = tmp_path / "r"
    assert (
        solve(store, SolveOptions(TotalReward(), epsilon=1e-17), RunOptions(output)).outcome is Outcome.PRECISION_LIMIT
    )
    looser = solve(store, SolveOptions(TotalReward(), epsilon=1e-2), RunOptions(output, resume=True))
    assert looser.outcome is Outcome.PROVED
    assert looser.error_bound <= 1e-2


def test_resuming_without_a_target_asks_for_the_usual_one(tmp_path: Path) -> None:
    store = make_store(Case(gambler(0.4, 50), "min", "float64", 5), tmp_path / "m.store")
    output = tmp_path / "r"
    coarse = solve(store, SolveOptions(TotalReward(), epsilon=0.5), RunOptions(output))
    usual = solve(store, SolveOptions(TotalReward()), RunOptions(output, resume=True))
    assert usual.error_bound <= 1e-4 < coarse.error_bound
    assert solve(store, SolveOptions(TotalReward()), RunOptions(output, resume=True)).statistics == usual.statistics


def test_a_result_that_cannot_be_written_is_kept_as_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(Case(gambler(0.4, 50), "min", "float64", 5), tmp_path / "m.store")

    def full(*_: object, **__: object) -> None:
        raise StoreError("no room")

    monkeypatch.setattr("ooc_mdp.solver.output.write_result", full)
    with pytest.raises(StoreError, match="no room"):
        solve(store, SolveOptions(TotalReward(), epsilon=1e-6), RunOptions(tmp_path / "r"))
    assert (tmp_path / "r.checkpoint").exists()
    monkeypatch.undo()
    solve(store, SolveOptions(TotalReward(), epsilon=1e-6), RunOptions(tmp_path / "r", resume=True))
    assert ooc_mdp.verify(tmp_path / "m.store", tmp_path / "r").holds


def test_a_small_cache_changes_loads_and_not_what_is_proved(tmp_path: Path) -> None:
    store = make_store(Case(random_walk(200), "max", "float64", 20), tmp_path / "m.store")
    small = solve(store, SolveOptions(TotalReward(), cache=CacheSize(size=3 * int(store.facts.partition_bytes.max()))))
    large = solve(store, SolveOptions(TotalReward(), cache=CacheSize(share=1.0)))
    s = np.arange(201)
    for solution in (small, large):
        assert solution.outcome is Outcome.PROVED
        assert np.abs(solution.values + s * (200.0 - s)).max() <= solution.error_bound <= 1e-4 * 10_000
        assert solution.statistics.cache_peak_bytes <= solution.statistics.cache_bytes
    assert large.statistics.loads == 20
    assert small.statistics.loads > 20
