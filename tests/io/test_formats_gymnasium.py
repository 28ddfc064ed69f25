"""Transition tables of Gymnasium environments, and what done means in them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from format_checks import read, refusal, value_iteration
from paths import PUBLIC

from ooc_mdp.errors import MissingExtraError
from ooc_mdp.formats.base import ReadOptions
from ooc_mdp.formats.gymnasium_env import GYMNASIUM


class FakeEnvironment:
    """What gymnasium.make returns, with a table of our own."""

    def __init__(self, table):
        self.unwrapped = self
        self.P = table
        self.observation_space = self

    def close(self):
        pass


@pytest.fixture
def made(monkeypatch):
    """Registers a table to be returned by gymnasium.make."""
    gymnasium = pytest.importorskip("gymnasium")

    def register(table):
        monkeypatch.setattr(gymnasium, "make", lambda name, **kwargs: FakeEnvironment(table))

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
        ({0: {1: [(1.0, 0, 0.0, False)]}}, "its keys must be 0, 1, 2"),
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


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("gymnasium:NoSuchThing-v0", "doesn't exist"),
        ("gymnasium:FrozenLake-v1?colour=red", "unexpected keyword argument"),
        ("gymnasium:FrozenLake-v1?is_slippery", "name=value"),
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
