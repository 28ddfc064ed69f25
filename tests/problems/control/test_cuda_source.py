"""Python functions of control problems as C++: the same values, and clear refusals of what has none."""

from __future__ import annotations

import math
from pathlib import Path

import every_construct
import numpy as np
import pytest
from control_cases import CASES, NAMES, agree
from host_compiled import Translated, rows_of_kernel, written
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control import DiscretisedProblem, discretise
from ooc_mdp.problems.control.cuda.builtins import PARAMETERS, tuple_of
from ooc_mdp.problems.control.cuda.source import problem_source
from ooc_mdp.problems.registry import PROBLEMS, make_problem

CONSTRUCTS = [
    "arithmetic", "floored", "powers", "comparisons", "logic", "choices", "early", "assignments", "loops", "functions",
    "numpys", "builtins", "constants", "calls", "fields",
]  # fmt: skip
SHIPPED = [make_problem(name, {}).problem for name, entry in PROBLEMS.items() if entry.grid] + [every_construct.problem]
NUMBERS = st.one_of(st.floats(-8, 8), st.integers(-8, 8).map(float), st.sampled_from([0.0, -0.0, 1e-300, 0.1, 0.3]))


def close(one, other) -> bool:
    """Equal to 1e-12, and on the same side of 0 where they are 0 (integers have no sides, NumPy picks one)."""
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    for a, b in pairs:
        if math.isnan(a) and math.isnan(b):
            continue
        if not math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300):
            return False
        if type(a) is float and a == 0 and math.copysign(1, a) != math.copysign(1, b):
            return False
    return True


@pytest.fixture(scope="module")
def constructs() -> Translated:
    functions = {name: getattr(every_construct, name) for name in CONSTRUCTS}
    return Translated(functions, [tuple_of(3), tuple_of(1), PARAMETERS], every_construct.Parameters._fields)


@pytest.mark.parametrize("name", CONSTRUCTS)
@settings(max_examples=300)
@given(
    state=st.tuples(NUMBERS, NUMBERS, NUMBERS), control=st.tuples(NUMBERS), fields=st.tuples(NUMBERS, NUMBERS, NUMBERS)
)
def test_every_construct_means_in_cpp_what_it_means_in_python(constructs, name, state, control, fields):
    expected = getattr(every_construct, name)(state, control, every_construct.Parameters(*fields))
    assert close(expected, constructs(name, state, control, fields))


@pytest.mark.parametrize("problem", SHIPPED, ids=lambda problem: problem.name)
@settings(max_examples=200)
@given(data=st.data())
def test_the_problems_functions_keep_their_values(problem, data):
    d, fields = len(problem.axes), problem.parameters._fields
    state = data.draw(st.tuples(*[NUMBERS] * d))
    control = data.draw(st.sampled_from(problem.controls))
    values = data.draw(st.tuples(*[st.floats(0.1, 4.0)] * len(fields)))
    p = type(problem.parameters)(*values)
    of_control = {"dynamics": problem.dynamics, "reward_rate": problem.reward_rate}
    of_state = {"terminal_reward": problem.terminal_reward, "is_terminal": problem.is_terminal}
    for functions, inputs in ((of_control, [state, control]), (of_state, [state])):
        functions = {name: function for name, function in functions.items() if function is not None}
        kinds = [*(tuple_of(len(values)) for values in inputs), PARAMETERS]
        if functions:
            translated = Translated(functions, kinds, fields)
            for name, function in functions.items():
                assert close(function(*inputs, p), translated(name, *inputs, values)), name


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=NAMES)
def test_the_kernel_compiled_for_the_host_gives_numbas_rows(name, parameters):
    problem = make_problem(name, parameters)
    assert isinstance(problem, DiscretisedProblem)
    states = np.arange(problem.n_states)
    agree(problem.rows(states), rows_of_kernel(problem, states), len(problem.points) + 1)


def test_a_trajectory_of_too_many_steps_has_no_duration_in_cpp_either():
    problem = make_problem("mountain-car", {"grid": 5, "max_step": 1e-20})
    rows = rows_of_kernel(problem, np.arange(1))
    assert np.isnan(rows.durations).all()
    with pytest.raises(OptionsError, match=r"problem 'mountain-car': from state 0 .* control 0 .* 1,000,000 steps"):
        problem.check_rows(np.arange(1), rows.probabilities, rows.rewards, rows.durations)


