"""Signals that stop a solve between two accesses."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["signals"]


@contextmanager
def signals() -> Iterator[Callable[[], bool]]:
    """Turn SIGINT and SIGTERM into a flag, so that a run stops between two accesses and saves what it has."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return
    previous = {s: signal.signal(s, lambda *_: flag.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag.is_set
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)
