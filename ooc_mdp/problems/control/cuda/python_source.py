"""Where a Python function was written, and which others it calls: what both compilers of a problem must know.

Numba compiles a function from its byte code and refuses to call a plain Python function from it;
:mod:`ooc_mdp.problems.control.cuda.translate` reads its source. This module translates nothing.
"""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator
from functools import cache
from types import FunctionType
from typing import Any

from ooc_mdp.errors import OptionsError

__all__ = ["called_functions", "definition_of", "plain_function"]


def plain_function(thing: Any) -> FunctionType | None:
    """The Python function that `thing` is, or that Numba compiled it from; None for anything else."""
    inner = getattr(thing, "py_func", thing)
    return inner if isinstance(inner, FunctionType) else None


def called_functions(function: FunctionType) -> Iterator[FunctionType]:
    """Functions of modules that `function` mentions and that are not compiled already, and those that they mention."""
    seen = {function}
    waiting = [function]
    while waiting:
        current = waiting.pop()
        names = {i.argval for i in dis.get_instructions(current) if i.opname == "LOAD_GLOBAL"}
        for name in sorted(names):
            mentioned = current.__globals__.get(name)
            other = plain_function(mentioned)
            if other is not None and other not in seen:
                seen.add(other)
                waiting.append(other)
                if isinstance(mentioned, FunctionType):
                    yield mentioned


def definition_of(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a module-level function, lines counted as in its file.

    Raises
    ------
    OptionsError : it is a lambda or nested, or its source cannot be read any more.
    """
    code = function.__code__
    where = f"{code.co_filename}, line {code.co_firstlineno}"
    if function.__name__ == "<lambda>":
        raise OptionsError(f"{where}: a lambda cannot run on a GPU; write it as a function of the module")
    if function.__qualname__ != function.__name__:
        raise OptionsError(
            f"{where}: {function.__qualname__} lies inside another function or a class and so cannot run on a GPU; "
            f"write it at the level of the module, or run with --device cpu"
        )
    linecache.checkcache(code.co_filename)
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    for node in _functions(source):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if node.name == function.__name__ and first == code.co_firstlineno:
            return node
    raise OptionsError(
        f"{where}: the source of {function.__name__} is not there, or has changed since it was run; a GPU needs it. "
        f"Start again, or run with --device cpu"
    )


@cache
def _functions(source: str) -> tuple[ast.FunctionDef, ...]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
