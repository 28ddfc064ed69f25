"""The tiled engine: a device whose cache is slots in one allocation, and whose launches sweep many partitions at once.

    reading thread    frames of a partition ─▶ page-locked buffer ─▶ device ─▶ decoded table ─▶ tiles in its slot
    solving thread    control ─▶ [ select_tiles, sweep_tiles ] x rounds ─▶ report ─▶ bounds of each partition

Loads run on streams of their own beside the sweeps; a partition takes part in sweeps once its load is done. Nothing is
allocated while a solve runs, apart from the day when a tile turns out to read more states than its slot has room for
(`SlotsTooSmall`). ``tiles.cuh`` says what the kernels do and what their bounds rest on.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.bounds import Measured
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.kernels.base import (
    Evaluation,
    Improvement,
    ModelConstants,
    Resident,
    SweepLimits,
    VisitReport,
)
from ooc_mdp.kernels.cuda import unrank
from ooc_mdp.kernels.device import Device, Kernel
from ooc_mdp.kernels.device_rows import IMPROVE_KERNELS, DeviceRows
from ooc_mdp.kernels.row_layout import kernel_defines
from ooc_mdp.kernels.sources import TILES, read_sources
from ooc_mdp.kernels.state_lists import ListChanges, StateLists
from ooc_mdp.kernels.tile_batches import TileBatch
from ooc_mdp.kernels.tile_exchange import EXCHANGE_KERNELS, PIECES_BYTES, TileExchange
from ooc_mdp.kernels.tile_layout import MAX_ROUNDS, TILE_STATES, SlotLayout, Tiling, is_ragged
from ooc_mdp.kernels.tile_loads import Frames, FrameSource, TileLoader
from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.options import format_bytes
from ooc_mdp.partition import Coupling, PartitionTable

__all__ = ["TiledBackend"]

_ROUNDS = 60
"""Rounds of a batch, between two looks of the host: on 400 million states 60 took three quarters of the time of 16."""
_SETTLING_ROUNDS = (9, 19, 29, 39, 49)
"""Rounds of a batch in which windows are settled in place of visits; after the last of them tiles are visited again."""
_WINDOWS = 2
"""That a block may look at in such a round, of each list."""
_ITERATIONS = 32
"""Iterations of a tile's visit at most."""
_ITERATIONS_ALONE = 8
"""The same where one partition is swept by itself, a given number of times."""
_ALIGNMENT = 256
_MOST_HALO = 8192
_KERNELS = (
    "select_tiles",
    "sweep_tiles",
    "report_partitions",
    "end_batch",
    "wake_tiles",
    "measure_tiles",
    "forget_tiles",
    *EXCHANGE_KERNELS,
    "lay_out",
    "lay_out_boundary",
    "keep_table",
)

_SETTLE_KERNELS = ("select_windows", "settle_windows")

_PLACE = np.dtype(
    [
        ("first", "i8"),
        ("row_sum", "f8"),
        ("n", "u4"),
        ("tile", "u4"),
        ("tiles", "u4"),
        ("extent", "u4", 7),
    ],
    align=True,
)
_CONTROL = np.dtype(
    [
        ("limit", "f8"),
        ("everything", "f8"),
        ("plain", "u4"),
        ("most", "u4"),
        ("set_size", "u4"),
        ("set_tiles", "u4"),
        ("count", "u4", MAX_ROUNDS),
        ("next", "u4", MAX_ROUNDS),
        ("largest", "u8", MAX_ROUNDS),
        ("batches", "u4"),
    ],
    align=True,
)
_TILE_FIELDS = ("moved", "seen", "left", "gain", "steep", "top", "bottom", "told")
_ENGINE = np.dtype(
    [
        ("control", "u8"),
        ("places", "u8"),
        ("partitions", "i8"),
        ("tiles", "i8"),
        ("heads", "u8"),
        *((name, "u8") for name in _TILE_FIELDS),
        ("again", "u8"),
        ("stays", "u8"),
        ("values", "u8"),
        ("policy", "u8"),
        ("set", "u8"),
        ("work", "u8"),
        ("report", "u8"),
        ("backups", "u8"),
        ("measured", "u8"),
        ("discount", "f8"),
        ("log_discount", "f8"),
        ("sign", "f8"),
    ]
)
"""Structures of tiles.cuh."""


