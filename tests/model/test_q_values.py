"""Values of actions are those of the equations, within the error that they state, for every criterion that has some."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exact_properties import random_model as random_property_model
from hypothesis import given, settings
from small_mdps import Case, cases, exact_q, optimum, rows_of, stored

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.reference.equations import q_values as reference_q
from ooc_mdp.store import Store

GAMMA = 0.9


@settings(max_examples=25, deadline=None)
@given(cases(shortest=0.3))
def test_exact_values_of_actions_lie_within_the_stated_error(case: Case) -> None:
    with stored(case) as store:
        solution = ooc_mdp.solve(store, GAMMA, epsilon=1e-3, device="cpu")
        rows, found = rows_of(store), solution.q_values()
        exact = optimum(rows, GAMMA, case.sense)
        nothing = -np.inf if case.sense == "max" else np.inf
        for s in range(rows.n_states):
            own = range(rows.action_ptr[s], rows.action_ptr[s + 1])
            for a, j in enumerate(own):
                due = exact_q(rows, exact, j, GAMMA)
                assert abs(Fraction(found.values[s, a]) - due) <= Fraction(found.error_bound)
            assert (found.values[s, len(own) :] == nothing).all()


def ring(tmp_path: Path, **how: object) -> Store:
    rng = np.random.default_rng(4)
    P = rng.dirichlet(np.ones(7), (7, 3))
    R = rng.normal(size=(7, 3))
    R[2, 1] = -np.inf
    return ooc_mdp.from_arrays(P, R, layout="state-first", path=tmp_path / "s", **how)  # type: ignore[arg-type]


def test_given_states_come_in_the_order_in_which_they_are_given(tmp_path: Path) -> None:
    solution = ooc_mdp.solve(ring(tmp_path, partitions=3), GAMMA, device="cpu")
    every = solution.q_values()
    assert every.values.shape == (7, 3)
    assert np.array_equal(solution.q_values([5, 0, 5]).values, every.values[[5, 0, 5]])
    assert solution.q_values([]).values.shape == (0, 0)
    assert np.array_equal(solution.q_values(2).values, every.values[[2], :2])
    assert every.values[2, 2] == -np.inf
    best = every.values.max(axis=1)
    assert np.abs(best - solution.values).max() <= every.error_bound + solution.error_bound


@pytest.mark.parametrize("criterion", [ooc_mdp.Discounted(GAMMA), ooc_mdp.Discounted(GAMMA, sense="min")])
def test_columns_have_the_sources_numbers_of_their_actions(tmp_path: Path, criterion: ooc_mdp.Discounted) -> None:
    store = ring(tmp_path, partitions=3)
    solution = ooc_mdp.solve(store, criterion, device="cpu")
    for found, states in ((solution.q_values(), range(7)), (ooc_mdp.q_values(store, solution, [5, 2]), (5, 2))):
        due = [[0, 2, -1] if s == 2 else [0, 1, 2] for s in states]
        assert found.actions.tolist() == due
        best = (found.values.argmin if criterion.sense else found.values.argmax)(axis=1)
        assert found.actions[range(len(best)), best].tolist() == solution.actions[list(states)].tolist()
    assert solution.q_values(2).actions.tolist() == [[0, 2]]


def test_solutions_and_values_of_actions_are_equal_to_themselves_alone(tmp_path: Path) -> None:
    solution = ooc_mdp.solve(ring(tmp_path), GAMMA, device="cpu", output=tmp_path / "r")
    for one, other in (
        (solution, pickle.loads(pickle.dumps(solution))),
        (solution.q_values(), solution.q_values()),
        (ooc_mdp.open_result(tmp_path / "r"), ooc_mdp.open_result(tmp_path / "r")),
    ):
        assert one == one
        assert one != other
        assert [other, one].index(one) == 1
        assert len({one, other}) == 2


def test_only_partitions_of_the_given_states_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solution = ooc_mdp.solve(ring(tmp_path, partitions=7), GAMMA, device="cpu")
    assert solution.table is not None
    read = []
    own = type(solution.table).read
    monkeypatch.setattr(type(solution.table), "read", lambda table, p: read.append(p) or own(table, p))
    solution.q_values([3, 1])
    assert sorted(read) == [1, 3]


def test_the_error_is_the_discount_times_that_of_the_values(tmp_path: Path) -> None:
    solution = ooc_mdp.solve(ring(tmp_path), GAMMA, epsilon=1e-2, device="cpu")
    assert solution.q_values().error_bound == pytest.approx(GAMMA * solution.error_bound, rel=1e-6)


def test_a_result_on_disk_has_values_of_actions_with_its_table(tmp_path: Path) -> None:
    store = ring(tmp_path, partitions=2)
    solution = ooc_mdp.solve(store, GAMMA, device="cpu", output=tmp_path / "r")
    result = ooc_mdp.open_result(tmp_path / "r")
    assert np.array_equal(ooc_mdp.q_values(tmp_path / "s", tmp_path / "r").values, solution.q_values().values)
    with pytest.raises(OptionsError, match=r"ooc_mdp.q_values\(table, result, states\)"):
        result.solution.q_values()
    other = ooc_mdp.from_arrays(np.ones((1, 7, 7)) / 7, np.zeros((7, 1)), path=tmp_path / "other")
    with pytest.raises(OptionsError, match=r"another table .* options, that it was solved from$"):
        ooc_mdp.q_values(other, result)


def test_a_copy_of_a_solution_leaves_the_table_where_it_is(tmp_path: Path) -> None:
    store = ring(tmp_path)
    solution = ooc_mdp.solve(store, GAMMA, device="cpu")
    for copied in (pickle.loads(pickle.dumps(solution)), copy.deepcopy(solution)):
        assert copied.table is None
        assert copied.certificate == solution.certificate
        assert np.array_equal(ooc_mdp.q_values(store, copied).values, solution.q_values().values)


@pytest.mark.parametrize("states", [[7], [-1], [0.5], "x"])
def test_states_that_there_are_not_are_refused(tmp_path: Path, states: object) -> None:
    solution = ooc_mdp.solve(ring(tmp_path), GAMMA, device="cpu")
    with pytest.raises(OptionsError, match="state"):
        solution.q_values(states)


def test_a_stage_needs_the_values_of_the_next(tmp_path: Path) -> None:
    store = ring(tmp_path, partitions=2)
    plan = ooc_mdp.solve(store, ooc_mdp.FiniteHorizon(4, kept_stages=(1, 4)), device="cpu")
    assert plan.stages is not None
    rows = rows_of(store)
    for stage in (0, 3):
        found = plan.q_values(stage=stage)
        due = reference_q(rows, plan.stages.values(stage + 1), 1.0)
        assert np.abs(found.values[np.isfinite(found.values)] - due).max() <= found.error_bound
    assert np.abs(plan.q_values().values.max(axis=1) - plan.values).max() <= 1e-12
    with pytest.raises(OptionsError, match="keep-stages 2"):
        plan.q_values(stage=1)
    with pytest.raises(OptionsError, match="stages are 0 to 3"):
        plan.q_values(stage=4)


def test_the_value_of_a_policy_gives_its_values_of_actions(tmp_path: Path) -> None:
    store = ring(tmp_path, partitions=2)
    policy = np.zeros(7, np.int64)
    solution = ooc_mdp.solve(store, GAMMA, device="cpu", policy=policy, output=tmp_path / "r")
    found = solution.q_values()
    assert np.abs(found.values[:, 0] - solution.values).max() <= found.error_bound + solution.error_bound
    assert found.values.max() > found.values[:, 0].max()
    assert np.array_equal(ooc_mdp.q_values(store, tmp_path / "r").values, found.values)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sense", ["max", "min"])
def test_questions_about_goals_have_values_of_actions(seed: int, sense: str) -> None:
    model = random_property_model(seed)
    P, R = model.arrays()
    labels = {"goal": sorted(model.goal), "avoid": sorted(model.avoid)}
    store = ooc_mdp.from_arrays(P, R, layout="state-first", labels=labels, partitions=2)
    for question in (
        ooc_mdp.Reachability("goal", "avoid", sense=sense),
        ooc_mdp.RewardToGoal("goal", sense=sense),
        ooc_mdp.TotalReward(sense=sense, infinite=True),
    ):
        solution = ooc_mdp.solve(store, question, epsilon=1e-7)
        q = solution.q_values()
        best = q.values.max(axis=1) if sense == "max" else q.values.min(axis=1)
        infinite = np.isinf(solution.values)
        assert np.array_equal(best[infinite], solution.values[infinite])
        gap = np.abs(best[~infinite] - solution.values[~infinite])
        assert gap.max(initial=0.0) <= q.error_bound + solution.error_bound


def test_criteria_without_values_of_actions_say_so(tmp_path: Path) -> None:
    P = np.full((3, 1, 3), 1 / 3)
    store = ooc_mdp.from_arrays(P, np.ones((3, 1)), layout="state-first", labels={"goal": [0]})
    with pytest.raises(OptionsError, match="relative"):
        ooc_mdp.solve(store, ooc_mdp.AverageReward()).q_values()
    with pytest.raises(OptionsError, match="--within 2"):
        ooc_mdp.solve(store, ooc_mdp.Reachability("goal", within=3)).q_values()
