from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_mdp.errors import StoreError
from ooc_mdp.store.blosc_frame import MAX_CHUNK_BYTES, decode_frame, encode_frame
from ooc_mdp.store.chunk_file import (
    ChunkEntry,
    CorruptChunkError,
    allocate,
    crc32c_function,
    read_frame_file,
    read_uncompressed,
    write_chunk,
)
from ooc_mdp.store.layout import FIELDS, padded_length

CASES = [(f.name, dtype) for f in FIELDS.values() for dtype in f.dtypes]


def frame_of(name: str, values: np.ndarray) -> np.ndarray:
    return np.frombuffer(encode_frame(FIELDS[name], values), np.uint8).copy()


@pytest.mark.parametrize(("name", "dtype"), CASES)
@settings(max_examples=30, deadline=None)
@given(
    n=st.one_of(st.integers(0, 100), st.integers(10_000, 300_000)),
    alphabet=st.sampled_from([1, 3, 1 << 62]),
    seed=st.integers(0, 2**32),
)
def test_a_chunk_decodes_to_its_values_whatever_their_number(
    name: str, dtype: str, n: int, alphabet: int, seed: int
) -> None:
    drawn = np.random.default_rng(seed).integers(0, alphabet, n)
    values = (drawn % 2 == 1) if dtype == "bool" else drawn.astype(dtype)
    decoded = decode_frame(frame_of(name, values), np.dtype(dtype), n)
    assert decoded.dtype == values.dtype
    np.testing.assert_array_equal(decoded, values)
    assert decoded.flags.c_contiguous


@given(st.integers(0, 1 << 31))
def test_padding_adds_less_than_a_32nd_and_there_are_32_lengths_per_power_of_two(count: int) -> None:
    length = padded_length(count)
    assert max(count, 1) <= length < max(count, 1) * (1 + 1 / 32)
    assert padded_length(length) == length
    assert length.bit_length() <= 6 or length % (1 << length.bit_length() - 6) == 0


def test_what_a_chunk_decodes_to_keeps_hardly_more_memory_than_its_values() -> None:
    """Whatever the size of blosc's blocks, of which one holds all of a small chunk."""
    for count in (0, 1, 33, 1000, 65_537, 3_000_001):
        values = decode_frame(frame_of("successors", np.arange(count, dtype=np.uint32)), np.dtype(np.uint32), count)
        owner = values
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        assert owner.nbytes <= values.nbytes * (1 + 1 / 32)


@pytest.fixture
def chunk(tmp_path: Path) -> tuple[Path, ChunkEntry]:
    path = tmp_path / "rewards"
    return path, write_chunk(path, encode_frame(FIELDS["rewards"], np.arange(1000.0)))


def read(path: Path, entry: ChunkEntry) -> np.ndarray:
    return read_frame_file(path, entry, allocate(entry.n_bytes + 1))


def test_a_chunk_file_is_read_as_it_was_written(chunk) -> None:
    path, entry = chunk
    content = path.read_bytes()
    assert (entry.n_bytes, entry.sha256) == (len(content), hashlib.sha256(content).digest())
    assert decode_frame(read(path, entry), np.dtype(np.float64), 1000).tolist() == list(range(1000))


@pytest.mark.parametrize("position", [0, 7, 30, -1])
def test_a_changed_byte_of_a_chunk_is_refused(chunk, position: int) -> None:
    path, entry = chunk
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(CorruptChunkError, match="checksum does not match"):
        read(path, entry)


def test_a_chunk_of_another_length_is_refused_with_both_lengths(chunk) -> None:
    path, entry = chunk
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(CorruptChunkError, match=f"has {entry.n_bytes - 1} bytes, the manifest says {entry.n_bytes}"):
        read(path, entry)
    path.write_bytes(content + b"0")
    with pytest.raises(CorruptChunkError, match="has more bytes"):
        read(path, entry)
    with pytest.raises(CorruptChunkError, match="are left in the buffer"):
        read_frame_file(path, entry, allocate(entry.n_bytes))


