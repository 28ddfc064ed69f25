"""How runs end, by name: at the goal, away from it, or not at all; and how far returns are from the values."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from command_line import ooc
from simulated_problems import LINE, MASS, NoParameters, double_integrator, iterated, near_origin

import ooc_mdp
from ooc_mdp.problems.control import Axis, ControlProblem, discretise
from ooc_mdp.report.trajectory_plot import plot_trajectories
from ooc_mdp.simulation import Controller, RunOutcome, Simulation, SimulationOptions, Trajectory, simulate


def one_per_unit_of_time(state, control, p):
    return -1.0


def costs_one(state, control, p):
    return 1.0


def penalty_outside(state, p):
    return 0.0 if near_origin(state, p) else -20.0


def cost_outside(state, p):
    return 0.0 if near_origin(state, p) else 20.0


LEAST_TIME = ControlProblem(
    name="least-time",
    summary="x'' = u, to be brought to rest at 0 in the least time",
    axes=(Axis("x", -2.0, 2.0), Axis("v", -2.5, 2.5, clipped=True)),
    controls=((-1.0,), (1.0,)),
    dynamics=double_integrator,
    reward_rate=one_per_unit_of_time,
    terminal_reward=penalty_outside,
    is_terminal=near_origin,
    parameters=NoParameters(),
    max_step=0.05,
)
ARRIVES, CRASHES = (0.5, 0.0), (1.9, 2.4)


@pytest.fixture(scope="module")
def solved_least_time():
    problem = discretise(LEAST_TIME, {"grid": "41"})
    return problem, *iterated(problem, 0.9)


def test_a_minimum_time_problem_tells_arriving_from_crashing(solved_least_time, tmp_path):
    problem, values, policy = solved_least_time
    simulation = simulate(problem, values, policy, 0.9, [ARRIVES, CRASHES])
    assert [run.outcome for run in simulation.trajectories] == [RunOutcome.GOAL, RunOutcome.CRASHED]
    figures = simulation.summary()
    assert (figures["has_goal"], figures["successes"], figures["success_fraction"]) == (True, 1, 0.5)
    assert figures["outcomes"] == {"goal": 1, "crashed": 1}
    assert [run["success"] for run in figures["runs"]] == [True, False]
    assert figures["runs"][0]["reached"] == figures["runs"][0]["duration"]
    assert figures["runs"][1]["reached"] is None
    assert figures["starts_above_value_threshold"] is None
    plot_trajectories(simulation, values, tmp_path / "a.svg")
    assert "1 of 2 starts succeed (1 goal, 1 crashed)" in (tmp_path / "a.svg").read_text()


def test_a_run_that_neither_arrives_nor_crashes_is_named(solved_least_time):
    problem, values, policy = solved_least_time
    (run,) = simulate(problem, values, policy, 0.9, [(1.0, 0.0)], SimulationOptions(duration=0.5)).trajectories
    assert run.outcome is RunOutcome.NOT_REACHED


def test_a_minimisation_of_time_tells_arriving_from_crashing(solved_least_time):
    _problem, values, policy = solved_least_time
    turned = dataclasses.replace(LEAST_TIME, reward_rate=costs_one, terminal_reward=cost_outside)
    simulation = simulate(discretise(turned, {"grid": "41"}), -values, policy, 0.9, [ARRIVES, CRASHES], sense="min")
    assert [run.outcome for run in simulation.trajectories] == [RunOutcome.GOAL, RunOutcome.CRASHED]


def on_the_left(state, p):
    return state[0] < -1.0


def far(state, p):
    return abs(state[0]) > 0.9


def test_a_problem_says_itself_where_its_goal_is(solved_least_time):
    _problem, values, policy = solved_least_time
    stated = discretise(dataclasses.replace(LEAST_TIME, is_goal=far), {"grid": "41"})
    simulation = simulate(stated, values, policy, 0.9, [ARRIVES, CRASHES])
    assert [run.outcome for run in simulation.trajectories] == [RunOutcome.CRASHED, RunOutcome.GOAL]
    line = discretise(dataclasses.replace(LINE, is_goal=on_the_left), {"grid": "41"})
    to_the_left = np.zeros(41), np.zeros(41, np.int32)
    options = SimulationOptions(controller=Controller.NEAREST)
    assert simulate(line, *to_the_left, 0.9, [(0.2,)], options).trajectories[0].outcome is RunOutcome.GOAL


def at_rest(state, p):
    return abs(state[0]) < 0.3


def test_a_stated_goal_at_which_the_process_goes_on_is_to_be_held():
    free = dataclasses.replace(MASS, is_terminal=None, terminal_reward=None, is_goal=at_rest)
    problem = discretise(free, {"grid": "41"})
    values, policy = np.zeros(41 * 41), np.zeros(41 * 41, np.int32)
    options = SimulationOptions(duration=1.0, controller=Controller.NEAREST)
    held, left = simulate(problem, values, policy, 0.9, [(0.29, 0.0), (0.0, 1.5)], options).trajectories
    assert held.outcome is RunOutcome.HELD
    assert left.outcome is RunOutcome.NOT_HELD


def test_costs_with_a_penalty_at_every_end_have_no_goal():
    problem = discretise(
        dataclasses.replace(LEAST_TIME, is_terminal=far, terminal_reward=lambda s, p: -20.0), {"grid": "21"}
    )
    values, policy = iterated(problem, 0.9)
    options = SimulationOptions(duration=3.0)
    simulation = simulate(problem, values, policy, 0.9, [(0.0, 0.0), (0.85, 2.0)], options)
    assert [run.outcome for run in simulation.trajectories] == [RunOutcome.NOT_ENDED, RunOutcome.ENDED]
    assert simulation.summary()["successes"] is None


TANK = """
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

