"""Average rewards on a CUDA device: h, the policy and its rows stay there, partitions are streamed through its cache.

    partitions ─ improve_gains ─▶ policy, its rows, max_a x_a, bounds per partition    a launch each
    rows ─ BiCGSTAB ─▶ h ─ measure_gains ─▶ bounds per partition                       read nothing
    max_a x_a ─ step_gains ─▶ h                                                        where rows do not fit

The host waits once per reading, and once for some iterations of the solver. Kernels: ``simple/gains.cu`` of the table,
``policy/relative.cuh`` of the rows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.average.backends import FOUND, Marks, Measured, System
from ooc_mdp.backends.base import Features, Resident
from ooc_mdp.backends.cuda.device import Device, Kernel
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.layout import aligned, c_type, numbers_of_encoded
from ooc_mdp.backends.cuda.policy.evaluation import LOST, RUNNING
from ooc_mdp.backends.cuda.policy.launches import RELATIVE, row_kernels
from ooc_mdp.backends.cuda.policy.layout import ROWS as ROW_PLANES
from ooc_mdp.backends.cuda.policy.layout import kernel_defines
from ooc_mdp.backends.cuda.policy.rows import DeviceRows
from ooc_mdp.backends.cuda.simple.tables import SimpleTables, TableTypes, alignment_bytes
from ooc_mdp.backends.cuda.sources import read_sources
from ooc_mdp.backends.layout import ROWS, Layout, Needs, check_free_memory, device_layout
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions, format_bytes
from ooc_mdp.runtime.memory import KEPT_PER_THREAD
from ooc_mdp.solver.plan import staging_depth
from ooc_mdp.undiscounted.streamed_solve import DEPTH

__all__ = ["DeviceGains"]

_THREADS = 256
_KERNELS = ("improve_gains", "step_gains", "prune_gains")
_ITERATIONS = 16
"""Of the solver between two looks of the host."""
_LOADED_AT_A_TIME = 0.125
"""Share of the cache that partitions on their way may take: what they replace is not used again in this reading."""
_STALLED = 2048
"""Iterations, or as many as were made before, in which the residual is to be halved: the first hundreds only carry
values across a large grid, some 2.5 for each of its points along an axis."""
_PIECE = 1 << 16
"""States of which the policy is cleared by one copy."""
_KEEP_CHANGED, _KEEP_ALL = 1, 2
"""Which rows improve_gains copies; 0: none."""


class DeviceGains(SimpleTables):
    """See `ooc_mdp.average.backends.GainBackend`.

    Parameters
    ----------
    device : memory, a stream and kernels.
    """

    iterations = 10_000
    """Each of them takes some milliseconds for ten million states; the products of the host's solver are stronger."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._group = DeviceGroup((device,))
        self._compiled: dict[TableTypes, dict[str, Kernel]] = {}
        self._rows: DeviceRows | None = None
        self._improved: list[int] = []
        self.staged = DEPTH

    @property
    def rows_complete(self) -> bool:
        """Where they were planned, once each partition has been improved."""
        return self._rows is not None and bool(self._rows.valid.all())

    # ------------------------------------------------------------------------------------------------ code, memory

    def load_code(self, table: Table) -> None:
        """Compile the kernels for the types of the table."""
        model = _facts(table)
        self._kernels(model, (model.successor_dtype, model.probability_dtype))
        row_kernels(self._device, model, equation=RELATIVE)

    def _kernels(self, facts: ModelFacts, types: TableTypes) -> dict[str, Kernel]:
        if types not in self._compiled:
            defines = {**kernel_defines(facts), "INDEX": c_type(types[0]), "REAL": c_type(types[1])}
            source = read_sources("numbers.cuh", "simple/table.cuh", "policy/rows.cuh", "simple/gains.cu")
            # Fused, a sum would differ in its last bits from the CPU's.
            self._compiled[types] = self._device.compile(source, defines, _KERNELS, fused=False)
        return self._compiled[types]

    def plan(self, table: Table, options: SolveOptions) -> tuple[int, dict[str, int], dict[str, int]]:
        """The rows of the policy are kept where they fit beside the cache; without them h only takes steps."""
        model, loader = _facts(table), table.loader(self.name)
        n, free, largest = model.n_states, self.free_bytes(), model.largest_table_bytes
        self.staged = staging_depth(Features(overlaps_loads=True))
        staging = {"staging": self.staged * (largest + loader.scratch_bytes)} if loader.on_device else {}
        needs = Needs(cache=options.cache_size, device_memory=options.device_memory, free=free, staging=staging)
        layout = self._layout(model, needs, {ROWS: DeviceRows.nbytes(model)})
        if layout is None:
            layout = self._layout(model, needs, {})
        assert layout is not None  # without rows it is made or refused
        self._keeps = ROWS in layout.device
        check_free_memory(layout.device, free, self.name, options.device_memory, largest)
        self.staged = max(DEPTH, min(self.staged, int(layout.cache_bytes * _LOADED_AT_A_TIME / largest)))
        host = {"relative values": 16 * n, "policy and advantages": 12 * n}
        if not loader.on_device:
            host["packed partitions"] = 2 * self.staged * largest
            host["freed buffers"] = (1 + self.staged) * KEPT_PER_THREAD
        return layout.cache_bytes, host, dict(layout.device)

    def _layout(self, facts: ModelFacts, needs: Needs, rows: dict[str, int]) -> Layout | None:
        """With rows of so many bytes; None where they do not fit."""
        own = {**self._sizes(facts), "alignment": alignment_bytes(facts), **rows}
        try:
            layout = device_layout(facts, needs, self.name, own)
        except MemoryBudgetError:
            if rows:
                return None
            raise
        room = needs.room
        return None if rows and room is not None and sum(layout.device.values()) > room else layout

    @staticmethod
    def _sizes(facts: ModelFacts) -> dict[str, int]:
        """Bytes of what is allocated beside partitions and rows, by name."""
        n = facts.n_states
        return {
            "values": aligned(8 * n),
            "policy": aligned(4 * n),
            "advantages": aligned(8 * n),
            "sets of states": 2 * aligned(n),
            "found": aligned(8 * FOUND * facts.n_partitions),
        }

    def start(self, table: Table, values: FloatArray) -> None:
        """One allocation, and another for rows."""
        self.close()
        self._facts = model = _facts(table)
        self._loader = table.loader(self.name)
        self._stream = self._device.stream()
        sizes, n = self._sizes(model), model.n_states
        try:
            base = self._device.allocate(sum(sizes.values()))
        except MemoryError as error:
            raise MemoryBudgetError(
                f"values and policy of {n} states need {format_bytes(sum(sizes.values()))} on {self.name}, which has "
                f"{format_bytes(self.free_bytes())} free; use --device cpu or a larger device"
            ) from error
        self._at = dict(zip(sizes, base + np.cumsum([0, *sizes.values()])[:-1].astype(np.uint64), strict=True))
        self._found = self._device.pinned(8 * FOUND * model.n_partitions).view(np.uint64).reshape(-1, FOUND)
        self._stream.upload(int(self._at["values"]), np.ascontiguousarray(values))
        none = np.full(min(n, _PIECE), -1, np.int32)
        for begin in range(0, n, _PIECE):
            self._stream.upload(int(self._at["policy"]) + 4 * begin, none[: n - begin])
        self._stream.clear(int(self._at["advantages"]), 8 * n)
        self._stream.wait()
        self._no_rows = np.zeros((), ROW_PLANES)
        if self._keeps:
            self._rows = DeviceRows(self._group, (self._stream,), model, equation=RELATIVE)
            if not (self._rows.on_device and self._rows.solves):
                raise MemoryBudgetError(
                    f"{self.name} has {format_bytes(self.free_bytes())} free, less than was planned for the rows of a "
                    "policy: other processes use the device; lower --cache, or run them one after the other"
                )

    def close(self) -> None:
        """Free everything."""
        self._rows = None
        self._device.free_all()

    # ------------------------------------------------------------------------------------------------------ tables

    def fetch(self, p: int) -> tuple[Any, int]:
        """Read partition p, and pack it for the device."""
        part, n_bytes = self._loader.read(p)
        return self.prepare(part), n_bytes

    def release(self, resident: Resident) -> None:
        """Free it, after what has been launched."""
        self._stream.wait()
        super().release(resident)

    def improve(self, resident: Resident, margin: float) -> None:
        """One launch."""
        p, (table, _, kernels), rows = resident.index, resident.arrays, self._rows
        found = self._at["found"] + np.uint64(8 * FOUND * p)
        keeps = 0 if rows is None else _KEEP_CHANGED if rows.valid[p] else _KEEP_ALL
        planes = self._no_rows if rows is None else rows.rows[0]
        vectors = self._at["values"], self._at["policy"], self._at["advantages"]
        self._stream.clear(int(found), 8 * FOUND)
        arguments = (table, planes, np.uint32(p), np.int32(keeps), *vectors, np.float64(margin), found)
        kernels["improve_gains"](self._stream, -(-resident.n_states // _THREADS), _THREADS, arguments)
        self._improved.append(p)
        if rows is not None:
            rows.valid[p] = True

    def found(self) -> tuple[IntArray, FloatArray]:
        """One copy."""
        words = self._downloaded()[self._improved]
        partitions, self._improved = np.array(self._improved, np.int64), []
        found = numbers_of_encoded(words)
        found[:, 0] *= -1.0
        found[:, 4:] = words[:, 4:]
        return partitions, found

    def _downloaded(self) -> npt.NDArray[np.uint64]:
        """What kernels found of each partition; waits."""
        self._stream.download(self._found, int(self._at["found"]))
        self._stream.wait()
        return self._found

    # -------------------------------------------------------------------------------------------------- evaluations

    def begin_trial(self) -> None:
        """A copy on the device."""
        self._kept_rows().begin(int(self._at["values"]))

    def evaluate(self, system: System) -> Generator[None, None, int]:
        """By BiCGSTAB, whose vectors and scalars stay on the device."""
        launches = self._kept_rows().launches
        for evaluation in launches.evaluations:
            evaluation["discount"], evaluation["centre"] = system.discount, system.centre
        launches.begin_batch(system.goal)
        launches.begin_solver()
        made, halved, best = 0, 0, np.inf
        most = min(system.most, 2 * self._facts.n_states + _ITERATIONS)  # rounding apart, there are no more directions
        while made < most and made <= halved + max(halved, _STALLED):
            launches.iterate(_ITERATIONS)
            made += _ITERATIONS
            progress = launches.progress()
            if progress["state"] != RUNNING:
                break
            if progress["residual"] < 0.5 * best:
                halved, best = made, float(progress["residual"])
            yield
        if progress["state"] != LOST and progress["residual"] < progress["first_residual"]:
            launches.take_over()
        return int(progress["products"]) * self._facts.n_states

    def measure(self) -> Measured:
        """By a kernel over the rows."""
        low, high, rounding, rise, fall, largest, smallest = self._kept_rows().measured()[:7]
        size = max(float(largest.max()), float(smallest.max()))
        return Measured(-low, high, float(rounding.max()), -fall, rise, size)

    def withdraw(self) -> None:
        """A copy on the device."""
        start = self._kept_rows().at["start"]
        self._stream.copy(int(self._at["values"]), start, 8 * self._facts.n_states)
        self._stream.wait()

    def _kept_rows(self) -> DeviceRows:
        assert self._rows is not None  # evaluations are of complete rows
        return self._rows

    def take(self, values: FloatArray) -> None:
        """A copy to the device."""
        self._stream.upload(int(self._at["values"]), np.ascontiguousarray(values))
        self._stream.wait()

    def step(self, share: float, middle: float) -> tuple[FloatArray, FloatArray]:
        """A launch for each partition."""
        model = self._facts
        kernel = self._kernels(model, (model.successor_dtype, model.probability_dtype))["step_gains"]
        self._stream.clear(int(self._at["found"]), self._found.nbytes)
        numbers = np.float64(share), np.float64(middle), self._at["advantages"], self._at["values"]
        for p, (first, past) in enumerate(zip(model.partition_ptr[:-1], model.partition_ptr[1:], strict=True)):
            found = self._at["found"] + np.uint64(8 * FOUND * p)
            kernel(self._stream, -(-int(past - first) // _THREADS), _THREADS, (first, past - first, *numbers, found))
        least, largest = numbers_of_encoded(self._downloaded()[:, :2]).T
        return -least, largest

    # ----------------------------------------------------------------------------------------------- copies, sets

    def values(self) -> FloatArray:
        """A copy on the host."""
        return self._copy("values", np.float64)

    def policy(self) -> npt.NDArray[np.int32]:
        """A copy on the host."""
        return self._copy("policy", np.int32)

    def advantage(self) -> FloatArray:
        """A copy on the host."""
        return self._copy("advantages", np.float64)

    def _copy(self, name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
        host = np.empty(self._facts.n_states, dtype)
        self._stream.download(host, int(self._at[name]))
        self._stream.wait()
        return host

    def _sets(self) -> tuple[np.uint64, np.uint64]:
        """Where the two sets lie."""
        return self._at["sets of states"], self._at["sets of states"] + np.uint64(aligned(self._facts.n_states))

    def begin_pruning(self, closed: Marks, kept: Marks) -> None:
        """Two copies to the device."""
        for at, marks in zip(self._sets(), (closed, kept), strict=True):
            self._stream.upload(int(at), np.ascontiguousarray(marks))
        self._stream.wait()

    def prune(self, resident: Resident) -> int:
        """One launch; waits."""
        table, _, kernels = resident.arrays
        cleared = self._at["found"]
        self._stream.clear(int(cleared), 8)
        arguments = (table, self._at["policy"], *self._sets(), cleared)
        kernels["prune_gains"](self._stream, -(-resident.n_states // _THREADS), _THREADS, arguments)
        self._stream.download(self._found[0, :1], int(cleared))
        self._stream.wait()
        return int(self._found[0, 0])

    def pruned(self) -> tuple[Marks, Marks]:
        """Two copies to the host."""
        closed, kept = (np.empty(self._facts.n_states, np.uint8) for _ in range(2))
        for at, marks in zip(self._sets(), (closed, kept), strict=True):
            self._stream.download(marks, int(at))
        self._stream.wait()
        return closed, kept


def _facts(table: Table) -> ModelFacts:
    """The facts of a table whose values no contraction bounds: those of a discount 0."""
    return replace(ModelFacts.of(table.facts, 0.0), discount=1.0)
