"""Transition tables of Gymnasium environments, and what done means in them."""

from __future__ import annotations

import sys
from collections import UserDict, defaultdict
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from format_checks import read, refusal, value_iteration
from paths import PUBLIC

import ooc_mdp
from ooc_mdp.errors import MissingExtraError
from ooc_mdp.io.gymnasium import GYMNASIUM
from ooc_mdp.io.source import ReadOptions

LOOP_OF_ACTION = [(1.0, 0, 1.0, False)]


class FakeEnvironment:
    """What gymnasium.make returns, with a table of our own."""

    def __init__(self, table, observation_space=None, action_space=None):
        self.unwrapped = self
        self.P = table
        self.observation_space = observation_space
        self.action_space = action_space

    def close(self):
        pass


@pytest.fixture
def made(monkeypatch):
    """Registers a table to be returned by gymnasium.make."""
    gymnasium = pytest.importorskip("gymnasium")

    def register(table, **spaces):
        monkeypatch.setattr(gymnasium, "make", lambda name, **kwargs: FakeEnvironment(table, **spaces))

    return register


def test_frozen_lake_has_the_reference_values():
    pytest.importorskip("gymnasium")
    case = PUBLIC / "gym-frozenlake-4x4"
    if not case.is_dir():
        pytest.skip("the shared cases are not here")
    rows = read(GYMNASIUM, "gymnasium:FrozenLake-v1", segment_bytes=2000)
    assert rows["blocks"] > 1
    with np.load(case / "reference.npz") as reference:
        np.testing.assert_allclose(value_iteration(rows, 0.99)[:16], reference["V_max_0p99"], atol=1e-9)


def test_frozen_lake_without_slipping_is_a_shortest_path():
    pytest.importorskip("gymnasium")
    rows = read(GYMNASIUM, "gymnasium:FrozenLake-v1?is_slippery=false&map_name=4x4")
    assert value_iteration(rows, 0.9)[0] == pytest.approx(0.9**5)


def test_cliff_walking_costs_thirteen_steps():
    pytest.importorskip("gymnasium")
    rows = read(GYMNASIUM, "gymnasium:CliffWalking-v1")
    values = value_iteration(rows, 0.9)
    assert values[36] == pytest.approx(-(1 - 0.9**13) / 0.1)
    assert rows["action_ptr"].size == 50


def test_tuples_to_one_successor_are_added_and_their_rewards_averaged(made):
    made(
        {
            0: {0: [(0.5, 1, 3.0, True), (0.25, 1, 5.0, True), (0.25, 0, 1.0, False)]},
            1: {0: [(1.0, 1, 0, True)]},
        }
    )
    rows = read(GYMNASIUM, "gymnasium:Any-v0")
    np.testing.assert_array_equal(rows["action_ptr"], [0, 1, 1])
    np.testing.assert_array_equal(rows["successors"], [0, 1])
    np.testing.assert_array_equal(rows["probabilities"], [0.25, 0.75])
    np.testing.assert_array_equal(rows["rewards"], [3.0])


def test_a_successor_entered_done_and_not_done_keeps_its_rows_and_done_goes_to_a_last_state(made):
    made({0: {0: [(1.0, 1, 7.0, True)], 1: [(1.0, 1, 1.0, False)]}, 1: {0: [(1.0, 0, 2.0, False)]}})
    rows = read(GYMNASIUM, "gymnasium:Any-v0")
    np.testing.assert_array_equal(rows["action_ptr"], [0, 2, 3, 3])
    np.testing.assert_array_equal(rows["successors"], [2, 1, 0])
    assert value_iteration(rows, 0.5) == pytest.approx([7.0, 5.5, 0.0])


