"""Which attributes a store has, and what each may contain: a closed list, in which nothing has a default.

    format, format_version, fingerprint, digest
    table    everything that a solve reads
    about    where the table comes from; nothing that a solve trusts

Knows no files: whoever reads a store's zarr.json asks here before anything trusts it.
``docs/reference/store-format.md`` lists what the attributes mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from ooc_mdp.store.layout import FIELDS

__all__ = ["attribute_error", "flat_attributes"]

_MAX_SHOWN = 60
"""Characters of a wrong value that a message shows."""


def attribute_error(attributes: Mapping[str, Any]) -> str | None:
    """What is wrong with the attributes of a store, in words; None if nothing is."""
    for where, given, rules in (
        ("", attributes, _TOP),
        ("table.", attributes.get("table"), _TABLE),
        ("about.", attributes.get("about"), _ABOUT),
    ):
        error = _error_in(where, given, rules)
        if error is not None:
            return error
    for name, field in attributes["table"]["fields"].items():
        error = _error_in(f"table.fields.{name}.", field, _FIELD)
        if error is not None:
            return error
    return None


def flat_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of table and about by their own names; fields as a list, and the encodings of those that have one.

    Without a geometry, where the store has none.
    """
    fields = attributes["table"]["fields"]
    flat = {**attributes["table"], **attributes["about"], "fingerprint": attributes["fingerprint"]}
    flat["fields"] = [name for name in FIELDS if name in fields]
    flat["encodings"] = {name: f["encoding"] for name, f in fields.items() if f["encoding"] is not None}
    if flat["geometry"] is None:
        del flat["geometry"]
    return flat


_Rule = tuple[Callable[[Any], bool], str]


def _error_in(where: str, given: Any, rules: Mapping[str, _Rule]) -> str | None:
    if not isinstance(given, dict):
        return f"has the attribute {where.removesuffix('.')} = {_shown(given)}; it must be an object"
    unknown = sorted(set(given) - set(rules))
    if unknown:
        return f"has the attributes {', '.join(where + name for name in unknown)}, which this format does not know"
    missing = [where + name for name in rules if name not in given]
    if missing:
        return f"lacks the attributes {', '.join(missing)}"
    for name, (holds, rule) in rules.items():
        if not holds(given[name]):
            return f"has the attribute {where}{name} = {_shown(given[name])}; it must be {rule}"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _count(least: int) -> _Rule:
    return lambda value: _is_count(value) and value >= least, f"a whole number of at least {least}"


def _one_of(*words: str) -> _Rule:
    return lambda value: isinstance(value, str) and value in words, " or ".join(words)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _are_fields(value: Any) -> bool:
    return isinstance(value, dict) and set(value) <= set(FIELDS) and all(map(_is_object, value.values()))


def _is_axis(points: Any, edges: Any) -> bool:
    counts = isinstance(edges, list) and len(edges) > 1 and all(map(_is_count, edges)) and _is_count(points)
    return counts and edges[0] == 0 and edges[-1] == points and all(a < b for a, b in pairwise(edges))


def _is_order(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("kind") not in ("identity", "grid", "array"):
        return False
    if value["kind"] != "grid":
        return set(value) == {"kind"}
    shape, edges = value.get("shape"), value.get("edges")
    if set(value) != {"kind", "shape", "block_shape", "edges"} or not isinstance(shape, list):
        return False
    return isinstance(edges, list) and len(shape) == len(edges) > 0 and all(map(_is_axis, shape, edges))


_OBJECT: _Rule = (_is_object, "an object")
_HASH: _Rule = (_is_hash, "a SHA-256 in hexadecimal")
_ANY: _Rule = (lambda value: True, "anything")
_TOP: dict[str, _Rule] = {
    "format": _ANY,  # checked before
    "format_version": _ANY,
    "table": _OBJECT,
    "about": _OBJECT,
    "fingerprint": _HASH,
    "digest": _HASH,
}
_TABLE: dict[str, _Rule] = {
    "n_states": _count(1),
    "n_rows": _count(0),
    "n_transitions": _count(0),
    "n_partitions": _count(1),
    "n_couplings": _count(1),
    "sense": _one_of("max", "min"),
    "dtype": _one_of("float32", "float64"),
    "actions_per_state": _count(0),
    "successors_per_action": _count(0),
    "fields": (_are_fields, "an object with an object for each of this format's fields that the store has"),
    "state_order": (
        _is_order,
        "of kind identity, array, or grid with the shape of the grid and rising edges of blocks",
    ),
}
_FIELD: dict[str, _Rule] = {
    "stored": (_is_word, "the name of a type"),
    "encoding": (lambda value: value is None or _is_word(value), "a word, or null"),
    "cname": (_is_word, "a compressor of blosc"),
    "shuffle": (_is_word, "noshuffle, shuffle or bitshuffle"),
}
_ABOUT: dict[str, _Rule] = {
    "uuid": (_is_word, "a word"),
    "provenance": _OBJECT,
    "partitioning": _OBJECT,
    "geometry": (lambda value: value is None or _is_object(value), "an object, or null"),
}
