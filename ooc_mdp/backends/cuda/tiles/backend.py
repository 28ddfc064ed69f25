"""The tiled engine: a device whose cache is slots in one allocation, and whose launches sweep many partitions at once.

    reading thread    frames of a partition ─▶ page-locked buffer ─▶ device ─▶ decoded table ─▶ tiles in its slot
    solving thread    control ─▶ [ select_tiles, sweep_tiles ] x rounds ─▶ report ─▶ bounds of each partition

Loads run on streams of their own beside the sweeps; a partition takes part in sweeps once its load is done. Nothing is
allocated while a solve runs, apart from the day when a tile turns out to read more states than its slot has room for
(`SlotsTooSmall`). ``tiles/tiles.cuh`` says what the kernels do and what their bounds rest on; `memory.py` is what
is allocated beside slots, `launches.py` how sweeps are launched.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import (
    Features,
    Improvement,
    PolicyEvaluation,
    Resident,
    SweepLimits,
)
from ooc_mdp.backends.cuda.device import Device
from ooc_mdp.backends.cuda.layout import aligned
from ooc_mdp.backends.cuda.policy.rows import DeviceRows
from ooc_mdp.backends.cuda.tiles.batch import TileBatch
from ooc_mdp.backends.cuda.tiles.exchange import PIECES_BYTES, TileExchange
from ooc_mdp.backends.cuda.tiles.launches import TileLaunches
from ooc_mdp.backends.cuda.tiles.layout import MAX_ROUNDS, TILE_STATES, SlotLayout, Tiling, is_ragged
from ooc_mdp.backends.cuda.tiles.loads import Frames, TileLoader
from ooc_mdp.backends.cuda.tiles.memory import TileMemory
from ooc_mdp.backends.state_lists import ListChanges, StateLists
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling, PartitionTable
from ooc_mdp.options import format_bytes

__all__ = ["TiledBackend"]

_ITERATIONS = 32
"""Iterations of a tile's visit at most."""
_ITERATIONS_ALONE = 8
"""The same where one partition is swept by itself, a given number of times."""
_MOST_HALO = 8192


