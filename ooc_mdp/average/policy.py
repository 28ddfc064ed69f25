"""The rows of a policy in memory, and its evaluation on them: h with x = g in every state.

    h = F(h),   F: a Gauss-Seidel sweep forwards and one backwards towards x(s) = mean(h)

F has one fixed point where the policy has one recurrent class, whatever its period: there mean(h) is the gain. F is
affine, so h solves a linear system, which BiCGSTAB does in a small part of the sweeps that repeating F would take where
the chain mixes slowly. Where it has several, h is that of a discount near 1. Nothing is proved here: what h is good for
is measured afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import numpy.typing as npt

from ooc_mdp.average.backends import System
from ooc_mdp.average.kernels import measure, relax
from ooc_mdp.backends.cpu.krylov import VECTORS, Bicgstab
from ooc_mdp.backends.cpu.rows import TableRows
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.runtime import quotas
from ooc_mdp.runtime.memory import available_bytes
from ooc_mdp.undiscounted.kernels.totals import rows_of_policy

__all__ = [
    "EVALUATION_BYTES",
    "KeptRows",
    "Threads",
    "evaluate",
    "measure_policy",
    "policy_rows",
    "rows_bytes",
]

EVALUATION_BYTES = 8 * (VECTORS + 4)
"""Bytes that an evaluation takes for each state."""
_STATE = np.uint32
"""Type of a successor; of models with more states no rows are kept."""
_LEAST_ROOM = 64 << 20
"""Bytes that rows may take of any table,"""
_MOST_OF_TABLE = 0.75
"""the share of the table that they may take beside a smaller cache,"""
_MOST_OF_FREE = 0.75
"""and of the RAM that is free."""
_PARTITION_BYTES = 2 << 10
"""Of the Python objects that stand for a partition's rows."""
_BLOCKS = 16
"""Groups of partitions whose sweeps run beside each other, and shares of sums, on any number of cores: all machines
compute the same numbers."""


class Threads:
    """The cores that this process may use, for loops that release the interpreter."""

    def __init__(self) -> None:
        self.count = quotas.cores()
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="average")

    def run(self, work: Callable[[int], None], count: int | None = None) -> None:
        """Call `work` with 0, 1, ... on all threads, and wait; raises what it raises."""
        futures = [self._pool.submit(work, i) for i in range(1, count or self.count)]
        try:
            work(0)
        finally:
            wait(futures)
        for future in futures:
            future.result()

    def close(self) -> None:
        """End them."""
        self._pool.shutdown()


class KeptRows:
    """The rows of the policy, by partition, as long as they take no more than so many bytes.

    Parameters
    ----------
    partition_ptr : int64 [P+1].
    most : bytes; with 0 none are kept.
    """

    def __init__(self, partition_ptr: IntArray, most: int) -> None:
        self._most, self._bytes = most, 0
        self._tables: dict[int, TableRows] = {}
        count = partition_ptr.size - 1
        cuts = np.unique(np.searchsorted(partition_ptr, np.linspace(0, partition_ptr[-1], _BLOCKS + 1)))
        self.groups = [range(a, b) for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)]
        """Consecutive partitions, of about as many states."""
        self._ptr, self.partitions = partition_ptr, count

    def __getitem__(self, p: int) -> TableRows:
        """Partition p's rows, one per state."""
        return self._tables[p]

    @property
    def complete(self) -> bool:
        """Whether every partition's are there."""
        return len(self._tables) == self.partitions

    def states(self, group: range) -> tuple[int, int]:
        """First state of a group, and past the last."""
        return int(self._ptr[group.start]), int(self._ptr[group.stop])

    def take(self, p: int, rows: TableRows, policy: npt.NDArray[np.int32]) -> None:
        """Copy partition p's rows of the policy (int32 [n]) from its table, in place of those that are kept."""
        if self._most <= 0:
            return
        kept = policy_rows(rows, policy)
        old = self._tables.get(p)
        self._bytes += _bytes(kept) - (0 if old is None else _bytes(old))
        self._tables[p] = kept
        if self._bytes > self._most:
            self._tables.clear()
            self._most = 0


