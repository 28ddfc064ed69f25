"""What a checkpoint records of its solve's method: every name of its type, and in its range."""

from __future__ import annotations

from typing import Any, get_args

from ooc_mdp.model.method_record import MethodRecord, Phase
from ooc_mdp.options import MethodName, PriorityName
from ooc_mdp.store.closed_object import LIST, WORD, Rule, check_object, count, one_of

__all__ = ["method_record_of"]

_RECORD: dict[str, Rule] = {
    "method": one_of(*get_args(MethodName)),
    "priority": one_of(None, *get_args(PriorityName)),
    "sweeps_per_visit": count(1),
    "phases": LIST,
}
_PHASE: dict[str, Rule] = {"method": WORD, "loads": count(), "backups": count()}


def method_record_of(document: Any) -> MethodRecord:
    """The record that an object states.

    Raises
    ------
    SealError : a name is unknown or missing, or its value is of another type or range.
    """
    check_object(document, _RECORD, "method")
    for phase in document["phases"]:
        check_object(phase, _PHASE, "a phase of the method")
    return MethodRecord(**document | {"phases": tuple(Phase(**phase) for phase in document["phases"])})
