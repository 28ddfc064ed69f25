"""A store in the making: what is known of its partitions, and its metadata once all of them are written.

What the whole store needs but only the last partition settles (the type of successors, which optional
fields exist, who is in whose halo) is a :class:`TableSchema` of the partitions so far. Chunks are written by a
:class:`PartitionWriter`, in any process and order; here their entries come together:

    add(writer.write(p, arrays, schema))             first round, with the schema as it is then
    add(writer.finish(entry, schema, boundary(p)))   second round, with the final one
    finish(...)                                      small arrays, zarr.json

In RAM: a few numbers a partition and field, the coupling entries, and one bit a state for the boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.store.encodings import stored_count
from ooc_mdp.store.layout import FIELDS, padded_length
from ooc_mdp.store.manifest import manifest_arrays
from ooc_mdp.store.partition_entry import PartitionEntry, WrittenChunk
from ooc_mdp.store.schema import TableSchema
from ooc_mdp.store.state_set import StateSet
from ooc_mdp.store.zarr_metadata import StoredAs, write_metadata

__all__ = ["StoreWriter"]

Array = npt.NDArray[Any]


class StoreWriter:
    """Keeps the entries of one store's partitions; for one thread.

    Parameters
    ----------
    root : the directory that is filled (see `ooc_mdp.store.transaction`).
    partition_ptr : int64 [P+1].
    schema : what is known before the first partition.
    """

    def __init__(self, root: Path, partition_ptr: IntArray, schema: TableSchema) -> None:
        self.root = root
        self.partition_ptr = partition_ptr
        self.n_partitions = partition_ptr.size - 1
        self.schema = schema
        """Of the partitions so far."""
        self._boundary_states = StateSet(int(partition_ptr[-1]))
        self._entries: dict[int, PartitionEntry] = {}

    def __contains__(self, p: int) -> bool:
        return p in self._entries

    def entry(self, p: int) -> PartitionEntry:
        """What was added of partition p last."""
        return self._entries[p]

    def add(self, entry: PartitionEntry) -> bool:
        """Count a partition that was written, or replace its entry; whether that changed what its record says."""
        before = self._entries.get(entry.partition)
        self.schema = self.schema.including(entry.note)
        if entry.halo is not None:
            self._boundary_states.mark(entry.halo)
        self._entries[entry.partition] = PartitionEntry(entry.partition, entry.note, entry.chunks)
        return before is None or _recorded(before) != _recorded(entry)

    def boundary(self, p: int) -> npt.NDArray[np.bool_]:
        """bool [n]; which of partition p's states others read, once all partitions are added."""
        return self._boundary_states.slice(*self.partition_ptr[p : p + 2].tolist())

    def finish(self, sense: str, state_order: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Write small arrays and metadata, the manifest among them, after the second round.

        Parameters
        ----------
        about : the attributes that say where the table comes from.
        """
        schema, fields = self.schema, self.schema.fields()
        entries = [self._entries[p] for p in range(self.n_partitions)]
        notes = [entry.note for entry in entries]
        rows = np.array([note.sizes.rows for note in notes], np.int64)
        transitions = np.array([note.sizes.transitions for note in notes], np.int64)
        read = [name for name in fields if FIELDS[name].read]
        chunk_bytes = [sum(entry.chunks[name].entry.n_bytes for name in read) for entry in entries]
        small: dict[str, Array] = {
            "partition_ptr": self.partition_ptr,
            "partition_rows": rows,
            "partition_transitions": transitions,
            "partition_halo": np.array([note.sizes.halo for note in notes], np.int64),
            "partition_bytes": self._partition_bytes(read),
            "chunk_bytes": np.array(chunk_bytes, np.int64),
            **manifest_arrays([[entry.chunks[name].entry for name in fields] for entry in entries]),
            "reward_range": np.array([note.reward_range for note in notes]),
            "duration_range": np.array([note.duration_range for note in notes]),
            "row_sum_range": np.array([note.row_sum_range for note in notes]),
            "max_successors": np.array([note.max_successors for note in notes], np.int64),
            "coupling_ptr": np.concatenate([[0], np.cumsum([note.coupling_mass.size for note in notes])]),
            "coupling_partitions": np.concatenate([note.coupling_partitions for note in notes]),
            "coupling_mass": np.concatenate([note.coupling_mass for note in notes]),
        }
        stored = {n: StoredAs(schema.stored_dtype(n), schema.encoding_of(n), self._lengths(n)) for n in fields}
        sizes = {
            "n_states": schema.n_states,
            "n_rows": int(rows.sum()),
            "n_transitions": int(transitions.sum()),
            "n_partitions": self.n_partitions,
            "n_couplings": int(small["coupling_partitions"].size),
            "sense": sense,
            "dtype": schema.dtype.name,
            "actions_per_state": schema.actions or 0,
            "successors_per_action": schema.successors or 0,
            "state_order": dict(state_order),
        }
        write_metadata(self.root, stored, small, sizes, about)

    def _lengths(self, name: str) -> list[int]:
        """Padded lengths of a field's chunks."""
        length, encoding = FIELDS[name].length, self.schema.encoding_of(name)
        sizes = [entry.note.sizes for entry in self._entries.values()]
        return sorted({padded_length(stored_count(each.of(length), encoding, each)) for each in sizes})

    def _partition_bytes(self, read: list[str]) -> IntArray:
        total = np.zeros(self.n_partitions, np.int64)
        for name in read:
            itemsize = 8 if name in ("halo", "durations") else self.schema.dtype_of(name).itemsize
            counts = [self._entries[p].note.sizes.of(FIELDS[name].length) for p in range(self.n_partitions)]
            total += np.asarray(counts, np.int64) * itemsize
        return total


def _recorded(entry: PartitionEntry) -> dict[str, WrittenChunk]:
    """The chunks that a record names."""
    return {name: chunk for name, chunk in entry.chunks.items() if name != "boundary"}
