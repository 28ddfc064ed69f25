"""Says that loops or kernels are compiled first: it takes seconds, once for every kind of table, and nothing moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.event import Listener, install_listener, start_event

__all__ = ["COMPILING", "compiling_kernels", "note_compiling"]

COMPILING = "compiling loops for tables of this kind: some seconds, the first time only"


_DEVICE = "ooc-mdp:compile"
_SLOW_SECONDS = 0.5
"""Kernels that an earlier run has compiled take less to load."""


@contextmanager
def compiling_kernels() -> Iterator[None]:
    """Around the compilation of a device's kernels: registered callbacks are called if that takes long."""
    slow = threading.Timer(_SLOW_SECONDS, start_event, (_DEVICE,))
    slow.start()
    try:
        yield
    finally:
        slow.cancel()


class _First(Listener):
    """Hears of the first loop that is compiled, not of those that are found where earlier runs have kept them."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note: Callable[[str], None] | None = note

    def on_start(self, event: Any) -> None:
        """Say so, once."""
        note, self._note = self._note, None
        if note is not None:
            note(COMPILING)

    def on_end(self, event: Any) -> None:
        """Nothing to do."""


@contextmanager
def note_compiling(note: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile, `note` is called once if a loop or a device's kernel has to be compiled."""
    first = _First(note)
    with install_listener("numba:compile", first), install_listener(_DEVICE, first):
        yield
