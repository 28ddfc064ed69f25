"""How functions are compiled by Numba: loops that Python calls, and the parts of them.

Numba adds an entry for Python to each function that it compiles, and one for C. What they convert are structures of
tens of numbers, so the two took a seventh of the time that the loops of a solve need to be compiled. C calls none of
these functions, and Python only loops: a call of a part or an inlined function from Python is a segmentation fault.

Compiled code is kept on disk for the sources of all modules that the function's own imports. Numba compares that one
file alone, although functions and constants of others are part of the code: after an upgrade, old and new code would
be mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types

from ooc_mdp.runtime import sources

__all__ = ["inlined", "loop", "part", "short_loop"]

_njit: Any = njit
"""Its annotations lack the options of wrappers."""
_unliteral: Any = types.unliteral
"""The type of a constant as that of a variable; Numba does not annotate it."""


def _kept(function: Callable[..., Any], **options: bool) -> Any:
    """A compiled function whose code is kept on disk, and read again while no source is another."""
    compiled = _compiled(function, cache=True, **options)
    if compiled is not function:  # as it is where NUMBA_DISABLE_JIT is set
        files = compiled._cache._cache_file
        files._source_stamp = files._source_stamp, sources.stamp(function.__module__)
        files._load_index = _index_if_readable(files._load_index)
    return compiled


def _index_if_readable(load: Callable[[], dict[Any, Any]]) -> Callable[[], dict[Any, Any]]:
    """The index of a function's kept code; empty where it names a class of arguments that no longer exists.

    Numba unpickles an index before it compares the stamp, so an older version's index must not end the program.
    """

    def load_if_readable() -> dict[Any, Any]:
        try:
            return load()
        except (AttributeError, ImportError):
            return {}

    return load_if_readable


def _compiled(function: Callable[..., Any], **options: bool) -> Any:
    """A compiled function whose signatures do not depend on the values of constants."""
    compiled = _njit(function, no_cfunc_wrapper=True, **options)
    if compiled is not function:
        get_call_template = compiled.get_call_template

        def get_template(arguments: Any, named: Any) -> Any:
            variables = {name: _unliteral(kind) for name, kind in named.items()}
            return get_call_template([_unliteral(kind) for kind in arguments], variables)

        compiled.get_call_template = get_template
    return compiled


def loop(function: Callable[..., Any]) -> Any:
    """A function that Python calls, without the interpreter lock; compiled code is kept on disk."""
    return _kept(function, nogil=True)


def short_loop(function: Callable[..., Any]) -> Any:
    """A loop of some microseconds, which keeps the interpreter lock: waiting for it afterwards would take longer."""
    return _kept(function)


def part(function: Callable[..., Any]) -> Any:
    """A function that only compiled functions call: it is compiled once for all of them, and kept on disk."""
    return _kept(function, no_cpython_wrapper=True)


def inlined(function: Callable[..., Any]) -> Any:
    """Likewise, and LLVM copies its code to where it is called; it is not kept by itself."""
    return _compiled(function, forceinline=True, no_cpython_wrapper=True)
