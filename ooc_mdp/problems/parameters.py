"""From the words of a command line to a problem's frozen dataclass: types, unknown names, ranges.

A problem's configuration is a frozen dataclass of int, float, str and bool fields; this module fills it from
``{"height": "512", ...}`` and refuses what does not fit, listing what does. It knows no problem.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, get_args, get_type_hints

import numpy as np

from ooc_mdp.arguments import real_number, whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.quoting import quote

__all__ = ["DISPLAY_DEFAULT", "Parameter", "check_states", "in_range", "parse_parameters"]

Parameter = int | float | str | bool | Sequence[int]
C = TypeVar("C")
_SHOWN = 8
"""Unknown parameters that a message names."""

DISPLAY_DEFAULT = "shown"
"""In the metadata of a field whose default means another value: what listings say in its place."""


def parse_parameters(options: type[C], parameters: Mapping[str, Parameter], problem: str) -> C:
    """An `options` dataclass from named parameters, texts among them turned into the field's type.

    Several numbers, such as those of a grid, stand for the text that has commas between them.

    Raises
    ------
    OptionsError : an unknown parameter, a missing one, or a value that the field's type cannot hold.
    """
    fields = {field.name: field for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    unknown = sorted(set(parameters) - set(fields))
    if unknown:
        names = ", ".join(map(quote, unknown[:_SHOWN]))
        raise OptionsError(f"problem {problem!r} has no parameter {names}; it takes {_listed(fields)}")
    missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in parameters]
    if missing:
        raise OptionsError(
            f"problem {problem!r} needs {', '.join(map(repr, missing))}; its parameters: {_listed(fields)}"
        )
    hints = get_type_hints(options)
    types = {name: next(iter(get_args(hint)), hint) for name, hint in hints.items()}  # float of float | None
    return options(**{name: _typed(problem, name, value, types[name]) for name, value in parameters.items()})


def in_range(problem: str, name: str, value: float, low: float, high: float) -> None:
    """Refuse a parameter outside low <= value <= high."""
    if not low <= value <= high:
        raise OptionsError(f"problem {problem!r}: {name} = {value} is outside {low} .. {high}")


def check_states(states: IntArray, n_states: int, problem: str) -> IntArray:
    """States as a contiguous int64 array, refused where one is not in 0 .. n_states - 1."""
    array = np.ascontiguousarray(states, dtype=np.int64)
    if array.size and (array.min() < 0 or array.max() >= n_states):
        raise OptionsError(
            f"problem {problem!r} has states 0 .. {n_states - 1}; rows were asked of states"
            f" {array.min()} .. {array.max()}"
        )
    return array


def _listed(fields: Mapping[str, dataclasses.Field[Any]]) -> str:
    return ", ".join(
        name if field.default is dataclasses.MISSING else f"{name}={field.metadata.get(DISPLAY_DEFAULT, field.default)}"
        for name, field in fields.items()
    )


def _several(value: Parameter) -> TypeGuard[Sequence[int]]:
    """Whether a parameter is a sequence of numbers (NumPy's arrays are)."""
    return isinstance(value, Iterable) and not isinstance(value, str)


def _typed(problem: str, name: str, value: Parameter, wanted: type) -> Parameter:
    if isinstance(value, int) and not isinstance(value, bool):  # one of thousands of digits cannot be printed
        (whole_number if wanted is int else real_number)(f"problem {problem!r}: {name}", value)
    mismatch = OptionsError(f"problem {problem!r}: {name} = {quote(value)} is not a value of type {wanted.__name__}")
    if wanted is str:
        return ",".join(map(str, value)) if _several(value) else str(value)
    if wanted is bool:
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise mismatch
    if isinstance(value, bool) or not isinstance(value, str | int | float | np.integer | np.floating):
        raise mismatch
    try:
        number = int(value) if wanted is int else float(value)
    except (ValueError, OverflowError) as error:
        raise mismatch from error
    if isinstance(number, float) and not math.isfinite(number):
        raise mismatch
    if isinstance(value, float | np.floating) and number != value:
        raise mismatch
    return number
