"""Simple kernels on a CUDA device: one partition after the other, from one buffer of local values into another.

    values ─ gather ─▶ in ─ pass ─▶ out ─ pass ─▶ in ... ─ scatter ─▶ values ─ measure ─▶ residuals

What a pass is, the catalogue says (`ooc_mdp.backends.cuda.simple.literature.catalogue`); the rest is the same for all.
Values, policy and partitions lie on the device; a partition is one allocation of its size, each field aligned to 256
bytes. Passes of a visit run in batches between two looks at the changes (`ooc_mdp.backends.cuda.simple.convergence`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Loops, Resident
from ooc_mdp.backends.cuda.device import Argument, Device, Kernel
from ooc_mdp.backends.cuda.layout import aligned, c_type, numbers_of_encoded
from ooc_mdp.backends.cuda.simple.convergence import CopiedChanges, batches
from ooc_mdp.backends.cuda.simple.literature.catalogue import SimpleKernel
from ooc_mdp.backends.cuda.simple.tables import SimpleTables, TableTypes, alignment_bytes
from ooc_mdp.backends.cuda.sources import SIMPLE, read_sources
from ooc_mdp.backends.exact_sweeps import SimpleSweeps
from ooc_mdp.backends.layout import Layout, Needs, device_layout
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.model.table import Loader
from ooc_mdp.options import format_bytes

__all__ = ["SimpleBackend"]

_THREADS = 256
_COMMON = ("gather", "scatter", "largest_change", "largest_of_blocks", "read_states", "write_states", "measure")
_CHANGES, _REPORT = slice(0, 2), slice(2, 7)
"""Places of the words that kernels report in: largest_change's, then those of scatter or measure."""
_WORDS = 7
_NO_POLICY = np.full(1 << 16, -1, np.int32)


