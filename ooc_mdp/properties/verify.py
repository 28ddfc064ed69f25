"""`verify` for questions about goals: the graph is searched again, then bounds are checked by the table alone.

States whose answer the graph decides must have that answer; in the others lower and upper values must be inductive
(`ooc_mdp.undiscounted.inductive`). Of a bounded question all backups are done again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.table import Table
from ooc_mdp.properties.engine import bounded_values, decided_values, difference_bound, infinite_totals
from ooc_mdp.properties.graph import GRAPH_BYTES, decide, load_code
from ooc_mdp.properties.table import AskedTable
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, SMALLER_PARTITIONS, MemoryPlan
from ooc_mdp.solver.verify import Exceeded, Verification, checked_table, compare_all, from_original
from ooc_mdp.solver.verify_memory import partitions_bytes, threads_with_room
from ooc_mdp.store.result import Result
from ooc_mdp.undiscounted.end_components import ANALYSIS_BYTES, Staying
from ooc_mdp.undiscounted.inductive import inductive
from ooc_mdp.undiscounted.inductive import load_code as load_check
from ooc_mdp.undiscounted.refusals import original_numbers
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, finish, no_states

__all__ = ["verify"]

_COPIES = 80
"""Bytes per state of values, their bounds and the policy in the store's order, and of what is computed of them."""
_DEPTH = 2
"""Partitions that are read at a time."""


def verify(
    table: Table,
    result: Result,
    watch: Watcher | None = None,
    *,
    other_store: bool = False,
    note: Callable[[str], None] | None = None,
) -> Verification:
    """:func:`ooc_mdp.solver.verify.verify` of questions about goals, and of totals that may be infinite."""
    asked = infinite_totals(table)
    asked.load_code()
    rows = no_states(asked)
    load_check(rows)
    load_code(rows)
    streamed = (_DEPTH + 1) * int(asked.facts.partition_bytes.max()) + _DEPTH * asked.loader("cpu").scratch_bytes

    def plan_of(threads: int) -> MemoryPlan:
        host = {
            PROCESS: resident_bytes(),
            "copies of the result": _COPIES * table.n_states,
            "sets of states": (GRAPH_BYTES + ANALYSIS_BYTES) * table.n_states,
            "partitions": max(streamed, partitions_bytes(asked, threads)),
        }
        return MemoryPlan(host, {})

    threads, plan = threads_with_room(asked, plan_of)
    plan.check_available(f"the verification of {result.path}", SMALLER_PARTITIONS)
    if note is not None:
        note(plan.describe())
    with checked_table(table, result, other_store) as checked:
        asked = infinite_totals(checked)
        compare_all(asked, threads)
        return _Check(asked, result, watch).run()


class _Check:
    """One verification."""

    def __init__(self, table: AskedTable, result: Result, watch: Watcher | None) -> None:
        self._table, self._result, self._watch = table, result, watch
        self._done = 0
        solution = result.solution
        if solution.value_lower is None or solution.value_upper is None:
            raise StoreError(f"{result.path} has no lower and upper values, which such questions need; solve again")
        self._lower = from_original(table, solution.value_lower)
        self._upper = from_original(table, solution.value_upper)

    def run(self) -> Verification:
        """Everything."""
        table, result = self._table, self._result
        if np.isnan(result.solution.values).any():
            raise StoreError(f"{result.path} has a value that is no number: it is damaged; solve again")
        values = from_original(table, result.solution.values) * (1.0 if table.sense == "max" else -1.0)
        policy = from_original(table, result.solution.policy)
        budget = (_DEPTH + 1) * int(table.facts.partition_bytes.max())
        with Streamed(table, budget, _DEPTH) as tables:
            steps = result.identity.get("within")
            found = (
                self._bounded(tables, steps, values) if steps is not None else self._unbounded(tables, values, policy)
            )
            n_bytes = tables.cache.statistics.bytes_read
        holds, state, residual, rounding, wrong = found
        return self._verification(values, holds, state, (residual, rounding), wrong, n_bytes)

    def _bounded(self, tables: Streamed, steps: int, values: FloatArray) -> tuple[bool, int, float, float, int]:
        """Do the backups again: the bounds must be those of the result, or within them."""
        policy = np.full(values.size, -1, np.int32)
        own = finish(bounded_values(tables, steps, policy), self._between)
        outside = np.flatnonzero((self._lower > own[:, 0]) | (self._upper < own[:, 1]))
        width = float(np.ptp(own, axis=1).max())
        return not outside.size, int(outside[0]) if outside.size else -1, width, width, 0

    def _unbounded(
        self, tables: Streamed, values: FloatArray, policy: npt.NDArray[np.int32]
    ) -> tuple[bool, int, float, float, int]:
        """Search the graph again, and check bounds of the states that it does not decide."""
        table, sign = self._table, 1.0 if self._table.sense == "max" else -1.0
        neighbours = Neighbours(table.facts.coupling)
        decided = finish(decide(tables, neighbours), self._between)
        exact = decided_values(table, decided.ends)
        known = ~np.isnan(exact)
        wrong = np.flatnonzero(
            known & ((self._lower > exact) | (self._upper < exact)) | ~known & ~np.isfinite(self._lower + self._upper)
        )
        if wrong.size:
            return False, int(wrong[0]), np.inf, 0.0, 0
        ended = np.where(np.isinf(exact), 0.0, exact)
        low, high = (np.where(known, ended, bound) for bound in (self._lower, self._upper))
        if sign < 0:
            low, high = -high, -low
        middle = np.where(known, sign * ended, values)
        tables.change(table.with_ends(decided.ends, decided.penalty))
        pairs = np.stack([low, high], axis=1)
        staying = Staying.everywhere(decided.staying, table.n_states)
        proof = finish(inductive(tables, neighbours, pairs, middle, policy, sign, staying), self._between)
        return proof.holds, proof.violating_state, proof.residual, proof.rounding, proof.wrong_actions

    def _between(self) -> None:
        """Report that another partition was looked at."""
        self._done += 1
        if self._watch is not None:
            total = self._table.n_partitions
            self._watch("verify", self._done, None if self._done > total else total)

    def _verification(
        self, values: FloatArray, holds: bool, state: int, residual: tuple[float, float], wrong: int, n_bytes: int
    ) -> Verification:
        """What was measured, beside what is claimed."""
        sign = 1.0 if self._table.sense == "max" else -1.0
        low, high = (self._lower, self._upper) if sign > 0 else (-self._upper, -self._lower)
        finite = np.isfinite(values) & np.isfinite(low) & np.isfinite(high)
        low, high, values = (np.where(finite, each, 0.0) for each in (low, high, values))
        above, below = float((high - values).max()), float((values - low).max())
        error = difference_bound(max(above, below)) if holds else np.inf
        if holds:
            state = int(np.argmax(np.maximum(high - values, values - low)))
        claims: Any = self._result.solution.certificate
        exceeded = Exceeded()
        exceeded.note("error_bound", error, claims.error_bound, 0.0)
        exceeded.note("error_upper", above, claims.error_upper, 0.0)
        exceeded.note("error_lower", below, -claims.error_lower, 0.0)
        exceeded.note("policy_loss_bound", above + below, claims.policy_loss_bound, 0.0)
        exceeded.note("residual_bound", residual[0], claims.residual_bound, residual[1])
        violated = exceeded.names(self._result, wrong)
        return Verification(
            holds and not violated,
            violated,
            residual[0] + residual[1],
            error,
            claims.error_bound,
            int(original_numbers(self._table, np.array([max(state, 0)]))[0]),
            wrong,
            n_bytes,
        )
