"""How a partition comes into its slot: frames or a table on the host, a copy, decoding, and the layout as tiles.

    reading thread    read ─▶ page-locked buffer ─▶ pipeline: copy, decode_streams ... write_values, lay_out ─▶ slot

A *loading pipeline* is a stream with the memory that one load takes on the device; a few of them keep the link and the
decoding kernels busy while sweeps run. Everything here may be called from any thread.
"""

from __future__ import annotations

import queue
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.decode.frames import PLAN_BYTES, PLAN_FREE, DecodePlan, DeviceDecoder, decode_kernels
from ooc_mdp.backends.cuda.device import Device, Kernel, Stream
from ooc_mdp.backends.cuda.driver import Arguments
from ooc_mdp.backends.cuda.layout import ALIGNMENT, aligned
from ooc_mdp.backends.cuda.tiles.layout import SlotLayout, Tiling, halo_dtype, is_ragged
from ooc_mdp.backends.layout import SlotsTooSmall
from ooc_mdp.errors import StoreError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.partition import PartitionTable, RawPartition
from ooc_mdp.model.table import Loader

__all__ = ["TABLE_FIELDS", "Frames", "TileLoader"]

_LEAST_PIPELINES, _MOST_PIPELINES = 6, 12
"""Loads that the device works on at the same time: decompressing takes the time of the longest stream, most of which is
waiting, so that 12 loads take hardly longer than 6."""
_PIPELINES_BYTES = 512 << 20
"""Of the device, that more than the least may take."""
TABLE_FIELDS = (
    "action_ptr",
    "successor_ptr",
    "successors",
    "probabilities",
    "rewards",
    "durations",
    "terminal_rewards",
    "halo",
    "boundary",
)
_KNOWN_PARTITION = 8 << 10
"""Bytes in RAM of what is known of a partition's frames: a plan of 2 KiB, some fifty numbers and a dozen arrays."""
_TABLE = struct.Struct(f"<{len(TABLE_FIELDS)}Q2q")
"""struct Table of tiles/tiles.cuh: addresses of its arrays, states and halo states."""
_FAULTS = 4
"""Error words of a pipeline's kernels: that of lay_out, then the decoder's."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Frames:
    """A partition's frames in a page-locked buffer, and how they are decoded."""

    buffer: Bytes
    plan: DecodePlan

    @property
    def index(self) -> int:
        """Of the partition."""
        return self.plan.raw.index


@dataclass(slots=True)
class _Pipeline:
    stream: Stream
    frames: int
    scratch: int
    descriptor: int
    """Of a table that comes without frames, on the device."""
    faults: int
    """_FAULTS error words on the device, 0 until something goes wrong."""
    host: Bytes
    """Page-locked: the descriptor."""
    error_words: npt.NDArray[np.uint32]
    """uint32 [_FAULTS], page-locked: a copy of the faults on the host."""
    table: npt.NDArray[np.uint64]
    """uint64, without axes, as the next two: address of the load's struct Table."""
    partition: npt.NDArray[np.int32]
    slot: npt.NDArray[np.uint64]
    decode: Arguments
    lay_out: dict[str, Arguments]
    """Of each kernel that lays a table out: these, and what is the same in every load."""


def _decoder(facts: ModelFacts) -> DeviceDecoder | None:
    """What decodes a store's frames; None where tables come without."""
    if not facts.stored_fields:
        return None
    fields, shape = facts.stored_fields, (facts.actions_per_state, facts.successors_per_action)
    return DeviceDecoder(fields, facts.frame_buffer_bytes, *shape)


def _table_bytes(facts: ModelFacts) -> int:
    """Bytes of a table's arrays one after the other."""
    return facts.largest_table_bytes + (len(TABLE_FIELDS) + 1) * ALIGNMENT


def _load_bytes(facts: ModelFacts) -> tuple[int, int]:
    """Bytes of the device that one load takes: scratch, and frames."""
    decoder, table = _decoder(facts), _table_bytes(facts)
    return (table, 0) if decoder is None else (max(table, decoder.scratch_bytes), decoder.buffer_bytes)


def _pipeline_bytes(facts: ModelFacts) -> int:
    """Bytes of the device for one load at a time."""
    scratch, frames = _load_bytes(facts)
    return aligned(scratch) + aligned(frames) + 3 * ALIGNMENT


