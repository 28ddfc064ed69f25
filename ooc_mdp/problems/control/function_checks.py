"""What is wrong with a problem's functions, said with the problem's name, file and line.

Each function is run as plain Python, at the middle of the axes, before anything is compiled: a wrong name or a
derivative too many is found at once, and said in words that a compiler would not find. What depends on the state shows
when rows are computed; this module turns those errors into messages and computes nothing. Functions that give other
numbers the second time are refused as well, wherever that comes from: `purity` finds most of them by their code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.cuda.python_source import plain_function
from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.purity import FUNCTION_NAMES, check_purity

__all__ = ["check_functions", "not_compilable", "sampled_values"]

_SHARES = (0.5, 0.31, 0.83)
"""Where states of a sample lie on the first axis, as shares of its length; powers of them on the others."""
_PLACE = re.compile(r'(?:File "|Raised from )(.+?)(?:", line | \()(\d+)')


def check_functions(problem: ControlProblem) -> None:
    """Examine and run each function.

    Raises
    ------
    OptionsError : a function depends on something else than its arguments and constants; it fails but for its
        arithmetic, which may fail between grid points; or it gives no numbers, or as many derivatives as there are not
        axes.
    """
    check_purity(problem)
    middle = tuple((axis.low + axis.high) / 2 for axis in problem.axes)
    p = type(problem.parameters)(*(float(x) for x in problem.parameters))
    control = tuple(float(u) for u in problem.controls[0])
    given = _run(problem, problem.dynamics, middle, control, p)
    if given is not None:
        if not isinstance(given, tuple) or not all(map(_is_number, given)):
            raise OptionsError(f"problem {problem.name!r}: dynamics gives {given!r}, which is no tuple of numbers")
        if len(given) != len(problem.axes):
            names = ", ".join(axis.name for axis in problem.axes)
            raise OptionsError(
                f"problem {problem.name!r}: dynamics gives {len(given)} numbers for {len(problem.axes)} axes ({names})"
            )
    for name, arguments in (
        ("reward_rate", (middle, control, p)),
        ("terminal_reward", (middle, p)),
        ("is_terminal", (middle, p)),
        ("is_goal", (middle, p)),
    ):
        function = getattr(problem, name)
        number = None if function is None else _run(problem, function, *arguments)
        if number is not None and not _is_number(number):
            raise OptionsError(f"problem {problem.name!r}: {name} gives {number!r}, which is no number")
    once, twice = sampled_values(problem), sampled_values(problem)
    for name, values in once.items():
        if values != twice[name]:
            raise OptionsError(
                f"problem {problem.name!r}: {name} gives other numbers when it is called again with the same values; "
                f"it must be a function of them alone"
            )


def sampled_values(problem: ControlProblem) -> dict[str, bytes]:
    """What each function gives at some states under each control, bit for bit, by its name."""
    p = type(problem.parameters)(*(float(x) for x in problem.parameters))
    values: dict[str, bytes] = {}
    for name in FUNCTION_NAMES:
        function = getattr(problem, name)
        if function is not None:
            arguments = _sampled_arguments(problem, name in ("dynamics", "reward_rate"))
            values[name] = b"".join(_bits(_run(problem, function, *given, p)) for given in arguments)
    return values


def _sampled_arguments(problem: ControlProblem, controlled: bool) -> Iterator[tuple[tuple[float, ...], ...]]:
    """States within the axes, with a control each where they are given to the function."""
    for share in _SHARES:
        state = tuple(axis.low + share ** (1 + i) * (axis.high - axis.low) for i, axis in enumerate(problem.axes))
        for control in problem.controls if controlled else ((),):
            yield (state, tuple(float(u) for u in control)) if controlled else (state,)


def _bits(given: Any) -> bytes:
    """Numbers as bytes; nothing where the arithmetic failed."""
    numbers = () if given is None else given if isinstance(given, tuple) else (given,)
    return struct.pack(f"{len(numbers)}d", *map(float, numbers))


def _is_number(thing: Any) -> bool:
    return isinstance(thing, int | float | np.integer | np.floating | np.bool_)


def _run(problem: ControlProblem, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function gives; None where its arithmetic fails."""
    plain = plain_function(function)
    try:
        return (plain or function)(*arguments)
    except (ArithmeticError, ValueError):
        return None
    except Exception as error:
        code = None if plain is None else plain.__code__
        trace, where = error.__traceback__, ""
        while trace is not None and code is not None:
            if trace.tb_frame.f_code.co_filename == code.co_filename:
                where = f"{code.co_filename}, line {trace.tb_lineno}: "
            trace = trace.tb_next
        raise OptionsError(f"problem {problem.name!r}: {where}{type(error).__name__}: {error}") from error


def not_compilable(problem: ControlProblem, error: Exception) -> OptionsError:
    """For what Numba said of functions that it cannot compile: the first reason, and the last place in their file."""
    functions = [getattr(problem, name) for name in FUNCTION_NAMES]
    plain = [plain_function(function) for function in functions if function is not None]
    files = {Path(function.__code__.co_filename).name for function in plain if function is not None}
    places = [f"{file}, line {line}: " for file, line in _PLACE.findall(str(error)) if Path(file).name in files]
    reasons = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in reasons if not line.startswith("Failed in nopython")), "no reason given")
    reason = reason.partition(" Raised from ")[0]
    return OptionsError(
        f"problem {problem.name!r}: {places[-1] if places else ''}Numba cannot compile this: {reason}; "
        f"write the functions with floats, if, for over range, tuples and functions of math"
    )