class Parameters(NamedTuple):
    pass_ : float = 0.0

def dynamics(state, control, p):
    return (control[0],)

def reward_rate(state, control, p):
    return -1.0

def terminal_reward(state, p):
    return -30.0 if abs(state[0]) >= 1.0 else 0.0

def is_terminal(state, p):
    return abs(state[0] - 0.5) < 0.1

problem = ControlProblem("tank", "to a level in the least time", (Axis("level", -1.0, 1.0),), ((-1.0,), (1.0,)),
    dynamics, Parameters(), reward_rate=reward_rate, terminal_reward=terminal_reward, is_terminal=is_terminal)
"""


def test_the_command_names_outcomes_and_counts_successes_of_a_minimum_time_problem(tmp_path):
    file = tmp_path / "tank.py"
    file.write_text(TANK)
    store = ooc_mdp.generate(file, tmp_path / "s", {"grid": 41}, device="cpu")
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r")
    command = ("simulate", tmp_path / "r", "--problem", file, "--start=-0.5", "--start=0.9")
    ran = ooc(*command, "--plot", tmp_path / "a.png", "--animation", tmp_path / "a.gif")
    assert ran.status == 0, ran.err
    assert "success: 2 of 2 starts (100%)" in ran.out
    assert "goal: the process ended at the goal" in ran.out
    assert (tmp_path / "a.gif").exists()
    assert (tmp_path / "a.png").exists()
    figures = json.loads(ooc(*command, "--json").out)
    assert (figures["successes"], figures["outcomes"]) == (2, {"goal": 2})


def run_of(start_value: float, discounted_return: float, remaining: float = 0.0) -> Trajectory:
    return Trajectory(
        outcome=RunOutcome.NOT_REACHED,
        times=np.zeros(1),
        states=np.array([[0.25]]),
        actions=np.zeros(1, np.int64),
        values=np.zeros(1),
        start_value=start_value,
        above_value_threshold=True,
        duration=1.0,
        terminal_reward=0.0,
        discounted_return=discounted_return,
        remaining_value=remaining,
        reached=None,
        held_since=None,
        goal_fraction=None,
        goal_fraction_last=None,
    )


@pytest.mark.parametrize(
    ("run", "doubtful"),
    [
        (run_of(2.26, 7.20), True),
        (run_of(7.20, 2.26), True),
        (run_of(-5.0, -2.0), True),
        (run_of(1.0, -1.0), True),
        (run_of(5.0, 4.5), False),
        (run_of(5.0, 1.0, remaining=3.5), False),
        (run_of(5.0, 5.0, remaining=3.5), True),
        (run_of(0.0, 0.05), False),
        (run_of(0.0, 0.0), False),
    ],
)
def test_a_return_far_from_the_value_of_its_start_is_warned_of(run, doubtful):
    simulation = Simulation(discretise(LINE, {"grid": 5}), SimulationOptions(), (run,), True, value_range=10.0)
    assert bool(simulation.warnings()) == doubtful
    assert simulation.summary()["warnings"] == simulation.warnings()
    past_the_end = dataclasses.replace(simulation, options=SimulationOptions(continue_after_end=True))
    assert past_the_end.warnings() == []


def test_the_warning_names_the_worst_start_its_numbers_and_the_remedy():
    runs = (run_of(5.0, 4.9), run_of(2.26, 7.20, remaining=0.25), run_of(3.0, 4.0))
    simulation = Simulation(discretise(LINE, {"grid": 5}), SimulationOptions(), runs, True, value_range=10.0)
    (said,) = simulation.warnings()
    assert "in 2 of 3 runs" in said
    assert "most from 0.25: value 2.26, return 7.2 and 0.25 that remain" in said
    assert "finer grid (generate --grid ...)" in said


def test_a_run_cut_by_its_duration_counts_what_remains():
    problem = discretise(LINE, {"grid": "41"})
    values, policy = iterated(problem, 0.9)
    (run,) = simulate(problem, values, policy, 0.9, [(-0.5,)], SimulationOptions(duration=0.4)).trajectories
    assert run.discounted_return == 0.0
    assert run.remaining_value == pytest.approx(run.start_value, rel=1e-3)
    assert run.value_gap < 1e-3


@pytest.mark.slow
def test_the_coarse_grid_of_the_cart_pole_is_warned_of(tmp_path):
    from paths import REPOSITORY

    file = REPOSITORY / "docs" / "examples" / "cart_pole.py"
    store = ooc_mdp.generate(file, tmp_path / "s", {"grid": (13, 13, 19, 19)}, device="cpu")
    ooc_mdp.solve(store, 0.9, residual=1e-4, device="cpu", output=tmp_path / "r")
    ran = ooc("simulate", tmp_path / "r", "--problem", file, "--start", "0,0,0.1,0", "--json")
    assert "differs from the value of the start by more than 20%" in ran.err
    assert ran.figures["warnings"]
