"""Chunks read as they are: every byte of them checked, in its place, and what Store.read would decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forge import accept, chunk_path, write_frame
from frame_cases import recoded
from numcodecs import blosc
from store_models import ModelSource, random_model

from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.model.partition import RawField
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store import Store
from ooc_mdp.store.blosc_frame import encode_frame
from ooc_mdp.store.encodings import RowLayout, decode
from ooc_mdp.store.frames import FRAME_ALIGNMENT


@pytest.fixture(scope="module")
def car(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("frames") / "car"
    problem = make_problem("mountain-car", {"grid": "70,70"})
    return generate(problem, path, ConvertOptions(partition_shape=(35, 70), dtype="float32", threads=1))


@pytest.fixture
def ragged(tmp_path: Path) -> Store:
    model = random_model(3, 60, durations=True, initial_values=True)
    return convert(ModelSource(model), tmp_path / "ragged", ConvertOptions(partitions=4, threads=1))


def values_of(raw: RawField, buffer: np.ndarray) -> np.ndarray:
    """Decompressed by blosc, or taken as they are."""
    whole = buffer[raw.offset : raw.offset + raw.n_bytes]
    if raw.block_bytes == 0:
        n = raw.count * raw.field.stored.itemsize
        return whole[raw.values_at : raw.values_at + n].view(raw.field.stored)
    return np.frombuffer(blosc.decompress(whole.tobytes()), raw.field.stored)[: raw.count]


def assert_frames_hold_the_table(store: Store) -> None:
    for p in range(store.n_partitions):
        buffer = np.full(store.facts.frame_buffer_bytes, 0xAA, np.uint8)
        raw = store.read_frames(p, buffer)
        table, read_bytes = store.read(p)
        assert raw.read_bytes == read_bytes
        assert raw.n_bytes <= buffer.size
        assert [f.field.name for f in raw.fields] == [n for n in store.fields if store.fields[n].field.read]
        known = {f.field.name: f for f in raw.fields}
        pointers = {n: values_of(known[n], buffer) for n in ("action_ptr", "successor_ptr") if n in known}
        layout = RowLayout(store.sizes(p), raw.actions_per_state, raw.successors_per_action, **pointers)
        end = 0
        for f in raw.fields:
            assert f.offset % FRAME_ALIGNMENT == 0
            assert f.offset >= end
            end = f.offset + f.n_bytes
            values = values_of(f, buffer).copy()
            if f.field.encoding is not None:
                values = decode(f.field.encoding, values, f.field.dtype, layout)
            expected = getattr(table, f.field.name)
            np.testing.assert_array_equal(values.astype(expected.dtype), expected, strict=True)
            assert f.field.max_table_len >= expected.size
            assert f.field.max_len >= f.length >= f.count
        assert raw.n_bytes == end


def test_frames_of_a_control_problem_hold_its_table(car: Store) -> None:
    assert set(car.facts.attributes["encodings"]) == {"successors", "probabilities", "durations"}
    assert_frames_hold_the_table(car)
    assert all(field.compressed for field in car.facts.stored_fields)


def test_frames_of_a_ragged_store_hold_its_table(ragged: Store) -> None:
    assert {"action_ptr", "successor_ptr", "initial_values"} <= set(ragged.fields)
    assert_frames_hold_the_table(ragged)


def test_a_memoryview_is_filled_too(ragged: Store) -> None:
    room = bytearray(ragged.facts.frame_buffer_bytes)
    raw = ragged.read_frames(1, memoryview(room))
    again = np.zeros(ragged.facts.frame_buffer_bytes, np.uint8)
    assert ragged.read_frames(1, again) == raw
    for f in raw.fields:
        assert room[f.offset : f.offset + f.n_bytes] == again[f.offset : f.offset + f.n_bytes].tobytes()


@pytest.mark.parametrize(
    ("cname", "shuffle", "compressed"),
    [
        ("lz4", "noshuffle", True),
        ("lz4hc", "shuffle", True),
        ("lz4", "bitshuffle", False),
        ("zstd", "shuffle", False),
        ("blosclz", "shuffle", False),
    ],
)
def test_what_devices_do_not_decompress_is_decompressed_beforehand(
    ragged: Store, cname: str, shuffle: str, compressed: bool
) -> None:
    store = recoded(ragged, "probabilities", cname, shuffle)
    field = next(f for f in store.facts.stored_fields if f.name == "probabilities")
    assert field.compressed == compressed
    assert_frames_hold_the_table(store)


def test_values_that_do_not_compress_are_found_behind_the_header(tmp_path: Path) -> None:
    model = random_model(1, 30)
    store = convert(ModelSource(model), tmp_path / "s", ConvertOptions(partitions=1, threads=1))
    meta = store.fields["rewards"]
    noise = np.frombuffer(np.random.default_rng(0).bytes(store.stored_values("rewards", 0) * 8), np.float64)
    frame = encode_frame(meta.field, noise)
    write_frame(chunk_path(store.path, "rewards", 0), frame)
    accept(store)
    buffer = np.empty(store.facts.frame_buffer_bytes, np.uint8)
    raw = next(f for f in store.read_frames(0, buffer).fields if f.field.name == "rewards")
    assert (raw.values_at, raw.block_bytes, raw.streams) == (16, 0, 0)
    np.testing.assert_array_equal(values_of(raw, buffer).view(np.uint64), noise[: raw.count].view(np.uint64))


@pytest.mark.parametrize("position", [0, 9, 40, -1])
def test_any_changed_byte_is_reported_with_field_partition_and_file(ragged: Store, position: int) -> None:
    path = chunk_path(ragged.path, "successors", 2)
    content = bytearray(path.read_bytes())
    content[position] ^= 0x20
    path.write_bytes(content)
    buffer = np.empty(ragged.facts.frame_buffer_bytes, np.uint8)
    with pytest.raises(StoreError, match=r"field successors of partition 2 is damaged in .*checksum does not match"):
        ragged.read_frames(2, buffer)
    ragged.read_frames(1, buffer)


def test_a_missing_chunk_and_one_that_outgrew_the_store_are_reported(ragged: Store) -> None:
    buffer = np.empty(ragged.facts.frame_buffer_bytes, np.uint8)
    path = chunk_path(ragged.path, "halo", 0)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(StoreError, match=r"field halo of partition 0 is missing"):
        ragged.read_frames(0, buffer)
    path.write_bytes(content + bytes(buffer.size))
    with pytest.raises(StoreError, match=r"halo of partition 0 is damaged.*the file has more bytes, the manifest says"):
        ragged.read_frames(0, buffer)


def test_a_frame_of_another_codec_than_its_metadata_says_is_damage(ragged: Store) -> None:
    path = chunk_path(ragged.path, "rewards", 0)
    meta = ragged.fields["rewards"]
    values = np.frombuffer(blosc.decompress(path.read_bytes()[:-4]), meta.stored).copy()
    write_frame(path, blosc.Blosc("zstd", 9, blosc.SHUFFLE, typesize=8).encode(values))
    accept(ragged)
    with pytest.raises(StoreError, match=r"rewards of partition 0 is damaged.* not of the codec in its metadata"):
        ragged.read_frames(0, np.empty(ragged.facts.frame_buffer_bytes, np.uint8))


def test_a_buffer_that_is_too_small_is_refused_before_anything_is_read(ragged: Store) -> None:
    with pytest.raises(ValueError, match="bytes for frames of up to"):
        ragged.read_frames(0, np.empty(ragged.facts.frame_buffer_bytes - 1, np.uint8))


def test_prefetching_changes_nothing_and_leaves_faults_to_the_read(ragged: Store) -> None:
    chunk_path(ragged.path, "halo", 0).unlink()
    for p in range(ragged.n_partitions):
        ragged.prefetch(p)
    assert ragged.read_frames(1, np.empty(ragged.facts.frame_buffer_bytes, np.uint8)).index == 1


def test_frames_are_read_again_as_they_were_found(car: Store) -> None:
    """Each reads into another buffer, whose bytes are those of the first read."""
    read = car.loader("cuda:0").read_frames
    for p in (0, 1, 0, 1, 1):
        first, again = (np.full(car.facts.frame_buffer_bytes, byte, np.uint8) for byte in (0xAA, 0x55))
        raw = car.read_frames(p, first)
        assert read(p, again) == raw
        for f in raw.fields:
            where = slice(f.offset, f.offset + f.n_bytes)
            np.testing.assert_array_equal(again[where], first[where])
    assert read(0, first) is read(0, again)


@pytest.mark.parametrize("position", [0, 9, 40, -1])
def test_what_is_damaged_between_two_reads_is_reported(ragged: Store, position: int) -> None:
    read, buffer = ragged.loader("cuda:0").read_frames, np.empty(ragged.facts.frame_buffer_bytes, np.uint8)
    read(2, buffer)
    path = chunk_path(ragged.path, "successors", 2)
    content = bytearray(path.read_bytes())
    content[position] ^= 0x20
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"field successors of partition 2 is damaged in .*checksum does not match"):
        read(2, buffer)
    path.unlink()
    with pytest.raises(StoreError, match=r"field successors of partition 2 is missing"):
        read(2, buffer)
    read(1, buffer)
