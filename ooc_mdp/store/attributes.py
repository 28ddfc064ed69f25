"""Which attributes a store has, and what each may contain: a closed list, in which nothing has a default.

    format, format_version, fingerprint, digest
    table    everything that a solve reads
    about    where the table comes from; nothing that a solve trusts

Knows no files: readers of a store's zarr.json ask here before they trust it.
``docs/reference/store-format.md`` lists what the attributes mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ooc_mdp.store.closed_object import ANYTHING, OBJECT, SHA256, WORD, Rule, check_object, count, one_of, or_null
from ooc_mdp.store.layout import FIELDS

__all__ = ["STATE_ORDER", "check_attributes", "flat_attributes"]


def check_attributes(attributes: Mapping[str, Any]) -> None:
    """Refuse attributes that are not those of a store: SealError where a name or a value is none of the format's."""
    check_object(attributes, _TOP, "its attributes")
    check_object(attributes["table"], _TABLE, "table")
    check_object(attributes["about"], _ABOUT, "about")
    for name, field in attributes["table"]["fields"].items():
        check_object(field, _FIELD, f"table: fields: {name}")


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
