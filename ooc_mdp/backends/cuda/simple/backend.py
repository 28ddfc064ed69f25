"""The CUDA backend: CuPy launches the Jacobi sweeps of ``simple/plain.cu``.

Values, policy and partitions live on the device; a partition is one allocation of exactly its size (each field
aligned to 256 bytes), made with cudaMalloc and not from a pool, so that the cache's budget is what the device holds.
Sweeps of a visit run in growing batches between two looks at the changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Features, FinishedVisit, Resident, SweepLimits
from ooc_mdp.backends.cuda.device import cupy_for
from ooc_mdp.backends.cuda.layout import ALIGNMENT, aligned, c_type, numbers_of_images
from ooc_mdp.backends.cuda.sources import LOCAL_VALUES, PLAIN, read_sources
from ooc_mdp.backends.exact_sweeps import sweep_each
from ooc_mdp.backends.layout import Layout, Needs, device_layout
from ooc_mdp.backends.state_lists import ListsByCopies
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.mdp import discounts as discounts_of
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.options import format_bytes

__all__ = ["CudaBackend"]

_THREADS = 256
_FIRST_BATCH = 8
"""Sweeps before the first look at the changes: a look costs as much as several sweeps of a small partition."""
_LARGEST_BATCH = 32
_TABLE = np.dtype(
    [
        ("pointers", "u8", 9),
        ("first", "i8"),
        ("n", "i8"),
        ("h", "i8"),
        ("actions", "i8"),
        ("width", "i8"),
        ("discount", "f8"),
        ("sign", "f8"),
    ]
)
"""struct Table of simple/table.cuh."""


@cache
def _module(device: int, index: str, real: str) -> Any:
    """The compiled kernels for one pair of types, cached per device."""
    import cupy

    source = read_sources(*PLAIN)
    names = [f"{kernel}<{c_type(np.dtype(index))}, {c_type(np.dtype(real))}>" for kernel in ("sweep", "measure")]
    options = ("--std=c++17", "--fmad=false")
    with cupy.cuda.Device(device):
        module = cupy.RawModule(code=source, options=options, name_expressions=names)
        return {
            "gather": _local_values(device).get_function("gather"),
            "scatter": _local_values(device).get_function("scatter"),
            "sweep": module.get_function(names[0]),
            "measure": module.get_function(names[1]),
        }


@cache
def _local_values(device: int) -> Any:
    import cupy

    source = read_sources(*LOCAL_VALUES)
    with cupy.cuda.Device(device):
        return cupy.RawModule(code=source, options=("--std=c++17", "--fmad=false"))


def _doubles(bits: npt.NDArray[np.uint64]) -> FloatArray:
    return bits.view(np.float64)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A table on its way to the device."""

    index: int
    n_states: int
    n_halo: int
    has_durations: bool
    types: tuple[str, str]
    """Of successors and probabilities."""
    host: npt.NDArray[np.uint8]
    """The descriptor, its pointers as offsets (0: no such field), and the fields."""
    on_device: list[tuple[Any, int]]
    """Fields that are on the device already, and their offsets."""