class SimpleBackend(SimpleTables, SimpleSweeps):
    """One device whose partitions a simple kernel sweeps.

    Parameters
    ----------
    device : memory, a stream and kernels.
    kernel : what sweeps.
    """

    def __init__(self, device: Device, kernel: SimpleKernel) -> None:
        SimpleSweeps.__init__(self, kernel)
        SimpleTables.__init__(self, device)
        self._test = None if kernel.stopping is None else CopiedChanges(kernel.stopping, kernel.block)
        self._compiled: dict[TableTypes, dict[str, Kernel]] = {}

    def load_code(self, facts: ModelFacts, loops: Loops) -> None:
        """Compile kernels for the types of the store.

        Raises
        ------
        OptionsError : the kernel cannot sweep this store.
        """
        self._kernel.check(facts)
        self._kernels(facts, (facts.successor_dtype, facts.probability_dtype))

    def _kernels(self, facts: ModelFacts, types: TableTypes) -> dict[str, Kernel]:
        if types not in self._compiled:
            c_types: dict[str, str | int] = {"INDEX": c_type(types[0]), "REAL": c_type(types[1])}
            defines = c_types | dict(self._kernel.defines(facts))
            source = read_sources(*SIMPLE, f"simple/{self._kernel.source}")
            names = (*_COMMON, *(launch.name for launch in self._kernel.launches))
            # Fused, a sum would differ in its last bits from the CPU's.
            self._compiled[types] = self._device.compile(source, defines, names, fused=False)
        return self._compiled[types]

    def layout(self, facts: ModelFacts, needs: Needs) -> Layout:
        """Partitions one by one, two local vectors, changes, reports, a kernel's workspace, and what alignment adds."""
        sizes = self._sizes(facts)
        beside = sum(sizes.values()) - sizes["workspace"] + facts.largest_table_bytes
        self._kernel.check_memory(facts, beside, needs.room, self.name)
        changes = sizes["change"] + sizes["maxima"] + sizes["words"]
        own = {"local values": 2 * sizes["in"], "changes": changes, "alignment": alignment_bytes(facts)}
        own |= {"workspace": sizes["workspace"]} if sizes["workspace"] else {}
        layout = device_layout(facts, needs, self.name, own)
        if self._test is None:
            return layout
        return replace(layout, host={**layout.host, "changes": 8 * self._test.copied(facts.largest_partition)})

    def _sizes(self, facts: ModelFacts) -> dict[str, int]:
        """Bytes of what is allocated beside partitions, by name."""
        local = aligned(8 * (facts.largest_partition + facts.largest_halo))
        return {
            "values": aligned(8 * facts.n_states),
            "policy": aligned(4 * facts.n_states),
            "in": local,
            "out": local,
            "change": aligned(8 * facts.largest_partition),
            "maxima": aligned(8 * self._test.maxima(facts.largest_partition)) if self._test is not None else 0,
            "words": aligned(8 * _WORDS),
            "workspace": aligned(self._kernel.workspace(facts)),
        }

    def start(
        self,
        facts: ModelFacts,
        layout: Layout,
        values: FloatArray | None,
        policy: npt.NDArray[np.int32] | None,
        loader: Loader | None = None,
    ) -> None:
        """Copy the values over and allocate what every visit needs.

        Raises
        ------
        MemoryBudgetError : the device has not so much memory.
        """
        self.close()
        self._facts, self._loader = facts, loader
        self._stream = self._device.stream()
        sizes = self._sizes(facts)
        try:
            base = self._device.allocate(sum(sizes.values()))
        except MemoryError as error:
            raise MemoryBudgetError(
                f"values, policy and local values of {facts.n_states} states need {format_bytes(sum(sizes.values()))} "
                f"on {self.name}, which has {format_bytes(self.free_bytes())} free; use --device cpu or a larger device"
            ) from error
        self._at = dict(zip(sizes, base + np.cumsum([0, *sizes.values()])[:-1].astype(np.uint64), strict=True))
        self._words = self._device.pinned(8 * _WORDS).view(np.uint64)
        if self._test is not None:
            self._test.start(self._device, facts.largest_partition, self._at["change"], self._at["maxima"])
        self._local_states = facts.largest_partition + facts.largest_halo
        if sizes["workspace"]:
            self._stream.clear(int(self._at["workspace"]), sizes["workspace"])
        if values is None:
            self._stream.clear(int(self._at["values"]), 8 * facts.n_states)
        else:
            self._stream.upload(int(self._at["values"]), np.ascontiguousarray(values))
        for start in range(0, facts.n_states, _NO_POLICY.size):
            end = min(start + _NO_POLICY.size, facts.n_states)
            piece = _NO_POLICY[: end - start] if policy is None else np.ascontiguousarray(policy[start:end])
            self._stream.upload(int(self._at["policy"]) + 4 * start, piece)
            self._stream.wait()

    # --------------------------------------------------------------------------------------------------- sweeps

    def _launch(self, kernel: Kernel, count: int, *arguments: Argument) -> None:
        kernel(self._stream, -(-count // _THREADS), _THREADS, arguments)

    def _pass(self, resident: Resident, current: np.uint64, other: np.uint64) -> None:
        """All launches of one pass."""
        table, counts, kernels = resident.arrays
        workspace = self._at["workspace"] if self._kernel.workspace(self._facts) else np.uint64(0)
        arguments = (table, current, other, self._at["policy"], self._at["change"], workspace)
        for launch in self._kernel.launches:
            blocks = -(-counts[launch.over] // launch.each)
            if blocks:
                kernels[launch.name](self._stream, blocks, launch.threads, arguments, launch.shared)

    def _clear_words(self) -> None:
        self._stream.clear(int(self._at["words"]), self._words.nbytes)

    def _read_words(self) -> npt.NDArray[np.uint64]:
        self._stream.download(self._words.view(np.uint8), int(self._at["words"]))
        self._stream.wait()
        return self._words.copy()

    def _gather(self, resident: Resident) -> tuple[np.uint64, np.uint64]:
        """Local values; the buffer that has them all, and the one that has the halo only."""
        table, counts, kernels = resident.arrays
        current, other = self._at["in"], self._at["out"]
        size = counts["states"] + counts["halo"]
        self._launch(kernels["gather"], size, table, self._at["values"], current, other)
        return current, other

    def _scatter(self, resident: Resident, current: np.uint64) -> None:
        report = self._at["words"] + np.uint64(8 * _REPORT.start)
        table, counts, kernels = resident.arrays
        self._launch(kernels["scatter"], counts["states"], table, current, self._at["values"], report)

    def _visit(self, resident: Resident, change: float, most: int) -> tuple[float, ...]:
        """In batches of passes until a limit is reached."""
        current, other = self._gather(resident)
        passes = 0
        for batch in batches(self._kernel.stopping):
            batch = min(batch, most - passes)
            for _ in range(batch):
                self._pass(resident, current, other)
                current, other = other, current
            passes += batch
            if passes >= most or self._look(resident) <= change:
                break
        self._find_changes(resident)
        self._scatter(resident, current)
        words = self._read_words()
        rise, fall = words[_CHANGES].view(np.float64).tolist()
        report = words[_REPORT]
        boundary_rise, boundary_fall = report[:2].view(np.float64).tolist()
        boundary_value, largest, smallest = numbers_of_encoded(report[2:]).tolist()
        return passes, rise, fall, boundary_rise, boundary_fall, boundary_value, largest, -smallest

    def _find_changes(self, resident: Resident) -> None:
        """Launch what finds the largest rise and fall of the last pass."""
        self._clear_words()
        kernel = resident.arrays[2]["largest_change"]
        self._launch(kernel, resident.n_states, resident.arrays[0], self._at["change"], self._at["words"])

    def _look(self, resident: Resident) -> float:
        """The largest change of the last pass."""
        if self._test is not None:
            return self._test.largest(resident, self._stream)
        self._find_changes(resident)
        return float(self._read_words()[_CHANGES].view(np.float64).max())

    def measure(self, resident: Resident, significant: float) -> tuple[FloatArray, float]:
        """One pass without updates."""
        table, counts, kernels = resident.arrays
        current, _ = self._gather(resident)
        self._clear_words()
        numbers = np.float64(self._facts.row_sums[resident.index]), np.float64(significant)
        report = self._at["words"] + np.uint64(8 * _REPORT.start)
        self._launch(kernels["measure"], counts["states"], table, current, self._at["policy"], *numbers, report)
        found = numbers_of_encoded(self._read_words()[_REPORT])
        return found[:4], float(found[4])

    # --------------------------------------------------------------------------------------- values and policy

    def read(self, states: IntArray) -> FloatArray:
        """In pieces that fit into the buffers of local values, which no visit uses now."""
        found, kernel = np.empty(states.size), self._kernels_of_the_store()["read_states"]
        for piece in self._pieces(states):
            self._upload("in", states[piece].astype(np.int64))
            count = np.int64(found[piece].size)
            self._launch(kernel, int(count), self._at["in"], count, self._at["values"], self._at["out"])
            self._stream.download(found[piece], int(self._at["out"]))
            self._stream.wait()
        return found

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        """Likewise; visits gather values anew each time, and so nothing else changes."""
        kernel = self._kernels_of_the_store()["write_states"]
        for piece in self._pieces(states):
            self._upload("in", states[piece].astype(np.int64))
            self._upload("out", values[piece].astype(np.float64))
            count = np.int64(states[piece].size)
            self._launch(kernel, int(count), self._at["in"], count, self._at["out"], self._at["values"])
            self._stream.wait()

    def _kernels_of_the_store(self) -> dict[str, Kernel]:
        return self._kernels(self._facts, (self._facts.successor_dtype, self._facts.probability_dtype))

    def _pieces(self, states: IntArray) -> list[slice]:
        size = self._local_states
        return [slice(start, start + size) for start in range(0, states.size, size)]

    def _upload(self, name: str, data: npt.NDArray[Any]) -> None:
        """Copy to one of the buffers; `data` may go as soon as this returns."""
        self._stream.upload(int(self._at[name]), data)
        self._stream.wait()

    def write_policy(self, partition: int, policy: npt.NDArray[np.int32]) -> None:
        """One copy to the device."""
        start = int(self._facts.partition_ptr[partition])
        self._stream.upload(int(self._at["policy"]) + 4 * start, np.ascontiguousarray(policy, np.int32))
        self._stream.wait()

    def copy(self, start: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """One copy from the device each."""
        self._download("values", start, values)
        self._download("policy", start, policy)

    def _download(self, name: str, start: int, data: npt.NDArray[Any]) -> None:
        self._stream.download(data, int(self._at[name]) + data.itemsize * start)
        self._stream.wait()

    def values(self, order: GridOrder | None = None) -> FloatArray:
        """A copy on the host."""
        host = np.empty(self._facts.n_states)
        self._download("values", 0, host)
        return host if order is None else order.to_source(host)

    def policy(self, order: GridOrder | None = None) -> npt.NDArray[np.int32]:
        """A copy on the host."""
        host = np.empty(self._facts.n_states, np.int32)
        self._download("policy", 0, host)
        return host if order is None else order.to_source(host)

    def close(self) -> None:
        """Free everything."""
        self._device.free_all()
