"""Writes the chunks of single partitions: functions of what they are given, in any process that sees the directory.

    write(p, arrays, schema)            chunks as the schema and p itself have them; an entry that names them
    finish(entry, schema, boundary)     what the final schema has otherwise is written again, and what waited for it

Nothing is kept between calls, so a partition whose process was killed can be written by another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.store.blosc_frame import decode_frame, encode_frame
from ooc_mdp.store.chunk_file import CorruptChunkError, allocate, is_intact, read_frame_file, write_chunk
from ooc_mdp.store.encodings import InexactWeights, RowLayout, decode, encode, stored_count
from ooc_mdp.store.layout import FIELDS, PartitionSizes, chunk_name, halo_dtype
from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.partition_entry import PartitionEntry, WrittenChunk
from ooc_mdp.store.partition_summary import PartitionSummary
from ooc_mdp.store.schema import TableSchema

__all__ = ["PartitionWriter"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes into one directory, which must exist wherever this is used."""

    root: Path

    def write(self, p: int, part: PartitionArrays, schema: TableSchema) -> PartitionEntry:
        """Write partition p as a table of that schema and of p has it; its boundary waits for `finish`.

        Raises
        ------
        StoreError : the directory is not there, or rows are not as exact as the schema says.
        """
        self._check_root()
        note = PartitionSummary.of(part)
        schema = schema.including(note)
        arrays: dict[str, Array | None] = {
            "action_ptr": None if schema.actions else part.action_ptr.astype(np.uint32),
            "successor_ptr": None if schema.successors else part.successor_ptr.astype(np.uint32),
            "successors": part.successors,
            "probabilities": part.probabilities,
            "rewards": part.rewards,
            "durations": part.durations,
            "terminal_rewards": part.terminal_rewards,
            "initial_values": part.initial_values,
            "action_labels": part.action_labels,
            "original_state": part.original_state,
            "halo": part.halo.astype(halo_dtype(schema.n_states)),
        }
        layout = RowLayout(
            note.sizes,
            note.actions,
            note.successors,
            **{} if note.actions else {"action_ptr": part.action_ptr.astype(np.uint32)},
            **{} if note.successors else {"successor_ptr": part.successor_ptr.astype(np.uint32)},
        )
        if not note.sizes.rows:
            arrays["successor_ptr"] = None
        for name in schema.optional:
            if arrays[name] is None:
                arrays[name] = _default(name, note, schema, layout)
        chunks = {
            name: self._write(name, p, values, schema, layout) for name, values in arrays.items() if values is not None
        }
        return PartitionEntry(p, note, chunks, part.halo)

    def finish(self, entry: PartitionEntry, schema: TableSchema, boundary: npt.NDArray[np.bool_]) -> PartitionEntry:
        """Bring a partition to the schema of the whole table.

        Parameters
        ----------
        boundary : bool [n]; which of its states other partitions read.

        Raises
        ------
        StoreError : a chunk is not what was written.
        """
        self._check_root()
        fields = schema.fields()
        wrong = [name for name in fields if not _is_final(name, entry, schema)]
        chunks = dict(entry.chunks)
        encoded = any(schema.encoding_of(n) or (n in chunks and chunks[n].encoding) for n in wrong)
        layout = self._row_layout(entry) if encoded else None
        for name in wrong:
            if name == "boundary":
                values: Array = boundary
            elif name in entry.chunks:
                values = self._values(name, entry, schema, layout)
            else:
                values = _default(name, entry.note, schema, layout or self._row_layout(entry))
            chunks[name] = self._write(name, entry.partition, values, schema, layout)
        return replace(entry, chunks=chunks)

    def restore(self, p: int, record: Mapping[str, Any]) -> PartitionEntry | None:
        """The entry of a partition that an earlier run wrote; None if a chunk is not as it was written then."""
        entry = PartitionEntry.from_record(p, record)
        paths = {name: self._path(name, p, chunk, entry.note.sizes) for name, chunk in entry.chunks.items()}
        if not all(is_intact(paths[name], chunk.entry) for name, chunk in entry.chunks.items()):
            return None
        halo = self._read("halo", entry)
        return replace(entry, halo=halo.astype(np.int64))

    def _check_root(self) -> None:
        """A chunk's folders are made where they are missing, but never the directory itself on another machine."""
        if not self.root.is_dir():
            raise StoreError(
                f"{self.root} is not there for the process that writes into it; all workers must see the store's "
                f"directory under the same path (a file system that the machines share)"
            )

    def _write(self, name: str, p: int, values: Array, schema: TableSchema, layout: RowLayout | None) -> WrittenChunk:
        """Write a chunk of values in the table's type, encoded where the schema says so."""
        encoding = schema.encoding_of(name)
        values = values.astype(schema.dtype_of(name), copy=False)
        if encoding is not None and layout is not None:
            try:
                values = encode(encoding, values, layout)
            except InexactWeights as error:
                raise StoreError(
                    f"local row {error.row} of partition {p} is not made of multiples of 2**-24 that sum to 1, "
                    f"although its problem says that all are (dyadic_probabilities)"
                ) from error
        frame = encode_frame(FIELDS[name], values, encoding)
        path = self.root / chunk_name(name, values.size, p)
        return WrittenChunk(values.dtype, encoding, write_chunk(path, frame))

    def _values(self, name: str, entry: PartitionEntry, schema: TableSchema, layout: RowLayout | None = None) -> Array:
        """What was given to :meth:`_write`, as it was written last."""
        chunk, values = entry.chunks[name], self._read(name, entry)
        if chunk.encoding is None or layout is None:
            return values
        return decode(chunk.encoding, values, _decoded_dtype(name, chunk, schema), layout)

    def _path(self, name: str, p: int, chunk: WrittenChunk, sizes: PartitionSizes) -> Path:
        return self.root / chunk_name(name, stored_count(sizes.of(FIELDS[name].length), chunk.encoding, sizes), p)

    def _read(self, name: str, entry: PartitionEntry) -> Array:
        """The stored values of a chunk; StoreError where it is not what was written."""
        chunk, sizes = entry.chunks[name], entry.note.sizes
        path = self._path(name, entry.partition, chunk, sizes)
        try:
            frame = read_frame_file(path, chunk.entry, allocate(chunk.entry.n_bytes + 1))
            return decode_frame(frame, chunk.dtype, stored_count(sizes.of(FIELDS[name].length), chunk.encoding, sizes))
        except CorruptChunkError as error:
            raise StoreError(f"{path} is not what was written a moment ago: {error}; look at the disk") from error

    def _row_layout(self, entry: PartitionEntry) -> RowLayout:
        """Where the rows lie, of which the partition's own chunks say what is not uniform in it."""
        note, pointers = entry.note, {}
        if not note.actions:
            pointers["action_ptr"] = self._read("action_ptr", entry)
        if not note.successors:
            has_rows = "successor_ptr" in entry.chunks
            pointers["successor_ptr"] = self._read("successor_ptr", entry) if has_rows else np.zeros(1, np.uint32)
        return RowLayout(note.sizes, note.actions, note.successors, **pointers)


