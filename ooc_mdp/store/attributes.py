"""Which attributes a store has, and what each may contain: a closed list, in which nothing has a default.

    format, format_version, fingerprint, digest
    table    everything that a solve reads
    about    where the table comes from; nothing that a solve trusts

Knows no files: whoever reads a store's zarr.json asks here before anything trusts it.
``docs/reference/store-format.md`` lists what the attributes mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ooc_mdp.quoting import listed
from ooc_mdp.store.closed_object import ANYTHING, OBJECT, SHA256, WORD, Rule, count, one_of, or_null, shown
from ooc_mdp.store.layout import FIELDS

__all__ = ["STATE_ORDER", "attribute_error", "flat_attributes"]


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


def _error_in(where: str, given: Any, rules: Mapping[str, Rule]) -> str | None:
    if not isinstance(given, dict):
        return f"has the attribute {where.removesuffix('.')} = {shown(given)}; it must be an object"
    unknown = sorted(set(given) - set(rules))
    if unknown:
        return f"has the attributes {listed([where + name for name in unknown])}, which this format does not know"
    missing = [where + name for name in rules if name not in given]
    if missing:
        return f"lacks the attributes {', '.join(missing)}"
    for name, (holds, rule) in rules.items():
        if not holds(given[name]):
            return f"has the attribute {where}{name} = {shown(given[name])}; it must be {rule}"
    return None


_is_count = count()[0]


def _are_fields(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) <= set(FIELDS)
        and all(isinstance(field, dict) for field in value.values())
    )


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
    if not (isinstance(edges, list) and len(shape) == len(edges) > 0 and all(map(_is_axis, shape, edges))):
        return False
    return bool(value["block_shape"] == [max(b - a for a, b in pairwise(axis)) for axis in edges])


STATE_ORDER: Rule = (
    _is_order,
    "of kind identity, array, or grid with the shape of the grid and rising edges of blocks",
)
_TOP: dict[str, Rule] = {
    "format": ANYTHING,  # checked before
    "format_version": ANYTHING,
    "table": OBJECT,
    "about": OBJECT,
    "fingerprint": SHA256,
    "digest": SHA256,
}
_TABLE: dict[str, Rule] = {
    "n_states": count(1),
    "n_rows": count(0),
    "n_transitions": count(0),
    "n_partitions": count(1),
    "n_couplings": count(1),
    "sense": one_of("max", "min"),
    "dtype": one_of("float32", "float64"),
    "actions_per_state": count(0),
    "successors_per_action": count(0),
    "fields": (_are_fields, "an object with an object for each of this format's fields that the store has"),
    "state_order": STATE_ORDER,
}
_FIELD: dict[str, Rule] = {
    "stored": (WORD[0], "the name of a type"),
    "encoding": or_null(WORD),
    "cname": (WORD[0], "a compressor of blosc"),
    "shuffle": one_of("noshuffle", "shuffle", "bitshuffle"),
}
_ABOUT: dict[str, Rule] = {
    "uuid": WORD,
    "provenance": OBJECT,
    "partitioning": OBJECT,
    "geometry": or_null(OBJECT),
}
