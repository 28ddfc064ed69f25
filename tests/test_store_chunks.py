from __future__ import annotations

import sys
import threading
import tracemalloc

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_mdp.errors import StoreError
from ooc_mdp.store.chunks import MAX_CHUNK_BYTES, ChunkDamage, crc32c_function, decode_chunk, encode_chunk
from ooc_mdp.store.layout import FIELDS

CASES = [(f.name, dtype) for f in FIELDS.values() for dtype in f.dtypes]


def chunk_of(name: str, values: np.ndarray, max_len: int) -> np.ndarray:
    frame, crc = encode_chunk(FIELDS[name], values, max_len)
    return np.frombuffer(frame + crc.to_bytes(4, "little"), np.uint8).copy()


@pytest.mark.parametrize(("name", "dtype"), CASES)
@settings(max_examples=30, deadline=None)
@given(
    n=st.one_of(st.integers(0, 100), st.integers(10_000, 300_000)),
    padding=st.sampled_from([0, 1, 1000, 2_000_000]),
    alphabet=st.sampled_from([1, 3, 1 << 62]),
    seed=st.integers(0, 2**32),
)
def test_a_chunk_decodes_to_its_values_whatever_the_padding(
    name: str, dtype: str, n: int, padding: int, alphabet: int, seed: int
) -> None:
    drawn = np.random.default_rng(seed).integers(0, alphabet, n)
    values = (drawn % 2 == 1) if dtype == "bool" else drawn.astype(dtype)
    max_len = max(n + padding, 1)
    decoded = decode_chunk(chunk_of(name, values, max_len), np.dtype(dtype), n, max_len)
    assert decoded.dtype == values.dtype
    np.testing.assert_array_equal(decoded, values)
    assert decoded.flags.c_contiguous


def test_padding_is_not_decoded() -> None:
    max_len = 20_000_000
    chunk = chunk_of("probabilities", np.ones(1000), max_len)
    tracemalloc.start()
    decode_chunk(chunk, np.dtype(np.float64), 1000, max_len)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < max_len * 8 / 50


@pytest.mark.parametrize("position", [0, 7, 30, -1])
def test_any_changed_byte_is_damage(position: int) -> None:
    chunk = chunk_of("rewards", np.arange(1000.0), 1200)
    chunk[position] ^= 0x10
    with pytest.raises(ChunkDamage, match="checksum"):
        decode_chunk(chunk, np.dtype(np.float64), 1000, 1200)


def test_a_frame_of_another_length_is_damage_even_with_a_right_checksum() -> None:
    chunk = chunk_of("rewards", np.arange(1000.0), 1200)
    with pytest.raises(ChunkDamage, match="expected"):
        decode_chunk(chunk, np.dtype(np.float64), 1000, 1300)
    for content in (b"", b"abc", b"short"):
        with pytest.raises(ChunkDamage):
            decode_chunk(np.frombuffer(content, np.uint8), np.dtype(np.float64), 1, 1)
    bare = b"short"
    signed = np.frombuffer(bare + google_crc32c.value(bare).to_bytes(4, "little"), np.uint8)
    with pytest.raises(ChunkDamage, match="no blosc frame"):
        decode_chunk(signed, np.dtype(np.float64), 1, 1)


def test_a_chunk_that_blosc_cannot_hold_is_refused_before_it_is_made() -> None:
    with pytest.raises(StoreError, match="use more or smaller partitions"):
        encode_chunk(FIELDS["rewards"], np.zeros(1), MAX_CHUNK_BYTES // 8 + 1)


def test_threads_decode_at_once() -> None:
    values = np.random.default_rng(0).random(200_000)
    chunk = chunk_of("probabilities", values, 200_000)
    wrong: list[int] = []

    def decode() -> None:
        for i in range(50):
            if not np.array_equal(decode_chunk(chunk.copy(), np.dtype(np.float64), 200_000, 200_000), values):
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
    body = np.zeros(200_000_000, np.uint8)
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted
        crc32c_function()(body)
        while_checking = counted - before
    finally:
        done.set()
        thread.join()
    assert while_checking > 100  # a thread that waits for the lock counts nothing
