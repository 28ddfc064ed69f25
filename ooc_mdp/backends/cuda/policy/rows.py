"""A policy's rows on a device, and what kernels of ``policy/rows.cu`` do with them for an evaluation of the policy.

Rows lie in the device's memory, or in page-locked memory of the host that kernels read where they would not fit.
Nothing here knows tables or tiles: `policy/improve.cu` writes the rows. When an evaluation sweeps and when it solves is
in `ooc_mdp.backends.cuda.policy.evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Evaluation, Improvement
from ooc_mdp.backends.cuda.device import Device, Kernel, Stream
from ooc_mdp.backends.cuda.driver import address_of
from ooc_mdp.backends.cuda.layout import aligned, numbers_of_encoded
from ooc_mdp.backends.cuda.policy.evaluation import ITERATION, DeviceEvaluation, EvaluationOptions
from ooc_mdp.backends.cuda.policy.layout import (
    BLOCK,
    EVALUATION,
    IMPROVED,
    PROGRESS,
    RESULTS,
    ROWS,
    VECTORS,
    RowSizes,
    chunks_of,
    descriptors_of,
    kernel_defines,
    total_of,
)
from ooc_mdp.backends.cuda.sources import read_sources
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.options import format_bytes

__all__ = ["IMPROVE_KERNELS", "DeviceRows", "EvaluationOptions"]

IMPROVE_KERNELS = ("improve_tiles",)
"""Of policy/improve.cu, which is compiled with the kernels of tiles."""
_FRESH, _VALID = 1 << 31, 1 << 30
"""Flags in the number of a partition."""
_KERNELS = ("sweep_rows", "measure_rows", "krylov_begin", "krylov_apply", *ITERATION)


class DeviceRows:
    """Rows of all partitions on one device.

    Parameters
    ----------
    device, stream : where they lie; what clears and fills them.
    model : sizes, discount and row sums.
    room : bytes of the device's memory that may be taken; None for what is free.
    first : int64 [P]; first state of each partition as the device numbers them; None as the store does.

    Raises
    ------
    OptionsError : there are 2**32 states or more.
    MemoryBudgetError : even the workspace finds no room.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        model: ModelFacts,
        room: int | None = None,
        first: IntArray | None = None,
    ) -> None:
        descriptors = descriptors_of(model)
        self._first = model.partition_ptr[:-1] if first is None else first
        if model.n_states >= 1 << 32:
            raise OptionsError(
                f"a device keeps rows of fewer than 2^32 states, not of {model.n_states}; use --method p-eva"
            )
        self._device, self._model, self._descriptors = device, model, descriptors
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
        partitions = descriptors.size
        self.valid = np.zeros(partitions, np.bool_)
        """bool [P]; whether a partition has rows."""
        self.outdated = np.zeros(partitions, np.bool_)
        """bool [P]; whether a partition's policy may have changed since its rows were written."""
        self._listed = np.zeros(partitions, np.bool_)
        self._progress = device.pinned(PROGRESS.itemsize).view(PROGRESS)
        self._batch = device.pinned(4 * partitions).view(np.uint32)
        self._improved = device.pinned(8 * IMPROVED * partitions).view(np.uint64).reshape(-1, IMPROVED)
        self._results = device.pinned(8 * RESULTS * partitions).view(np.uint64).reshape(-1, RESULTS)
        self.rows = np.zeros((), ROWS)
        """The structure PolicyRows, for kernels that write rows."""
        for name in ROWS.names or ():
            self.rows[name] = at[name]
        self._evaluation = np.zeros((), EVALUATION)
        self._evaluation["rows"] = self.rows
        for name in ("chunks", "start", "progress", "partials", "row_sums", "results", *VECTORS):
            self._evaluation[name] = at.get(name, 0)
        self._evaluation["discount"] = model.discount
        stream.upload(at["descriptors"], self._descriptors)
        stream.upload(at["row_sums"], np.ascontiguousarray(model.row_sums))
        if self.solves:  # partitions without rows stay at 0
            stream.clear(at["p"], sizes.vectors["p"])
            stream.clear(at["r"], sizes.vectors["r"])
        stream.wait()

    @staticmethod
    def kernels(device: Device, model: ModelFacts) -> dict[str, Kernel]:
        """Compiled where they have not been before."""
        files = read_sources("policy/rows.cuh", "policy/rows.cu")
        return device.compile(files, kernel_defines(model), _KERNELS)

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
        """Have partitions improved: `launch` is given the addresses of their numbers with flags and of results.

        Parameters
        ----------
        fresh : bool [k]; whether states of a partition have no actions yet.
        """
        count = partitions.size
        flags = np.where(fresh, _FRESH, 0) | np.where(self.valid[partitions] & ~self.outdated[partitions], _VALID, 0)
        self._batch[:count] = partitions | flags
        stream.upload(self._at["batch"], self._batch[:count])
        stream.clear(self._at["improved"], 8 * IMPROVED * count)
        launch(np.uint64(self._at["batch"]), np.uint64(self._at["improved"]))
        stream.download(self._improved[:count], self._at["improved"])
        stream.wait()
        self.valid[partitions] = True
        self.outdated[partitions] = False
        *measured, changed = self._improved[:count].T
        return Improvement(numbers_of_encoded(np.array(measured)), changed.astype(np.int64))

    # ------------------------------------------------------------------------------------------------- evaluation

    def evaluation(
        self, stream: Stream, values: int, limit: float, most: int, changed: Callable[[], None]
    ) -> DeviceEvaluation:
        """See :class:`ooc_mdp.backends.base.PolicyRows`.

        Parameters
        ----------
        values : address of the value vector.
        changed : called whenever values may have changed.
        """
        self._evaluation["values"] = values
        self._list_chunks(stream)
        self.begin_changes(stream)
        return DeviceEvaluation(self, stream, limit, most if self.valid.any() else 0, changed)

    def begin_changes(self, stream: Stream) -> None:
        """Changes are reported against the values as they are now."""
        stream.copy(self._at["start"], int(self._evaluation["values"]), 8 * self._model.n_states)

    def report(self, stream: Stream, sweeps: int) -> Evaluation:
        """Measure all that has rows, after so many sweeps or products."""
        at = self._at
        stream.clear(at["results"], self._results.nbytes)
        if self.valid.any():
            self.launch(stream, "measure_rows")
        stream.download(self._results, at["results"])
        stream.wait()
        found = np.where(self.valid, numbers_of_encoded(self._results.T), 0.0)
        rise, fall, *measured, second_best, largest, smallest = found
        states = int(np.diff(self._model.partition_ptr)[self.valid].sum())
        return Evaluation(sweeps * states, rise, fall, np.array(measured), second_best, largest, -smallest)

    def _list_chunks(self, stream: Stream) -> None:
        """The chunks of all partitions with rows."""
        if np.array_equal(self._listed, self.valid):
            return
        chunks = chunks_of(self._model, np.flatnonzero(self.valid), self._descriptors, self._first)
        stream.upload(self._at["chunks"], chunks)
        stream.wait()
        self._evaluation["count"] = chunks.size
        self._listed[:] = self.valid

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
        return (int(self._descriptors["width"].max()) + 4) * 2.0**-53 * size
