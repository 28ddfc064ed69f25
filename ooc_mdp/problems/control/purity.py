"""Whether a problem's functions depend on state, control and parameters alone, and on nothing that could change.

A table holds each of their values once, and what `solve` proves is proved for it: a random number inside `dynamics`
would be drawn once per row and kept. So every name that a function reads from outside of itself must be a constant, a
pure function of ``math``, NumPy or Python, or a function of the same kind, which is examined in turn. The byte code is
examined before anything is run; names are judged by what they stand for, whatever they are called.
"""

from __future__ import annotations

import builtins
import cmath
import difflib
import dis
import enum
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.cuda.python_source import plain_function
from ooc_mdp.problems.control.definition import ControlProblem

__all__ = ["FUNCTION_NAMES", "check_purity"]

FUNCTION_NAMES = ("dynamics", "reward_rate", "terminal_reward", "is_terminal", "is_goal")
"""Functions of a problem."""

_REMEDY = (
    "functions may use state, control, p, constant numbers and tuples of the module, functions of math and NumPy, and "
    "functions made of these"
)
_BUILT_IN_NAMES = """
    abs all any bool complex divmod enumerate float int isinstance len list max min pow range reversed round slice
    sorted sum tuple zip
"""
_BUILT_IN = {getattr(builtins, name) for name in _BUILT_IN_NAMES.split()}
_NUMPY_NAMES = """
    all any amax amin arange argmax argmin argsort around array asarray clip cross cumprod cumsum diff dot eye full
    identity interp isscalar linspace max mean median min nan_to_num ones outer prod ravel real imag round searchsorted
    sort std sum trace transpose vander var vdot where zeros
"""
_NUMPY = {getattr(np, name) for name in _NUMPY_NAMES.split() if hasattr(np, name)}
"""Functions of NumPy that are no ufuncs; those of uninitialised memory and of files are none of them."""
_PURE_MODULES = {module.__name__ for module in (math, cmath)} | {operator.__name__, "_operator"}
_FORBIDDEN = {
    "STORE_GLOBAL": "assigns to {name} of the module",
    "DELETE_GLOBAL": "deletes {name} of the module",
    "STORE_ATTR": "assigns to the attribute {name}",
    "DELETE_ATTR": "deletes the attribute {name}",
    "IMPORT_NAME": "imports {name}",
}
"""Instructions that no function may contain."""

_FUNCTION_ATTRIBUTE = object()
"""Taken for any attribute of a function."""

_first_constants: WeakKeyDictionary[FunctionType, dict[str, str]] = WeakKeyDictionary()
"""Constants of a problem's function when it was first used, which are those that it is compiled with."""


def check_purity(problem: ControlProblem) -> None:
    """Examine each function of a problem, and those that it uses.

    Raises
    ------
    OptionsError : one uses something else than state, control, parameters, constants and pure functions, or a constant
        of the module has changed since the function was first used; names function, file and line.
    """
    for name in FUNCTION_NAMES:
        function = plain_function(getattr(problem, name))
        if function is None:
            continue
        constants = _constants_of(problem, function)
        first = _first_constants.setdefault(function, constants)
        for constant, value in constants.items():
            if first.get(constant, value) != value:
                raise OptionsError(
                    f"problem {problem.name!r}: {constant} was {first[constant]} when {name} was first used, and is "
                    f"{value} now; compiled functions keep the first: make it a field of the parameters"
                )


@dataclass(frozen=True, slots=True)
class _Use:
    """Something from outside of a function that it reads."""

    function: FunctionType
    line: int
    name: str
    """As it is written, such as np.random.normal."""
    value: Any

    def refusal(self, problem: ControlProblem, why: str) -> OptionsError:
        """The error for it."""
        return _refusal(problem, self.function, self.line, f"uses {self.name}, {why}")


def _refusal(problem: ControlProblem, function: FunctionType, line: int, does: str) -> OptionsError:
    return _error(problem, function, line, f"{does}; {_REMEDY}")


def _error(problem: ControlProblem, function: FunctionType, line: int, does: str) -> OptionsError:
    where = f"{function.__code__.co_filename}, line {line}"
    return OptionsError(f"problem {problem.name!r}: {where}: {function.__name__} {does}")


def _constants_of(problem: ControlProblem, function: FunctionType) -> dict[str, str]:
    """The constants that a function and those that it calls read, as text by name; raises OptionsError."""
    constants: dict[str, str] = {}
    seen, waiting = {function}, [function]
    while waiting:
        current, recursive = waiting.pop(), 0
        for use in _uses(problem, current):
            if _is_pure(use.value):
                continue
            called = plain_function(use.value)
            if called is not None:
                recursive = recursive or (use.line if called is current else 0)
                if called not in seen:
                    seen.add(called)
                    waiting.append(called)
            elif _is_constant(use.value):
                constants[use.name] = _text(use.value)
            else:
                raise use.refusal(problem, _reason(use.value))
        if recursive:
            raise _error(problem, current, recursive, "calls itself; write a loop")
    return constants