class TiledBackend:
    """Sweeps of tiles on one device.

    Parameters
    ----------
    device : memory, streams and kernels.
    tile_states : states of a tile, about.
    """

    features = Features(overlaps_loads=True, sweep_batch=8)
    synchronous = None

    def __init__(self, device: Device, tile_states: int = TILE_STATES) -> None:
        self._device = device
        self._tile_states = tile_states
        self.name = device.name
        self.batch_size = 1
        self._halo: int | None = None
        self._local: bool | None = None
        self._rows: DeviceRows | None = None
        self.rows_room: int | None = None
        """Bytes of the device that a policy's rows may take; None for what is free when they are opened."""

    # ------------------------------------------------------------------------------------------------- planning

    @property
    def policy_rows(self) -> TiledBackend:
        """Itself."""
        return self

    def load_code(self, model: ModelFacts, policy_rows: bool) -> None:
        """:meth:`start` compiles kernels, or loads those that were compiled before."""

    def free_bytes(self) -> int:
        """Bytes that could be allocated on the device now."""
        return self._device.memory_free()

    def slot_bytes(self, model: ModelFacts) -> int:
        """Bytes of a slot, into which the largest partition fits."""
        return self._layout_of(model)[1].nbytes

    def plan(self, model: ModelFacts) -> dict[str, int]:
        """What is allocated beside values, policy and slots."""
        tiling, layout = self._layout_of(model)
        return TileMemory.plan(model, tiling, layout) | {"staging": TileLoader.device_bytes(model)}

    def page_locked_bytes(self, model: ModelFacts) -> int:
        """Of the host, for values and policy on their way there and for what a batch is told and reports."""
        return PIECES_BYTES + TileMemory.page_locked_bytes(model.row_sums.size)

    def _layout_of(self, model: ModelFacts) -> tuple[Tiling, SlotLayout]:
        tiling = Tiling.of(model, self._tile_states)
        local = self._local
        if local is None:
            local = not is_ragged(model) and (
                model.block_shapes is not None or 4 * model.largest_halo < model.largest_partition
            )
        halo = self._halo
        if halo is None:
            halo = aligned(tiling.neighbourhood + tiling.neighbourhood // 4)
        layout = SlotLayout.of(model, tiling, local, halo if local else 0)
        if local and not layout.fits(tiling):
            layout = SlotLayout.of(model, tiling, False, 0)
        return tiling, layout

    # ---------------------------------------------------------------------------------------------------- start

    def start(self, model: ModelFacts, values: FloatArray | None, policy: npt.NDArray[np.int32] | None) -> None:
        """Copy the values over and allocate what every visit needs; slots come with :meth:`open_cache`."""
        self.close()
        self._start(model, values, policy)

    def _start(self, model: ModelFacts, values: FloatArray | None, policy: npt.NDArray[np.int32] | None) -> None:
        self._model = model
        self._tiling, self._layout = self._layout_of(model)
        self._stream = self._device.stream(urgent=True)
        self._memory = TileMemory(self._device, self._stream, model, self._tiling, self._layout)
        self._memory.upload("values", values)
        self._memory.upload("policy", None if policy is None else policy.astype(self._memory.choice))
        partitions = self._tiling.per_partition.size
        self._changed = np.zeros(partitions, np.bool_)
        """bool [P]; whether values have changed otherwise than by sweeps since tiles last proved something of them."""
        self._without_policy = np.ones(partitions, np.bool_)
        if policy is not None:
            self._without_policy[:] = np.maximum.reduceat(policy, self._memory.places["first"]) < 0
        self._launches = TileLaunches(self._device, self._stream, model, self._tiling, self._layout, self._memory)
        kernels, engine = self._launches.kernels, self._memory.engine
        try:
            self._loader = TileLoader(self._device, model, self._tiling, self._layout, kernels, engine)
        except MemoryError as error:
            raise MemoryBudgetError(
                f"loads of partitions need {format_bytes(TileLoader.device_bytes(model))} on {self.name}, which has "
                "not so much left beside values, policy and tiles; use --device cpu or a larger device, or convert "
                "again with smaller partitions (--partition-size)"
            ) from error
        self._free_slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        at, choice = self._memory.at, self._memory.choice
        self._outside = TileExchange(self._device, self._stream, kernels, engine, at, choice, self._tiling.total)

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
        self.batch_size = self._launches.most = count
        for i in range(count):
            self._free_slots.put(base + i * size)
        return size

    # ---------------------------------------------------------------------------------------------------- loads

    def reader(self, source: Any) -> Callable[[int], tuple[Any, int]] | None:
        """Reads a source's frames for `prepare`, if it has frames that the device decodes."""
        return self._loader.reader(source) if source.stored_fields else None

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
        self._device.free_all(() if self._rows is None else self._rows.allocations)
        self._start(self._model, values, policy)
        self._without_policy = without_policy  # in the device's type no action is a number like others

    # --------------------------------------------------------------------------------------------------- sweeps

    def relax(self, residents: Sequence[Resident], limits: SweepLimits) -> TileBatch:
        """Rounds over all dirty tiles of the partitions, until none is above `limits.residual`."""
        return self._batch(residents, limits, _ITERATIONS)

    def sweep(self, residents: Sequence[Resident], limits: SweepLimits) -> TileBatch:
        """Sweeps of partitions, every tile of each in the first."""
        iterations, rounds = min(limits.most, _ITERATIONS_ALONE), min(limits.most, MAX_ROUNDS)
        return self._batch(residents, limits, iterations, rounds, wake=True)

    def _batch(
        self,
        residents: Sequence[Resident],
        limits: SweepLimits,
        iterations: int,
        rounds: int | None = None,
        wake: bool = False,
    ) -> TileBatch:
        partitions = np.array([r.index for r in residents])
        self._without_policy[partitions] = False
        if self._rows is not None:
            self._rows.stale[partitions] = True
        forget = partitions[self._changed[partitions]]
        self._launches.batch(partitions, forget, limits, iterations, rounds=rounds, wake=wake)
        self._changed[forget] = False
        states = np.array([r.n_states for r in residents])
        return TileBatch(self._stream, self._stream.mark(), self._memory.report[: partitions.size], states)

    def measure(self, resident: Resident, significant: float) -> tuple[FloatArray, float]:
        """One pass that changes no value."""
        fresh = bool(self._without_policy[resident.index])
        self._without_policy[resident.index] = False
        return self._launches.measure(resident.index, significant, fresh)

    # ------------------------------------------------------------------------------------------- a policy's rows

    def rows_bytes(self, model: ModelFacts) -> int:
        """On the device, where they find room there."""
        return DeviceRows.nbytes(model)

    def least_rows_bytes(self, model: ModelFacts) -> int:
        """What evaluations work in."""
        return DeviceRows.placed(model, 0)[0]

    def place_rows(self, model: ModelFacts, room: int | None) -> tuple[int, int]:
        """Whole on the device, or only what evaluations work in."""
        self.rows_room = room
        room = self._device.memory_free() if room is None else room
        return DeviceRows.placed(model, room)

    def load_row_code(self) -> None:
        """Compiled where they have not been before; those of sweeps were at the start."""
        self._launches.load_improvement()
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

        def launch(marks: np.uint64, found: np.uint64) -> None:
            self._launches.improve(partitions, rows.rows, margin, marks, found)

        fresh = self._without_policy[partitions]
        self._without_policy[partitions] = False
        return rows.improve(self._stream, partitions, fresh, launch)

    def evaluation(self, limit: float, most: int) -> PolicyEvaluation:
        """Without tiles; what they have proved of their values is forgotten when they are swept again."""
        assert self._rows is not None  # the caller has opened them
        values = self._memory.at["values"]
        return self._rows.evaluation(self._stream, values, limit, most, self._forget)

    def _forget(self) -> None:
        """Values have changed; a load under way may have seen some of halfway."""
        self._changed[:] = True

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
        narrow = policy.astype(self._memory.choice)
        first = int(self._memory.places["first"][partition])
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
        self._device.free_all()
