"""What translated functions are made of: kinds of values, literals, names, and the functions of numbers.

The C++ names of functions are those of CUDA and of ``control/rows.cu``, which defines what CUDA lacks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FLAG", "FUNCTIONS", "NUMBER", "PARAMETERS", "Kind", "Value", "literal", "mangled", "tuple_of"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What an expression is, and its C++ type."""

    c: str
    size: int | None = None
    """Components of a tuple."""

    def __str__(self) -> str:
        return {"double": "a number", "bool": "a truth value"}.get(
            self.c, "the parameters" if self.size is None else f"a tuple of {self.size}"
        )


NUMBER = Kind("double")
FLAG = Kind("bool")
PARAMETERS = Kind("Parameters")


def tuple_of(size: int) -> Kind:
    """The kind of tuples of so many numbers."""
    return Kind(f"Numbers<{size}>", size)


@dataclass(frozen=True, slots=True)
class Value:
    """A C++ expression and its kind."""

    c: str
    kind: Kind


def literal(x: float) -> str:
    """C++ for exactly this double."""
    x = float(x)
    if math.isnan(x):
        return "not_a_number()"
    if math.isinf(x):
        return "infinity()" if x > 0 else "(-infinity())"
    return repr(x) if math.copysign(1.0, x) > 0 else f"({x!r})"


def mangled(prefix: str, name: str) -> str:
    """A C++ name that no keyword or other name can be."""
    return prefix + re.sub(r"[^A-Za-z0-9_]", lambda m: f"_u{ord(m[0]):x}_", name)


def _functions() -> dict[Any, tuple[str, int, Kind]]:
    """Python's and NumPy's functions of numbers: C++ name, arguments, kind of the result."""
    same = "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp expm1 log log2 log10 log1p sqrt floor ceil"
    table: dict[Any, tuple[str, int, Kind]] = {}
    for name in f"{same} trunc fabs erf erfc".split():
        table[getattr(math, name)] = (name, 1, NUMBER)
    for name in ("atan2", "copysign", "hypot", "pow", "fmod"):
        table[getattr(math, name)] = (name, 2, NUMBER)
    for name in ("exp2", "cbrt"):
        table[getattr(np, name)] = (name, 1, NUMBER)
        if hasattr(math, name):  # since Python 3.11
            table[getattr(math, name)] = (name, 1, NUMBER)
    for name in f"{same} trunc fabs".split():
        numpys = name.replace("a", "arc", 1) if re.match("a(sin|cos|tan)", name) else name
        table[getattr(np, numpys)] = (name, 1, NUMBER)
    table |= {
        math.degrees: ("to_degrees", 1, NUMBER),
        math.radians: ("to_radians", 1, NUMBER),
        math.isnan: ("is_nan", 1, FLAG),
        math.isinf: ("is_infinite", 1, FLAG),
        math.isfinite: ("is_finite", 1, FLAG),
        np.degrees: ("to_degrees", 1, NUMBER),
        np.rad2deg: ("to_degrees", 1, NUMBER),
        np.radians: ("to_radians", 1, NUMBER),
        np.deg2rad: ("to_radians", 1, NUMBER),
        np.absolute: ("fabs", 1, NUMBER),
        np.sign: ("sign_of", 1, NUMBER),
        np.arctan2: ("atan2", 2, NUMBER),
        np.copysign: ("copysign", 2, NUMBER),
        np.hypot: ("hypot", 2, NUMBER),
        np.power: ("pow", 2, NUMBER),
        np.minimum: ("numpy_minimum", 2, NUMBER),
        np.maximum: ("numpy_maximum", 2, NUMBER),
        abs: ("fabs", 1, NUMBER),
        float: ("", 1, NUMBER),
        pow: ("pow", 2, NUMBER),
    }
    return table


FUNCTIONS = _functions()
"""C++ name, number of arguments and kind of the result of what Python code may call, by the function itself."""
