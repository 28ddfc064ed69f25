"""Writes the chunks and metadata of format 1 from partitions that come in any order, from many threads.

What the whole store needs but only the last partition settles (padded lengths, the type of successors,
whether every state has the same number of actions, which optional fields exist, who is in whose halo) is
guessed from the partitions so far. A second round recodes the chunks that guessed wrong, adds those left out
and those that wait:

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

from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.store.chunks import encode_chunk, read_chunk, write_file
from ooc_mdp.store.layout import FIELDS, Length, PartitionSizes, chunk_path, halo_dtype
from ooc_mdp.store.state_bits import StateBits
from ooc_mdp.store.zarr_metadata import write_metadata

__all__ = ["PartitionArrays", "StoreWriter"]

Array = npt.NDArray[Any]


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
    """

    def __init__(
        self,
        root: Path,
        partition_ptr: IntArray,
        dtype: np.dtype[Any],
        lengths: Mapping[Length, int] | None = None,
    ) -> None:
        self.root = root
        self.partition_ptr = partition_ptr
        self.n_states = int(partition_ptr[-1])
        self.n_partitions = partition_ptr.size - 1
        self.dtype = dtype
        self._lock = threading.Lock()
        self._max_states = int(np.diff(partition_ptr).max())
        known = dict(lengths or {})
        self._rows_len = known.get("rows", 0)
        self._transitions_len = known.get("transitions", 0)
        self._successors_dtype = np.dtype(np.uint8)
        self._max_actions = 0
        self._read_by_others = StateBits(self.n_states)
        n = self.n_partitions
        self._rows, self._transitions, self._halo = (np.zeros(n, np.int64) for _ in range(3))
        self._uniform_actions, self._uniform_successors = (np.zeros(n, np.int64) for _ in range(2))
        self._reward_range = np.zeros((n, 2))
        self._duration_range = np.ones((n, 2))
        self._row_sum_range = np.ones((n, 2))
        self._max_successors = np.zeros(n, np.int64)
        self._coupling: list[tuple[IntArray, FloatArray] | None] = [None] * n
        self._written: dict[str, dict[int, _Chunk]] = {name: {} for name in FIELDS}

    def write_partition(self, p: int, part: PartitionArrays) -> None:
        """Write partition p's chunks as far as they can be known now; any thread, each p once."""
        sizes = PartitionSizes(
            part.action_ptr.size - 1, part.successor_ptr.size - 1, part.successors.size, part.halo.size
        )
        actions, counts = np.diff(part.action_ptr), np.diff(part.successor_ptr)
        with self._lock:
            self._note_sizes(p, sizes, actions, counts)
            self._read_by_others.mark(part.halo)
            dtype = max(part.successors.dtype, self._successors_dtype, key=lambda t: t.itemsize)
            self._successors_dtype = dtype
            rows_len, transitions_len = self._rows_len, self._transitions_len
        self._note_ranges(p, part)
        lengths: dict[Length, int] = {
            "states": self._max_states,
            "states+1": self._max_states + 1,
            "rows": rows_len,
            "rows+1": rows_len + 1,
            "transitions": transitions_len,
            "halo": max(part.halo.size, 1),
        }
        arrays: dict[str, Array | None] = {
            "successors": part.successors.astype(dtype, copy=False),
            "probabilities": part.probabilities,
            "rewards": part.rewards,
            "durations": part.durations,
            "terminal_rewards": part.terminal_rewards,
            "initial_values": part.initial_values,
            "action_labels": part.action_labels,
            "original_state": part.original_state,
            "halo": part.halo.astype(halo_dtype(self.n_states)),
        }
        if not self._uniform_actions[p]:
            arrays["action_ptr"] = part.action_ptr.astype(np.uint32)
        if sizes.rows and not self._uniform_successors[p]:
            arrays["successor_ptr"] = part.successor_ptr.astype(np.uint32)
        for name, values in arrays.items():
            if values is not None:
                self._write_chunk(name, p, values, max(lengths[FIELDS[name].length], 1))

    def finish_partition(self, p: int) -> None:
        """Bring partition p's chunks to the store's lengths and types, after the last write_partition."""
        lengths = self._final_lengths()
        sizes = self._sizes(p)
        for name in self._final_fields():
            field = FIELDS[name]
            dtype = self._final_dtype(name)
            max_len = lengths[field.length]
            chunk = self._written[name].get(p)
            if name == "boundary":
                boundary = self._read_by_others.slice(*self.partition_ptr[p : p + 2].tolist())
                self._write_chunk(name, p, boundary, max_len)
            elif chunk is None:
                self._write_chunk(name, p, self._default(name, p), max_len)
            elif (chunk.dtype, chunk.max_len) != (dtype, max_len):
                values = self._read_chunk(name, p, sizes.of(field.length))
                self._write_chunk(name, p, values.astype(dtype, copy=False), max_len)

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write small arrays and metadata; `attributes` are those that the writer does not know."""
        fields = self._final_fields()
        actions, successors = self._uniform()
        coupling = [c for c in self._coupling if c is not None]
        small: dict[str, Array] = {
            "partition_ptr": self.partition_ptr,
            "partition_rows": self._rows,
            "partition_transitions": self._transitions,
            "partition_halo": self._halo,
            "partition_bytes": self._partition_bytes(fields),
            "chunk_bytes": self._chunk_bytes(fields),
            "reward_range": self._reward_range,
            "duration_range": self._duration_range,
            "row_sum_range": self._row_sum_range,
            "max_successors": self._max_successors,
            "coupling_ptr": np.concatenate([[0], np.cumsum([c[0].size for c in coupling])]),
            "coupling_partitions": np.concatenate([c[0] for c in coupling]),
            "coupling_mass": np.concatenate([c[1] for c in coupling]),
        }
        lengths = self._final_lengths()
        write_metadata(
            self.root,
            {name: (self._final_dtype(name), lengths[FIELDS[name].length]) for name in fields},
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
                "fingerprint": self._fingerprint(fields, str(attributes["sense"])),
                **attributes,
            },
        )

    def _note_sizes(self, p: int, sizes: PartitionSizes, actions: IntArray, counts: IntArray) -> None:
        self._rows[p], self._transitions[p], self._halo[p] = sizes.rows, sizes.transitions, sizes.halo
        most_actions, most_successors = int(actions.max()), int(counts.max(initial=0))
        self._uniform_actions[p] = most_actions if actions.min() == most_actions else 0
        self._uniform_successors[p] = most_successors if counts.min(initial=most_successors) == most_successors else 0
        self._max_successors[p] = most_successors
        self._max_actions = max(self._max_actions, most_actions)
        # A quarter of slack spares recoding where partitions differ; a full one of like states needs none.
        rows_bound = self._max_states * self._max_actions
        if sizes.rows > self._rows_len:
            self._rows_len = min(rows_bound, sizes.rows + sizes.rows // 4)
        if sizes.transitions > self._transitions_len:
            bound = rows_bound * int(self._max_successors.max())
            self._transitions_len = min(bound, sizes.transitions + sizes.transitions // 4)

    def _note_ranges(self, p: int, part: PartitionArrays) -> None:
        terminal = np.diff(part.action_ptr) == 0
        paid = np.zeros(int(terminal.sum())) if part.terminal_rewards is None else part.terminal_rewards[terminal]
        rewards = [a for a in (part.rewards, paid) if a.size]
        self._reward_range[p] = min(a.min() for a in rewards), max(a.max() for a in rewards)
        if part.durations is not None and part.durations.size:
            self._duration_range[p] = part.durations.min(), part.durations.max()
        self._row_sum_range[p] = part.row_sum_range
        self._coupling[p] = part.coupling_partitions, part.coupling_mass

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
                ptr = self._read_chunk("action_ptr", p, sizes.states + 1).astype(np.int64)
                return np.arange(sizes.rows) - np.repeat(ptr[:-1], np.diff(ptr))
            case _:
                return np.zeros(sizes.of(FIELDS[name].length), self._final_dtype(name))

    def _uniform(self) -> tuple[int, int]:
        """Actions of every state and successors of every row, each 0 where they differ or there is none."""
        actions = int(self._uniform_actions[0]) if np.ptp(self._uniform_actions) == 0 else 0
        with_rows = self._uniform_successors[self._rows > 0]
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

    def _final_lengths(self) -> dict[Length, int]:
        return {
            "states": self._max_states,
            "states+1": self._max_states + 1,
            "rows": max(self._rows_len, 1),
            "rows+1": self._rows_len + 1,
            "transitions": max(self._transitions_len, 1),
            "halo": max(int(self._halo.max()), 1),
        }

    def _final_dtype(self, name: str) -> np.dtype[Any]:
        if name == "successors":
            return self._successors_dtype
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
                itemsize = 8 if name == "halo" else self._final_dtype(name).itemsize
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

    def _write_chunk(self, name: str, p: int, values: Array, max_len: int) -> None:
        frame, crc = encode_chunk(FIELDS[name], values, max_len)
        path = chunk_path(self.root, name, p, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        n_bytes = write_file(path, frame, crc.to_bytes(4, "little"))
        self._written[name][p] = _Chunk(values.dtype, max_len, n_bytes, crc)

    def _read_chunk(self, name: str, p: int, count: int) -> Array:
        chunk = self._written[name][p]
        return read_chunk(chunk_path(self.root, name, p, 0), chunk.dtype, count, chunk.max_len)[0]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What was written to a chunk file."""

    dtype: np.dtype[Any]
    max_len: int
    n_bytes: int
    crc: int