def test_an_intact_chunk_that_is_not_the_manifests_is_refused(chunk, tmp_path: Path) -> None:
    path, entry = chunk
    other = write_chunk(tmp_path / "other", encode_frame(FIELDS["rewards"], np.arange(1000.0)[::-1].copy()))
    swapped = ChunkEntry(other.n_bytes, entry.crc32c)
    with pytest.raises(CorruptChunkError, match="intact chunk, but not the one in the manifest"):
        read(tmp_path / "other", swapped)
    with pytest.raises(CorruptChunkError, match="it was forged"):
        read(path, entry._replace(sha256=other.sha256))


def test_what_is_no_regular_file_neither_blocks_nor_takes_memory(chunk, tmp_path: Path) -> None:
    _, entry = chunk
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with open(tmp_path / "giant", "wb") as file:
        file.truncate(1 << 42)
    for name in ("fifo", "folder", "link"):
        with pytest.raises(OSError, match=r"Illegal seek|Is a directory"):
            read(tmp_path / name, entry)
        with pytest.raises(OSError, match="not a regular file"):
            read_uncompressed(tmp_path / name, np.dtype(np.int64), (3,))
    with pytest.raises(CorruptChunkError, match="more bytes"):
        read(tmp_path / "giant", entry)
    with pytest.raises(OSError, match="at most 28 are expected"):
        read_uncompressed(tmp_path / "giant", np.dtype(np.int64), (3,))


def test_a_frame_of_another_length_is_refused_even_with_a_right_checksum() -> None:
    frame = frame_of("rewards", np.arange(1000.0))
    for count in (0, 900, 1050, 1 << 40):
        with pytest.raises(CorruptChunkError, match="expected"):
            decode_frame(frame, np.dtype(np.float64), count)
    for content in (b"", b"abc", b"short"):
        with pytest.raises(CorruptChunkError, match="no blosc frame"):
            decode_frame(np.frombuffer(content, np.uint8), np.dtype(np.float64), 1)


def test_a_frame_stored_without_compression_must_hold_all_its_bytes() -> None:
    noise = np.frombuffer(np.random.default_rng(0).bytes(800), np.float64)
    frame = frame_of("rewards", noise)
    assert frame[2] & 2
    cut = frame[:-8].copy()
    cut[12:16].view("<u4")[0] -= 8
    with pytest.raises(CorruptChunkError, match="stored without compression"):
        decode_frame(cut, np.dtype(np.float64), 100)


def test_a_chunk_that_blosc_cannot_hold_is_refused_before_it_is_made() -> None:
    with pytest.raises(StoreError, match="use more or smaller partitions"):
        encode_frame(FIELDS["rewards"], np.broadcast_to(np.zeros(1), MAX_CHUNK_BYTES // 8 + 1))


def test_threads_decode_at_once() -> None:
    values = np.random.default_rng(0).random(200_000)
    chunk = frame_of("probabilities", values)
    wrong: list[int] = []

    def decode() -> None:
        for i in range(50):
            if not np.array_equal(decode_frame(chunk.copy(), np.dtype(np.float64), 200_000), values):
                wrong.append(i)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@given(content=st.binary(max_size=3000), start=st.integers(0, 9))
def test_checksums_are_those_of_the_package_with_and_without_its_c_function(content: bytes, start: int) -> None:
    body = np.frombuffer(content, np.uint8)[start:]
    expected = google_crc32c.value(content[start:])
    assert crc32c_function()(body) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "google_crc32c._crc32c", None)
        assert crc32c_function.__wrapped__()(body) == expected


def test_checksums_do_not_hold_the_interpreter_lock_where_the_package_has_its_extension() -> None:
    if google_crc32c.implementation != "c":
        pytest.skip("google_crc32c is its Python version here")
    body, checksum = np.zeros(50_000_000, np.uint8), crc32c_function()
    counted, begun, done = 0, threading.Event(), threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            begun.set()
            time.sleep(0)  # gives the lock to whoever waits for it

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)  # no thread is made to give the lock away
    try:
        thread.start()
        assert begun.wait(300)
        for _ in range(1000):  # a system that is busy need not let the other thread run at every opportunity
            before = counted
            checksum(body)
            while_checking = counted - before
            if while_checking:
                break
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert while_checking > 0  # a thread that waits for the lock counts nothing
