"""Control problems that are refused: definitions, parameters, and users' files, by file, line and state."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from command_line import refused

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control import Axis, ControlProblem, discretise
from ooc_mdp.problems.registry import make_problem


class Plain(NamedTuple):
    unused: float = 0.0


def drift(s, u, p):
    return (u[0],)


def test_axes_that_cannot_be_are_refused_by_name():
    for low, high in ((1.0, 1.0), (2.0, 1.0), (-math.inf, 1.0), (0.0, math.nan)):
        with pytest.raises(OptionsError, match="axis 'height' reaches from"):
            Axis("height", low, high)
    with pytest.raises(OptionsError, match="axis 'height' is both periodic and clipped"):
        Axis("height", 0.0, 1.0, periodic=True, clipped=True)


GOOD = ControlProblem("good", "", (Axis("x", 0.0, 1.0),), ((1.0,),), drift, Plain())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axes": ()}, "has 0 axes; give 1 to 6"),
        ({"axes": (Axis("x", 0.0, 1.0),) * 7}, "has 7 axes"),
        ({"controls": ()}, "controls are"),
        ({"controls": ((1.0,), (1.0, 2.0))}, "tuples of finite numbers, of equal length"),
        ({"controls": (-1.0, 1.0)}, r"such as \(\(-1.0,\), \(1.0,\)\)"),
        ({"controls": 1.0}, "controls are 1.0; give tuples"),
        ({"controls": (("left",), ("right",))}, "controls are"),
        ({"controls": ("left", "right")}, "controls are"),
        ({"controls": ((math.nan,), (1.0,))}, "controls are"),
        ({"controls": ((),)}, "controls are"),
        ({"default_grid": (3, 4)}, "has not 1 numbers"),
        ({"initial_state": (0.0, 1.0)}, "initial_state .* has not 1 numbers"),
        ({"max_step": 0.0}, "max_step"),
        ({"max_step": 2.0}, "0 < max_step <= max_duration"),
        ({"max_duration": math.inf}, "max_duration"),
        ({"parameters": {"mass": 1.0}}, "parameters is no NamedTuple"),
        ({"parameters": Plain("heavy")}, "parameter unused is 'heavy'"),
        ({"parameters": Plain(True)}, "parameter unused is True"),
    ],
)
def test_definitions_that_do_not_fit_are_refused_with_the_problems_name(change, message):
    with pytest.raises(OptionsError, match=f"problem 'good'.*{message}"):
        dataclasses.replace(GOOD, **change)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": "10,10"}, r"2 numbers for 1 axes \(x\)"),
        ({"grid": "ten"}, "no list of numbers"),
        ({"grid": "1"}, "1 points on the axis x; give at least 2"),
        ({"weight": 1}, "has no parameter 'weight'; it takes grid"),
        ({"unused": "much"}, "unused = 'much' is not a value of type float"),
        ({"unused": "inf"}, "unused = 'inf' is not a value"),
        ({"time_unit": 0}, "time_unit = 0 is not above 0; give the length of one unit of duration, .*default, 1$"),
        ({"time_unit": 1e301}, "time_unit = 1e\\+301 is outside 1e-300"),
        ({"max_step": 0}, "max_step = 0 is not above 0; give the longest step of the integrator, .*the default, 0.1$"),
        ({"max_step": -1}, "max_step = -1 is not above 0"),
        ({"max_duration": "0"}, "max_duration = 0 is not above 0; give the longest duration of a transition, .*, 1$"),
        ({"max_step": 3, "max_duration": 2}, "max_step = 3.0 is above max_duration = 2.0"),
        ({"time_unit": 1e-40}, "max_duration = 1.0 is 1e\\+40 units of time, more than a float32 holds"),
        ({"max_duration": 1e39}, "max_duration = 1e\\+39 is 1e\\+39 units of time"),
    ],
)
def test_parameters_that_do_not_fit_are_refused_with_the_problems_name(given, message):
    with pytest.raises(OptionsError, match=f"problem 'good'.*{message}"):
        discretise(GOOD, given)


def test_a_periodic_axis_needs_three_points():
    problem = dataclasses.replace(GOOD, axes=(Axis("x", 0.0, 1.0, periodic=True),))
    with pytest.raises(OptionsError, match="2 points on the axis x; give at least 3"):
        discretise(problem, {"grid": 2})


@pytest.mark.parametrize("points", [-3, 0, 1])
def test_a_grid_of_the_problems_own_has_as_many_points_as_one_that_is_given(points):
    problem = dataclasses.replace(GOOD, default_grid=(points,))
    with pytest.raises(OptionsError, match=f"problem 'good': {points} points on the axis x; give at least 2"):
        discretise(problem, {})
    assert discretise(problem, {"grid": 5}).n_states == 5


def test_a_parameter_must_not_be_called_like_an_option_of_the_grid():
    class Clash(NamedTuple):
        max_duration: float = 1.0

    with pytest.raises(OptionsError, match="problem 'good' calls a parameter 'max_duration', which the grid has"):
        discretise(dataclasses.replace(GOOD, parameters=Clash()), {})


def drift_in_six(s, u, p):
    return (u[0], u[0], u[0], u[0], u[0], u[0])


def test_more_states_than_numbers_are_refused():
    axes = tuple(Axis(f"x{i}", 0.0, 1.0) for i in range(6))
    problem = ControlProblem("huge", "", axes, ((1.0,),), drift_in_six, Plain())
    with pytest.raises(OptionsError, match=r"give at most 2\*\*62"):
        discretise(problem, {"grid": 2000})


def test_rows_of_states_that_do_not_exist_are_refused():
    mdp = discretise(GOOD, {"grid": 5})
    for state in (-1, 5):
        with pytest.raises(OptionsError, match=r"problem 'good' has states 0 \.\. 4"):
            mdp.rows(np.array([0, state]))


FILE = """from math import sqrt
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

