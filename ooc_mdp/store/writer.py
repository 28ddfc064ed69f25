"""Writes the chunks and metadata of format 3 from partitions that come in any order, from many threads.

What the whole store needs but only the last partition settles (padded lengths, the types of successors and durations,
whether every state has the same number of actions, and with it how values are encoded, which optional fields exist,
who is in whose halo) is guessed from the partitions so far. A second round recodes the chunks that guessed wrong, adds
those left out and those that wait:

    write_partition(p)     fields as p alone needs them, at the largest length and type known so far
    finish_partition(p)    recode or add what differs from the store's; halo (exact length) and boundary
    finish(...)            small arrays, zarr.json

In RAM: a few numbers a partition and field, the coupling entries, and one bit a state for the boundary.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.store.agreement import Agreement
from ooc_mdp.store.blosc_frame import decode_frame, encode_frame
from ooc_mdp.store.chunk_file import ChunkEntry, CorruptChunkError, allocate, is_intact, read_frame_file, write_chunk
from ooc_mdp.store.encodings import InexactWeights, RowLayout, decode, encode, stored_count
from ooc_mdp.store.layout import FIELDS, Length, chunk_path, halo_dtype
from ooc_mdp.store.manifest import manifest_arrays
from ooc_mdp.store.partition_note import PartitionNote
from ooc_mdp.store.state_bits import StateBits
from ooc_mdp.store.zarr_metadata import write_metadata

__all__ = ["PartitionArrays", "StoreWriter"]

Array = npt.NDArray[Any]
Dtype = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class PartitionArrays:
    """One partition as the writer takes it: n states, m rows, nnz transitions, h halo states."""

    action_ptr: IntArray
    """int64 [n+1]."""
    successor_ptr: IntArray
    """int64 [m+1]."""
    successors: npt.NDArray[np.unsignedinteger[Any]]
    """unsigned [nnz], local, in the narrowest type for n + h."""
    probabilities: npt.NDArray[np.floating[Any]]
    """float32 or float64 [nnz]."""
    rewards: npt.NDArray[np.floating[Any]]
    """float32 or float64 [m]."""
    halo: IntArray
    """int64 [h], ascending new states outside the partition."""
    coupling_partitions: IntArray
    """int64, ascending; the partitions that rows lead to, this one included."""
    coupling_mass: FloatArray
    """float64; largest mass of one row into each, rounded up."""
    row_sum_range: tuple[float, float]
    """Least and largest float64 sum of a row's stored probabilities."""
    terminal_rewards: FloatArray | None = None
    """float64 [n]; None if all are 0."""
    durations: FloatArray | None = None
    """float64 [m]; None if all are 1."""
    initial_values: FloatArray | None = None
    """float64 [n]; None if all are 0."""
    action_labels: IntArray | None = None
    """int64 [m]; None if 0, 1, ... in each state."""
    original_state: IntArray | None = None
    """int64 [n]; None where the numbering can be computed."""


