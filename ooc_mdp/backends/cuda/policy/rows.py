"""A policy's rows on a device, and evaluations of the policy on them: the host's side of ``policy/rows.cu``.

    in-place sweeps  ─▶  slow?  ─▶  BiCGSTAB for what is missing  ─▶  a sweep: better?  ─▶  ...  ─▶  measure
                                                                      no: back to the values before, and sweeps

Sweeps always get there; a Krylov solver gets there much sooner where chains mix slowly or the discount is near 1, and
is left alone for a while where it fails. Rows lie in the device's memory, or in page-locked memory of the host that
kernels read where they would not fit. Nothing here knows tables or tiles: `policy/improve.cu` writes the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Evaluation, Improvement
from ooc_mdp.backends.cuda.device import Device, Kernel, Stream
from ooc_mdp.backends.cuda.driver import address_of
from ooc_mdp.backends.cuda.policy.layout import (
    BLOCK,
    EVALUATION,
    FOUND,
    IMPROVED,
    MOST_SWEEPS,
    PROGRESS,
    ROWS,
    VECTORS,
    RowSizes,
    aligned,
    chunks_of,
    kernel_defines,
    places_of,
    total_of,
)
from ooc_mdp.backends.cuda.sources import read_sources
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.options import format_bytes

__all__ = ["IMPROVE_KERNELS", "DeviceRows", "EvaluationOptions"]

IMPROVE_KERNELS = ("improve_tiles",)
"""Of policy/improve.cu, which is compiled with the kernels of tiles."""
_FRESH, _KEPT = 1 << 31, 1 << 30
"""Marks on a number of a partition."""
_RUNNING, _LOST = 0, 3
_KERNELS = ("sweep_rows", "measure_rows", "krylov_begin", "krylov_apply", "krylov_revert")
_ITERATION = ("krylov_direction", "krylov_half", "krylov_minimise", "krylov_step", "krylov_turn")


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """By what an evaluation chooses between sweeps and the solver."""

    first_sweeps: int = 8
    """After which the pace is looked at."""
    worth_solving: float = 40.0
    """Sweeps still to go, as the pace tells, from which on the solver is tried (infinity: never): its iterations cost
    about four sweeps each, and where sweeps have 40 left it needs some 5 to 10."""
    iterations: int = 4
    """Of the solver between two looks of the host."""
    patience: int = 12
    """Looks without a smaller residual after which the solver is given up."""
    aim: float = 0.5
    """Share of the limit at which the solver stops: its own idea of the residual drifts away from the true one."""


def _unranked(ranks: npt.NDArray[np.uint64]) -> FloatArray:
    """The doubles behind order-preserving images; -inf where no state contributed."""
    top = np.uint64(1 << 63)
    bits = np.where(ranks >= top, ranks & ~top, ~ranks)
    return np.where(ranks == 0, -np.inf, bits.view(np.float64))


class DeviceRows:
    """Rows of all partitions on one device.

    Parameters
    ----------
    device, stream : where they lie; what clears and fills them.
    model : sizes, discount and row sums.
    room : bytes of the device's memory that may be taken; None for what is free.

    Raises
    ------
    OptionsError : there are 2**32 states or more.
    MemoryBudgetError : even the workspace finds no room.
    """

    def __init__(self, device: Device, stream: Stream, model: ModelFacts, room: int | None = None) -> None:
        places = places_of(model)
        if model.n_states >= 1 << 32:
            raise OptionsError(
                f"a device keeps rows of fewer than 2^32 states, not of {model.n_states}; use --method p-eva"
            )
        self._device, self._model, self._places = device, model, places
        self.options = EvaluationOptions()
        kernels = self.kernels(device, model)
        self._kernels = kernels
        self._blocks = {name: kernel.blocks_at_once(BLOCK, 0) for name, kernel in kernels.items()}
        sizes = RowSizes.of(model, max(self._blocks.values()))
        free = device.memory_free()
        room = free if room is None else min(room, free)
        placed = sizes.placed(room)
        if placed is None:
            least = sizes.on_device(False, False)
            raise MemoryBudgetError(
                f"evaluations of a policy of {model.n_states} states take {format_bytes(least)} on {device.name} "
                f"beside rows in the host's memory, {format_bytes(max(room, 0))} are left for them; lower --cache by "
                f"{least - room} or use --method p-eva"
            )
        self.on_device, self.solves = placed
        self.allocations: list[int] = []
        """Addresses on the device."""
        self._pinned: list[npt.NDArray[np.uint8]] = []
        at = self._allocate(sizes, device)
        self._at = at
        partitions = places.size
        self.kept = np.zeros(partitions, np.bool_)
        """bool [P]; whether a partition has rows."""
        self.stale = np.zeros(partitions, np.bool_)
        """bool [P]; whether a partition's policy may have changed since they were written, without them."""
        self._listed = np.zeros(partitions, np.bool_)
        self._progress = device.pinned(PROGRESS.itemsize).view(PROGRESS)
        self._set = device.pinned(4 * partitions).view(np.uint32)
        self._improved = device.pinned(8 * IMPROVED * partitions).view(np.uint64).reshape(-1, IMPROVED)
        self._found = device.pinned(8 * FOUND * partitions).view(np.uint64).reshape(-1, FOUND)
        self.rows = np.zeros((), ROWS)
        """The structure PolicyRows, for kernels that write rows."""
        for name in ROWS.names or ():
            self.rows[name] = at[name]
        self._evaluation = np.zeros((), EVALUATION)
        self._evaluation["rows"] = self.rows
        for name in ("chunks", "start", "progress", "partials", "row_sums", "found", *VECTORS):
            self._evaluation[name] = at.get(name, 0)
        self._evaluation["discount"] = model.discount
        stream.upload(at["places"], self._places)
        stream.upload(at["row_sums"], np.ascontiguousarray(model.row_sums))
        if self.solves:  # partitions without rows stay at 0
            stream.clear(at["p"], sizes.vectors["p"])
            stream.clear(at["r"], sizes.vectors["r"])
        stream.wait()

    @staticmethod
    def kernels(device: Device, model: ModelFacts) -> dict[str, Kernel]:
        """Compiled where they have not been before."""
        files = read_sources("policy/rows.cuh", "policy/rows.cu")
        return device.compile(files, kernel_defines(model), (*_KERNELS, *_ITERATION))

    @staticmethod
    def nbytes(model: ModelFacts) -> int:
        """Bytes of rows and of all that evaluations take, where all of it lies on the device."""
        return RowSizes.of(model).on_device(True, True)

    @staticmethod
    def placed(model: ModelFacts, room: int) -> tuple[int, int]:
        """Bytes on the device, and page-locked ones of the host, that are taken where the device has so much room.

        What must lie on the device may take more than that.
        """
        sizes = RowSizes.of(model)
        on_device, solves = sizes.placed(room) or (False, False)
        return sizes.on_device(on_device, solves), 0 if on_device else total_of(sizes.rows)

    def _allocate(self, sizes: RowSizes, device: Device) -> dict[str, int]:
        """Addresses by name."""
        at: dict[str, int] = {}
        on_device = {**sizes.work, **(sizes.vectors if self.solves else {}), **(sizes.rows if self.on_device else {})}
        try:
            base = device.allocate(total_of(on_device))
            self.allocations.append(base)
            for name, size in on_device.items():
                at[name] = base
                base += aligned(size)
            for name, size in {} if self.on_device else sizes.rows.items():
                self._pinned.append(device.pinned(size))
                at[name] = address_of(self._pinned[-1])
        except MemoryError as error:
            self.close()
            where = "the host's page-locked memory" if at else device.name
            raise MemoryBudgetError(
                f"{where} has no room for a policy's rows ({format_bytes(total_of(sizes.rows))}) or their evaluation "
                f"({format_bytes(total_of(sizes.work))}); lower --cache or use --method p-eva"
            ) from error
        return at

    def close(self) -> None:
        """Free them."""
        for address in self.allocations:
            self._device.free(address)
        self.allocations, self._pinned = [], []

    # ------------------------------------------------------------------------------------------------ improvement

    def improve(
        self,
        stream: Stream,
        partitions: IntArray,
        fresh: npt.NDArray[np.bool_],
        launch: Callable[[np.uint64, np.uint64], None],
    ) -> Improvement:
        """Have partitions improved: `launch` is given the addresses of their marked numbers and of what is found.

        Parameters
        ----------
        fresh : bool [k]; whether states of a partition have no actions yet.
        """
        count = partitions.size
        marks = np.where(fresh, _FRESH, 0) | np.where(self.kept[partitions] & ~self.stale[partitions], _KEPT, 0)
        self._set[:count] = partitions | marks
        stream.upload(self._at["set"], self._set[:count])
        stream.clear(self._at["improved"], 8 * IMPROVED * count)
        launch(np.uint64(self._at["set"]), np.uint64(self._at["improved"]))
        stream.download(self._improved[:count], self._at["improved"])
        stream.wait()
        self.kept[partitions] = True
        self.stale[partitions] = False
        *measured, changed = self._improved[:count].T
        return Improvement(_unranked(np.array(measured)), changed.astype(np.int64))

    # ------------------------------------------------------------------------------------------------- evaluation

    def evaluate(self, stream: Stream, values: int, limit: float, most: int) -> Evaluation:
        """See :class:`ooc_mdp.backends.base.KeepsPolicyRows`; `values` is the address of the value vector."""
        evaluation, at = self._evaluation, self._at
        evaluation["values"] = values
        self._list_chunks(stream)
        done = 0
        if self.kept.any():
            stream.copy(at["start"], values, 8 * self._model.n_states)
            done = _Convergence(self, stream, limit, most).run()
        stream.clear(at["found"], self._found.nbytes)
        if self.kept.any():
            self.launch(stream, "measure_rows")
        stream.download(self._found, at["found"])
        stream.wait()
        found = np.where(self.kept, _unranked(self._found.T), 0.0)
        rise, fall, *measured, others, largest, smallest = found
        states = int(np.diff(self._model.partition_ptr)[self.kept].sum())
        return Evaluation(done * states, rise, fall, np.array(measured), others, largest, -smallest)

    def _list_chunks(self, stream: Stream) -> None:
        """The chunks of all partitions with rows."""
        if np.array_equal(self._listed, self.kept):
            return
        chunks = chunks_of(self._model, np.flatnonzero(self.kept), self._places)
        stream.upload(self._at["chunks"], chunks)
        stream.wait()
        self._evaluation["count"] = chunks.size
        self._listed[:] = self.kept

    def launch(self, stream: Stream, name: str, *args: np.generic) -> None:
        """A kernel over all chunks."""
        self._kernels[name](stream, self._blocks[name], BLOCK, (self._evaluation, *args))

    def begin_batch(self, stream: Stream, stop: float) -> None:
        """Sweeps, or a solver's iterations, that end at a change, or residual, of `stop`."""
        self._progress[0] = 0
        self._progress["stop"] = stop
        stream.upload(self._at["progress"], self._progress)

    def progress(self, stream: Stream) -> Any:
        """How far the device has come; waits for it."""
        stream.download(self._progress, self._at["progress"])
        stream.wait()
        return self._progress[0]

    def rounding(self, size: float) -> float:
        """Change below which sweeps of values up to `size` are nothing but rounding."""
        return (int(self._places["width"].max()) + 4) * 2.0**-53 * size


