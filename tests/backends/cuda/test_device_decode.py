"""Decoding on a device: any LZ4 stream, every encoding, whole partitions; damage never leaves the arrays.

The kernels run on the CPU here (`emulated_cuda`), and the same comparisons on a GPU where there is one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emulated_cuda import Module, compile_kernels, fenced
from emulated_device import EmulatedDevice
from frame_cases import recoded
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numcodecs import blosc, lz4
from row_layouts import layouts
from store_models import Action, Model, ModelSource, State, random_model

from ooc_mdp.backends.cuda.decode.frames import PLAN_BYTES, DecodePlan, DeviceDecoder, decode_kernels
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.model.partition import PartitionTable, RawField, RawPartition, StoredField
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store import Store
from ooc_mdp.store.blosc_frame import frame_header
from ooc_mdp.store.encodings import RowLayout, encode
from ooc_mdp.store.layout import PartitionSizes

ARRAYS = [f.name for f in dataclasses.fields(PartitionTable)][5:]


class SeededKernel:
    """A kernel on the CPU, its blocks and threads in the order of a seed."""

    def __init__(self, module: Module, name: str, seed: int | None) -> None:
        self._module, self._name, self._seed = module, name, seed

    def __call__(self, stream: Any, grid: int, block: int, args: Sequence[Any], shared: int = 0) -> None:
        self._module.launch(self._name, grid, block, args, seed=self._seed, shared=shared)

    def blocks_at_once(self, block: int, shared: int) -> int:
        return 1

    def prefer_shared_memory(self) -> None:
        pass


class FencedDevice(EmulatedDevice):
    """Memory that cannot be accessed follows each allocation, but for up to 15 bytes; blocks are run in any order."""

    def __init__(self, seed: int | None = None, ring: str = "32768u") -> None:
        super().__init__()
        self._seed, self._ring = seed, ring

    def allocate(self, nbytes: int) -> int:
        block = fenced(np.full(nbytes, 0xAA, np.uint8))
        at = int(block.ctypes.data)
        self._blocks[at] = block
        return at

    def compile(self, source: str, defines: Mapping[str, str | int], names: Sequence[str]) -> dict[str, Any]:
        module = compile_kernels(source, names, {"RING": self._ring, **defines})
        return {name: SeededKernel(module, name, self._seed) for name in names}


@functools.cache
def on_gpu() -> Device:
    return CudaDevice(0)


def decoded_on(
    device: Device, decoder: DeviceDecoder, plan: DecodePlan, buffer: npt.NDArray[np.uint8]
) -> tuple[dict[str, np.ndarray], str | None]:
    """The table's arrays by name, and what could not be decoded."""
    stream = device.stream()
    at, scratch, words = (device.allocate(n) for n in (buffer.nbytes, decoder.scratch_bytes, 8))
    stream.upload(at, buffer)
    stream.clear(words, 8)
    decoder.launch(decode_kernels(device), stream, plan, at, scratch, words)
    arrays = {}
    for name, (offset, length) in decoder.offsets(plan).items():
        arrays[name] = np.empty(length, decoder.dtypes[name])
        if length:
            stream.download(arrays[name], scratch + offset)
    faults = np.empty(2, np.uint32)
    stream.download(faults, words)
    stream.wait()
    device.free_all()
    return arrays, decoder.describe_faults(faults)


# One field of a partition, without a store.


def raw_of(field: StoredField, content: bytes, layout: RowLayout, count: int) -> RawPartition:
    """A partition of which only this field is there; `content` is a blosc frame."""
    header = frame_header(np.frombuffer(content, np.uint8), field.max_len * field.stored.itemsize)
    raw = RawField(
        field,
        0,
        len(content),
        count,
        0 if header.uncompressed else header.block_bytes,
        0 if header.uncompressed else header.splits,
        header.shuffled and not header.uncompressed,
        16 if header.uncompressed else 0,
    )
    s = layout.sizes
    sizes = (s.states, s.rows, s.transitions, s.halo, layout.actions, layout.width)
    return RawPartition(0, 0, *sizes, (raw,), len(content), 0)


def decoded(device: Device, raw: RawPartition, frames: bytes) -> tuple[dict[str, np.ndarray], str | None]:
    fields = [f.field for f in raw.fields]
    decoder = DeviceDecoder(fields, len(frames) + 4, raw.actions_per_state, raw.successors_per_action)
    buffer = np.zeros(decoder.buffer_bytes, np.uint8)
    buffer[PLAN_BYTES : PLAN_BYTES + len(frames)] = np.frombuffer(frames, np.uint8)
    return decoded_on(device, decoder, decoder.plan(raw, buffer), buffer)


def frame_of(stream: bytes, size: int) -> bytes:
    """A blosc frame of one block that is one stream of `size` bytes, not shuffled."""
    head = bytes([2, 1, 1 << 5 | 0x10, 1])
    sizes = np.array([size, size, 16 + 4 + 4 + len(stream), 20, len(stream)], "<u4")
    return head + sizes.tobytes() + stream


