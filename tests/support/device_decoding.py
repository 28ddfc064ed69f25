"""Decoding of one field or a whole partition on a device whose allocations are followed by memory that faults."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from emulated_cuda import Module, compile_kernels, fenced
from emulated_device import EmulatedDevice

from ooc_mdp.backends.cuda.decode.frames import PLAN_BYTES, DecodePlan, DeviceDecoder, decode_kernels
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.model.partition import PartitionTable, RawField, RawPartition, StoredField
from ooc_mdp.store.blosc_frame import frame_header
from ooc_mdp.store.encodings import RowLayout

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
    decoder.launch(decode_kernels(device), stream, plan, decoder.arguments(at, scratch, words))
    arrays = {}
    for name, (offset, length) in plan.offsets.items():
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
        field.max_len,
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
