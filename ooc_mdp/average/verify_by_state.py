"""`verify` for the gain of each state: end components, the gain of each at h, and bounds that are inductive.

    u = max over a component of max_a x_a,  rows that stay in it      U inductive, U >= u where one may stay for ever
    l = min of x of the policy's rows,      where they keep to it     L inductive, L <= l where the policy does

x is computed in NumPy by the code that measures one interval for all states (`ooc_mdp.average.verify`); of the solve's
loops the search for end components and the check of inductive bounds are used, neither of which rests on its values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ooc_mdp.average.component_tables import Labels, UnpaidTable, inside_rows
from ooc_mdp.average.kernels import policy_leaves
from ooc_mdp.backends.cpu.rows import TableRows
from ooc_mdp.errors import StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Table
from ooc_mdp.solver.verify import Exceeded, Verification, from_original, read_checked, values_and_policy
from ooc_mdp.store.result import Result
from ooc_mdp.undiscounted.end_components import ANALYSIS_BYTES, Staying, end_components
from ooc_mdp.undiscounted.inductive import Inductive, inductive
from ooc_mdp.undiscounted.inductive import load_code as load_check
from ooc_mdp.undiscounted.kernels.end_components import NO_COMPONENT
from ooc_mdp.undiscounted.refusals import original_numbers
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, finish, no_states

__all__ = ["BY_STATE_BYTES", "load_code", "streamed_bytes", "verify_by_state"]

BY_STATE_BYTES = ANALYSIS_BYTES + 120
"""Bytes for each state: copies of the result, what is computed of them, the analysis."""
_DEPTH = 2
"""Partitions that are read at a time; the cache has room for as many, the one that is checked, and no more."""
Advantages = Callable[[PartitionTable, IntArray, FloatArray, float], tuple[FloatArray, FloatArray]]
"""x of each row of a partition, and at least its rounding: of the partition, the state of each row, h and the sign."""


def load_code(table: Table) -> None:
    """Load the compiled loops, so that a memory plan counts them."""
    unpaid = UnpaidTable.of(table, 0.0, 0.0)
    rows = no_states(unpaid)
    load_check(rows)
    policy_leaves(rows, np.zeros(1, np.int32), np.zeros(1, np.uint8))


def streamed_bytes(table: Table) -> int:
    """Bytes of the partitions that are looked at."""
    unpaid = UnpaidTable.of(table, 0.0, 0.0)
    return (_DEPTH + 1) * int(unpaid.facts.partition_bytes.max()) + _DEPTH * unpaid.loader("cpu").scratch_bytes


def verify_by_state(table: Table, result: Result, watch: Watcher | None, advantages: Advantages) -> Verification:
    """Check bounds on the gain of each state.

    Raises
    ------
    StoreError : a bound is not finite, or a chunk is damaged.
    """
    h, policy = values_and_policy(table, result)
    sign, solution = 1.0 if table.sense == "max" else -1.0, result.solution
    assert solution.value_lower is not None
    assert solution.value_upper is not None
    bounds = [sign * from_original(table, each) for each in (solution.value_lower, solution.value_upper)]
    if not all(np.isfinite(each).all() for each in bounds):
        raise StoreError(f"{result.path} has a bound that is not finite: it is damaged; solve again")
    low, high = bounds if sign > 0 else reversed(bounds)
    check = _Check(table, h, policy, sign, watch)
    with Streamed(check.unpaid, (_DEPTH + 1) * int(check.unpaid.facts.partition_bytes.max()), _DEPTH) as tables:
        found = check.run(tables, np.stack([low, high], axis=1), advantages)
        n_bytes = check.n_bytes + tables.cache.statistics.bytes_read
    return _verification(table, result, found, (low, high), n_bytes)


class _Check:
    """One verification, of the maximisation."""

    def __init__(
        self, table: Table, h: FloatArray, policy: npt.NDArray[np.int32], sign: float, watch: Watcher | None
    ) -> None:
        self._table, self._h, self._policy, self._sign, self._watch = table, h, policy, sign, watch
        self.unpaid, self.n_bytes, self._done = UnpaidTable.of(table, 0.0, 0.0), 0, 0

    def run(self, tables: Streamed, bounds: FloatArray, advantages: Advantages) -> Inductive:
        """What an inductive check says of L and U (float64 [n, 2])."""
        neighbours = Neighbours(self._table.facts.coupling)
        components = finish(end_components(tables, neighbours), self._between)
        components[components == 0] = NO_COMPONENT
        least, largest = self._measured(components, advantages)
        kept = np.isfinite(least).astype(np.uint8)
        dirty = np.ones(self._table.n_partitions, np.bool_)

        def prune(p: int, rows: TableRows) -> IntArray | None:
            return np.append(neighbours.dependents(p), p) if policy_leaves(rows, self._policy, kept) else None

        finish(tables.until_clean(dirty, prune), self._between)
        staying = Staying(
            _over_components(components, np.where(kept > 0, least, np.inf), np.minimum, -np.inf),
            _over_components(components, largest, np.maximum, -np.inf),
        )
        middle = bounds.mean(axis=1)
        work = inductive(tables, neighbours, bounds, middle, self._policy, self._sign, staying)
        return finish(work, self._between)

    def _measured(self, components: Labels, advantages: Advantages) -> tuple[FloatArray, FloatArray]:
        """float64 [n] twice: at most x of the policy's row, minus infinity where it leaves the component or is none; at
        least the largest x of the rows that stay in it."""
        n = self._table.n_states
        least, largest = np.full(n, -np.inf), np.full(n, -np.inf)
        for p in range(self._table.n_partitions):
            part, read = read_checked(self._table, p)
            self.n_bytes += read
            counts = part.action_counts()
            state = np.repeat(np.arange(part.n_states), counts)
            x, error = advantages(part, state, self._h, self._sign)
            inside = inside_rows(part, components, NO_COMPONENT)
            own = slice(part.first_state, part.first_state + part.n_states)
            np.maximum.at(largest[own], state[inside], (x + error)[inside])
            chosen = self._policy[own]
            acts = (chosen >= 0) & (chosen < counts)
            row = (np.cumsum(counts) - counts + np.where(acts, chosen, 0)).astype(np.int64)
            acts &= inside[row]
            least[own][acts] = (x - error)[row[acts]]
            self._between()
        return least, largest

    def _between(self) -> None:
        """Report that another partition was looked at."""
        self._done += 1
        if self._watch is not None:
            total = self._table.n_partitions
            self._watch("verify", self._done, None if self._done > total else total)


def _over_components(components: Labels, values: FloatArray, reduce: np.ufunc, elsewhere: float) -> FloatArray:
    """float64 [n]; the least, or largest, value of each state's component, `elsewhere` where it is not finite."""
    order = np.argsort(components, kind="stable")
    numbers = components[order]
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    found = np.empty(values.size)
    found[order] = np.repeat(reduce.reduceat(values[order], starts), np.diff(np.r_[starts, values.size]))
    found[(components == NO_COMPONENT) | ~np.isfinite(found)] = elsewhere
    return found


