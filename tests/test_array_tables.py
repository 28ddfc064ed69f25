"""`from_arrays` and `solve(P, R, ...)`: proved values of models that users type in, and what becomes of the store."""

from __future__ import annotations

import gc
import math
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sparse
from array_layouts import FORMS, given_models, meaning, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import distance, optimum
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp.array_tables import _remove
from ooc_mdp.errors import InputError, OptionsError, StoreError

FOREST_P = np.array([[[0.1, 0.9, 0], [0.1, 0, 0.9], [0.1, 0, 0.9]], [[1, 0, 0], [1, 0, 0], [1, 0, 0]]])
FOREST_R = np.array([[0, 0], [0, 1], [4, 2]])
"""pymdptoolbox's forest management: mdptoolbox.example.forest()."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, for one test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@settings(max_examples=25)
@given(given_models(), st.sampled_from(FORMS), st.sampled_from(["max", "min"]))
def test_values_of_every_layout_are_proved_and_actions_have_the_users_numbers(model, form, sense):
    if sense == "min":
        model.R = -model.R
    entered, said = typed(model, form), meaning(model, sense)
    if entered is None:
        return
    assert said is not None
    store = ooc_mdp.from_arrays(entered.P, entered.R, sense=sense, **entered.keywords)
    solution = ooc_mdp.solve(store, 0.75, epsilon=1e-9, device="cpu")
    ends = [float(model.R[s]) if model.R.ndim == 1 and not own else 0.0 for s, own in enumerate(said)]
    states = [State(tuple(Action(r, row) for row, r in own.values()), v) for own, v in zip(said, ends, strict=True)]
    rows = Model(tuple(states)).rows(np.arange(len(said)))
    assert solution.outcome.proved
    assert max(map(abs, distance(solution.values, optimum(rows, 0.75, sense)))) <= solution.error_bound
    assert solution.policy_loss_bound == solution.certificate.policy_loss_bound
    for s, own in enumerate(said):
        if not own:
            assert solution.actions[s] == -1
            continue
        row, reward = own[int(solution.actions[s])]
        q = reward + 0.75 * math.fsum(p * solution.values[t] for t, p in row.items())
        assert abs(q - solution.values[s]) <= 4e-9


def test_quantecon_s_two_states_are_typed_as_its_documentation_has_them():
    R = [[5, 10], [-1, -float("inf")]]
    Q = [[(0.5, 0.5), (0, 1)], [(0, 1), (0.5, 0.5)]]
    product = ooc_mdp.solve(ooc_mdp.from_arrays(Q, R, layout="state-first"), discount=0.95, epsilon=1e-6)
    pairs = ooc_mdp.from_arrays([(0.5, 0.5), (0, 1), (0, 1)], [5, 10, -1], s_indices=[0, 0, 1], a_indices=[0, 1, 0])
    sparse_pairs = ooc_mdp.from_arrays(
        sparse.lil_matrix([(0.5, 0.5), (0, 1), (0, 1)]), [5, 10, -1], s_indices=[0, 0, 1], a_indices=[0, 1, 0]
    )
    for solution in (product, *(ooc_mdp.solve(each, discount=0.95, epsilon=1e-6) for each in (pairs, sparse_pairs))):
        assert solution.values == pytest.approx([-8.57142857, -20.0], abs=2e-6)
        assert solution.actions.tolist() == [0, 0]


@pytest.mark.parametrize("P", [FOREST_P, list(FOREST_P), [sparse.csr_matrix(p) for p in FOREST_P], FOREST_P.tolist()])
def test_pymdptoolbox_s_forest_is_solved_in_one_line(P, temporary):
    solution = ooc_mdp.solve(P, FOREST_R, discount=0.9, epsilon=1e-6)
    assert solution.values == pytest.approx([26.244, 29.484, 33.484], abs=1e-6)
    assert solution.policy.tolist() == [0, 0, 0]
    assert solution.error_bound <= 1e-6
    q = solution.q_values([2])  # reads the store that was made of the arrays
    assert q.values[0] == pytest.approx([33.484, 2 + 0.9 * 26.244], abs=1e-6 + 0.9e-6)
    del solution, q
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_forbidden_first_action_leaves_the_numbers_of_the_others_as_typed():
    solution = ooc_mdp.solve(FOREST_P, np.where([[1, 0], [0, 0], [0, 0]], -np.inf, FOREST_R), discount=0.9)
    assert solution.policy[0] == 0
    assert solution.actions[0] == 1


def test_actions_of_a_result_are_those_of_its_solve(tmp_path):
    store = ooc_mdp.from_arrays(FOREST_P, [[None, 0], [0, 1], [4, 2]])
    solution = ooc_mdp.solve(store, discount=0.9, output=tmp_path / "r")
    assert ooc_mdp.open_result(tmp_path / "r").solution.actions.tolist() == solution.actions.tolist() == [1, 0, 0]
    assert ooc_mdp.verify(store, tmp_path / "r").holds
    assert ooc_mdp.verify(store, solution).holds


def test_a_temporary_store_lives_as_long_as_it_is_used(temporary):
    store = ooc_mdp.from_arrays(FOREST_P, FOREST_R)
    assert len(list(temporary.iterdir())) == 1
    _remove(str(temporary), owner=os.getpid() + 1)  # as a forked process does
    assert ooc_mdp.solve(store, discount=0.9).outcome.proved
    del store
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_messages_name_what_a_temporary_store_was_made_of_and_not_its_place(temporary):
    def stay(state):
        return [[(1.0, state, 1.0)]]

    for store, name in (
        (ooc_mdp.from_arrays(FOREST_P, FOREST_R), "the table of P and R"),
        (ooc_mdp.from_gymnasium(SimpleNamespace(P={0: {0: [(1.0, 0, 1.0, False)]}})), "the table of SimpleNamespace"),
        (ooc_mdp.from_rows(2, stay, per_state=True), "the table of the rows of stay"),
    ):
        assert repr(store).startswith(f"<Store {name}: ")
        assert store.name == name
        with pytest.raises(OptionsError, match=f"^{name} names no initial states"):
            ooc_mdp.solve(store, ooc_mdp.TotalReward(reachable=True))


def test_nothing_is_left_where_arrays_are_refused(temporary):
    with pytest.raises(ooc_mdp.InputError, match=r"state 0, action 0: probabilities sum to 0\.9, not 1"):
        ooc_mdp.solve(FOREST_P * 0.9, FOREST_R, discount=0.9)
    assert list(temporary.iterdir()) == []


def test_a_store_at_a_path_stays_and_is_not_replaced_unasked(tmp_path):
    path = tmp_path / "forest.store"
    ooc_mdp.from_arrays(FOREST_P, FOREST_R, path=path, partitions=3)
    assert ooc_mdp.open_store(path).n_partitions == 3
    with pytest.raises(StoreError, match=r"forest\.store"):
        ooc_mdp.from_arrays(FOREST_P, FOREST_R, path=path)
    ooc_mdp.from_arrays(FOREST_P, FOREST_R, path=path, overwrite=True)
    assert ooc_mdp.solve(path, 0.9).outcome.proved


def test_frames_of_pandas_and_arrays_of_xarray_are_read_by_position(tmp_path):
    pandas, xarray = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    expected = ooc_mdp.solve(FOREST_P, FOREST_R, discount=0.9).values
    frame = pandas.DataFrame(FOREST_R, index=["c", "a", "b"])
    matrices = [pandas.DataFrame(p) for p in FOREST_P]
    of_transitions = [pandas.DataFrame(np.repeat(r[:, None], 3, axis=1)) for r in FOREST_R.T]
    for P, R in (
        (FOREST_P, frame),
        (matrices, frame),
        (xarray.DataArray(FOREST_P), FOREST_R),
        (FOREST_P, of_transitions),
    ):
        np.testing.assert_allclose(ooc_mdp.solve(P, R, discount=0.9).values, expected)
    store = ooc_mdp.with_rewards(ooc_mdp.from_arrays(FOREST_P, FOREST_R * 0), frame, tmp_path / "other")
    np.testing.assert_allclose(ooc_mdp.solve(store, np.float64(0.9)).values, expected)
    with pytest.raises(InputError, match=r"R has shape \(2, 3\)"):
        ooc_mdp.solve(FOREST_P, frame.T, discount=0.9)
    with pytest.raises(InputError, match="R has dtype bool"):
        ooc_mdp.solve(FOREST_P, frame > 0, discount=0.9)


@pytest.mark.parametrize("second", [None, 0.9, ooc_mdp.Discounted(0.9)])
def test_p_without_rewards_is_refused_with_the_call_that_works(second):
    with pytest.raises(OptionsError, match=r"no array of rewards; give solve\(P, R, discount=0\.9\)"):
        ooc_mdp.solve(FOREST_P, second, discount=0.9)


def test_an_environment_is_solved_as_it_is_wrapped():
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("FrozenLake-v1", desc=["SF", "HG"], is_slippery=False, max_episode_steps=5)
    assert env is not env.unwrapped
    solution = ooc_mdp.solve(ooc_mdp.from_gymnasium(env), discount=0.5, epsilon=1e-9)
    assert solution.values == pytest.approx([0.5, 1.0, 0.0, 0.0], abs=1e-9)
    assert solution.actions[:2].tolist() == [2, 1]
    env.reset(seed=1)  # it is still open


def test_a_wrapper_that_changes_rewards_is_refused():
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.wrappers.TransformReward(gymnasium.make("FrozenLake-v1"), lambda reward: 2 * reward)
    with pytest.raises(InputError, match=r"FrozenLake-v1: the wrapper TransformReward changes rewards.*env\.unwrapped"):
        ooc_mdp.from_gymnasium(env)


def test_an_environment_without_a_table_is_refused():
    class Continuous:
        unwrapped = None

    Continuous.unwrapped = Continuous()
    with pytest.raises(InputError, match="gymnasium:Continuous: Continuous has no transition table P"):
        ooc_mdp.from_gymnasium(Continuous())


def test_an_infinite_reward_forbids_an_action_of_a_minimised_environment(tmp_path):
    P = {0: {0: [(1.0, 0, math.inf, False)], 3: [(1.0, 0, 2.0, False)]}}
    store = ooc_mdp.from_gymnasium(SimpleNamespace(P=P), sense="min", path=tmp_path / "s")
    solution = ooc_mdp.solve(store, discount=0.5, epsilon=1e-9)
    assert solution.values == pytest.approx([4.0], abs=1e-8)
    assert solution.actions.tolist() == [3]


def test_arrays_are_solved_under_any_criterion_that_comes_third() -> None:
    P, R = np.full((3, 2, 3), 1 / 3), np.array([[1.0, 0.0], [0.5, 2.0], [0.0, 0.25]])
    horizon = ooc_mdp.FiniteHorizon(7)
    solution = ooc_mdp.solve(P, R, horizon)
    np.testing.assert_array_equal(solution.values, ooc_mdp.solve(ooc_mdp.from_arrays(P, R), horizon).values)
    with pytest.raises(OptionsError, match=r"solve\(P, R, FiniteHorizon\(40\)\)"):
        ooc_mdp.solve(P, horizon)
    store = ooc_mdp.from_arrays(P, R)
    with pytest.raises(OptionsError, match=r"comes after arrays P and R.* give solve\(table, FiniteHorizon\(40\)\)"):
        ooc_mdp.solve(store, 0.9, horizon)
    for asked in ({"arrays_criterion": horizon}, {"discount": 0.9}):
        with pytest.raises(OptionsError, match=r"rewards of its own; .* solve\(ooc_mdp\.with_rewards\(table, R, 'NAME"):
            ooc_mdp.solve(store, R, **asked)


def test_costs_are_minimised_where_the_criterion_says_so_and_infinite_ones_forbid():
    costs = np.array([[1.0, np.inf], [2.0, 1.0], [np.inf, 0.5]])
    stored = ooc_mdp.from_arrays(FOREST_P, costs, sense="min")
    for criterion in (ooc_mdp.Discounted(0.9, sense="min"), ooc_mdp.AverageReward(sense="min")):
        solution = ooc_mdp.solve(FOREST_P, costs, criterion)
        np.testing.assert_array_equal(solution.values, ooc_mdp.solve(stored, criterion).values)
        assert solution.actions[[0, 2]].tolist() == [0, 1]
        assert ooc_mdp.verify(stored, solution).holds


def test_a_sense_beside_the_criterion_is_refused_with_what_minimises():
    with pytest.raises(TypeError, match=r"Discounted\(0\.9, sense='min'\), or .* from_arrays\(P, C, sense='min'\)"):
        ooc_mdp.solve(FOREST_P, FOREST_R, discount=0.9, sense="min")


@pytest.mark.parametrize(
    ("criterion", "call"),
    [
        (ooc_mdp.AverageReward, r"AverageReward\(\)"),
        (ooc_mdp.TotalReward, r"TotalReward\(\)"),
        (ooc_mdp.Discounted, r"Discounted\(discount\)"),
        (ooc_mdp.FiniteHorizon, r"FiniteHorizon\(stages\)"),
    ],
)
def test_a_class_in_place_of_a_criterion_is_named_with_the_call_that_works(criterion, call):
    with pytest.raises(OptionsError, match=f"criterion is the class .*; give {call}, with parentheses"):
        ooc_mdp.solve(FOREST_P, FOREST_R, criterion)


def test_states_that_no_initial_state_reaches_do_not_block_the_total_of_the_others():
    P = {0: {0: [(1.0, 1, -1.0, True)]}, 1: {0: [(1.0, 1, 0.0, True)]}, 2: {0: [(1.0, 2, -1.0, False)], 1: None}}
    env = SimpleNamespace(P=P, initial_state_distrib=np.array([1.0, 0.0, 0.0]))
    store = ooc_mdp.from_gymnasium(env)
    with pytest.raises(ooc_mdp.UndefinedTotalError, match=r"state 2 is minus infinity.* add --infinite \(in Python"):
        ooc_mdp.solve(store, ooc_mdp.TotalReward())
    solution = ooc_mdp.solve(store, ooc_mdp.TotalReward(infinite=True))
    assert solution.values.tolist() == [pytest.approx(-1, abs=1e-6), 0.0, -math.inf]
    assert [answer.state for answer in solution.initial] == [0]
