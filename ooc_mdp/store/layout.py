"""What format 4 is: names, lengths, types and codecs of the arrays in a store. Nothing here reads or writes.

A store is a Zarr v3 group. A *field* is a group of arrays, one for each padded length L: shape (P, L), chunks (1, L).
Partition p has a chunk in one of them, the shortest that holds its values, so that no partition is padded to the
length of another. A *small array* holds a few numbers per partition in a single chunk.
``docs/reference/store-format.md`` is the table for readers of stores; this module is the one for the code.

    successors/4096   c.0.0   [ 4010 values | zeros up to 4096 ]       codecs: bytes, blosc, crc32c
                      c.2.0   [ 4096 values ]
    successors/48     c.1.0   [ 48 values ]
    partition_ptr     c/0     [ P + 1 values ]                         codecs: bytes, crc32c
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np

__all__ = [
    "BLOCK_BYTES",
    "FIELDS",
    "FORMAT",
    "FORMAT_VERSION",
    "GROUP_FILE",
    "JOURNAL_FILE",
    "PADDING",
    "READ_FIELDS",
    "REWARDS_FORMAT",
    "SMALL_ARRAYS",
    "VIRTUAL_FORMAT",
    "Codec",
    "Field",
    "Length",
    "PartitionSizes",
    "array_name",
    "chunk_name",
    "halo_dtype",
    "padded_length",
    "small_array_shape",
    "small_chunk_name",
    "successor_dtype",
]

FORMAT = "ooc-mdp"
FORMAT_VERSION = 4
VIRTUAL_FORMAT = "ooc-mdp-virtual"
"""Format of a virtual store, whose tables are computed on demand."""
REWARDS_FORMAT = "ooc-mdp-rewards"
"""Format of a store of other rewards for the transitions of another store."""
GROUP_FILE = "zarr.json"
JOURNAL_FILE = ".journal"
SEPARATOR = "."
"""Of a field's chunk keys: one file for each chunk, and no directory."""
_DIGITS = 6
"""Binary digits of a padded length that may be other than 0."""
PADDING = 2.0 ** (1 - _DIGITS)
"""Share of its values by which a chunk is longer at most."""

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


BLOCK_BYTES = 128 << 10
"""Bytes of a frame's blocks, which a GPU decompresses one beside the other, and each of them in order."""
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


@lru_cache(1 << 14)
def padded_length(count: int) -> int:
    """Values in a chunk of `count` values: rounded up to 6 binary digits, which adds less than 1/32; at least 1."""
    unit = 1 << max(count.bit_length() - _DIGITS, 0)
    return max(-(-count // unit) * unit, 1)


@lru_cache(1 << 14)
def array_name(name: str, count: int) -> str:
    """Array of a field that holds the chunks of `count` values, from the store's directory on."""
    return f"{name}/{padded_length(count)}"


def chunk_name(name: str, count: int, p: int) -> str:
    """File of a field's `count` stored values of partition p, from the store's directory on."""
    return f"{array_name(name, count)}/c{SEPARATOR}{p}{SEPARATOR}0"


def small_chunk_name(name: str) -> str:
    """File of a small array's only chunk, from the store's directory on."""
    return "/".join((name, "c", *("0" for _ in small_array_shape(name, 1, 1, 1))))


def successor_dtype(n_local: int) -> np.dtype[np.unsignedinteger]:
    """Narrowest type for local successors 0 .. n_local-1."""
    return np.min_scalar_type(max(n_local - 1, 0))


def halo_dtype(n_states: int) -> np.dtype[np.integer]:
    """Type of halo states on disk: uint32 where every state fits."""
    return np.dtype(np.uint32) if n_states <= 1 << 32 else np.dtype(np.int64)