def test_a_bandit_whose_only_state_is_entered_done_pays_once(made):
    made({0: {0: [(1.0, 0, 3.0, True)], 1: [(1.0, 0, 4.0, True)]}})
    rows = read(GYMNASIUM, "gymnasium:Any-v0")
    assert value_iteration(rows, 0.9) == pytest.approx([4.0, 0.0])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({0: {0: [(1.0, 0, 0.0)]}}, "must hold (probability, state, reward, done)"),
        ({0: {-1: [(1.0, 0, 0.0, False)]}}, "P[0] has an action -1; actions are numbered from 0"),
        ({0: {0: [(1.0, 5, 0.0, False)]}}, "leads to state 5, but has only 1 states"),
        ({0: {0: [(1.0, -1, 0.0, False)]}}, "state 0, action 0: successor -1 is negative"),
        ({0: {0: [(0.5, 0, 0.0, False)]}}, "probabilities sum to 0.5"),
        ({0: {0: []}}, "has no successors"),
        ({0: 3}, "P[0] is a int"),
        ({}, "has no transition table P"),
        (None, "has no transition table P"),
    ],
)
def test_tables_that_are_no_mdp_are_refused(made, table, said):
    made(table)
    assert said in str(refusal(GYMNASIUM, "gymnasium:Any-v0"))


def grid_table():
    """Three states with tuples as keys, in dictionaries that invent what they are asked for."""
    table = defaultdict(lambda: defaultdict(list))
    table[0, 0][0] = [(0.5, (0, 0), 1.0, False), (0.5, (0, 1), 1.0, False)]
    table[0, 0][1] = [(1.0, (1, 0), 0.5, True)]
    table[0, 1][0] = [(1.0, (0, 0), 0.0, False)]
    table[0, 1][1] = [(1.0, (1, 0), 4.0, True)]
    table[1, 0][0] = table[1, 0][1] = [(1.0, (1, 0), 0.0, True)]
    return table


def test_states_with_tuples_as_keys_are_numbered_in_the_order_of_the_entries(made):
    table = grid_table()
    made(table)
    values = value_iteration(read(GYMNASIUM, "gymnasium:Any-v0"), 0.9)
    assert values == pytest.approx([float(Fraction(200, 29)), float(Fraction(180, 29)), 0.0])
    assert list(table) == [(0, 0), (0, 1), (1, 0)]


def test_a_table_in_a_dictionary_that_invents_entries_keeps_its_states(made):
    table = defaultdict(dict)
    table[1] = {0: [(1.0, 0, 2.0, False)]}
    table[0] = {0: [(1.0, 1, 1.0, False)]}
    made(UserDict(table))
    np.testing.assert_array_equal(read(GYMNASIUM, "gymnasium:Any-v0")["rewards"], [1.0, 2.0])
    made(defaultdict(dict, {0: table[0], 1: table[1], 3: table[1]}))
    assert "P has no entry 2; its keys must be 0, 1, 2, ..." in str(refusal(GYMNASIUM, "gymnasium:Any-v0"))


def test_integers_and_numbers_of_numpy_are_read_as_such(made):
    entry = [np.float32(1.0), np.uint8(1), np.int64(3), np.bool_(False)]
    made({np.int64(0): [[entry]], np.int32(1): [[(1, 0, Fraction(1, 4), False)]]})
    np.testing.assert_array_equal(read(GYMNASIUM, "gymnasium:Any-v0")["rewards"], [3.0, 0.25])


def one_entry(entry):
    return {0: {0: [entry]}, 1: {0: [(1.0, 1, 0.0, False)]}}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ((1.0, 1.9, 0.0, False), "the next state is 1.9, a float, not an integer"),
        ((1.0, 1.0, 0.0, False), "the next state is 1.0, a float, not an integer"),
        ((1.0, np.float64(1), 0.0, False), "a float64, not an integer"),
        ((1.0, True, 0.0, False), "the next state is True, a bool, not an integer"),
        ((1.0, "1", 0.0, False), "the next state is '1', a str, not an integer"),
        ((1.0, None, 0.0, False), "the next state is None"),
        ((1.0, 2**70, 0.0, False), "but has only 2 states"),
        ((1.0, -(2**70), 0.0, False), "but has only 2 states"),
        ((1.0, 1, 0.0, "False"), "done is 'False', a str, not True or False"),
        ((1.0, 1, 0.0, 0), "done is 0, a int, not True or False"),
        ((1.0, 1, 0.0, None), "done is None"),
        (("1.0", 1, 0.0, False), "probability is '1.0', a str, not a real number"),
        ((True, 1, 0.0, False), "probability is True, a bool, not a real number"),
        ((1.0, 1, 1j, False), "reward is 1j, a complex, not a real number"),
        ((1.0, 1, False, False), "reward is False, a bool, not a real number"),
        ((1.0, 1, 10**400, False), "reward is 1000"),
        ((1.0, 1, np.array([1.0]), False), "a ndarray, not a real number"),
        ((1.0, 1, float("nan"), False), "reward of successor 1 is NaN"),
        (np.array([1.0, 1, 0, 0]), "must hold (probability, state, reward, done)"),
        ({1.0: 0, 0: 0, 2: 0, 3: 1}, "must hold (probability, state, reward, done)"),
        ("1010", "must hold (probability, state, reward, done)"),
        ((1.0, 1, 0.0, False, {}), "must hold (probability, state, reward, done)"),
    ],
)
def test_entries_of_other_types_are_refused_and_never_converted(made, entry, said):
    made(one_entry(entry))
    error = str(refusal(GYMNASIUM, "gymnasium:Any-v0"))
    assert said in error
    assert "P[0][0]" in error or "state 0, action 0" in error


