"""What the tiled engine keeps on devices beside slots: values, policy, tiles' state, a batch's parameters and report.

    spread           values | policy | headers | what tiles proved      in device order, each part on its owner
    on each device   accumulated | control | descriptors | batch | work list | report | ...
    page-locked      control, batch ─▶ device;  report, measured ◀─ device      for each of two batches under way
    engine           the addresses of all of it, as every kernel of a device gets them

With one device all of it is one allocation. The structures are those of ``tiles/tiles.cuh``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.device import Device, Stream
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.layout import aligned
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.backends.cuda.tiles.layout import MAX_ROUNDS, SlotLayout, Tiling
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import format_bytes

__all__ = ["CONTROL_PARAMETERS", "BatchPages", "MemberMemory", "TileMemory", "header_bytes"]

_DESCRIPTOR = np.dtype(
    [
        ("first", "i8"),
        ("row_sum", "f8"),
        ("n", "u4"),
        ("tile", "u4"),
        ("tiles", "u4"),
        ("extent", "u4", 7),
        ("stored", "i8"),
        ("colour", "u4"),
    ],
    align=True,
)
_CONTROL = np.dtype(
    [
        ("limit", "f8"),
        ("plain", "u4"),
        ("most", "u4"),
        ("batch_size", "u4"),
        ("batch_tiles", "u4"),
        ("total_change", "f8"),
        ("count", "u4", MAX_ROUNDS),
        ("behind", "u4", MAX_ROUNDS),
        ("next", "u4", MAX_ROUNDS),
        ("largest", "u8", MAX_ROUNDS),
        ("batches", "u4"),
    ],
    align=True,
)
BATCHES_UNDER_WAY = 2
"""Batches of which a device may be told before the report of the first is read."""
CONTROL_PARAMETERS = 24
"""Bytes of it, from its begin, that are a batch's parameters; the rest is the kernels'."""
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
_ADDRESSES = ("must_visit", "traps", "values", "policy", "batch", "work_list", "report", "backups", "measured", "grid")
_REPORT_COLUMNS = 10
_MEASURED_BYTES = 40
_PAGE_LOCKED_A_PARTITION = 8 * _REPORT_COLUMNS + 4
_ROOM = 64 << 10
"""For control, what is measured, and what alignment takes."""


def engine_dtype(members: int) -> np.dtype[Any]:
    """Struct Engine of a group of so many devices."""
    replicas = [("replicas", "u8", (members,)), ("controls", "u8", (members,))] if members > 1 else []
    return np.dtype(
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
            *replicas,
        ]
    )


def _spread_sizes(facts: ModelFacts, tiling: Tiling, layout: SlotLayout) -> dict[str, tuple[int, bool]]:
    """Of what is spread, by name: bytes of an element, and whether it is one of each tile, not of each state."""
    return {
        "values": (8, False),
        "policy": (1 if layout.narrow_policy(facts) else 4, False),
        "headers": (header_bytes(len(tiling.shape)), True),
        **{name: (8, True) for name in _TILE_FIELDS if name != "accumulated"},
        "must_visit": (4, True),
        "traps": (4, True),
    }


def _spread_cuts(
    facts: ModelFacts, tiling: Tiling, layout: SlotLayout, division: Division
) -> dict[str, npt.NDArray[np.int64]]:
    """Where each device's part of what is spread ends (bytes, int64 [devices]), by name."""
    states = np.cumsum(division.shares(np.diff(facts.partition_ptr)))
    tiles = np.cumsum(division.shares(tiling.per_partition))
    return {
        name: size * (tiles if of_tiles else states)
        for name, (size, of_tiles) in _spread_sizes(facts, tiling, layout).items()
    }


def _own_sizes(facts: ModelFacts, tiling: Tiling) -> dict[str, int]:
    """Bytes of what each device has of its own, by name."""
    tiles, partitions = tiling.total, tiling.per_partition.size
    blocks = facts.partition_grid or ()
    return {
        "accumulated": 8 * tiles,
        "control": _CONTROL.itemsize,
        "descriptors": _DESCRIPTOR.itemsize * partitions,
        "batch": 4 * partitions,
        "work_list": 4 * tiles,
        "report": 8 * _REPORT_COLUMNS * partitions,
        "backups": 8 * partitions,
        "measured": _MEASURED_BYTES,
        "grid": 8 * (1 + 3 * len(blocks) + sum(blocks)),
    }


