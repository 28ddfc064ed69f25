"""Says that loops or kernels are compiled first: it takes seconds, once for every kind of table, and nothing moves.

A limit or a signal ends the compilation of loops between two functions, of which a loop has tens; those that are
compiled are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from numba.core.event import Listener, install_listener, start_event, trigger_event

__all__ = [
    "COMPILING",
    "COMPILING_FUNCTIONS",
    "CompilationStopped",
    "compiling_kernels",
    "load_until",
    "note_compiling",
    "stoppable_compilation",
    "timed_compilation",
]

T = TypeVar("T")

COMPILING = "compiling loops for tables of this kind, the first time only; the work begins when they are compiled"
COMPILING_FUNCTIONS = (
    "compiling the functions of the control problem, in every run: the more dimensions and terms, the longer it takes"
)


_NUMBA, _DEVICE, _KERNELS = "numba:compile", "ooc-mdp:compile", "ooc-mdp:kernels"
"""Events: that a loop is compiled; that a device's kernels take long to compile; and that they are compiled."""
_SLOW_SECONDS = 0.5
"""Kernels that an earlier run has compiled take less to load."""


@contextmanager
def compiling_kernels() -> Iterator[None]:
    """Around the compilation of a device's kernels: registered callbacks are called if that takes long."""
    slow = threading.Timer(_SLOW_SECONDS, start_event, (_DEVICE,))
    slow.start()
    try:
        with trigger_event(_KERNELS):
            yield
    finally:
        slow.cancel()


class _First(Listener):
    """Hears of the first loop that is compiled, not of those that are found where earlier runs have kept them."""

    def __init__(self, note: Callable[[str], None], text: str) -> None:
        self._note: Callable[[str], None] | None = note
        self._text = text

    def on_start(self, event: Any) -> None:
        """Say so, once."""
        note, self._note = self._note, None
        if note is not None:
            note(self._text)

    def on_end(self, event: Any) -> None:
        """Nothing to do."""


@contextmanager
def note_compiling(note: Callable[[str], None], text: str = COMPILING) -> Iterator[None]:
    """Meanwhile, `note` is called once, with `text`, if a loop or a device's kernel has to be compiled."""
    first = _First(note, text)
    with install_listener(_NUMBA, first), install_listener(_DEVICE, first):
        yield


class _Timed(Listener):
    """Adds up for how long loops or kernels were compiled; those that others call are part of these."""

    def __init__(self) -> None:
        self._seconds, self._began, self._depth = 0.0, 0.0, 0

    def on_start(self, event: Any) -> None:
        """Begin to count, where nothing was compiled."""
        if self._depth == 0:
            self._began = time.monotonic()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Count what has passed, where nothing else is compiled."""
        self._depth -= 1
        if self._depth == 0:
            self._seconds += time.monotonic() - self._began

    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds + (time.monotonic() - self._began if self._depth else 0.0)


@contextmanager
def timed_compilation() -> Iterator[Callable[[], float]]:
    """Gives what tells for how many seconds loops and kernels have been compiled meanwhile."""
    timed = _Timed()
    with install_listener(_NUMBA, timed), install_listener(_KERNELS, timed):
        yield timed.seconds


class CompilationStopped(BaseException):
    """Something asked to end; no Exception, which Numba would take for an error of the function's types."""


class _Stop(Listener):
    """Looks before each function is compiled whether to end."""

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended = ended

    def on_start(self, event: Any) -> None:
        """Raise CompilationStopped where it is time to end."""
        if self._ended():
            raise CompilationStopped

    def on_end(self, event: Any) -> None:
        """Nothing to do."""


def load_until(ended: Callable[[], T | None], load: Callable[[], None]) -> T | None:
    """Call what compiles and loads loops, until something asks it to end before a loop is compiled.

    Returns
    -------
    What asked it to; None where everything is loaded.
    """
    try:
        with stoppable_compilation(lambda: ended() is not None):
            load()
    except CompilationStopped:
        return ended()
    return None


@contextmanager
def stoppable_compilation(ended: Callable[[], bool]) -> Iterator[None]:
    """Meanwhile, CompilationStopped is raised in place of the next compilation of a loop once `ended` is true.

    For code that changes nothing which is used afterwards: it may be raised in any call of a loop.
    """
    with install_listener(_NUMBA, _Stop(ended)):
        yield
