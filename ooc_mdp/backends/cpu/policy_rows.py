"""The rows of a policy on the CPU: copied from tables as partitions are improved, and swept without the tables.

    V(s) <- r(s) + g sum_k p_k V(succ_k),      r, p and succ of the policy's action in s, succ a state of the model

Partitions whose inputs have not changed are left out of a round, as the coupling matrix tells. What an evaluation makes
of sweeps, products and measurements is in `ooc_mdp.backends.cpu.evaluation`.

A state's row of K successors lies at ptr[p] + i K of the flat arrays, p its partition, i its place in it, K the
partition's longest row; shorter rows are filled up with probability 0. Beside a row lie its signed reward, its discount
where there are durations, and Q2: the second-best action value when the partition was last improved.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.addresses import span
from ooc_mdp.backends.cpu.evaluation import CpuEvaluation
from ooc_mdp.backends.cpu.krylov import VECTORS, Bicgstab
from ooc_mdp.backends.cpu.policy_loops import Share, measure_rows, product_rows, sweep_rows
from ooc_mdp.backends.cpu.table import CHECKED, MAX_UNROLLED, Specialisation
from ooc_mdp.backends.cpu.triangular_solver import MAX_STATES, STATE_BYTES, TriangularSolver, entry_types
from ooc_mdp.backends.cpu.views import Model
from ooc_mdp.errors import MemoryBudgetError, raise_system_failure
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.memory import available_bytes

__all__ = ["PolicyRows"]


class PolicyRows:
    """Rows of all partitions, and evaluations on them.

    Parameters
    ----------
    facts : sizes, discount and row sums.
    coupling : which partitions read which.
    threads : that sweep at the same time.
    run : calls a function with each thread's number, on all of them, and waits.
    mapped : whether rows lie in a file that is mapped into memory and goes with them, since RAM has no room for them.

    Raises
    ------
    MemoryBudgetError : there is no room for that file.
    """

    def __init__(
        self,
        facts: ModelFacts,
        coupling: Coupling,
        threads: int,
        run: Callable[[Callable[[int], None]], None],
        mapped: bool = False,
    ) -> None:
        n, partitions = facts.n_states, facts.row_sums.size
        self._facts, self._threads, self._run, self._mapped = facts, threads, run, mapped
        first, widths = facts.partition_ptr.astype(np.int64), facts.row_widths.astype(np.int64)
        begin = np.concatenate([[0], np.cumsum(np.diff(first) * widths)])
        arrays = _allocated(_types(facts), mapped)
        self.successors, self.probabilities = arrays["successors"], arrays["probabilities"]
        self.rewards, self.discounts, self.second_best = arrays["rewards"], arrays["discounts"], arrays["second_best"]
        self.valid = np.zeros(partitions, np.bool_)
        """bool [P]; whether a partition has rows."""
        self.inflow_bounds = np.zeros(partitions)
        """float64 [P]; inflow bound: how far a sweep may change a value, as far as it is known."""
        self.stiff = False
        """Whether a Krylov solver has once not got there without triangular solves."""
        self.before = np.empty(n)
        """float64 [n]; values as they were when an evaluation began; between two of them backups of a sweep."""
        self.written = 0
        """How often values have been written from outside."""
        self._vectors: FloatArray | None = None
        """float64 [7, n]; kept from solver to solver, since allocating them takes as long as an iteration or two."""
        self._readers = _by_columns(coupling)
        self.begin, self.widths = begin, widths
        """int64 [P + 1], [P]; where rows of partitions begin, and how long they are."""
        self._described = (
            first,
            begin,
            widths,
            facts.row_sums.astype(np.float64),
            self.valid,
            self.successors,
            self.probabilities,
            self.rewards,
            self.discounts,
            self.second_best,
            *self._readers,
        )
        self.numbers = np.array([number for array in self._described for number in span(array)])
        """int64 [26]; where they lie, for compiled loops (`ooc_mdp.backends.cpu.policy_loops.open_rows`),"""
        width = int(widths.max(initial=0)) if np.ptp(widths) == 0 else 0
        self.spec = Specialisation(
            (),
            (0,) * width if width <= MAX_UNROLLED else (),
            self.successors.dtype.type(0),
            self.probabilities.dtype.type(0),
            np.float64(0),
            (0,) if CHECKED else (),
        )
        """and what those are compiled for."""
        self._loop_model = Model(float(facts.discount), 1.0)
        bounds = np.searchsorted(begin, begin[-1] * np.arange(threads + 1) // threads)
        bounds[-1] = partitions
        self._shares = [Share(int(a), int(b)) for a, b in pairwise(bounds)]

    @staticmethod
    def nbytes(facts: ModelFacts, mapped: bool = False) -> int:
        """Bytes of RAM that rows, Q2 and an evaluation take, triangular solves among it."""
        rows = 0 if mapped else _bytes_of(_types(facts))
        return rows + 8 * (1 + VECTORS) * facts.n_states + PolicyRows.triangle_bytes(facts, mapped)

    @staticmethod
    def triangle_bytes(facts: ModelFacts, mapped: bool = False) -> int:
        """Bytes of RAM of triangular solves: as many entries as rows have at most; 0 where there are none."""
        if facts.n_states >= MAX_STATES:
            return 0
        return (0 if mapped else _bytes_of(entry_types(_entries(facts)))) + STATE_BYTES * facts.n_states

    def take_backups(self, partitions: Sequence[int], values: FloatArray, change: FloatArray) -> None:
        """Values of partitions become the backups in `before`, which changes none of each by more than `change`."""
        ptr, readers, mass = self._readers
        for p, most in zip(partitions, change.tolist(), strict=True):
            states, entries = slice(*self._facts.partition_ptr[p : p + 2]), slice(*ptr[p : p + 2])
            values[states] = self.before[states]
            self.inflow_bounds[readers[entries]] += mass[entries] * most

    def take_rows(self, partitions: Sequence[int], residuals: FloatArray) -> None:
        """Partitions have rows now, of actions whose largest plain residuals these are (float64 [k])."""
        self.valid[partitions] = True
        self.inflow_bounds[partitions] = residuals

    def states(self) -> int:
        """How many have rows."""
        return int(np.diff(self._facts.partition_ptr)[self.valid].sum())

    def load_code(self, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Call every loop; all partitions have rows. Values are no use afterwards."""
        evaluation = CpuEvaluation(self, values, policy, -1.0, 1)
        while not evaluation.advance(np.inf):
            pass
        evaluation.report()
        values[:] = 1.0 + np.arange(values.size)  # a solver that has nothing to do would call nothing
        for inverse in (None, self.triangular_solver()):
            self.solver(values, inverse).iterate()

    def solver(self, values: FloatArray, inverse: TriangularSolver | None) -> Bicgstab:
        """Solves (1 - g P) z = r + g P V - V for what is missing of these values."""
        if self._vectors is None:
            self._vectors = np.empty((VECTORS, values.size))
        self._product(values, self._vectors[0], True)
        solve = None if inverse is None else inverse.solve
        return Bicgstab(partial(self._product, residual=False), self._vectors, solve, self._threads, self._run)

    def free_vectors(self) -> None:
        """Free the vectors of the last solver, which has ended."""
        self._vectors = None

    def has_room_for_triangle(self) -> bool:
        """Whether the model has triangular solves, and RAM what they take."""
        needed, free = PolicyRows.triangle_bytes(self._facts, self._mapped), available_bytes()
        return needed > 0 and (free is None or needed <= free)

    def triangular_solver(self) -> TriangularSolver:
        """Triangular solves in the topological order of the policy as it is."""
        allocate = partial(_allocated, mapped=self._mapped)
        return TriangularSolver(self.spec, self._loop_model, self.numbers, self._facts.partition_ptr, allocate)

    def sweep(self, values: FloatArray, limit: float, back: bool) -> int:
        """Sweep partitions that may change by more than `limit`, as far as is known; the number of backups."""
        active = self.valid & (self.inflow_bounds > limit)
        if not active.any():
            return 0
        made = np.zeros(self._threads, np.int64)
        self._run(partial(self._sweep_share, values, active, back, made))
        return int(made.sum())

    def _sweep_share(
        self, values: FloatArray, active: npt.NDArray[np.bool_], back: bool, backups: IntArray, thread: int
    ) -> None:
        backups[thread] = sweep_rows(
            self.spec,
            self._loop_model,
            self.numbers,
            self._shares[thread],
            values,
            active,
            back,
            self.inflow_bounds,
        )

    def measure(self, values: FloatArray, before: FloatArray, policy: npt.NDArray[np.int32]) -> FloatArray:
        """float64 [9, P]: signed changes since values were `before`, the policy's residuals, Q2 - V, range."""
        out = np.zeros((self.valid.size, 9))
        loops = self.spec, self._loop_model, self.numbers
        self._run(lambda t: measure_rows(*loops, self._shares[t], values, before, policy, out))
        return np.ascontiguousarray(out.T)

    def _product(self, x: FloatArray, out: FloatArray, residual: bool) -> FloatArray:
        """(1 - g P) x, or r - (1 - g P) x; x itself, or 0, where there are no rows."""
        loops = self.spec, self._loop_model, self.numbers
        self._run(lambda t: product_rows(*loops, self._shares[t], x, residual, out))
        return out


