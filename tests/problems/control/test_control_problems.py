"""Rows of discretised control problems: those of a plain model and of systems with a closed form, and distributions.

Synthetic systems of 1 to 6 dimensions, whose axes are bounded, clipped and periodic in any mixture.
"""

from __future__ import annotations

import math
from math import cos, sin
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from control_model import interpolated_offset, row_of
from hypothesis import given, settings
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp.model.mdp import Rows
from ooc_mdp.problems.control import Axis, ControlProblem, DiscretisationOptions, DiscretisedProblem
from ooc_mdp.problems.registry import make_problem

UNIT = 2.0**-24


class Swirl(NamedTuple):
    drift: float = 0.3
    turn: float = 1.0
    pay: float = 1.0
    hole: float = 0.2


def component(s, u, p, i):
    return p.drift * (i - 1) + p.turn * sin(s[(i + 1) % len(s)]) - 0.5 * sin(s[i]) + 0.4 * (i + 1) * u[0] + u[1]


def swirl1(s, u, p):
    return (component(s, u, p, 0),)


def swirl2(s, u, p):
    return component(s, u, p, 0), component(s, u, p, 1)


def swirl3(s, u, p):
    return component(s, u, p, 0), component(s, u, p, 1), component(s, u, p, 2)


def swirl4(s, u, p):
    return component(s, u, p, 0), component(s, u, p, 1), component(s, u, p, 2), component(s, u, p, 3)


def swirl5(s, u, p):
    return (
        component(s, u, p, 0),
        component(s, u, p, 1),
        component(s, u, p, 2),
        component(s, u, p, 3),
        component(s, u, p, 4),
    )


def swirl6(s, u, p):
    return (
        component(s, u, p, 0),
        component(s, u, p, 1),
        component(s, u, p, 2),
        component(s, u, p, 3),
        component(s, u, p, 4),
        component(s, u, p, 5),
    )


def swirl_rate(s, u, p):
    return p.pay * cos(s[0]) - 0.1 * u[0] * u[0]


def swirl_final(s, p):
    return 2.0 + 0.1 * s[len(s) - 1]


def swirl_ends(s, p):
    return abs(s[0] - 1.0) < p.hole


SWIRLS = (swirl1, swirl2, swirl3, swirl4, swirl5, swirl6)


@st.composite
def axes(draw: st.DrawFn, i: int) -> Axis:
    kind = draw(st.sampled_from(["bounded", "clipped", "periodic"]))
    if kind == "periodic":
        return Axis(f"x{i}", -math.pi, math.pi, periodic=True)
    low = draw(st.floats(-3, 2))
    return Axis(f"x{i}", low, low + draw(st.floats(0.5, 5)), clipped=kind == "clipped")


@st.composite
def swirls(draw: st.DrawFn) -> DiscretisedProblem:
    d = draw(st.integers(1, 6))
    most = (40, 12, 7, 5, 4, 4)[d - 1]
    controls = st.tuples(st.floats(-2, 2), st.floats(-1, 1))
    problem = ControlProblem(
        name="swirl",
        summary="sines in a ring",
        axes=tuple(draw(axes(i)) for i in range(d)),
        controls=(draw(controls), draw(controls)),
        dynamics=SWIRLS[d - 1],
        parameters=Swirl(*(draw(st.floats(-1, 1)) for _ in range(3)), draw(st.floats(0, 0.5))),
        reward_rate=swirl_rate,
        terminal_reward=swirl_final,
        is_terminal=swirl_ends,
    )
    points = [draw(st.integers(3 if axis.periodic else 2, most)) for axis in problem.axes]
    options = DiscretisationOptions(
        grid=",".join(map(str, points)),
        time_unit=draw(st.sampled_from([1.0, 0.01, 7.0])),
        max_step=draw(st.sampled_from([None, 0.03, 0.4])),
        max_duration=draw(st.sampled_from([None, 0.5, 2.0])),
    )
    return DiscretisedProblem(problem, options)


@st.composite
def some_states(draw: st.DrawFn) -> tuple[DiscretisedProblem, np.ndarray]:
    mdp = draw(swirls())
    chosen = draw(st.lists(st.integers(0, mdp.n_states - 1), min_size=1, max_size=30))
    return mdp, np.array(chosen)


def tables(mdp: DiscretisedProblem, rows: Rows) -> tuple[np.ndarray, ...]:
    """Successors and weights [rows, K], rewards and durations [rows]."""
    k = len(mdp.points) + 1
    assert rows.durations is not None
    return rows.successors.reshape(-1, k), rows.probabilities.reshape(-1, k), rows.rewards, rows.durations