def rows_bytes(table: Table, cache: int) -> int:
    """Most bytes that the rows of a policy may take beside a cache of so many bytes: what they need; 0 where that is
    more than the cache and than most of the table, or more than most of the RAM that is free."""
    facts, free = table.facts, available_bytes()
    states = np.diff(facts.partition_ptr)
    transition = np.dtype(_STATE).itemsize + facts.dtypes["probabilities"].itemsize
    each = facts.max_successors * transition + 4 + facts.dtypes["rewards"].itemsize
    needed = int((states * each).sum() + _PARTITION_BYTES * states.size)
    most = max(cache, _LEAST_ROOM, int(_MOST_OF_TABLE * int(facts.partition_bytes.sum())))
    if facts.n_states > np.iinfo(_STATE).max:
        return 0
    return 0 if needed > most or (free is not None and needed > _MOST_OF_FREE * free) else needed


def policy_rows(rows: TableRows, policy: npt.NDArray[np.int32]) -> TableRows:
    """One row per state, in arrays of their own; successors are states of the whole model, so that no halo is kept."""
    _, successor_ptr, successors, probabilities, rewards, _ = rows_of_policy(rows, policy)
    numbers = np.concatenate([np.arange(rows.first, rows.first + rows.n, dtype=_STATE), rows.halo.astype(_STATE)])
    return rows._replace(
        actions=1,
        action_ptr=np.empty(0, np.uint32),
        successor_ptr=np.empty(0, np.uint32) if rows.width else successor_ptr,
        successors=numbers[successors],
        probabilities=probabilities,
        rewards=rewards,
        durations=np.empty(0),
        terminal=np.empty(0),
        halo=np.empty(0, np.int64),
        boundary=np.empty(0, np.bool_),
    )


def _bytes(rows: TableRows) -> int:
    return sum(a.nbytes for a in rows[4:])


def measure_policy(
    kept: KeptRows, threads: Threads, values: FloatArray, advantage: FloatArray, sign: float
) -> tuple[FloatArray, FloatArray, float]:
    """Measure x of the rows of a policy at values; each x goes to `advantage` (float64 [n]).

    Returns
    -------
    two float64 [P] : in each partition x is at least the first and at most the second, rounding included.
    float : the largest rounding.
    """
    found = np.empty((3, kept.partitions))

    def of(g: int) -> None:
        for p in kept.groups[g]:
            found[:, p] = measure(kept[p], values, advantage, sign)

    threads.run(of, len(kept.groups))
    return found[0], found[1], float(found[2].max())


def evaluate(
    kept: KeptRows, threads: Threads, values: FloatArray, sign: float, system: System
) -> Generator[None, None, int]:
    """Solve for the relative values of a policy, as far as the goal; pauses between iterations.

    Parameters
    ----------
    values : float64 [n]; h, which changes in place.

    Returns
    -------
    backups of a state
    """
    before = np.empty_like(values)

    def sweeps(x: FloatArray, out: FloatArray, by: float, scale: float) -> None:
        gain = scale * system.centre + (float(x.mean()) if system.discount == 1.0 else 0.0)
        out[:] = x
        for forwards in (True, False):
            before[:] = out

            def sweep(g: int, forwards: bool = forwards) -> None:
                group = kept.groups[g]
                begin, end = kept.states(group)
                for p in group if forwards else reversed(group):
                    relax(kept[p], before, out, begin, end, gain, system.discount, by, forwards)

            threads.run(sweep, len(kept.groups))

    def product(x: FloatArray, out: FloatArray) -> None:
        sweeps(x, out, 0.0, 0.0)
        np.subtract(x, out, out=out)

    values -= values.mean()
    vectors = np.empty((VECTORS, values.size))
    sweeps(values, vectors[0], sign, 1.0)
    vectors[0] -= values
    solver = Bicgstab(product, vectors, None, _BLOCKS, lambda work: threads.run(work, _BLOCKS))
    first, made = solver.residual, 1
    while solver.residual > system.goal and made <= system.most and solver.iterate():
        made += 1
        yield
    if solver.residual < first:
        solver.add_to(values)
    values -= values.mean()
    return (4 * made - 2) * values.size
