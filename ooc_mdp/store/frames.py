"""A partition's chunks as they are on disk, one after the other in the caller's buffer; a device decompresses them.

    buffer    | frame of action_ptr, crc32c | gap | frame of successor_ptr, crc32c | gap | ...      gaps: to 256 bytes

Checksums and headers are checked here, where the bytes pass by anyway. What a device is not expected to decompress
(anything but LZ4 in blosc frames) is decompressed here, and lies in the buffer as values. How values stand for the
table's is left to the device too (`ooc_mdp.store.encodings` says what it must do).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.partition import RawField, RawPartition, StoredField
from ooc_mdp.store.blosc_frame import HEADER_BYTES, decode_frame, frame_header
from ooc_mdp.store.chunk_file import CRC_BYTES, ChunkEntry, CorruptChunkError, allocate, read_frame_file
from ooc_mdp.store.layout import READ_FIELDS, PartitionSizes, padded_length
from ooc_mdp.store.metadata import ArrayMetadata

if TYPE_CHECKING:
    from ooc_mdp.store.chunk_reads import WholeFiles

__all__ = [
    "FRAME_ALIGNMENT",
    "FrameChunk",
    "FrameReader",
    "aligned",
    "frame_buffer_bytes",
    "prefetch_file",
    "read_frame",
    "read_together",
    "stored_fields",
]

FRAME_ALIGNMENT = 256
"""Each field begins at a multiple of this from the start of the buffer."""
_FRAMED = {("lz4", "shuffle"), ("lz4", "noshuffle"), ("lz4hc", "shuffle"), ("lz4hc", "noshuffle")}


def stored_fields(
    fields: Mapping[str, ArrayMetadata], most_stored: Mapping[str, int], largest: PartitionSizes
) -> tuple[StoredField, ...]:
    """The table's fields as a store has them, in the order of its arrays.

    Parameters
    ----------
    most_stored : by field, stored values of the partition that has most of them.
    largest : of any partition.
    """
    return tuple(
        StoredField(
            name,
            meta.dtype,
            meta.stored,
            meta.encoding,
            padded_length(most_stored[name]),
            largest.of(meta.field.length),
            (meta.cname, meta.shuffle) in _FRAMED,
        )
        for name in READ_FIELDS
        if (meta := fields.get(name)) is not None
    )


def frame_buffer_bytes(fields: tuple[StoredField, ...], chunk_bytes: npt.NDArray[np.int64]) -> int:
    """Bytes of a buffer that holds any partition: its chunks, the gaps, and what is decompressed beforehand."""
    values = sum(f.max_len * f.stored.itemsize for f in fields if not f.compressed)
    return int(chunk_bytes.max(initial=0)) + values + FRAME_ALIGNMENT * len(fields)


class FrameChunk(NamedTuple):
    """One chunk of a partition."""

    path: str
    """From the store's directory on."""
    entry: ChunkEntry
    """The manifest's."""
    field: StoredField
    values: int
    """Stored ones that belong to the partition."""


class FrameReader:
    """Reads frames of partitions again and again: what their headers say is found out the first time.

    A partition's files are the same each time, as their checksums show, so that its headers need not be read again.

    Parameters
    ----------
    chunks : of a partition.
    read : a partition's frames into a buffer, each header compared with the field's metadata.
    directory : descriptor of the store's.
    """

    def __init__(
        self,
        chunks: Callable[[int], Sequence[FrameChunk]],
        read: Callable[[int, npt.NDArray[np.uint8]], RawPartition],
        directory: int,
    ) -> None:
        self._chunks, self._read, self._directory = chunks, read, directory
        self._known: dict[int, tuple[WholeFiles, RawPartition]] = {}

    def read(self, p: int, buffer: npt.NDArray[np.uint8]) -> RawPartition:
        """As the first read does it; the same object each time where all of a partition's chunks are frames."""
        known = self._known.get(p)
        if known is not None and known[0].read(self._directory, buffer):
            return known[1]
        raw = self._read(p, buffer)
        files = whole_files(self._chunks(p), [field.offset for field in raw.fields])
        if files is not None:
            self._known[p] = files, raw
        return raw


