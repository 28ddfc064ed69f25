"""Runs of a table under its policy earn the solved value, within what chance allows, whatever the partitions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp.answers import answered_table
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion
from ooc_mdp.simulation.returns import ReturnsOptions, simulate_returns
from ooc_mdp.store import Store


def walk(partitions: int, path: Path | None = None) -> Store:
    """A walk on a line that costs 1 a step until one of the ends, where it stays."""
    n = 12
    P, R = np.zeros((n, 2, n)), np.full((n, 2), -1.0)
    for s, a in itertools.product(range(1, n - 1), range(2)):
        P[s, a, [s + 2 * a - 1, s, s - 2 * a + 1]] = 0.8, 0.1, 0.1
    P[0, :, 0] = P[n - 1, :, n - 1] = 1.0
    R[[0, n - 1]] = 0.0
    labels = {"goal": [n - 1], "ends": [0, n - 1]}
    return ooc_mdp.from_arrays(P, R, layout="state-first", labels=labels, initial=[4], partitions=partitions, path=path)


def ring(partitions: int) -> Store:
    rng = np.random.default_rng(5)
    P, R = rng.dirichlet(np.ones(9), (9, 3)), rng.normal(size=(9, 3))
    R[3, 1] = -np.inf
    return ooc_mdp.from_arrays(P, R, layout="state-first", partitions=partitions)


QUESTIONS: list[Criterion] = [
    ooc_mdp.Discounted(0.9),
    ooc_mdp.TotalReward(),
    ooc_mdp.Reachability("goal"),
    ooc_mdp.RewardToGoal("ends"),
    ooc_mdp.FiniteHorizon(7),
    ooc_mdp.FiniteHorizon(5, discount=0.9, final_values=np.arange(12.0)),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_the_mean_is_the_solved_value_within_chance(question: Criterion) -> None:
    store = walk(3)
    solution = ooc_mdp.solve(store, question, device="cpu")
    found = ooc_mdp.simulate_policy(store, solution, runs=4000, starts=[3, 9])
    value = solution.values[[3, 9]].mean()
    assert found.solved[0] == pytest.approx(value)
    assert abs(found.mean - value) <= 5 * found.standard_error + found.slack
    assert found.standard_error > 0
    assert not found.warnings()
    assert found.standard_error == pytest.approx(found.of_runs.std(ddof=1) / np.sqrt(4000))
    assert found.interval[0] < found.mean < found.interval[1]


def test_the_reward_per_step_is_the_gain_within_chance() -> None:
    store = ring(3)
    solution = ooc_mdp.solve(store, ooc_mdp.AverageReward())
    assert solution.gain is not None
    found = ooc_mdp.simulate_policy(store, solution, runs=500, steps=2000, starts=[0])
    assert found.quantity == "reward per step"
    assert found.solved[1:] == solution.gain
    assert abs(found.mean - found.solved[0]) <= 5 * found.standard_error + 1e-2
    assert found.mean_steps == 2000


@pytest.mark.parametrize("make", [walk, ring])
def test_runs_are_the_same_whatever_the_partitions_and_the_cache(make: Any) -> None:
    found = []
    for partitions, cache in ((1, 1 << 30), (4, 1 << 30), (4, 1)):
        store = make(partitions)
        solution = ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-9)
        asked = answered_table(store, solution)[0]
        found.append(simulate_returns(asked, solution, ReturnsOptions(50, 200, 7, [2, 5]), cache=cache))
    assert np.allclose(found[0].of_runs, found[1].of_runs, rtol=0, atol=1e-8)
    assert np.array_equal(found[1].of_runs, found[2].of_runs)
    assert found[1].loads <= 4 < found[2].loads
    store, other = make(1), ReturnsOptions(50, 200, 8, [2, 5])
    solution = ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-9)
    assert not np.allclose(simulate_returns(store, solution, other).of_runs, found[0].of_runs)


def test_a_deterministic_process_earns_exactly_its_value() -> None:
    P = np.zeros((4, 1, 4))
    P[[0, 1, 2], 0, [1, 2, 3]] = 1.0
    store = ooc_mdp.from_arrays(P, np.array([[1.0], [2.0], [4.0], [0.0]]), layout="state-first", terminal={3: 8.0})
    solution = ooc_mdp.solve(store, 0.5, device="cpu", epsilon=1e-12)
    found = ooc_mdp.simulate_policy(store, solution, runs=3, starts=[0])
    assert found.of_runs.tolist() == [1 + 2 / 2 + 4 / 4 + 8 / 8] * 3
    assert (found.ended, found.mean_steps, found.remaining, found.standard_error) == (3, 3.0, 0.0, 0.0)
    cut = ooc_mdp.simulate_policy(store, solution, runs=3, steps=2, starts=[0])
    assert cut.ended == 0
    assert cut.remaining == pytest.approx(solution.values[2] / 4)
    assert ooc_mdp.simulate_policy(store, solution, runs=3, steps=3, starts=[0]).ended == 3


def test_durations_discount_what_follows(tmp_path: Path) -> None:
    car = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": (15, 15)}, device="cpu", partitions=5)
    ooc_mdp.solve(car, 0.9, device="cpu", output=tmp_path / "r")
    found = ooc_mdp.simulate_policy(tmp_path / "s", tmp_path / "r", runs=4000)
    assert abs(found.mean - found.solved[0]) <= 5 * found.standard_error + found.slack
    assert found.ended > 0


def test_a_given_policy_is_followed() -> None:
    store = ring(2)
    policy = np.zeros(9, int)
    solution = ooc_mdp.solve(store, 0.9, device="cpu", policy=policy)
    found = ooc_mdp.simulate_policy(store, solution, runs=4000, starts=[1])
    assert abs(found.mean - solution.values[1]) <= 5 * found.standard_error + 2 * solution.error_bound


def test_a_mean_that_contradicts_the_solution_is_reported() -> None:
    from dataclasses import replace

    store = walk(2)
    solution = ooc_mdp.solve(store, ooc_mdp.TotalReward())
    wrong = replace(solution, values=2 * solution.values)
    assert any("differs" in each for each in ooc_mdp.simulate_policy(store, wrong).warnings())


def test_the_initial_states_of_the_model_are_the_starts() -> None:
    store = walk(2)
    solution = ooc_mdp.solve(store, ooc_mdp.TotalReward())
    assert ooc_mdp.simulate_policy(store, solution).solved[0] == solution.values[4]
    with pytest.raises(OptionsError, match="--start STATE"):
        ooc_mdp.simulate_policy(ring(1), ooc_mdp.solve(ring(1), 0.9, device="cpu"))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"runs": 1}, "runs is 1; give a whole number from 2"),
        ({"steps": 0}, "steps is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"starts": [12]}, "no state 12 to start in"),
        ({"starts": [0.5]}, "a start"),
    ],
)
def test_options_that_make_no_runs_are_refused(how: dict[str, Any], message: str) -> None:
    store = walk(1)
    with pytest.raises(OptionsError, match=message):
        ooc_mdp.simulate_policy(store, ooc_mdp.solve(store, 0.9, device="cpu"), **how)


def test_policies_of_a_part_of_the_process_are_refused() -> None:
    store = walk(1)
    with pytest.raises(OptionsError, match="leave --within out"):
        ooc_mdp.simulate_policy(store, ooc_mdp.solve(store, ooc_mdp.Reachability("goal", within=3)))
    with pytest.raises(OptionsError, match="for 3 stages, and has no policy for 4"):
        ooc_mdp.simulate_policy(store, ooc_mdp.solve(store, ooc_mdp.FiniteHorizon(3)), steps=4)


def test_the_command_line_simulates_a_store_under_a_result(tmp_path: Path) -> None:
    walk(3, tmp_path / "s")
    assert ooc("solve", tmp_path / "s", "--total", "--output", tmp_path / "r").status == 0
    ran = ooc("simulate", tmp_path / "s", tmp_path / "r", "--runs", 500, "--seed", 3, "--start", 4, "--json")
    due = ooc_mdp.simulate_policy(tmp_path / "s", tmp_path / "r", runs=500, seed=3)
    assert ran.status == 0
    assert ran.figures["mean"] == due.mean
    assert ran.figures["solved"]["value"] == due.solved[0]
    shown = ooc("simulate", tmp_path / "s", tmp_path / "r", "--steps", 50)
    assert shown.status == 0
    assert "95%" in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["r", "--steps", "5"], "give the store"),
        (["s", "r", "--duration", "5"], "--duration"),
        (["s", "r", "--random-starts", "5"], "--random-starts"),
        (["s", "r", "--plot", "x.png"], "--plot"),
        (["s", "r", "--start", "1,2"], "number of a state"),
    ],
)
def test_options_of_the_other_kind_of_simulation_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    walk(1, tmp_path / "s")
    ooc_mdp.solve(tmp_path / "s", ooc_mdp.TotalReward(), output=tmp_path / "r")
    places = [str(tmp_path / word) if word in ("s", "r") else word for word in words]
    ran = ooc("simulate", *places)
    assert ran.status == 2
    assert message in ran.err
