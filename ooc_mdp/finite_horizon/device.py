"""Stages on a CUDA device: the plain kernel, from the vector of one stage into that of the other.

    values of the stage after ─ gather ─▶ in ─ pass ─▶ out ─ scatter ─▶ values of the stage

Everything but the second vector is the simple backend's. After each pass a partition's values and policy are copied to
the host, where the result is written from: 12 bytes per state beside the partition's load.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Loops, Resident
from ooc_mdp.backends.cuda.device import Device
from ooc_mdp.backends.cuda.layout import aligned
from ooc_mdp.backends.cuda.simple.backend import SimpleBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import SIMPLE_KERNELS
from ooc_mdp.backends.layout import Layout, Needs, check_free_memory
from ooc_mdp.finite_horizon.backends import check_durations
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions

__all__ = ["DeviceStages"]

_PLAIN = next(kernel for kernel in SIMPLE_KERNELS if kernel.word == "plain")


class _TwoVectors(SimpleBackend):
    """The simple backend with the values of two stages."""

    def _sizes(self, facts: ModelFacts) -> dict[str, int]:
        return {**super()._sizes(facts), "other values": aligned(8 * facts.n_states)}

    def both(self, others: FloatArray) -> tuple[np.uint64, np.uint64]:
        """Copy the values of the other stage over, once the backend has started; where both vectors lie."""
        vectors = self._at["values"], self._at["other values"]
        self._stream.upload(int(vectors[1]), np.ascontiguousarray(others))
        self._stream.wait()
        return vectors

    def advance(self, resident: Resident, source: np.uint64, target: np.uint64) -> None:
        """One pass over a partition, from the values in one vector into the other one."""
        self._at["values"] = source
        current, other = self._gather(resident)
        self._pass(resident, current, other)
        self._at["values"] = target
        self._clear_words()
        self._scatter(resident, other)

    def put(self, vector: np.uint64, states: IntArray, values: FloatArray) -> None:
        """Take other values of some states into a vector."""
        self._at["values"] = vector
        if states.size:
            self.write(states, values, np.zeros(0, np.int64), np.zeros(1, np.int64))

    def copy_own(self, first: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Copy what a pass found of a partition's states to the host."""
        self._download("values", first, values)
        self._download("policy", first, policy)


class DeviceStages:
    """One device.

    Parameters
    ----------
    device : memory, a stream and kernels.
    """

    def __init__(self, device: Device) -> None:
        self._backend = _TwoVectors(device, _PLAIN)
        self.name = device.name
        self.admit, self.close = self._backend.admit, self._backend.close

    def load_code(self, table: Table) -> None:
        """Compile the plain kernel for the types of the table."""
        table.load_code()
        self._backend.load_code(_facts(table, 0.0), Loops.SINGLE)

    def plan(self, table: Table, options: SolveOptions, staged: int) -> tuple[int, dict[str, int], dict[str, int]]:
        """The device holds the values of both stages, the cache and what the simple backend needs."""
        facts, loader = _facts(table, options.discount), table.loader(self.name)
        largest, free = facts.largest_table_bytes, self._backend.free_bytes()
        staging = {"staging": staged * (largest + loader.scratch_bytes)} if loader.on_device else {}
        needs = Needs(
            cache=options.cache_size,
            device_memory=options.device_memory,
            free=free,
            staging={"values of the stage after": 8 * facts.n_states, **staging},
        )
        layout = self._backend.layout(facts, needs)
        check_free_memory(layout.device, free, self.name, options.device_memory, largest)
        host = dict(layout.host) if loader.on_device else {**layout.host, "packed partitions": 2 * staged * largest}
        return layout.cache_bytes, host, dict(layout.device)

    def start(self, table: Table, options: SolveOptions, values: FloatArray) -> None:
        """Allocate both vectors and copy the values over.

        Raises
        ------
        MemoryBudgetError : the device has not so much memory.
        """
        self._table, self._ptr, self._loader = table, table.facts.partition_ptr, table.loader(self.name)
        nothing = Layout(0, np.zeros(0, np.int64), 1, {}, {})
        self._backend.start(_facts(table, options.discount), nothing, values[0], None, self._loader)
        self._vectors = self._backend.both(values[1])
        self._boundary: dict[int, npt.NDArray[np.bool_]] = {}

    def fetch(self, p: int) -> tuple[Any, int]:
        """Read partition p, and pack it for the device."""
        part, n_bytes = self._loader.read(p)
        check_durations(self._table, part)
        boundary: Any = part.boundary
        self._boundary[p] = boundary.get() if hasattr(boundary, "get") else boundary.copy()
        return self._backend.prepare(part), n_bytes

    def release(self, resident: Resident) -> None:
        """Free it."""
        self._boundary.pop(resident.index, None)
        self._backend.release(resident)

    def boundary(self, resident: Resident) -> npt.NDArray[np.bool_]:
        """A copy on the host."""
        return self._boundary[resident.index]

    def put(self, values: FloatArray, which: int, states: IntArray, new: FloatArray) -> None:
        """On the host and on the device."""
        values[which, states] = new
        self._backend.put(self._vectors[which], states, new)

    def advance(
        self, resident: Resident, values: FloatArray, following: int, policy: npt.NDArray[np.int32]
    ) -> FloatArray:
        """One pass, and two copies to the host."""
        self._backend.advance(resident, self._vectors[following], self._vectors[1 - following])
        first = int(self._ptr[resident.index])
        after = values[1 - following, first : first + resident.n_states]
        self._backend.copy_own(first, after, policy)
        return after


def _facts(table: Table, discount: float) -> ModelFacts:
    """The facts of a table whose values no contraction bounds: those of a discount 0, with the discount of a stage."""
    return replace(ModelFacts.of(table.facts, 0.0), discount=discount)
