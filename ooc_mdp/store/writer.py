"""Writes the chunks and metadata of format 2 from partitions that come in any order, from many threads.

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

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.store.chunks import encode_chunk, is_intact, read_chunk, write_file
from ooc_mdp.store.encodings import InexactWeights, RowLayout, decode, encode, stored_count
from ooc_mdp.store.layout import FIELDS, Length, PartitionSizes, chunk_path, halo_dtype, successor_dtype
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
        self._exact_weights = exact_weights
        self._lock = threading.Lock()
        self._max_states = int(np.diff(partition_ptr).max())
        self._known_lengths = dict(lengths or {})
        self._most_rows = self._most_transitions = 0
        self._longest_row = 0
        self._float32_durations = True
        self._successors_dtype = np.dtype(np.uint8)
        self._max_actions = 0
        self._read_by_others = StateBits(self.n_states)
        n = self.n_partitions
        self._rows, self._transitions, self._halo = (np.zeros(n, np.int64) for _ in range(3))
        self._uniform_actions, self._uniform_successors = (np.zeros(n, np.int64) for _ in range(2))
        self._noted = np.zeros(n, np.bool_)
        self._max_successors = np.zeros(n, np.int64)
        self._notes: list[PartitionNote | None] = [None] * n
        self._written: dict[str, dict[int, _Chunk]] = {name: {} for name in FIELDS}

    def write_partition(self, p: int, part: PartitionArrays) -> None:
        """Write partition p's chunks as far as they can be known now; any thread, each p once."""
        note = PartitionNote.of(part)
        with self._lock:
            self._note(p, note, part.halo)
            dtype = self._successors_dtype
            lengths = {**self._lengths(), "halo": max(part.halo.size, 1)}
            durations_dtype = self._final_dtype("durations")
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
                encoding = self._encoding(name, note.actions > 0, note.successors > 0, durations_dtype)
                self._write_values(name, p, values, lengths[FIELDS[name].length], encoding, layout)

    def finish_partition(self, p: int) -> bool:
        """Bring partition p's chunks to the store's lengths and types, after the last write_partition.

        Returns whether any but the boundary, which is written each time, had to change.
        """
        lengths, encodings = self._final_lengths(), self._final_encodings()
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
            values = values.astype(self._final_dtype(name), copy=False)
            self._write_values(name, p, values, lengths[FIELDS[name].length], encodings.get(name), layout)
        return wrong != ["boundary"]

    def _is_final(self, name: str, p: int, lengths: Mapping[Length, int], encodings: Mapping[str, str]) -> bool:
        """Whether p's chunk of a field is as the store has it."""
        chunk = self._written[name].get(p)
        if chunk is None or name == "boundary":
            return False
        encoding = encodings.get(name)
        final = self._stored_dtype(name, encoding), lengths[FIELDS[name].length], encoding
        return (chunk.dtype, chunk.max_len, chunk.encoding) == final

    def _has_encoding(self, name: str, p: int) -> bool:
        return p in self._written[name] and self._written[name][p].encoding is not None

    def record(self, p: int) -> dict[str, Any]:
        """What :meth:`restore` needs of partition p, as plain values; its chunks are in place."""
        note = self._notes[p]
        if note is None:
            raise ValueError(f"partition {p} is not written")
        chunks = {
            name: [c.dtype.name, c.max_len, c.n_bytes, c.crc, c.encoding]
            for name in FIELDS
            if name != "boundary" and (c := self._written[name].get(p)) is not None
        }
        return {"note": note.to_json(), "chunks": chunks}

    def restore(self, p: int, record: Mapping[str, Any]) -> bool:
        """Take over partition p as another writer left it; False if a chunk is not as it was written then.

        Any thread, each p once, before any :meth:`write_partition`.
        """
        chunks = {name: _Chunk(np.dtype(dtype), *rest) for name, (dtype, *rest) in record["chunks"].items()}
        for name, chunk in chunks.items():
            if not is_intact(chunk_path(self.root, name, p, 0), chunk.n_bytes, chunk.crc):
                return False
        note = PartitionNote.from_json(record["note"])
        path, chunk = chunk_path(self.root, "halo", p, 0), chunks["halo"]
        halo = read_chunk(path, chunk.dtype, note.sizes.halo, chunk.max_len)[0]
        with self._lock:
            for name, chunk in chunks.items():
                self._written[name][p] = chunk
            self._note(p, note, halo.astype(np.int64))
        return True

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write small arrays and metadata; `attributes` are those that the writer does not know."""
        fields = self._final_fields()
        actions, successors = self._uniform()
        notes = [note for note in self._notes if note is not None]
        small: dict[str, Array] = {
            "partition_ptr": self.partition_ptr,
            "partition_rows": self._rows,
            "partition_transitions": self._transitions,
            "partition_halo": self._halo,
            "partition_bytes": self._partition_bytes(fields),
            "chunk_bytes": self._chunk_bytes(fields),
            "reward_range": np.array([note.reward_range for note in notes]),
            "duration_range": np.array([note.duration_range for note in notes]),
            "row_sum_range": np.array([note.row_sum_range for note in notes]),
            "max_successors": self._max_successors,
            "coupling_ptr": np.concatenate([[0], np.cumsum([note.coupling_mass.size for note in notes])]),
            "coupling_partitions": np.concatenate([note.coupling_partitions for note in notes]),
            "coupling_mass": np.concatenate([note.coupling_mass for note in notes]),
        }
        lengths = self._final_lengths()
        encodings = self._final_encodings()
        write_metadata(
            self.root,
            {name: (self._stored_dtype(name, encodings.get(name)), lengths[FIELDS[name].length]) for name in fields},
            small,
            {
                "n_states": self.n_states,
                "n_rows": int(self._rows.sum()),
                "n_transitions": int(self._transitions.sum()),
                "n_partitions": self.n_partitions,
                "n_couplings": int(small["coupling_partitions"].size),
                "dtype": self.dtype.name,
                "actions_per_state": actions,
                "successors_per_action": successors,
                "fields": fields,
                "encodings": {name: encoding for name, encoding in encodings.items() if name in fields},
                "fingerprint": self._fingerprint(fields, str(attributes["sense"])),
                **attributes,
            },
        )

    def _note(self, p: int, note: PartitionNote, halo: IntArray) -> None:
        """Count partition p, whose halo is given; with the lock held."""
        self._notes[p] = note
        sizes = note.sizes
        self._rows[p], self._transitions[p], self._halo[p] = sizes.rows, sizes.transitions, sizes.halo
        self._uniform_actions[p], self._uniform_successors[p] = note.actions, note.successors
        self._max_successors[p] = note.most_successors
        self._noted[p] = True
        self._max_actions = max(self._max_actions, note.most_actions)
        self._longest_row = max(self._longest_row, note.most_successors)
        self._most_rows = max(self._most_rows, sizes.rows)
        self._most_transitions = max(self._most_transitions, sizes.transitions)
        self._float32_durations &= note.float32_durations
        narrowest = successor_dtype(sizes.states + sizes.halo)
        self._successors_dtype = max(narrowest, self._successors_dtype, key=lambda t: t.itemsize)
        self._read_by_others.mark(halo)

    def _default(self, name: str, p: int) -> Array:
        sizes = self._sizes(p)
        match name:
            case "action_ptr":
                return np.arange(sizes.states + 1, dtype=np.uint32) * np.uint32(self._uniform_actions[p])
            case "successor_ptr":
                return np.arange(sizes.rows + 1, dtype=np.uint32) * np.uint32(self._uniform_successors[p])
            case "durations":
                return np.ones(sizes.rows)
            case "action_labels":
                if self._uniform_actions[p]:
                    return np.tile(np.arange(self._uniform_actions[p]), sizes.states)
                ptr = self._read_values("action_ptr", p).astype(np.int64)
                return np.arange(sizes.rows) - np.repeat(ptr[:-1], np.diff(ptr))
            case _:
                return np.zeros(sizes.of(FIELDS[name].length), self._final_dtype(name))

    def _uniform(self) -> tuple[int, int]:
        """Actions of every state and successors of every row so far, each 0 where they differ or there is none."""
        noted = self._uniform_actions[self._noted]
        actions = int(noted[0]) if noted.size and np.ptp(noted) == 0 else 0
        with_rows = self._uniform_successors[self._noted & (self._rows > 0)]
        successors = int(with_rows[0]) if with_rows.size and np.ptp(with_rows) == 0 else 0
        return actions, successors

    def _final_fields(self) -> list[str]:
        actions, successors = self._uniform()
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

    def _lengths(self) -> dict[Length, int]:
        """Padded lengths for the partitions so far; the order in which they came does not matter."""
        # Uniform partitions are at most as long as a full one; slack spares recoding where they differ.
        actions, successors = self._uniform()
        bounds = self._max_states * self._max_actions, self._max_states * self._max_actions * self._longest_row
        rows = _padded(self._most_rows, bounds[0], self._known_lengths.get("rows", 0), actions > 0)
        known = self._known_lengths.get("transitions", 0)
        transitions = _padded(self._most_transitions, bounds[1], known, actions > 0 and successors > 0)
        return {
            "states": self._max_states,
            "states+1": self._max_states + 1,
            "rows": max(rows, 1),
            "rows+1": rows + 1,
            "transitions": max(transitions, 1),
        }

    def _final_lengths(self) -> dict[Length, int]:
        return {**self._lengths(), "halo": max(int(self._halo.max()), 1)}

    def _encoding(self, name: str, uniform_actions: bool, uniform_successors: bool, durations: Dtype) -> str | None:
        """How a field is encoded whose rows are uniform or not, with durations of that type."""
        match name:
            case "successors":
                return "row-differences"
            case "probabilities" if self._exact_weights:
                return "weight-planes" if uniform_actions and uniform_successors else "weights"
            case "durations" if uniform_actions and durations == np.float32:
                return "bit-planes"
            case _:
                return None

    def _final_encodings(self) -> dict[str, str]:
        actions, successors = self._uniform()
        chosen = {n: self._encoding(n, actions > 0, successors > 0, self._final_dtype("durations")) for n in FIELDS}
        return {name: encoding for name, encoding in chosen.items() if encoding is not None}

    def _stored_dtype(self, name: str, encoding: str | None) -> Dtype:
        """Type of the chunks' values."""
        if encoding is None or name == "successors":
            return self._final_dtype(name)
        return np.dtype(FIELDS[name].encodings[encoding][0])

    def _final_dtype(self, name: str) -> Dtype:
        """Type of the values before they are encoded."""
        if name == "successors":
            return self._successors_dtype
        if name == "durations":
            return np.dtype(np.float32 if self._float32_durations else np.float64)
        if name in ("probabilities", "rewards"):
            return self.dtype
        if name == "halo":
            return halo_dtype(self.n_states)
        return np.dtype(FIELDS[name].dtypes[0])

    def _sizes(self, p: int) -> PartitionSizes:
        states = int(self.partition_ptr[p + 1] - self.partition_ptr[p])
        return PartitionSizes(states, int(self._rows[p]), int(self._transitions[p]), int(self._halo[p]))

    def _partition_bytes(self, fields: list[str]) -> IntArray:
        total = np.zeros(self.n_partitions, np.int64)
        for name in fields:
            if FIELDS[name].read:
                itemsize = 8 if name in ("halo", "durations") else self._final_dtype(name).itemsize
                counts = [self._sizes(p).of(FIELDS[name].length) for p in range(self.n_partitions)]
                total += np.asarray(counts, np.int64) * itemsize
        return total

    def _chunk_bytes(self, fields: list[str]) -> IntArray:
        read = [name for name in fields if FIELDS[name].read]
        return np.array([sum(self._written[n][p].n_bytes for n in read) for p in range(self.n_partitions)], np.int64)

    def _fingerprint(self, fields: list[str], sense: str) -> str:
        digest = hashlib.blake2b(f"{sense} {self.dtype.name}".encode(), digest_size=16)
        digest.update(self.partition_ptr.astype("<i8").tobytes())
        for name in fields:
            crcs = [self._written[name][p].crc for p in range(self.n_partitions)]
            digest.update(name.encode() + np.array(crcs, "<u4").tobytes())
        return digest.hexdigest()

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
        frame, crc = encode_chunk(FIELDS[name], values, max_len)
        path = chunk_path(self.root, name, p, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        n_bytes = write_file(path, frame, crc.to_bytes(4, "little"))
        self._written[name][p] = _Chunk(values.dtype, max_len, n_bytes, crc, encoding)

    def _read_values(self, name: str, p: int, layout: RowLayout | None = None) -> Array:
        """What was given to :meth:`_write_values`, as it was written last."""
        chunk, sizes = self._written[name][p], self._sizes(p)
        count = stored_count(sizes.of(FIELDS[name].length), chunk.encoding, sizes)
        values = read_chunk(chunk_path(self.root, name, p, 0), chunk.dtype, count, chunk.max_len)[0]
        if chunk.encoding is None or layout is None:
            return values
        dtype = chunk.dtype if name == "successors" else self._final_dtype(name)
        return decode(chunk.encoding, values, dtype, layout)

    def _row_layout(self, p: int) -> RowLayout:
        """Where p's rows lie, of which its own chunks say what is not uniform in p itself."""
        actions, width = int(self._uniform_actions[p]), int(self._uniform_successors[p])
        pointers = {}
        if not actions:
            pointers["action_ptr"] = self._read_values("action_ptr", p)
        if not width:
            has_rows = p in self._written["successor_ptr"]
            pointers["successor_ptr"] = self._read_values("successor_ptr", p) if has_rows else np.zeros(1, np.uint32)
        return RowLayout(self._sizes(p), actions, width, **pointers)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What was written to a chunk file."""

    dtype: Dtype
    max_len: int
    n_bytes: int
    crc: int
    encoding: str | None


def _padded(longest: int, bound: int, known: int, full: bool) -> int:
    """A length of at least `longest`: the known one where that is enough, else the bound, or a quarter of slack."""
    if longest <= known:
        return known
    if full:
        return bound
    padded = 1
    while padded < longest:  # 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, ...: lengths that differ a little share one
        padded += max(padded // 4, 1)
    return min(padded, bound) if longest else 0
