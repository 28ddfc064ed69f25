"""Partitions decompressed and decoded on a device, from chunks as they are on disk to the arrays of a PartitionTable.

    host buffer     | plan | frames of Store.read_frames |      one copy brings it to the device's buffer
    device scratch  | decompressed blocks | sums of planes | arrays of the table |

:class:`DeviceDecoder` says how large both must be, plans a partition on the host (:meth:`DeviceDecoder.plan`, any
thread: arithmetic on what headers say) and launches up to four kernels of ``decode/decode.cu``
(:meth:`DeviceDecoder.launch`), which allocate nothing and wait for nothing. This module knows neither files nor caches.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.device import Device, Kernel, Stream
from ooc_mdp.backends.cuda.driver import Arguments
from ooc_mdp.backends.cuda.layout import aligned
from ooc_mdp.backends.cuda.sources import read_sources
from ooc_mdp.errors import StoreError
from ooc_mdp.model.partition import RawField, RawPartition, StoredField

__all__ = [
    "KERNELS",
    "PLAN_BYTES",
    "PLAN_FREE",
    "DecodePlan",
    "DeviceDecoder",
    "decode_kernels",
]

KERNELS = ("decode_streams", "plane_sums", "plane_starts", "write_values")
"""In the order of their launches."""
PLAN_BYTES = 2048
"""Bytes at the start of the buffer that the plan takes; frames follow."""

_MAX_FIELDS = 10
_RUN = 128
_WARPS = 8
_VALUES = 4096
"""RUN, WARPS and VALUES of decode/decode.cu."""
_FORMS = {None: 0, "row-delta": 1, "fixed24": 2, "fixed24-delta2": 3, "float32-delta2": 4}

_FIELD = struct.Struct("<7Q12I")
"""struct Field of decode/decode.cu."""
_PLAN = struct.Struct("<3Q6I")
"""What follows _MAX_FIELDS of them in struct Plan."""
PLAN_FREE = aligned(_MAX_FIELDS * _FIELD.size + _PLAN.size)
"""From here to PLAN_BYTES the buffer is free for callers that want something else to come with the copy."""

_LENGTHS = {
    "action_ptr": "states+1",
    "successor_ptr": "rows+1",
    "successors": "transitions",
    "probabilities": "transitions",
    "rewards": "rows",
    "durations": "rows",
    "terminal_rewards": "states",
    "initial_values": "states",
    "halo": "halo",
    "boundary": "states",
}


def decode_kernels(device: Device) -> dict[str, Kernel]:
    """The kernels of ``decode/decode.cu``, compiled for a device."""
    kernels = device.compile(read_sources("decode/decode.cu"), {}, KERNELS)
    for kernel in kernels.values():
        kernel.prefer_shared_memory()  # streams under way on a multiprocessor are bounded by its shared memory
    return kernels


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What one partition's launches need."""

    raw: RawPartition
    head: npt.NDArray[np.uint8]
    """uint8 [PLAN_BYTES]; struct Plan, with which the buffer begins."""
    offsets: Mapping[str, tuple[int, int]]
    """Where the arrays of the table lie in the scratch, by field: first byte and number of values."""
    n_bytes: int
    """Bytes from the start of the host's buffer that the device must have."""
    streams: int
    """Thread blocks of each kernel; none of 0 is launched."""
    sum_blocks: int
    planes: int
    write_blocks: int


@dataclass(frozen=True, slots=True)
class _Area:
    """Where one field lies in the scratch."""

    blocks: int
    sums: int
    values: int
    dtype: np.dtype[Any]
    """Of the table's array on the device."""


