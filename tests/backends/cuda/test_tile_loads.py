"""What a load asks of a device, and what a frame that cannot be decoded leaves behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_device import EmulatedDevice
from forge import accept, chunk_path, write_frame
from tiled_engine import Engine, make

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.errors import StoreError
from ooc_mdp.store.blosc_frame import encode_frame
from ooc_mdp.store.encodings import encode


class CountingDevice(EmulatedDevice):
    """Counts what its streams are asked for."""

    def __init__(self) -> None:
        super().__init__(1 << 26)
        self.asked: Counter[str] = Counter()

    def stream(self, urgent: bool = False) -> Any:
        inner, asked = super().stream(), self.asked

        class Counting:
            def __getattr__(self, name: str) -> Any:
                asked[name] += 1
                return getattr(inner, name)

        return Counting()

    def compile(self, source: str, defines: Mapping[str, str | int], names: Sequence[str]) -> dict[str, Any]:
        return {name: self._counted(name, kernel) for name, kernel in super().compile(source, defines, names).items()}

    def _counted(self, name: str, kernel: Any) -> Any:
        asked = self.asked

        class Counted:
            prefer_shared_memory, blocks_at_once = kernel.prefer_shared_memory, kernel.blocks_at_once

            def __call__(self, *args: Any, **more: Any) -> None:
                asked[name] += 1
                kernel(*args, **more)

        return Counted()


def test_a_load_is_one_copy_each_way_and_a_launch_of_each_kernel(tmp_path: Path) -> None:
    device = CountingDevice()
    engine = Engine(make("car", tmp_path / "s"), 0.9, device)
    device.asked.clear()
    for loads, p in enumerate(range(3), 1):
        engine.load(p)
        kernels = ("decode_streams", "plane_sums", "plane_starts", "write_values", "lay_out", "lay_out_boundary")
        assert device.asked == dict.fromkeys(("upload", "clear", "download", "wait", *kernels), loads)


def test_a_frame_that_cannot_be_decoded_is_named_and_the_next_load_is_none_the_worse(tmp_path: Path) -> None:
    store = make("car", tmp_path / "s")
    path = chunk_path(store.path, "successors", 1)
    frame = bytearray(path.read_bytes()[:-4])
    intact = bytes(frame)
    frame[-40:] = bytes([0xFF] * 40)
    engine = Engine(store, 0.9, EmulatedDevice(1 << 26), slots=2)
    pipelines = 6
    for _ in range(pipelines + 1):
        write_frame(path, bytes(frame))
        accept(store)
        with pytest.raises(StoreError, match=r"successors of partition 1 .*cannot be decoded; make the store again"):
            engine.load(1)
        write_frame(path, intact)
        accept(store)
        engine.load(1)
        engine.sweep(1, SweepLimits(0.0, 2, 1e-3))
        engine.assert_that_the_bounds_are_true()
        engine.evict(1)


@pytest.mark.parametrize("name", ["action_ptr", "successor_ptr"])
@pytest.mark.parametrize("at", [3, -1])
def test_pointers_that_lead_anywhere_are_named_and_not_followed(name: str, at: int, tmp_path: Path) -> None:
    store = make("ragged", tmp_path / "s")
    meta, path = store.fields[name], chunk_path(store.path, name, 1)
    pointers = store.read_field(name, 1)[0].copy()
    pointers[at] = 4_000_000_000
    engine = Engine(store, 0.9, EmulatedDevice(1 << 26), slots=2)
    intact = path.read_bytes()
    write_frame(path, encode_frame(meta.field, pointers))
    accept(store)
    with pytest.raises(StoreError, match=rf"{name}.* of partition 1 .*cannot be decoded; make the store again"):
        engine.load(1)
    path.write_bytes(intact)
    accept(store)
    engine.load(1)
    engine.sweep(1, SweepLimits(0.0, 2, 1e-3))
    engine.assert_that_the_bounds_are_true()


@pytest.mark.parametrize("kind", ["car", "gridworld", "ragged"])
@pytest.mark.parametrize("name", ["successors", "halo"])
def test_rows_that_lead_nowhere_are_named_and_not_followed(kind: str, name: str, tmp_path: Path) -> None:
    store = make(kind, tmp_path / "s")
    meta, path = store.fields[name], chunk_path(store.path, name, 1)
    values = store.read_field(name, 1)[0].copy()
    assert values.max() < 250
    values[values == values.max()] = 255
    if meta.encoding is not None:
        values = encode(meta.encoding, values, store._row_layout(1, store.sizes(1), {}))
    engine = Engine(store, 0.9, EmulatedDevice(1 << 26), slots=2)
    intact = path.read_bytes()
    write_frame(path, encode_frame(meta.field, values.astype(meta.stored, copy=False)))
    accept(store)
    with pytest.raises(StoreError, match="rows of partition 1 lead to states that do not exist; make the store again"):
        engine.load(1)
    path.write_bytes(intact)
    accept(store)
    engine.load(1)
    engine.sweep(1, SweepLimits(0.0, 2, 1e-3))
    engine.assert_that_the_bounds_are_true()


def test_loads_on_many_threads_lie_as_they_would_alone(tmp_path: Path) -> None:
    store = make("pendulum", tmp_path / "s")
    alone, together = (Engine(store, 0.9, EmulatedDevice(1 << 26)) for _ in range(2))
    alone.load(*range(store.n_partitions))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(together.load, range(store.n_partitions)))
    for p in range(store.n_partitions):
        assert alone.inputs(p) == together.inputs(p)
        assert alone.measure(p, 0.0) == together.measure(p, 0.0)
        np.testing.assert_array_equal(alone.backend.values(), together.backend.values())
