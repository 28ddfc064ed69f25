"""Average rewards on the host's cores: tables lie in the cache as they are read, values and rows in RAM."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from ooc_mdp.average.backends import FOUND, Marks, Measured, System
from ooc_mdp.average.bounds import changes_of
from ooc_mdp.average.kernels import any_row_leaves, improve, measure, policy_leaves, relax
from ooc_mdp.average.policy import (
    EVALUATION_BYTES,
    KeptRows,
    Threads,
    evaluate,
    measure_policy,
    policy_rows,
    rows_bytes,
)
from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cpu.rows import TableRows, table_rows
from ooc_mdp.backends.layout import cache_of_size
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.options import NO_DEVICE_MEMORY, SolveOptions
from ooc_mdp.undiscounted.streamed_solve import DEPTH
from ooc_mdp.undiscounted.tables import no_states

__all__ = ["HostGains"]

_STATES_PER_THREAD = 512
"""Of a partition: with so many states more, one more thread takes a share of them."""


class HostGains:
    """See `ooc_mdp.average.backends.GainBackend`.

    Parameters
    ----------
    rows_room : bytes that the rows of a policy may take, where :meth:`plan` does not say it.
    """

    name = "cpu"
    iterations = 200
    staged = DEPTH

    def __init__(self, rows_room: int = 0) -> None:
        self.threads = Threads()
        self._rows_room = rows_room
        self.rows = KeptRows(np.zeros(1, np.int64), 0)
        self._found: dict[int, FloatArray] = {}

    @property
    def rows_complete(self) -> bool:
        """As long as they do not take more than was planned."""
        return self.rows.complete

    def load_code(self, table: Table) -> None:
        """Call all loops on no states of the smallest partition."""
        rows = no_states(table)
        policy, inside, numbers = np.zeros(1, np.int32), np.zeros(1, np.uint8), np.zeros(1)
        improve(rows, 0, 0, numbers, policy, numbers, 0.0, 1.0, np.zeros(FOUND))
        any_row_leaves(rows, inside)
        policy_leaves(rows, policy, inside)
        kept = policy_rows(rows, policy)
        measure(kept, numbers, numbers, 1.0)
        relax(kept, numbers, numbers, 0, 0, 0.0, 1.0, 1.0, True)

    def plan(self, table: Table, options: SolveOptions) -> tuple[int, dict[str, int], dict[str, int]]:
        """Everything is in RAM."""
        if options.device_memory is not None:
            raise OptionsError(NO_DEVICE_MEMORY)
        n, sizes = table.n_states, table.facts.partition_bytes
        budget = cache_of_size(sizes, options.cache_size)
        self._rows_room = rows_bytes(table, budget)
        host = {
            "relative values": 16 * n,
            "policy and advantages": 12 * n,
            "evaluations": EVALUATION_BYTES * n,
            "rows of the policy": self._rows_room,
            "cache": min(budget, int(sizes.sum())),
        }
        return budget, host, {}

    def start(self, table: Table, values: FloatArray) -> None:
        """Nothing has been read yet."""
        self._ptr, self._read = table.facts.partition_ptr, table.loader("cpu").read
        self._sign = 1.0 if table.sense == "max" else -1.0
        self.rows = KeptRows(self._ptr, self._rows_room)
        self.h = values.copy()
        self._start = np.empty_like(values)
        self.actions = np.full(values.size, -1, np.int32)
        """int32 [n]; the policy."""
        self._x = np.zeros(values.size)

    def fetch(self, p: int) -> tuple[Resident, int]:
        """A handle on the arrays of partition p's table."""
        table, n_bytes = self._read(p)
        return Resident(table.index, table.n_states, bool(table.durations.size), [table_rows(table)]), n_bytes

    def admit(self, prepared: Resident) -> Resident:
        """Nothing is left to do."""
        return prepared

    def release(self, resident: Resident) -> None:
        """Nothing to do: the arrays go with their last reference."""

    def improve(self, resident: Resident, margin: float) -> None:
        """Each thread takes a share of the partition's states."""
        rows: TableRows = resident.arrays[0]
        threads = min(self.threads.count, 1 + rows.n // _STATES_PER_THREAD)
        shares = np.linspace(0, rows.n, threads + 1).astype(np.int64)
        found = np.zeros((threads, FOUND))

        def improve_share(i: int) -> None:
            share = int(shares[i]), int(shares[i + 1])
            improve(rows, *share, self.h, self.actions, self._x, margin, self._sign, found[i])

        self.threads.run(improve_share, threads)
        most = found.max(axis=0)
        self._found[resident.index] = np.array([found[:, 0].min(), *most[1:4], found[:, 4].sum(), most[5]])
        if not most[5]:
            self.rows.take(resident.index, rows, self.actions)

    def found(self) -> tuple[IntArray, FloatArray]:
        """Without waiting."""
        partitions = np.fromiter(self._found, np.int64, len(self._found))
        found = np.array(list(self._found.values())).reshape(-1, FOUND)
        self._found.clear()
        return partitions, found

    def lower_rewards(self, by: FloatArray) -> None:
        """Take a number of each state (float64 [n], of the maximisation) off the rewards of the kept rows.

        These must be in float64, and are as they were after the next reading.
        """
        for p in range(self.rows.partitions):
            kept = self.rows[p]
            kept.rewards[:] -= self._sign * by[kept.first : kept.first + kept.n]

    def begin_trial(self) -> None:
        """A copy."""
        self._start[:] = self.h

    def evaluate(self, system: System) -> Generator[None, None, int]:
        """By BiCGSTAB, preconditioned by Gauss-Seidel sweeps."""
        return evaluate(self.rows, self.threads, self.h, self._sign, system)

    def measure(self) -> Measured:
        """By a loop over the rows."""
        low, high, rounding = measure_policy(self.rows, self.threads, self.h, self._x, self._sign)
        size = float(np.abs(self.h).max())
        return Measured(low, high, rounding, *self._changes(), size)

    def withdraw(self) -> None:
        """A copy."""
        self.h[:] = self._start

    def take(self, values: FloatArray) -> None:
        """A copy."""
        self.h[:] = values

    def step(self, share: float, middle: float) -> tuple[FloatArray, FloatArray]:
        """In NumPy."""
        self._start[:] = self.h
        self.h += share * (self._x - middle)
        return self._changes()

    def _changes(self) -> tuple[FloatArray, FloatArray]:
        """float64 [P] twice: the least and the largest change of each partition's states since the trial began."""
        return changes_of(self.h - self._start, self._ptr)

    def values(self) -> FloatArray:
        """A copy."""
        return self.h.copy()

    def policy(self) -> npt.NDArray[np.int32]:
        """A copy."""
        return self.actions.copy()

    def advantage(self) -> FloatArray:
        """A copy."""
        return self._x.copy()

    def begin_pruning(self, closed: Marks, kept: Marks) -> None:
        """They change in place."""
        self._closed, self._kept = closed, kept

    def prune(self, resident: Resident) -> int:
        """One loop for each set."""
        rows: TableRows = resident.arrays[0]
        return int(any_row_leaves(rows, self._closed) + policy_leaves(rows, self.actions, self._kept))

    def pruned(self) -> tuple[Marks, Marks]:
        """As they are."""
        return self._closed, self._kept

    def close(self) -> None:
        """End the threads, and free what was allocated."""
        self.threads.close()
        self.rows = KeptRows(np.zeros(1, np.int64), 0)
        self.h = self._start = self._x = np.empty(0)
        self.actions = np.empty(0, np.int32)