class Parameters(NamedTuple):
    mass: float = 1.0

def dynamics(state, control, p):
    x = state[0]
    return (control[0],)

problem = ControlProblem("mine", "", (Axis("x", -1.0, 1.0, periodic=True),), ((-2.0,), (2.0,)), dynamics, Parameters())
"""


def changed(folder: Path, old: str, new: str) -> Path:
    assert old in FILE
    file = folder / "mine.py"
    file.write_text(FILE.replace(old, new))
    return file


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class Parameters", "1 / 0\nclass Parameters", "mine.py, line 5: ZeroDivisionError: division by zero"),
        ("def dynamics(", "def dynamics(,", "SyntaxError: .*mine.py, line 8"),
        ("from math", "import does_not_exist\nfrom math", "mine.py, line 1: ModuleNotFoundError: .*does_not_exist"),
        ("mass: float = 1.0", "mass: str = 'heavy'", "mine.py, line 12: problem 'mine': parameter mass is 'heavy'"),
        (
            '(Axis("x", -1.0, 1.0, periodic=True),)',
            'Axis("x", -1.0, 1.0)',
            "mine.py, line 12: .*axes are .*give a tuple of Axis",
        ),
        ('"x", -1.0', '"x", "-1"', "mine.py, line 12: axis 'x': a bound is '-1', which is no number"),
        (", dynamics,", ', "dynamics",', "mine.py, line 12: .*dynamics is 'dynamics'; give a function, by its name"),
        ("problem = ", "something = ", "mine.py assigns no ControlProblem to the name problem"),
        ("-1.0, 1.0, p", "1.0, -1.0, p", "mine.py, line 12: axis 'x' reaches from 1.0 to -1.0"),
    ],
)
def test_a_users_file_with_an_error_is_refused_by_file_and_line(tmp_path, old, new, message):
    with pytest.raises(OptionsError, match=message):
        make_problem(str(changed(tmp_path, old, new)))


def test_a_users_file_may_have_dataclasses_with_annotations_as_texts_and_a_modules_name(tmp_path):
    file = tmp_path / "math.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        + FILE.replace(
            "def dynamics", "@dataclass(frozen=True)\nclass Bounds:\n    low: float = -1.0\n\ndef dynamics"
        ).replace('"x", -1.0', '"x", Bounds().low')
    )
    assert make_problem(file, {"grid": 5}).rows(np.arange(5)).n_rows == 10
    assert sys.modules["math"] is math
    left = [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == str(file)]
    assert left == []  # Numba and NumPy, which the rows may be the first to need, have modules of such names too


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("control[0], x", r"mine.py, line 8: dynamics gives .* is 2 numbers for 1 axes: .*, the derivative of x"),
        ("undefined * x,", r"mine.py, line 10: dynamics uses the name undefined, which is not defined; define it"),
        ("1.0 if x < 2.0 else parametres,", r"mine.py, line 10: dynamics uses the name parametres, .*; did you mean"),
        ("state[1],", r"mine.py, line 10, in dynamics: IndexError.*; state has 1 components, control has 1"),
        ("p.weight,", r"mine.py, line 10, in dynamics: AttributeError: .*weight.*; p has the fields mass"),
        ("1.0 if x < 2.0 else p.weight,", r"mine.py, line 10, in dynamics: Numba cannot compile this: .*weight"),
        ("'fast',", r"mine.py, line 8: dynamics gives \('fast',\), which is no tuple of numbers: return a tuple of 1"),
        ("(-x - 2.0) ** 0.5,", r"mine.py, line 8: dynamics gives .*j\),\), which is complex.*; guard the power"),
        (
            "sqrt(x - 0.8) * control[0],",
            r"mine.py, line 10, in dynamics: ValueError: .*, at x = 0.06, control -2; .*guard",
        ),
        ("control[0] / (x - x),", r"mine.py, line 10, in dynamics: ZeroDivisionError: .*; guard the division"),
        ("dynamics(state, control, p)[0],", r"mine.py, line 10: dynamics calls itself; write a loop"),
        ("len(open('x').read()),", r"mine.py, line 10: dynamics uses open, which is not known"),
        (
            "float(f'{x:.3f}'),",
            r"problem 'mine': .*mine.py, line 10, in dynamics: Numba cannot compile this: format spec",
        ),
    ],
)
def test_dynamics_that_cannot_run_are_refused_by_file_and_line(tmp_path, new, message):
    file = changed(tmp_path, "(control[0],)", f"({new})")
    with pytest.raises(OptionsError, match=message):
        make_problem(str(file), {"grid": 5}).rows(np.arange(5))


def test_an_error_of_arithmetic_names_the_state_at_which_it_happens(tmp_path):
    file = changed(tmp_path, "(control[0],)", "(1.0 / (x + 1.0),)")
    problem = make_problem(str(file), {"grid": 5})
    assert (problem.rows(np.arange(1, 5)).probabilities >= 0).all()
    with pytest.raises(
        OptionsError, match=r"mine.py, line 10, in dynamics: ZeroDivisionError: .*, at x = -1, control -2;"
    ):
        problem.rows(np.arange(4, -1, -1))


def test_any_error_that_a_compiled_function_raises_names_its_line_and_the_state(tmp_path):
    raises = "if x > 0.9:\n        raise RuntimeError('too far')\n    return (control[0],)"
    file = changed(tmp_path, "return (control[0],)", raises)
    with pytest.raises(
        OptionsError, match=r"mine.py, line 11, in dynamics: RuntimeError: too far, at x = .*, control 2;"
    ):
        make_problem(str(file), {"grid": 5}).rows(np.arange(5))


def test_an_error_in_is_goal_names_its_line_and_the_state(tmp_path):
    goal = "def is_goal(state, p):\n    if state[0] > 0.9:\n        raise RuntimeError('no')\n    return False\n\n"
    file = changed(tmp_path, "problem = ", f"{goal}problem = ")
    file.write_text(
        file.read_text().replace("Parameters())", "Parameters(), is_goal=is_goal)").replace(", periodic=True", "")
    )
    with pytest.raises(OptionsError, match=r"mine.py, line 14, in is_goal: RuntimeError: no, at x = 1;"):
        make_problem(str(file), {"grid": 5}).labels["goal"](np.arange(5))


def test_a_function_that_ends_without_return_is_refused(tmp_path):
    terminal = "def is_terminal(state, p):\n    if state[0] > 2.0:\n        return True\n\n"
    file = changed(tmp_path, "problem = ", f"{terminal}problem = ")
    file.write_text(file.read_text().replace("Parameters())", "Parameters(), is_terminal=is_terminal)"))
    with pytest.raises(OptionsError, match=r"mine.py, line 12: is_terminal gives None, .*return True or False"):
        make_problem(str(file), {"grid": 5})


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"max_step": 1e-20}, "give a max_step of 2e-06 or more, not 1e-20, or a smaller max_duration"),
        ({"thrust": 1e20}, "the state moves too fast for its cells: give other parameters, or a coarser grid"),
    ],
)
def test_a_trajectory_that_takes_too_many_steps_is_refused_with_its_state(tmp_path, given, remedy):
    said = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    message = refused("generate", "mountain-car", tmp_path / "s", "-p", "grid=5", "--device", "cpu", *said)
    assert "problem 'mountain-car': from state 0 (position = -1, velocity = -4)" in message
    assert "control 0 (-1.0) takes 1,000,000 steps of the integrator" in message
    assert remedy in message
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_none_are_refused_with_state_and_action(tmp_path):
    file = changed(tmp_path, "(control[0],)", "(control[0] if x < 0.5 else float('nan') * control[0],)")
    # From x = 0.2, state 3, only action 1 leads to where the derivative is no number.
    message = refused("generate", file, tmp_path / "s", "-p", "grid=5", "--device", "cpu")
    assert "mine.py, line 8: dynamics gives (nan,) at x = 0." in message
    assert "control 2, which is not finite" in message
    assert "(mine: state 3, action 1)" in message
    assert not (tmp_path / "s").exists()
