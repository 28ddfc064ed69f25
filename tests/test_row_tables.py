"""`from_rows` and `StoreBuilder`: proved values of models that functions compute, and what becomes of added rows."""

from __future__ import annotations

import functools
import os
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from forked import added_rows, changes_of, killed_at, killed_at_entry, rows_of_function, succeed
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import distance, optimum
from steps import When
from store_models import Model, model_in, random_model, state_rows

import ooc_mdp
from ooc_mdp import StateRows, StoreBuilder
from ooc_mdp.errors import InputError, OptionsError, StoreError
from ooc_mdp.store import check_store, open_store
from ooc_mdp.store.layout import JOURNAL_FILE

CAPACITY, DEMAND = 5, np.array([0.2, 0.5, 0.3])


def stock(states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stock of at most five items, of which any number is ordered; demand of 0, 1 or 2 items is sold at 3 each."""
    orders, demand = np.arange(CAPACITY + 1)[None, :, None], np.arange(3)
    supply = np.minimum(states[:, None, None] + orders, CAPACITY)
    sold = np.minimum(supply, demand)
    return supply - sold, DEMAND, 3.0 * sold - orders


def one_stock(state: int) -> list[list[tuple[float, int, float]]]:
    """The same, of one state."""
    successors, probabilities, rewards = stock(np.array([state]))
    return [
        [(float(p), int(s), float(r)) for p, s, r in zip(probabilities, successors[0, a], rewards[0, a], strict=True)]
        for a in range(CAPACITY + 1)
    ]


def test_a_function_of_states_and_a_function_of_one_state_give_the_same_proved_values(tmp_path):
    n = CAPACITY + 1
    ours = ooc_mdp.from_rows(n, stock, path=tmp_path / "s", partitions=3)
    slow = ooc_mdp.from_rows(n, one_stock, per_state=True, partitions=3)
    blocks = ooc_mdp.from_rows(n, (stock(np.array([2 * i, 2 * i + 1])) for i in range(n // 2)), partitions=3)
    assert model_in(ours) == model_in(slow) == model_in(blocks)
    solution = ooc_mdp.solve(ours, discount=0.9, epsilon=1e-9)
    rows = model_in(ours).rows(np.arange(n))
    assert max(map(abs, distance(solution.values, optimum(rows, 0.9)))) <= solution.error_bound <= 1e-9
    assert check_store(ours).findings == ()
    assert not (tmp_path / "s.partial").exists()


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4), st.booleans(), st.booleans())
def test_rows_come_back_from_the_store_as_the_function_gave_them(seed, n, partitions, durations, dense):
    model = random_model(seed, n, durations=durations, labels=not dense)
    function = functools.partial(dense_rows if dense else state_rows, model)
    assert model_in(ooc_mdp.from_rows(n, function, partitions=min(partitions, n))).states == model.states


def dense_rows(model: Model, numbers: np.ndarray) -> StateRows:
    """The rows of states in arrays (states, actions, successors), padded with successors that do not exist."""
    states = [model.states[i] for i in numbers]
    a = max(1, *(len(s.actions) for s in model.states))
    k = max([1, *(len(action.successors) for s in model.states for action in s.actions)])
    successors, probabilities = np.full((len(states), a, k), -7), np.zeros((len(states), a, k))
    rewards, durations = np.full((len(states), a), -np.inf), np.ones((len(states), a))
    for i, state in enumerate(states):
        for j, action in enumerate(state.actions):
            rewards[i, j], durations[i, j] = action.reward, action.duration
            for at, successor in enumerate(sorted(action.successors, reverse=True)):
                successors[i, j, at], probabilities[i, j, at] = successor, action.successors[successor]
    ends = np.array([s.terminal_reward for s in states])
    return StateRows(
        successors, probabilities, rewards, durations=durations if model.durations else None, terminal_rewards=ends
    )


def test_actions_that_are_not_available_keep_the_numbers_of_the_others():
    def rows(states):
        available = np.array([[True, False, True], [False, False, False]])[states]
        successors = np.ones((states.size, 3, 1), int)
        return StateRows(successors, 1.0, np.array([1, 5, 2])[None, :], available=available, terminal_rewards=7.0)

    solution = ooc_mdp.solve(ooc_mdp.from_rows(2, rows), discount=0.5, epsilon=1e-9)
    assert solution.values == pytest.approx([2 + 3.5, 7.0], abs=1e-8)
    assert solution.actions.tolist() == [2, -1]
    by_reward = ooc_mdp.from_rows(
        2, lambda s: (np.ones((s.size, 3, 1), int), 1.0, np.array([[-1, np.inf, -2]])), sense="min"
    )
    assert ooc_mdp.solve(by_reward, discount=0.5, epsilon=1e-9).actions.tolist() == [2, 2]


def one(states):
    """One action of each state, which stays there."""
    return states[:, None, None]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda s: (one(s) * 1.0, 1.0, 0.0), "successors have dtype float64; give integers"),
        (lambda s: (one(s) + 1, 1.0, 0.0), "state 2, action 0: successor 3 does not exist: the 3 states are 0..2"),
        (lambda s: (one(s), 0.5, 0.0), "state 0, action 0: probabilities sum to 0.5, not 1 .*normalize=True"),
        (lambda s: (one(s), 1.0, np.zeros(s.size)), r"rewards have shape \(3,\); .*ask for \(3, 1\) as r\(s,a\)"),
        (lambda s: (one(s), np.ones((2, 1, 1)), 0.0), r"the shapes \(3, 1, 1\), \(2, 1, 1\) and \(\), which do not"),
        (lambda s: (s[:, None], np.ones(2), 0.0), "actions is missing"),
        (lambda s: (one(s)[1:], 1.0, 0.0), "it has the rows of 2 states, not of 3"),
        (lambda s: (s, np.ones(3), 0.0), r"actions is missing; successors of shape \(3,\) need the number of rows"),
        (lambda s: None, "a NoneType was given for rows; give StateRows, or the tuple"),
        (lambda s: (one(s), 1.0, np.array([[[2**53 + 1]]])), r"rewards\[0, 0, 0\] is 9007199254740993, which float64"),
        (lambda s: (one(s), 1.0, np.array([[np.nan]])), "state 0, action 0: reward is NaN"),
    ],
)
def test_rows_of_a_wrong_shape_or_number_are_refused_with_the_remedy(rows, message):
    with pytest.raises(InputError, match=message):
        ooc_mdp.from_rows(3, rows)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": 1}, "state 0: a dict was returned; return a list of actions"),
        ([[(1.0, 0)]], r"state 0, action 0 is \[\(1.0, 0\)\]; it must be a list of \(probability, successor, reward\)"),
        ([[(1.0, 0.5, 0.0)]], "state 0, action 0 is"),
        ([[]], "state 0, action 0: has no successors; give it at least one, or leave the action out"),
    ],
)
def test_what_is_no_list_of_actions_of_a_state_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        ooc_mdp.from_rows(2, lambda state: given, per_state=True)


def test_an_exception_of_the_function_keeps_its_type_and_names_the_states():
    def rows(states):
        raise ZeroDivisionError("no demand")

    with pytest.raises(ZeroDivisionError, match="no demand") as raised:
        ooc_mdp.from_rows(3, rows)
    assert raised.value.__notes__ == ["rows was called with 3 states 0..2"]


def test_a_grid_is_cut_into_blocks_and_its_results_have_the_shape(tmp_path):
    store = ooc_mdp.from_rows(
        24, lambda s: ((s[:, None, None] + 1) % 24, 1.0, 1.0 * s[:, None]), grid=(4, 6), partitions=4
    )
    assert store.facts.attributes["state_order"]["kind"] == "grid"
    solution = ooc_mdp.solve(store, discount=0.5, epsilon=1e-9, output=tmp_path / "r")
    expected = [sum(0.5**k * ((s + k) % 24) for k in range(60)) for s in range(24)]
    assert solution.values == pytest.approx(expected, abs=1e-8)


def test_options_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(OptionsError, match="resume continues the store at a path; give path"):
        ooc_mdp.from_rows(3, stock, resume=True)
    with pytest.raises(OptionsError, match="a generator is read once"):
        ooc_mdp.from_rows(3, iter([]), path=tmp_path / "s", resume=True)
    with pytest.raises(OptionsError, match="n_states is 0; give at least 1"):
        ooc_mdp.from_rows(0, stock)
    with pytest.raises(InputError, match=r"the rows of the states 0\.\.2 are missing"):
        ooc_mdp.from_rows(3, iter([]), path=tmp_path / "s")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("attempts", [1, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("work", [rows_of_function, added_rows])
def test_what_was_written_before_a_kill_is_kept(tmp_path: Path, work, attempts: int) -> None:
    """A run that is killed at an entry of its journal continues, and ends as if nothing had happened."""
    succeed(work, tmp_path / "whole", False)
    whole, rng = open_store(tmp_path / "whole"), random.Random(1)
    for attempt in range(attempts):
        path, noted = tmp_path / f"s{attempt}", 0
        journal = path.with_name(f"{path.name}.partial") / (".spool" if work is added_rows else "") / JOURNAL_FILE
        times: list[When] = ["before", "torn", "after"]
        rng.shuffle(times)
        for when in times:
            entry = rng.randint(1, (30 - noted) // 2)
            killed_at_entry(entry, when, journal, work, path, True)
            noted += entry - (when != "after")
            assert journal.read_bytes().count(b"\n") == 1 + noted
        succeed(work, path, True)
        store = open_store(path)
        assert store.fingerprint == whole.fingerprint
        assert check_store(store).findings == ()
    assert sorted(os.listdir(tmp_path)) == [*(f"s{i}" for i in range(attempts)), "whole"]


@pytest.mark.parametrize("kills", [3, pytest.param(15, marks=pytest.mark.slow)])
def test_a_commit_killed_before_a_change_of_its_files_is_made_again(tmp_path: Path, kills: int) -> None:
    changes = changes_of(tmp_path, added_rows, tmp_path / "whole", False)
    for number in np.linspace(1, 0.9 * changes, kills).astype(int).tolist():
        path = tmp_path / f"s{number}"
        assert killed_at(number, tmp_path, added_rows, path, True)
        succeed(added_rows, path, True)
        assert open_store(path).fingerprint == open_store(tmp_path / "whole").fingerprint
        assert check_store(open_store(path)).findings == ()


def test_a_run_is_not_continued_with_another_function(tmp_path):
    def stop(what, done, of):
        if done == 4:
            raise KeyboardInterrupt

    model = random_model(3, 60)
    same, other = (functools.partial(state_rows, each) for each in (model, random_model(4, 60)))
    with pytest.raises(KeyboardInterrupt):
        ooc_mdp.from_rows(60, same, path=tmp_path / "s", partitions=6, threads=1, progress=stop)
    assert (tmp_path / "s.partial").is_dir()
    with pytest.raises(StoreError, match="begun otherwise and cannot be resumed: sample was"):
        ooc_mdp.from_rows(60, other, path=tmp_path / "s", partitions=6, resume=True)
    assert model_in(ooc_mdp.from_rows(60, same, path=tmp_path / "s", partitions=6, resume=True)) == model


def test_blocks_are_added_in_any_order_from_any_thread(tmp_path):
    model = random_model(5, 100)
    builder = StoreBuilder(tmp_path / "s", 100, partitions=7)
    with ThreadPoolExecutor(4) as threads:
        added = list(
            threads.map(lambda i: builder.add_rows(i, state_rows(model, np.arange(i, i + 5))), range(95, -1, -5))
        )
    assert added == list(range(100, 0, -5))
    assert builder.missing() == []
    assert model_in(builder.commit()) == model
    with pytest.raises(OptionsError, match="the builder is closed; make another one, with resume=True to go on"):
        builder.add_rows(0, state_rows(model, np.arange(5)))


def test_a_builder_that_is_closed_keeps_what_was_added(tmp_path):
    model = random_model(5, 100)
    with StoreBuilder(tmp_path / "s", 100) as builder:
        builder.add_rows(10, state_rows(model, np.arange(10, 60)))
    with StoreBuilder(tmp_path / "s", 100, resume=True) as builder:
        assert (builder.n_added, builder.missing()) == (50, [(0, 10), (60, 100)])
        with pytest.raises(InputError, match=r"the states 10\.\.14 have their rows already"):
            builder.add_rows(5, state_rows(model, np.arange(5, 15)))
        with pytest.raises(InputError, match=r"the rows of the states 0\.\.9, 60\.\.99 are missing"):
            builder.commit()
        with pytest.raises(InputError, match=r"a block has the states 95\.\.104; the 100 states are 0\.\.99"):
            builder.add_rows(95, state_rows(model, np.arange(10)))
    with pytest.raises(StoreError, match="begun otherwise and cannot be resumed: states was 100, is 101"):
        StoreBuilder(tmp_path / "s", 101, resume=True)
    damaged = tmp_path / "s.partial" / ".spool" / "0000000010"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x77")
    with StoreBuilder(tmp_path / "s", 100, resume=True) as builder:
        assert builder.n_added == 0
        builder.discard()
    assert os.listdir(tmp_path) == []


def test_wrong_arguments_of_a_builder_are_refused_by_the_name_of_its_class(tmp_path):
    with pytest.raises(OptionsError, match="StoreBuilder: path is 5 of type int"):
        StoreBuilder(5, 3)
    with pytest.raises(
        TypeError, match=r"StoreBuilder\.__init__\(\) got an unexpected .* 'threds'; did you mean 'threads'"
    ):
        StoreBuilder(tmp_path / "s", 3, threds=2)


def test_a_builder_without_resume_begins_anew(tmp_path):
    model = random_model(5, 20)
    StoreBuilder(tmp_path / "s", 20).close()
    with StoreBuilder(tmp_path / "s", 20, resume=True) as builder:
        builder.add_rows(0, state_rows(model, np.arange(20)))
    with StoreBuilder(tmp_path / "s", 20) as builder:
        assert builder.missing() == [(0, 20)]
    shutil.rmtree(tmp_path / "s.partial")


def test_a_function_that_cannot_be_pickled_is_refused_before_any_worker_starts(tmp_path):
    lock = threading.Lock()

    def locked(states):
        with lock:
            return stock(states)

    with pytest.raises(OptionsError, match="the function locked cannot be sent to workers"):
        ooc_mdp.from_rows(CAPACITY + 1, locked, path=tmp_path / "s", workers=2)


@pytest.mark.slow
def test_workers_compute_the_rows_of_a_function(tmp_path):
    model = random_model(6, 50)
    store = ooc_mdp.from_rows(50, functools.partial(state_rows, model), path=tmp_path / "s", partitions=5, workers=2)
    assert model_in(store) == model
