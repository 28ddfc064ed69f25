"""The kernels of one model's tiles, and their launches: rounds of sweeps as one graph, measurements, improvements.

    batch   control ─▶ invalidate ─▶ mark due ─▶ [ select_tiles, sweep_tiles | select_windows, solve_windows ] x rounds
                                              ─▶ report_partitions ─▶ end_batch ─▶ report on the host

Waits for nothing but measurements; who asks for a batch knows what is resident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.device import Device, Kernel, Stream
from ooc_mdp.backends.cuda.layout import numbers_of_encoded
from ooc_mdp.backends.cuda.policy.layout import kernel_defines
from ooc_mdp.backends.cuda.policy.rows import IMPROVE_KERNELS
from ooc_mdp.backends.cuda.sources import TILES, read_sources
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.backends.cuda.tiles.exchange import EXCHANGE_KERNELS
from ooc_mdp.backends.cuda.tiles.layout import SlotLayout, Tiling
from ooc_mdp.backends.cuda.tiles.memory import TileMemory
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["TileLaunches"]

_ROUNDS = 60
"""Rounds of a batch, between two looks of the host: on 400 million states 60 took three quarters of the time of 16."""
_WINDOW_ROUNDS = (9, 19, 29, 39, 49)
"""Rounds of a batch in which windows are solved in place of visits; after the last of them tiles are visited again."""
_WINDOWS = 2
"""That a block may look at in such a round, of each list."""
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
    """Of one model on one device.

    Parameters
    ----------
    stream : of the sweeps.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        model: ModelFacts,
        tiling: Tiling,
        layout: SlotLayout,
        memory: TileMemory,
        division: Division,
    ) -> None:
        self._device, self._stream, self._model = device, stream, model
        self._tiling, self._layout, self._memory = tiling, layout, memory
        self.staged = layout.staged(model, tiling, device.staging_shared)
        """Bytes of shared memory into which a block's next tile comes."""
        self._defines = layout.defines(model, tiling, self.staged, division.reordered)
        with_windows = layout.window_shared(model, tiling) > 0
        names = (*_KERNELS, *_WINDOW_KERNELS) if with_windows else _KERNELS
        self.kernels: dict[str, Kernel] = device.compile(read_sources(*TILES), self._defines, names)
        self._shared = layout.visit_shared(tiling)
        self._threads = layout.sweep_threads(tiling)
        self._sweep_shared = self._shared + self.staged
        self._blocks = self.kernels["sweep_tiles"].blocks_at_once(self._threads, self._sweep_shared)
        self._graphs: dict[int | None, Callable[[], None]] = {}
        self.most = 1
        """Partitions of a batch at most."""

    def batch(
        self,
        partitions: IntArray,
        invalid: IntArray,
        limits: SweepLimits,
        iterations: int,
        *,
        rounds: int | None = None,
        all_due: bool = False,
    ) -> None:
        """Rounds over tiles of the partitions, and their report on its way to the host.

        Parameters
        ----------
        invalid : those whose tiles are invalidated: what these have proved holds no longer.
        iterations : of a tile's visit at most.
        rounds : None for as many as suit, in some of which windows are solved.
        all_due : whether every tile is marked due for the first round.
        """
        stream, memory, count = self._stream, self._memory, partitions.size
        memory.batch[:count] = partitions
        control = memory.control
        control["limit"] = limits.residual
        control["plain"] = limits.plain
        control["most"] = iterations
        control["batch_size"] = count
        control["batch_tiles"] = int(self._tiling.per_partition[partitions].max())
        stream.upload(memory.at["batch"], memory.batch[:count])
        # The sum over rounds lies between `limit` and `plain`, and stays.
        bytes_of = control.view(np.uint8)
        stream.upload(memory.at["control"], bytes_of[:8])
        stream.upload(memory.at["control"] + 16, bytes_of[16:32])
        for q in invalid.tolist():
            blocks = -(-int(self._tiling.per_partition[q]) // 256)
            self.kernels["invalidate_tiles"](stream, blocks, 256, (memory.engine, np.int32(q)))
        if all_due:
            self.kernels["mark_tiles_due"](stream, count, 256, (memory.engine,))
        if rounds not in self._graphs:
            with_windows = rounds is None and "solve_windows" in self.kernels
            self._graphs[rounds] = self._device.graph(stream, lambda: self._rounds(rounds or _ROUNDS, with_windows))
        self._graphs[rounds]()
        stream.download(memory.report[:count], memory.at["report"])

    def _rounds(self, rounds: int, with_windows: bool) -> None:
        engine, kernels = self._memory.engine, self.kernels
        for r in range(rounds):
            if with_windows and r in _WINDOW_ROUNDS:
                self._solve_windows(r)
                continue
            kernels["select_tiles"](self._stream, 4 * self._device.multiprocessors, 256, (engine, np.int32(r)))
            kernels["sweep_tiles"](self._stream, self._blocks, self._threads, (engine, np.int32(r)), self._sweep_shared)
        kernels["report_partitions"](self._stream, self.most, 256, (engine, np.int32(rounds)))
        kernels["end_batch"](self._stream, 1, 1, (engine, np.int32(rounds)))

    def _solve_windows(self, r: int) -> None:
        """A round that looks for windows with a trap, and solves them."""
        select, kernel = (self.kernels[name] for name in _WINDOW_KERNELS)
        threads, shared = self._tiling.threads, self._layout.window_shared(self._model, self._tiling)
        blocks = kernel.blocks_at_once(threads, shared)
        place = np.int32(r), np.int32(_WINDOW_ROUNDS.index(r)), np.int32(len(_WINDOW_ROUNDS))
        arguments = (self._memory.engine, *place)
        select(self._stream, 4 * self._device.multiprocessors, 256, arguments)
        kernel(self._stream, blocks, threads, (*arguments, np.uint32(_WINDOWS * blocks)), shared)

    def measure(self, partition: int, significant: float, fresh: bool) -> tuple[FloatArray, float]:
        """One pass over a partition that changes no value, and the largest value; `fresh`: it has no policy yet."""
        memory, stream = self._memory, self._stream
        stream.clear(memory.at["measured"], memory.measured.nbytes)
        arguments = (memory.engine, np.int32(partition), np.float64(significant), np.int32(fresh))
        tiles = int(self._tiling.per_partition[partition])
        self.kernels["measure_tiles"](stream, min(tiles, self._blocks), self._threads, arguments, self._shared)
        stream.download(memory.measured.view(np.uint8), memory.at["measured"])
        stream.wait()
        found = numbers_of_encoded(memory.measured)
        return found[:4], float(found[4])

    def load_improvement(self) -> Kernel:
        """The kernel of improvements, compiled where it has not been before."""
        (name,) = IMPROVE_KERNELS
        if name not in self.kernels:
            defines = self._defines | kernel_defines(self._model)
            files = (*TILES, "policy/rows.cuh", "policy/improve.cu")
            self.kernels |= self._device.compile(read_sources(*files), defines, IMPROVE_KERNELS)
        return self.kernels[name]

    def improve(
        self, partitions: IntArray, rows: npt.NDArray[Any], margin: float, flags: np.uint64, results: np.uint64
    ) -> None:
        """All tiles of the partitions in one launch; `flags` and `results` are `DeviceRows`'s."""
        kernel, tiles = self.load_improvement(), int(self._tiling.per_partition[partitions].max())
        blocks = min(partitions.size * tiles, kernel.blocks_at_once(self._threads, self._shared))
        counts = np.int32(partitions.size), np.int32(tiles)
        arguments = (self._memory.engine, rows, flags, *counts, np.float64(margin), results)
        kernel(self._stream, blocks, self._threads, arguments, self._shared)
