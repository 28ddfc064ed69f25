"""What is known of a problem's table before any partition is loaded, and the first pass that finds it.

The first pass computes every partition once, checks it and keeps what a store has in RAM: sizes, ranges, coupling, one
bit per state for the boundary. `describe` adds the identity of the table: a *fingerprint* of all that determines it.
Keeps no table and no file.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_mdp.backends.cuda.control.rows import DeviceProblem
from ooc_mdp.io.conversion.executor import ThreadsExecutor
from ooc_mdp.io.conversion.from_problem import partition_problem
from ooc_mdp.io.conversion.partition_builder import build_partition
from ooc_mdp.io.conversion.write_store import Progress, tool_provenance
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.state_order import StateOrder
from ooc_mdp.model.table import TableFacts
from ooc_mdp.problems.problem import Problem, provenance_of
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.store.table_summary import TableSummary
from ooc_mdp.table_options import ConvertOptions

__all__ = ["TABLE_VERSION", "TableDescription", "describe", "first_pass", "summarise"]

TABLE_VERSION = 1
"""Part of the fingerprint: increase it when this program changes the tables of problems."""

_SAMPLE = 4096
"""States whose rows are part of the fingerprint."""


@dataclass(frozen=True, eq=False)
class TableDescription:
    """A problem's table without its partitions."""

    order: StateOrder
    summary: TableSummary
    sense: str
    partitioning: Mapping[str, Any]
    """Method and parameters."""
    provenance: Mapping[str, Any]
    """Problem, parameters, file; what computes the rows ("device"); program, version and time."""
    geometry: Mapping[str, Any] | None
    """Axes and shape of a grid; None where states are no grid."""
    fingerprint: str
    """Hash of problem, parameters, partitions, type, table version and the rows of a sample of states."""
    seconds: float = 0.0
    """Duration of the first pass; 0 where its findings were read from disk."""

    @property
    def rows_by(self) -> str:
        """What computes the rows: "cpu" or "cuda:N"."""
        return str(self.provenance["device"])

    @property
    def partition_ptr(self) -> IntArray:
        """int64 [P+1]; partition p owns states partition_ptr[p] .. partition_ptr[p+1]-1."""
        return self.order.partition_ptr

    def facts(self, name: str) -> TableFacts:
        """What a table by this name knows of itself."""
        summary, coupling = self.summary, self.summary.coupling()
        return TableFacts(
            name=name,
            kind="recomputed",
            fingerprint=self.fingerprint,
            attributes=self._attributes(coupling),
            dtypes=summary.fields(),
            sense=self.sense,
            partition_ptr=self.partition_ptr,
            partition_rows=summary.rows,
            partition_transitions=summary.transitions,
            partition_halo=summary.halo,
            partition_bytes=summary.partition_bytes(),
            reward_range=summary.reward_range,
            duration_range=summary.duration_range,
            row_sum_range=summary.row_sum_range,
            max_successors=summary.max_successors,
            coupling=coupling,
            dyadic_probabilities=summary.dyadic_probabilities,
            duration_dtype=summary.duration_dtype,
        )

    def _attributes(self, coupling: Coupling) -> dict[str, Any]:
        """As ``docs/reference/store-format.md`` lists them."""
        summary = self.summary
        return {
            "n_states": int(self.partition_ptr[-1]),
            "n_rows": int(summary.rows.sum()),
            "n_transitions": int(summary.transitions.sum()),
            "n_partitions": summary.n_partitions,
            "n_couplings": int(coupling.partitions.size),
            "sense": self.sense,
            "dtype": summary.dtype.name,
            "actions_per_state": summary.actions_per_state,
            "successors_per_action": summary.successors_per_action,
            "fields": list(summary.fields()),
            "state_order": self.order.state_order(),
            "partitioning": dict(self.partitioning),
            "provenance": dict(self.provenance),
            "fingerprint": self.fingerprint,
            **({} if self.geometry is None else {"geometry": dict(self.geometry)}),
        }


def first_pass(problem: Problem, options: ConvertOptions, progress: Progress | None = None) -> TableDescription:
    """Cut a problem into partitions, compute each of them once, and describe the table.

    Raises
    ------
    OptionsError : the options do not fit the problem.
    InputError : the problem's rows are no probability distributions.
    """
    began = time.monotonic()
    return_freed_memory()
    order, method = partition_problem(problem, options)
    summary = summarise(problem, order, options.stored_dtype, options.threads, progress)
    known = describe(problem, order, summary, options.sense or problem.sense, method)
    return replace(known, seconds=time.monotonic() - began)


def summarise(
    problem: Problem, order: StateOrder, dtype: np.dtype[Any], threads: int, progress: Progress | None = None
) -> TableSummary:
    """Compute and check every partition once, on threads."""
    summary = TableSummary(order.partition_ptr, dtype, problem.dyadic_probabilities)

    def scan(p: int) -> None:
        states = order.states(p)
        rows = problem.rows(states)
        summary.note(p, build_partition(rows, states, p, order, problem.n_states, dtype, problem.name))

    n = summary.n_partitions
    with closing(ThreadsExecutor(threads).map(scan, range(n))) as examined:
        for done, _ in enumerate(examined, 1):
            if progress is not None:
                progress("first pass", done, n)
    return summary


def describe(
    problem: Problem,
    order: StateOrder,
    summary: TableSummary,
    sense: str,
    partitioning: Mapping[str, Any],
) -> TableDescription:
    """The description of a problem's table; computes the rows of a sample of states."""
    axes = dict(problem.geometry() or {})
    if problem.shape is not None:
        axes["shape"] = list(problem.shape)
    rows_by = problem.source.name if isinstance(problem, DeviceProblem) else "cpu"
    facts = {"sense": sense, "dtype": summary.dtype.name, "rows_by": rows_by.partition(":")[0]}
    return TableDescription(
        order=order,
        summary=summary,
        sense=sense,
        partitioning=partitioning,
        provenance={**provenance_of(problem), "device": rows_by, **tool_provenance()},
        geometry=axes or None,
        fingerprint=_fingerprint(problem, order, facts),
    )


def _fingerprint(problem: Problem, order: StateOrder, facts: Mapping[str, Any]) -> str:
    """Hash of everything that determines the table; only the rows of a sample of states are part of it."""
    stated = order.state_order()
    origin = provenance_of(problem)
    identity = {
        "table_version": TABLE_VERSION,
        "problem": problem.name,
        "parameters": origin["options"],
        "file": origin.get("file", {}).get("sha256"),
        "n_states": problem.n_states,
        "state_order": stated,
        **facts,
    }
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16)
    digest.update(order.partition_ptr.astype("<i8").tobytes())
    if stated["kind"] == "array":
        for p in range(order.partition_ptr.size - 1):
            digest.update(order.states(p).astype("<i8").tobytes())
    count = min(_SAMPLE, problem.n_states)
    rows = problem.rows(np.arange(count, dtype=np.int64) * problem.n_states // count)
    for values in (rows.action_ptr, rows.successor_ptr, rows.successors):
        digest.update(values.astype("<i8").tobytes())
    for reals in (rows.probabilities, rows.rewards, rows.durations, rows.terminal_rewards):
        if reals is not None:
            digest.update(reals.astype("<f8").tobytes())
    return digest.hexdigest()