def test_the_kernel_takes_states_in_any_order():
    problem = make_problem("mountain-car", {"grid": "9"})
    states = np.array([80, 3, 3, 41])
    agree(problem.rows(states), rows_of_kernel(problem, states), 3)


def test_one_dimension_and_no_parameters_are_enough(tmp_path):
    text = """
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

class None_(NamedTuple):
    pass

def dynamics(state, control, p):
    return (control[0] - state[0],)

problem = ControlProblem("one", "", (Axis("x", -1.0, 1.0),), ((-2.0,), (2.0,)), dynamics, None_())
"""
    problem = discretise(written(tmp_path, text).problem, {"grid": "7"})
    states = np.arange(7)
    agree(problem.rows(states), rows_of_kernel(problem, states), 2)


REFUSED = {
    "while x > 0:\n        x = x - 1": (1, "while", "range"),
    "y = [x, v]": (1, "[x, v]", "tuple"),
    "y = sum(z for z in state)": (1, "sum", "functions of math"),
    "y = 'text'": (1, "'text'", "floats"),
    "y = state[0:1]": (1, "state[0:1]", "constant integers"),
    "y = state[2]": (1, "component 2 of 2", ""),
    "y = state[-3]": (1, "component -3 of 2", ""),
    "y = control[int(x)]": (1, "control[int(x)]", "constant integers"),
    "y = p.weight": (1, "p.weight", "gravity, mass"),
    "p = 3": (1, "to p", ""),
    "y = unknown": (1, "unknown", ""),
    "y = TABLE": (1, "TABLE", "tuples of numbers"),
    "y = TEXT[0]": (1, "TEXT", "str"),
    "y = math.gamma(x)": (1, "math.gamma", "functions of math"),
    "y = math.sin(x, v)": (1, "2 arguments", "give 1"),
    "y = max(x)": (1, "one argument", "two or more"),
    "y = max(*state)": (1, "max(*state)", "plain arguments"),
    "y = helper(x=x)": (1, "keywords", "plain arguments"),
    "y = helper(x, v)": (1, "takes 1 arguments and is given 2", ""),
    "y = endless(x)": (("endless", 1), "calls itself", ""),
    "y = inner(x)": (("inner", 0), "lies inside another function", "level of the module"),
    "y = small(x)": (("small", 0), "lambda", "function of the module"),
    "y = nothing(x)": (("nothing", 0), "without a return", "return a value"),
    "y = starred(x)": (("starred", 0), "*arguments", ""),
    "y = x is v": (1, "x is v", ""),
    "y = x in state": (1, "x in state", ""),
    "y = x @ v": (1, "x @ v", ""),
    "y = ~3": (1, "~3", ""),
    "y = 3 & 1": (1, "3 & 1", ""),
    "y = x + state": (1, "a tuple of 2 where a number must be", ""),
    "y = state < control": (1, "a tuple of 2 where a number must be", ""),
    "x = state": (1, "an assignment of a tuple of 2 to x, elsewhere a number", "another name"),
    "a, b, c = state": (1, "an assignment of a tuple of 2 to 3 names", ""),
    "a, b = x": (1, "an assignment of a number to 2 names", ""),
    "p.mass = 2.0": (1, "p.mass", "local names"),
    "global TABLE": (1, "global TABLE", ""),
    "for y in state:\n        x += y": (1, "not over range", "range(N)"),
    "for i in range(v):\n        x += i": (1, "range(v)", "constant integers"),
    "for i in range(3):\n        break": (2, "break", "under an if"),
    "for i in range(3):\n        i = 1": (2, "counts a loop", "another name"),
    "for x in range(3):\n        pass": (1, "a loop over x", "name of its own"),
    "for i in range(100):\n        for j in range(100):\n            x += 1": (2, "more than 4096 times", "shorten"),
    "if x > 0:\n        y = 1\n    x = y": (3, "y, which may have no value here", "every way"),
    "y = 1152921504606846977": (1, "1152921504606846977", "no double holds"),
    "y = x if v > 0 else state": (1, "once a number and once a tuple of 2", ""),
    "assert x > 0": (1, "assert", "leave it out"),
    "raise ValueError": (1, "raise", "return a value instead"),
    "import os": (1, "import os", ""),
    "return": (1, "return", ""),
    "return x, v, 1": (None, "", ""),
    "return x": (None, "", ""),
}
HEAD = """import math
import numpy as np
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

TABLE = np.array([1.0, 2.0])
TEXT = "text"


class Parameters(NamedTuple):
    mass: float = 1.0
    gravity: float = 9.81


def helper(x):
    return x


def endless(x):
    return endless(x - 1)


def make():
    def inner(x):
        return x
    return inner


inner = make()
small = lambda x: x


def nothing(x):
    x = 1


def starred(*arguments):
    return 1


def dynamics(state, control, p):
    x, v = state
    """