def _pipelines(facts: ModelFacts) -> int:
    """How many loads a device works on at the same time."""
    return min(_MOST_PIPELINES, max(_LEAST_PIPELINES, _PIPELINES_BYTES // _pipeline_bytes(facts)))


class TileLoader:
    """Loads partitions into slots.

    Parameters
    ----------
    device, kernels : where, and the kernels of tiles.
    engine : struct Engine, without axes.
    buffers : page-locked ones that no load takes at present, of all devices of a group.
    """

    def __init__(
        self,
        device: Device,
        facts: ModelFacts,
        tiling: Tiling,
        layout: SlotLayout,
        kernels: dict[str, Kernel],
        engine: npt.NDArray[Any],
        buffers: queue.SimpleQueue[Bytes],
    ) -> None:
        self._device = device
        self._facts = facts
        self._tiling = tiling
        self._layout = layout
        self._kernels = kernels
        self._engine = engine
        self._decoder = _decoder(facts)
        self._decode = {} if self._decoder is None else decode_kernels(device)
        states = tiling.extents.prod(axis=1)
        self._blocks = list(zip(tiling.per_partition.tolist(), (-(-states // 256)).tolist(), strict=True))
        """Of each partition: those that lay out tiles, and boundaries."""
        self._shared = layout.lay_out_shared(tiling)
        self._keeps_table = is_ragged(facts)
        self._pipelines: queue.SimpleQueue[_Pipeline] = queue.SimpleQueue()
        self._buffers = buffers
        for _ in range(_pipelines(facts)):
            self._pipelines.put(self._pipeline())

    @staticmethod
    def device_bytes(facts: ModelFacts) -> int:
        """Device memory of all pipelines."""
        return _pipelines(facts) * _pipeline_bytes(facts)

    @staticmethod
    def host_bytes(facts: ModelFacts) -> int:
        """What is kept of headers, so that frames need not be looked at again."""
        return _KNOWN_PARTITION * facts.n_partitions if facts.stored_fields else 0

    @staticmethod
    def buffer_bytes(facts: ModelFacts) -> int:
        """Host memory that one load takes."""
        decoder = _decoder(facts)
        return _table_bytes(facts) if decoder is None else decoder.buffer_bytes

    def _pipeline(self) -> _Pipeline:
        stream = self._device.stream()
        small = self._device.allocate(2 * ALIGNMENT)
        faults = small + ALIGNMENT
        stream.clear(faults, 4 * _FAULTS)
        scratch_bytes, frames_bytes = _load_bytes(self._facts)
        frames = self._device.allocate(frames_bytes) if frames_bytes else 0
        scratch = self._device.allocate(scratch_bytes)
        host = self._device.pinned(2 * ALIGNMENT)
        error_words = host[ALIGNMENT:].view(np.uint32)[:_FAULTS]
        table, partition, slot = np.array(0, np.uint64), np.array(0, np.int32), np.array(0, np.uint64)
        load = self._engine, table, partition, slot
        with_faults = *load, np.uint64(faults)
        lay_out = {
            "lay_out": Arguments(with_faults),
            "lay_out_boundary": Arguments(load),
            "keep_table": Arguments((*with_faults, np.int64(self._layout.table_room))),
        }
        decode = DeviceDecoder.arguments(frames, scratch, faults + 4)
        return _Pipeline(
            stream, frames, scratch, small, faults, host, error_words, table, partition, slot, decode, lay_out
        )

    def reader(self, loader: Loader) -> Callable[[int], tuple[PartitionTable | Frames, int]]:
        """Reads a partition for :meth:`load`, its frames where it has some, and says how many bytes came from disk."""
        if self._decoder is None or loader.read_frames is None:
            return loader.read
        return partial(self._read, loader.read_frames, self._decoder)

    def _read(
        self, read_frames: Callable[[int, Bytes], RawPartition], decoder: DeviceDecoder, p: int
    ) -> tuple[Frames, int]:
        buffer = self._buffer(decoder.buffer_bytes)
        try:
            raw = read_frames(p, buffer[PLAN_BYTES:])
            return Frames(buffer, decoder.plan(raw, buffer)), raw.read_bytes
        except BaseException:
            self._buffers.put(buffer)
            raise

    def _buffer(self, nbytes: int) -> Bytes:
        try:
            buffer = self._buffers.get_nowait()
        except queue.Empty:
            return self._device.pinned(nbytes)
        return buffer if buffer.size >= nbytes else self._device.pinned(nbytes)

    def load(self, table: PartitionTable | Frames, slot: int) -> tuple[int, int]:
        """Lay a partition out in a slot; returns when it is there.

        Returns
        -------
        Its index and its number of states.

        Raises
        ------
        SlotsTooSmall : a tile reads more states than a slot has room for.
        StoreError : a frame cannot be decoded.
        """
        pipeline = self._pipelines.get()
        try:
            if isinstance(table, Frames):
                index, states = table.index, table.plan.raw.n_states
                try:
                    self._decode_frames(pipeline, table)
                    self._lay_out(pipeline, index, slot, pipeline.frames + PLAN_FREE)
                finally:
                    self._buffers.put(table.buffer)
            else:
                index, states = table.index, table.n_states
                self._copy_table(pipeline, table)
                self._lay_out(pipeline, index, slot, pipeline.descriptor)
            return index, states
        finally:
            self._pipelines.put(pipeline)

    def _decode_frames(self, pipeline: _Pipeline, frames: Frames) -> None:
        plan, decoder = frames.plan, self._decoder
        assert decoder is not None
        found = (plan.offsets.get(name, (0, 0)) for name in TABLE_FIELDS)
        addresses = [pipeline.scratch + offset if count else 0 for offset, count in found]
        _TABLE.pack_into(frames.buffer.data, PLAN_FREE, *addresses, plan.raw.n_states, plan.raw.n_halo)
        pipeline.stream.upload(pipeline.frames, frames.buffer[: plan.n_bytes])
        decoder.launch(self._decode, pipeline.stream, plan, pipeline.decode)

    def _copy_table(self, pipeline: _Pipeline, table: PartitionTable) -> None:
        """The table's arrays one after the other in the pipeline's scratch, and its descriptor."""
        model = self._facts
        types = {"halo": halo_dtype(model), "durations": model.duration_dtype, "boundary": np.dtype(np.uint8)}
        buffer = self._buffer(_table_bytes(self._facts))
        try:
            addresses = []
            offset = 0
            converted: list[Any] = []
            for name in TABLE_FIELDS:
                array: Any = getattr(table, name)
                dtype = types.get(name) or array.dtype
                nbytes = array.size * dtype.itemsize
                addresses.append(pipeline.scratch + offset if array.size else 0)
                if isinstance(array, np.ndarray):
                    buffer[offset : offset + nbytes].view(dtype)[:] = array.reshape(-1)
                    pipeline.stream.upload(pipeline.scratch + offset, buffer[offset : offset + nbytes])
                elif array.size:
                    there = array.astype(dtype, copy=False)
                    pipeline.stream.follow()  # it was made on another
                    pipeline.stream.copy(pipeline.scratch + offset, there.data.ptr, nbytes)
                    converted.append(there)  # kept until the copies are done
                offset += aligned(nbytes)
            _TABLE.pack_into(pipeline.host.data, 0, *addresses, table.n_states, table.halo.size)
            pipeline.stream.upload(pipeline.descriptor, pipeline.host[: _TABLE.size])
            pipeline.stream.wait()
        finally:
            self._buffers.put(buffer)

    def _lay_out(self, pipeline: _Pipeline, index: int, slot: int, descriptor: int) -> None:
        stream, arguments = pipeline.stream, pipeline.lay_out
        tiles, blocks = self._blocks[index]
        pipeline.table[()], pipeline.partition[()], pipeline.slot[()] = descriptor, index, slot
        stream.clear(slot + self._layout.offsets["boundary_count"], 4)
        self._kernels["lay_out"](stream, tiles, self._tiling.threads, arguments["lay_out"], self._shared)
        self._kernels["lay_out_boundary"](stream, blocks, 256, arguments["lay_out_boundary"])
        if self._keeps_table:
            self._kernels["keep_table"](stream, 8, 256, arguments["keep_table"])
        stream.download(pipeline.error_words, pipeline.faults)
        stream.wait()
        if pipeline.error_words.any():
            self._refuse(pipeline, index)

    def _refuse(self, pipeline: _Pipeline, index: int) -> NoReturn:
        """Say what the device found, and let the pipeline's next load begin without it."""
        undecoded = None if self._decoder is None else self._decoder.describe_faults(pipeline.error_words[1:3])
        pipeline.stream.clear(pipeline.faults, 4 * _FAULTS)
        pipeline.stream.wait()  # larger slots may follow, for which everything here is freed
        if undecoded is not None:
            raise StoreError(f"{undecoded}; make the store again")
        if pipeline.error_words[3]:
            raise StoreError(f"rows of partition {index} lead to states that do not exist; make the store again")
        raise SlotsTooSmall(f"a tile of partition {index} reads more than {self._layout.halo} states outside")