def _uses(problem: ControlProblem, function: FunctionType) -> Iterator[_Use]:
    """All that a function reads from outside: names of its module and of enclosing functions, defaults."""
    first = function.__code__.co_firstlineno
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield _Use(function, first, "a default", default)
    outside = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            outside[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield from _uses_in_code(problem, function, code, outside)


def _uses_in_code(
    problem: ControlProblem, function: FunctionType, code: CodeType, outside: Mapping[str, Any]
) -> Iterator[_Use]:
    line = code.co_firstlineno
    instructions = list(dis.get_instructions(code))
    for at, instruction in enumerate(instructions):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        name, does = str(instruction.argval), _FORBIDDEN.get(instruction.opname)
        if instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and name in outside:
            does = "assigns to {name} of the enclosing function"
        if does is not None:
            raise _refusal(problem, function, line, does.format(name=name))
        if instruction.opname == "LOAD_GLOBAL":
            known: tuple[Mapping[str, Any], ...] = (function.__globals__, vars(builtins))
        elif instruction.opname == "LOAD_DEREF":
            known = (outside,)
        else:
            continue
        space = next((space for space in known if name in space), None)
        if space is None and instruction.opname == "LOAD_GLOBAL":
            likely = difflib.get_close_matches(name, [*code.co_varnames, *function.__globals__, *vars(builtins)], 1)
            meant = f"did you mean {likely[0]}?" if likely else "define it in the module, or import it there"
            raise _error(problem, function, line, f"uses the name {name}, which is not defined; {meant}")
        if space is not None:  # else it is a local name of an enclosing code
            attributes = _attributes_after(instructions[at + 1 :])
            yield _Use(function, line, *_resolved(name, space[name], attributes))


def _attributes_after(instructions: Sequence[dis.Instruction]) -> list[str]:
    """Names of the attributes that instructions begin with: sin of np.sin."""
    loads = takewhile(lambda i: i.opname in ("LOAD_ATTR", "LOAD_METHOD"), instructions)
    return [str(i.argval) for i in loads]


def _resolved(name: str, value: Any, attributes: Sequence[str]) -> tuple[str, Any]:
    """What attributes of modules, enumerations, named tuples and functions stand for, and how it is written."""
    for attribute in attributes:
        if not isinstance(value, ModuleType | enum.EnumMeta | tuple | FunctionType) or not hasattr(value, attribute):
            break
        if isinstance(value, FunctionType):
            return f"{name}.{attribute}", _FUNCTION_ATTRIBUTE
        name, value = f"{name}.{attribute}", getattr(value, attribute)
    return name, value


def _is_pure(value: Any) -> bool:
    """Whether it is a function, or a type, whose result depends on its arguments only."""
    if isinstance(value, type):
        return value in _BUILT_IN or issubclass(value, np.number | np.bool_ | BaseException | tuple)
    if isinstance(value, np.ufunc):
        return getattr(np, value.__name__, None) is value
    if isinstance(value, BuiltinFunctionType) and value not in _BUILT_IN:
        return value.__module__ in _PURE_MODULES
    try:
        return value in _BUILT_IN or value in _NUMPY or vars(np.linalg).get(getattr(value, "__name__", "")) is value
    except (TypeError, ValueError):  # not hashable
        return False


def _is_constant(value: Any) -> bool:
    """Whether it is a number, a text, a tuple of such, or an array of numbers, which compiled code copies."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    return value is None or isinstance(value, int | float | complex | str | np.number | np.bool_ | enum.Enum)


def _text(value: Any) -> str:
    return f"{value.dtype} {value.tolist()}" if isinstance(value, np.ndarray) else repr(value)


def _reason(value: Any) -> str:
    """Why something that a function uses is refused."""
    if value is _FUNCTION_ATTRIBUTE:
        return "an attribute of a function, which can change between two calls"
    if isinstance(value, list | dict | set | bytearray):
        return f"a {type(value).__name__}, which can change between two calls: write a tuple"
    if isinstance(value, ModuleType):
        return "a module, by itself"
    if callable(value):
        return (
            "which is not known to be a function of its arguments alone, as are state, control and parameters: one "
            "value of it would be kept in the table"
        )
    return f"which is no number, tuple of numbers or function but of type {type(value).__name__}"
