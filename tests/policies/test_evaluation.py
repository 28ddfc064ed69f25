"""The value of a given policy is that of exact arithmetic, within the certificate, under each criterion."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exact_gains import KINDS, exact_policy_gains, random_gain_model
from exact_properties import of_policy
from exact_properties import random_model as random_labelled
from exact_stages import exact_stages, random_stage_model
from small_mdps import Case, evaluate, make_store, rows_of, stored
from store_models import Model, ModelSource, random_model
from total_rewards import Fault, policy_total

import ooc_mdp
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.policies.given import given_policy
from ooc_mdp.policies.table import policy_table
from ooc_mdp.store import Store


def random_policy(seed: int, model: Model) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = [len(state.actions) for state in model.states]
    return np.array([int(rng.integers(count)) if count else -1 for count in counts], np.int32)


def of_actions(model: Model, policy: np.ndarray) -> Model:
    """The model with the policy's actions alone."""
    states = [replace(s, actions=(s.actions[a],) if a >= 0 else ()) for s, a in zip(model.states, policy, strict=True)]
    return replace(model, states=tuple(states))


def assert_within(solution: Solution, exact: list[Fraction]) -> None:
    bound = Fraction(solution.error_bound)
    assert all(abs(Fraction(v) - e) <= bound for v, e in zip(solution.values.tolist(), exact, strict=True))
    assert Fraction(solution.certificate.lower) <= min(exact) <= max(exact) <= Fraction(solution.certificate.upper)


@pytest.mark.parametrize("method", ["auto", "p-eva", "vi", "policy-iteration"])
def test_discounted_values_are_those_of_exact_arithmetic(method: str) -> None:
    for seed in range(12):
        model = random_model(seed, 11, durations=seed % 2 > 0, initial_values=seed % 3 > 0)
        policy = random_policy(seed, model)
        with stored(Case(model, ("max", "min")[seed % 2], partitions=1 + seed % 4)) as store:
            solution = ooc_mdp.solve(store, discount=0.9, epsilon=1e-9, policy=policy, method=method, device="cpu")
            assert solution.outcome is Outcome.PROVED
            assert_within(solution, evaluate(rows_of(store), policy, 0.9))
            assert np.array_equal(solution.policy, policy)
            assert ooc_mdp.verify(store, solution).holds


def test_stages_are_those_of_exact_arithmetic() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        model = random_stage_model(rng)
        policy, n = random_policy(seed, model), len(model.states)
        final = rng.normal(size=n)
        asked = ooc_mdp.FiniteHorizon(7, 0.95, final_values=final, kept_stages=(3,))
        with stored(Case(model, ("max", "min")[seed % 2], partitions=1 + seed % min(4, n))) as store:
            rows = of_actions(model, policy).rows(np.arange(n))
            exact = exact_stages(rows, 7, 0.95, final, store.sense)
            solution = ooc_mdp.solve(store, asked, policy=policy, device="cpu")
            assert solution.stages is not None
            for stage, values in ((0, solution.values), (3, solution.stages.values(3))):
                error = Fraction(solution.stages.errors[stage])
                assert all(abs(Fraction(v) - e) <= error for v, e in zip(values.tolist(), exact[stage], strict=True))
            assert np.array_equal(solution.stages.policy(5), policy)
            assert ooc_mdp.verify(store, solution).holds


def test_totals_are_those_of_exact_arithmetic_or_refused() -> None:
    solved = 0
    for seed in range(30):
        model = random_model(seed, 8, max_actions=2)
        policy = random_policy(seed, model)
        exact = policy_total(model, tuple(policy.tolist()))
        with stored(Case(model, partitions=1 + seed % 3)) as store:
            if isinstance(exact, Fault) or not all(isinstance(each, Fraction) for each in exact):
                continue
            solution = ooc_mdp.solve(store, ooc_mdp.TotalReward(), epsilon=1e-8, policy=policy)
            assert solution.outcome is Outcome.PROVED
            assert solution.value_lower is not None
            assert solution.value_upper is not None
            for s, value in enumerate(exact):
                assert Fraction(solution.value_lower[s]) <= value <= Fraction(solution.value_upper[s])
            assert ooc_mdp.verify(store, solution).holds
            solved += 1
    assert solved > 9


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_holds_the_exact_gains_of_the_policy(kind: str) -> None:
    for seed in range(4):
        model = random_gain_model(seed, kind)
        policy = random_policy(seed, model)
        with stored(Case(model, partitions=1 + seed % min(3, len(model.states)))) as store:
            gains = exact_policy_gains(rows_of(store), policy)
            epsilon = 1e-8 * float(np.abs(store.facts.reward_range).max())
            solution = ooc_mdp.solve(store, ooc_mdp.AverageReward(), epsilon=epsilon, policy=policy)
            assert solution.gain is not None
            assert Fraction(solution.gain[0]) <= min(gains) <= max(gains) <= Fraction(solution.gain[1])
            assert ooc_mdp.verify(store, solution).holds


