"""`verify` for undiscounted totals: an inductive check of a result's lower and upper values, by the table alone.

Nothing of the solve is trusted, neither its end components nor its perturbations: `docs/theory/undiscounted.md` shows
that what is looked at here, state by state, implies L <= V_pi <= V* <= U, and that V* is finite.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc_mdp.errors import StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.table import Table
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, SMALLER_PARTITIONS, MemoryPlan
from ooc_mdp.solver.verify import (
    Exceeded,
    Verification,
    checked_table,
    compare_all,
    from_original,
    values_and_policy,
)
from ooc_mdp.solver.verify_memory import partitions_bytes, threads_with_room
from ooc_mdp.store.result import Result
from ooc_mdp.undiscounted.end_components import ANALYSIS_BYTES, Staying
from ooc_mdp.undiscounted.inductive import Inductive, inductive, load_code
from ooc_mdp.undiscounted.refusals import original_numbers
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, finish, no_states

__all__ = ["verify"]

_COPIES = 60
"""Bytes per state of values, their bounds and the policy in the store's order, and of what is computed of them."""
_DEPTH = 2
"""Partitions that are read at a time; the cache has room for as many, the one that is checked, and no more."""


def verify(
    table: Table,
    result: Result,
    watch: Watcher | None = None,
    *,
    other_store: bool = False,
    note: Callable[[str], None] | None = None,
) -> Verification:
    """:func:`ooc_mdp.solver.verify.verify` of total rewards, whose results have lower and upper values."""
    table.load_code()
    load_code(no_states(table))
    largest = int(table.facts.partition_bytes.max())
    streamed = (_DEPTH + 1) * largest + _DEPTH * table.loader("cpu").scratch_bytes

    def plan_of(threads: int) -> MemoryPlan:
        host = {
            PROCESS: resident_bytes(),
            "copies of the result": _COPIES * table.n_states,
            "analysis": ANALYSIS_BYTES * table.n_states,
            "partitions": max(streamed, partitions_bytes(table, threads)),
        }
        return MemoryPlan(host, {})

    threads, plan = threads_with_room(table, plan_of)
    plan.check_available(f"the verification of {result.path}", SMALLER_PARTITIONS)
    if note is not None:
        note(plan.describe())
    with checked_table(table, result, other_store) as checked:
        if checked.facts.stored_fields:
            compare_all(checked, threads)
        return _verify(checked, result, watch)


def _verify(table: Table, result: Result, watch: Watcher | None) -> Verification:
    values, policy = values_and_policy(table, result)
    sign = 1.0 if table.sense == "max" else -1.0
    solution = result.solution
    low, high = (
        (solution.value_lower, solution.value_upper) if sign > 0 else (solution.value_upper, solution.value_lower)
    )
    if low is None or high is None:
        raise StoreError(f"{result.path} has no lower and upper values, which total rewards need; solve again")
    lower, upper = sign * from_original(table, low), sign * from_original(table, high)
    found, error, state, n_bytes = _check(table, result, values, lower, upper, policy, watch)
    claims = solution.certificate
    above, below = float((upper - values).max()), float((values - lower).max())
    exceeded = Exceeded()
    exceeded.note("error_bound", error, claims.error_bound, 0.0)
    exceeded.note("error_upper", above, claims.error_upper, 0.0)
    exceeded.note("error_lower", below, -claims.error_lower, 0.0)
    exceeded.note("policy_loss_bound", above + below, claims.policy_loss_bound, 0.0)
    exceeded.note("residual_bound", found.residual, claims.residual_bound, found.rounding)
    violated_claims = exceeded.names(result, found.wrong_actions)
    residual = found.residual + found.rounding
    return Verification(
        found.holds and not violated_claims,
        violated_claims,
        residual,
        error,
        claims.error_bound,
        state,
        found.wrong_actions,
        n_bytes,
    )


def _check(
    table: Table, result: Result, values: FloatArray, lower: FloatArray, upper: FloatArray,
    policy: np.ndarray[tuple[int], np.dtype[np.int32]], watch: Watcher | None,
) -> tuple[Inductive, float, int, int]:  # fmt: skip
    """Check what a result claims; arrays are in store order, values and bounds those of the maximisation.

    Returns
    -------
    what was found, the error that it proves (infinite where it does not hold), a state at fault or else where the
    error is largest (source numbering), bytes read

    Raises
    ------
    StoreError : a chunk is damaged, or a bound is not finite.
    """
    if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        raise StoreError(f"{result.path} has a bound that is not finite: it is damaged; solve again")
    sign = 1.0 if table.sense == "max" else -1.0
    largest = int(table.facts.partition_bytes.max())
    done = 0

    def between_partitions() -> None:
        nonlocal done
        done += 1
        if watch is not None:
            watch("verify", done, None if done > table.n_partitions else table.n_partitions)

    with Streamed(table, (_DEPTH + 1) * largest, _DEPTH) as tables:
        neighbours = Neighbours(table.facts.coupling)
        staying = Staying.everywhere(0.0, table.n_states)
        proof = inductive(tables, neighbours, np.stack([lower, upper], axis=1), values, policy, sign, staying)
        found = finish(proof, between_partitions)
        n_bytes = tables.cache.statistics.bytes_read
    apart = np.maximum(upper - values, values - lower)
    where = int(np.argmax(apart)) if found.holds else found.violating_state
    error = float(np.nextafter(apart[where], np.inf)) if found.holds else float("inf")
    return found, error, int(original_numbers(table, np.array([where]))[0]), n_bytes
