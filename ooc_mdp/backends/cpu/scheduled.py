"""Simple kernels on the CPU: their schedules in NumPy, one partition after the other, to be read and counted with.

    gather own and halo values ─▶ passes of the schedule ─▶ own values back, boundary changes ─▶ residuals measured

It makes the passes that a device would make, with the same values bit for bit, in far more time. The CPU's own engine
(`ooc_mdp.backends.cpu.backend`) is another one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Loops, Resident
from ooc_mdp.backends.cpu.host_values import HostValues
from ooc_mdp.backends.exact_sweeps import SimpleSweeps
from ooc_mdp.backends.layout import Layout, Needs, cache_of_size
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Loader
from ooc_mdp.options import NO_DEVICE_MEMORY
from ooc_mdp.reference.schedules import LocalRows

__all__ = ["ScheduledBackend"]

_BYTES_A_ROW = 160
"""Of the arrays of one number a row that a pass over a partition has at the same time."""


class ScheduledBackend(HostValues, SimpleSweeps):
    """Runs the schedule of a simple kernel; values and policy are the caller's arrays."""

    name = "cpu"

    def load_code(self, facts: ModelFacts, loops: Loops) -> None:
        """Nothing is compiled.

        Raises
        ------
        OptionsError : the kernel cannot sweep this store.
        """
        self._kernel.check(facts)

    def free_bytes(self) -> None:
        """There is no device."""

    def layout(self, facts: ModelFacts, needs: Needs) -> Layout:
        """The cache, local values before and after a pass, and what a pass works out of every row.

        Raises
        ------
        OptionsError : there is a budget of a device, and this is none.
        """
        if needs.device_memory is not None:
            raise OptionsError(NO_DEVICE_MEMORY)
        cache = cache_of_size(facts.partition_bytes, needs.cache)
        local = 8 * (facts.largest_partition + facts.largest_halo)
        host = {
            "cache": min(cache, facts.table_bytes),
            "local values": 4 * local,
            "rows of a pass": _BYTES_A_ROW * facts.max_rows,
        }
        return Layout(cache, facts.partition_bytes, 1, host, {})

    def start(
        self,
        facts: ModelFacts,
        layout: Layout,
        values: FloatArray | None,
        policy: npt.NDArray[np.int32] | None,
        loader: Loader | None = None,
    ) -> None:
        """Work in the caller's arrays."""
        self._facts, self._loader = facts, loader
        self._values = np.zeros(facts.n_states) if values is None else values
        self._policy = np.full(facts.n_states, -1, np.int32) if policy is None else policy

    def prepare(self, table: PartitionTable) -> Resident:
        """Keep the table as it is."""
        return Resident(table.index, table.n_states, bool(table.durations.size), [table])

    def admit(self, prepared: Resident) -> Resident:
        """Nothing is left to do."""
        return prepared

    def release(self, resident: Resident) -> None:
        """Nothing to do: the table goes with its last reference."""

    def _rows(self, table: PartitionTable) -> LocalRows:
        return LocalRows(table, self._facts.discount, self._facts.sign)

    def _own(self, table: PartitionTable) -> slice:
        return slice(table.first_state, table.first_state + table.n_states)

    def _gather(self, table: PartitionTable) -> FloatArray:
        return np.concatenate([self._values[self._own(table)], self._values[table.halo]])

    def _visit(self, resident: Resident, change: float, most: int) -> tuple[float, ...]:
        """Passes of the schedule; the policy is that of the last one's backups.

        A look finds the same largest change, be it of all states or of each block's.
        """
        (table,) = resident.arrays
        every = 1 if self._kernel.stopping is None else self._kernel.stopping.every
        rows, own, n = self._rows(table), self._own(table), table.n_states
        local, passes = self._gather(table), 0
        while True:
            local, changes = self._kernel.schedule(rows.backup, n, local)
            passes += 1
            if passes >= most or (passes % every == 0 and np.abs(changes).max() <= change):
                break
        now = local[:n]
        moved = np.where(table.boundary, now - self._values[own], 0.0)
        self._values[own] = now
        self._policy[own] = rows.policy
        return (
            passes,
            max(changes.max(), 0.0),
            max(-changes.min(), 0.0),
            max(moved.max(), 0.0),
            max(-moved.min(), 0.0),
            now[moved != 0].max(initial=-np.inf),
            now.max(),
            now.min(),
        )

    def measure(self, resident: Resident, significant: float) -> tuple[FloatArray, float]:
        """One pass without updates."""
        (table,) = resident.arrays
        row_sum = float(self._facts.row_sums[resident.index])
        own = self._policy[self._own(table)]
        return self._rows(table).measure(self._gather(table), own, row_sum, significant)

    def close(self) -> None:
        """Nothing to do."""