@pytest.mark.parametrize("seed", range(4))
def test_answers_about_goals_are_those_of_exact_arithmetic(seed: int) -> None:
    model = random_labelled(seed)
    P, R = model.arrays()
    labels = {"goal": sorted(model.goal), "avoid": sorted(model.avoid)}
    store = ooc_mdp.from_arrays(P, R, layout="state-first", labels=labels, partitions=1 + seed % 3)
    questions = {
        "reach": ooc_mdp.Reachability("goal", "avoid"),
        "reward": ooc_mdp.RewardToGoal("goal"),
        "total": ooc_mdp.TotalReward(infinite=True),
    }
    for policy in list(model.policies())[seed::11]:
        for kind, question in questions.items():
            solution = ooc_mdp.solve(store, question, epsilon=1e-7, policy=policy)
            assert solution.outcome is Outcome.PROVED
            for low, exact, high in zip(
                solution.value_lower, of_policy(model, policy, kind), solution.value_upper, strict=True
            ):
                assert exactly(low) <= exact <= exactly(high), (kind, policy)
            assert ooc_mdp.verify(store, solution).holds


def exactly(value: float) -> Fraction | float:
    return value if np.isinf(value) else Fraction(value)


WAYS = """@type: MDP
@parameters

@reward_models
steps toll
@nr_states
3
@model
state 0 [0, 0] init
\taction 0 [1, 1]
\t\t1 : 1
\taction 1 [1, 5]
\t\t2 : 1
state 1 [0, 0]
\taction 0 [1, 2]
\t\t2 : 1
state 2 [0, 0] goal
\taction 0 [0, 0]
\t\t2 : 1
"""


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_named_reward_models_pay_for_the_policys_rows(tmp_path: Path, partitions: int) -> None:
    (tmp_path / "m.drn").write_text(WAYS)
    store = ooc_mdp.convert(tmp_path / "m.drn", tmp_path / "m.store", partitions=partitions)
    for action, toll in ((0, 3.0), (1, 5.0)):
        solution = ooc_mdp.solve(store, ooc_mdp.RewardToGoal("goal", "toll"), policy=[action, 0, 0])
        assert solution.values.tolist() == pytest.approx([toll, 2.0, 0.0], abs=1e-3)
        assert solution.initial[0].lower <= toll <= solution.initial[0].upper
        assert ooc_mdp.verify(store, solution).holds


@pytest.fixture
def walk(tmp_path: Path) -> Store:
    return make_store(Case(random_model(3, 40), partitions=5), tmp_path / "m.store")


def test_the_policy_of_a_solve_has_its_value_within_both_bounds(tmp_path: Path, walk: Store) -> None:
    best = ooc_mdp.solve(walk, discount=0.95, epsilon=1e-6, output=tmp_path / "best", device="cpu")
    for given in (tmp_path / "best", ooc_mdp.open_result(tmp_path / "best"), best, best.policy):
        value = ooc_mdp.solve(walk, discount=0.95, epsilon=1e-6, policy=given, device="cpu")
        loss = best.error_bound + value.error_bound + best.certificate.policy_loss_bound
        assert np.abs(best.values - value.values).max() <= loss
        assert value.certificate.policy_loss_bound == np.inf
        assert value.criterion[EVALUATED] == given_policy(given).digest


def test_a_result_records_the_policy_and_is_verified_with_it(tmp_path: Path, walk: Store) -> None:
    best = ooc_mdp.solve(walk, discount=0.9, device="cpu")
    np.save(tmp_path / "p.npy", np.where(best.policy > 0, 0, best.policy))
    out = tmp_path / "r"
    solution = ooc_mdp.solve(walk, discount=0.9, policy=tmp_path / "p.npy", output=out, device="cpu")
    found = ooc_mdp.open_result(out)
    assert np.array_equal(found.policy, np.load(tmp_path / "p.npy"))
    assert found.identity[EVALUATED] == solution.criterion[EVALUATED]
    assert found.solution.certificate == solution.certificate
    assert ooc_mdp.verify(walk, out).holds
    with pytest.raises(StoreError, match="holds the policy of SHA-256"):
        ooc_mdp.verify(walk, replace(found, solution=replace(found.solution, policy=best.policy)))
    wrong = replace(found.solution, values=found.solution.values + 1.0)
    assert not ooc_mdp.verify(walk, replace(found, solution=wrong)).holds


