"""Types of the arguments of public functions, checked before any work.

Paths, functions, truth values and tables would otherwise fail far from the call. Numbers are checked by the options
that hold them (`ooc_mdp.options`), by :func:`real_number` and :func:`whole_number`, which give Python's own types.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from os import PathLike
from typing import Any, SupportsFloat, SupportsIndex, TypeVar, cast

import numpy as np

from ooc_mdp.errors import OptionsError

__all__ = [
    "ARRAYS",
    "CACHE",
    "CACHES",
    "DTYPE",
    "FLAG",
    "FUNCTION",
    "MODEL",
    "MOST",
    "NOTHING",
    "PARAMETERS",
    "PATH",
    "POLICY",
    "RESULT",
    "REWARD_FILES",
    "SIZE",
    "SOURCE",
    "STARTS",
    "TABLE",
    "TEXT",
    "WHOLE",
    "WORDS",
    "Kind",
    "called_name",
    "check_types",
    "described",
    "either",
    "is_array_like",
    "maybe",
    "positive_number",
    "real_number",
    "whole_number",
    "with_keywords",
]

MOST = 2**63 - 1
"""The largest whole number that files and kernels take."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Kind:
    """What an argument may be."""

    accepts: Callable[[Any], bool]
    words: str
    """What it may be, after "give"."""
    remedy: Callable[[Any], str] = lambda _: ""
    """What to do about a value that is none, where more is known of it."""

    def check(self, name: str, value: Any) -> Any:
        """The value itself; OptionsError for another one names it, its type and what is accepted."""
        if not self.accepts(value):
            raise OptionsError(f"{name} is {described(value)}; {self.remedy(value) or f'give {self.words}'}")
        return value


def maybe(kind: Kind) -> Kind:
    """The kind, or None."""
    return Kind(lambda value: value is None or kind.accepts(value), f"{kind.words}, or None", kind.remedy)


def either(kind: Kind, *classes: str) -> Kind:
    """The kind, or an object of a class with one of these names, which are not imported for it."""
    return Kind(
        lambda value: kind.accepts(value) or any(each.__name__ in classes for each in type(value).__mro__),
        f"{kind.words}, or a {' or '.join(classes)}",
    )


def described(value: object) -> str:
    """A value for a message: short, with its type."""
    return f"{reprlib.repr(value)} of type {type(value).__name__}"


def called_name(function: Callable[..., Any]) -> str:
    """The name by which a function is called: of a constructor, that of its class."""
    return function.__qualname__.removesuffix(".__init__").rpartition(".")[2]


def check_types(**kinds: Kind) -> Callable[[Function], Function]:
    """Check arguments of a function by their names; OptionsError names the argument, its type and what is accepted."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        rest = [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            bound = signature.bind(*arguments, **given).arguments
            named = bound | (bound.get(rest[0], {}) if rest else {})
            for name, kind in kinds.items():
                if name in named:
                    kind.check(f"{called_name(function)}: {name}", named[name])
            return function(*arguments, **given)

        return cast(Function, checked)

    return decorate


def with_keywords(
    keywords: Any,
    documentation: str,
    defaults: Mapping[str, Any] | None = None,
    remedies: Mapping[str, str] | None = None,
) -> Callable[[Function], Function]:
    """List keywords in a function's signature and docstring in place of its ``**`` parameter, and refuse all others.

    Parameters
    ----------
    keywords : the TypedDict with which the function annotates its ``**`` parameter.
    documentation : of the keywords, which replaces the docstring's line of that parameter.
    defaults : of the keywords by name; None for those that are absent.
    remedies : what to give in place of other keywords, by name.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *parameters, rest = signature.parameters.values()
        for name, hint in keywords.__annotations__.items():
            kind, default = inspect.Parameter.KEYWORD_ONLY, (defaults or {}).get(name)
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=hint.__forward_arg__))
        known = [parameter.name for parameter in parameters]

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    likely = difflib.get_close_matches(name, known, 1)
                    hint = f"; did you mean {likely[0]!r}?" if likely else ""
                    hint = f"; {remedies[name]}" if remedies and name in remedies else hint
                    raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}")
            return function(*arguments, **given)

        vars(checked)["__signature__"] = signature.replace(parameters=parameters)
        if function.__doc__:  # python -OO leaves it out
            line = re.compile(rf"^\*\*{rest.name} : .*$", re.MULTILINE)
            checked.__doc__ = line.sub(lambda _: documentation, inspect.cleandoc(function.__doc__))
        return cast(Function, checked)

    return decorate


def real_number(name: str, value: object) -> float:
    """A number as Python's float, which every file and kernel takes; NumPy's float32 is none.

    Raises
    ------
    OptionsError : it is no number, which truth values are not, or beyond all floats.
    """
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise OptionsError(
            f"{name} is {reprlib.repr(value)}, which is no number (it is of type {type(value).__name__})"
        )
    try:
        return float(cast(SupportsFloat, value))
    except (OverflowError, ValueError):  # an integer, a Decimal's signal
        raise OptionsError(f"{name} is larger than any float; give a number of at most 1e308") from None


def positive_number(name: str, value: object) -> float:
    """A number above 0 that is not infinite, as Python's float; raises OptionsError."""
    number = real_number(name, value)
    if not 0 < number < math.inf:
        raise OptionsError(f"{name} must be a positive number, not {number}")
    return number


