"""What is known of a partition whose chunks are written: its numbers, and the type and checksums of each chunk.

An entry is all that a process which writes a partition gives back, and a line of the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.store.chunk_file import ChunkEntry
from ooc_mdp.store.partition_summary import PartitionSummary

__all__ = ["PartitionEntry", "WrittenChunk"]


class WrittenChunk(NamedTuple):
    """What was written to a chunk file."""

    dtype: np.dtype[Any]
    encoding: str | None
    entry: ChunkEntry


@dataclass(frozen=True, slots=True, eq=False)
class PartitionEntry:
    """One written partition."""

    partition: int
    note: PartitionSummary
    chunks: Mapping[str, WrittenChunk]
    """By field."""
    halo: IntArray | None = None
    """int64, ascending; None where its chunk has it."""

    def record(self) -> dict[str, Any]:
        """Plain values, without the halo, and without the boundary, which is written anew in each run."""
        chunks = {
            name: [c.dtype.name, c.encoding, c.entry.n_bytes, c.entry.crc32c, (c.entry.sha256 or b"").hex()]
            for name, c in self.chunks.items()
            if name != "boundary"
        }
        return {"note": self.note.to_json(), "chunks": chunks}

    @classmethod
    def from_record(cls, p: int, record: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`record`."""
        chunks = {
            name: WrittenChunk(np.dtype(dtype), encoding, ChunkEntry(n_bytes, crc, bytes.fromhex(digest)))
            for name, (dtype, encoding, n_bytes, crc, digest) in record["chunks"].items()
        }
        return cls(p, PartitionSummary.from_json(record["note"]), chunks)