def test_a_stopped_evaluation_continues_and_no_other_policy_does(tmp_path: Path, walk: Store) -> None:
    policy = np.minimum(ooc_mdp.solve(walk, discount=0.9, device="cpu").policy, 0)
    keywords = {"discount": 0.9, "output": tmp_path / "r", "device": "cpu"}
    stopped = ooc_mdp.solve(walk, **keywords, policy=policy, time_limit=1e-9)
    assert stopped.outcome is Outcome.TIME_LIMIT
    assert np.array_equal(stopped.policy, policy)
    with pytest.raises(OptionsError, match="fingerprint"):
        ooc_mdp.solve(walk, **keywords, resume=True)
    assert ooc_mdp.solve(walk, **keywords, policy=policy, resume=True).outcome is Outcome.PROVED
    notes: list[str] = []
    again = ooc_mdp.solve(walk, **keywords, policy=policy, resume=True, note=notes.append)
    assert np.array_equal(again.policy, policy)
    assert any("nothing is left to do" in note for note in notes)


FACTS = (
    "partition_rows",
    "partition_transitions",
    "partition_halo",
    "partition_bytes",
    "reward_range",
    "duration_range",
    "row_sum_range",
    "max_successors",
    "actions_per_state",
    "successors_per_action",
    "dyadic_probabilities",
    "duration_dtype",
)


def test_facts_are_those_of_the_policys_partitions(tmp_path: Path) -> None:
    for seed in range(6):
        model = random_model(seed, 30, uniform=seed % 2 > 0, durations=seed % 3 > 0, labels=seed > 2)
        policy = random_policy(seed, model)
        alone = of_actions(model, policy)
        options = ConvertOptions(shape=(30,), partition_grid=(5,), threads=1)
        store = convert(ModelSource(model), tmp_path / f"{seed}.store", options)
        due = convert(ModelSource(alone), tmp_path / f"{seed}.alone", options)
        table = policy_table(store, given_policy(policy))
        assert table.fingerprint not in (store.fingerprint, due.fingerprint)
        for name in FACTS:
            assert np.array_equal(getattr(table.facts, name), getattr(due.facts, name)), name
        for name in ("ptr", "partitions", "mass"):
            assert np.array_equal(getattr(table.facts.coupling, name), getattr(due.facts.coupling, name)), name
        for p in range(5):
            part, same = table.read(p)[0], due.read(p)[0]
            assert part.nbytes == table.facts.partition_bytes[p]
            for field in fields(part):
                assert np.array_equal(getattr(part, field.name), getattr(same, field.name)), field.name
            assert table.action_counts(p).tolist() == due.action_counts(p).tolist()


def test_policies_that_are_none_of_the_table_are_refused(tmp_path: Path, walk: Store) -> None:
    policy = ooc_mdp.solve(walk, discount=0.9, device="cpu").policy
    acts, ends = int(np.flatnonzero(policy >= 0)[0]), int(np.flatnonzero(policy < 0)[0])

    def refusal(given: object, question: object = None) -> str:
        with pytest.raises(OptionsError) as refused:
            ooc_mdp.solve(walk, question or ooc_mdp.Discounted(0.9), policy=given)
        return str(refused.value)

    def with_action(state: int, action: int) -> np.ndarray:
        return np.where(np.arange(policy.size) == state, action, policy)

    assert f"takes action 7 in state {acts}, which has " in refusal(with_action(acts, 7))
    assert f"takes action -1 in state {acts}, which has " in refusal(with_action(acts, -1))
    assert f"takes action 0 in state {ends}, which has no action: give -1" in refusal(with_action(ends, 0))
    assert f"the action of state {acts} is -2" in refusal(with_action(acts, -2))
    assert "has actions of 39 states, and" in refusal(policy[1:])
    assert "of type float64" in refusal(policy.astype(float))
    assert "neither a result nor a .npy file" in refusal(tmp_path / "nothing.npy")
    stages = ooc_mdp.solve(walk, ooc_mdp.FiniteHorizon(3), device="cpu")
    assert "for each of 3 stages" in refusal(stages)


def test_a_result_of_other_actions_is_refused(tmp_path: Path) -> None:
    model = random_model(5, 20, labels=True)
    store = make_store(Case(model, partitions=2), tmp_path / "m.store")
    states = [replace(s, actions=tuple(replace(a, label=a.label + 1) for a in s.actions)) for s in model.states]
    other = make_store(Case(replace(model, states=tuple(states)), partitions=3), tmp_path / "o.store")
    best = ooc_mdp.solve(store, discount=0.9, device="cpu")
    same = ooc_mdp.solve(store, discount=0.9, policy=best, device="cpu")
    assert np.array_equal(same.actions, best.actions)
    with pytest.raises(OptionsError, match="it is of a model with other actions"):
        ooc_mdp.solve(other, discount=0.9, policy=best, device="cpu")
    assert ooc_mdp.solve(other, discount=0.9, policy=best.policy, device="cpu").outcome.proved


def test_several_workers_refuse_a_policy(walk: Store) -> None:
    with pytest.raises(OptionsError, match="evaluated on one machine"):
        ooc_mdp.solve(walk, discount=0.9, policy=[0] * 40, workers=2)
