"""Signals that stop a solve between two accesses."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["signals"]


_FLAGS: list[threading.Event] = []
"""Of the runs under way, each within the one before it."""


@contextmanager
def signals() -> Iterator[Callable[[], bool]]:
    """Turn SIGINT and SIGTERM into a flag, so that a run stops between two accesses and saves what it has.

    A run within another has the other's flag set, too.
    """
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return
    _FLAGS.append(flag)
    previous = {s: signal.signal(s, _set_flags) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag.is_set
    finally:
        _FLAGS.remove(flag)
        for s, handler in previous.items():
            signal.signal(s, handler)


def _set_flags(*_: object) -> None:
    for flag in _FLAGS:
        flag.set()
