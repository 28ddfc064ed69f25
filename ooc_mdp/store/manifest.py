"""The manifest: what every chunk file of a store is, and the two hashes that bind the store together.

    chunk_lengths, chunk_crc32c, chunk_sha256   one entry for each partition and field
    fingerprint = SHA-256("ooc-mdp table 4", the attribute `table`, all small arrays, the manifest's among them)
    digest      = SHA-256(all attributes but the digest)

Two writings of one table in the same partitions have the same fingerprint; results, checkpoints and traces carry it.
Anybody who noted it can tell whether a store holds the same bytes. Knows neither files nor codecs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.store.chunk_file import CRC_BYTES, ChunkEntry
from ooc_mdp.store.seal import hash_of

__all__ = ["Manifest", "manifest_arrays", "table_fingerprint"]

_TITLE = "ooc-mdp table 4"


def table_fingerprint(table: Mapping[str, Any], small: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256, in hexadecimal, of everything that a solve reads of a store.

    Parameters
    ----------
    table : the attribute of this name.
    small : every small array, in the types of `layout.SMALL_ARRAYS`.
    """
    return hash_of(_TITLE, table, small)


def manifest_arrays(entries: Sequence[Sequence[ChunkEntry]]) -> dict[str, npt.NDArray[Any]]:
    """The manifest's small arrays.

    Parameters
    ----------
    entries : [P][F], with SHA-256; fields in the order of the store's.
    """
    digests = [b"".join(entry.sha256 or b"" for entry in row) for row in entries]
    return {
        "chunk_lengths": np.array([[entry.n_bytes for entry in row] for row in entries], np.int64),
        "chunk_crc32c": np.array([[entry.crc32c for entry in row] for row in entries], np.uint32),
        "chunk_sha256": np.frombuffer(b"".join(digests), np.uint8).reshape(len(entries), -1, 32),
    }


@dataclass(frozen=True, eq=False)
class Manifest:
    """The entries of a store's chunks."""

    fields: Sequence[str]
    lengths: npt.NDArray[np.int64]
    """int64 [P, F]; bytes of each chunk file."""
    crc32c: npt.NDArray[np.uint32]
    """uint32 [P, F]; of its frame."""
    sha256: npt.NDArray[np.uint8]
    """uint8 [P, F, 32]; of the file."""

    def columns(self, check_sha256: bool) -> dict[str, list[ChunkEntry]]:
        """For each field, the entry of each partition's chunk; plain numbers, which are quicker to take out.

        Parameters
        ----------
        check_sha256 : whether entries carry the SHA-256.
        """
        columns: dict[str, list[ChunkEntry]] = {}
        for i, name in enumerate(self.fields):
            numbers = zip(self.lengths[:, i].tolist(), self.crc32c[:, i].tolist(), strict=True)
            digests = [d.tobytes() for d in self.sha256[:, i]] if check_sha256 else [None] * len(self.lengths)
            columns[name] = [ChunkEntry(n, crc, digest) for (n, crc), digest in zip(numbers, digests, strict=True)]
        return columns

    def stored_bytes(self, fields: Sequence[str]) -> npt.NDArray[np.int64]:
        """int64 [P]; bytes on disk of these fields of each partition."""
        total: npt.NDArray[np.int64] = self.lengths[:, [name in fields for name in self.fields]].sum(axis=1)
        return total

    def error(self) -> str | None:
        """What is wrong with the lengths, if no chunk file can have them."""
        if self.lengths.min(initial=CRC_BYTES) < CRC_BYTES or self.lengths.max(initial=0) >= 1 << 32:
            return f"has chunks of {self.lengths.min()} to {self.lengths.max()} bytes in its manifest"
        return None
