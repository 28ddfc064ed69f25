"""What a model has besides its rows and a store does not keep: valuations and labels of choices, names of transitions.

No value depends on it. A reader adds each kind with the names that it finds, from any thread, and `sentence` names them
all, so that somebody who looks for a label in a store learns why it is not there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ooc_mdp.quoting import printable, shorten

__all__ = ["ACTION_NAMES", "INITIAL_CHANCES", "LABELS", "REWARD_STRUCTURES", "VALUATIONS", "LeftOut"]

LABELS = "labels"
VALUATIONS = "valuations"
ACTION_NAMES = "names of actions"
REWARD_STRUCTURES = "other reward structures"
INITIAL_CHANCES = "probabilities of initial states"
_ORDER = (LABELS, VALUATIONS, ACTION_NAMES, REWARD_STRUCTURES, INITIAL_CHANCES)
_KEPT, _SHOWN, _CHARACTERS = 1000, 6, 30
"""Names of a kind that are collected, those in the sentence, and the characters of one."""


class LeftOut:
    """Kinds of annotations that a source has and that no store keeps, each with its names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[str, set[str]] = {}

    def add(self, kind: str, names: Iterable[str] = ()) -> None:
        """Add names of a kind, or the kind alone."""
        with self._lock:
            known = self._names.setdefault(kind, set())
            for name in names:
                if len(known) < _KEPT:
                    known.add(name)

    def sentence(self, path: str) -> str | None:
        """Return what `path` has and the store does not keep; None where there is nothing."""
        with self._lock:
            kinds = sorted(self._names, key=lambda kind: (_ORDER.index(kind) if kind in _ORDER else -1, kind))
            parts = [_listed(kind, sorted(self._names[kind])) for kind in kinds]
        if not parts:
            return None
        return f"not kept in the store: {', '.join(parts)} of {shorten(printable(path), 200)}"


def _listed(kind: str, names: list[str]) -> str:
    if not names:
        return kind
    shown = [shorten(printable(name), _CHARACTERS) for name in names[:_SHOWN]]
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return f"{kind} ({', '.join(shown + more)})"
