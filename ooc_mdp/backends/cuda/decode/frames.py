"""Partitions decompressed and decoded on a device, from chunks as they are on disk to the arrays of a PartitionTable.

    host buffer     | plan | frames of Store.read_frames |      one copy brings it to the device's buffer
    device scratch  | decompressed blocks | sums of planes | arrays of the table |

:class:`DeviceDecoder` says how large both must be, plans a partition on the host (:meth:`DeviceDecoder.plan`, any
thread: arithmetic on what headers say) and launches up to four kernels of ``decode/decode.cu``
(:meth:`DeviceDecoder.decode`), which allocate nothing and wait for nothing. What launches them is a :class:`Launcher`:
CuPy on a device, or whatever a test puts in its place. This module knows neither files nor caches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.device import cupy_for
from ooc_mdp.backends.cuda.sources import read_sources
from ooc_mdp.errors import StoreError
from ooc_mdp.model.partition import PartitionTable, RawField, RawPartition, StoredField

__all__ = [
    "KERNELS",
    "PLAN_BYTES",
    "PLAN_FREE",
    "CudaLauncher",
    "DecodePlan",
    "DeviceDecoder",
    "Launcher",
    "kernel_source",
]

KERNELS = ("decode_streams", "plane_sums", "plane_starts", "write_values")
"""In the order of their launches."""
PLAN_BYTES = 2048
"""Bytes at the start of the buffer that the plan takes; frames follow."""

_ALIGNMENT = 256
_MOST_FIELDS = 10
_RUN = 128
_WARPS = 8
_VALUES = 4096
"""RUN, WARPS and VALUES of decode/decode.cu."""
_FORMS = {None: 0, "row-delta": 1, "fixed24": 2, "fixed24-delta2": 3, "float32-delta2": 4}

_FIELD = struct.Struct("<7Q12I")
"""struct Field of decode/decode.cu."""
_PLAN = struct.Struct("<3Q6I")
"""What follows _MOST_FIELDS of them in struct Plan."""
PLAN_FREE = -(-(_MOST_FIELDS * _FIELD.size + _PLAN.size) // _ALIGNMENT) * _ALIGNMENT
"""From here to PLAN_BYTES the buffer is at the disposal of whoever wants something else to come with the copy."""

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
_ABSENT: dict[str, Any] = {
    "action_ptr": np.empty(0, np.uint32),
    "successor_ptr": np.empty(0, np.uint32),
    "durations": np.empty(0, np.float64),
    "terminal_rewards": np.empty(0, np.float64),
    "initial_values": np.empty(0, np.float64),
}


class Launcher(Protocol):
    """Runs kernels of ``decode/decode.cu``; to add one, define this and have ``tests/test_device_decode.py`` use it."""

    def launch(self, kernel: str, grid: int, block: int, args: Sequence[Any]) -> None:
        """Run a kernel after those before it; arrays among the arguments stand for their addresses."""
        ...

    def zeros(self, size: int) -> Any:
        """A uint32 [size] array of zeros that kernels can write."""
        ...

    def on_host(self, array: Any) -> npt.NDArray[np.uint32]:
        """A copy of such an array, once all kernels that were launched have ended."""
        ...


def kernel_source() -> str:
    """The text of ``decode/decode.cu``."""
    return read_sources("decode/decode.cu")


@cache
def _kernels(device: int) -> dict[str, Any]:
    import cupy

    with cupy.cuda.Device(device):
        module = cupy.RawModule(code=kernel_source(), options=("--std=c++17", "--fmad=false"))
        kernels = {name: module.get_function(name) for name in KERNELS}
        # Streams under way on a multiprocessor are bounded by its shared memory.
        kernels["decode_streams"].preferred_shared_memory_carveout = 100
        return kernels


class CudaLauncher:
    """CuPy on the current stream of one device, which must be the current device where decoding is asked for.

    Raises
    ------
    MissingExtraError : CuPy is not installed.
    OptionsError : there is no such device.
    """

    def __init__(self, device: int) -> None:
        self._cupy = cupy_for(device)
        self._device = self._cupy.cuda.Device(device)
        self._kernels = _kernels(device)

    def launch(self, kernel: str, grid: int, block: int, args: Sequence[Any]) -> None:
        """On the current stream."""
        self._kernels[kernel]((grid,), (block,), tuple(args))

    def zeros(self, size: int) -> Any:
        """On the device."""
        with self._device:
            return self._cupy.zeros(size, self._cupy.uint32)

    def on_host(self, array: Any) -> npt.NDArray[np.uint32]:
        """Waits for all streams of the device."""
        with self._device:
            self._device.synchronize()
            host: npt.NDArray[np.uint32] = array.get()
            return host


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What one partition's launches need."""

    raw: RawPartition
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
    launcher : runs the kernels; None where only sizes and plans are asked for.
    """

    def __init__(
        self, fields: Sequence[StoredField], frame_bytes: int, actions: int, width: int, launcher: Launcher | None
    ) -> None:
        self._launcher = launcher
        self._areas: dict[str, _Area] = {}
        self._fields = tuple(fields)
        self.buffer_bytes = PLAN_BYTES + frame_bytes
        """Bytes of the host's buffer, and of the device's, for one partition."""
        place = 0

        def take(n_bytes: int) -> int:
            nonlocal place
            start, place = place, _aligned(place + n_bytes)
            return start

        for field in self._fields:
            dtype = _device_dtype(field)
            blocks = take(field.max_len * field.stored.itemsize if field.framed else 0)
            planes = _planes(field.encoding, actions, width)
            # planes * n values are stored, in runs of each plane
            sums = take(8 * (field.max_len // _RUN + planes) if planes else 0)
            self._areas[field.name] = _Area(blocks, sums, take(field.most * dtype.itemsize), dtype)
        self.scratch_bytes = place
        """Bytes of device memory that one partition's decoding takes; the table's arrays lie in it."""
        self._faults = None if launcher is None else launcher.zeros(2)

    @property
    def decoded_on_host(self) -> tuple[str, ...]:
        """Fields that `Store.read_frames` decompresses on the CPU, because the device knows LZ4 only."""
        return tuple(field.name for field in self._fields if not field.framed)

    def plan(self, raw: RawPartition, buffer: npt.NDArray[np.uint8]) -> DecodePlan:
        """Plan a partition that `Store.read_frames` has put at `PLAN_BYTES` of the buffer; any thread.

        Parameters
        ----------
        buffer : uint8 [buffer_bytes] or more on the host; its first PLAN_BYTES are written, 0 from PLAN_FREE on.

        Raises
        ------
        StoreError : sizes contradict each other.
        """
        length_of = _lengths(raw)
        runs = -(-raw.n_states // _RUN)
        pointers = {"action_ptr": _MOST_FIELDS, "successor_ptr": _MOST_FIELDS}
        streams = sums = planes = writes = 0
        buffer[:PLAN_BYTES] = 0
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
                buffer.data,
                number * _FIELD.size,
                field.offset + field.values_at,
                field.n_bytes - field.values_at,
                area.blocks,
                area.sums,
                area.values,
                field.count,
                last_pointer,
                stored.max_len,
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
            buffer.data,
            _MOST_FIELDS * _FIELD.size,
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
        return DecodePlan(raw, PLAN_BYTES + raw.n_bytes, streams, -(-sums // _WARPS), planes, writes)

    def decode(self, plan: DecodePlan, buffer: Any, scratch: Any) -> PartitionTable:
        """Launch a planned partition's kernels on the current stream; nothing is waited for.

        The arrays of the table that it gives lie in `scratch` and hold what ``Store.read`` gives once the kernels have
        ended, but for some types: durations are float32 where 32 bits of them are stored, halo is as stored and
        boundary uint8. Fields that the store does not have are empty NumPy arrays.

        Parameters
        ----------
        buffer : uint8, on the device: the first `plan.n_bytes` of the buffer that was planned.
        scratch : uint8 [scratch_bytes] or more, on the device, aligned to 256 bytes.
        """
        self.launch(plan, buffer, scratch)
        raw = plan.raw
        return PartitionTable(
            index=raw.index,
            first_state=raw.first_state,
            n_states=raw.n_states,
            actions_per_state=raw.actions_per_state,
            successors_per_action=raw.successors_per_action,
            **_ABSENT | self.arrays(plan, scratch),
        )

    def launch(self, plan: DecodePlan, buffer: Any, scratch: Any) -> None:
        """The kernels of :meth:`decode`."""
        for launch in self.launches(plan, buffer, scratch):
            launch()

    def _runs(self) -> Launcher:
        if self._launcher is None:
            raise ValueError("this decoder only plans: it was given nothing that launches kernels")
        return self._launcher

    def launches(self, plan: DecodePlan, buffer: Any, scratch: Any) -> list[Callable[[], None]]:
        """One call for each of `KERNELS`, which does nothing where the partition has nothing for it."""
        args = (buffer, np.uint32(PLAN_BYTES), scratch, self._faults)
        grids = (plan.streams, plan.sum_blocks, plan.planes, plan.write_blocks)
        threads = (32, 32 * _WARPS, 32, 32 * _WARPS)
        return [
            partial(self._runs().launch, kernel, grid, block, args) if grid else _nothing
            for kernel, grid, block in zip(KERNELS, grids, threads, strict=True)
        ]

    def offsets(self, plan: DecodePlan) -> dict[str, tuple[int, int]]:
        """Where the arrays of :meth:`decode` lie in the scratch, by field: first byte and number of values."""
        length_of = _lengths(plan.raw)
        names = [field.field.name for field in plan.raw.fields]
        return {name: (self._areas[name].values, length_of[_LENGTHS[name]]) for name in names}

    def arrays(self, plan: DecodePlan, scratch: Any) -> dict[str, Any]:
        """The arrays of :meth:`decode`, by field: views of the scratch."""
        arrays = {}
        for name, (offset, length) in self.offsets(plan).items():
            dtype = self._areas[name].dtype
            arrays[name] = scratch[offset : offset + length * dtype.itemsize].view(dtype)
        return arrays

    def faults(self) -> str | None:
        """What could not be decoded so far, or None; waits for what was launched.

        Checksums hold before anything is decoded, so that only a chunk that was written wrong can be the reason.
        """
        fields, partition = (int(x) for x in self._runs().on_host(self._faults))
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
        if field.count != wanted or not field.count <= stored.max_len or length > stored.most:
            faults.append(f"{field.count} of {stored.max_len} values for {length}")
        if not a and "action_ptr" not in self._areas:
            faults.append("there is no action_ptr")
        if not k and "successor_ptr" not in self._areas:
            faults.append("there is no successor_ptr")
        if faults:
            raise StoreError(
                f"field {stored.name} of partition {raw.index} cannot be decoded: {'; '.join(faults)}; convert again"
            )


def _nothing() -> None:
    pass


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


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
    whole = field.field.max_len * size // field.block_bytes
    return min(blocks, whole) * field.streams + (blocks > whole)


def _write_blocks(raw: RawPartition, field: RawField, runs: int) -> int:
    match field.field.encoding:
        case "fixed24-delta2" | "float32-delta2":
            return -(-raw.actions_per_state * runs // _WARPS)
        case "row-delta" | "fixed24":
            return -(-raw.n_rows // _VALUES)
        case _:
            return -(-field.count // _VALUES)