def _head_bytes(dims: int) -> int:
    """Of struct Head."""
    return -(-(36 + 6 * dims) // 16) * 16


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(slots=True)
class _Memory:
    """Addresses of what a run works on, by name."""

    at: dict[str, int] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)


class TiledBackend:
    """Sweeps of tiles on one device.

    Parameters
    ----------
    device : memory, streams and kernels.
    tile_states : states of a tile, about.
    """

    loads_beside = True

    def __init__(self, device: Device, tile_states: int = TILE_STATES) -> None:
        self._device = device
        self._tile_states = tile_states
        self.name = device.name
        self.together = 1
        self._halo: int | None = None
        self._local: bool | None = None
        self._rows: DeviceRows | None = None
        self.rows_room: int | None = None
        """Bytes of the device that a policy's rows may take; None for what is free when they are opened."""

    # ------------------------------------------------------------------------------------------------- planning

    def memory_free(self) -> int:
        """Bytes that could be allocated on the device now."""
        return self._device.memory_free()

    def slot_bytes(self, model: ModelConstants) -> int:
        """Bytes of a slot, into which the largest partition fits."""
        return self._layout_of(model)[1].nbytes

    def plan(self, model: ModelConstants) -> dict[str, int]:
        """What is allocated beside values, policy and slots."""
        tiling, layout = self._layout_of(model)
        tiles = (8 * len(_TILE_FIELDS) + 12 + _head_bytes(len(tiling.shape))) * tiling.total
        partitions = (_PLACE.itemsize + 4 + 80 + 8) * tiling.per_partition.size
        policy = model.n_states * (1 if layout.narrow_policy(model) else 4)
        return {"policy": policy, "tiles": tiles + partitions + (64 << 10), "staging": TileLoader.device_bytes(model)}

    def page_locked_bytes(self, model: ModelConstants) -> int:
        """Of the host, for values and policy on their way there and for what a batch is told and reports."""
        partitions = model.row_sums.size
        return PIECES_BYTES + 84 * partitions + (64 << 10)

    def _layout_of(self, model: ModelConstants) -> tuple[Tiling, SlotLayout]:
        tiling = Tiling.of(model, self._tile_states)
        local = self._local
        if local is None:
            local = not is_ragged(model) and (
                model.block_shapes is not None or 4 * model.largest_halo < model.largest_partition
            )
        halo = self._halo
        if halo is None:
            halo = _aligned(tiling.neighbourhood + tiling.neighbourhood // 4)
        layout = SlotLayout.of(model, tiling, local, halo if local else 0)
        if local and not layout.fits(tiling):
            layout = SlotLayout.of(model, tiling, False, 0)
        return tiling, layout

    # ---------------------------------------------------------------------------------------------------- start

    def start(self, model: ModelConstants, values: FloatArray | None, policy: npt.NDArray[np.int32] | None) -> None:
        """Copy the values over and allocate what every visit needs; slots come with :meth:`open_cache`."""
        self.close()
        self._start(model, values, policy)

    def _start(self, model: ModelConstants, values: FloatArray | None, policy: npt.NDArray[np.int32] | None) -> None:
        self._model = model
        self._tiling, self._layout = self._layout_of(model)
        self._stream = self._device.stream(urgent=True)
        self._choice = np.dtype(np.uint8) if self._layout.narrow_policy(model) else np.dtype(np.int32)
        n, tiles, partitions = model.n_states, self._tiling.total, self._tiling.per_partition.size
        self._memory = _Memory()
        sizes = {
            "values": 8 * n,
            "policy": self._choice.itemsize * n,
            "control": _CONTROL.itemsize,
            "places": _PLACE.itemsize * partitions,
            "heads": _head_bytes(len(self._tiling.shape)) * tiles,
            **dict.fromkeys(_TILE_FIELDS, 8 * tiles),
            "again": 4 * tiles,
            "stays": 4 * tiles,
            "set": 4 * partitions,
            "work": 4 * tiles,
            "report": 80 * partitions,
            "backups": 8 * partitions,
            "measured": 40,
        }
        whole = sum(_aligned(size) for size in sizes.values())
        try:
            base = self._device.allocate(whole)
        except MemoryError as error:
            raise MemoryBudgetError(
                f"values, policy and tiles of {n} states need {format_bytes(whole)} on {self.name}, which has "
                f"{format_bytes(self._device.memory_free())} free; use --device cpu or a larger device"
            ) from error
        for name, size in sizes.items():
            self._memory.at[name], self._memory.nbytes[name] = base, size
            base += _aligned(size)
        at = self._memory.at
        self._stream.clear(at["values"], whole)
        self._report = self._device.pinned(80 * partitions).view(np.float64).reshape(partitions, 10)
        self._control = self._device.pinned(_CONTROL.itemsize).view(_CONTROL)
        self._set = self._device.pinned(4 * partitions).view(np.uint32)
        self._measured = self._device.pinned(40).view(np.uint64)
        self._upload("values", values)
        self._upload("policy", None if policy is None else policy.astype(self._choice))
        places = np.zeros(partitions, _PLACE)
        ptr = model.partition_ptr
        assert ptr is not None
        places["first"], places["n"], places["row_sum"] = ptr[:-1], np.diff(ptr), model.row_sums
        places["tiles"] = self._tiling.per_partition
        places["tile"] = np.cumsum(self._tiling.per_partition) - self._tiling.per_partition
        extents = self._tiling.extents
        places["extent"] = 1
        places["extent"][:, : extents.shape[1]] = extents
        self._places = places
        self._changed = np.zeros(partitions, np.bool_)
        """bool [P]; whether values have changed otherwise than by sweeps since tiles last proved something of them."""
        self._without_policy = np.ones(partitions, np.bool_)
        if policy is not None:
            self._without_policy[:] = np.maximum.reduceat(policy, ptr[:-1]) < 0
        self._upload("places", places)
        self._compile()
        try:
            self._loader = TileLoader(self._device, model, self._tiling, self._layout, self._kernels, self._engine)
        except MemoryError as error:
            raise MemoryBudgetError(
                f"loads of partitions need {format_bytes(TileLoader.device_bytes(model))} on {self.name}, which has "
                "not so much left beside values, policy and tiles; use --device cpu or a larger device, or convert "
                "again with smaller partitions (--partition-size)"
            ) from error
        self._free_slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._graphs: dict[int, Callable[[], None]] = {}
        self._outside = TileExchange(
            self._device, self._stream, self._kernels, self._engine, self._memory.at, self._choice, tiles
        )

    def _upload(self, name: str, data: npt.NDArray[Any] | None) -> None:
        if data is not None:
            contiguous = np.ascontiguousarray(data)
            self._stream.upload(self._memory.at[name], contiguous)
            self._stream.wait()

    def _compile(self) -> None:
        self._staged = self._layout.staged(self._model, self._tiling, self._device.staging_shared)
        defines = self._layout.defines(self._model, self._tiling, self._staged)
        settles = self._layout.window_shared(self._model, self._tiling) > 0
        names = (*_KERNELS, *_SETTLE_KERNELS) if settles else _KERNELS
        self._kernels: dict[str, Kernel] = self._device.compile(read_sources(*TILES), defines, names)
        self._shared = self._layout.visit_shared(self._tiling)
        self._threads = self._layout.sweep_threads(self._tiling)
        self._sweep_shared = self._shared + self._staged
        self._blocks = self._kernels["sweep_tiles"].blocks_at_once(self._threads, self._sweep_shared)
        engine = np.zeros((), _ENGINE)
        for name in ("control", "places", "heads", *_TILE_FIELDS, "again", "stays", "values", "policy", "set", "work"):
            engine[name] = self._memory.at[name]
        for name in ("report", "backups", "measured"):
            engine[name] = self._memory.at[name]
        engine["partitions"], engine["tiles"] = self._tiling.per_partition.size, self._tiling.total
        discount = self._model.discount
        engine["discount"], engine["sign"] = discount, self._model.sign
        engine["log_discount"] = math.log(discount) if discount > 0 else -math.inf
        self._engine = engine

    def open_cache(self, budget: int) -> int:
        """Allocate as many slots as the budget holds, at most one a partition.

        Returns
        -------
        Bytes of a slot, which is what each partition takes of the cache.

        Raises
        ------
        MemoryBudgetError : not one fits, or the device has not so much memory.
        """
        size = self._layout.nbytes
        count = min(budget // size, self._tiling.per_partition.size)
        if count == 0:
            raise MemoryBudgetError(
                f"a slot of the cache takes {format_bytes(size)} on {self.name}, the cache holds "
                f"{format_bytes(budget)}; raise --cache to at least {size}, or convert again with smaller partitions"
            )
        try:
            base = self._device.allocate(count * size)
        except MemoryError as error:
            raise MemoryBudgetError(
                f"{self.name} has {format_bytes(self._device.memory_free())} free, the cache's {count} slots take "
                f"{format_bytes(count * size)}; lower --cache"
            ) from error
        self._slots = base
        self.together = count
        for i in range(count):
            self._free_slots.put(base + i * size)
        return size

    # ---------------------------------------------------------------------------------------------------- loads

    def reader(self, source: Any) -> Callable[[int], tuple[Any, int]] | None:
        """Reads a source's frames for `prepare`, if it has frames that the device decodes."""
        return self._loader.reader(source) if isinstance(source, FrameSource) else None

    def prepare(self, table: PartitionTable | Frames) -> Resident:
        """Bring a table to the device and lay it out in a slot; on any thread, beside the sweeps.

        Raises
        ------
        SlotsTooSmall : a tile reads more states than a slot has room for.
        """
        slot = self._free_slots.get()
        try:
            index, states = self._loader.load(table, slot)
        except BaseException:
            self._free_slots.put(slot)
            raise
        return Resident(index, states, False, (slot,))

    def admit(self, prepared: Resident) -> Resident:
        """It is in its slot already."""
        return prepared

    def release(self, resident: Resident) -> None:
        """The slot is free; sweeps of other partitions may go on."""
        self._free_slots.put(resident.arrays[0])

    def enlarge(self) -> None:
        """Make room for tiles with larger halos, or give tiles up where they do not fit; nothing may be resident.

        Values, policy and its rows stay; slots must be opened again.
        """
        values, policy, without_policy = self.values(), self.policy(), self._without_policy
        halo = 2 * self._layout.halo
        larger = SlotLayout.of(self._model, self._tiling, True, halo)
        # Without a grid, a tile that reads many states outside gains nothing from iterating alone.
        most = 2 * self._tiling.threads if self._model.block_shapes is None else _MOST_HALO
        self._local = halo <= most and larger.fits(self._tiling)
        self._halo = halo
        self._graphs = {}
        self._device.free_all(() if self._rows is None else self._rows.allocations)
        self._start(self._model, values, policy)
        self._without_policy = without_policy  # in the device's type no action is a number like others

    # --------------------------------------------------------------------------------------------------- sweeps

    def visit_together(self, residents: Sequence[Resident], limits: Sequence[SweepLimits]) -> TileBatch:
        """Rounds over all dirty tiles of the partitions."""
        return self._batch(residents, limits[0], _ROUNDS, _ITERATIONS, wake=False)

    def visit(self, resident: Resident, limits: SweepLimits) -> VisitReport:
        """Sweeps of one partition, every tile of it in the first."""
        (report,) = self.visit_several([resident], limits).reports()
        return report

    def visit_several(self, residents: Sequence[Resident], limits: SweepLimits) -> TileBatch:
        """Sweeps of some partitions, every tile of each in the first."""
        iterations, rounds = min(limits.most, _ITERATIONS_ALONE), min(limits.most, MAX_ROUNDS)
        return self._batch(residents, limits, rounds, iterations, wake=True)

    def _batch(
        self, residents: Sequence[Resident], limits: SweepLimits, rounds: int, iterations: int, wake: bool
    ) -> TileBatch:
        stream, count = self._stream, len(residents)
        self._set[:count] = [r.index for r in residents]
        self._without_policy[self._set[:count]] = False
        if self._rows is not None:
            self._rows.stale[self._set[:count]] = True
        control = self._control
        control["limit"] = limits.residual
        control["plain"] = limits.plain
        control["most"] = iterations
        control["set_size"] = count
        control["set_tiles"] = int(self._tiling.per_partition[self._set[:count]].max())
        at = self._memory.at
        stream.upload(at["set"], self._set[:count])
        # The sum over rounds lies between `limit` and `plain`, and stays.
        bytes_of = control.view(np.uint8)
        stream.upload(at["control"], bytes_of[:8])
        stream.upload(at["control"] + 16, bytes_of[16:32])
        for q in self._set[:count][self._changed[self._set[:count]]].tolist():
            blocks = -(-int(self._tiling.per_partition[q]) // 256)
            self._kernels["forget_tiles"](stream, blocks, 256, (self._engine, np.int32(q)))
            self._changed[q] = False
        if wake:
            self._kernels["wake_tiles"](stream, count, 256, (self._engine,))
        if rounds not in self._graphs:
            self._graphs[rounds] = self._device.graph(stream, lambda: self._launch_rounds(rounds))
        self._graphs[rounds]()
        stream.download(self._report[:count], at["report"])
        states = np.array([r.n_states for r in residents])
        return TileBatch(stream, stream.mark(), self._report[:count], states)

    def _launch_rounds(self, rounds: int) -> None:
        engine, kernels = self._engine, self._kernels
        for r in range(rounds):
            if rounds == _ROUNDS and r in _SETTLING_ROUNDS and "settle_windows" in kernels:
                self._launch_settling(r)
                continue
            kernels["select_tiles"](self._stream, 4 * self._device.multiprocessors, 256, (engine, np.int32(r)))
            kernels["sweep_tiles"](self._stream, self._blocks, self._threads, (engine, np.int32(r)), self._sweep_shared)
        kernels["report_partitions"](self._stream, self.together, 256, (engine, np.int32(rounds)))
        kernels["end_batch"](self._stream, 1, 1, (engine, np.int32(rounds)))

    def _launch_settling(self, r: int) -> None:
        """A round that looks for windows in which a process stays, and solves them."""
        select, kernel = (self._kernels[name] for name in _SETTLE_KERNELS)
        threads, shared = self._tiling.threads, self._layout.window_shared(self._model, self._tiling)
        blocks = kernel.blocks_at_once(threads, shared)
        arguments = self._engine, np.int32(r), np.int32(_SETTLING_ROUNDS.index(r)), np.int32(len(_SETTLING_ROUNDS))
        select(self._stream, 4 * self._device.multiprocessors, 256, arguments)
        kernel(self._stream, blocks, threads, (*arguments, np.uint32(_WINDOWS * blocks)), shared)

    def measure(self, resident: Resident, significant: float) -> tuple[Measured, float]:
        """One pass that changes no value."""
        fresh = bool(self._without_policy[resident.index])
        self._without_policy[resident.index] = False
        at, stream = self._memory.at, self._stream
        stream.clear(at["measured"], 40)
        arguments = (self._engine, np.int32(resident.index), np.float64(significant), np.int32(fresh))
        tiles = int(self._tiling.per_partition[resident.index])
        self._kernels["measure_tiles"](stream, min(tiles, self._blocks), self._threads, arguments, self._shared)
        stream.download(self._measured.view(np.uint8), at["measured"])
        stream.wait()
        *residuals, value = (unrank(rank) for rank in self._measured)
        return Measured(*residuals), value

    # ------------------------------------------------------------------------------------------- a policy's rows

    def rows_bytes(self, model: ModelConstants) -> int:
        """On the device, where they find room there."""
        return DeviceRows.nbytes(model)

    def least_rows_bytes(self, model: ModelConstants) -> int:
        """What evaluations work in."""
        return DeviceRows.placed(model, 0)[0]

    def place_rows(self, model: ModelConstants, room: int | None) -> tuple[int, int]:
        """Whole on the device, or only what evaluations work in."""
        self.rows_room = room
        room = self._device.memory_free() if room is None else room
        return DeviceRows.placed(model, room)

    def load_row_kernels(self) -> None:
        """Compiled where they have not been before; those of sweeps were at the start."""
        self._improve_kernel()
        DeviceRows.kernels(self._device, self._model)

    def open_rows(self, coupling: Coupling) -> None:
        """On the device, or in the host's memory where that leaves too little; all partitions are swept."""
        self.close_rows()
        self._rows = DeviceRows(self._device, self._stream, self._model, self.rows_room)

    def close_rows(self) -> None:
        """Free them at once."""
        if self._rows is not None:
            self._rows.close()
        self._rows = None

    def improve(self, residents: Sequence[Resident], margin: float) -> Improvement:
        """All tiles of the partitions in one launch."""
        assert self._rows is not None  # the caller has opened them
        partitions, rows = np.array([r.index for r in residents]), self._rows
        kernel, tiles = self._improve_kernel(), int(self._tiling.per_partition[partitions].max())
        blocks = min(partitions.size * tiles, kernel.blocks_at_once(self._threads, self._shared))

        def launch(marks: np.uint64, found: np.uint64) -> None:
            counts = np.int32(partitions.size), np.int32(tiles)
            arguments = (self._engine, rows.rows, marks, *counts, np.float64(margin), found)
            kernel(self._stream, blocks, self._threads, arguments, self._shared)

        fresh = self._without_policy[partitions]
        self._without_policy[partitions] = False
        return rows.improve(self._stream, partitions, fresh, launch)

    def evaluate(self, limit: float, most: int) -> Evaluation:
        """Without tiles; what they have proved of their values is forgotten when they are swept again."""
        assert self._rows is not None  # the caller has opened them
        found = self._rows.evaluate(self._stream, self._memory.at["values"], limit, most)
        self._changed[:] = True  # a load under way may have seen values of halfway
        return found

    def _improve_kernel(self) -> Kernel:
        (name,) = IMPROVE_KERNELS
        if name not in self._kernels:
            defines = self._layout.defines(self._model, self._tiling, self._staged) | kernel_defines(self._model)
            files = (*TILES, "policy_rows.cuh", "improve_tiles.cu")
            self._kernels |= self._device.compile(read_sources(*files), defines, IMPROVE_KERNELS)
        return self._kernels[name]

    # --------------------------------------------------------------------------------- values of others' partitions

    def read(self, states: IntArray) -> FloatArray:
        """Gathered by a kernel."""
        return self._outside.read(states)

    def gather(self, lists: StateLists, which: IntArray) -> FloatArray:
        """Gathered by a kernel, from lists in the host's page-locked memory."""
        return self._outside.gather(lists, which)

    def take(self, lists: StateLists, which: IntArray, values: FloatArray) -> ListChanges:
        """Scattered likewise; tiles that read them are told by how much they differ from those that were here.

        What was proved of the partitions' own tiles is forgotten before they are swept, should they be resident, or
        on their way: a load may have seen some of the old values.
        """
        changes = self._outside.take(lists, which, values)
        self._changed[lists.partitions[which]] = True
        return changes

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        """As :meth:`take` does."""
        self.take(StateLists(partitions, ptr, states), np.arange(partitions.size), values)

    def write_policy(self, partition: int, policy: npt.NDArray[np.int32]) -> None:
        """One copy, in the type that the device has."""
        self._without_policy[partition] = policy.max() < 0
        if self._rows is not None:
            self._rows.stale[partition] = True
        narrow = policy.astype(self._choice)
        first = int(self._places["first"][partition])
        self._stream.upload(self._memory.at["policy"] + first * narrow.itemsize, narrow)
        self._stream.wait()

    # -------------------------------------------------------------------------------------------------- results

    def copy(self, start: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Copies of only these on their way."""
        self._outside.copy("values", start, values)
        self._outside.copy("policy", start, policy)

    def values(self) -> FloatArray:
        """A copy on the host."""
        host = np.empty(self._model.n_states)
        self._outside.copy("values", 0, host)
        return host

    def policy(self) -> npt.NDArray[np.int32]:
        """A copy on the host."""
        host = np.empty(self._model.n_states, np.int32)
        self._outside.copy("policy", 0, host)
        return host

    def close(self) -> None:
        """Free everything on the device."""
        self.close_rows()
        self._graphs = {}
        self._device.free_all()
