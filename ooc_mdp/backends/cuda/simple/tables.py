"""Partitions as simple kernels see them: a table's fields, one after the other, in an allocation of its size.

    descriptor | action_ptr | successor_ptr | successors | probabilities | rewards | discounts
               | terminal rewards | halo | boundary

Each begins at a multiple of 256 bytes. Nothing here sweeps: ``simple/table.cuh`` is the device's side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cuda.device import Device, Kernel, Stream
from ooc_mdp.backends.cuda.layout import ALIGNMENT, aligned
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import discounts as discounts_of
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.options import format_bytes

__all__ = ["TABLE", "SimpleTables", "TableTypes", "alignment_bytes"]

_FIELDS = 9
TABLE = np.dtype(
    [
        ("pointers", "u8", _FIELDS),
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

TableTypes = tuple[np.dtype[Any], np.dtype[Any]]
"""Of successors and of probabilities."""


def alignment_bytes(facts: ModelFacts) -> int:
    """Bytes that alignment adds to all partitions together, at most."""
    return (_FIELDS + 1) * ALIGNMENT * facts.n_partitions


@dataclass(frozen=True, slots=True)
class _Packed:
    """A table on its way to the device."""

    index: int
    counts: dict[str, int]
    """Its states, rows, transitions and halo states."""
    has_durations: bool
    types: TableTypes
    host: npt.NDArray[np.uint8]
    """The descriptor, its pointers as offsets (0: no such field), and the fields."""
    on_device: list[tuple[Any, int]]
    """Fields that are on the device already, and their offsets."""


class SimpleTables(ABC):
    """Admits and releases partitions on one device.

    Parameters
    ----------
    device : memory, a stream and kernels.
    """

    _facts: ModelFacts
    _stream: Stream

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name = device.name

    @abstractmethod
    def _kernels(self, facts: ModelFacts, types: TableTypes) -> dict[str, Kernel]:
        """Compiled for such fields; they are the last of a resident's arrays."""

    def free_bytes(self) -> int:
        """Bytes that could be allocated on the device now."""
        return self._device.memory_free()

    def prepare(self, table: PartitionTable) -> _Packed:
        """All fields that are on the host, one after the other as they will lie on the device."""
        discounts = self._discounts(table.durations)
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
        offsets = np.cumsum([aligned(TABLE.itemsize), *(aligned(f.nbytes) for f in fields)])
        host = np.empty(int(offsets[-1]), np.uint8)
        on_device: list[tuple[Any, int]] = []
        for field, offset in zip(fields, offsets, strict=False):
            if isinstance(field, np.ndarray):
                host[offset : offset + field.nbytes] = np.ascontiguousarray(field).reshape(-1).view(np.uint8)
            elif field.nbytes:
                on_device.append((field, int(offset)))
        descriptor = host[: TABLE.itemsize].view(TABLE)[0]
        descriptor["pointers"] = [int(o) if f.size else 0 for f, o in zip(fields, offsets, strict=False)]
        descriptor["first"], descriptor["n"], descriptor["h"] = table.first_state, table.n_states, table.halo.size
        descriptor["actions"], descriptor["width"] = table.actions_per_state, table.successors_per_action
        descriptor["discount"], descriptor["sign"] = self._facts.discount, self._facts.sign
        counts = {
            "states": table.n_states,
            "rows": table.n_rows,
            "transitions": int(table.successors.size),
            "halo": int(table.halo.size),
        }
        if on_device:
            self._stream.follow()  # their kernels were launched on another stream, by this thread
        types = (table.successors.dtype, table.probabilities.dtype)
        return _Packed(table.index, counts, bool(discounts.size), types, host, on_device)

    def _discounts(self, durations: Any) -> Any:
        """Discounts of rows, where the durations are."""
        if isinstance(durations, np.ndarray):
            return discounts_of(self._facts.discount, durations)
        with durations.device:
            return discounts_of(self._facts.discount, durations)

    def admit(self, prepared: _Packed) -> Resident:
        """One allocation for all fields and one copy; fields that are on the device are copied there.

        Raises
        ------
        MemoryBudgetError : the device has not so much memory.
        """
        host = prepared.host
        try:
            at = self._device.allocate(host.nbytes)
        except MemoryError as error:
            raise MemoryBudgetError(
                f"{self.name} has no room for partition {prepared.index} ({format_bytes(host.nbytes)}) within "
                f"the cache's budget; lower --cache"
            ) from error
        pointers = host[: TABLE.itemsize].view(TABLE)[0]["pointers"]
        pointers[:] = np.where(pointers > 0, pointers + np.uint64(at), 0)
        self._stream.upload(at, host)
        for field, offset in prepared.on_device:
            self._stream.copy(at + offset, int(field.data.ptr), field.nbytes)
        self._stream.wait()
        arrays = (np.uint64(at), prepared.counts, self._kernels(self._facts, prepared.types))
        return Resident(prepared.index, prepared.counts["states"], prepared.has_durations, arrays)

    def release(self, resident: Resident) -> None:
        """Free its allocation."""
        self._device.free(int(resident.arrays[0]))