def whole_number(name: str, value: object, remedy: str = "") -> int:
    """A whole number as Python's int.

    Raises
    ------
    OptionsError : it is none, as truth values are not, or has more than 64 bits.
    """
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise OptionsError(
            f"{name} is {reprlib.repr(value)}, which is no whole number{remedy} (it is of type {type(value).__name__})"
        )
    if abs(number) > MOST:
        raise OptionsError(f"{name} is more than 64 bits hold; give at most {MOST}")
    return number


def _is_path(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, PathLike) and isinstance(value.__fspath__(), str))


def _are_named_paths(value: Mapping[Any, Any]) -> bool:
    names = all(isinstance(name, str) and name != "" for name in value)
    return len(value) > 0 and names and all(map(PATHS.accepts, value.values()))


def _of_model(value: Any) -> str:
    """What to do with a model in memory, which has to become a store first."""
    if hasattr(value, "observation_space") and hasattr(value, "action_space"):
        return "give the store of the environment's table P: ooc_mdp.from_gymnasium(env)"
    if isinstance(value, tuple | list | dict | np.ndarray):
        return (
            "give the store of the arrays: ooc_mdp.from_arrays(P, R) with P of shape (actions, states, states) or "
            "(states, actions, states); or solve(P, R, discount=0.9)"
        )
    return ""


def is_array_like(value: Any) -> bool:
    """Whether a value is an array, a SciPy matrix, or of another package that gives its numbers to NumPy (pandas)."""
    return hasattr(value, "tocsr") or (hasattr(value, "__array__") and not isinstance(value, np.generic | type))


def _is_starts(value: Any) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) and all(map(_is_start, value))


def _is_start(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, Sequence | np.ndarray) and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | Decimal) and not isinstance(value, bool)


PATH = Kind(_is_path, "a path, as str or pathlib.Path")
PATHS = Kind(
    lambda value: PATH.accepts(value) or (isinstance(value, list | tuple) and all(map(PATH.accepts, value))),
    "a path, or a list of paths",
)
REWARD_FILES = Kind(
    lambda value: PATH.accepts(value) or (isinstance(value, Mapping) and _are_named_paths(value)),
    "a path, or a dict of paths by the names of their reward structures",
)
TEXT = Kind(lambda value: isinstance(value, str), "a str")
FLAG = Kind(lambda value: isinstance(value, bool | np.bool_), "True or False")
FUNCTION = Kind(callable, "a function")
SOURCE = Kind(_is_path, "the path of a model file, as str or pathlib.Path, or 'gymnasium:ENV-ID'", _of_model)
WHOLE = Kind(lambda value: hasattr(value, "__index__") and not isinstance(value, bool | np.ndarray), "a whole number")
SIZE = Kind(lambda value: isinstance(value, str) or WHOLE.accepts(value), "bytes, as an int or such as '64MiB'")
CACHE = Kind(
    lambda value: SIZE.accepts(value) or (isinstance(value, float) and 0 < value <= 1),
    "a size such as '256MiB', or a share of the table such as '22%' or 0.22",
)
CACHES = Kind(
    lambda value: isinstance(value, str) or (isinstance(value, list | tuple) and all(map(CACHE.accepts, value))),
    "sizes such as '5%,22%', or a list such as ['5%', 0.22]",
)
WORDS = Kind(
    lambda value: isinstance(value, str) or (isinstance(value, list | tuple) and all(map(TEXT.accepts, value))),
    "words such as 'joint,h1', or a list of them",
)
DTYPE = Kind(lambda value: isinstance(value, str | type | np.dtype), "'float32' or 'float64'")
PARAMETERS = Kind(
    lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
    "a dict of parameters by name, such as {'seed': 1}",
)
STARTS = Kind(_is_starts, "a list of states, each a tuple of numbers or a str such as '0.1,-2' or 'initial'")
TABLE = Kind(
    lambda value: _is_path(value) or hasattr(value, "read_field"),
    "a store that convert, generate or open_store returned, or its path",
    _of_model,
)
ARRAYS = Kind(
    lambda value: isinstance(value, list | tuple) or is_array_like(value),
    "a NumPy array, what numpy.asarray takes as one, such as a DataFrame, a SciPy matrix, or a list of them",
)
MODEL = Kind(
    lambda value: TABLE.accepts(value) or (ARRAYS.accepts(value) and not isinstance(value, tuple)),
    f"{TABLE.words}, or P with R behind it",
    _of_model,
)
RESULT = either(PATH, "Result", "Solution")
POLICY = Kind(
    lambda value: RESULT.accepts(value) or isinstance(value, list | tuple | np.ndarray),
    "an array of whole numbers, one for each state, or a result, what solve returned, or the path of a result or .npy "
    "file",
)
VALUES = Kind(
    lambda value: RESULT.accepts(value) or isinstance(value, list | tuple | np.ndarray),
    "an array of numbers, one for each state, or a result, what solve returned, or the path of a result or .npy file",
)
STATES = Kind(
    lambda value: isinstance(value, list | tuple | range | np.ndarray), "a list or array of states, such as [0, 5]"
)
NOTHING = Kind(lambda value: value is None, "None")
