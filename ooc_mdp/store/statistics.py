"""A solve's statistics as results and checkpoints keep them: every counter of its type, and in its range.

A checkpoint's figures lie below half of what a result may have, so that what a resumed solve adds leads to no result
that cannot be opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from ooc_mdp.model.statistics import SolveStatistics, WorkerStatistics
from ooc_mdp.store.closed_object import LIST, Rule, check_object, count, number, one_of

__all__ = ["resumable_statistics_of", "statistics_of"]

_MAX_SECONDS = 1e15
_MAX_COUNT = 1 << 62


def _rules(kind: type, share: int = 1) -> dict[str, Rule]:
    """Rules by the types of a dataclass's fields, for figures up to the largest divided by `share`."""
    of_type: dict[type, Rule] = {
        int: count(0, _MAX_COUNT // share),
        float: number(0.0, _MAX_SECONDS / share),
        bool: (lambda value: isinstance(value, bool), "true or false"),
        str: (lambda value: isinstance(value, str), "a text"),
        list: LIST,
    }
    return {name: of_type[getattr(hint, "__origin__", hint)] for name, hint in get_type_hints(kind).items()}


_SOURCE = {"source": one_of("store", "recomputed")}
_STATISTICS = _rules(SolveStatistics) | _SOURCE
_RESUMABLE = _rules(SolveStatistics, 2) | _SOURCE
_WORKER = _rules(WorkerStatistics) | {"hit_rate": number(0.0, 1.0)}
_LATER = {each.name for each in fields(WorkerStatistics) if each.default is not MISSING}
"""Figures of a worker that results of earlier versions lack."""


def statistics_of(document: Any) -> SolveStatistics:
    """The statistics that a result's object states.

    Raises
    ------
    SealError : a name is unknown or missing, or its value is of another type or range.
    """
    return _checked(document, _STATISTICS)


def resumable_statistics_of(document: Any) -> SolveStatistics:
    """The statistics that a checkpoint's object states, from which a resumed solve counts on; raises SealError."""
    return _checked(document, _RESUMABLE)


def _checked(document: Any, rules: Mapping[str, Rule]) -> SolveStatistics:
    check_object(document, rules, "statistics")
    for worker in document["workers"]:
        given = worker if isinstance(worker, Mapping) else {}
        of_worker = {name: rule for name, rule in _WORKER.items() if name not in _LATER or name in given}
        check_object(worker, of_worker, "a worker's statistics")
    return SolveStatistics(**document)
