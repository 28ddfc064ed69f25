"""A control problem as CUDA C++: its functions, its parameters and what its axes are like.

The text is pasted into ``control/rows.cu``, which does on a GPU what
:mod:`ooc_mdp.problems.control.integration` does on a CPU. What the functions may contain is checked, and translated, by
:mod:`ooc_mdp.problems.control.cuda.translate`. The grid and the values of the parameters are no part of the text, so
that one compiled kernel serves all of them. This module needs no GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.cuda.builtins import (
    FLAG,
    NUMBER,
    PARAMETERS,
    Kind,
    literal,
    mangled,
    tuple_of,
)
from ooc_mdp.problems.control.cuda.python_source import plain_function
from ooc_mdp.problems.control.cuda.translate import Program
from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.problems.control.integration import MAX_STEP_CELLS, MAX_STEPS, WEIGHT_UNIT

__all__ = ["problem_source", "setup"]


def problem_source(problem: ControlProblem) -> str:
    """C++ declarations of the problem, for the place in ``control/rows.cu`` that is marked for them.

    Raises
    ------
    OptionsError : a function contains what cannot be translated; says file, line, what, and what to write instead.
    """
    d, u = len(problem.axes), len(problem.controls[0])
    fields = problem.parameters._fields
    program = Program(fields)
    state, control = tuple_of(d), tuple_of(u)
    wrappers = [
        _wrapper(program, problem, "dynamics", state, {"state": state, "control": control}, ""),
        _wrapper(program, problem, "reward_rate", NUMBER, {"state": state, "control": control}, "0.0"),
        _wrapper(program, problem, "terminal_reward", NUMBER, {"state": state}, "0.0"),
        _wrapper(program, problem, "is_terminal", FLAG, {"state": state}, "false"),
    ]
    controls = ", ".join("{{" + ", ".join(literal(x) for x in values) + "}}" for values in problem.controls)
    # A struct without members would have a size that host and device might see differently.
    members = " ".join(f"double {mangled('p_', name)};" for name in fields) or "double none;"
    return "\n".join(
        [
            f"constexpr int D = {d}, A = {len(problem.controls)}, U = {u};",
            f"constexpr unsigned PERIODIC = {_bits([x.periodic for x in problem.axes])};",
            f"constexpr unsigned CLIPPED = {_bits([x.clipped for x in problem.axes])};",
            f"constexpr int MAX_STEPS = {MAX_STEPS};",
            f"constexpr double MAX_STEP_CELLS = {literal(MAX_STEP_CELLS)}, WEIGHT_UNIT = {literal(WEIGHT_UNIT)};",
            f"struct Parameters {{ {members} }};",
            f"__device__ const Numbers<U> CONTROLS[A] = {{{controls}}};",
            "",
            *program.texts,
            *wrappers,
        ]
    )


def setup(discretised: DiscretisedProblem) -> np.ndarray[Any, np.dtype[np.void]]:
    """The struct ``Setup`` of ``control/rows.cu``, as an array of one element: grid, limits, parameters."""
    d = len(discretised.points)
    axes = discretised.problem.axes
    parameters = tuple(float(x) for x in discretised.problem.parameters) or (0.0,)
    layout = np.dtype(
        [
            ("points", "i8", d),
            ("stride", "i8", d),
            ("low", "f8", d),
            ("high", "f8", d),
            ("span", "f8", d),
            ("h", "f8", d),
            ("max_step", "f8"),
            ("max_duration", "f8"),
            ("time_unit", "f8"),
            ("parameters", "f8", len(parameters)),
        ]
    )
    values = np.zeros(1, layout)
    values["points"], values["stride"] = discretised.points, discretised.strides
    values["low"], values["high"] = [x.low for x in axes], [x.high for x in axes]
    values["span"], values["h"] = [x.high - x.low for x in axes], discretised.steps
    values["max_step"], values["max_duration"] = discretised.max_step, discretised.max_duration
    values["time_unit"], values["parameters"] = discretised.options.time_unit, parameters
    return values


def _bits(flags: list[bool]) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _wrapper(
    program: Program, problem: ControlProblem, name: str, result: Kind, arguments: dict[str, Kind], absent: str
) -> str:
    """The function that the kernel calls: the user's, its result turned into `result`, or what is taken for none."""
    given = ", ".join(f"const {kind.c}& {argument}" for argument, kind in arguments.items())
    head = f"__device__ __forceinline__ {result.c} {name}({given}, const Parameters& p)"
    function: Any = getattr(problem, name)
    if function is None:
        return f"{head} {{ return {absent}; }}"
    plain = plain_function(function)
    if plain is None:
        raise OptionsError(f"problem {problem.name!r}: {name} is {function!r}, not a Python function of a module")
    where = f"{plain.__code__.co_filename}, line {plain.__code__.co_firstlineno}"

    def blame(what: str) -> OptionsError:
        return OptionsError(f"{where}: {what} does not fit {name} of problem {problem.name!r}")

    translated = program.function(plain, (*arguments.values(), PARAMETERS), blame)
    call = f"{translated.c}({', '.join(arguments)}, p)"
    got = translated.kind
    if result == FLAG and got == NUMBER:
        call = f"{call} != 0.0"
    elif got != result and not (result == NUMBER and got == FLAG):
        raise OptionsError(f"{where}: {plain.__name__} returns {got}; {name} of problem {problem.name!r} is {result}")
    return f"{head} {{ return {call}; }}"