def _verification(
    table: Table, result: Result, found: Inductive, bounds: tuple[FloatArray, FloatArray], n_bytes: int
) -> Verification:
    """What was found, beside what is claimed."""
    low, high = bounds
    claims = result.solution.certificate
    width = high - low
    half = float(np.nextafter(0.5 * width.max() + np.spacing(np.abs(bounds).max()), np.inf)) if found.holds else np.inf
    ends = (low.min(), high.max()) if table.sense == "max" else (-high.max(), -low.min())
    exceeded = Exceeded()
    exceeded.note("error_bound", half, claims.error_bound, 0.0)
    exceeded.note("residual_bound", half, claims.residual_bound, 0.0)
    exceeded.note("policy_loss_bound", float(width.max()) if found.holds else np.inf, claims.policy_loss_bound, 0.0)
    violated = list(exceeded.names(result, found.wrong_actions))
    violated += ["lower"] * (not claims.lower <= ends[0]) + ["upper"] * (not claims.upper >= ends[1])
    state = int(np.argmax(width)) if found.holds else found.violating_state
    return Verification(
        holds=found.holds and not violated,
        violated_claims=tuple(violated),
        residual=half,
        error_bound=half,
        claimed_bound=claims.error_bound,
        worst_state=int(original_numbers(table, np.array([state]))[0]),
        invalid_policy_states=found.wrong_actions,
        bytes_read=n_bytes,
        gain=(float(ends[0]), float(ends[1])) if found.holds else (-np.inf, np.inf),
    )
