"""A generated problem as a source of tables without a store: each partition is computed when it is asked for.

A first pass computes every partition once, checks it and keeps what a store holds in RAM (sizes, ranges, coupling, a
bit a state for the boundary); `read(p)` then computes p's rows again and numbers them locally, which gives the table
that a store of the same problem and options holds, bit by bit. The trade is Wingate's (2004, section 7.1): no disk, no
bytes read, but each load costs the problem's arithmetic. ``docs/guides/memory.md`` says when that pays.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.control.grid_numbers import GridNumbers
from ooc_mdp.backends.cuda.control.rows import DeviceProblem
from ooc_mdp.errors import InputError
from ooc_mdp.io.conversion.executor import ThreadsExecutor
from ooc_mdp.io.conversion.from_problem import partition_problem
from ooc_mdp.io.conversion.options import ConvertOptions
from ooc_mdp.io.conversion.partition_builder import build_partition, local_successors
from ooc_mdp.io.conversion.write_store import Progress, written_by
from ooc_mdp.model.mdp import FloatArray, IntArray, Rows
from ooc_mdp.model.partition import Coupling, PartitionTable, StoredField
from ooc_mdp.model.state_order import GridOrder, StateOrder
from ooc_mdp.model.table_source import Loader
from ooc_mdp.problems.problem import Problem, provenance_of
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.table_summary import TableSummary

__all__ = ["TABLE_VERSION", "RecomputedTable"]

TABLE_VERSION = 1
"""Part of the fingerprint: raise it when the tables that problems give change in this program."""

_SAMPLE = 4096
"""States whose rows are part of the fingerprint."""
_MIN_PIECE = 2048
"""States below which a thread of its own costs more than it saves."""
_SCRATCH = {"transition": 26, "row": 26, "state": 16}
"""Bytes that computing a partition holds beside its table: rows as the problem gives them (int64 and float64), their
new numbers, and what joins the pieces of several threads. ``tests/io/test_recomputed_table.py`` holds the measured
peak to it."""
_DEVICE_SCRATCH = {"transition": 112, "row": 48, "state": 32}
"""The same in a device's memory: rows, and a dozen whole arrays on the way to local numbers."""


