"""What a store, result or checkpoint holds, in numbers, as a dict for the command line and for JSON.

Of a store it reads sizes, not tables.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.model.annotations import NO_ANNOTATIONS, STRING, Annotations, Variable
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.table import TableFacts
from ooc_mdp.store.checkpoint import CHECKPOINT_SUFFIX, read_checkpoint
from ooc_mdp.store.layout import FIELDS, GROUP_FILE
from ooc_mdp.store.reader import Store
from ooc_mdp.store.result import open_result
from ooc_mdp.store.sealed_group import group_attributes

__all__ = ["inspect_checkpoint", "inspect_result", "inspect_reward_store", "inspect_store", "inspect_virtual_store"]


def inspect_store(store: Store, transitions: bool = True) -> dict[str, Any]:
    """Sizes, partitions, bytes by field, halos, cut, coupling and provenance.

    Parameters
    ----------
    transitions : whether to count the transitions that leave their partition, which reads local successors
        (and nothing else); None stands in their place otherwise.
    """
    fields = {name: _field(store, name) for name in store.fields}
    facts = _facts(
        store.path, store.facts, store.chunk_bytes, _leaving(store) if transitions else None, store.annotations
    )
    stored = sum(field["stored_bytes"] for field in fields.values())
    return {**facts, "stored_bytes": stored, "fields": fields, "uuid": store.uuid}


def inspect_virtual_store(path: Path, facts: TableFacts, annotations: Annotations = NO_ANNOTATIONS) -> dict[str, Any]:
    """The same of a virtual store, which stores no fields; what only its tables show is None."""
    nothing = np.zeros(facts.n_partitions, np.int64)
    return {
        **_facts(path, facts, nothing, None, annotations),
        "stored_bytes": 0,
        "fields": {},
        "uuid": None,
        "virtual": True,
    }


def inspect_reward_store(path: Path, facts: TableFacts, base: Store) -> dict[str, Any]:
    """The same of a store of other rewards: sizes and stored bytes are those of its base, without fields."""
    stored = int(base.manifest.stored_bytes(list(base.fields)).sum())
    figures = _facts(path, facts, base.chunk_bytes, _leaving(base), base.annotations)
    return {**figures, "stored_bytes": stored, "fields": {}, "uuid": None, "base": str(base.path)}


def inspect_result(path: Path) -> dict[str, Any]:
    """What a result proves, what the solve cost, and where its table came from.

    Raises
    ------
    StoreError : it is no result, or damaged.
    """
    result = open_result(path)
    about = group_attributes(path)["about"]
    return {
        "kind": "result",
        "path": str(path),
        "sense": result.identity["sense"],
        "fingerprint": result.identity["fingerprint"],
        **result.solution.summary(),
        "store": about["store"],
        "version": about["version"],
        "written": _written(path / GROUP_FILE),
        "provenance": result.provenance,
        "geometry": result.geometry,
    }


def inspect_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint belongs to, and what the solve has cost so far.

    Raises
    ------
    FileNotFoundError : there is none.
    StoreError : it is damaged, or of another version.
    """
    facts, arrays = read_checkpoint(path)
    identity, statistics = facts["identity"], facts["statistics"]
    return {
        "kind": "checkpoint",
        "path": str(path),
        "output": str(path.with_name(path.name.removesuffix(CHECKPOINT_SUFFIX))),
        "written": _written(path),
        "identity": identity,
        "statistics": statistics,
        "arrays": {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in arrays.items()},
    }


def _written(file: Path) -> str:
    """When a file was written, by the file system."""
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _facts(
    path: Path, facts: TableFacts, stored: IntArray, leaving: int | None, annotations: Annotations
) -> dict[str, Any]:
    """What is known of any table, whose partitions have so many stored bytes."""
    attributes = facts.attributes
    n, states = attributes["n_partitions"], attributes["n_states"]
    halo = int(facts.partition_halo.sum())
    return {
        "path": str(path),
        "n_states": states,
        "n_state_actions": attributes["n_rows"],
        "n_transitions": attributes["n_transitions"],
        "n_partitions": n,
        "sense": attributes["sense"],
        "dtype": attributes["dtype"],
        "partitions": {
            "states": _min_mean_max(np.diff(facts.partition_ptr)),
            "decoded_bytes": _min_mean_max(facts.partition_bytes),
            "stored_bytes": _min_mean_max(stored),
        },
        "decoded_bytes": int(facts.partition_bytes.sum()),
        "halo": {"states": halo, "share": halo / states},
        "cut": {
            "transitions": leaving,
            "share": None if leaving is None else leaving / max(attributes["n_transitions"], 1),
        },
        "coupling": {
            "entries": int(facts.coupling.partitions.size),
            "density": facts.coupling.partitions.size / n**2,
        },
        "state_order": attributes["state_order"]["kind"],
        "partitioning": attributes["partitioning"],
        "geometry": attributes.get("geometry"),
        "provenance": attributes["provenance"],
        "fingerprint": attributes["fingerprint"],
        **_annotations(annotations),
    }


def _annotations(kept: Annotations) -> dict[str, Any]:
    """Labels with the numbers of their states, variables with their ranges, and names of reward models and actions."""
    own = [] if kept.table_rewards is None else [kept.table_rewards]
    return {
        "labels": {name: int(np.count_nonzero(kept.label(name))) for name in kept.labels},
        "variables": {name: _variable(variable) for name, variable in kept.variables.items()},
        "reward_models": [*own, *kept.reward_models],
        "table_rewards": kept.table_rewards,
        "action_names": list(kept.action_names),
    }


def _variable(variable: Variable) -> dict[str, Any]:
    """Type and range of a state variable, or its texts."""
    ends = {"low": variable.low, "high": variable.high}
    return {"type": variable.type, **({"texts": list(variable.texts)} if variable.type == STRING else ends)}


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