def _default(name: str, note: PartitionSummary, schema: TableSchema, layout: RowLayout) -> Array:
    """What a field holds for a partition that came without it."""
    sizes = note.sizes
    match name:
        case "action_ptr":
            return np.arange(sizes.states + 1, dtype=np.uint32) * np.uint32(note.actions)
        case "successor_ptr":
            return np.arange(sizes.rows + 1, dtype=np.uint32) * np.uint32(note.successors)
        case "durations":
            return np.ones(sizes.rows)
        case "action_labels":
            if note.actions:
                return np.tile(np.arange(note.actions), sizes.states)
            ptr = layout.action_ptr.astype(np.int64)
            return np.arange(sizes.rows) - np.repeat(ptr[:-1], np.diff(ptr))
        case _:
            return np.zeros(sizes.of(FIELDS[name].length), schema.dtype_of(name))


def _is_final(name: str, entry: PartitionEntry, schema: TableSchema) -> bool:
    """Whether the chunk of a field is as the schema has it."""
    chunk = entry.chunks.get(name)
    if chunk is None or name == "boundary":
        return False
    return chunk[:2] == (schema.stored_dtype(name), schema.encoding_of(name))


def _decoded_dtype(name: str, chunk: WrittenChunk, schema: TableSchema) -> np.dtype[Any]:
    """Type of a chunk's values before they were encoded."""
    return chunk.dtype if name == "successors" else schema.dtype_of(name)
