"""A solve's statistics as results and checkpoints keep them: every counter of its type, and in its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from ooc_mdp.model.solution import SolveStatistics, WorkerStatistics
from ooc_mdp.store.closed_object import LIST, MAX_COUNTER, Rule, check_object, count, number, one_of

__all__ = ["statistics_of"]

_MAX_SECONDS = 1e15
_OF_TYPE: dict[type, Rule] = {
    int: count(0, MAX_COUNTER),
    float: number(0.0, _MAX_SECONDS),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    str: (lambda value: isinstance(value, str), "a text"),
    list: LIST,
}


def _rules(kind: type) -> dict[str, Rule]:
    """Rules by the types of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {name: _OF_TYPE[getattr(hint, "__origin__", hint)] for name, hint in hints.items()}


_STATISTICS = _rules(SolveStatistics) | {"source": one_of("store", "recomputed")}
_WORKER = _rules(WorkerStatistics) | {"hit_rate": number(0.0, 1.0)}
_LATER = {each.name for each in fields(WorkerStatistics) if each.default is not MISSING}
"""Figures of a worker that results of earlier versions lack."""


def statistics_of(document: Any) -> SolveStatistics:
    """The statistics that an object states.

    Raises
    ------
    SealError : a name is unknown or missing, or its value is of another type or range.
    """
    check_object(document, _STATISTICS, "statistics")
    for worker in document["workers"]:
        given = worker if isinstance(worker, Mapping) else {}
        rules = {name: rule for name, rule in _WORKER.items() if name not in _LATER or name in given}
        check_object(worker, rules, "a worker's statistics")
    return SolveStatistics(**document)