def header_bytes(dims: int) -> int:
    """Of struct TileHeader."""
    return -(-(36 + 6 * dims) // 16) * 16


@dataclass(frozen=True, slots=True)
class BatchPages:
    """Page-locked memory of the host for the parameters of a batch and its report."""

    report: npt.NDArray[np.float64]
    """float64 [P, 10]; `batch.py` says of what."""
    control: npt.NDArray[Any]
    """struct Control, of which the parameters are copied."""
    batch: npt.NDArray[np.uint32]
    """uint32 [P]; partitions of the batch."""

    @classmethod
    def of(cls, device: Device, partitions: int) -> BatchPages:
        """New ones."""
        report = device.pinned(8 * _REPORT_COLUMNS * partitions).view(np.float64).reshape(partitions, -1)
        control = device.pinned(_CONTROL.itemsize).view(_CONTROL)
        return cls(report, control, device.pinned(4 * partitions).view(np.uint32))


class MemberMemory:
    """One device's own: addresses, and what is page-locked for its batches.

    Parameters
    ----------
    at : addresses by name.
    """

    def __init__(self, device: Device, at: Mapping[str, int], partitions: int) -> None:
        self.at = at
        self._pages = [BatchPages.of(device, partitions) for _ in range(BATCHES_UNDER_WAY)]
        self.measured = device.pinned(_MEASURED_BYTES).view(np.uint64)
        self.engine: npt.NDArray[Any]
        """struct Engine, without axes: for the device's kernels."""

    def next_pages(self) -> BatchPages:
        """Pages for a batch that begins: those of the batch before the last, whose report has been read."""
        self._pages.append(self._pages.pop(0))
        return self._pages[-1]


class TileMemory:
    """Of one model on a group of devices, until these free everything.

    Parameters
    ----------
    streams : of the sweeps, one on each device.
    division : says in which order states and tiles lie, and whose they are.

    Raises
    ------
    MemoryBudgetError : a device has not so much memory.
    """

    def __init__(
        self,
        group: DeviceGroup,
        streams: Sequence[Stream],
        facts: ModelFacts,
        tiling: Tiling,
        layout: SlotLayout,
        division: Division,
    ) -> None:
        self._group, self._streams, self._division = group, streams, division
        partitions = tiling.per_partition.size
        cuts, own = _spread_cuts(facts, tiling, layout, division), _own_sizes(facts, tiling)
        try:
            self.at, each = self._allocate({name: at.tolist() for name, at in cuts.items()}, own)
        except MemoryError as error:
            needed = sum(self.plan(group, facts, tiling, layout, division).values()) - _ROOM
            free = min(group.memory_free())
            raise MemoryBudgetError(
                f"values, policy and tiles of {facts.n_states} states need {format_bytes(needed)} on {group.name}, "
                f"which has {format_bytes(free)} free; use --device cpu or a larger device"
            ) from error
        self.choice = np.dtype(np.uint8) if layout.narrow_policy(facts) else np.dtype(np.int32)
        """Type of the policy there."""
        self.descriptors = _descriptors(facts, tiling, division)
        self.members = tuple(
            MemberMemory(device, at, partitions) for device, at in zip(group.devices, each, strict=True)
        )
        for member, stream in zip(self.members, streams, strict=True):
            stream.upload(member.at["descriptors"], self.descriptors)
            member.engine = self._addresses(member, facts, tiling)
        for stream in streams:
            stream.wait()

    def _allocate(
        self, cuts: Mapping[str, list[int]], own: Mapping[str, int]
    ) -> tuple[dict[str, int], list[dict[str, int]]]:
        """Addresses by name of what is spread, and of what each device has of its own; all of it cleared."""
        group = self._group
        if len(group) == 1:
            sizes = {name: ends[-1] for name, ends in cuts.items()} | dict(own)
            base = group.devices[0].allocate(sum(map(aligned, sizes.values())))
            at = _places(base, sizes)
            self._streams[0].clear(base, sum(map(aligned, sizes.values())))
            return {name: at[name] for name in cuts}, [{name: at[name] for name in own}]
        spread = {name: group.allocate_spread(group.parts_of(ends)) for name, ends in cuts.items()}
        whole = sum(map(aligned, own.values()))
        bases = group.allocate_each(whole)
        for name, ends in cuts.items():
            for piece in group.pieces(spread[name], ends[-1]):
                self._streams[piece.member].clear(piece.at, piece.nbytes)
        for stream, base in zip(self._streams, bases, strict=True):
            stream.clear(base, whole)
        return spread, [_places(base, own) for base in bases]

    @staticmethod
    def plan(
        group: DeviceGroup, facts: ModelFacts, tiling: Tiling, layout: SlotLayout, division: Division
    ) -> dict[str, int]:
        """Bytes by name on the device of the group that has most of each."""
        cuts = _spread_cuts(facts, tiling, layout, division)
        most = {name: max(group.parts_of(at.tolist())) for name, at in cuts.items()}
        values, policy = most.pop("values"), most.pop("policy")
        return {
            "values": values,
            "policy": policy,
            "tiles": sum(most.values()) + sum(_own_sizes(facts, tiling).values()) + _ROOM,
        }

    @staticmethod
    def page_locked_bytes(partitions: int) -> int:
        """Bytes on the host for the parameters and reports of a device's batches."""
        return BATCHES_UNDER_WAY * _PAGE_LOCKED_A_PARTITION * partitions + _ROOM

    def upload(self, name: str, data: npt.NDArray[Any] | None, start: int = 0) -> None:
        """Copy values or policy, in store order from a state on, to their places, and wait; None where they stay 0."""
        if data is None:
            return
        for stored, place, count in self._division.pieces(start, start + data.size):
            part = np.ascontiguousarray(data[stored - start : stored - start + count])
            at = self.at[name] + place * part.itemsize
            for piece in self._group.pieces(at, part.nbytes):
                begin = (piece.at - at) // part.itemsize
                self._streams[0].upload(piece.at, part[begin : begin + piece.nbytes // part.itemsize])
            self._streams[0].wait()

    def _addresses(self, member: MemberMemory, facts: ModelFacts, tiling: Tiling) -> npt.NDArray[Any]:
        engine = np.zeros((), engine_dtype(len(self.members)))
        for name, address in {**self.at, **member.at}.items():
            engine[name] = address
        if len(self.members) > 1:
            engine["replicas"] = [other.at["accumulated"] for other in self.members]
            engine["controls"] = [other.at["control"] for other in self.members]
        engine["partitions"], engine["tiles"] = tiling.per_partition.size, tiling.total
        engine["discount"], engine["sign"] = facts.discount, facts.sign
        engine["log_discount"] = math.log(facts.discount) if facts.discount > 0 else -math.inf
        return engine


def _places(base: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Addresses by name of parts that follow each other from an address on."""
    at = {}
    for name, size in sizes.items():
        at[name] = base
        base += aligned(size)
    return at


def _descriptors(facts: ModelFacts, tiling: Tiling, division: Division) -> npt.NDArray[Any]:
    """Where states and tiles of each partition are, and what its rows sum to."""
    descriptors = np.zeros(tiling.per_partition.size, _DESCRIPTOR)
    ptr = facts.partition_ptr
    descriptors["first"], descriptors["n"], descriptors["row_sum"] = division.first, np.diff(ptr), facts.row_sums
    descriptors["stored"] = ptr[:-1]
    descriptors["tiles"] = tiling.per_partition
    descriptors["tile"] = division.starts(tiling.per_partition)
    descriptors["extent"] = 1
    descriptors["extent"][:, : tiling.extents.shape[1]] = tiling.extents
    descriptors["colour"] = tiling.first_colours(facts)
    return descriptors