def bytes_field(n: int) -> StoredField:
    return StoredField("boundary", np.dtype(bool), np.dtype(bool), None, n, n, True)


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


# Encodings.


def codec(itemsize: int, level: int = 9, shuffle: int = blosc.SHUFFLE, block: int = 0) -> blosc.Blosc:
    return blosc.Blosc("lz4", level, shuffle, block, typesize=itemsize)


def encoded_field(
    name: str, encoding: str | None, stored: np.ndarray, dtype: Any, padding: int, most: int, block: int = 0
) -> tuple[StoredField, bytes]:
    padded = np.zeros(max(stored.size + padding, 1), stored.dtype)
    padded[: stored.size] = stored
    field = StoredField(name, np.dtype(dtype), stored.dtype, encoding, padded.size, most, True)
    return field, codec(stored.itemsize, block=block).encode(padded)


def with_pointers(field: StoredField, content: bytes, layout: RowLayout, count: int) -> tuple[RawPartition, bytes]:
    """The field behind the pointers that ragged rows need."""
    raws: list[RawField] = []
    frames = b""
    for name, ptr in (("action_ptr", layout.action_ptr), ("successor_ptr", layout.successor_ptr)):
        if ptr.size:
            pointers, frame = encoded_field(name, None, ptr, np.uint32, 5, ptr.size)
            raw = raw_of(pointers, frame, layout, ptr.size).fields[0]
            raws.append(dataclasses.replace(raw, offset=len(frames)))
            frames += frame + bytes(-len(frame) % 256)
    raw = raw_of(field, content, layout, count)
    raws.append(dataclasses.replace(raw.fields[0], offset=len(frames)))
    frames += content
    return dataclasses.replace(raw, fields=tuple(raws), n_bytes=len(frames)), frames


def many_states(layout: RowLayout, factor: int) -> RowLayout:
    """The same rows over and over."""
    s = layout.sizes
    sizes = PartitionSizes(s.states * factor, s.rows * factor, s.transitions * factor, 0)
    pointers = []
    for ptr in (layout.action_ptr, layout.successor_ptr):
        steps = np.tile(np.diff(ptr.astype(np.int64)), factor)
        pointers.append(np.concatenate([[0], np.cumsum(steps)]).astype(np.uint32) if ptr.size else ptr)
    return RowLayout(sizes, layout.actions, layout.width, *pointers)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    layout=layouts(),
    factor=st.sampled_from([1, 3, 200]),
    dtype=st.sampled_from(["u1", "u2", "u4"]),
    padding=st.sampled_from([0, 7, 5000]),
    seed=st.integers(0, 2**32),
)
def test_row_differences_become_successors(layout: RowLayout, factor: int, dtype: str, padding: int, seed: int) -> None:
    layout = many_states(layout, factor)
    n = layout.sizes.transitions
    values = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, n, dtype, endpoint=True)
    stored = encode("row-delta", values, layout)
    field, frame = encoded_field("successors", "row-delta", stored, dtype, padding, n)
    raw, frames = with_pointers(field, frame, layout, n)
    arrays, faults = decoded(FencedDevice(), raw, frames)
    assert faults is None
    np.testing.assert_array_equal(arrays["successors"], values, strict=True)
    for name, ptr in (("action_ptr", layout.action_ptr), ("successor_ptr", layout.successor_ptr)):
        if ptr.size:
            np.testing.assert_array_equal(arrays[name], ptr, strict=True)


def probabilities_of(layout: RowLayout, dtype: str, seed: int) -> np.ndarray:
    """Rows of multiples of 2**-24 that sum to 1."""
    rng = np.random.default_rng(seed)
    ptr = layout.successor_ptr if layout.successor_ptr.size else np.arange(layout.sizes.rows + 1) * layout.width
    out = np.empty(layout.sizes.transitions, dtype)
    for lo, hi in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        cuts = np.sort(rng.integers(0, 2**24 + 1, hi - lo - 1))
        out[lo:hi] = np.diff(np.concatenate([[0], cuts, [2**24]])) * 2.0**-24
    return out


@pytest.mark.parametrize("encoding", ["fixed24", "fixed24-delta2"])
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    layout=layouts(),
    uniform=layouts(uniform=True),
    factor=st.sampled_from([1, 3, 130]),
    dtype=st.sampled_from(["f4", "f8"]),
    padding=st.sampled_from([0, 3000]),
    seed=st.integers(0, 2**32),
)
def test_weights_become_probabilities(
    encoding: str, layout: RowLayout, uniform: RowLayout, factor: int, dtype: str, padding: int, seed: int
) -> None:
    layout = many_states(layout if encoding == "fixed24" else uniform, factor)
    values = probabilities_of(layout, dtype, seed)
    stored = encode(encoding, values, layout)
    field, frame = encoded_field("probabilities", encoding, stored, dtype, padding, values.size)
    raw, frames = with_pointers(field, frame, layout, stored.size)
    arrays, faults = decoded(FencedDevice(seed % 5), raw, frames)
    assert faults is None
    np.testing.assert_array_equal(arrays["probabilities"], values, strict=True)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    n=st.one_of(st.integers(1, 300), st.sampled_from([127, 128, 129, 4095, 4096, 4097, 9000])),
    actions=st.integers(1, 4),
    smooth=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_bit_planes_become_durations(n: int, actions: int, smooth: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, n * actions, np.uint32)
    durations = np.cumsum(rng.random(n * actions)).astype(np.float32) if smooth else bits.view(np.float32)
    durations[np.isnan(durations)] = np.inf  # whose bits a conversion may change
    layout = RowLayout(PartitionSizes(n, n * actions, n * actions, 0), actions, 1)
    stored = encode("float32-delta2", durations, layout)
    field, frame = encoded_field("durations", "float32-delta2", stored, "f8", 0, durations.size)
    arrays, faults = decoded(FencedDevice(), raw_of(field, frame, layout, stored.size), frame)
    assert faults is None
    np.testing.assert_array_equal(arrays["durations"].view(np.uint32), durations.view(np.uint32), strict=True)