class _Convergence:
    """One evaluation on its way: sweeps and the solver by turns."""

    def __init__(self, rows: DeviceRows, stream: Stream, limit: float, most: int) -> None:
        self._rows, self._stream, self._limit, self._most = rows, stream, limit, most
        self._options = rows.options
        self._back = False
        self._done = 0
        self._change = math.inf

    def run(self) -> int:
        """Sweeps and products that it took."""
        first = self._options.first_sweeps
        solve_from, wait, batch = 0, MOST_SWEEPS, first
        while self._done < self._most:
            left = self._sweep(batch)
            if self._change <= self._limit:
                break
            batch = int(min(max(left, first), MOST_SWEEPS))
            if self._rows.solves and left > self._options.worth_solving and solve_from <= self._done < self._most:
                batch = first
                if not self._solve():
                    solve_from, wait = self._done + wait, 4 * wait
                elif self._change <= self._limit:
                    break
        return self._done

    def _sweep(self, count: int) -> float:
        """A batch; how many sweeps are left, as the pace of its second half tells."""
        rows, stream = self._rows, self._stream
        count = max(min(count, self._most - self._done), 1)
        rows.begin_batch(stream, self._limit)
        for i in range(count):
            rows.launch(stream, "sweep_rows", np.int32(i), np.int32(self._back))
            self._back = not self._back
        progress = rows.progress(stream)
        changes = progress["change"][:count]
        used = min(int(np.count_nonzero(changes > self._limit)) + 1, count)
        self._done += used
        self._change = float(changes[used - 1])
        self._limit = max(self._limit, rows.rounding(float(progress["size"])))
        half = (used - 1) // 2
        if not half or not 0 < self._change < changes[half]:
            return math.inf
        pace = math.log(self._change / changes[half]) / (used - 1 - half)
        return math.log(self._limit / self._change) / pace if self._limit > 0 else math.inf

    def _solve(self) -> bool:
        """Let the solver find what is missing, and one sweep judge it; whether it was any good."""
        rows, stream, options, before = self._rows, self._stream, self._options, self._change
        rows.begin_batch(stream, options.aim * self._limit)
        rows.launch(stream, "krylov_begin")
        best, patience, used = math.inf, options.patience, 0
        while True:
            for _ in range(options.iterations):
                for name in _ITERATION:
                    rows.launch(stream, name)
            progress = rows.progress(stream)
            used, residual = int(progress["products"]), float(progress["residual"])
            patience = options.patience if residual < best else patience - 1
            best = min(best, residual)
            if progress["state"] != _RUNNING or not patience or self._done + used >= self._most:
                break
        self._done += used
        if progress["state"] == _LOST:
            return False
        rows.launch(stream, "krylov_apply")
        self._sweep(1)
        if self._change < before:
            return True
        rows.launch(stream, "krylov_revert")
        self._change = before
        return False