# --------------------------------------------------------------------------------------------------- every system


@given(some_states())
@settings(max_examples=300, deadline=None)
def test_rows_are_distributions_of_exact_multiples_over_ascending_states(case):
    mdp, states = case
    rows = mdp.rows(states)
    successors, weights, rewards, durations = tables(mdp, rows)
    assert np.array_equal(rows.action_ptr, 2 * np.arange(states.size + 1))
    assert np.array_equal(rows.successor_ptr, (len(mdp.points) + 1) * np.arange(2 * states.size + 1))
    assert (weights >= 0).all()
    assert (weights.sum(axis=1) == 1.0).all()
    assert (weights / UNIT == np.round(weights / UNIT)).all()
    assert (weights == weights.astype(np.float32)).all()
    assert (np.diff(successors, axis=1) > 0).all()
    assert successors.min() >= 0
    assert successors.max() < mdp.n_states
    assert (durations > 0).all()
    assert np.array_equal(durations, durations.astype(np.float32))
    assert np.array_equal(rewards, rewards.astype(np.float32))
    finite = durations[np.isfinite(durations)]
    assert (finite <= mdp.max_duration / mdp.options.time_unit * (1 + 1e-6)).all()


@given(some_states(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_row_does_not_depend_on_the_states_that_are_asked_with_it(case, random):
    mdp, states = case
    order = list(range(states.size))
    random.shuffle(order)
    once, again = tables(mdp, mdp.rows(states)), tables(mdp, mdp.rows(states[order]))
    both = np.add.outer(2 * np.array(order), [0, 1]).reshape(-1)
    for one, other in zip(once, again, strict=True):
        assert np.array_equal(one[both], other)


@given(some_states())
@settings(max_examples=150, deadline=None)
def test_rows_are_those_of_the_plain_model(case):
    mdp, states = case
    successors, weights, rewards, durations = tables(mdp, mdp.rows(states))
    for i, state in enumerate(states):
        for action in range(2):
            j = 2 * i + action
            expected = row_of(mdp, int(state), action)
            assert math.isinf(durations[j]) == expected.ended
            assert durations[j] == pytest.approx(expected.duration / mdp.options.time_unit, rel=2e-7)
            assert rewards[j] == pytest.approx(expected.reward, rel=2e-7, abs=1e-12)
            # Where a fraction is 0 but for rounding, the cells on both sides describe the same point.
            found = dict(zip(successors[j].tolist(), weights[j].tolist(), strict=True))
            for s in found.keys() | expected.weights.keys():
                slack = len(mdp.points) * UNIT + 1e-12
                assert found.get(s, 0.0) == pytest.approx(expected.weights.get(s, 0.0), abs=slack)


@given(some_states())
@settings(max_examples=150, deadline=None)
def test_the_successors_mean_place_is_the_end_of_the_trajectory(case):
    mdp, states = case
    successors, weights, _, durations = tables(mdp, mdp.rows(states))
    for j in np.flatnonzero(np.isfinite(durations)):
        end = row_of(mdp, int(states[j // 2]), int(j % 2)).end
        offset = interpolated_offset(mdp, end, successors[j], weights[j])
        assert np.abs(offset).max() <= len(mdp.points) * UNIT + 1e-9


@given(some_states())
@settings(max_examples=100, deadline=None)
def test_a_trajectory_ends_a_cell_or_a_little_more_away_or_when_time_is_over(case):
    mdp, states = case
    _, _, _, durations = tables(mdp, mdp.rows(states))
    for j in np.flatnonzero(np.isfinite(durations)):
        row = row_of(mdp, int(states[j // 2]), int(j % 2))
        start = mdp.coordinates(states[[j // 2]])[0]
        cells = np.abs((np.array(row.end) - start) / np.array(mdp.steps)).max()
        timed_out = durations[j] == pytest.approx(mdp.max_duration / mdp.options.time_unit, rel=1e-6)
        assert timed_out or 1.0 <= cells < 2.0


# ------------------------------------------------------------------------------------------------- closed forms


class Plain(NamedTuple):
    unused: float = 0.0


def drift(s, u, p):
    return (u[0],)


def place(s, p):
    return s[0]


def one_a_second(s, u, p):
    return 3.0


def line(**changes: object) -> DiscretisedProblem:
    """dx/dt = u on 0 .. 10, cells of 1."""
    axis = changes.pop("axis", Axis("x", 0.0, 10.0))
    changes = {"max_step": 1.0} | changes
    problem = ControlProblem("line", "", (axis,), ((-2.0,), (0.0,), (4.0,)), drift, Plain(), **changes)
    return DiscretisedProblem(problem, DiscretisationOptions(grid="10" if axis.periodic else "11"))


def row(mdp: DiscretisedProblem, state: int, action: int) -> tuple[dict[int, float], float, float]:
    """Successors of positive weight, reward and duration."""
    successors, weights, rewards, durations = tables(mdp, mdp.rows(np.array([state])))
    found = {int(s): float(w) for s, w in zip(successors[action], weights[action], strict=True) if w > 0}
    return found, float(rewards[action]), float(durations[action])


def test_constant_speed_leaves_its_cell_after_four_steps_of_three_tenths():
    found, reward, duration = row(line(reward_rate=one_a_second), 5, 2)
    assert found == {6: pytest.approx(0.8, abs=2 * UNIT), 7: pytest.approx(0.2, abs=2 * UNIT)}
    assert duration == pytest.approx(0.3, rel=1e-6)
    assert reward == pytest.approx(3 * 0.3, rel=1e-6)
    found, reward, duration = row(line(reward_rate=one_a_second), 5, 0)
    assert found == {3: pytest.approx(0.2, abs=2 * UNIT), 4: pytest.approx(0.8, abs=2 * UNIT)}
    assert duration == pytest.approx(0.6, rel=1e-6)


def test_an_equilibrium_stays_for_the_longest_time_and_leads_to_itself():
    mdp = line(reward_rate=one_a_second, max_duration=2.5)
    for state in range(11):
        found, reward, duration = row(mdp, state, 1)
        assert found == {state: 1.0}
        assert (reward, duration) == (pytest.approx(7.5, rel=1e-6), 2.5)


def test_leaving_a_bounded_axis_ends_the_process_and_pays_the_final_reward():
    mdp = line(reward_rate=one_a_second, terminal_reward=place)
    _, reward, duration = row(mdp, 10, 2)
    assert duration == math.inf
    assert reward == pytest.approx(10 + 0.3 + 3 * 0.075, rel=1e-6), "outside after one step of 0.3 cells"
    _, reward, duration = row(mdp, 9, 2)
    assert duration == math.inf
    assert reward == pytest.approx(10.2 + 3 * 0.3, rel=1e-6), "outside after four"
    _, reward, duration = row(mdp, 0, 0)
    assert (duration, reward) == (math.inf, pytest.approx(-0.3 + 3 * 0.15, rel=1e-6))
    assert row(mdp, 1, 0)[2] == math.inf
    assert row(mdp, 8, 2)[2] < math.inf


def test_where_the_process_ends_every_control_pays_the_final_reward_at_once():
    mdp = line(reward_rate=one_a_second, terminal_reward=place, is_terminal=swirl_ends_at_four)
    for action in range(3):
        assert row(mdp, 4, action)[1:] == (4.0, math.inf)
    assert row(mdp, 3, 2)[1:] == (pytest.approx(3.9 + 3 * 0.225, rel=1e-6), math.inf), "on the way, after three steps"
    assert math.isfinite(row(mdp, 3, 0)[2])


def swirl_ends_at_four(s, p):
    return abs(s[0] - 4.0) < 0.15


def test_a_clipped_axis_holds_at_its_bound_for_the_longest_time():
    mdp = line(axis=Axis("x", 0.0, 10.0, clipped=True), reward_rate=one_a_second)
    assert row(mdp, 10, 2) == ({10: 1.0}, pytest.approx(3.0, rel=1e-6), 1.0)
    assert row(mdp, 9, 2)[0] == {10: 1.0}
    assert row(mdp, 0, 0) == ({0: 1.0}, pytest.approx(3.0, rel=1e-6), 1.0)


def test_a_periodic_axis_goes_round():
    mdp = line(axis=Axis("x", 0.0, 10.0, periodic=True))
    assert row(mdp, 9, 2)[0] == {0: pytest.approx(0.8, abs=2 * UNIT), 1: pytest.approx(0.2, abs=2 * UNIT)}
    assert row(mdp, 8, 2)[0] == {0: pytest.approx(0.2, abs=2 * UNIT), 9: pytest.approx(0.8, abs=2 * UNIT)}
    assert row(mdp, 0, 0)[0] == {8: pytest.approx(0.2, abs=2 * UNIT), 9: pytest.approx(0.8, abs=2 * UNIT)}


def test_the_unit_of_time_divides_durations_and_nothing_else():
    problem = make_problem("mountain-car", {"grid": "20"})
    scaled = make_problem("mountain-car", {"grid": "20", "time_unit": 0.25})
    states = np.arange(400)
    one, other = tables(problem, problem.rows(states)), tables(scaled, scaled.rows(states))
    for a, b in zip(one[:3], other[:3], strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(4 * one[3], other[3])


def pushed(s, u, p):
    return s[1], u[0]


@given(points=st.tuples(st.integers(3, 30), st.integers(3, 30)), push=st.floats(-3, 3))
@settings(max_examples=60, deadline=None)
def test_a_double_integrator_moves_by_its_parabola(points, push):
    """Runge-Kutta steps of order 4 are exact for x'' = u."""
    plane = (Axis("x", -2.0, 2.0), Axis("v", -3.0, 3.0))
    problem = ControlProblem("mass", "", plane, ((push,),), pushed, Plain())
    mdp = DiscretisedProblem(problem, DiscretisationOptions(grid=",".join(map(str, points))))
    states = np.arange(mdp.n_states)
    successors, weights, rewards, t = tables(mdp, mdp.rows(states))
    start = mdp.coordinates(states)
    assert (rewards == 0).all()
    for j in np.flatnonzero(np.isfinite(t)):
        x, v = start[j]
        end = (x + v * t[j] + push * t[j] ** 2 / 2, v + push * t[j])
        offset = interpolated_offset(mdp, end, successors[j], weights[j])
        assert np.abs(offset).max() <= 1e-5, "durations are float32"


def spring(s, u, p):
    return s[1], -s[0]


def spring_rate(s, u, p):
    return s[0]


def oscillated(step: float, rate: bool = False) -> tuple[float, float]:
    """x'' = -x from (-1, 0) for 2 units of time, in a cell that it does not leave: (x, integral of x)."""
    plane = (Axis("x", -1.0, 3.0), Axis("v", 0.0, 4.0))
    problem = ControlProblem("spring", "", plane, ((0.0,),), spring, Plain(), reward_rate=spring_rate)
    mdp = DiscretisedProblem(problem, DiscretisationOptions(grid="2", max_step=step, max_duration=2.0))
    successors, weights, rewards, durations = tables(mdp, mdp.rows(np.array([0])))
    assert durations[0] == 2.0
    return float((weights[0] @ mdp.coordinates(successors[0]))[0]), float(rewards[0])


def test_half_the_longest_step_leaves_a_sixteenth_of_the_error_of_an_oscillator():
    """x = -cos t; weights of 2**-24 in a cell of 4 hide errors below 1e-6."""
    errors = [abs(oscillated(step)[0] + cos(2.0)) for step in (0.5, 0.25, 0.125)]
    assert errors[0] < 2e-3
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.25)
    assert errors[1] / errors[2] == pytest.approx(16, rel=0.25)


def test_half_the_longest_step_leaves_a_quarter_of_the_error_of_the_reward():
    """The trapezoidal rule: int_0^2 -cos t dt = -sin 2."""
    errors = [abs(oscillated(step)[1] + sin(2.0)) for step in (0.2, 0.1, 0.05)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "grid"),
    [("mountain-car", "40"), ("single-pendulum", "40"), ("double-pendulum", "6"), ("triple-pendulum", "4")],
)
def test_either_stored_type_holds_the_rows_of_the_shipped_problems_exactly(name, grid, dtype):
    problem = make_problem(name, {"grid": grid})
    successors, weights, rewards, durations = tables(problem, problem.rows(np.arange(problem.n_states)))
    assert (weights.sum(axis=1) == 1.0).all()
    assert (np.diff(successors, axis=1) > 0).all()
    for numbers in (weights, rewards, durations):
        assert np.array_equal(numbers, numbers.astype(dtype).astype(np.float64))


def test_a_problem_without_parameters_leaves_them_out(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "from ooc_mdp import Axis, ControlProblem\n"
        "def dynamics(state, control, p):\n"
        "    return (control[0],)\n"
        "def reward_rate(state, control, p):\n"
        "    return -1.0\n"
        "axes = (Axis('x', -1.0, 1.0),)\n"
        "problem = ControlProblem(name='line', summary='', axes=axes, controls=((-1.0,), (1.0,)), dynamics=dynamics,\n"
        "                         reward_rate=reward_rate)\n"
    )
    table = ooc_mdp.open_problem(tmp_path / "p.py", {"grid": (11,)}, device="cpu")
    solution = ooc_mdp.solve(table, ooc_mdp.TotalReward(), epsilon=1e-6, device="cpu")
    assert solution.values.min() == pytest.approx(-1.0, abs=0.05)  # a unit of time from the middle to the nearer end