class DeviceDecoder:
    """Decodes partitions of one store.

    Parameters
    ----------
    fields : ``Store.stored_fields``.
    frame_bytes : ``Store.frame_buffer_bytes``.
    actions, width : the store's actions_per_state and successors_per_action.
    """

    def __init__(self, fields: Sequence[StoredField], frame_bytes: int, actions: int, width: int) -> None:
        self._areas: dict[str, _Area] = {}
        self._fields = tuple(fields)
        self._plans: dict[int, DecodePlan] = {}
        self.buffer_bytes = PLAN_BYTES + frame_bytes
        """Bytes of the host's buffer, and of the device's, for one partition."""
        place = 0

        def take(n_bytes: int) -> int:
            nonlocal place
            start, place = place, aligned(place + n_bytes)
            return start

        for field in self._fields:
            dtype = _device_dtype(field)
            blocks = take(field.max_len * field.stored.itemsize if field.compressed else 0)
            planes = _planes(field.encoding, actions, width)
            # planes * n values are stored, in runs of each plane
            sums = take(8 * (field.max_len // _RUN + planes) if planes else 0)
            self._areas[field.name] = _Area(blocks, sums, take(field.max_table_len * dtype.itemsize), dtype)
        self.scratch_bytes = place
        """Bytes of device memory that one partition's decoding takes; the table's arrays lie in it."""

    @property
    def decoded_on_host(self) -> tuple[str, ...]:
        """Fields that `Store.read_frames` decompresses on the CPU, because the device knows LZ4 only."""
        return tuple(field.name for field in self._fields if not field.compressed)

    def plan(self, raw: RawPartition, buffer: npt.NDArray[np.uint8]) -> DecodePlan:
        """Plan a partition that `Store.read_frames` has put at `PLAN_BYTES` of the buffer; any thread.

        The plan is kept for the next time that the same `raw` comes.

        Parameters
        ----------
        buffer : uint8 [buffer_bytes] or more on the host; its first PLAN_BYTES are written, 0 from PLAN_FREE on.

        Raises
        ------
        StoreError : sizes contradict each other.
        """
        plan = self._plans.get(raw.index)
        if plan is None or plan.raw is not raw:
            plan = self._plans[raw.index] = self._planned(raw)
        buffer[:PLAN_BYTES] = plan.head
        return plan

    def _planned(self, raw: RawPartition) -> DecodePlan:
        """Arithmetic on what headers say."""
        length_of = _lengths(raw)
        runs = -(-raw.n_states // _RUN)
        pointers = {"action_ptr": _MAX_FIELDS, "successor_ptr": _MAX_FIELDS}
        streams = sums = planes = writes = 0
        head = np.zeros(PLAN_BYTES, np.uint8)
        for number, field in enumerate(raw.fields):
            stored = field.field
            name, form = stored.name, stored.encoding
            self._check(raw, field, length_of[_LENGTHS[name]])
            area = self._areas[name]
            n_planes = _planes(form, raw.actions_per_state, raw.successors_per_action)
            last_pointer = 0
            if name in pointers:
                pointers[name] = number
                last_pointer = raw.n_rows if name == "action_ptr" else raw.n_transitions
            _FIELD.pack_into(
                head.data,
                number * _FIELD.size,
                field.offset + field.values_at,
                field.n_bytes - field.values_at,
                area.blocks,
                area.sums,
                area.values,
                field.count,
                last_pointer,
                field.length,
                field.block_bytes,
                field.streams,
                stored.stored.itemsize,
                area.dtype.itemsize,
                field.shuffled,
                _FORMS[form],
                n_planes,
                streams,
                sums,
                planes,
                writes,
            )
            streams += _streams(field)
            sums += n_planes * runs
            planes += n_planes if runs else 0
            writes += _write_blocks(raw, field, runs)
        _PLAN.pack_into(
            head.data,
            _MAX_FIELDS * _FIELD.size,
            raw.n_states,
            raw.n_rows,
            raw.n_transitions,
            raw.actions_per_state,
            raw.successors_per_action,
            len(raw.fields),
            pointers["action_ptr"],
            pointers["successor_ptr"],
            raw.index,
        )
        names = [field.field.name for field in raw.fields]
        offsets = {name: (self._areas[name].values, length_of[_LENGTHS[name]]) for name in names}
        return DecodePlan(raw, head, offsets, PLAN_BYTES + raw.n_bytes, streams, -(-sums // _WARPS), planes, writes)

    @staticmethod
    def arguments(buffer: int, scratch: int, faults: int) -> Arguments:
        """Of the kernels, for any partition.

        Parameters
        ----------
        buffer : address of a buffer; of the partition's, the first `plan.n_bytes` must be there.
        scratch : address of scratch_bytes, a multiple of 256.
        faults : address of two words, 0 before the first launch; what could not be decoded (:meth:`describe_faults`).
        """
        return Arguments((np.uint64(buffer), np.uint32(PLAN_BYTES), np.uint64(scratch), np.uint64(faults)))

    def launch(self, kernels: Mapping[str, Kernel], stream: Stream, plan: DecodePlan, arguments: Arguments) -> None:
        """Launch a planned partition's kernels on a stream; nothing is waited for.

        Once they have ended, the arrays of the table lie in the scratch (`DecodePlan.offsets`) and hold what
        ``Store.read`` gives, but for some types (:attr:`dtypes`).

        Parameters
        ----------
        kernels : as :func:`decode_kernels` gives them.
        """
        grids = (plan.streams, plan.sum_blocks, plan.planes, plan.write_blocks)
        threads = (32, 32 * _WARPS, 32, 32 * _WARPS)
        for name, grid, block in zip(KERNELS, grids, threads, strict=True):
            if grid:
                kernels[name](stream, grid, block, arguments)

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Types of the table's arrays on the device, by field: durations are float32 where 32 bits of them are stored,
        halo is as stored and boundary uint8."""
        return {name: area.dtype for name, area in self._areas.items()}

    def describe_faults(self, words: npt.NDArray[np.uint32]) -> str | None:
        """What could not be decoded since the two words were 0, or None.

        Checksums hold before anything is decoded, so that only a chunk that was written wrong can be the reason.
        """
        fields, partition = (int(x) for x in words)
        if not fields:
            return None
        names = [field.name for number, field in enumerate(self._fields) if fields >> number & 1]
        return f"{' and '.join(names)} of partition {partition - 1} (and maybe of others) cannot be decoded"

    def _check(self, raw: RawPartition, field: RawField, length: int) -> None:
        """Refuse what would lead the kernels out of their arrays; `length` of the field in the table."""
        stored = field.field
        n, a, k = raw.n_states, raw.actions_per_state, raw.successors_per_action
        wanted = length - raw.n_rows if stored.encoding in ("fixed24", "fixed24-delta2") else length
        faults = []
        if a and n * a != raw.n_rows:
            faults.append(f"{n} times {a} is not {raw.n_rows}")
        if k and raw.n_rows * k != raw.n_transitions:
            faults.append(f"{raw.n_rows} times {k} is not {raw.n_transitions}")
        if field.count != wanted or not field.count <= field.length <= stored.max_len or length > stored.max_table_len:
            faults.append(f"{field.count} of {field.length} values for {length}")
        if not a and "action_ptr" not in self._areas:
            faults.append("there is no action_ptr")
        if not k and "successor_ptr" not in self._areas:
            faults.append("there is no successor_ptr")
        if faults:
            raise StoreError(
                f"field {stored.name} of partition {raw.index} cannot be decoded: {'; '.join(faults)}; make the "
                "store again"
            )


def _device_dtype(field: StoredField) -> np.dtype[Any]:
    """Type of a field's array on the device."""
    if field.encoding == "float32-delta2":
        return np.dtype(np.float32)
    if field.encoding is not None:
        return field.dtype
    return np.dtype(np.uint8) if field.stored == np.bool_ else field.stored


def _planes(encoding: str | None, actions: int, width: int) -> int:
    match encoding:
        case "fixed24-delta2":
            return actions * (width - 1)
        case "float32-delta2":
            return actions
        case _:
            return 0


def _lengths(raw: RawPartition) -> dict[str, int]:
    """Values of a field in the table, by what its values belong to (`_LENGTHS`)."""
    return {
        "states": raw.n_states,
        "states+1": raw.n_states + 1,
        "rows": raw.n_rows,
        "rows+1": raw.n_rows + 1,
        "transitions": raw.n_transitions,
        "halo": raw.n_halo,
    }


def _streams(field: RawField) -> int:
    """Streams of the blocks that hold the values in use."""
    if field.block_bytes == 0:
        return 0
    size = field.field.stored.itemsize
    blocks = -(-field.count * size // field.block_bytes)
    whole = field.length * size // field.block_bytes
    return min(blocks, whole) * field.streams + (blocks > whole)


def _write_blocks(raw: RawPartition, field: RawField, runs: int) -> int:
    match field.field.encoding:
        case "fixed24-delta2" | "float32-delta2":
            return -(-raw.actions_per_state * runs // _WARPS)
        case "row-delta" | "fixed24":
            return -(-raw.n_rows // _VALUES)
        case _:
            return -(-field.count // _VALUES)