class RecomputedTable:
    """A problem's table, computed partition by partition on demand, as a :class:`TableSource`.

    Parameters
    ----------
    problem : gives rows of any states; it must give the same ones each time.
    options : partitioning, type, sense and number of threads, as for :func:`~ooc_mdp.io.conversion.generate`.
    name : what messages and results call it.
    progress : called with the progress of the first pass.

    Raises
    ------
    OptionsError : the options do not fit the problem.
    InputError : the problem's rows are no probability distributions.
    """

    kind = "recomputed"

    def __init__(
        self,
        problem: Problem,
        options: ConvertOptions,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        began = time.monotonic()
        return_freed_memory()
        self.problem = problem
        self.name = name or f"problem:{problem.name}"
        self._dtype = options.stored_dtype
        self._rows_by = problem.source.name if isinstance(problem, DeviceProblem) else "cpu"
        self._pieces = options.threads if self._rows_by == "cpu" else 1
        self._numbering, method = partition_problem(problem, options)
        self._grid = self._grid_on_device(problem)
        self.partition_ptr: IntArray = self._numbering.partition_ptr
        self._summary = TableSummary(self.partition_ptr, self._dtype, problem.dyadic_probabilities)
        with closing(ThreadsExecutor(options.threads).map(self._examine, range(self.n_partitions))) as examined:
            for done, _ in enumerate(examined, 1):
                if progress is not None:
                    progress("first pass", done, self.n_partitions)
        self.fields: dict[str, _Field] = {n: _Field(dtype) for n, dtype in self._summary.fields().items()}
        self.partition_bytes: IntArray = self._summary.partition_bytes()
        self.coupling: Coupling = self._summary.coupling()
        self.attributes: dict[str, Any] = self._describe(method, options)
        self.first_pass_seconds = time.monotonic() - began
        """Seconds that it took to compute everything once."""

    @property
    def fingerprint(self) -> str:
        """Hash of problem, parameters, partitions, type, table version and the rows of a sample of states."""
        return str(self.attributes["fingerprint"])

    @property
    def dyadic_probabilities(self) -> bool:
        """Whether the first pass saw each row made of multiples of 2**-24 that sum to 1, as the problem says."""
        return self._summary.dyadic_probabilities

    @property
    def duration_dtype(self) -> np.dtype[Any] | None:
        """float32 where the first pass saw it hold every duration, else float64; None without durations."""
        return self._summary.duration_dtype

    @property
    def stored_fields(self) -> tuple[StoredField, ...]:
        """None: there are no chunks."""
        return ()

    @property
    def frame_buffer_bytes(self) -> int:
        """0: there are no chunks."""
        return 0

    @property
    def sense(self) -> str:
        """ "max" or "min"."""
        return str(self.attributes["sense"])

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.partition_ptr[-1])

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return self.partition_ptr.size - 1

    @property
    def partition_halo(self) -> IntArray:
        """int64 [P]; halo states."""
        return self._summary.halo

    @property
    def reward_range(self) -> FloatArray:
        """float64 [P,2]; least and largest reward, terminal ones included."""
        return self._summary.reward_range

    @property
    def duration_range(self) -> FloatArray:
        """float64 [P,2]; least and largest duration."""
        return self._summary.duration_range

    @property
    def row_sum_range(self) -> FloatArray:
        """float64 [P,2]; least and largest sum of a row's probabilities."""
        return self._summary.row_sum_range

    @property
    def max_successors(self) -> IntArray:
        """int64 [P]; transitions of the longest row."""
        return self._summary.max_successors

    def loader(self, device: str) -> Loader:
        """Tables made in the device's memory where it computes the rows and numbers a grid, else on the host."""
        if self._grid is not None and device == self._rows_by:
            return Loader(self._read_on_device, self._scratch_bytes(_DEVICE_SCRATCH), on_device=True)
        return Loader(self.read, self._scratch_bytes(_SCRATCH))

    def _scratch_bytes(self, each: Mapping[str, int]) -> int:
        c = self._summary
        states = np.diff(self.partition_ptr)
        return int((c.transitions * each["transition"] + c.rows * each["row"] + states * each["state"]).max())

    def hold(self) -> AbstractContextManager[None]:
        """Nothing: rows are computed, and nobody can replace them."""
        return nullcontext()

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table, computed now; 0 bytes are read for it. Any thread.

        Raises
        ------
        InputError : the problem gives other rows than in the first pass.
        """
        return self._table(p, self._rows(self._numbering.states(p))), 0

    def _read_on_device(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table with successors, probabilities, rewards, durations and halo in the device's memory."""
        problem, grid = self.problem, self._grid
        if grid is None or not isinstance(problem, DeviceProblem):
            raise TypeError(f"{self.name} is not computed by a device")
        states = self._numbering.states(p)
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
            return self._table(p, rows), 0

    def _table(self, p: int, rows: Rows) -> PartitionTable:
        """Partition p from its rows, successors in new numbers; arrays of NumPy or CuPy, which take the same calls."""
        successors, halo = local_successors(rows.successors, p, self.partition_ptr)
        sizes = self._summary.sizes(p)
        if (rows.n_rows, successors.size, halo.size) != (sizes.rows, sizes.transitions, sizes.halo):
            raise InputError(
                self.name,
                f"partition {p} has {rows.n_rows} rows, {successors.size} transitions and {halo.size} halo states, not "
                f"{sizes.rows}, {sizes.transitions} and {sizes.halo} as before; rows must depend on the state alone",
            )
        arrays = PartitionArrays(
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
        return self._summary.table(p, arrays)

    def read_field(self, name: str, p: int) -> tuple[npt.NDArray[Any], int]:
        """One field of partition p's table; the whole table is computed for it."""
        values: npt.NDArray[Any] = getattr(self.read(p)[0], name)
        return values, 0

    def action_counts(self, p: int) -> IntArray:
        """int64 [n]; number of actions of each state of partition p."""
        uniform = self._summary.actions_per_state
        states = self._numbering.states(p)
        return np.full(states.size, uniform) if uniform else np.diff(self.problem.rows(states).action_ptr)

    def original_states(self, p: int) -> IntArray:
        """int64 [n]; the problem's numbers of partition p's states."""
        return self._numbering.states(p)

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values in the order of partitions, in the problem's order; `values` itself where both are the same."""
        if self.attributes["state_order"]["kind"] == "identity":
            return values
        if isinstance(self._numbering, GridOrder):
            return self._numbering.to_source(values)
        out = np.empty_like(values)
        for p in range(self.n_partitions):
            out[self.original_states(p)] = values[self.partition_ptr[p] : self.partition_ptr[p + 1]]
        return out

    def _grid_on_device(self, problem: Problem) -> GridNumbers | None:
        """The numbering in the memory of the device that computes the rows; None where neither is so."""
        numbering = self._numbering
        if not isinstance(problem, DeviceProblem) or not isinstance(numbering, GridOrder):
            return None
        return GridNumbers(problem.source.device, numbering.shape, numbering.edges, numbering.partition_ptr)

    def _examine(self, p: int) -> None:
        """The first pass over partition p: check it and note what is kept."""
        states = self._numbering.states(p)
        rows = self.problem.rows(states)
        part = build_partition(rows, states, p, self._numbering, self.problem.n_states, self._dtype, self.problem.name)
        self._summary.note(p, part)

    def _rows(self, states: IntArray) -> Rows:
        """Rows in the table's type and with new numbers as successors; large partitions on several threads."""
        pieces = min(self._pieces, states.size // _MIN_PIECE)
        if pieces < 2:
            return self._piece(states)
        with ThreadPoolExecutor(pieces, thread_name_prefix="recompute") as pool:
            return _joined(list(pool.map(self._piece, np.array_split(states, pieces))))

    def _piece(self, states: IntArray) -> Rows:
        rows = self.problem.rows(states)
        return replace(
            rows,
            successors=self._numbering.to_store(rows.successors),
            probabilities=rows.probabilities.astype(self._dtype, copy=False),
            rewards=rows.rewards.astype(self._dtype, copy=False),
        )

    def _describe(self, method: Mapping[str, Any], options: ConvertOptions) -> dict[str, Any]:
        problem, summary = self.problem, self._summary
        sense = options.sense or problem.sense
        axes = dict(problem.geometry() or {})
        if problem.shape is not None:
            axes["shape"] = list(problem.shape)
        return {
            "n_states": self.n_states,
            "n_rows": int(summary.rows.sum()),
            "n_transitions": int(summary.transitions.sum()),
            "n_partitions": self.n_partitions,
            "n_couplings": int(self.coupling.partitions.size),
            "sense": sense,
            "dtype": self._dtype.name,
            "actions_per_state": summary.actions_per_state,
            "successors_per_action": summary.successors_per_action,
            "fields": list(self.fields),
            "state_order": self._numbering.state_order(),
            "partitioning": dict(method),
            "provenance": {**provenance_of(problem), "device": self._rows_by, **written_by()},
            "fingerprint": _fingerprint(
                problem,
                self._numbering,
                {"sense": sense, "dtype": self._dtype.name, "rows_by": self._rows_by.partition(":")[0]},
            ),
            **({"geometry": axes} if axes else {}),
        }


class _Field:
    """A field's type."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype


def _joined(pieces: list[Rows]) -> Rows:
    """Rows of several runs of states, one after another."""

    def together(name: str) -> npt.NDArray[Any] | None:
        parts = [getattr(piece, name) for piece in pieces]
        if all(part is None for part in parts):
            return None
        if any(part is None for part in parts):
            default = np.ones if name == "durations" else np.zeros
            parts = [
                default(q.n_rows if name == "durations" else q.n_states) if part is None else part
                for q, part in zip(pieces, parts, strict=True)
            ]
        return np.concatenate(parts)

    def pointers(name: str) -> IntArray:
        counts = [np.diff(getattr(piece, name)) for piece in pieces]
        return np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)

    names = ("successors", "probabilities", "rewards", "terminal_rewards", "durations", "initial_values")
    arrays: dict[str, Any] = {name: together(name) for name in names}
    return Rows(action_ptr=pointers("action_ptr"), successor_ptr=pointers("successor_ptr"), **arrays)


def _fingerprint(problem: Problem, numbering: StateOrder, facts: Mapping[str, Any]) -> str:
    """Hash of what makes the table; cheap, since of its rows only those of a sample of states take part."""
    order = numbering.state_order()
    origin = provenance_of(problem)
    said = {
        "table_version": TABLE_VERSION,
        "problem": problem.name,
        "parameters": origin["options"],
        "file": origin.get("file", {}).get("sha256"),
        "n_states": problem.n_states,
        "state_order": order,
        **facts,
    }
    digest = hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16)
    digest.update(numbering.partition_ptr.astype("<i8").tobytes())
    if order["kind"] == "array":
        for p in range(numbering.partition_ptr.size - 1):
            digest.update(numbering.states(p).astype("<i8").tobytes())
    count = min(_SAMPLE, problem.n_states)
    rows = problem.rows(np.arange(count, dtype=np.int64) * problem.n_states // count)
    for values in (rows.action_ptr, rows.successor_ptr, rows.successors):
        digest.update(values.astype("<i8").tobytes())
    for reals in (rows.probabilities, rows.rewards, rows.durations, rows.terminal_rewards):
        if reals is not None:
            digest.update(reals.astype("<f8").tobytes())
    return digest.hexdigest()