@pytest.mark.parametrize("dtype", ["bool", "u1", "u2", "u4", "i8", "f4", "f8"])
@pytest.mark.parametrize("block", [0, 1 << 12])
def test_values_as_they_are_come_through_every_kind_of_frame(dtype: str, block: int) -> None:
    rng = np.random.default_rng(0)
    for n, padding in ((1, 0), (130, 0), (4097, 900), (70_001, 3), (9, 100_000)):
        for top in (1, 2, 200, 2**31):
            values = rng.integers(0, top, n).astype(dtype)
            field, frame = encoded_field("halo", None, values, dtype, padding, n, block)
            layout = RowLayout(PartitionSizes(1, 1, 1, n), 1, 1)
            arrays, faults = decoded(FencedDevice(), raw_of(field, frame, layout, n), frame)
            assert faults is None
            np.testing.assert_array_equal(arrays["halo"].view(dtype), values, strict=True)


def test_pointers_that_do_not_rise_are_reported() -> None:
    layout = RowLayout(PartitionSizes(3, 4, 4, 0), 0, 1, np.array([0, 1, 3, 4], np.uint32))
    for ptr in ([0, 3, 1, 4], [1, 1, 3, 4], [0, 1, 3, 5], [0, 1, 3, 2**32 - 1]):
        wrong = dataclasses.replace(layout, action_ptr=np.array(ptr, np.uint32))
        field, frame = encoded_field("successors", "row-delta", np.zeros(4, "u1"), "u1", 0, 4)
        raw, frames = with_pointers(field, frame, wrong, 4)
        faults = decoded(FencedDevice(), raw, frames)[1]
        assert faults is not None
        assert faults.startswith("action_ptr of partition 0")
    for ptr in ([0, 2, 1, 4], [0, 1, 3, 5], [0, 2**31, 2**31, 4], [0, 2**32 - 1, 0, 4]):
        wrong = RowLayout(PartitionSizes(3, 3, 4, 0), 1, 0, successor_ptr=np.array(ptr, np.uint32))
        field, frame = encoded_field("successors", "row-delta", np.zeros(4, "u1"), "u1", 0, 4)
        raw, frames = with_pointers(field, frame, wrong, 4)
        faults = decoded(FencedDevice(), raw, frames)[1]
        assert faults is not None
        assert faults.startswith("successor_ptr of partition 0")


def test_rows_that_leave_their_weights_are_reported() -> None:
    for ptr in ([0, 0, 4], [0, 4, 4], [0, 5, 4], [4, 0, 4], [0, 2**31, 4]):
        layout = RowLayout(PartitionSizes(2, 2, 4, 0), 1, 0, successor_ptr=np.array(ptr, np.uint32))
        field, frame = encoded_field("probabilities", "fixed24", np.ones(2, "u4"), "f4", 0, 4)
        raw, frames = with_pointers(field, frame, layout, 2)
        assert decoded(FencedDevice(), raw, frames)[1] is not None


# Whole partitions.


def assert_decoded_as_read(store: Store, device: Device) -> None:
    actions, width = (int(store.attributes[f"{x}"]) for x in ("actions_per_state", "successors_per_action"))
    decoder = DeviceDecoder(store.stored_fields, store.frame_buffer_bytes, actions, width)
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
    decoder = DeviceDecoder(store.stored_fields, store.frame_buffer_bytes, 0, 0)
    assert decoder.decoded_on_host == ("probabilities",)


def test_sizes_that_contradict_each_other_are_refused_before_anything_runs(tmp_path: Path) -> None:
    store = car(tmp_path / "s")
    decoder = DeviceDecoder(store.stored_fields, store.frame_buffer_bytes, 3, 3)
    buffer = np.zeros(decoder.buffer_bytes, np.uint8)
    raw = store.read_frames(0, buffer[PLAN_BYTES:])
    for change in ({"n_rows": raw.n_rows - 1}, {"n_transitions": 5}, {"actions_per_state": 0}):
        with pytest.raises(StoreError, match="of partition 0 cannot be decoded"):
            decoder.plan(dataclasses.replace(raw, **change), buffer)