def refusal(folder: Path, body: str) -> tuple[str, Path, str]:
    """The message for a dynamics function of this body, its file and the text."""
    text = HEAD + body + "\n    return x, v\n\n\n"
    text += 'axes = (Axis("x", -1.0, 1.0), Axis("v", -1.0, 1.0))\n'
    text += 'problem = ControlProblem("made", "", axes, ((1.0,),), dynamics, Parameters())\n'
    problem = written(folder, text).problem
    with pytest.raises(OptionsError) as caught:
        problem_source(problem)
    return str(caught.value), folder / "written.py", text


@pytest.mark.parametrize("body", REFUSED)
def test_what_cannot_be_translated_is_refused_with_file_and_line(tmp_path, body):
    where, what, remedy = REFUSED[body]
    message, file, text = refusal(tmp_path, body)
    lines = text.splitlines()
    if isinstance(where, tuple):
        start = next(
            i for i, line in enumerate(lines, 1) if f"def {where[0]}(" in line or f"{where[0]} = lambda" in line
        )
        line = start + where[1]
    else:
        start = lines.index("def dynamics(state, control, p):") + 1
        line = start + (0 if where is None else where + 1)
    assert message.startswith(f"{file}, line {line}: ")
    assert what in message
    assert remedy in message


def test_a_lambda_for_dynamics_is_refused_with_file_and_line(tmp_path):
    text = HEAD.split("def dynamics")[0] + 'axes = (Axis("x", -1.0, 1.0),)\n'
    text += 'problem = ControlProblem("made", "", axes, ((1.0,),), lambda state, control, p: state, Parameters())\n'
    problem = written(tmp_path, text).problem
    with pytest.raises(OptionsError, match=rf"written.py, line {len(text.splitlines())}: a lambda cannot run on a GPU"):
        problem_source(problem)


def test_what_is_no_python_function_is_refused(tmp_path):
    text = HEAD + "return x, v\naxes = (Axis('x', -1.0, 1.0),)\n"
    text += "problem = ControlProblem('made', '', axes, ((1.0,),), math.hypot, Parameters())\n"
    with pytest.raises(OptionsError, match="dynamics is <built-in function hypot>, not a Python function"):
        problem_source(written(tmp_path, text).problem)


def test_a_file_that_changed_since_it_was_run_is_refused(tmp_path):
    text = HEAD + "return x, v\naxes = (Axis('x', -1.0, 1.0), Axis('v', 0.0, 1.0))\n"
    text += "problem = ControlProblem('made', '', axes, ((1.0,),), dynamics, Parameters())\n"
    problem = written(tmp_path, text).problem
    (tmp_path / "written.py").write_text("# a comment\n" + text)
    with pytest.raises(OptionsError, match="has changed since it was run"):
        problem_source(problem)


def test_functions_that_numba_compiled_are_read_too(tmp_path):
    text = "from numba import njit\n" + HEAD.replace("def helper", "@njit\ndef helper").replace(
        "def dynamics", "@njit(nogil=True)\ndef dynamics"
    )
    text += "return helper(v), -x\naxes = (Axis('x', -1.0, 1.0), Axis('v', -1.0, 1.0))\n"
    text += "problem = ControlProblem('made', '', axes, ((1.0,),), dynamics, Parameters())\n"
    problem = discretise(written(tmp_path, text).problem, {"grid": "5"})
    states = np.arange(25)
    agree(problem.rows(states), rows_of_kernel(problem, states), 3)
