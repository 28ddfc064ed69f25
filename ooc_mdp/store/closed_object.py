"""JSON objects whose names are a closed list, each with a rule: nothing unknown is taken, and nothing has a default.

A rule says which values a name may have, and in words what they are. An integer counts as a number where float64 holds
one of its size; true and false are neither.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ooc_mdp.quoting import listed
from ooc_mdp.store.sealed_file import SealError

__all__ = [
    "ANYTHING",
    "FINGERPRINT",
    "LIST",
    "OBJECT",
    "SCALAR",
    "SHA256",
    "TEXT",
    "WORD",
    "Rule",
    "check_names",
    "check_object",
    "count",
    "number",
    "one_of",
    "or_null",
    "shown",
]

_MAX_SHOWN = 60
"""Characters of a wrong value that a message shows."""
_MAX_COUNT = 1 << 63

Rule = tuple[Callable[[Any], bool], str]
"""Whether a value holds, and what it must be."""

ANYTHING: Rule = (lambda value: True, "anything")
OBJECT: Rule = (lambda value: isinstance(value, dict), "an object")
LIST: Rule = (lambda value: isinstance(value, list), "a list")
TEXT: Rule = (lambda value: isinstance(value, str), "a text")
SCALAR: Rule = (
    lambda value: value is None or isinstance(value, bool | int | float | str),
    "a number, a text, true, false or null",
)
WORD: Rule = (lambda value: isinstance(value, str) and value != "", "a word")
SHA256: Rule = (
    lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None,
    "a SHA-256 in hexadecimal",
)
FINGERPRINT: Rule = (
    lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{32}|[0-9a-f]{64}", value) is not None,
    "a fingerprint in hexadecimal",
)
"""Of a store, or of a virtual store, which is shorter."""


def count(least: int = 0, below: int = _MAX_COUNT) -> Rule:
    """A whole number from `least` on."""
    limit = "" if below == _MAX_COUNT else f" and below {below}"
    return lambda value: type(value) is int and least <= value < below, f"a whole number of at least {least}{limit}"


def number(least: float, most: float) -> Rule:
    """A number from `least` to `most`, both included, which may be infinite."""

    def holds(value: Any) -> bool:
        fits = type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
        return fits and least <= value <= most

    return holds, f"a number from {least:g} to {most:g}"


def one_of(*values: Any) -> Rule:
    """One of a few words, or null."""
    named = " or ".join("null" if value is None else str(value) for value in values)
    return lambda value: any(type(value) is type(due) and value == due for due in values), named


def or_null(rule: Rule) -> Rule:
    """What a rule allows, or null."""
    holds, what = rule
    return lambda value: value is None or holds(value), f"{what}, or null"


def shown(value: Any) -> str:
    """A wrong value, cut to a length that a message can show."""
    text = repr(value)[: _MAX_SHOWN + 1]
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def check_names(document: Any, names: Collection[str], where: str) -> None:
    """Refuse what is no object of exactly these names."""
    if not isinstance(document, Mapping):
        raise SealError(f"{where}: {str(document)[:40]!r} is no object")
    unknown, missing = sorted(set(document) - set(names)), sorted(set(names) - set(document))
    said = [f"{what}: {listed(names)}" for what, names in (("unknown", unknown), ("missing", missing)) if names]
    if said:
        raise SealError(f"{where}: {'; '.join(said)}")


def check_object(document: Any, rules: Mapping[str, Rule], where: str) -> None:
    """Refuse what is no object of exactly these names, or has a value that its rule does not allow."""
    check_names(document, rules, where)
    for name, (holds, what) in rules.items():
        if not holds(document[name]):
            raise SealError(f"{where}: {name} is {shown(document[name])}, it must be {what}")
