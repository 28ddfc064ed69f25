"""What the tiled engine keeps on a device beside slots: values, policy, tiles' state, a batch's parameters and report.

    one allocation   values | policy | control | descriptors | headers | what tiles proved | batch | work list | ...
    page-locked      control, batch ─▶ device;  report, measured ◀─ device
    engine           the addresses of all of it, as every kernel gets them

The structures are those of ``tiles/tiles.cuh``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.device import Device, Stream
from ooc_mdp.backends.cuda.layout import aligned
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.backends.cuda.tiles.layout import MAX_ROUNDS, SlotLayout, Tiling
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import format_bytes

__all__ = ["TileMemory", "header_bytes"]

_DESCRIPTOR = np.dtype(
    [
        ("first", "i8"),
        ("row_sum", "f8"),
        ("n", "u4"),
        ("tile", "u4"),
        ("tiles", "u4"),
        ("extent", "u4", 7),
        ("stored", "i8"),
    ],
    align=True,
)
_CONTROL = np.dtype(
    [
        ("limit", "f8"),
        ("total_change", "f8"),
        ("plain", "u4"),
        ("most", "u4"),
        ("batch_size", "u4"),
        ("batch_tiles", "u4"),
        ("count", "u4", MAX_ROUNDS),
        ("next", "u4", MAX_ROUNDS),
        ("largest", "u8", MAX_ROUNDS),
        ("batches", "u4"),
    ],
    align=True,
)
_TILE_FIELDS = (
    "accumulated",
    "snapshot",
    "last_change",
    "contraction",
    "normalised_contraction",
    "top",
    "bottom",
    "reported",
)
_ADDRESSES = ("must_visit", "traps", "values", "policy", "batch", "work_list", "report", "backups", "measured")
_ENGINE = np.dtype(
    [
        ("control", "u8"),
        ("descriptors", "u8"),
        ("partitions", "i8"),
        ("tiles", "i8"),
        ("headers", "u8"),
        *((name, "u8") for name in (*_TILE_FIELDS, *_ADDRESSES)),
        ("discount", "f8"),
        ("log_discount", "f8"),
        ("sign", "f8"),
    ]
)
_REPORT_COLUMNS = 10
_MEASURED_BYTES = 40
_PAGE_LOCKED_A_PARTITION = 8 * _REPORT_COLUMNS + 4
_ROOM = 64 << 10
"""For control, what is measured, and what alignment takes."""


def _sizes(model: ModelFacts, tiling: Tiling, layout: SlotLayout) -> dict[str, int]:
    """Bytes of everything in the allocation, by name."""
    n, tiles, partitions = model.n_states, tiling.total, tiling.per_partition.size
    return {
        "values": 8 * n,
        "policy": (1 if layout.narrow_policy(model) else 4) * n,
        "control": _CONTROL.itemsize,
        "descriptors": _DESCRIPTOR.itemsize * partitions,
        "headers": header_bytes(len(tiling.shape)) * tiles,
        **dict.fromkeys(_TILE_FIELDS, 8 * tiles),
        "must_visit": 4 * tiles,
        "traps": 4 * tiles,
        "batch": 4 * partitions,
        "work_list": 4 * tiles,
        "report": 8 * _REPORT_COLUMNS * partitions,
        "backups": 8 * partitions,
        "measured": _MEASURED_BYTES,
    }


def header_bytes(dims: int) -> int:
    """Of struct TileHeader."""
    return -(-(36 + 6 * dims) // 16) * 16


class TileMemory:
    """Of one model on one device, until the device frees everything.

    Parameters
    ----------
    stream : of the sweeps.
    division : says in which order states and tiles lie.

    Raises
    ------
    MemoryBudgetError : the device has not so much memory.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        model: ModelFacts,
        tiling: Tiling,
        layout: SlotLayout,
        division: Division,
    ) -> None:
        self._stream, self._division = stream, division
        sizes = _sizes(model, tiling, layout)
        whole = sum(aligned(size) for size in sizes.values())
        try:
            base = device.allocate(whole)
        except MemoryError as error:
            raise MemoryBudgetError(
                f"values, policy and tiles of {model.n_states} states need {format_bytes(whole)} on {device.name}, "
                f"which has {format_bytes(device.memory_free())} free; use --device cpu or a larger device"
            ) from error
        self.at: dict[str, int] = {}
        """Addresses by name."""
        for name, size in sizes.items():
            self.at[name] = base
            base += aligned(size)
        stream.clear(self.at["values"], whole)
        self.choice = np.dtype(np.uint8) if layout.narrow_policy(model) else np.dtype(np.int32)
        """Type of the policy there."""
        partitions = tiling.per_partition.size
        self.report = device.pinned(8 * _REPORT_COLUMNS * partitions).view(np.float64).reshape(partitions, -1)
        """float64 [P, 10]; `batch.py` says of what."""
        self.control = device.pinned(_CONTROL.itemsize).view(_CONTROL)
        self.batch = device.pinned(4 * partitions).view(np.uint32)
        """uint32 [P]; partitions of a batch."""
        self.measured = device.pinned(_MEASURED_BYTES).view(np.uint64)
        self.descriptors = _descriptors(model, tiling, division)
        stream.upload(self.at["descriptors"], self.descriptors)
        stream.wait()
        self.engine = self._addresses(model, tiling)

    @staticmethod
    def plan(model: ModelFacts, tiling: Tiling, layout: SlotLayout) -> dict[str, int]:
        """Bytes on the device, apart from values."""
        sizes = _sizes(model, tiling, layout)
        policy = sizes["policy"]
        return {"policy": policy, "tiles": sum(sizes.values()) - sizes["values"] - policy + _ROOM}

    @staticmethod
    def page_locked_bytes(partitions: int) -> int:
        """Bytes on the host for the parameters and reports of a batch."""
        return _PAGE_LOCKED_A_PARTITION * partitions + _ROOM

    def upload(self, name: str, data: npt.NDArray[Any] | None) -> None:
        """Copy values or policy, in store order, to their places, and wait; None where they stay 0."""
        if data is None:
            return
        for start, place, count in self._division.pieces(0, data.size):
            piece = np.ascontiguousarray(data[start : start + count])
            self._stream.upload(self.at[name] + place * piece.itemsize, piece)
        self._stream.wait()

    def _addresses(self, model: ModelFacts, tiling: Tiling) -> npt.NDArray[Any]:
        engine = np.zeros((), _ENGINE)
        for name in ("control", "descriptors", "headers", *_TILE_FIELDS, *_ADDRESSES):
            engine[name] = self.at[name]
        engine["partitions"], engine["tiles"] = tiling.per_partition.size, tiling.total
        engine["discount"], engine["sign"] = model.discount, model.sign
        engine["log_discount"] = math.log(model.discount) if model.discount > 0 else -math.inf
        return engine


def _descriptors(model: ModelFacts, tiling: Tiling, division: Division) -> npt.NDArray[Any]:
    """Where states and tiles of each partition are, and what its rows sum to."""
    descriptors = np.zeros(tiling.per_partition.size, _DESCRIPTOR)
    ptr = model.partition_ptr
    descriptors["first"], descriptors["n"], descriptors["row_sum"] = division.first, np.diff(ptr), model.row_sums
    descriptors["stored"] = ptr[:-1]
    descriptors["tiles"] = tiling.per_partition
    descriptors["tile"] = division.starts(tiling.per_partition)
    descriptors["extent"] = 1
    descriptors["extent"][:, : tiling.extents.shape[1]] = tiling.extents
    return descriptors
