"""`with_rewards`: other rewards for the transitions of a store, and what is found when either of them changes."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import distance, optimum
from store_models import Model, ModelSource, State, model_in, random_model, state_rows

import ooc_mdp
from ooc_mdp.errors import InputError, OptionsError, StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.store.sealed_group import group_attributes


def stored(model: Model, path: Path, **options: object):
    return convert(ModelSource(model), path, ConvertOptions(**{"partitions": 3, **options}))


def paid(s, a, t):
    """Some reward of each transition, which float64 holds exactly."""
    return s - 2.0 * a + t % 3


def expected_rewards(model: Model) -> Model:
    """The model with the mean of `paid` in the place of its rewards, and 0 in that of its terminal rewards."""
    states = []
    for s, state in enumerate(model.states):
        actions = [
            replace(a, reward=sum(p * paid(s, a.label, t) for t, p in a.successors.items())) for a in state.actions
        ]
        states.append(State(tuple(actions), 0.0, state.initial_value))
    return replace(model, states=tuple(states))


@settings(max_examples=5)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from(["ranges", "grid"]))
def test_rewards_of_transitions_are_averaged_and_everything_else_is_kept(seed, labels, partitioner):
    model = random_model(seed, 12, durations=True, labels=labels)
    shape = {"shape": (3, 4)} if partitioner == "grid" else {}
    with tempfile.TemporaryDirectory() as folder:
        base = stored(model, Path(folder) / "base", partitioner=partitioner, partitions=4, **shape)
        store = ooc_mdp.with_rewards(base, paid, Path(folder) / "other")
        assert model_in(store).states == expected_rewards(model).states
        assert store.check().findings == ()
        solution = ooc_mdp.solve(store, 0.8, epsilon=1e-9, device="cpu")
        exact = optimum(expected_rewards(model).rows(np.arange(12)), 0.8)
        assert max(map(abs, distance(solution.values, exact))) <= solution.error_bound


def test_rewards_of_states_are_the_values_of_terminal_states(tmp_path):
    model = random_model(3, 30)
    base = stored(model, tmp_path / "base")
    store = ooc_mdp.with_rewards(base, np.arange(30), tmp_path / "other", sense="min")
    for s, (state, before) in enumerate(zip(model_in(store).states, model.states, strict=True)):
        assert [a.reward for a in state.actions] == [s] * len(before.actions)
        assert state.terminal_reward == (0 if before.actions else s)
    assert store.sense == "min"


def test_rewards_of_pairs_go_by_the_numbers_of_the_actions(tmp_path):
    model = random_model(4, 20, labels=True)
    ended = [s for s, state in enumerate(model.states) if not state.actions]
    rewards = np.full((20, 40), np.nan)
    for s, state in enumerate(model.states):
        for action in state.actions:
            rewards[s, action.label] = 100 * s + action.label
    base = stored(model, tmp_path / "base")
    store = ooc_mdp.with_rewards(base, rewards, tmp_path / "other", terminal={ended[0]: 7})
    found = model_in(store)
    assert all(a.reward == 100 * s + a.label for s, state in enumerate(found.states) for a in state.actions)
    assert [found.states[s].terminal_reward for s in ended] == [7.0] + [0.0] * (len(ended) - 1)
    again = ooc_mdp.with_rewards(tmp_path / "other", np.zeros(20), tmp_path / "third")
    assert again.base.path == tmp_path / "base"
    assert {a.reward for state in model_in(again).states for a in state.actions} == {0.0}


def test_a_store_of_other_rewards_is_solved_verified_checked_and_inspected_by_its_path(tmp_path):
    model = random_model(5, 40)
    stored(model, tmp_path / "base", partitions=6)
    ooc_mdp.with_rewards(tmp_path / "base", paid, tmp_path / "other")
    solve = ("solve", tmp_path / "other", "--discount", 0.9, "--epsilon", 1e-8, "--output", tmp_path / "r")
    assert ooc(*solve, "--device", "cpu").status == 0
    assert ooc("verify", tmp_path / "other", tmp_path / "r").status == 0
    assert ooc("verify", tmp_path / "base", tmp_path / "r").status == 2
    assert "6 partitions checked, 0 findings" in ooc("check", tmp_path / "other").out
    assert f"for the transitions of {tmp_path / 'base'}" in ooc("inspect", tmp_path / "other").out
    figures = json.loads(ooc("inspect", tmp_path / "other", "--json").out)
    assert figures["n_states"] == 40
    assert figures["provenance"]["source"] == str(tmp_path / "base")
    exact = optimum(expected_rewards(model).rows(np.arange(40)), 0.9)
    result = ooc_mdp.open_result(tmp_path / "r")
    assert max(map(abs, distance(result.values, exact))) <= 1e-8


def test_total_rewards_take_other_rewards(tmp_path):
    base = ooc_mdp.from_rows(
        3,
        lambda s: (np.minimum(s + 1, 2)[:, None, None], 1.0, np.where(s < 2, 0.0, -np.inf)[:, None]),
        path=tmp_path / "b",
    )
    store = ooc_mdp.with_rewards(base, [[2.0], [3.0], [np.inf]], tmp_path / "other", terminal={2: 10.0})
    solution = ooc_mdp.solve(store, ooc_mdp.TotalReward(), epsilon=1e-9)
    assert solution.values == pytest.approx([15.0, 13.0, 10.0], abs=1e-9)


@pytest.mark.parametrize(
    ("rewards", "options", "error", "message"),
    [
        (np.zeros(5), {}, InputError, r"they have shape \(5,\); give \(20,\) as r\(s\) or \(20, actions\)"),
        (np.zeros((20, 1)), {}, InputError, r"state \d+ has action 1, but the rewards are of 1 actions, from 0 on"),
        (np.full((20, 3), np.nan), {}, InputError, r"state \d+, action 0: the reward nan is not a finite float64"),
        (lambda s, a, t: np.zeros(3), {}, InputError, r"the function returned shape \(3,\) for \d+ transitions"),
        (lambda s, a, t: s / 0.0, {}, InputError, r"state \d+, action 0: the reward of successor \d+ is"),
        (np.full(20, 2**53 + 1), {}, InputError, r"rewards\[0\] is 9007199254740993, which float64 would round"),
        (np.zeros((20, 3)), {"terminal": {20: 1.0}}, OptionsError, r"terminal has state 20; the 20 states are 0\.\.19"),
        (np.zeros((20, 3)), {"terminal": dict.fromkeys(range(20), 1)}, OptionsError, r"state \d+, which has actions"),
        (np.zeros(20), {"terminal": {1: 1.0}}, OptionsError, r"rewards r\(s\) have the values of terminal states"),
        (np.zeros(20), {"sense": "most"}, OptionsError, "sense is 'most'; give max or min"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_rewards_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, rewards, options, error, message):
    base = stored(random_model(4, 20), tmp_path / "base")
    with pytest.raises(error, match=message):
        ooc_mdp.with_rewards(base, rewards, tmp_path / "other", **options)
    assert os.listdir(tmp_path) == ["base"]


def test_a_base_that_is_missing_or_has_changed_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    stored(random_model(4, 20), tmp_path / "folder" / "base")
    ooc_mdp.with_rewards(tmp_path / "folder" / "base", np.zeros(20), tmp_path / "folder" / "other")
    (tmp_path / "folder").rename(tmp_path / "elsewhere")
    base, other = (tmp_path / "elsewhere" / name for name in ("base", "other"))
    assert ooc_mdp.open_store(other).base.path == base  # moved together
    shutil.rmtree(base)
    with pytest.raises(
        StoreError, match=r"has rewards for the transitions of .*base, which is gone; put that store back"
    ):
        ooc_mdp.open_store(other)
    stored(random_model(5, 20), base)
    with pytest.raises(StoreError, match=r"has rewards for other transitions than those of .*base \(fingerprint"):
        ooc_mdp.open_store(other)


def test_rewards_for_a_temporary_store_keep_it_while_they_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rewards = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    model = np.eye(3)[None].repeat(2, 0), rewards
    store = ooc_mdp.with_rewards(ooc_mdp.from_arrays(*model, sense="min"), rewards + 1, tmp_path / "other")
    gc.collect()
    assert ooc_mdp.solve(store, discount=0.5, epsilon=1e-9).values == pytest.approx([4, 8, 12])
    del store
    gc.collect()
    assert os.listdir(tmp_path) == ["other"]
    with pytest.raises(StoreError, match=r"which is gone; .*make it again by ooc_mdp.with_rewards; .*give path="):
        ooc_mdp.open_store(tmp_path / "other")


def test_a_damaged_chunk_of_rewards_is_found(tmp_path):
    base = stored(random_model(4, 20), tmp_path / "base")
    store = ooc_mdp.with_rewards(base, paid, tmp_path / "other")
    chunk = tmp_path / "other" / "rewards" / "c" / "0"
    content = bytearray(chunk.read_bytes())
    content[20] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(StoreError, match=r"other is damaged \(rewards/c/0 has the CRC-32C"):
        store.read(0)
    assert [f.field for f in store.check().findings] == ["rewards"] * 3
    assert "table" in group_attributes(tmp_path / "other")


def test_a_store_is_not_replaced_by_rewards_that_refer_to_it(tmp_path):
    base = stored(random_model(4, 20), tmp_path / "base")
    with pytest.raises(StoreError, match="base is being read by another process"):
        ooc_mdp.with_rewards(base, np.zeros(20), tmp_path / "base", overwrite=True)
    assert model_in(ooc_mdp.open_store(tmp_path / "base")).states == random_model(4, 20).states


def test_a_virtual_store_has_no_transitions_to_refer_to(tmp_path):
    with pytest.raises(OptionsError, match="computes its transitions on demand; give a store that has them on disk"):
        ooc_mdp.with_rewards(ooc_mdp.open_problem("GW-8x4"), np.zeros(32), tmp_path / "other")


@pytest.mark.slow
def test_workers_solve_a_store_of_other_rewards(tmp_path):
    base = ooc_mdp.from_rows(60, lambda s: state_rows(random_model(6, 60), s), path=tmp_path / "b", partitions=6)
    store = ooc_mdp.with_rewards(base, paid, tmp_path / "other")
    alone = ooc_mdp.solve(store, 0.9, epsilon=1e-8, device="cpu")
    together = ooc_mdp.solve(store, 0.9, epsilon=1e-8, device="cpu", workers=2)
    assert together.values == pytest.approx(alone.values, abs=2e-8)
    with pytest.raises(OptionsError, match="has the transitions of another store, which is not staged"):
        ooc_mdp.solve(store, 0.9, device="cpu", workers=2, stage=tmp_path / "stage")
