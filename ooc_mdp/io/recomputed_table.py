"""A generated problem as a table that is not stored: each partition is computed when it is loaded.

What a store has in RAM comes from a first pass (`ooc_mdp.io.first_pass`), just done or kept in a virtual store;
`read(p)` computes p's rows and converts them to local numbers. The table is bit by bit that of a store of the same
problem and options. The trade-off is Wingate's (2004, section 7.1): no disk, no bytes read, but each load costs the
problem's arithmetic. ``docs/guides/memory.md`` describes when that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.control.grid_numbers import GridNumbers
from ooc_mdp.backends.cuda.control.rows import DeviceProblem
from ooc_mdp.errors import InputError
from ooc_mdp.io.conversion.partition_builder import local_successors
from ooc_mdp.io.conversion.write_store import Progress
from ooc_mdp.io.first_pass import TableDescription, first_pass, summarise
from ooc_mdp.io.problem_labels import ProblemAnnotations
from ooc_mdp.model.annotations import Annotations
from ooc_mdp.model.grid_variables import with_grid_variables
from ooc_mdp.model.mdp import IntArray, Rows, joined_rows
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.state_order import GridOrder, StateOrder
from ooc_mdp.model.table import Loader, Table
from ooc_mdp.problems.problem import Problem
from ooc_mdp.runtime import quotas
from ooc_mdp.store.check import Finding, Report
from ooc_mdp.store.check_load import LoadCheck
from ooc_mdp.store.inspect import inspect_virtual_store
from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.table_summary import TableSummary
from ooc_mdp.table_options import ConvertOptions

__all__ = ["RecomputedTable"]

_MIN_PIECE = 2048
"""Number of states below which another thread costs more than it saves."""
_SCRATCH = {"transition": 26, "row": 26, "state": 16}
"""Bytes that are held in addition to its table while a partition is computed: rows of the problem (int64 and float64),
their new numbers, and copies that join the pieces of several threads. ``tests/io/test_recomputed_table.py`` compares
the measured peak with it."""
_DEVICE_SCRATCH = {"transition": 112, "row": 48, "state": 32}
"""The same in a device's memory: rows, and a dozen temporary arrays of the conversion to local numbers."""