class StoreWriter:
    """One store in the making.

    Parameters
    ----------
    root : an empty directory (see `ooc_mdp.store.transaction`).
    partition_ptr : int64 [P+1].
    dtype : type of probabilities and rewards.
    lengths : padded lengths of rows and transitions where they are known beforehand.
    exact_weights : whether all probabilities are multiples of 2**-24, and each row sums to 1 exactly.
    """

    def __init__(
        self,
        root: Path,
        partition_ptr: IntArray,
        dtype: Dtype,
        lengths: Mapping[Length, int] | None = None,
        exact_weights: bool = False,
    ) -> None:
        self.root = root
        self.partition_ptr = partition_ptr
        self.n_states = int(partition_ptr[-1])
        self.n_partitions = partition_ptr.size - 1
        self.dtype = dtype
        self._lock = threading.Lock()
        self._agreed = Agreement(partition_ptr, dtype, lengths or {}, exact_weights)
        self._read_by_others = StateBits(self.n_states)
        self._notes: list[PartitionNote | None] = [None] * self.n_partitions
        self._written: dict[str, dict[int, _Chunk]] = {name: {} for name in FIELDS}

    def write_partition(self, p: int, part: PartitionArrays) -> None:
        """Write partition p's chunks as far as they can be known now; any thread, each p once."""
        note = PartitionNote.of(part)
        with self._lock:
            self._note(p, note, part.halo)
            dtype = self._agreed.dtype_of("successors")
            lengths = {**self._agreed.lengths(), "halo": max(part.halo.size, 1)}
            durations_dtype = self._agreed.dtype_of("durations")
        arrays: dict[str, Array | None] = {
            "action_ptr": None if note.actions else part.action_ptr.astype(np.uint32),
            "successor_ptr": None if note.successors else part.successor_ptr.astype(np.uint32),
            "successors": part.successors.astype(dtype, copy=False),
            "probabilities": part.probabilities,
            "rewards": part.rewards,
            "durations": None if part.durations is None else part.durations.astype(durations_dtype, copy=False),
            "terminal_rewards": part.terminal_rewards,
            "initial_values": part.initial_values,
            "action_labels": part.action_labels,
            "original_state": part.original_state,
            "halo": part.halo.astype(halo_dtype(self.n_states)),
        }
        pointers = {n: a for n in ("action_ptr", "successor_ptr") if (a := arrays[n]) is not None}
        layout = RowLayout(note.sizes, note.actions, note.successors, **pointers)
        if not note.sizes.rows:
            arrays["successor_ptr"] = None
        for name, values in arrays.items():
            if values is not None:
                encoding = self._agreed.encoding_of(name, note.actions > 0, note.successors > 0, durations_dtype)
                self._write_values(name, p, values, lengths[FIELDS[name].length], encoding, layout)

    def finish_partition(self, p: int) -> bool:
        """Bring partition p's chunks to the store's lengths and types, after the last write_partition.

        Returns whether any but the boundary, which is written each time, had to change.
        """
        lengths, encodings = self._agreed.final_lengths(), self._agreed.encodings()
        wrong = [name for name in self._final_fields() if not self._is_final(name, p, lengths, encodings)]
        encoded = any(name in encodings or self._has_encoding(name, p) for name in wrong)
        layout = self._row_layout(p) if encoded else None
        for name in wrong:
            if name == "boundary":
                values: Array = self._read_by_others.slice(*self.partition_ptr[p : p + 2].tolist())
            elif p in self._written[name]:
                values = self._read_values(name, p, layout)
            else:
                values = self._default(name, p)
            values = values.astype(self._agreed.dtype_of(name), copy=False)
            self._write_values(name, p, values, lengths[FIELDS[name].length], encodings.get(name), layout)
        return wrong != ["boundary"]

    def _is_final(self, name: str, p: int, lengths: Mapping[Length, int], encodings: Mapping[str, str]) -> bool:
        """Whether p's chunk of a field is as the store has it."""
        chunk = self._written[name].get(p)
        if chunk is None or name == "boundary":
            return False
        encoding = encodings.get(name)
        final = self._agreed.stored_dtype(name, encoding), lengths[FIELDS[name].length], encoding
        return (chunk.dtype, chunk.max_len, chunk.encoding) == final

    def _has_encoding(self, name: str, p: int) -> bool:
        return p in self._written[name] and self._written[name][p].encoding is not None

    def record(self, p: int) -> dict[str, Any]:
        """What :meth:`restore` needs of partition p, as plain values; its chunks are in place."""
        note = self._notes[p]
        if note is None:
            raise ValueError(f"partition {p} is not written")
        chunks = {
            name: [c.dtype.name, c.max_len, c.encoding, c.entry.n_bytes, c.entry.crc32c, (c.entry.sha256 or b"").hex()]
            for name in FIELDS
            if name != "boundary" and (c := self._written[name].get(p)) is not None
        }
        return {"note": note.to_json(), "chunks": chunks}

    def restore(self, p: int, record: Mapping[str, Any]) -> bool:
        """Take over partition p as another writer left it; False if a chunk is not as it was written then.

        Any thread, each p once, before any :meth:`write_partition`.
        """
        chunks = {
            name: _Chunk(np.dtype(dtype), max_len, encoding, ChunkEntry(n_bytes, crc, bytes.fromhex(digest)))
            for name, (dtype, max_len, encoding, n_bytes, crc, digest) in record["chunks"].items()
        }
        if not all(is_intact(chunk_path(self.root, name, p, 0), chunk.entry) for name, chunk in chunks.items()):
            return False
        note = PartitionNote.from_json(record["note"])
        halo = self._read_chunk("halo", p, chunks["halo"], note.sizes.halo)
        with self._lock:
            for name, chunk in chunks.items():
                self._written[name][p] = chunk
            self._note(p, note, halo.astype(np.int64))
        return True

    def finish(self, sense: str, state_order: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Write small arrays and metadata, the manifest among them.

        Parameters
        ----------
        about : the attributes that say where the table comes from.
        """
        fields = self._final_fields()
        actions, successors = self._agreed.uniform()
        notes = [note for note in self._notes if note is not None]
        small: dict[str, Array] = {
            "partition_ptr": self.partition_ptr,
            "partition_rows": self._agreed.rows,
            "partition_transitions": self._agreed.transitions,
            "partition_halo": self._agreed.halo,
            "partition_bytes": self._partition_bytes(fields),
            "chunk_bytes": self._chunk_bytes(fields),
            **manifest_arrays([[self._written[n][p].entry for n in fields] for p in range(self.n_partitions)]),
            "reward_range": np.array([note.reward_range for note in notes]),
            "duration_range": np.array([note.duration_range for note in notes]),
            "row_sum_range": np.array([note.row_sum_range for note in notes]),
            "max_successors": self._agreed.max_successors,
            "coupling_ptr": np.concatenate([[0], np.cumsum([note.coupling_mass.size for note in notes])]),
            "coupling_partitions": np.concatenate([note.coupling_partitions for note in notes]),
            "coupling_mass": np.concatenate([note.coupling_mass for note in notes]),
        }
        lengths = self._agreed.final_lengths()
        encodings = self._agreed.encodings()
        stored = {
            n: (self._agreed.stored_dtype(n, encodings.get(n)), lengths[FIELDS[n].length], encodings.get(n))
            for n in fields
        }
        sizes = {
            "n_states": self.n_states,
            "n_rows": int(self._agreed.rows.sum()),
            "n_transitions": int(self._agreed.transitions.sum()),
            "n_partitions": self.n_partitions,
            "n_couplings": int(small["coupling_partitions"].size),
            "sense": sense,
            "dtype": self.dtype.name,
            "actions_per_state": actions,
            "successors_per_action": successors,
            "state_order": dict(state_order),
        }
        write_metadata(self.root, stored, small, sizes, about)

    def _note(self, p: int, note: PartitionNote, halo: IntArray) -> None:
        """Count partition p, whose halo is given; with the lock held."""
        self._notes[p] = note
        self._agreed.note(p, note)
        self._read_by_others.mark(halo)

    def _default(self, name: str, p: int) -> Array:
        sizes = self._agreed.sizes(p)
        match name:
            case "action_ptr":
                return np.arange(sizes.states + 1, dtype=np.uint32) * np.uint32(self._agreed.actions[p])
            case "successor_ptr":
                return np.arange(sizes.rows + 1, dtype=np.uint32) * np.uint32(self._agreed.successors[p])
            case "durations":
                return np.ones(sizes.rows)
            case "action_labels":
                if self._agreed.actions[p]:
                    return np.tile(np.arange(self._agreed.actions[p]), sizes.states)
                ptr = self._read_values("action_ptr", p).astype(np.int64)
                return np.arange(sizes.rows) - np.repeat(ptr[:-1], np.diff(ptr))
            case _:
                return np.zeros(sizes.of(FIELDS[name].length), self._agreed.dtype_of(name))

    def _final_fields(self) -> list[str]:
        actions, successors = self._agreed.uniform()
        fields = []
        for name, field in FIELDS.items():
            if name == "action_ptr":
                present = not actions
            elif name == "successor_ptr":
                present = not successors
            else:
                present = not field.optional or bool(self._written[name])
            if present:
                fields.append(name)
        return fields

    def _partition_bytes(self, fields: list[str]) -> IntArray:
        total = np.zeros(self.n_partitions, np.int64)
        for name in fields:
            if FIELDS[name].read:
                itemsize = 8 if name in ("halo", "durations") else self._agreed.dtype_of(name).itemsize
                counts = [self._agreed.sizes(p).of(FIELDS[name].length) for p in range(self.n_partitions)]
                total += np.asarray(counts, np.int64) * itemsize
        return total

    def _chunk_bytes(self, fields: list[str]) -> IntArray:
        read = [name for name in fields if FIELDS[name].read]
        return np.array(
            [sum(self._written[n][p].entry.n_bytes for n in read) for p in range(self.n_partitions)], np.int64
        )

    def _write_values(
        self, name: str, p: int, values: Array, max_len: int, encoding: str | None, layout: RowLayout | None
    ) -> None:
        """Write a chunk of values in the table's type, encoded where a layout is given and needed."""
        if encoding is not None and layout is not None:
            try:
                values = encode(encoding, values, layout)
            except InexactWeights as error:
                raise StoreError(
                    f"local row {error.row} of partition {p} is not made of multiples of 2**-24 that sum to 1, "
                    f"although its problem says that all are (exact_weights)"
                ) from error
        frame = encode_frame(FIELDS[name], values, max_len, encoding)
        entry = write_chunk(chunk_path(self.root, name, p, 0), frame)
        self._written[name][p] = _Chunk(values.dtype, max_len, encoding, entry)

    def _read_values(self, name: str, p: int, layout: RowLayout | None = None) -> Array:
        """What was given to :meth:`_write_values`, as it was written last."""
        chunk, sizes = self._written[name][p], self._agreed.sizes(p)
        count = stored_count(sizes.of(FIELDS[name].length), chunk.encoding, sizes)
        values = self._read_chunk(name, p, chunk, count)
        if chunk.encoding is None or layout is None:
            return values
        dtype = chunk.dtype if name == "successors" else self._agreed.dtype_of(name)
        return decode(chunk.encoding, values, dtype, layout)

    def _read_chunk(self, name: str, p: int, chunk: _Chunk, count: int) -> Array:
        """The first `count` values of a chunk; StoreError where it is not what was written."""
        path = chunk_path(self.root, name, p, 0)
        try:
            frame = read_frame_file(path, chunk.entry, allocate(chunk.entry.n_bytes + 1))
            return decode_frame(frame, chunk.dtype, count, chunk.max_len)
        except CorruptChunkError as error:
            raise StoreError(f"{path} is not what was written a moment ago: {error}; look at the disk") from error

    def _row_layout(self, p: int) -> RowLayout:
        """Where p's rows lie, of which its own chunks say what is not uniform in p itself."""
        actions, width = int(self._agreed.actions[p]), int(self._agreed.successors[p])
        pointers = {}
        if not actions:
            pointers["action_ptr"] = self._read_values("action_ptr", p)
        if not width:
            has_rows = p in self._written["successor_ptr"]
            pointers["successor_ptr"] = self._read_values("successor_ptr", p) if has_rows else np.zeros(1, np.uint32)
        return RowLayout(self._agreed.sizes(p), actions, width, **pointers)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What was written to a chunk file."""

    dtype: Dtype
    max_len: int
    encoding: str | None
    entry: ChunkEntry
