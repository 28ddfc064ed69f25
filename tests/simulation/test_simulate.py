"""Policies at work: dynamics are followed truly, values interpolated exactly, goals reached when they should be."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from command_line import ooc, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_problems import (
    FOUR_AXES,
    LINE,
    MASS,
    ONLY_COSTS,
    any_policy,
    below_a_half,
    divided_by_nothing,
    iterated,
    minus_one_near_origin,
    run_result,
    without_root,
)

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control import Axis, discretise
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.report.trajectory_table import print_simulation
from ooc_mdp.simulation import (
    Controller,
    RunOutcome,
    SimulationOptions,
    parse_start,
    problem_of,
    random_starts,
    simulate,
)
from ooc_mdp.simulation.closed_loop import compile_loop
from ooc_mdp.simulation.simulate import _limits


@pytest.mark.slow
def test_a_frictionless_pendulum_without_torque_keeps_its_energy():
    problem = make_problem("single-pendulum", {"grid": "100", "torque": 0.0})
    values, policy = any_policy(problem)
    (run,) = simulate(problem, values, policy, 0.9, [(2.0, 1.0)], SimulationOptions(duration=20.0)).trajectories
    energy = 0.5 * run.states[:, 1] ** 2 + 9.81 * np.cos(run.states[:, 0])
    assert np.ptp(run.states[:, 0]) > 2.0
    np.testing.assert_allclose(energy, energy[0], atol=1e-5)


def test_a_double_pendulum_without_torque_keeps_its_energy():
    problem = make_problem("double-pendulum", {"grid": "12", "torque": 0.0})
    values, policy = any_policy(problem)
    (run,) = simulate(
        problem, values, policy, 0.9, [(-2.0, 2.5, 0.0, 0.0)], SimulationOptions(duration=5.0)
    ).trajectories
    a, b, da, db = run.states.T
    energy = da**2 + 0.5 * db**2 + da * db * np.cos(a - b) + 9.81 * (2.0 * np.cos(a) + np.cos(b))
    assert np.abs(run.states[:, 2]).max() < 10.0
    assert np.abs(run.states[:, 3]).max() < 15.0
    np.testing.assert_allclose(energy, energy[0], atol=1e-3)


def test_periodic_components_stay_in_their_axis():
    problem = make_problem("single-pendulum", {"grid": "50"})
    values, policy = any_policy(problem)
    (run,) = simulate(problem, values, policy, 0.9, [(0.0, 9.0)], SimulationOptions(duration=5.0)).trajectories
    assert run.states[:, 0].min() >= -math.pi
    assert run.states[:, 0].max() < math.pi
    assert np.abs(np.diff(run.states[:, 0])).max() > 6.0, "it goes round"


@pytest.mark.parametrize("name", ["mountain-car", "single-pendulum", "double-pendulum"])
def test_what_lies_ahead_of_a_grid_point_is_the_row_of_the_mdp(name):
    problem = make_problem(name, {"grid": "11"})
    rng = np.random.default_rng(3)
    values = rng.random(problem.n_states)
    states = rng.choice(problem.n_states, 60, replace=False)
    rows = problem.rows(states)
    k = len(problem.problem.axes) + 1
    expected = (rows.probabilities * values[rows.successors]).reshape(-1, k).sum(axis=1)
    loop, grid, limits = (
        compile_loop(problem.problem),
        problem.kernel_arguments()[0],
        _limits(problem, SimulationOptions()),
    )
    row = 0
    for start in problem.coordinates(states).tolist():
        for control in problem.problem.controls:
            x, time, earned, ended = loop.integrate_control(
                tuple(start),
                control,
                grid,
                limits.max_step,
                limits.max_duration,
                1.0,
                problem.problem.parameters,
                False,
            )
            assert ended == math.isinf(rows.durations[row])
            if not ended:
                assert time == pytest.approx(rows.durations[row], rel=1e-6)
                assert earned == pytest.approx(rows.rewards[row], rel=1e-5, abs=1e-7)
                assert loop.value_at(x, grid, values) == pytest.approx(expected[row], abs=1e-5)
            row += 1


@given(
    slopes=st.tuples(*[st.floats(-3, 3)] * 4),
    shares=st.tuples(*[st.floats(0, 1)] * 4),
    points=st.tuples(*[st.integers(3, 6)] * 4),
)
@settings(max_examples=200)
def test_a_linear_function_is_interpolated_exactly(slopes, shares, points):
    axes = tuple(Axis(f"x{i}", -1.0 - i, 2.0 + i) for i in range(4))
    problem = discretise(FOUR_AXES, {"grid": ",".join(map(str, points))})
    where = tuple(axis.low + s * (axis.high - axis.low) for axis, s in zip(axes, shares, strict=True))
    values = problem.coordinates(np.arange(problem.n_states)) @ np.array(slopes) + 0.5
    found = compile_loop(FOUR_AXES).value_at(where, problem.kernel_arguments()[0], values)
    assert found == pytest.approx(float(np.dot(where, slopes)) + 0.5, abs=1e-9)


@given(angle=st.floats(-20.0, 20.0), speed=st.floats(-10.0, 10.0))
def test_interpolation_goes_round_a_periodic_axis(angle, speed):
    problem = make_problem("single-pendulum", {"grid": "8,5"})
    values = np.random.default_rng(1).random(problem.n_states)
    loop, grid = compile_loop(problem.problem), problem.kernel_arguments()[0]
    found = loop.value_at((angle, speed), grid, values)
    assert found == pytest.approx(loop.value_at((angle + 2 * math.pi, speed), grid, values), abs=1e-9)
    assert values.min() <= found <= values.max()


@pytest.mark.parametrize("kind", Controller)
@pytest.mark.parametrize("start", [-0.7, 0.0, 0.35])
def test_a_point_that_drifts_leaves_on_the_right_after_its_distance(kind, start):
    problem = discretise(LINE, {"grid": "41"})
    values, policy = iterated(problem, 0.9)
    (run,) = simulate(problem, values, policy, 0.9, [(start,)], SimulationOptions(controller=kind)).trajectories
    assert run.outcome is RunOutcome.GOAL
    assert run.reached == run.duration == pytest.approx(1.0 - start, abs=0.02)
    assert run.discounted_return == pytest.approx(0.9**run.duration)
    assert run.above_value_threshold


def test_where_there_is_nothing_to_win_the_run_ends_without_a_reward():
    problem = discretise(LINE, {"grid": "41"})
    values, policy = any_policy(problem)  # action 0: to the left
    (run,) = simulate(
        problem, values, policy, 0.9, [(0.2,)], SimulationOptions(controller=Controller.NEAREST)
    ).trajectories
    assert run.outcome is RunOutcome.ENDED
    assert run.duration == pytest.approx(1.2, abs=0.02)
    assert (run.reached, run.terminal_reward, run.discounted_return, run.above_value_threshold) == (
        None,
        0.0,
        0.0,
        None,
    )


def test_a_mass_comes_to_rest_in_nearly_the_least_time():
    """x'' = u from rest at distance d: the least time to the origin is 2 sqrt(d)."""
    problem = discretise(MASS, {"grid": "81"})
    values, policy = iterated(problem, 0.9)
    for distance in (-1.5, -0.8, 1.0):
        (run,) = simulate(problem, values, policy, 0.9, [(distance, 0.0)]).trajectories
        assert run.outcome is RunOutcome.GOAL
        least = 2.0 * math.sqrt(abs(distance)) - 0.6  # the region around the origin is met a little earlier
        assert least < run.duration < 2.0 * math.sqrt(abs(distance)) + 0.1


def test_an_end_inside_the_axes_can_be_passed_to_see_what_holds():
    problem = discretise(MASS, {"grid": "81"})
    values, policy = iterated(problem, 0.9)
    ended = simulate(problem, values, policy, 0.9, [(0.0, 0.0)]).trajectories[0]
    assert (ended.outcome, ended.duration, ended.reached) == (RunOutcome.GOAL, 0.0, 0.0)
    assert ended.actions.tolist() == [-1]
    options = SimulationOptions(continue_after_end=True, duration=8.0)
    passed = simulate(problem, values, policy, 0.9, [(0.0, 0.0)], options).trajectories[0]
    assert passed.duration == 8.0
    assert passed.outcome in (RunOutcome.HELD, RunOutcome.NOT_HELD)
    assert (passed.outcome is RunOutcome.HELD) == (passed.goal_fraction_last == pytest.approx(1.0))


def test_a_minimisation_takes_the_control_of_least_value():
    problem = discretise(LINE, {"grid": "41"})
    values, policy = iterated(problem, 0.9)
    (run,) = simulate(problem, values, policy, 0.9, [(0.5,)], sense="min").trajectories
    assert run.outcome is RunOutcome.ENDED
    assert run.states[-1, 0] < -1.0


def test_the_goal_of_a_minimisation_is_where_what_is_paid_is_below_0():
    values, policy = iterated(discretise(MASS, {"grid": "81"}), 0.9)
    turned = discretise(dataclasses.replace(MASS, terminal_reward=minus_one_near_origin), {"grid": "81"})
    simulation = simulate(turned, -values, policy, 0.9, [(0.5, 0.0)], sense="min")
    (run,) = simulation.trajectories
    assert simulation.has_goal
    assert (run.outcome, run.terminal_reward, run.above_value_threshold) == (RunOutcome.GOAL, -1.0, True)
    assert run.reached is not None


@pytest.mark.parametrize("sense", ["max", pytest.param("min", marks=pytest.mark.slow)])
def test_where_there_are_only_costs_there_is_no_goal(sense, tmp_path):
    file = tmp_path / "tank.py"
    file.write_text(ONLY_COSTS.replace("SIGN", "-" if sense == "max" else "+"))
    store = ooc_mdp.generate(file, tmp_path / "s", {"grid": 9}, sense=sense, device="cpu")
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r")
    files = ("--plot", tmp_path / "a.svg", "--csv", tmp_path / "a.csv", "--sample", 0.5)
    ran = ooc("simulate", tmp_path / "r", "--problem", file, "--start", "1.5", "--duration", 8, *files)
    assert ran.status == 0
    assert "controller lookahead" in (drawn := (tmp_path / "a.svg").read_text())
    assert "starts succeed" not in drawn
    times = [float(line.split(",")[1]) for line in (tmp_path / "a.csv").read_text().splitlines()[1:]]
    assert times == [0.5 * i for i in range(len(times))]
    assert "the problem states no goal, and its rewards mark none: compare the discounted returns" in ran.out
    assert "reached at" not in ran.out
    figures = json.loads(
        ooc("simulate", tmp_path / "r", "--problem", file, "--start", "1.5", "--duration", 8, "--json").out
    )
    assert (figures["has_goal"], figures["successes"], figures["reached"]) == (False, None, 0)
    assert figures["outcomes"] == {"not ended": 1}


def test_samples_lie_at_regular_times_and_the_period_is_kept():
    problem = make_problem("single-pendulum", {"grid": "21"})
    values = np.random.default_rng(5).random(problem.n_states)
    options = SimulationOptions(duration=3.0, sample=0.01, period=0.25)
    (run,) = simulate(problem, values, any_policy(problem)[1], 0.9, [(1.0, 0.0)], options).trajectories
    np.testing.assert_allclose(run.times, 0.01 * np.arange(301), atol=1e-9)
    changes = run.times[1:][np.diff(run.actions) != 0]
    assert changes.size
    np.testing.assert_allclose(np.round(changes / 0.25) * 0.25, changes, atol=1e-9)


def test_random_starts_are_in_the_axes_and_the_same_for_a_seed():
    problem = make_problem("double-pendulum", {"grid": "5"}).problem
    starts = random_starts(problem, 200, 4)
    assert starts == random_starts(problem, 200, 4) != random_starts(problem, 200, 5)
    for axis, xs in zip(problem.axes, np.array(starts).T, strict=True):
        assert axis.low <= xs.min() < xs.max() <= axis.high
        assert np.ptp(xs) > 0.8 * (axis.high - axis.low)


def test_the_car_climbs_the_hill_from_the_valley(car):
    (run,) = run_result(car, lambda p: [parse_start(p, "initial")]).trajectories
    assert run.outcome is RunOutcome.GOAL
    assert run.states[-1, 0] > 1.0
    assert abs(run.states[-1, 1]) < 0.5, "slowly enough to be paid"
    assert run.states[:, 0].min() < -0.6, "with a run-up"
    assert run.terminal_reward == pytest.approx(1.0 - abs(run.states[-1, 1]) / 0.5)


def test_single_controls_leave_the_car_before_its_exit_and_plans_do_not(car):
    few = run_result(car, lambda p: [p.initial_state], SimulationOptions(plan_depth=1)).trajectories[0]
    stored = run_result(
        car, lambda p: [p.initial_state], SimulationOptions(controller=Controller.NEAREST)
    ).trajectories[0]
    for run in (few, stored):
        assert run.outcome is RunOutcome.NOT_REACHED
        assert 0.9 < run.states[-1, 0] < 1.0


def test_the_pendulum_is_swung_up_and_kept_up(pendulum):
    simulation = run_result(pendulum, lambda p: [p.initial_state, *random_starts(p, 5, 1)])
    for run in simulation.trajectories:
        assert run.outcome is RunOutcome.HELD
        assert run.held_since is not None
        assert run.held_since < 15.0
        late = run.states[run.times > run.held_since + 0.1]
        assert (np.abs(late[:, 0]) < 0.5).all()
    assert simulation.summary()["success_fraction"] == 1.0
    rest = simulation.trajectories[0].states[:, 1]
    assert rest.min() < -1.0 < 1.0 < rest.max(), "rocked to and fro"


def test_options_out_of_range_are_refused():
    for wrong in (
        {"duration": 0.0},
        {"period": -1.0},
        {"plan_depth": 0},
        {"plan_depth": 9},
        {"cell_fraction": math.inf},
        {"hold_time": -1.0},
    ):
        with pytest.raises(OptionsError, match=next(iter(wrong)).replace("_", " ")):
            SimulationOptions(**wrong)
    for wrong, said in (
        ({"duration": 10**400}, "duration is larger than any float"),
        ({"hold_time": "5"}, "hold time is '5', which is no number"),
        ({"plan_depth": 2.5}, "plan depth is 2.5, which is no whole number"),
        ({"controller": "guess"}, "unknown controller 'guess'; there are lookahead, vote, nearest"),
    ):
        with pytest.raises(OptionsError, match=said):
            SimulationOptions(**wrong)
    with pytest.raises(OptionsError, match="too many samples; give a shorter duration"):
        SimulationOptions(duration=1e9)
    with pytest.raises(OptionsError, match="too many decisions; give a longer period"):
        SimulationOptions(duration=1.0, period=1e-9)


def test_brackets_in_the_names_of_axes_are_shown_as_they_are(pendulum, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    simulation = run_result(pendulum, lambda p: [parse_start(p, "initial")])
    model = simulation.problem.problem
    axes = tuple(dataclasses.replace(axis, name=f"{axis.name}[/b]") for axis in model.axes)
    named = discretise(dataclasses.replace(model, axes=axes), {"grid": "100"})
    print_simulation(dataclasses.replace(simulation, problem=named))
    assert "angle[/b], speed[/b]" in capsys.readouterr().out


def test_a_period_of_nothing_is_refused(pendulum):
    assert "period must be a positive number, not 0.0" in refused("simulate", pendulum, "--period", 0)


def test_starts_and_values_that_do_not_fit_are_refused():
    problem = make_problem("mountain-car", {"grid": "10"})
    values, policy = any_policy(problem)
    for start, message in (((0.0,), "needs 2"), ((2.0, 0.0), "outside -1 .. 1"), ((0.0, math.nan), "velocity = nan")):
        with pytest.raises(OptionsError, match=message):
            simulate(problem, values, policy, 0.9, [start])
    with pytest.raises(OptionsError, match="no start"):
        simulate(problem, values, policy, 0.9, [])
    with pytest.raises(OptionsError, match="give the result of this grid"):
        simulate(problem, values[1:], policy, 0.9, [(0.0, 0.0)])
    with pytest.raises(OptionsError, match="has no initial state"):
        parse_start(LINE, "initial")
    with pytest.raises(OptionsError, match="write position,velocity"):
        parse_start(problem.problem, "fast")


@pytest.mark.parametrize("kind", Controller)
@pytest.mark.parametrize(
    ("dynamics", "said"),
    [(divided_by_nothing, "ZeroDivisionError: division by zero"), (without_root, "ValueError: the dynamics give no")],
)
def test_functions_that_fail_on_the_way_are_refused_with_the_start(dynamics, said, kind):
    """Behind the end, where no row has led."""
    problem = discretise(dataclasses.replace(LINE, dynamics=dynamics, is_terminal=below_a_half), {"grid": "11"})
    values, policy = any_policy(problem)
    assert np.isfinite(problem.rows(np.arange(problem.n_states)).probabilities).all()
    options = SimulationOptions(controller=kind, continue_after_end=True, period=0.01, plan_depth=1)
    with pytest.raises(OptionsError, match=rf"problem 'line': {said}.* from the start x = 0.75; correct them there"):
        simulate(problem, values, policy, 0.9, [(0.75,)], options)


def test_more_plans_than_can_be_weighed_are_refused():
    """256 controls to the power of 8 are 0 in 64 bits: no plan was weighed, and the first control taken."""
    problem = discretise(dataclasses.replace(LINE, controls=tuple((i / 128 - 1,) for i in range(256))), {"grid": "5"})
    values, policy = any_policy(problem)
    with pytest.raises(OptionsError, match=r"256 controls give 1.84e\+19 plans of depth 8.* give a smaller depth"):
        simulate(problem, values, policy, 0.9, [(0.5,)], SimulationOptions(plan_depth=8))


def test_a_rest_of_another_dimension_is_refused():
    with pytest.raises(OptionsError, match="has not 1 numbers"):
        dataclasses.replace(LINE, initial_state=(0.0, 0.0))


def test_results_of_other_problems_are_refused_with_the_reason(tmp_path):
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 20, "seed": 1})
    ooc_mdp.solve(store, 0.5, output=tmp_path / "r", device="cpu")
    assert "has no continuous dynamics" in refused("simulate", tmp_path / "r")
    assert "is no result" in refused("simulate", tmp_path / "s")


def test_a_solution_that_was_not_kept_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    solution = ooc_mdp.solve(ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s"), 0.9, device="cpu")
    with pytest.raises(OptionsError, match="give solve an output, and simulate its path"):
        ooc_mdp.simulate(solution)


def test_results_that_say_nothing_of_their_problem_are_refused(car):
    opened = dataclasses.replace(ooc_mdp.open_result(car), provenance={})
    with pytest.raises(OptionsError, match="solve again"):
        problem_of(opened)