class RecomputedTable(Table):
    """A problem's table, computed partition by partition on demand.

    Parameters
    ----------
    problem : computes the rows of any states; they must be the same each time.
    known : what the first pass over this problem found.
    name : name in messages and results.
    threads : that compute the rows of a large partition on the CPU.
    """

    def __init__(self, problem: Problem, known: TableDescription, name: str, threads: int) -> None:
        self.problem, self.known, self.facts = problem, known, known.facts(name)
        self._dtype = known.summary.dtype
        self._pieces = threads if known.rows_by == "cpu" else 1
        self._order: StateOrder = known.order
        self._summary: TableSummary = known.summary
        self._grid = self._grid_on_device(problem)
        self._load_check = LoadCheck(self.facts)
        self.first_pass_seconds = known.seconds
        """Duration of the first pass in seconds; 0 where its findings were read from disk."""

    @classmethod
    def after_first_pass(
        cls, problem: Problem, options: ConvertOptions, name: str | None = None, progress: Progress | None = None
    ) -> RecomputedTable:
        """The table of a problem, every partition of it computed once.

        Parameters
        ----------
        options : partitioning, type, sense and number of threads, as for :func:`~ooc_mdp.io.conversion.generate`.
        progress : called with the progress of the first pass.

        Raises
        ------
        OptionsError : the options do not fit the problem.
        InputError : the problem's rows are no probability distributions.
        """
        return cls(problem, first_pass(problem, options, progress), name or problem.name, options.threads)

    @property
    def annotations(self) -> Annotations:
        """The labels of the problem, and the axes of a grid as variables."""
        geometry = self.facts.attributes.get("geometry")
        return with_grid_variables(ProblemAnnotations(self.problem), geometry, self.n_states)

    def load_code(self) -> None:
        """Load the loops that compare a table with the first pass; those of the problem were called by that."""
        self._load_check.load_code()

    def loader(self, device: str) -> Loader:
        """A loader into the device's memory where the device computes the rows of a grid, otherwise into the host's."""
        if self._grid is not None and device == self.known.rows_by:
            return Loader(self._read_on_device, self._scratch_bytes(_DEVICE_SCRATCH), on_device=True)
        return Loader(self.read, self._scratch_bytes(_SCRATCH))

    def _scratch_bytes(self, each: Mapping[str, int]) -> int:
        c = self._summary
        states = np.diff(self.facts.partition_ptr)
        return int((c.transitions * each["transition"] + c.rows * each["row"] + states * each["state"]).max())

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Compute partition p's table, from any thread; 0 bytes are read for it.

        Raises
        ------
        InputError : the rows differ from those of the first pass.
        StoreError : they are not what a virtual store says of them.
        """
        arrays = self._arrays(p, self._rows(self._order.states(p)))
        fault = self._summary.fault(p, arrays)
        if fault is not None:
            raise InputError(self.name, f"partition {p} {fault}; rows must depend on the state alone")
        table = self._summary.table(p, arrays)
        self._load_check.check(table)
        return table, 0

    def _read_on_device(self, p: int) -> tuple[PartitionTable, int]:
        """Compute partition p's table in the device's memory, apart from its pointers."""
        problem, grid = self.problem, self._grid
        if grid is None or not isinstance(problem, DeviceProblem):
            raise TypeError(f"{self.name} is not computed by a device")
        states = self._order.states(p)
        with grid.device:
            successors, probabilities, rewards, durations = problem.source.rows_on_device(problem, states)
            n, m, k = states.size, rewards.size, successors.size // rewards.size
            rows = Rows(
                action_ptr=np.arange(n + 1, dtype=np.int64) * (m // n),
                successor_ptr=np.arange(m + 1, dtype=np.int64) * k,
                successors=grid.to_store(successors),
                probabilities=probabilities,
                rewards=rewards,
                durations=durations,
            )
            return self._summary.table(p, self._arrays(p, rows)), 0

    def _arrays(self, p: int, rows: Rows) -> PartitionArrays:
        """Partition p from its rows, whose successors have new numbers; the arrays are NumPy's or CuPy's."""
        successors, halo = local_successors(rows.successors, p, self.facts.partition_ptr)
        sizes = self._summary.sizes(p)
        if (rows.n_rows, successors.size, halo.size) != (sizes.rows, sizes.transitions, sizes.halo):
            raise InputError(
                self.name,
                f"partition {p} has {rows.n_rows} rows, {successors.size} transitions and {halo.size} halo states, not "
                f"{sizes.rows}, {sizes.transitions} and {sizes.halo} as before; rows must depend on the state alone",
            )
        longest = self._summary.max_successors[p]
        if not self._summary.successors_per_action and np.diff(rows.successor_ptr).max(initial=0) > longest:
            raise InputError(
                self.name,
                f"partition {p} has rows of more than {longest} transitions, the most before; rows must depend on the "
                f"state alone",
            )
        return PartitionArrays(
            action_ptr=rows.action_ptr,
            successor_ptr=rows.successor_ptr,
            successors=successors,
            probabilities=rows.probabilities,
            rewards=rows.rewards,
            halo=halo,
            coupling_partitions=np.empty(0, np.int64),
            coupling_mass=np.empty(0),
            row_sum_range=(1.0, 1.0),
            terminal_rewards=rows.terminal_rewards,
            durations=rows.durations,
            initial_values=rows.initial_values,
        )

    def check(self, progress: Progress | None = None, note: Callable[[str], None] | None = None) -> Report:
        """Make the first pass over the problem again, and compare what it finds with what was recorded.

        Raises
        ------
        InputError : the problem's rows are no probability distributions.
        """
        known = self.known
        found = summarise(self.problem, known.order, known.summary.dtype, quotas.cores(), progress)
        recorded, facts = known.summary.arrays(), known.summary.facts()
        wrong = [name for name, values in found.arrays().items() if not np.array_equal(values, recorded[name])]
        wrong += [name for name, value in found.facts().items() if value != facts[name]]
        message = "recomputing the partitions gives something else than was recorded; generate it again"
        return Report(self.n_partitions, tuple(Finding(name, None, message) for name in wrong))

    def inspect(self) -> dict[str, Any]:
        """What is recorded of the table, in numbers."""
        return inspect_virtual_store(Path(self.name), self.facts)

    def action_counts(self, p: int) -> IntArray:
        """int64 [n]; number of actions of each state of partition p."""
        uniform = self._summary.actions_per_state
        states = self._order.states(p)
        return np.full(states.size, uniform) if uniform else np.diff(self.problem.rows(states).action_ptr)

    def original_states(self, p: int) -> IntArray:
        """int64 [n]; the problem's numbers of partition p's states."""
        return self._order.states(p)

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values in the problem's order, from the order of partitions; `values` itself if both are the same."""
        if self.facts.attributes["state_order"]["kind"] == "identity":
            return values
        if isinstance(self._order, GridOrder):
            return self._order.to_source(values)
        out = np.empty_like(values)
        for p in range(self.n_partitions):
            out[self.original_states(p)] = values[self.facts.partition_ptr[p] : self.facts.partition_ptr[p + 1]]
        return out

    def _grid_on_device(self, problem: Problem) -> GridNumbers | None:
        """The numbering of a grid in the memory of the device that computes the rows; None in all other cases."""
        order = self._order
        if not isinstance(problem, DeviceProblem) or not isinstance(order, GridOrder):
            return None
        return GridNumbers(problem.source.device, order.shape, order.edges, order.partition_ptr)

    def _rows(self, states: IntArray) -> Rows:
        """Rows in the table's type with new numbers of successors; large partitions use several threads."""
        pieces = min(self._pieces, states.size // _MIN_PIECE)
        if pieces < 2:
            return self._piece(states)
        with ThreadPoolExecutor(pieces, thread_name_prefix="recompute") as pool:
            return joined_rows(list(pool.map(self._piece, np.array_split(states, pieces))))

    def _piece(self, states: IntArray) -> Rows:
        rows = self.problem.rows(states)
        return replace(
            rows,
            successors=self._order.to_store(rows.successors),
            probabilities=rows.probabilities.astype(self._dtype, copy=False),
            rewards=rows.rewards.astype(self._dtype, copy=False),
        )
