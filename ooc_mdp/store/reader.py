"""An open store: small arrays in RAM, one partition's table at a time from disk.

Chunk files are read, checked and decoded here directly, because Zarr's asynchronous machinery costs about a
millisecond a chunk and the solver reads ten chunks a load. What is read is still plain Zarr, as a test shows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.model.annotations import Annotations
from ooc_mdp.model.grid_variables import with_grid_variables
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable, RawField, RawPartition
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.model.table import Loader, Table, TableFacts
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.arena import SYSTEM_MEMORY, Scratch, TableMemory
from ooc_mdp.sizes import counted
from ooc_mdp.store.annotations import open_annotations
from ooc_mdp.store.blosc_frame import decode_frame
from ooc_mdp.store.check_load import LoadCheck, check_pointers
from ooc_mdp.store.check_memory import claims_bytes
from ooc_mdp.store.check_table import Finding, check_claims
from ooc_mdp.store.chunk_file import ChunkEntry, CorruptChunkError, read_frame_file
from ooc_mdp.store.damage import REMEDY, refuse_missing_states, unreadable_chunk
from ooc_mdp.store.directory import Directory
from ooc_mdp.store.encodings import IN_PLACE, RowLayout, decode, load_code, stored_count
from ooc_mdp.store.frames import FrameChunk, FrameReader, aligned, prefetch_file, read_frame, read_together
from ooc_mdp.store.layout import PADDING, READ_FIELDS, PartitionSizes, chunk_name, padded_length
from ooc_mdp.store.load_sizes import scratch_bytes
from ooc_mdp.store.manifest import Manifest
from ooc_mdp.store.metadata import ArrayMetadata
from ooc_mdp.store.source_order import source_states

if TYPE_CHECKING:
    from ooc_mdp.store.check import Report

__all__ = ["Store"]


@dataclass(frozen=True, eq=False, repr=False)
class Store(Table):
    """A valid store, open for reading; cheap to open, safe to use from many threads."""

    directory: Directory
    """Chunks are read relative to it, whatever its path leads to in the meantime."""
    facts: TableFacts
    """What the store says of its table; each partition is compared with it when it is first read."""
    fields: dict[str, ArrayMetadata]
    """Type and encoding of each field that this store has."""
    chunk_bytes: IntArray
    """int64 [P]; bytes on disk that read(p) reads."""
    manifest: Manifest
    """Length and checksums of every chunk; each load is compared with them."""
    checks_sha256: bool = False
    """Whether loads check SHA-256 too, which a forger cannot meet."""

    def __repr__(self) -> str:
        size = format_bytes(int(self.facts.partition_bytes.sum()))
        states, partitions = counted(self.n_states, "state"), counted(self.n_partitions, "partition")
        return f"<Store {self.name}: {states}, {partitions}, {size}>"

    def __copy__(self) -> Store:
        """The store itself, which does not change."""
        return self

    def __deepcopy__(self, memo: object) -> Store:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By its path, which is opened again."""
        from ooc_mdp.store.reopening import reopened

        return reopened, (os.path.abspath(self.path), self.fingerprint, self.checks_sha256)

    def checking_sha256(self) -> Store:
        """The same store, whose loads check SHA-256 as well as length and CRC-32C (a core does about 1 GB/s)."""
        return replace(self, checks_sha256=True)

    def contradictions(self, part: PartitionTable) -> list[Finding]:
        """What the store says of a partition that was read, and recomputing gives otherwise."""
        return check_claims(self.facts, self.sizes(part.index), part)

    def contradictions_bytes(self) -> IntArray:
        """int64 [P]; bytes of RAM that `contradictions` takes beside each partition's table."""
        return claims_bytes(self.facts)

    def check(self, progress: Watcher | None = None, note: Callable[[str], None] | None = None) -> Report:
        """Read and check every chunk: :func:`ooc_mdp.store.check.check_store`."""
        from ooc_mdp.store.check import check_store

        return check_store(self, progress, note)

    def inspect(self) -> dict[str, Any]:
        """What the store holds, in numbers: :func:`ooc_mdp.store.inspect.inspect_store`."""
        from ooc_mdp.store.inspect import inspect_store

        return inspect_store(self)

    def hold(self) -> AbstractContextManager[None]:
        """Keep others from replacing the store while it is read, where the file system has locks.

        Raises
        ------
        StoreError : it is being replaced, or was since it was opened.
        """
        _ = self._entries, self._load_check  # made once, before many threads read
        return self.directory.hold()

    @property
    def path(self) -> Path:
        """Where it lay when it was opened."""
        return self.directory.path

    def loader(self, device: str) -> Loader:
        """Tables are decoded in host memory, whatever the device, or handed over as frames."""
        return Loader(
            self.read,
            self.scratch_bytes,
            read_into=self.read_into,
            padding=PADDING,
            read_frames=FrameReader(self._frame_chunks, self.read_frames, self.directory.fd).read,
            prefetch=self.prefetch,
        )

    @property
    def scratch_bytes(self) -> int:
        """Most bytes that a read holds beside the table: a chunk as it is on disk, and encoded values."""
        counts = self.facts.partition_rows, self.facts.partition_transitions, self.facts.partition_halo
        return scratch_bytes(self.fields, self.chunk_bytes, *counts)

    def pass_bytes(self, loads: FloatArray | None = None) -> int:
        """Lengths of the chunks of all partitions, each as often as it is loaded."""
        return int(self.chunk_bytes.sum() if loads is None else self.chunk_bytes @ loads)

    @cached_property
    def n_rows(self) -> int:
        """Number of (state, action) pairs."""
        return int(self.facts.partition_rows.sum())

    @cached_property
    def n_transitions(self) -> int:
        """Number of stored transitions."""
        return int(self.facts.partition_transitions.sum())

    @cached_property
    def annotations(self) -> Annotations:
        """Labels and reward models, and variables of states, of which the axes of a grid are some.

        Raises
        ------
        DamagedStoreError : they are not those that were written.
        """
        found = open_annotations(self.path, self.fingerprint, self.n_states, self.n_rows)
        return with_grid_variables(found, self.facts.attributes.get("geometry"), self.n_states)

    @property
    def uuid(self) -> str:
        """Identity of this writing of the store."""
        return str(self.facts.attributes["uuid"])

    @cached_property
    def _entries(self) -> dict[str, list[ChunkEntry]]:
        return self.manifest.columns(self.checks_sha256)

    @cached_property
    def _load_check(self) -> LoadCheck:
        return LoadCheck(self.facts)

    def sizes(self, p: int) -> PartitionSizes:
        """How many of everything partition p has."""
        return PartitionSizes(
            int(self.facts.partition_ptr[p + 1] - self.facts.partition_ptr[p]),
            int(self.facts.partition_rows[p]),
            int(self.facts.partition_transitions[p]),
            int(self.facts.partition_halo[p]),
        )

    def stored_values(self, name: str, p: int, sizes: PartitionSizes | None = None) -> int:
        """Number of values in the chunk of a field of partition p, without padding; its sizes, where they are known."""
        meta, sizes = self.fields[name], sizes or self.sizes(p)
        return stored_count(sizes.of(meta.field.length), meta.encoding, sizes)

    def chunk_name(self, name: str, p: int) -> str:
        """File of a field's chunk of partition p, from the store's directory on."""
        return chunk_name(name, self.stored_values(name, p), p)

    def load_code(self) -> None:
        """Load the loops that read and decode chunks, and those that compare a table with what the store says of it."""
        from ooc_mdp.store import chunk_reads

        chunk_reads.load_code()
        load_code(self.facts.stored_fields)
        self._load_check.load_code()

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table and the bytes read from disk for it.

        Raises
        ------
        StoreError : a chunk is missing or damaged, or is not what the small arrays say of it.
        """
        return self.read_into(p, SYSTEM_MEMORY)

    def read_into(
        self, p: int, memory: TableMemory, halo_memory: TableMemory | None = None
    ) -> tuple[PartitionTable, int]:
        """:meth:`read`, with arrays made in that memory; the halo in other memory, if that is given."""
        sizes, chunks, arrays = self.sizes(p), self._frame_chunks(p), dict[str, npt.NDArray[Any]]()
        with memory.scratch() as scratch:
            stored = self._read_chunks(p, chunks, memory, scratch)
            for name in READ_FIELDS:  # pointers first: they say where rows lie
                room = halo_memory if name == "halo" and halo_memory is not None else memory
                arrays[name] = self._decoded(name, p, stored.get(name), sizes, arrays, room)
        check_pointers(self.facts, sizes, p, arrays["action_ptr"], arrays["successor_ptr"])
        refuse_missing_states("successors", p, arrays["successors"], sizes.states + arrays["halo"].size)
        refuse_missing_states("halo", p, arrays["halo"], self.n_states)
        table = PartitionTable(
            index=p,
            first_state=int(self.facts.partition_ptr[p]),
            n_states=sizes.states,
            actions_per_state=self.facts.actions_per_state,
            successors_per_action=self.facts.successors_per_action,
            **arrays,
        )
        self._load_check.check(table)
        return table, sum(chunk.entry.n_bytes for chunk in chunks)

    def read_field(self, name: str, p: int) -> tuple[npt.NDArray[Any], int]:
        """One field of partition p and the bytes read; an empty array and 0 if the store lacks the field."""
        if name not in self.fields:
            return np.empty(0, _ABSENT_DTYPES[name]), 0
        sizes, n_bytes = self.sizes(p), self._entries[name][p].n_bytes
        count = self.stored_values(name, p, sizes)
        into = np.empty(_frame_bytes(count, self.fields[name].stored), np.uint8)
        stored = self._read_chunk(name, p, count, np.empty(n_bytes + 1, np.uint8), into)
        return self._decoded(name, p, stored, sizes, {}, SYSTEM_MEMORY), n_bytes

    def _read_chunks(
        self, p: int, chunks: Sequence[FrameChunk], memory: TableMemory, scratch: Scratch
    ) -> dict[str, npt.NDArray[Any]]:
        """The stored values of each field of a partition, read, checked and decompressed in one call.

        Chunks are read one by one where SHA-256 must be compared, too, where a library does not lead to its C function,
        and where a chunk is not what was written: that says what is wrong.
        """
        from ooc_mdp.store.chunk_reads import decompress_files

        entries = [chunk.entry for chunk in chunks]
        values = [self._room(chunk, memory, scratch) for chunk in chunks]
        buffer = scratch.buffer("chunk", max(entry.n_bytes for entry in entries) + 1)
        if self.checks_sha256 or not decompress_files(
            self.directory.fd, [chunk.path for chunk in chunks], entries, values, buffer
        ):
            for chunk, into in zip(chunks, values, strict=True):
                self._read_chunk(chunk.field.name, p, chunk.values, buffer, into)
        return {
            chunk.field.name: into.view(chunk.field.stored)[: chunk.values]
            for chunk, into in zip(chunks, values, strict=True)
        }

    def _room(self, chunk: FrameChunk, memory: TableMemory, scratch: Scratch) -> npt.NDArray[np.uint8]:
        """Memory for the stored values of a chunk: scratch where they are needed until they are decoded only, or else
        the table's."""
        meta, n_bytes = self.fields[chunk.field.name], _frame_bytes(chunk.values, chunk.field.stored)
        passing = meta.stored != meta.dtype or (meta.encoding is not None and meta.encoding not in IN_PLACE)
        return scratch.buffer(chunk.field.name, n_bytes) if passing else memory.empty(n_bytes, np.uint8)

    def _read_chunk(
        self, name: str, p: int, count: int, buffer: npt.NDArray[np.uint8], into: npt.NDArray[np.uint8]
    ) -> npt.NDArray[Any]:
        """The stored values of one chunk, so many; StoreError says what is wrong with it.

        Parameters
        ----------
        buffer : uint8; has a byte more than the chunk, and is overwritten.
        into : uint8; gets the values and their padding.
        """
        entry = self._entries[name][p]
        try:
            frame = read_frame_file(chunk_name(name, count, p), entry, buffer, self.directory.fd)
            return decode_frame(frame, self.fields[name].stored, count, lambda n_bytes: into[:n_bytes])
        except (CorruptChunkError, OSError) as error:
            raise unreadable_chunk(self.directory, chunk_name(name, count, p), name, p, error) from error

    def _decoded(
        self,
        name: str,
        p: int,
        stored: npt.NDArray[Any] | None,
        sizes: PartitionSizes,
        known: Mapping[str, npt.NDArray[Any]],
        memory: TableMemory,
    ) -> npt.NDArray[Any]:
        """A field's values from the stored ones; None where the store lacks it."""
        if stored is None:
            return np.empty(0, _ABSENT_DTYPES[name])
        meta = self.fields[name]
        if meta.encoding is None:
            return _of_type(stored, meta.dtype, memory)
        layout = self._row_layout(p, sizes, known)
        fault = layout.fault()
        if fault is not None:
            raise StoreError(f"field {name} of partition {p} cannot be decoded: {fault}; {REMEDY}")
        return decode(meta.encoding, stored, meta.dtype, layout, memory.empty)

    def read_frames(self, p: int, into: npt.NDArray[np.uint8] | memoryview) -> RawPartition:
        """Partition p's chunks, checked but not decompressed, in the caller's memory.

        Parameters
        ----------
        into : uint8 [frame_buffer_bytes] or more, page-locked for a copy to a device; fields begin at multiples of
            `frames.FRAME_ALIGNMENT` from its start.

        Raises
        ------
        StoreError : a chunk is missing or damaged.
        """
        buffer = into if isinstance(into, np.ndarray) else np.frombuffer(into, np.uint8)
        if buffer.size < self.facts.frame_buffer_bytes:
            raise ValueError(f"{buffer.size} bytes for frames of up to {self.facts.frame_buffer_bytes}")
        sizes, chunks = self.sizes(p), self._frame_chunks(p)
        fields = read_together(chunks, buffer, self.directory.fd) or self._read_frames(p, chunks, buffer)
        return RawPartition(
            index=p,
            first_state=int(self.facts.partition_ptr[p]),
            n_states=sizes.states,
            n_rows=sizes.rows,
            n_transitions=sizes.transitions,
            n_halo=sizes.halo,
            actions_per_state=self.facts.actions_per_state,
            successors_per_action=self.facts.successors_per_action,
            fields=tuple(fields),
            n_bytes=fields[-1].offset + fields[-1].n_bytes,
            read_bytes=sum(chunk.entry.n_bytes for chunk in chunks),
        )

    def _frame_chunks(self, p: int) -> list[FrameChunk]:
        """Partition p's chunks, in the order of the store's arrays."""
        sizes, chunks = self.sizes(p), list[FrameChunk]()
        for stored in self.facts.stored_fields:
            count = self.stored_values(stored.name, p, sizes)
            chunks.append(FrameChunk(chunk_name(stored.name, count, p), self._entries[stored.name][p], stored, count))
        return chunks

    def _read_frames(self, p: int, chunks: Sequence[FrameChunk], buffer: npt.NDArray[np.uint8]) -> list[RawField]:
        """A partition's chunks one after the other."""
        fields, end = list[RawField](), 0
        for chunk in chunks:
            try:
                fields.append(read_frame(chunk, buffer, aligned(end), self.directory.fd))
            except (CorruptChunkError, OSError) as error:
                raise unreadable_chunk(self.directory, chunk.path, chunk.field.name, p, error) from error
            end = fields[-1].offset + fields[-1].n_bytes
        return fields

    def prefetch(self, p: int) -> None:
        """Ask the system to read partition p's chunks ahead into its page cache; returns at once."""
        sizes = self.sizes(p)
        for stored in self.facts.stored_fields:
            prefetch_file(chunk_name(stored.name, self.stored_values(stored.name, p, sizes), p), self.directory.fd)

    def _row_layout(self, p: int, sizes: PartitionSizes, known: Mapping[str, npt.NDArray[Any]]) -> RowLayout:
        pointers = {
            name: known[name] if name in known else self.read_field(name, p)[0]
            for name in ("action_ptr", "successor_ptr")
        }
        facts = self.facts
        return RowLayout(sizes, facts.actions_per_state, facts.successors_per_action, **pointers)

    def original_states(self, p: int) -> IntArray:
        """int64 [n]; the source's numbers of partition p's states."""
        if self._grid is not None:
            return self._grid.states(p)
        if "original_state" in self.fields:
            states = self.read_field("original_state", p)[0]
            refuse_missing_states("original_state", p, states, self.n_states)
            return states
        return np.arange(self.facts.partition_ptr[p], self.facts.partition_ptr[p + 1], dtype=np.int64)

    def action_labels(self, p: int) -> IntArray | None:
        """int64 [m]; the source's numbers of partition p's actions; None if 0, 1, ... in each state."""
        return self.read_field("action_labels", p)[0] if "action_labels" in self.fields else None

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values given in the store's order of states, in the source's order; partition by partition.

        Returns `values` itself where both orders are the same.

        Raises
        ------
        StoreError : a state of the source is in two partitions.
        """
        if values.shape[0] != self.n_states:
            raise ValueError(f"{values.shape[0]} values for {self.n_states} states")
        if self._grid is not None:
            return self._grid.to_source(values)
        if "original_state" not in self.fields:
            return values
        out = np.empty_like(values)
        for own, states in source_states(self):
            out[states] = values[own]
        return out

    @cached_property
    def _grid(self) -> GridOrder | None:
        return self.facts.grid


_ABSENT_DTYPES = {
    "action_ptr": np.uint32,
    "successor_ptr": np.uint32,
    "durations": np.float64,
    "terminal_rewards": np.float64,
    "initial_values": np.float64,
}


def _frame_bytes(count: int, dtype: np.dtype[Any]) -> int:
    """Bytes of a decompressed frame of so many values, its padding included."""
    return padded_length(count) * dtype.itemsize


def _of_type(values: npt.NDArray[Any], dtype: np.dtype[Any], memory: TableMemory) -> npt.NDArray[Any]:
    if values.dtype == dtype:
        return values
    out = memory.empty(values.size, dtype)
    out[:] = values
    return out
