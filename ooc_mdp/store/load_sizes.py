"""How large the chunks and tables of an open store are at most: what a load takes, from sizes that are in RAM."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.store.encodings import WITHOUT_LAST
from ooc_mdp.store.layout import PADDING, PartitionSizes
from ooc_mdp.store.metadata import ArrayMetadata

__all__ = ["largest_chunks", "largest_sizes", "scratch_bytes"]


def largest_sizes(partition_ptr: IntArray, rows: IntArray, transitions: IntArray, halo: IntArray) -> PartitionSizes:
    """The most of everything that any partition has, of int64 [P+1] and [P] numbers."""
    return PartitionSizes(int(np.diff(partition_ptr).max()), int(rows.max()), int(transitions.max()), int(halo.max()))


def largest_chunks(
    fields: Mapping[str, ArrayMetadata], largest: PartitionSizes, rows: IntArray, transitions: IntArray
) -> dict[str, int]:
    """Most stored values of a chunk of each field, without padding."""
    weights = int((transitions - rows).max())
    return {
        name: weights if meta.encoding in WITHOUT_LAST else largest.of(meta.field.length)
        for name, meta in fields.items()
    }


def scratch_bytes(
    fields: Mapping[str, ArrayMetadata], chunk_bytes: IntArray, rows: IntArray, transitions: IntArray, halo: IntArray
) -> int:
    """Most bytes that a read holds beside the table: a chunk as it is on disk, and encoded values of all fields."""
    held = np.zeros_like(chunk_bytes)
    for name, meta in fields.items():
        if meta.encoding is not None and name != "successors":  # which are decoded in place
            values = rows * 2  # two forms at once, the table's apart
            if meta.field.length == "transitions":
                values = transitions - rows
            held += values * meta.stored.itemsize
        elif meta.stored != meta.dtype:
            held += (halo if name == "halo" else rows) * meta.stored.itemsize
    return int(chunk_bytes.max()) + int(held.max() * (1 + PADDING))
