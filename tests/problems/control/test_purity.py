"""Functions that depend on more than state, control and parameters are refused by function, file and line."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from command_line import refused
from numba import njit

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control import Axis, ControlProblem, discretise
from ooc_mdp.problems.control.function_checks import check_functions
from ooc_mdp.problems.registry import PROBLEMS, make_problem

ROOT = Path(__file__).parents[3]

FILE = """import builtins, hashlib, itertools, math, os, random, sys, time
from random import gauss as bell
from typing import NamedTuple
import numpy as np
from numba import njit
from ooc_mdp.problems.control import Axis, ControlProblem

class Parameters(NamedTuple):
    mass: float = 1.0

GAIN, TABLE, MUTABLE, COUNTER = 2.0, np.array([1.0, 2.0]), [1.0], itertools.count()
CALLS = 0

def noise(x):
    return x + HELPER

def constant():
    value = 3.0
    def inner(x):
        return value * x
    return inner
closed = njit(constant())

def remembering():
    calls = []
    def inner(x):
        calls.append(x)
        return len(calls)
    return inner
remembered = remembering()

def dynamics(state, control, p):
    x = state[0]
    return (control[0],)

dynamics.gain = 2.0
problem = ControlProblem("mine", "", (Axis("x", -1.0, 1.0),), ((-2.0,), (2.0,)), dynamics, Parameters()LAST)
"""


def written(folder: Path, body: str = "return (control[0],)", helper: str = "0.0", last: str = "") -> Path:
    file = folder / "mine.py"
    text = FILE.replace("return (control[0],)", body).replace("HELPER", helper).replace("LAST", last)
    file.write_text(text)
    return file


LINE = 1 + FILE[: FILE.index("return (control[0],)")].count("\n")


@pytest.mark.parametrize(
    ("expression", "used"),
    [
        ("random.gauss(0.0, 1.0)", "random.gauss"),
        ("bell(0.0, 1.0)", "bell"),
        ("np.random.normal()", "np.random.normal"),
        ("np.random.default_rng(1).normal()", "np.random.default_rng"),
        ("np.empty(1)[0]", "np.empty"),
        ("time.time()", "time.time"),
        ("os.getpid()", "os.getpid"),
        ("float(os.environ['HOME'] == '')", "os.environ"),
        ("len(open('/dev/null').read())", "open"),
        ("float(input())", "input"),
        ("hash('a')", "hash"),
        ("id(p)", "id"),
        ("float(next(COUNTER))", "next"),
        ("MUTABLE[0]", "MUTABLE, a list, which can change"),
        ("remembered(x)", "calls, a list, which can change"),
        ("dynamics.gain", "dynamics.gain, an attribute of a function"),
        ("eval('1.0')", "eval"),
        ("getattr(p, 'mass')", "getattr"),
        ("__import__('random').random()", "__import__"),
        ("builtins.hash(1)", "builtins.hash"),
        ("sys.getrefcount(p)", "sys.getrefcount"),
        ("(lambda: random.random())()", "random.random"),
        ("print(x) or 0.0", "print"),
    ],
)
def test_what_is_no_function_of_its_arguments_is_refused_by_function_and_line(tmp_path, expression, used):
    file = written(tmp_path, f"return (control[0] + 0.0 * {expression},)")
    where = "inner" if used.startswith("calls") else "dynamics"
    with pytest.raises(OptionsError) as caught:
        make_problem(file, {"grid": 5})
    message = str(caught.value)
    assert f"{where} uses {used}" in message
    if where == "dynamics":
        assert f"problem 'mine': {file}, line {LINE}: " in message


@pytest.mark.parametrize(
    ("statement", "does"),
    [
        ("global CALLS; CALLS += 1; return (control[0] * CALLS,)", "dynamics assigns to CALLS of the module"),
        ("import time; return (time.time(),)", "dynamics imports time"),
        ("dynamics.calls = 1.0; return (1.0,)", "dynamics assigns to the attribute calls"),
    ],
)
def test_functions_that_change_what_is_outside_are_refused(tmp_path, statement, does):
    with pytest.raises(OptionsError, match=does):
        make_problem(written(tmp_path, statement), {"grid": 5})


@pytest.mark.parametrize("name", ["reward_rate", "terminal_reward", "is_terminal", "is_goal"])
def test_every_function_of_a_problem_is_examined(tmp_path, name):
    arguments = "x, u, p" if name == "reward_rate" else "x, p"
    file = written(tmp_path, last=f", {name}=lambda {arguments}: random.random() > 2.0")
    with pytest.raises(OptionsError, match=r"<lambda> uses random.random, which is not known to be a function of"):
        make_problem(file, {"grid": 5})


def test_what_a_function_calls_is_examined_in_turn(tmp_path):
    file = written(tmp_path, "return (noise(x),)", helper="random.random()")
    with pytest.raises(OptionsError, match=r"line 15: noise uses random.random"):
        make_problem(file, {"grid": 5})
    assert "noise uses random.random" in refused("generate", file, tmp_path / "s", "--grid", 5)
    assert not (tmp_path / "s").exists()


PURE = [
    "math.sin(x) + np.cos(x) + abs(x) + min(x, GAIN) + float(len(state))",
    "noise(x) + closed(x)",
    "TABLE[0] + math.pi",
    "np.interp(x, TABLE, TABLE)",
    "np.float64(np.where(x > 0.0, 1.0, 2.0))",
    "sum((x, x)) + round(x)",
]


@pytest.mark.parametrize("expression", PURE)
def test_constants_and_pure_functions_are_accepted(tmp_path, expression):
    make_problem(written(tmp_path, f"return (control[0] + 0.0 * ({expression}),)"), {"grid": 5})


def test_constants_and_pure_functions_are_compiled(tmp_path):
    problem = make_problem(written(tmp_path, f"return (control[0] + 0.0 * ({' + '.join(PURE)}),)"), {"grid": 5})
    assert problem.rows(np.arange(5)).n_rows == 10


@pytest.mark.parametrize(
    ("constant", "named"),
    [
        ("random.random()", "parameters"),
        ("time.perf_counter()", "parameters"),
        ("float(hash('a') % 1000)", "parameters"),
        ("float(id(Parameters) % 1000)", "parameters"),
    ],
)
def test_a_file_that_defines_another_problem_at_each_run_is_refused(tmp_path, constant, named):
    file = written(tmp_path)
    file.write_text(file.read_text().replace("Parameters()", f"Parameters({constant})"))
    with pytest.raises(OptionsError, match=f"is another one each time that the file is run: {named} differs"):
        make_problem(file, {"grid": 5})
    file = written(tmp_path, "return (control[0] * GAIN,)")
    file.write_text(file.read_text().replace("GAIN, TABLE, MUTABLE, COUNTER = 2.0", f"GAIN, TABLE, *_ = {constant}"))
    with pytest.raises(OptionsError, match=r"each time that the file is run: dynamics differs; write constants"):
        make_problem(file, {"grid": 5})


def test_a_file_that_draws_the_same_numbers_each_time_is_accepted(tmp_path):
    file = written(tmp_path)
    file.write_text(file.read_text().replace("Parameters()", "Parameters(random.Random(1).random())"))
    assert make_problem(file, {"grid": 5}).n_states == 5


class Plain(NamedTuple):
    unused: float = 0.0


FACTOR = 1.0


def by_factor(state, control, p):
    return (FACTOR * control[0],)


def drift(state, control, p):
    return (control[0],)


BY_FACTOR = ControlProblem("scaled", "", (Axis("x", -1.0, 1.0),), ((1.0,),), by_factor, Plain())


def test_a_constant_that_changes_after_its_first_use_is_refused(monkeypatch):
    discretise(BY_FACTOR, {"grid": 5})
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    with pytest.raises(OptionsError, match=r"FACTOR was 1.0 when dynamics was first used, and is 2.0 now"):
        discretise(BY_FACTOR, {"grid": 5})


def test_functions_that_a_compiler_hides_are_refused_too():
    @njit
    def hidden(state, p):
        return np.random.random() > 2.0

    with pytest.raises(OptionsError, match=r"hidden uses np.random.random"):
        check_functions(dataclasses.replace(BY_FACTOR, dynamics=drift, is_terminal=hidden))


def test_what_gives_other_numbers_when_called_again_is_refused_wherever_that_comes_from(monkeypatch):
    from ooc_mdp.problems.control import function_checks

    counter = itertools.count()
    monkeypatch.setattr(function_checks, "check_purity", lambda problem: None)
    changing = dataclasses.replace(BY_FACTOR, dynamics=lambda s, u, p: (float(next(counter)),))
    with pytest.raises(OptionsError, match="dynamics gives other numbers when it is called again"):
        check_functions(changing)


@pytest.mark.parametrize("name", [name for name, entry in PROBLEMS.items() if entry.grid])
def test_the_problems_that_are_built_in_are_pure(name):
    assert make_problem(name, {"grid": 3}).n_states > 0


EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
CONTROL_EXAMPLES = [file for file in EXAMPLES if "problem = ControlProblem(" in file.read_text()]
assert CONTROL_EXAMPLES


@pytest.mark.parametrize("file", CONTROL_EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_of_the_documentation_are_pure(file):
    assert make_problem(file, {"grid": 3}).n_states > 0


def test_random_numbers_of_the_caller_are_left_as_they_are():
    random.seed(5)
    expected = random.Random(5).random()
    make_problem("mountain-car", {"grid": 3})
    assert random.random() == expected
    assert math.isfinite(expected)
