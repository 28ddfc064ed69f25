"""Decoding on a device: any LZ4 stream, whole partitions; damage never leaves the arrays.

The kernels run on the CPU here (`emulated_cuda`), and the same comparisons on a GPU where there is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from device_decoding import ARRAYS, FencedDevice, bytes_field, decoded, decoded_on, frame_of, on_gpu, raw_of
from frame_cases import recoded
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numcodecs import lz4
from store_models import Action, Model, ModelSource, State, random_model

from ooc_mdp.backends.cuda.decode.frames import PLAN_BYTES, DeviceDecoder
from ooc_mdp.backends.cuda.device import Device
from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store import Store
from ooc_mdp.store.encodings import RowLayout
from ooc_mdp.store.layout import PartitionSizes


def inflated(stream: bytes, size: int, device: Device | None = None) -> tuple[bytes, str | None]:
    frame = frame_of(stream, size)
    raw = raw_of(bytes_field(size), frame, RowLayout(PartitionSizes(size, size, size, 0), 1, 1), size)
    arrays, faults = decoded(device or FencedDevice(), raw, frame)
    return arrays["boundary"].tobytes(), faults


def sequence(literals: bytes, offset: int = 0, length: int = 0) -> bytes:
    """One LZ4 sequence as the block format has it; no match where length is 0."""

    def more(n: int) -> bytes:
        return b"" if n < 15 else b"\xff" * ((n - 15) // 255) + bytes([(n - 15) % 255])

    match = max(length - 4, 0)
    token = min(len(literals), 15) << 4 | min(match, 15)
    end = b"" if not length else offset.to_bytes(2, "little") + more(match)
    return bytes([token]) + more(len(literals)) + literals + end


def expanded(parts: Sequence[tuple[bytes, int, int]]) -> bytes:
    """What the sequences stand for, byte by byte."""
    out = bytearray()
    for literals, offset, length in parts:
        out += literals
        for _ in range(length):
            out.append(out[-offset])
    return bytes(out)


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[bytes, int, int]]:
    """Any valid sequences: overlaps, long runs, far matches, many short ones; the last without a match."""
    parts = []
    size = 0
    for _ in range(draw(st.integers(0, 60))):
        few = st.integers(0, 3)
        count = draw(st.one_of(few, few, st.integers(0, 40), st.sampled_from([14, 15, 16, 269, 270, 271, 600])))
        literals = np.random.default_rng(draw(st.integers(0, 9))).bytes(count)
        size += count
        if size == 0:
            literals, size = b"x", 1
        near = st.integers(1, min(size, 40))
        offset = draw(st.one_of(near, near, st.integers(1, min(size, 65535)), st.just(min(size, 65535))))
        short = st.integers(4, 20)
        length = draw(st.one_of(short, short, st.integers(4, 300), st.sampled_from([18, 19, 20, 273, 274, 9000])))
        parts.append((literals, offset, length))
        size += length
    last = draw(st.integers(0 if parts else 1, 40))
    return [*parts, (bytes(range(last)), 0, 0)]


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(parts=sequences(), seed=st.one_of(st.none(), st.integers(0, 99)), ring=st.sampled_from(["1024u", "32768u"]))
def test_any_valid_lz4_stream_is_expanded(parts: list[tuple[bytes, int, int]], seed: int | None, ring: str) -> None:
    """However little of the output is kept in shared memory."""
    stream = b"".join(sequence(*part) for part in parts)
    expected = expanded(parts)
    assume(len(stream) != len(expected))  # blosc stores as it is what LZ4 does not make smaller
    assert inflated(stream, len(expected), FencedDevice(seed, ring)) == (expected, None)


KINDS: dict[str, Callable[[np.random.Generator, int], bytes]] = {
    "noise": lambda rng, n: rng.bytes(n),
    "zeros": lambda rng, n: bytes(n),
    "few values": lambda rng, n: rng.integers(0, 3, n, np.uint8).tobytes(),
    "runs": lambda rng, n: np.repeat(rng.integers(0, 9, n, np.uint8), rng.integers(1, 40, n))[:n].tobytes(),
    "periodic": lambda rng, n: (rng.bytes(int(rng.integers(1, 70))) * n)[:n],
    "far repeats": lambda rng, n: (rng.bytes(9000) + rng.bytes(30000) * 9)[:n],
    "noisy periods": lambda rng, n: (
        np.tile(rng.integers(0, 4, 200, np.uint8), n)[:n] + (rng.random(n) < 0.1)
    ).tobytes(),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), n=st.one_of(st.integers(1, 300), st.integers(1, 100_000)))
def test_what_lz4_compresses_comes_back(kind: str, seed: int, n: int) -> None:
    content = KINDS[kind](np.random.default_rng(seed), n)
    stream = lz4.LZ4().encode(content)[4:]
    assume(len(stream) != n)  # which blosc stores as it is
    assert inflated(stream, n) == (content, None)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=sequences(),
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=3),
    cut=st.one_of(st.just(0), st.integers(0, 40)),
    grow=st.integers(-3, 3),
)
def test_damaged_streams_are_reported_or_fill_their_own_bytes_only(
    parts: list[tuple[bytes, int, int]], changes: list[tuple[int, int]], cut: int, grow: int
) -> None:
    stream = bytearray(b"".join(sequence(*part) for part in parts))
    size = max(len(expanded(parts)) + grow, 1)
    del stream[max(len(stream) - cut, 1) :]
    for place, change in changes:
        stream[place % len(stream)] ^= change
    # inflated() puts what is read and written against fences: an access beyond ends the emulation
    out, faults = inflated(bytes(stream), size)
    assert len(out) == size
    assert faults is None or faults.startswith("boundary of partition 0 ")


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\x50abc",  # fewer literals than announced
        sequence(b"abcd", 5, 8) + sequence(b"zz"),  # before the beginning
        sequence(b"abcd", 0, 8) + sequence(b"zz"),
        sequence(b"abcd", 4, 200) + sequence(b"zz"),  # beyond the end
        sequence(b"abcd", 4, 4) + sequence(b"z"),  # too short
        b"\xf0" + b"\xff" * 40,  # a length without end
        b"\x0f\x01\x00" + b"\xff" * 400,
        sequence(b"abcd", 4, 4)[:-1],
    ],
)
def test_streams_that_do_not_fit_are_reported(stream: bytes) -> None:
    assert inflated(stream, 14)[1] == "boundary of partition 0 (and maybe of others) cannot be decoded"


def test_frames_whose_offsets_lead_out_of_them_are_reported() -> None:
    good = bytearray(frame_of(lz4.LZ4().encode(bytes(500))[4:], 500))
    layout = RowLayout(PartitionSizes(500, 500, 500, 0), 1, 1)
    for place, value in ((16, 0), (16, 5), (16, len(good)), (16, 2**32 - 1), (20, len(good)), (20, 2**31 + 3), (20, 0)):
        frame = bytearray(good)
        frame[place : place + 4] = value.to_bytes(4, "little")
        _, faults = decoded(FencedDevice(), raw_of(bytes_field(500), bytes(frame), layout, 500), bytes(frame))
        assert faults is not None, (place, value)
    _, faults = decoded(FencedDevice(), raw_of(bytes_field(500), bytes(good), layout, 500), bytes(good))
    assert faults is None


# Whole partitions.


def assert_decoded_as_read(store: Store, device: Device) -> None:
    actions, width = (int(store.facts.attributes[f"{x}"]) for x in ("actions_per_state", "successors_per_action"))
    decoder = DeviceDecoder(store.facts.stored_fields, store.facts.frame_buffer_bytes, actions, width)
    for p in range(store.n_partitions):
        buffer = np.zeros(decoder.buffer_bytes, np.uint8)
        raw = store.read_frames(p, buffer[PLAN_BYTES:])
        plan = decoder.plan(raw, buffer)
        arrays, faults = decoded_on(device, decoder, plan, buffer[: plan.n_bytes])
        expected = store.read(p)[0]
        assert faults is None
        for name in ARRAYS:
            wanted = getattr(expected, name)
            found = arrays.get(name, np.empty(0, wanted.dtype))
            np.testing.assert_array_equal(found.astype(wanted.dtype), wanted, strict=True, err_msg=name)
        for name in ("index", "first_state", "n_states", "actions_per_state", "successors_per_action"):
            assert getattr(plan.raw, name) == getattr(expected, name)


def car(path: Path) -> Store:
    problem = make_problem("mountain-car", {"grid": "60,60"})
    return generate(problem, path, ConvertOptions(partition_shape=(30, 60), dtype="float32", threads=1))


def pendulum(path: Path) -> Store:
    problem = make_problem("double-pendulum", {"grid": "8,8,8,8"})
    return generate(problem, path, ConvertOptions(partition_shape=(8, 4, 8, 8), dtype="float32", threads=1))


def ragged(path: Path) -> Store:
    model = random_model(5, 400, durations=True, initial_values=True)
    return convert(ModelSource(model), path, ConvertOptions(partitions=3, threads=1))


def terminal(path: Path) -> Store:
    one = State((Action(1.0, {0: 0.5, 1: 0.5}),))
    model = Model((one, State((), 2.0), one, State((), -1.0)))
    return convert(ModelSource(model), path, ConvertOptions(partitions=2, threads=1))


def with_zstd(path: Path) -> Store:
    return recoded(ragged(path), "probabilities", "zstd", "shuffle")


STORES = {f.__name__: f for f in (car, pendulum, ragged, terminal, with_zstd)}


@pytest.mark.parametrize("name", STORES)
def test_whole_partitions_are_those_of_the_store(name: str, tmp_path: Path) -> None:
    assert_decoded_as_read(STORES[name](tmp_path / name), FencedDevice(0))


@pytest.mark.gpu
@pytest.mark.parametrize("name", STORES)
def test_whole_partitions_are_those_of_the_store_on_a_gpu(name: str, tmp_path: Path) -> None:
    assert_decoded_as_read(STORES[name](tmp_path / name), on_gpu())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_what_lz4_compresses_comes_back_on_a_gpu(kind: str) -> None:
    for seed in range(20):
        content = KINDS[kind](np.random.default_rng(seed), 1000 + seed**4)
        stream = lz4.LZ4().encode(content)[4:]
        if len(stream) != len(content):
            assert inflated(stream, len(content), on_gpu()) == (content, None)


def test_fields_that_the_cpu_decompresses_are_named(tmp_path: Path) -> None:
    store = with_zstd(tmp_path / "s")
    decoder = DeviceDecoder(store.facts.stored_fields, store.facts.frame_buffer_bytes, 0, 0)
    assert decoder.decoded_on_host == ("probabilities",)


def test_sizes_that_contradict_each_other_are_refused_before_anything_runs(tmp_path: Path) -> None:
    store = car(tmp_path / "s")
    decoder = DeviceDecoder(store.facts.stored_fields, store.facts.frame_buffer_bytes, 3, 3)
    buffer = np.zeros(decoder.buffer_bytes, np.uint8)
    raw = store.read_frames(0, buffer[PLAN_BYTES:])
    for change in ({"n_rows": raw.n_rows - 1}, {"n_transitions": 5}, {"actions_per_state": 0}):
        with pytest.raises(StoreError, match="of partition 0 cannot be decoded"):
            decoder.plan(dataclasses.replace(raw, **change), buffer)
