"""Says that compiled loops have to be made first: it takes seconds, once for every kind of table, and nothing moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.event import Listener, install_listener

__all__ = ["COMPILING", "told_of_compiling"]

COMPILING = "compiling loops for tables of this kind: some seconds, the first time only"


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
def told_of_compiling(note: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile, `note` is told once if a loop has to be compiled."""
    with install_listener("numba:compile", _First(note)):
        yield
