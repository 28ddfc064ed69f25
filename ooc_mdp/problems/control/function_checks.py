"""What is wrong with a problem's functions, said with the problem's name, file and line.

Each function is run as plain Python, at the middle of the axes, before anything is compiled: a wrong name or a
derivative too many is found at once, and said in words that a compiler would not find. What depends on the state shows
when rows are computed; this module turns those errors into messages and computes nothing. Functions that give other
numbers the second time are refused as well, wherever that comes from: `purity` finds most of them by their code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.cuda.python_source import called_functions, plain_function
from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.purity import FUNCTION_NAMES, check_purity
from ooc_mdp.quoting import shorten

__all__ = ["check_functions", "failed_call", "not_compilable", "not_finite", "place_of", "sampled_values"]

_SHARES = (0.53, 0.31, 0.83)
"""Where states of a sample lie on the first axis, as shares of its length; powers of them on the others. None is the
middle, at which a divisor may well be 0 and no grid point lie."""
_CONTROLLED = ("dynamics", "reward_rate")
"""Functions that are given a control."""
_PLACE = re.compile(r'(?:File "|Raised from )(.+?)(?:", line | \()(\d+)')


def check_functions(problem: ControlProblem) -> None:
    """Examine and run each function.

    Raises
    ------
    OptionsError : a function depends on something else than its arguments and constants; it fails (arithmetic may fail
        at single states, and where the process has ended); it gives no numbers, or more or fewer derivatives than there
        are axes.
    """
    check_purity(problem)
    middle = tuple((axis.low + axis.high) / 2 for axis in problem.axes)
    p = _parameters(problem)
    control = tuple(float(u) for u in problem.controls[0])
    for name in FUNCTION_NAMES:
        if getattr(problem, name) is not None:
            _call(problem, name, middle, *((control,) if name in _CONTROLLED else ()), p)
    once, twice = sampled_values(problem), sampled_values(problem)
    for name, values in once.items():
        if values != twice[name]:
            raise OptionsError(
                f"problem {problem.name!r}: {name} gives other numbers when it is called again with the same values; "
                f"it must be a function of them alone"
            )


def sampled_values(problem: ControlProblem) -> dict[str, bytes]:
    """What each function gives at some states under each control, bit for bit, by its name; raises OptionsError."""
    p = _parameters(problem)
    values: dict[str, bytes] = {}
    for name in FUNCTION_NAMES:
        if getattr(problem, name) is not None:
            arguments = _sampled_arguments(problem, name in _CONTROLLED)
            values[name] = b"".join(_bits(_sampled(problem, name, given, p)) for given in arguments)
    return values


def _parameters(problem: ControlProblem) -> Any:
    return type(problem.parameters)(*(float(x) for x in problem.parameters))


def _sampled_arguments(problem: ControlProblem, controlled: bool) -> Iterator[tuple[tuple[float, ...], ...]]:
    """States within the axes, with a control each where they are given to the function."""
    for share in _SHARES:
        state = tuple(axis.low + share ** (1 + i) * (axis.high - axis.low) for i, axis in enumerate(problem.axes))
        for control in problem.controls if controlled else ((),):
            yield (state, tuple(float(u) for u in control)) if controlled else (state,)


def _sampled(problem: ControlProblem, name: str, given: tuple[tuple[float, ...], ...], p: Any) -> Any:
    """What a function gives at a state of the sample, where its arithmetic must not fail while the process goes on."""
    found = _call(problem, name, *given, p)
    if isinstance(found, ZeroDivisionError | ValueError) and name != "terminal_reward":
        over = None if problem.is_terminal is None else _call(problem, "is_terminal", given[0], p)
        if name == "is_terminal" or not over:
            raise failed_call(problem, name, found, place_of(problem, *given))
    return found


def _bits(given: Any) -> bytes:
    """Numbers as bytes; nothing where the arithmetic failed."""
    numbers = () if isinstance(given, Exception) else given if isinstance(given, tuple) else (given,)
    return struct.pack(f"{len(numbers)}d", *map(float, numbers))


def place_of(problem: ControlProblem, state: Sequence[float], control: Sequence[float] = ()) -> str:
    """A state, and a control where one is given, as messages name them."""
    said = ", ".join(f"{axis.name} = {x:.6g}" for axis, x in zip(problem.axes, state, strict=True))
    return f"{said}, control {', '.join(f'{u:g}' for u in control)}" if control else said


def _call(problem: ControlProblem, name: str, *arguments: Any) -> Any:
    """What a function gives, or the error of its arithmetic; OptionsError where it fails otherwise, or for its type."""
    function = getattr(problem, name)
    plain = plain_function(function)
    try:
        given = (plain or function)(*arguments)
    except (ArithmeticError, ValueError) as error:
        return error
    except Exception as error:
        raise failed_call(problem, name, error) from error
    wrong = _wrong_type(problem, name, given)
    if wrong:
        where = "" if plain is None else f"{plain.__code__.co_filename}, line {plain.__code__.co_firstlineno}: "
        raise OptionsError(f"problem {problem.name!r}: {where}{name} gives {shorten(repr(given))}, {wrong}")
    return given


def _wrong_type(problem: ControlProblem, name: str, given: Any) -> str:
    """Why what a function gives cannot be used, and the remedy; "" where it can."""
    axes = problem.axes
    numbers = given if name == "dynamics" and isinstance(given, tuple) else (given,)
    remedy = "return a number"
    if name == "dynamics":
        names = ", ".join(axis.name for axis in axes)
        remedy = f"return a tuple of {len(axes)} number{'s' if len(axes) > 1 else ''}, the derivative of {names}"
    elif name.startswith("is_"):
        remedy = "return True or False"
    if given is None:
        return f"since it ends without return: {remedy} on every way through it"
    if any(isinstance(number, complex) for number in numbers):
        return (
            f"which is complex, as a power such as x ** 0.5 is for x below 0: {remedy}; guard the power, as in "
            f"max(x, 0.0) ** 0.5"
        )
    if not all(map(_is_number, numbers)) or (name == "dynamics" and not isinstance(given, tuple)):
        return f"which is no {'tuple of numbers' if name == 'dynamics' else 'number'}: {remedy}"
    if name == "dynamics" and len(given) != len(axes):
        return f"which is {len(given)} numbers for {len(axes)} axes: {remedy}"
    return ""


def _is_number(thing: Any) -> bool:
    return isinstance(thing, int | float | np.integer | np.floating | np.bool_)


def failed_call(problem: ControlProblem, name: str, error: BaseException, at: str = "") -> OptionsError:
    """For an error that a function of the problem raised: its file, line, what is wrong, and the remedy.

    Parameters
    ----------
    name : of the function among those of the problem.
    error : with its traceback, in which the last line of the function's file is looked for.
    at : the state, and the control, where the error depends on them.
    """
    plain = plain_function(getattr(problem, name))
    where = f"in {name}"
    if plain is not None:
        file, line, inside = plain.__code__.co_filename, plain.__code__.co_firstlineno, name
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == file:
                line, inside = trace.tb_lineno, trace.tb_frame.f_code.co_name
            trace = trace.tb_next
        where = f"{file}, line {line}, in {inside}"
    at = f", at {at}" if at else ""
    return OptionsError(
        f"problem {problem.name!r}: {where}: {type(error).__name__}: {error}{at}; {_remedy(problem, name, error)}"
    )


def not_finite(problem: ControlProblem, name: str, given: Any, at: str) -> OptionsError:
    """For a function that gives an infinity or no number in a state."""
    plain = plain_function(getattr(problem, name))
    where = "" if plain is None else f"{plain.__code__.co_filename}, line {plain.__code__.co_firstlineno}: "
    return OptionsError(
        f"problem {problem.name!r}: {where}{name} gives {shorten(repr(given))} at {at}, which is not finite; guard "
        f"what fails there, or end the process before by is_terminal"
    )


def _remedy(problem: ControlProblem, name: str, error: BaseException) -> str:
    """What to change in a function that raised an error."""
    if isinstance(error, ZeroDivisionError):
        return "guard the division, or give parameters with which the divisor is not 0"
    if isinstance(error, ArithmeticError | ValueError):
        return "a function must have a value in every state within the axes: guard what fails, as in sqrt(max(x, 0.0))"
    if isinstance(error, RecursionError):
        return "write a loop: a function must not call itself"
    if isinstance(error, AttributeError):
        return f"p has the fields {', '.join(problem.parameters._asdict()) or 'of parameters, which are none'}"
    if isinstance(error, IndexError):
        return f"state has {len(problem.axes)} components, control has {len(problem.controls[0])}"
    if isinstance(error, TypeError) and "complex" in str(error):
        return "a power such as x ** 0.5 is complex for x below 0: guard it, as in max(x, 0.0) ** 0.5"
    arguments = "state, control, p" if name in _CONTROLLED else "state, p"
    return f"{name}({arguments}) must give a value in every state within the axes"


def not_compilable(problem: ControlProblem, error: Exception) -> OptionsError:
    """For what Numba said of functions that it cannot compile: the first reason, and the last place in their file."""
    functions = [getattr(problem, name) for name in FUNCTION_NAMES]
    plain = [plain_function(function) for function in functions if function is not None]
    files = {Path(function.__code__.co_filename).name for function in plain if function is not None}
    places = [(file, int(line)) for file, line in _PLACE.findall(str(error)) if Path(file).name in files]
    where = ""
    if places:
        file, line = places[-1]
        inside = _function_at([f for f in plain if f is not None], line)
        where = f"{file}, line {line}{inside and f', in {inside}'}: "
    reasons = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in reasons if not line.startswith("Failed in nopython")), "no reason given")
    reason = reason.partition(" Raised from ")[0]
    return OptionsError(
        f"problem {problem.name!r}: {where}Numba cannot compile this: {reason}; "
        f"write the functions with floats, if, for over range, tuples and functions of math"
    )


def _function_at(functions: Sequence[FunctionType], line: int) -> str:
    """The name of the function, among these and those that they call, that is written there; "" where none is."""
    known = {f for function in functions for f in (function, *called_functions(function))}
    before = [f for f in known if f.__code__.co_firstlineno <= line]
    return max(before, key=lambda f: f.__code__.co_firstlineno).__name__ if before else ""