LOOP = {0: [(1.0, 0, 0.0, False)]}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({0: LOOP, 1.0: LOOP}, "P has the key 1.0, a float"),
        ({0.0: LOOP, 1.0: LOOP}, "P has the key 0.0, a float"),
        ({False: LOOP, True: LOOP}, "P has the key False, a bool"),
        ({0: LOOP, (0, 1): LOOP}, "P has the key (0, 1), a tuple"),
        ({1: LOOP, 2: LOOP}, "P has no entry 0"),
        ({"0": LOOP, "1": LOOP}, "P['0'][0] leads to 0, a int, which is no key of P"),
        ({(0,): {0: [(1.0, [0], 0.0, False)]}}, "P[(0,)][0] leads to [0], a list, which is no key of P"),
        ({0: {"left": LOOP[0]}}, "P[0] has the key 'left', a str; its keys must be 0, 1, 2"),
        ({0: {0.0: LOOP[0]}}, "P[0] has the key 0.0, a float"),
        ({0: {0: {0: LOOP[0][0]}}}, "P[0][0] is a dict; it must be a list"),
        ({0: {0: set(LOOP[0])}}, "P[0][0] is a set; it must be a list"),
        ({0: {0: LOOP[0][0]}}, "P[0][0] holds 1.0"),
        ({0: "ab"}, "P[0] is a str"),
        ("ab", "P is a str"),
        ([LOOP, np.ones((1, 1))], "P[1] is a ndarray"),
        (np.ones((2, 2, 2)), "is an ndarray of shape (2, 2, 2)"),
    ],
)
def test_keys_and_containers_that_say_no_state_set_are_refused(made, table, said):
    made(table)
    assert said in str(refusal(GYMNASIUM, "gymnasium:Any-v0"))


def test_rows_of_a_state_that_ends_the_episode_are_checked_before_they_are_left_out(made):
    made({0: {0: [(1.0, 1, 1.0, True)]}, 1: {0: [(0.5, 1, 0.0, True)]}})
    assert "state 1, action 0: probabilities sum to 0.5" in str(refusal(GYMNASIUM, "gymnasium:Any-v0"))


def test_the_environments_spaces_are_compared_with_the_table(made):
    spaces = pytest.importorskip("gymnasium").spaces
    table = {0: {0: [(1.0, 0, 1.0, False)], 1: [(1.0, 0, 2.0, False)]}}
    made(table, observation_space=spaces.Discrete(1), action_space=spaces.Discrete(2))
    np.testing.assert_array_equal(read(GYMNASIUM, "gymnasium:Any-v0")["rewards"], [1.0, 2.0])
    made(table, observation_space=spaces.MultiBinary(7))
    assert read(GYMNASIUM, "gymnasium:Any-v0")["action_ptr"].size == 2
    for wrong, said in (
        ({"observation_space": spaces.Discrete(2)}, "P has 1 states, the observation space 2"),
        ({"observation_space": SimpleNamespace(n=3)}, "P has 1 states, the observation space 3"),
        ({"observation_space": spaces.Discrete(1, start=1)}, "begins with 1"),
        ({"action_space": spaces.Discrete(1)}, "P[0] has an action 1; the action space has 1 actions, from 0 on"),
    ):
        made(table, **wrong)
        assert said in str(refusal(GYMNASIUM, "gymnasium:Any-v0"))


