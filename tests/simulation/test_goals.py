"""Which problems have a goal: none where it pays to go on wherever the process is."""

from __future__ import annotations

import dataclasses

from command_line import refused
from simulated_problems import LINE, any_policy

import ooc_mdp
from ooc_mdp.problems.control import discretise
from ooc_mdp.report.regions import regions_of
from ooc_mdp.report.trajectory_table import print_simulation
from ooc_mdp.simulation import RunOutcome, SimulationOptions, simulate


def one_for_going_on(state, control, p):
    return 1.0


def one_in_the_middle(state, control, p):
    return 1.0 if abs(state[0]) < 0.5 else 0.0


def near_right(state, p):
    return state[0] > 0.8


def five(state, p):
    return 5.0


ALIVE = dataclasses.replace(LINE, name="alive", terminal_reward=None, reward_rate=one_for_going_on)
SHORT = SimulationOptions(duration=0.2)


def simulated(definition, options=SHORT):
    problem = discretise(definition, {"grid": "41"})
    values, policy = any_policy(problem)
    return simulate(problem, abs(values) + 1.0, policy, 0.9, [(0.0,)], options)


def test_where_it_pays_to_go_on_everywhere_there_is_no_goal(capsys):
    simulation = simulated(ALIVE)
    (run,) = simulation.trajectories
    assert (simulation.has_goal, run.outcome, run.reached) == (False, RunOutcome.NOT_ENDED, None)
    figures = simulation.summary()
    assert (figures["successes"], figures["starts_above_value_threshold"], figures["reached"]) == (None, None, 0)
    print_simulation(simulation)
    said = capsys.readouterr().out
    assert "the problem states no goal, and its rewards mark none" in said
    assert "success" not in said


def test_a_reward_rate_that_is_paid_in_a_part_of_the_states_marks_the_goal():
    simulation = simulated(dataclasses.replace(ALIVE, reward_rate=one_in_the_middle))
    assert simulation.has_goal
    assert simulation.trajectories[0].reached == 0.0


def test_of_a_process_that_it_pays_to_continue_an_end_that_pays_is_the_goal():
    definition = dataclasses.replace(ALIVE, is_terminal=near_right, terminal_reward=five)
    simulation = simulated(definition, SimulationOptions(duration=3.0))
    assert (simulation.has_goal, simulation.goal_pays) == (True, False)
    assert simulation.trajectories[0].reached != 0.0


def test_a_plot_has_no_goal_where_it_pays_to_go_on():
    plane = dataclasses.replace(ALIVE, axes=(*LINE.axes, dataclasses.replace(LINE.axes[0], name="y")))
    drawn = dataclasses.replace(plane, reward_rate=one_in_the_middle)
    assert regions_of(drawn, 0, 1, 1.0, False).goal.any()
    assert not regions_of(drawn, 0, 1, 1.0, False, goal_pays=False).goal.any()


def test_the_result_of_a_question_about_a_goal_is_refused_with_what_to_run(tmp_path):
    ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": 10}, device="cpu")
    ooc_mdp.solve(tmp_path / "s", ooc_mdp.Reachability("position > 0.9", within=3), output=tmp_path / "r")
    said = refused("simulate", tmp_path / "r")
    assert "a question about the goal 'position > 0.9'" in said
    assert "ooc-mdp simulate STORE" in said
