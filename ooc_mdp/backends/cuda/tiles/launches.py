"""The kernels of one model's tiles, and their launches: rounds of sweeps as one graph, measurements, improvements.

    batch   control ─▶ invalidate ─▶ mark due ─▶ [ select_tiles, sweep_tiles | select_windows, solve_windows ] x rounds
                                              ─▶ report_partitions ─▶ end_batch ─▶ report on the host

Each device of a group does so for its own partitions of the batch; all meet after each round. Waits for nothing but
measurements; who asks for a batch knows what is resident.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.device import Kernel, Stream
from ooc_mdp.backends.cuda.group import DeviceGroup, Meet
from ooc_mdp.backends.cuda.layout import numbers_of_encoded
from ooc_mdp.backends.cuda.policy.layout import kernel_defines
from ooc_mdp.backends.cuda.policy.rows import IMPROVE_KERNELS
from ooc_mdp.backends.cuda.sources import TILES, read_sources
from ooc_mdp.backends.cuda.tiles.batch import ReportPart
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.backends.cuda.tiles.exchange import EXCHANGE_KERNELS
from ooc_mdp.backends.cuda.tiles.layout import SlotLayout, Tiling
from ooc_mdp.backends.cuda.tiles.memory import CONTROL_PARAMETERS, BatchPages, TileMemory
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["TileLaunches"]

_ROUNDS = 60
"""Rounds of a batch, between two looks of the host: on 400 million states 60 took three quarters of the time of 16."""
_WINDOW_ROUNDS = (9, 19, 29, 39, 49)
"""Rounds of a batch in which windows are solved in place of visits; after the last of them tiles are visited again."""
_WINDOWS = 2
"""That a block may look at in such a round, of each list."""
_SHARES = 16
"""SHARES of policy/improve.cu."""
_KERNELS = (
    "select_tiles",
    "sweep_tiles",
    "report_partitions",
    "end_batch",
    "mark_tiles_due",
    "measure_tiles",
    "invalidate_tiles",
    *EXCHANGE_KERNELS,
    "lay_out",
    "lay_out_boundary",
    "keep_table",
)
_WINDOW_KERNELS = ("select_windows", "solve_windows")


class TileLaunches:
    """Of one model on a group of devices.

    Parameters
    ----------
    streams : of the sweeps, one on each device.
    division : whose partitions and tiles are whose.
    """

    def __init__(
        self,
        group: DeviceGroup,
        streams: Sequence[Stream],
        facts: ModelFacts,
        tiling: Tiling,
        layout: SlotLayout,
        memory: TileMemory,
        division: Division,
    ) -> None:
        self._group, self._streams, self._facts, self._division = group, streams, facts, division
        self._tiling, self._layout, self._memory = tiling, layout, memory
        self.staged = layout.staged(facts, tiling, min(device.staging_shared for device in group.devices))
        """Bytes of shared memory into which a block's next tile comes."""
        self._defines = layout.defines(facts, tiling, self.staged, division)
        with_windows = layout.window_shared(facts, tiling) > 0
        names = (*_KERNELS, *_WINDOW_KERNELS) if with_windows else _KERNELS
        source = read_sources(*TILES)
        self.kernels: tuple[dict[str, Kernel], ...] = tuple(
            device.compile(source, self._defines, names) for device in group.devices
        )
        """By name, of each device."""
        self._shared = layout.visit_shared(tiling)
        self._threads = layout.sweep_threads(tiling)
        self._sweep_shared = self._shared + self.staged
        self._blocks = [
            kernels["sweep_tiles"].blocks_at_once(self._threads, self._sweep_shared) for kernels in self.kernels
        ]
        self._graphs: dict[int | None, Callable[[], None]] = {}
        self.most = 1
        """Partitions of a batch on one device at most."""

    def batch(
        self,
        partitions: IntArray,
        invalid: IntArray,
        limits: SweepLimits,
        iterations: int,
        *,
        rounds: int | None = None,
        all_due: bool = False,
    ) -> list[ReportPart]:
        """Rounds over tiles of the partitions, and their report on its way to the host.

        Parameters
        ----------
        invalid : those whose tiles are invalidated: what these have proved holds no longer.
        iterations : of a tile's visit at most.
        rounds : None for as many as suit, in some of which windows are solved.
        all_due : whether every tile is marked due for the first round.
        """
        places = self._division.members(partitions)
        pages = [member.next_pages() for member in self._memory.members]
        for number, where in enumerate(places):
            self._begin(number, pages[number], partitions[where], limits, iterations, all_due)
        for q in invalid.tolist():
            number, blocks = int(self._division.owner[q]), -(-int(self._tiling.per_partition[q]) // 256)
            arguments = (self._memory.members[number].engine, np.int32(q))
            self.kernels[number]["invalidate_tiles"](self._streams[number], blocks, 256, arguments)
        if rounds not in self._graphs:
            with_windows = rounds is None and "solve_windows" in self.kernels[0]
            self._graphs[rounds] = self._group.graph(
                self._streams, lambda meet: self._rounds(rounds or _ROUNDS, with_windows, meet)
            )
        self._graphs[rounds]()
        parts = []
        members = zip(self._memory.members, self._streams, pages, places, strict=True)
        for member, stream, own, where in members:
            stream.download(own.report[: where.size], member.at["report"])
            parts.append(ReportPart(stream.mark(), own.report[: where.size], where))
        return parts

    def _begin(
        self,
        number: int,
        pages: BatchPages,
        partitions: IntArray,
        limits: SweepLimits,
        iterations: int,
        all_due: bool,
    ) -> None:
        """Parameters of a device's batch, and its list of partitions, which may be empty."""
        member, stream, count = self._memory.members[number], self._streams[number], partitions.size
        pages.batch[:count] = partitions
        control = pages.control
        control["limit"] = limits.residual
        control["plain"] = limits.plain
        control["most"] = iterations
        control["batch_size"] = count
        control["batch_tiles"] = int(self._tiling.per_partition[partitions].max(initial=1))
        stream.upload(member.at["batch"], pages.batch[:count])
        stream.upload(member.at["control"], control.view(np.uint8)[:CONTROL_PARAMETERS])
        if all_due and count:
            self.kernels[number]["mark_tiles_due"](stream, count, 256, (member.engine,))

    def _rounds(self, rounds: int, with_windows: bool, meet: Meet) -> None:
        """Rounds of all devices, which meet after each."""
        for r in range(rounds):
            for number in range(len(self._group)):
                if with_windows and r in _WINDOW_ROUNDS:
                    self._solve_windows(number, r)
                else:
                    self._sweep(number, r)
            meet()
        for member, kernels, stream in zip(self._memory.members, self.kernels, self._streams, strict=True):
            arguments = (member.engine, np.int32(rounds))
            kernels["report_partitions"](stream, self.most, 256, arguments)
            kernels["end_batch"](stream, 1, 1, arguments)

    def _sweep(self, number: int, r: int) -> None:
        """A device's visits of a round."""
        kernels, stream, arguments = self._of(number, r)
        kernels["select_tiles"](stream, 4 * self._group.devices[number].multiprocessors, 256, arguments)
        kernels["sweep_tiles"](stream, self._blocks[number], self._threads, arguments, self._sweep_shared)

    def _of(self, number: int, r: int) -> tuple[dict[str, Kernel], Stream, tuple[Any, ...]]:
        return self.kernels[number], self._streams[number], (self._memory.members[number].engine, np.int32(r))

    def _solve_windows(self, number: int, r: int) -> None:
        """A round that looks for windows with a trap, and solves them."""
        kernels, stream, begin = self._of(number, r)
        select, kernel = (kernels[name] for name in _WINDOW_KERNELS)
        threads, shared = self._tiling.threads, self._layout.window_shared(self._facts, self._tiling)
        blocks = kernel.blocks_at_once(threads, shared)
        arguments = (*begin, np.int32(_WINDOW_ROUNDS.index(r)), np.int32(len(_WINDOW_ROUNDS)))
        select(stream, 4 * self._group.devices[number].multiprocessors, 256, arguments)
        kernel(stream, blocks, threads, (*arguments, np.uint32(_WINDOWS * blocks)), shared)

    def measure(self, partition: int, significant: float, fresh: bool) -> tuple[FloatArray, float]:
        """One pass over a partition that changes no value, and the largest value; `fresh`: it has no policy yet."""
        number = int(self._division.owner[partition])
        member, stream = self._memory.members[number], self._streams[number]
        stream.clear(member.at["measured"], member.measured.nbytes)
        arguments = (member.engine, np.int32(partition), np.float64(significant), np.int32(fresh))
        blocks = min(int(self._tiling.per_partition[partition]), self._blocks[number])
        self.kernels[number]["measure_tiles"](stream, blocks, self._threads, arguments, self._shared)
        stream.download(member.measured.view(np.uint8), member.at["measured"])
        stream.wait()
        found = numbers_of_encoded(member.measured)
        return found[:4], float(found[4])

    def load_improvement(self) -> None:
        """The kernels of improvements, compiled where they have not been before."""
        if IMPROVE_KERNELS[0] in self.kernels[0]:
            return
        defines = self._defines | kernel_defines(self._facts, len(self._group))
        source = read_sources(*TILES, "policy/rows.cuh", "policy/improve.cu")
        for device, kernels in zip(self._group.devices, self.kernels, strict=True):
            kernels |= device.compile(source, defines, IMPROVE_KERNELS)

    def back_up(self, number: int, partitions: IntArray, batch: np.uint64, backups: int, results: np.uint64) -> None:
        """Backups of a device's partitions, at values that stay; `batch` and `results` are `DeviceRows`'s."""
        self._over_tiles(number, partitions, "back_up_tiles", batch, (np.uint64(backups), results))

    def take_backups(self, number: int, count: int, batch: np.uint64, backups: int) -> None:
        """Values of so many partitions of a device become these backups."""
        arguments = (self._memory.members[number].engine, batch, np.uint64(backups))
        self.kernels[number]["take_backups"](self._streams[number], _SHARES * count, 256, arguments)

    def improve(
        self,
        number: int,
        partitions: IntArray,
        batch: np.uint64,
        rows: npt.NDArray[Any],
        margin: float,
        results: np.uint64,
    ) -> None:
        """Make the policy of a device's partitions greedy, and write its rows."""
        self._over_tiles(number, partitions, "improve_tiles", batch, (rows, np.float64(margin), results))

    def _over_tiles(
        self, number: int, partitions: IntArray, name: str, batch: np.uint64, others: tuple[Any, ...]
    ) -> None:
        """A launch of policy/improve.cu over all tiles of a device's partitions."""
        self.load_improvement()
        kernel, tiles = self.kernels[number][name], int(self._tiling.per_partition[partitions].max())
        blocks = min(partitions.size * tiles, kernel.blocks_at_once(self._threads, self._shared))
        counts = np.int32(partitions.size), np.int32(tiles)
        arguments = (self._memory.members[number].engine, batch, *counts, *others)
        kernel(self._streams[number], blocks, self._threads, arguments, self._shared)