class CudaBackend(ListsByCopies):
    """One CUDA device.

    Raises
    ------
    MissingExtraError : CuPy is not installed.
    OptionsError : there is no such device.
    """

    features = Features(overlaps_loads=False)
    synchronous = None
    policy_rows = None

    def __init__(self, device: int) -> None:
        self._cupy = cupy_for(device)
        self._number = device
        self._device = self._cupy.cuda.Device(device)
        self.name = f"cuda:{device}"

    def load_code(self, model: ModelFacts, policy_rows: bool) -> None:
        """Kernels are compiled for the types of the first partition."""

    def free_bytes(self) -> None:
        """Nobody asks."""

    def layout(self, model: ModelFacts, needs: Needs) -> Layout:
        """Partitions are allocated one by one, beside two local vectors, the reports, and what alignment adds."""
        local = 8 * (model.largest_partition + model.largest_halo)
        alignment = 10 * ALIGNMENT * model.n_partitions
        own = {"local values": 2 * local, "reports": 4096, "alignment": alignment}
        return device_layout(model, needs, self.name, own)

    def enlarged(self, layout: Layout) -> Layout:
        """There are no slots."""
        return layout

    def start(
        self, model: ModelFacts, layout: Layout, values: FloatArray | None, policy: npt.NDArray[np.int32] | None
    ) -> None:
        """Copy the values over and allocate what every visit needs."""
        cupy = self._cupy
        self._model = model
        with self._device:
            needed = 12 * model.n_states + 16 * (model.largest_partition + model.largest_halo)
            free = int(cupy.cuda.runtime.memGetInfo()[0])
            if needed > free:
                raise MemoryBudgetError(
                    f"values and policy of {model.n_states} states need {format_bytes(needed)} on {self.name}, "
                    f"which has {format_bytes(free)} free; use --device cpu or a larger device"
                )
            self._values = cupy.zeros(model.n_states) if values is None else cupy.asarray(values)
            none = cupy.full(model.n_states, -1, cupy.int32) if policy is None else None
            self._policy = cupy.asarray(policy) if none is None else none
            size = model.largest_partition + model.largest_halo
            self._buffers = (cupy.empty(size), cupy.empty(size))
            self._marks = cupy.zeros(5 + 2 * _LARGEST_BATCH, cupy.uint64)
            self._report = self._marks[:5]
            self._changes = [self._marks[5 + 2 * i : 7 + 2 * i] for i in range(_LARGEST_BATCH)]

    def reader(self, source: Any) -> None:
        """Tables are taken as the source gives them."""

    def prepare(self, table: PartitionTable) -> _Packed:
        """All fields that are on the host, one after the other as they will lie on the device."""
        with self._device:
            discounts = discounts_of(self._model.discount, table.durations)
        fields: list[Any] = [
            table.action_ptr,
            table.successor_ptr,
            table.successors,
            table.probabilities,
            table.rewards,
            discounts,
            table.terminal_rewards,
            table.halo,
            table.boundary,
        ]
        offsets = np.cumsum([aligned(_TABLE.itemsize), *(aligned(f.nbytes) for f in fields)])
        host = np.empty(int(offsets[-1]), np.uint8)
        on_device: list[tuple[Any, int]] = []
        for field, offset in zip(fields, offsets, strict=False):
            if isinstance(field, np.ndarray):
                host[offset : offset + field.nbytes] = np.ascontiguousarray(field).reshape(-1).view(np.uint8)
            elif field.nbytes:
                on_device.append((field, int(offset)))
        descriptor = host[: _TABLE.itemsize].view(_TABLE)[0]
        descriptor["pointers"] = [int(o) if f.size else 0 for f, o in zip(fields, offsets, strict=False)]
        descriptor["first"], descriptor["n"], descriptor["h"] = table.first_state, table.n_states, table.halo.size
        descriptor["actions"], descriptor["width"] = table.actions_per_state, table.successors_per_action
        descriptor["discount"], descriptor["sign"] = self._model.discount, self._model.sign
        types = (table.successors.dtype.str[1:], table.probabilities.dtype.str[1:])
        return _Packed(table.index, table.n_states, int(table.halo.size), bool(discounts.size), types, host, on_device)

    def admit(self, prepared: _Packed) -> Resident:
        """One allocation for all fields and one copy; fields that are on the device are copied there."""
        cupy = self._cupy
        host = prepared.host
        with self._device:
            try:
                memory = cupy.cuda.Memory(host.nbytes)
            except cupy.cuda.runtime.CUDARuntimeError as error:
                raise MemoryBudgetError(
                    f"{self.name} has no room for partition {prepared.index} ({format_bytes(host.nbytes)}) within "
                    f"the cache's budget; lower --cache"
                ) from error
            pointer = cupy.cuda.MemoryPointer(memory, 0)
            pointers = host[: _TABLE.itemsize].view(_TABLE)[0]["pointers"]
            pointers[:] = np.where(pointers > 0, pointers + np.uint64(pointer.ptr), 0)
            pointer.copy_from_host(host.ctypes.data, host.nbytes)
            for on_device, offset in prepared.on_device:
                (pointer + offset).copy_from_device_async(cupy.ascontiguousarray(on_device).data, on_device.nbytes)
        kernels = _module(self._number, *prepared.types)
        arrays = (pointer, prepared.n_halo, kernels)
        return Resident(prepared.index, prepared.n_states, prepared.has_durations, arrays)

    def release(self, resident: Resident) -> None:
        """The allocation is freed with its last reference, after the kernels that read it."""

    def _launch(self, kernel: Any, count: int, arguments: tuple[Any, ...]) -> None:
        kernel((-(-count // _THREADS),), (_THREADS,), arguments)

    def sweep(self, residents: Sequence[Resident], limits: SweepLimits) -> FinishedVisit:
        """Jacobi sweeps of one partition after the other."""
        return sweep_each(residents, limits, self._sweep_one, lambda resident: self.measure(resident, 0.0)[0])

    relax = sweep

    def _sweep_one(self, resident: Resident, change: float, most: int) -> tuple[float, ...]:
        """In batches of 8, 16, 32 ... until a limit is reached."""
        table, h, kernels = resident.arrays
        n = resident.n_states
        current, other = self._buffers
        sweeps = 0
        batch = _FIRST_BATCH
        with self._device:
            self._launch(kernels["gather"], n + h, (table, self._values, current, other))
            while True:
                batch = min(batch, most - sweeps, _LARGEST_BATCH)
                self._marks.data.memset_async(0, self._marks.nbytes)
                for i in range(batch):
                    self._launch(kernels["sweep"], n, (table, current, other, self._policy, self._changes[i]))
                    current, other = other, current
                sweeps += batch
                last = sweeps >= most
                if last:
                    self._launch(kernels["scatter"], n, (table, current, self._values, self._report))
                marks = self._marks.get()
                up, down = _doubles(marks[5 + 2 * (batch - 1) : 7 + 2 * (batch - 1)])
                if last:
                    break
                if max(up, down) <= change:
                    self._launch(kernels["scatter"], n, (table, current, self._values, self._report))
                    marks = self._marks.get()
                    break
                batch *= 2
        report = marks[:5]
        rise, fall = _doubles(report[:2]).tolist()
        boundary_value, largest, smallest = numbers_of_images(report[2:]).tolist()
        return sweeps, float(up), float(down), rise, fall, boundary_value, largest, -smallest

    def measure(self, resident: Resident, significant: float) -> tuple[FloatArray, float]:
        """One pass without updates."""
        table, h, kernels = resident.arrays
        n = resident.n_states
        current, other = self._buffers
        row_sum = np.float64(self._model.row_sums[resident.index])
        with self._device:
            self._launch(kernels["gather"], n + h, (table, self._values, current, other))
            self._marks.data.memset_async(0, self._marks.nbytes)
            arguments = (table, current, self._policy, row_sum, np.float64(significant), self._report)
            self._launch(kernels["measure"], n, arguments)
            report = self._report.get()
        found = numbers_of_images(report)
        return found[:4], float(found[4])

    def read(self, states: IntArray) -> FloatArray:
        """A copy on the host."""
        with self._device:
            host: FloatArray = self._values[self._cupy.asarray(states)].get()
        return host

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        """Visits gather values anew each time: nothing else is to be told."""
        with self._device:
            self._values[self._cupy.asarray(states)] = self._cupy.asarray(values)

    def write_policy(self, partition: int, policy: npt.NDArray[np.int32]) -> None:
        """One copy to the device."""
        ptr = self._model.partition_ptr
        with self._device:
            self._policy[int(ptr[partition]) : int(ptr[partition + 1])] = self._cupy.asarray(policy)

    def copy(self, start: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """One copy from the device each."""
        piece = slice(start, start + values.size)
        with self._device:
            values[:], policy[:] = self._values[piece].get(), self._policy[piece].get()

    def values(self) -> FloatArray:
        """A copy on the host."""
        host: FloatArray = self._values.get()
        return host

    def policy(self) -> npt.NDArray[np.int32]:
        """A copy on the host."""
        host: npt.NDArray[np.int32] = self._policy.get()
        return host

    def close(self) -> None:
        """Free values, policy and buffers, and give the pool's blocks back to the device."""
        for name in ("_values", "_policy", "_buffers", "_marks", "_changes", "_report"):
            if hasattr(self, name):
                delattr(self, name)
        with self._device:
            self._cupy.get_default_memory_pool().free_all_blocks()
