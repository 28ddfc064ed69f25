"""What format 3 is: names, lengths, types and codecs of the arrays in a store. Nothing here reads or writes.

A store is a Zarr v3 group. A *field* has shape (P, max_len) and chunks (1, max_len): row p is partition p,
padded with zeros. A *small array* holds a few numbers a partition in a single chunk. ``docs/reference/store-format.md``
is the table for readers of stores; this module is the one for the code.

    successors    c/0/0   [ nnz(0) values | zeros up to max_len ]      codecs: bytes, blosc, crc32c
                  c/1/0   [ nnz(1) values | zeros up to max_len ]
    partition_ptr c/0     [ P + 1 values ]                             codecs: bytes, crc32c
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

__all__ = [
    "FIELDS",
    "FORMAT",
    "FORMAT_VERSION",
    "GROUP_FILE",
    "JOURNAL_FILE",
    "READ_FIELDS",
    "SMALL_ARRAYS",
    "VIRTUAL_FORMAT",
    "Codec",
    "Field",
    "Length",
    "PartitionSizes",
    "chunk_name",
    "chunk_path",
    "halo_dtype",
    "small_array_shape",
    "successor_dtype",
]

FORMAT = "ooc-mdp"
FORMAT_VERSION = 3
VIRTUAL_FORMAT = "ooc-mdp-virtual"
"""Format of a virtual store, whose tables are computed on demand."""
GROUP_FILE = "zarr.json"
JOURNAL_FILE = ".journal"

Length = Literal["states", "states+1", "rows", "rows+1", "transitions", "halo"]


@dataclass(frozen=True, slots=True)
class PartitionSizes:
    """How many of everything one partition has."""

    states: int
    rows: int
    transitions: int
    halo: int

    def of(self, length: Length) -> int:
        """Number of values that a field of this length holds for the partition."""
        match length:
            case "states":
                return self.states
            case "states+1":
                return self.states + 1
            case "rows":
                return self.rows
            case "rows+1":
                return self.rows + 1
            case "transitions":
                return self.transitions
            case "halo":
                return self.halo


@dataclass(frozen=True, slots=True)
class Codec:
    """What the writer has blosc do (the reader takes any)."""

    cname: Literal["lz4", "lz4hc", "zstd"]
    clevel: int
    shuffle: Literal["noshuffle", "shuffle", "bitshuffle"]


_FAST = Codec("lz4", 5, "shuffle")
_LARGE = Codec("lz4", 9, "shuffle")
_STEPS = Codec("lz4", 9, "noshuffle")
_PLANES = Codec("lz4hc", 5, "shuffle")


@dataclass(frozen=True, slots=True)
class Field:
    """One array with a chunk for each partition."""

    name: str
    length: Length
    """What its values belong to."""
    dtypes: tuple[str, ...]
    """Types that the format allows where values are stored as they are."""
    plain: Codec
    """For values that are stored as they are."""
    optional: bool = False
    """Whether a store may lack it."""
    read: bool = True
    """Whether it is part of the partition's table."""
    encodings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other forms in which its values may be stored (`ooc_mdp.store.encodings`), and the types of each."""
    encoded: Codec = _PLANES
    """For values in any of those."""

    def codec(self, encoding: str | None) -> Codec:
        """What compresses values in that form."""
        return self.plain if encoding is None else self.encoded


# Measured: docs/decisions/store-encodings.md. LZ4 is what a GPU decompresses here; with byte shuffle it
# decodes fast enough on a CPU to keep up with a fast disk, and level 9 (larger blocks) saves 3 to 12 % of the fields.
# Differences of successors are small numbers, of which shuffling makes long runs of one byte, the slowest of matches.
# Planes of weights and durations are worth searching for longer matches (lz4hc): it is done once, and saves a third.
_INDICES = ("uint8", "uint16", "uint32")
_WEIGHTS = {"fixed24": ("uint32",), "fixed24-delta2": ("uint32",)}
FIELDS: dict[str, Field] = {
    f.name: f
    for f in (
        Field("action_ptr", "states+1", ("uint32",), _FAST, optional=True),
        Field("successor_ptr", "rows+1", ("uint32",), _FAST, optional=True),
        Field("successors", "transitions", _INDICES, _LARGE, encodings={"row-delta": _INDICES}, encoded=_STEPS),
        Field("probabilities", "transitions", ("float32", "float64"), _LARGE, encodings=_WEIGHTS),
        Field("rewards", "rows", ("float32", "float64"), _FAST),
        Field(
            "durations",
            "rows",
            ("float64", "float32"),
            _LARGE,
            optional=True,
            encodings={"float32-delta2": ("uint32",)},
        ),
        Field("terminal_rewards", "states", ("float64",), _FAST, optional=True),
        Field("initial_values", "states", ("float64",), _FAST, optional=True),
        Field("halo", "halo", ("uint32", "int64"), _FAST),
        Field("boundary", "states", ("bool",), _FAST),
        Field("original_state", "states", ("int64",), _FAST, optional=True, read=False),
        Field("action_labels", "rows", ("int64",), _FAST, optional=True, read=False),
    )
}

READ_FIELDS = tuple(f.name for f in FIELDS.values() if f.read)
"""Fields of a PartitionTable, in the order of its arrays."""

SMALL_ARRAYS: dict[str, tuple[str, str]] = {
    "partition_ptr": ("int64", "P+1"),
    "partition_rows": ("int64", "P"),
    "partition_transitions": ("int64", "P"),
    "partition_halo": ("int64", "P"),
    "partition_bytes": ("int64", "P"),
    "chunk_bytes": ("int64", "P"),
    "reward_range": ("float64", "Px2"),
    "duration_range": ("float64", "Px2"),
    "row_sum_range": ("float64", "Px2"),
    "max_successors": ("int64", "P"),
    "coupling_ptr": ("int64", "P+1"),
    "coupling_partitions": ("int64", "entries"),
    "coupling_mass": ("float64", "entries"),
    "chunk_lengths": ("int64", "PxF"),
    "chunk_crc32c": ("uint32", "PxF"),
    "chunk_sha256": ("uint8", "PxFx32"),
}
"""Type and shape of each array that is held in RAM while a store is open; F is the number of fields."""


def small_array_shape(name: str, n_partitions: int, n_entries: int, n_fields: int) -> tuple[int, ...]:
    """Shape of a small array, which is also the shape of its only chunk."""
    return {
        "P": (n_partitions,),
        "P+1": (n_partitions + 1,),
        "Px2": (n_partitions, 2),
        "PxF": (n_partitions, n_fields),
        "PxFx32": (n_partitions, n_fields, 32),
        "entries": (n_entries,),
    }[SMALL_ARRAYS[name][1]]


def chunk_name(name: str, *index: int) -> str:
    """File of one chunk, from the store's directory on, under Zarr's default key encoding."""
    return "/".join((name, "c", *map(str, index)))


def chunk_path(root: Path, name: str, *index: int) -> Path:
    """The same as a path."""
    return root / chunk_name(name, *index)


def successor_dtype(n_local: int) -> np.dtype[np.unsignedinteger]:
    """Narrowest type for local successors 0 .. n_local-1."""
    return np.min_scalar_type(max(n_local - 1, 0))


def halo_dtype(n_states: int) -> np.dtype[np.integer]:
    """Type of halo states on disk: uint32 where every state fits."""
    return np.dtype(np.uint32) if n_states <= 1 << 32 else np.dtype(np.int64)