def whole_files(chunks: Sequence[FrameChunk], offsets: Sequence[int]) -> WholeFiles | None:
    """The chunks' files, each read from its offset of a buffer on; None where one is decompressed here, or has a
    SHA-256 to be compared with."""
    from ooc_mdp.store.chunk_reads import WholeFiles

    if not all(chunk.field.compressed and chunk.entry.sha256 is None for chunk in chunks):
        return None
    return WholeFiles([chunk.path for chunk in chunks], [chunk.entry for chunk in chunks], offsets)


def read_together(chunks: Sequence[FrameChunk], buffer: npt.NDArray[np.uint8], directory: int) -> list[RawField] | None:
    """All chunk files into the buffer at once, without the interpreter's lock.

    Returns
    -------
    None where one must be decompressed here, is not what was written or cannot be read: :func:`read_frame` reads it, or
    says what is wrong.
    """
    offsets, end = list[int](), 0
    for chunk in chunks:
        offsets.append(aligned(end))
        end = offsets[-1] + chunk.entry.n_bytes - CRC_BYTES
    files = whole_files(chunks, offsets)
    if files is None or not files.read(directory, buffer):
        return None
    try:
        return [
            raw_field(buffer[offset : offset + chunk.entry.n_bytes - CRC_BYTES], chunk.field, chunk.values, offset)
            for chunk, offset in zip(chunks, offsets, strict=True)
        ]
    except CorruptChunkError:
        return None


def read_frame(chunk: FrameChunk, buffer: npt.NDArray[np.uint8], offset: int, directory: int) -> RawField:
    """One chunk file into the buffer from `offset` on.

    Parameters
    ----------
    buffer : uint8, the whole buffer.
    directory : descriptor of the store's.

    Raises
    ------
    CorruptChunkError : the file is not what was written.
    FileNotFoundError, OSError : it cannot be read.
    """
    path, entry, field, count = chunk
    if not field.compressed:
        frame = read_frame_file(path, entry, allocate(entry.n_bytes + 1), directory)
        values = decode_frame(frame, field.stored, count)
        if values.nbytes > buffer.size - offset:
            raise CorruptChunkError(f"it takes {values.nbytes} bytes, {buffer.size - offset} of the buffer are left")
        buffer[offset : offset + values.nbytes] = values.view(np.uint8)
        return RawField(field, offset, values.nbytes, count, count, 0, 0, False, 0)
    frame = read_frame_file(path, entry, buffer[offset:], directory)
    return raw_field(frame, field, count, offset)


def raw_field(frame: npt.NDArray[np.uint8], field: StoredField, count: int, offset: int) -> RawField:
    """A whole frame that lies at an offset of the buffer. Raises CorruptChunkError if it is none of the field's."""
    length = padded_length(count)
    header = frame_header(frame, length * field.stored.itemsize)
    if header.uncompressed:
        return RawField(field, offset, frame.size, count, length, 0, 0, False, HEADER_BYTES)
    if header.typesize == field.stored.itemsize and header.is_lz4:
        blocks = header.block_bytes, header.splits, header.shuffled
        return RawField(field, offset, frame.size, count, length, *blocks, 0)
    raise CorruptChunkError(
        f"its frame (flags {header.flags:#x}, values of {header.typesize} bytes) is not of the codec in its metadata"
    )


def prefetch_file(path: str, directory: int) -> None:
    """Ask the system to read a file ahead, where it can be asked; a missing file is for the read to report."""
    if not hasattr(os, "posix_fadvise"):
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(fd)


def aligned(n_bytes: int) -> int:
    """The next multiple of FRAME_ALIGNMENT."""
    return -(-n_bytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