def _entries(facts: ModelFacts) -> int:
    """Transitions of the rows, those with which short rows are filled up among them."""
    return int((np.diff(facts.partition_ptr) * facts.row_widths).sum())


def _types(facts: ModelFacts) -> dict[str, tuple[np.dtype[Any], int]]:
    """Types and lengths of the rows' arrays, the widest numbers first."""
    n, entries = facts.n_states, _entries(facts)
    float64 = np.dtype(np.float64)
    return {
        "rewards": (float64, n),
        "second_best": (float64, n),
        "discounts": (float64, n if facts.duration_dtype is not None else 0),
        "probabilities": (facts.probability_dtype, entries),
        "successors": (np.dtype(np.uint32 if n <= 1 << 32 else np.int64), entries),
    }


def _bytes_of(types: Mapping[str, tuple[np.dtype[Any], int]]) -> int:
    """Of all arrays together."""
    return sum(dtype.itemsize * count for dtype, count in types.values())


def _allocated(types: Mapping[str, tuple[np.dtype[Any], int]], mapped: bool) -> dict[str, npt.NDArray[Any]]:
    """Arrays of those types and lengths: in RAM, or one after the other in a file."""
    file = _mapped_file(_bytes_of(types)) if mapped else None
    arrays, at = {}, 0
    for name, (dtype, count) in types.items():
        if file is not None and count > 0:
            arrays[name] = np.frombuffer(file, dtype, count, at)
        else:
            arrays[name] = np.empty(count, dtype)
        at += dtype.itemsize * count
    return arrays


def _mapped_file(nbytes: int) -> mmap.mmap:
    """Bytes of a temporary file that has no name, all of them there already: what is mapped must not run out later."""
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, max(nbytes, 1))
            return mmap.mmap(file.fileno(), max(nbytes, 1))
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise_system_failure(error, tempfile.gettempdir(), "used for a policy's rows")
        raise MemoryBudgetError(
            f"a policy's rows take {format_bytes(nbytes)}, for which neither RAM nor {tempfile.gettempdir()} has room "
            f"({error.strerror}); point TMPDIR at a larger disk, or use --method p-eva"
        ) from error


def _by_columns(coupling: Coupling) -> tuple[IntArray, IntArray, FloatArray]:
    """The coupling matrix by columns, its diagonal among them: who reads a partition, and how much of it."""
    rows = np.repeat(np.arange(coupling.ptr.size - 1), np.diff(coupling.ptr))
    order = np.argsort(coupling.partitions, kind="stable")
    ptr = np.searchsorted(coupling.partitions[order], np.arange(coupling.ptr.size))
    return ptr, rows[order], coupling.mass[order]
