"""What a store holds, in numbers, as a dict for the command line and for JSON. Reads sizes, not tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_mdp.store.layout import FIELDS
from ooc_mdp.store.reader import Store

__all__ = ["inspect_store"]


def inspect_store(store: Store, transitions: bool = True) -> dict[str, Any]:
    """Sizes, partitions, bytes by field, halos, cut, coupling and provenance.

    Parameters
    ----------
    transitions : whether to count the transitions that leave their partition, which reads local successors
        (and nothing else); None stands in their place otherwise.
    """
    n = store.n_partitions
    states = np.diff(store.partition_ptr)
    halo = int(store.partition_halo.sum())
    fields = {name: _field(store, name) for name in store.fields}
    leaving = _leaving(store) if transitions else None
    return {
        "path": str(store.path),
        "states": store.n_states,
        "rows": store.n_rows,
        "transitions": store.n_transitions,
        "sense": store.sense,
        "dtype": store.probability_dtype.name,
        "partitions": {
            "count": n,
            "states": _min_mean_max(states),
            "decoded_bytes": _min_mean_max(store.partition_bytes),
            "stored_bytes": _min_mean_max(store.chunk_bytes),
        },
        "decoded_bytes": int(store.partition_bytes.sum()),
        "stored_bytes": sum(f["stored_bytes"] for f in fields.values()),
        "fields": fields,
        "halo": {"states": halo, "share": halo / store.n_states},
        "cut": {
            "transitions": leaving,
            "share": None if leaving is None else leaving / max(store.n_transitions, 1),
        },
        "coupling": {
            "entries": int(store.coupling.partitions.size),
            "density": store.coupling.partitions.size / n**2,
        },
        "state_order": store.attributes["state_order"]["kind"],
        "partitioning": store.attributes["partitioning"],
        "geometry": store.attributes.get("geometry"),
        "provenance": store.attributes["provenance"],
        "uuid": store.uuid,
        "fingerprint": store.fingerprint,
    }


def _min_mean_max(values: np.ndarray[Any, Any]) -> dict[str, float]:
    return {"min": int(values.min()), "mean": float(values.mean()), "max": int(values.max())}


def _field(store: Store, name: str) -> dict[str, Any]:
    """Type and bytes of one field, without padding: in the table, and on disk."""
    meta = store.fields[name]
    length = FIELDS[name].length
    values = sum(store.sizes(p).of(length) for p in range(store.n_partitions))
    decoded = values * meta.dtype.itemsize
    stored = int(store.manifest.stored_bytes([name]).sum())
    transitions = max(store.n_transitions, 1)
    return {
        "dtype": meta.dtype.name,
        "stored_dtype": meta.stored.name,
        "encoding": meta.encoding,
        "decoded_bytes": decoded,
        "stored_bytes": stored,
        "ratio": decoded / stored,
        "decoded_bytes_per_transition": decoded / transitions,
        "stored_bytes_per_transition": stored / transitions,
    }


def _leaving(store: Store) -> int:
    """Transitions whose successor another partition owns."""
    total = 0
    for p in range(store.n_partitions):
        successors, _ = store.read_field("successors", p)
        total += int(np.count_nonzero(successors >= store.sizes(p).states))
    return total