@pytest.mark.parametrize("error", [IndexError("x"), RuntimeError("y"), SystemExit(0), ZeroDivisionError()])
def test_whatever_an_environment_raises_is_a_message(monkeypatch, error):
    def make(name, **arguments):
        raise error

    monkeypatch.setattr(pytest.importorskip("gymnasium"), "make", make)
    said = str(refusal(GYMNASIUM, "gymnasium:Any-v0"))
    assert f"gymnasium.make('Any-v0') failed: {type(error).__name__}" in said


def test_lists_and_tuples_may_be_arguments_of_an_environment():
    pytest.importorskip("gymnasium")
    rows = read(GYMNASIUM, 'gymnasium:FrozenLake-v1?desc=["SF","HG"]&is_slippery=false')
    assert value_iteration(rows, 0.9)[0] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("gymnasium:NoSuchThing-v0", "doesn't exist"),
        ("gymnasium:FrozenLake-v1?colour=red", "unexpected keyword argument"),
        ("gymnasium:FrozenLake-v1?is_slippery", "name=value"),
        ("gymnasium:FrozenLake-v1?reward_schedule=x", "failed: IndexError"),
        ("gymnasium:FrozenLake-v1?is_slippery=true&is_slippery=false", "'is_slippery' is given twice"),
        ('gymnasium:FrozenLake-v1?desc=["SF"', "is no Python literal"),
        ("gymnasium:CartPole-v1", "has no transition table P"),
    ],
)
def test_environments_that_cannot_be_made_are_refused(source, said):
    pytest.importorskip("gymnasium")
    assert said in str(refusal(GYMNASIUM, source))


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtraError, match=r"ooc-mdp\[gymnasium\]"):
        GYMNASIUM.open("gymnasium:FrozenLake-v1", ReadOptions())


@pytest.mark.parametrize(
    ("actions", "labels"),
    [
        ({0: LOOP_OF_ACTION, 2: LOOP_OF_ACTION}, [0, 2]),
        ({2: LOOP_OF_ACTION, 1: LOOP_OF_ACTION}, [1, 2]),
        ([LOOP_OF_ACTION, None, LOOP_OF_ACTION], [0, 2]),
        ({0: None, 1: LOOP_OF_ACTION}, [1]),
        ([[(0.5, 0, -np.inf, False), (0.5, 1, -np.inf, True)], LOOP_OF_ACTION], [1]),
    ],
)
def test_actions_that_are_missing_none_or_infinitely_bad_are_not_available(made, actions, labels):
    made({0: actions, 1: {0: [(1.0, 1, 0.0, True)]}})
    (block,) = GYMNASIUM.open("gymnasium:Any-v0", ReadOptions()).blocks()
    rows = block().rows
    assert rows.action_ptr.tolist() == [0, len(labels), len(labels)]
    assert rows.action_labels.tolist() == labels


def test_an_infinite_reward_beside_a_finite_one_is_refused(made):
    made({0: {0: [(0.5, 0, -np.inf, False), (0.5, 0, 1.0, False)]}})
    assert "state 0, action 0: reward of successor 0 is -inf" in str(refusal(GYMNASIUM, "gymnasium:Any-v0"))
    made({0: {0: [(1.0, 0, np.inf, False)]}})
    assert "reward of successor 0 is inf" in str(refusal(GYMNASIUM, "gymnasium:Any-v0"))


@pytest.mark.parametrize(
    ("starts", "initial", "left"),
    [
        (np.array([0.0, 1.0]), [1], False),
        (np.array([0.25, 0.75]), [0, 1], True),
        (np.array([1.0]), None, True),
        ("first", None, True),
        (None, None, False),
    ],
)
def test_states_in_which_an_episode_may_begin_are_initial_states(
    starts: Any, initial: list[int] | None, left: bool
) -> None:
    rows = {state: {0: [(1.0, 1 - state, 1.0, False)]} for state in (0, 1)}
    env = SimpleNamespace(P=rows, initial_state_distrib=starts)
    notes = list[str]()
    store = ooc_mdp.from_gymnasium(env, note=notes.append)
    if initial is None:
        assert "init" not in store.annotations.labels
    else:
        assert np.flatnonzero(store.annotations.label("init")).tolist() == initial
    assert any("probabilities of initial states" in note for note in notes) == left
