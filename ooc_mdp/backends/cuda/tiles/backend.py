"""The tiled engine: devices whose cache is slots in one allocation, and whose launches sweep batches of partitions.

    reading thread    frames of a partition ─▶ page-locked buffer ─▶ device ─▶ decoded table ─▶ tiles in its slot
    solving thread    control ─▶ [ select_tiles, sweep_tiles ] x rounds ─▶ report ─▶ bounds of each partition

Loads run on streams of their own and overlap the sweeps; a partition takes part in sweeps once its load is done.
Devices of a group each load, hold and sweep their own partitions (`division.py`), and keep in step round by round.
Nothing is allocated while a solve runs, except where a tile turns out to read more states than its slot has room for
(`SlotsTooSmall`). ``tiles/tiles.cuh`` says what the kernels do and what their bounds rest on; `memory.py` is
what is allocated beside slots, `launches.py` how sweeps are launched.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Backups, Features, Improvement, Loops, PolicyEvaluation, Resident, SweepLimits
from ooc_mdp.backends.cuda.device import Device
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.layout import aligned
from ooc_mdp.backends.cuda.policy.launches import row_kernels
from ooc_mdp.backends.cuda.policy.rows import DeviceRows
from ooc_mdp.backends.cuda.tiles.batch import TileBatch
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.backends.cuda.tiles.exchange import PIECES_BYTES, TileExchange
from ooc_mdp.backends.cuda.tiles.launches import TileLaunches
from ooc_mdp.backends.cuda.tiles.layout import MAX_ROUNDS, TILE_STATES, SlotLayout, Tiling, is_ragged
from ooc_mdp.backends.cuda.tiles.loads import Frames, TileLoader
from ooc_mdp.backends.cuda.tiles.memory import TileMemory
from ooc_mdp.backends.layout import Layout, Needs, device_layout
from ooc_mdp.backends.state_lists import ListChanges, StateLists
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling, PartitionTable
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.model.table import Loader
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.memory_plan import SMALLER

__all__ = ["TiledBackend"]

_ITERATIONS = 32
"""Iterations of a tile's visit at most."""
_ITERATIONS_ALONE = 8
"""The same where one partition is swept by itself, a given number of times."""
_MAX_HALO = 8192


@dataclass(frozen=True, slots=True)
class _Detail:
    """Of a layout: what it is for, and where tiles and slots lie."""

    facts: ModelFacts
    needs: Needs
    tiling: Tiling
    slots: SlotLayout
    division: Division


