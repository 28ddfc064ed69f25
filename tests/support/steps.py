"""Processes that stop themselves at the n-th step of their work, however long a step takes on the machine.

A step is a change below a folder (a file opened for writing, renamed or removed, a directory made or removed), or an
entry of the journal of a generation. What happens then is SIGKILL, or a signal that the process handles.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

__all__ = ["When", "at_entry", "count_changes", "kill", "send"]

When = Literal["before", "torn", "after"]
"""An entry of a journal is not yet written, written in part, or written."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}

_handled = threading.Event()
"""A handler of signals was called."""


def kill() -> None:
    """End this process as the system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def send(number: int) -> None:
    """Send this process a signal, and wait until its handler has been called, which only the main thread can do."""
    main = threading.main_thread()
    assert main.ident is not None
    signal.pthread_kill(main.ident, number)
    if threading.current_thread() is not main:
        assert _handled.wait(300)


def note_handled_signals() -> None:
    """Have `send` know when a handler that is set from now on was called."""
    usual = signal.signal

    def noting(number: int, handler: Any) -> Any:
        if not callable(handler) or isinstance(handler, signal.Handlers):
            return usual(number, handler)

        def noted(*arguments: Any) -> Any:
            _handled.set()
            return handler(*arguments)

        return usual(number, noted)

    signal.signal = noting  # type: ignore[assignment]


def count_changes(folder: Path, step: Callable[[int], None], only: str = "") -> None:
    """Call `step` with 1, 2, ... before each change below a folder, of paths that end with `only`, in this process.

    Paths that are relative are counted too: they are relative to a directory that is open.
    """
    inside, counted, lock = str(folder), 0, threading.Lock()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal counted
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & _WRITES:
                return
        elif event not in _CHANGES:
            return
        path = arguments[1] if event == "os.rename" else arguments[0]
        if isinstance(path, int):
            return
        name = os.fsdecode(path)
        if name.endswith(only) and (not os.path.isabs(name) or name.startswith(inside)):
            with lock:
                counted += 1
                number = counted
            step(number)

    sys.addaudithook(watch)


def at_entry(number: int, when: When, act: Callable[[], None], journal: Path) -> None:
    """Act at the n-th entry of this process's journal; no other thread writes an entry meanwhile."""
    from ooc_mdp.store.journal import Journal

    usual, counted, lock = Journal.append, 0, threading.RLock()

    def append(self: Journal, *arguments: Any) -> None:
        nonlocal counted
        with lock:
            counted += 1
            if counted == number and when == "before":
                act()
            usual(self, *arguments)
            if counted == number and when != "before":
                if when == "torn":
                    os.truncate(journal, journal.stat().st_size - 5)
                act()

    Journal.append = append  # type: ignore[method-assign]
