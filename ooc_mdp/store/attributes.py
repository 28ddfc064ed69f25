"""Which attributes a store must have, and what each may say; ``docs/store-format.md`` lists what they mean.

Knows no files: whoever reads a store's zarr.json asks here before anything trusts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

__all__ = ["fault_of"]

_LONGEST = 60
"""Characters of a wrong value that a message shows."""


def fault_of(attributes: Mapping[str, Any]) -> str | None:
    """What is wrong with the attributes of a store, in words; None if nothing is."""
    missing = [name for name in _RULES if name not in attributes]
    if missing:
        return f"lacks the attributes {', '.join(missing)}"
    for name, (holds, rule) in {**_RULES, **_OPTIONAL}.items():
        if name in attributes and not holds(attributes[name]):
            value = repr(attributes[name])
            shown = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
            return f"has the attribute {name} = {shown}; it must be {rule}"
    return None


_Rule = tuple[Callable[[Any], bool], str]


def _count(least: int) -> _Rule:
    return lambda value: _is_count(value) and value >= least, f"a whole number of at least {least}"


def _one_of(*words: str) -> _Rule:
    return lambda value: isinstance(value, str) and value in words, " or ".join(words)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_word, value)) and len(set(value)) == len(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _are_words(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_word, value.values()))


def _is_axis(points: Any, edges: Any) -> bool:
    counts = isinstance(edges, list) and len(edges) > 1 and all(map(_is_count, edges)) and _is_count(points)
    return counts and edges[0] == 0 and edges[-1] == points and all(a < b for a, b in pairwise(edges))


def _is_order(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("kind") not in ("identity", "grid", "array"):
        return False
    if value["kind"] != "grid":
        return True
    shape, edges = value.get("shape"), value.get("edges")
    if not isinstance(shape, list) or not isinstance(edges, list):
        return False
    return len(shape) == len(edges) > 0 and all(map(_is_axis, shape, edges))


_WORD: _Rule = (_is_word, "a word")
_OBJECT: _Rule = (_is_object, "an object")
_RULES: dict[str, _Rule] = {
    "n_states": _count(1),
    "n_rows": _count(0),
    "n_transitions": _count(0),
    "n_partitions": _count(1),
    "n_couplings": _count(1),
    "sense": _one_of("max", "min"),
    "dtype": _one_of("float32", "float64"),
    "actions_per_state": _count(0),
    "successors_per_action": _count(0),
    "fields": (_are_names, "a list of names, none twice"),
    "state_order": (
        _is_order,
        "of kind identity, array, or grid with the shape of the grid and rising edges of blocks",
    ),
    "partitioning": _OBJECT,
    "provenance": _OBJECT,
    "uuid": _WORD,
    "fingerprint": _WORD,
}
_OPTIONAL: dict[str, _Rule] = {
    "encodings": (_are_words, "an object with a word for each field"),
    "geometry": _OBJECT,
}
