"""Checks that the sizes, ranges and pointers of a store's small arrays fit together.

Loops and kernels allocate and index by these numbers without looking again. The fingerprint makes them the writer's;
this makes them safe, whatever wrote them: a store that was sealed with wrong sizes is refused when it is opened. What
only the chunks can contradict (pointers, successors, halo states) is checked at each load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.store.layout import READ_FIELDS, padded_length
from ooc_mdp.store.load_sizes import largest_chunks, largest_sizes
from ooc_mdp.store.manifest import Manifest
from ooc_mdp.store.metadata import ArrayMetadata

__all__ = ["size_error", "summary_error"]

Small = Mapping[str, npt.NDArray[Any]]

_MAX_COUPLING = 1 + 1e-3
"""Above the largest mass that one row can send, whatever the tolerance of row sums."""


def size_error(
    table: Mapping[str, Any], small: Small, fields: Mapping[str, ArrayMetadata], manifest: Manifest
) -> str | None:
    """What is wrong, in words; None if everything fits."""
    return (
        summary_error(table, small)
        or _field_error(table, small, fields)
        or _order_error(table, small)
        or manifest.error()
        or _byte_error(small, fields, manifest)
    )


def summary_error(table: Mapping[str, Any], small: Small) -> str | None:
    """What is wrong with sizes, ranges and coupling, whether or not there are chunks; None if everything fits."""
    return _partition_error(table, small) or _range_error(small) or _coupling_error(small, table["n_partitions"])


def _partition_error(table: Mapping[str, Any], small: Small) -> str | None:
    """Whether partitions are what the attributes say, and uniform ones as large as that makes them."""
    ptr = small["partition_ptr"]
    if ptr[0] != 0 or ptr[-1] != table["n_states"] or (ptr[1:] <= ptr[:-1]).any():
        return f"has a partition_ptr that does not rise from 0 to {table['n_states']} states, at least one each"
    states, rows, transitions = np.diff(ptr), small["partition_rows"], small["partition_transitions"]
    for name, counts in (("n_rows", rows), ("n_transitions", transitions)):
        if counts.min() < 0 or _sum(counts) != table[name]:
            return f"says {name} = {table[name]}, its partitions hold {_sum(counts)}"
    if (small["partition_halo"] < 0).any() or (small["partition_halo"] > table["n_states"] - states).any():
        return "has a partition_halo outside 0 to the number of other states"
    actions, width = table["actions_per_state"], table["successors_per_action"]
    if max(actions, width, rows.max(), transitions.max()) >= 1 << 32:
        return f"says {actions} actions a state and {width} transitions a row, or has partitions of 2^32 or more"
    if actions and (rows != states * actions).any():
        return f"says that each state has {actions} actions, and has partitions of another number of rows"
    if width and (transitions != rows * width).any():
        return f"says that each row has {width} transitions, and has partitions of another number of them"
    longest = small["max_successors"]
    if (longest < (rows > 0)).any() or (longest > transitions).any() or (rows > transitions).any():
        return "has a max_successors that its partitions cannot have"
    if width and (longest != np.where(rows > 0, width, 0)).any():
        return f"has a max_successors that is not the {width} transitions of every row"
    return None


def _order_error(table: Mapping[str, Any], small: Small) -> str | None:
    """Whether the blocks of a grid are the partitions."""
    order = table["state_order"]
    if order["kind"] != "grid":
        return None
    try:
        blocks = GridOrder.from_order(order, small["partition_ptr"]).partition_ptr
    except OptionsError as error:
        return f"has a state_order whose blocks of the grid are not the partitions ({error})"
    if not np.array_equal(blocks, small["partition_ptr"]):
        return "has a state_order whose blocks of the grid are not the partitions"
    return None


def _field_error(table: Mapping[str, Any], small: Small, fields: Mapping[str, ArrayMetadata]) -> str | None:
    """Whether the fields that others depend on are there, and chunks no larger than a frame can be."""
    for name, uniform in (("action_ptr", "actions_per_state"), ("successor_ptr", "successors_per_action")):
        if (name in fields) == bool(table[uniform]) and table["n_rows"]:
            return f"must have either the field {name} or the attribute {uniform}"
    if ("original_state" in fields) != (table["state_order"]["kind"] == "array"):
        return "must have the field original_state exactly if its state_order is of kind array"
    rows, transitions = small["partition_rows"], small["partition_transitions"]
    largest = largest_sizes(small["partition_ptr"], rows, transitions, small["partition_halo"])
    for name, length in largest_chunks(fields, largest, rows, transitions).items():
        if padded_length(length) * fields[name].stored.itemsize >= 1 << 31:
            return f"has a field {name} with {length} values in a chunk, which takes 2 GiB or more"
    return None


def _byte_error(small: Small, fields: Mapping[str, ArrayMetadata], manifest: Manifest) -> str | None:
    """Whether bytes in RAM and on disk are those that sizes and manifest give."""
    names = [name for name in READ_FIELDS if name in fields]
    if not np.array_equal(small["chunk_bytes"], manifest.stored_bytes(names)):
        return "has a chunk_bytes that is not the sum of chunk_lengths"
    states = np.diff(small["partition_ptr"])
    rows, transitions, halo = (small[f"partition_{name}"] for name in ("rows", "transitions", "halo"))
    lengths = {
        "states": states,
        "states+1": states + 1,
        "rows": rows,
        "rows+1": rows + 1,
        "transitions": transitions,
        "halo": halo,
    }
    decoded = np.zeros_like(states)
    for name in names:
        itemsize = 8 if name == "halo" else fields[name].dtype.itemsize
        decoded += lengths[fields[name].field.length] * itemsize
    if not np.array_equal(small["partition_bytes"], decoded):
        return "has a partition_bytes that is not what its partitions take"
    return None


def _range_error(small: Small) -> str | None:
    """Whether ranges are ranges of finite numbers (durations may be infinite)."""
    for name, least in (("reward_range", -np.inf), ("duration_range", 0.0), ("row_sum_range", 0.0)):
        low, high = small[name].T
        finite = np.isfinite(low) & np.isfinite(high) if name != "duration_range" else ~np.isnan(high)
        if not (finite & (low <= high) & (low >= least)).all():
            return f"has a {name} that is no range of numbers"
    if not (small["duration_range"] > 0).all():
        return "has durations that are not positive in its duration_range"
    return None


def _coupling_error(small: Small, n_partitions: int) -> str | None:
    """Whether every row of the coupling names ascending partitions, its own among them."""
    ptr, partitions, mass = (small[f"coupling_{name}"] for name in ("ptr", "partitions", "mass"))
    if ptr[0] != 0 or ptr[-1] != partitions.size or (ptr[1:] <= ptr[:-1]).any():
        return f"has a coupling_ptr that does not rise from 0 to {partitions.size} entries, at least one each"
    if partitions.min() < 0 or partitions.max() >= n_partitions:
        return f"couples partitions that do not exist: there are {n_partitions}"
    rises = np.diff(partitions) > 0
    rises[ptr[1:-1] - 1] = True  # from one row to the next
    owner = np.repeat(np.arange(n_partitions), np.diff(ptr))
    if not rises.all() or np.count_nonzero(partitions == owner) != n_partitions:
        return "has coupling_partitions that do not rise, or leave out the partition itself"
    if not ((mass >= 0) & (mass <= _MAX_COUPLING)).all():
        return "has a coupling_mass outside 0 to 1"
    return None


def _sum(counts: npt.NDArray[np.int64]) -> int:
    """The exact sum of counts that may be anything."""
    return sum(counts.tolist())