class TiledBackend:
    """Sweeps of tiles on one device, or on a group.

    Parameters
    ----------
    device : memory, streams and kernels.
    tile_states : states of a tile, about.
    others : further devices of its group.
    """

    synchronous = None

    def __init__(self, device: Device, tile_states: int = TILE_STATES, others: Sequence[Device] = ()) -> None:
        self._device, self._group = device, DeviceGroup((device, *others))
        self._tile_states = tile_states
        self.name = self._group.name
        self.features = Features(overlaps_loads=True, sweep_batch=8 * len(self._group))
        self._rows: DeviceRows | None = None

    # ------------------------------------------------------------------------------------------------- planning

    @property
    def policy_rows(self) -> TiledBackend:
        """Itself."""
        return self

    def load_code(self, facts: ModelFacts, loops: Loops) -> None:
        """Reads of frames; :meth:`start` compiles kernels, those of a policy's rows too where these are planned."""
        if facts.stored_fields:
            from ooc_mdp.store.chunk_reads import load_code

            load_code()

    def free_bytes(self) -> int:
        """Bytes that could be allocated on the device now, on that of a group that has least."""
        return min(self._group.memory_free())

    def layout(self, facts: ModelFacts, needs: Needs) -> Layout:
        """Slots for the largest partition; tiles are iterated over their halos where these are known to be small."""
        tiling = Tiling.of(facts, self._tile_states)
        local = not is_ragged(facts) and (
            facts.block_shapes is not None or 4 * facts.largest_halo < facts.largest_partition
        )
        halo = aligned(tiling.neighbourhood + tiling.neighbourhood // 4)
        return self._layout_of(facts, needs, tiling, local, halo)

    def enlarged(self, layout: Layout) -> Layout:
        """Room for tiles with larger halos, which are given up where they do not fit or gain nothing."""
        detail: _Detail = layout.detail
        facts, tiling, halo = detail.facts, detail.tiling, 2 * detail.slots.halo
        # Without a grid, a tile that reads many states outside gains nothing from iterating alone.
        most = 2 * tiling.threads if facts.block_shapes is None else _MAX_HALO
        return self._layout_of(facts, detail.needs, tiling, halo <= most, halo)

    def _layout_of(self, facts: ModelFacts, needs: Needs, tiling: Tiling, local: bool, halo: int) -> Layout:
        slots = SlotLayout.of(facts, tiling, local, halo if local else 0)
        if local and not slots.fits(tiling):
            slots = SlotLayout.of(facts, tiling, False, 0)
        division, devices = self.division(facts), len(self._group)
        held = division.shares(np.ones(facts.n_partitions, np.int64))
        own = TileMemory.plan(self._group, facts, tiling, slots, division)
        own["staging"] = TileLoader.device_bytes(facts)
        group, first = self._group, division.first
        place_rows = partial(DeviceRows.placed, facts, devices=len(group), page=group.page, first=first)
        layout = device_layout(facts, needs, self.name, own, slots.nbytes, place_rows, int(held.max()))
        locked = PIECES_BYTES + devices * TileMemory.page_locked_bytes(facts.n_partitions)
        return replace(
            layout,
            batch_size=int(np.minimum(held, layout.cache_bytes // slots.nbytes).sum()),
            host={"page-locked": locked, "frames' headers": TileLoader.host_bytes(facts), **layout.host},
            places=division.owner if devices > 1 else None,
            detail=_Detail(facts, needs, tiling, slots, division),
        )

    def division(self, facts: ModelFacts) -> Division:
        """Which partitions are whose."""
        return Division.choose(facts, len(self._group))

    # ---------------------------------------------------------------------------------------------------- start

    def start(
        self,
        facts: ModelFacts,
        layout: Layout,
        values: FloatArray | None,
        policy: npt.NDArray[np.int32] | None,
        loader: Loader | None = None,
    ) -> None:
        """Copy the values over, and allocate what every visit needs and as many slots as a batch has partitions."""
        self.close()
        detail: _Detail = layout.detail
        division = self._division = detail.division
        self._facts, self._tiling, self._layout, self._rows_room = facts, detail.tiling, detail.slots, layout.rows_room
        self._streams = self._group.streams(urgent=True)
        self._stream = self._streams[0]
        self._memory = TileMemory(self._group, self._streams, facts, self._tiling, self._layout, division)
        self._memory.upload("values", values)
        self._memory.upload("policy", None if policy is None else policy.astype(self._memory.choice))
        partitions = self._tiling.per_partition.size
        self._changed = np.zeros(partitions, np.bool_)
        """bool [P]; whether tiles are invalid, since values have changed otherwise than by sweeps."""
        self._without_policy = np.ones(partitions, np.bool_)
        if policy is not None:
            self._without_policy[:] = np.maximum.reduceat(policy, division.stored) < 0
        self._launches = TileLaunches(
            self._group, self._streams, facts, self._tiling, self._layout, self._memory, division
        )
        self._open_loaders()
        self._read = None if loader is None else self._loaders[0].reader(loader)
        tiles, kernels = self._tiling.total, self._launches.kernels
        self._outside = TileExchange(self._group, self._streams, kernels, self._memory, tiles, division)
        if layout.rows_room is not None:  # compiled here, so that no clock of a solve counts it
            self._launches.load_improvement()
            for device in self._group.devices:
                row_kernels(device, facts, len(self._group))
        held = division.shares(np.ones(facts.n_partitions, np.int64))
        counts = np.minimum(held, layout.cache_bytes // self._layout.nbytes).tolist()
        self._launches.most = max(counts)
        self._free_slots = [
            self._slots_on(device, count) for device, count in zip(self._group.devices, counts, strict=True)
        ]

    def _open_loaders(self) -> None:
        """What brings partitions into the slots of each device."""
        model, buffers = self._facts, queue.SimpleQueue[npt.NDArray[np.uint8]]()
        members = zip(self._group.devices, self._launches.kernels, self._memory.members, strict=True)
        try:
            self._loaders = [
                TileLoader(device, model, self._tiling, self._layout, kernels, member.engine, buffers)
                for device, kernels, member in members
            ]
        except MemoryError as error:
            raise MemoryBudgetError(
                f"loads of partitions need {format_bytes(TileLoader.device_bytes(model))} on {self.name}, which has "
                "not so much left beside values, policy and tiles; use --device cpu or a larger device, or "
                f"{SMALLER}"
            ) from error

    def _slots_on(self, device: Device, count: int) -> queue.SimpleQueue[int]:
        """Addresses of a device's free slots, which are one allocation."""
        size = self._layout.nbytes
        try:
            base = device.allocate(count * size)
        except MemoryError as error:
            raise MemoryBudgetError(
                f"{device.name} has {format_bytes(device.memory_free())} free, the cache's {count} slots take "
                f"{format_bytes(count * size)}; lower --cache"
            ) from error
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in range(count):
            free.put(base + i * size)
        return free

    # ---------------------------------------------------------------------------------------------------- loads

    def fetch(self, p: int) -> tuple[Resident, int]:
        """Read partition p, as frames that a device decodes where it is stored so, and bring it to its device."""
        assert self._read is not None  # a loader was given to `start`
        table, n_bytes = self._read(p)
        return self.prepare(table), n_bytes

    def prepare(self, table: PartitionTable | Frames) -> Resident:
        """Bring a table to the device and lay it out in a slot; on any thread, overlapping the sweeps.

        Raises
        ------
        SlotsTooSmall : a tile reads more states than a slot has room for.
        """
        owner = self._division.owner[table.index]
        slot = self._free_slots[owner].get()
        try:
            index, states = self._loaders[owner].load(table, slot)
        except BaseException:
            self._free_slots[owner].put(slot)
            raise
        return Resident(index, states, False, (slot,))

    def admit(self, prepared: Resident) -> Resident:
        """It is in its slot already."""
        return prepared

    def release(self, resident: Resident) -> None:
        """The slot is free; sweeps of other partitions may go on."""
        self._free_slots[self._division.owner[resident.index]].put(resident.arrays[0])

    # --------------------------------------------------------------------------------------------------- sweeps

    def relax(self, residents: Sequence[Resident], limits: SweepLimits) -> TileBatch:
        """Rounds over all dirty tiles of the partitions, until none is above `limits.residual`."""
        return self._batch(residents, limits, _ITERATIONS)

    def sweep(self, residents: Sequence[Resident], limits: SweepLimits) -> TileBatch:
        """Sweeps of partitions, every tile of each in the first."""
        iterations, rounds = min(limits.most, _ITERATIONS_ALONE), min(limits.most, MAX_ROUNDS)
        return self._batch(residents, limits, iterations, rounds, all_due=True)

    def _batch(
        self,
        residents: Sequence[Resident],
        limits: SweepLimits,
        iterations: int,
        rounds: int | None = None,
        all_due: bool = False,
    ) -> TileBatch:
        partitions = np.array([r.index for r in residents])
        self._without_policy[partitions] = False
        if self._rows is not None:
            self._rows.outdated[partitions] = True
        invalid = partitions[self._changed[partitions]]
        parts = self._launches.batch(partitions, invalid, limits, iterations, rounds=rounds, all_due=all_due)
        self._changed[invalid] = False
        return TileBatch(parts, np.array([r.n_states for r in residents]))

    def measure(self, resident: Resident, significant: float) -> tuple[FloatArray, float]:
        """One pass that changes no value."""
        fresh = bool(self._without_policy[resident.index])
        self._without_policy[resident.index] = False
        return self._launches.measure(resident.index, significant, fresh)

    # ------------------------------------------------------------------------------------------- a policy's rows

    def rows_bytes(self, facts: ModelFacts) -> int:
        """On each device, where they find room there."""
        return DeviceRows.nbytes(facts, len(self._group), self._group.page, self.division(facts).first)

    def open_rows(self, coupling: Coupling) -> None:
        """On the devices, or in the host's memory where that leaves too little; all partitions are swept."""
        self.close_rows()
        self._rows = DeviceRows(self._group, self._streams, self._facts, self._rows_room, self._division.first)

    def close_rows(self) -> None:
        """Free them immediately."""
        if self._rows is not None:
            self._rows.close()
        self._rows = None

    def back_up(self, residents: Sequence[Resident]) -> Backups:
        """All tiles of each device's partitions in one launch; what tiles have proved of values is invalidated."""
        assert self._rows is not None  # the caller has opened them
        partitions, rows, launches = np.array([r.index for r in residents]), self._rows, self._launches

        def back_up(member: int, places: IntArray, batch: np.uint64, results: np.uint64) -> None:
            launches.back_up(member, partitions[places], batch, rows.at["start"], results)

        def take_backups(member: int, places: IntArray, batch: np.uint64, _: np.uint64) -> None:
            launches.take_backups(member, places.size, batch, rows.at["start"])

        found = rows.back_up(partitions, (back_up, take_backups), self._division.owner[partitions])
        self._invalidate()
        return found

    def improve(self, residents: Sequence[Resident], margin: float) -> Improvement:
        """All tiles of each device's partitions in one launch."""
        assert self._rows is not None  # the caller has opened them
        partitions, rows = np.array([r.index for r in residents]), self._rows

        def improve(member: int, places: IntArray, batch: np.uint64, results: np.uint64) -> None:
            self._launches.improve(member, partitions[places], batch, rows.rows[member], margin, results)

        fresh = self._without_policy[partitions]
        self._without_policy[partitions] = False
        return rows.improve(partitions, fresh, improve, self._division.owner[partitions])

    def evaluation(self, limit: float, most: int) -> PolicyEvaluation:
        """Without tiles; what they have proved of their values is invalidated when they are swept again."""
        assert self._rows is not None  # the caller has opened them
        values = self._memory.at["values"]
        return self._rows.evaluation(values, limit, most, self._invalidate)

    def _invalidate(self) -> None:
        """Values have changed; a load under way may have seen some of halfway."""
        self._changed[:] = True

    # --------------------------------------------------------------------------------- values of others' partitions

    def read(self, states: IntArray) -> FloatArray:
        """Gathered by a kernel."""
        return self._outside.read(states)

    def gather(self, lists: StateLists, which: IntArray) -> FloatArray:
        """Gathered by a kernel, from lists in the host's page-locked memory."""
        return self._outside.gather(lists, which)

    def write_lists(self, lists: StateLists, which: IntArray, values: FloatArray) -> ListChanges:
        """Scattered likewise; tiles that read them are marked by how much they differ from those that were here.

        What was proved of the partitions' own tiles is invalidated before they are swept, should they be resident, or
        on their way: a load may have seen some of the old values.
        """
        changes = self._outside.write_lists(lists, which, values)
        self._changed[lists.partitions[which]] = True
        return changes

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        """As :meth:`write_lists` does."""
        self.write_lists(StateLists(partitions, ptr, states), np.arange(partitions.size), values)

    def write_policy(self, partition: int, policy: npt.NDArray[np.int32]) -> None:
        """One copy, in the type that the device has."""
        self._without_policy[partition] = policy.max() < 0
        if self._rows is not None:
            self._rows.outdated[partition] = True
        start = int(self._division.stored[partition])
        self._memory.upload("policy", policy.astype(self._memory.choice), start)

    # -------------------------------------------------------------------------------------------------- results

    def copy(self, start: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Copies of only these on their way."""
        for name, host in (("values", values), ("policy", policy)):
            self._outside.copy(name, start, host)

    def values(self, order: GridOrder | None = None) -> FloatArray:
        """A copy on the host."""
        return self._on_host("values", np.empty(self._facts.n_states), order)

    def policy(self, order: GridOrder | None = None) -> npt.NDArray[np.int32]:
        """A copy on the host."""
        return self._on_host("policy", np.empty(self._facts.n_states, np.int32), order)

    def _on_host(self, name: str, host: npt.NDArray[Any], order: GridOrder | None) -> npt.NDArray[Any]:
        if order is None:
            self._outside.copy(name, 0, host)
        else:
            self._outside.copy_points(name, order, host)
        return host

    def close(self) -> None:
        """Free everything on the device."""
        self.close_rows()
        self._group.free_all()
