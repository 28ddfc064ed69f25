"""Encodings of a store's fields, decoded on a device: successors, probabilities, durations, plain values.

The kernels run on the CPU here (`emulated_cuda`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from device_decoding import FencedDevice, decoded, raw_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numcodecs import blosc
from row_layouts import layouts

from ooc_mdp.model.partition import RawField, RawPartition, StoredField
from ooc_mdp.store.encodings import RowLayout, encode
from ooc_mdp.store.layout import PartitionSizes


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
