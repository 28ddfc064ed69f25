"""Values of actions, computed from the values of states by one backup of each row.

    Q(s,a) = r(s,a) + gamma**tau(s,a) sum_s' p(s'|s,a) V(s')

    |Q - Q*| <= gamma**tau(s,a) sum_s' p(s'|s,a) ||V - V*||, and what float64 rounds of the sum

Where there is no discount, a row is divided by its sum, as the solver does. Partitions are read one at a time. Knows no
files; results and questions are made into a table and a solution by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_mdp.arguments import whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray, discounts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Table

if TYPE_CHECKING:
    from ooc_mdp.model.solution import Solution

__all__ = ["Continuation", "QValues", "partitions_with_q", "q_values", "widest"]

_UNIT_ROUNDOFF = 2.0**-53
_FEW_OPERATIONS = 8
"""Roundings of a row's value beside those of its sum."""
_ROUNDED_ROW = 1 - 1e-5
"""Without a discount, a row whose sum is above this never ends, and is read as p / sum p."""


@dataclass(frozen=True, slots=True, eq=False)
class QValues:
    """Values of the actions of some states, and how far they are from the exact ones."""

    values: FloatArray
    """float64 [n, actions], in the source's sign; the columns are the state's own actions 0, 1, ..., as `policy` counts
    them. -inf (inf where rewards are minimised) stands where a state has no such action."""
    error_bound: float
    """No value of an action is further from that of the exact solution."""
    actions: IntArray
    """int64 [n, actions]; the source's number of the action of each column, as `Solution.actions` has them; -1 where a
    state has no such action."""

    def __repr__(self) -> str:
        n, actions = self.values.shape
        return f"QValues({n} states, {actions} actions, error at most {self.error_bound:.3g})"


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """What counts after a step."""

    values: FloatArray
    """float64 [n_states]; V, in the table's order and the source's sign."""
    error_bound: float
    discount: float
    divides_rows: bool
    """Whether rows that never end are divided by their sums."""

    @staticmethod
    def of(table: Table, solution: Solution, stage: int = 0) -> Continuation:
        """That of a solution, before a stage of a finite horizon.

        Raises
        ------
        OptionsError : the criterion's values do not give those of actions, or the values of the next stage were not
            kept.
        """
        values, error = _next_values(solution, stage)
        ordered = np.empty(table.n_states)
        for p in range(table.n_partitions):
            ordered[_own(table, p)] = values[table.original_states(p)]
        divides = solution.stages is None and solution.discount == 1
        return Continuation(ordered, error, solution.discount, divides)


def q_values(table: Table, solution: Solution, states: Any = None, stage: int = 0) -> QValues:
    """Q of some states of the table that was solved.

    Parameters
    ----------
    states : numbers of states in the source's order, in any order; None for all.
    stage : of a finite horizon.

    Returns
    -------
    QValues : a row for each of `states`; as many columns as the largest number of actions among them.

    Raises
    ------
    OptionsError : there is no such state, or the criterion has no values of actions.
    """
    _check_size(table, solution)
    wanted = np.arange(table.n_states) if states is None else _checked_states(states, table.n_states)
    after = Continuation.of(table, solution, stage)
    position = np.empty(table.n_states, np.int64)
    for p in range(table.n_partitions):
        position[table.original_states(p)] = np.arange(*table.facts.partition_ptr[p : p + 2])
    places = position[wanted]
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], table.facts.partition_ptr)
    found: list[tuple[IntArray, FloatArray, IntArray]] = []
    error, width = 0.0, 0
    for p in np.flatnonzero(np.diff(bounds)).tolist():
        mine = order[bounds[p] : bounds[p + 1]]
        part = table.read(p)[0]
        local = places[mine] - part.first_state
        q, of_partition = _q_of(part, after, table.sense)
        found.append((mine, q[local], _source_numbers(table, part)[local]))
        error, width = max(error, of_partition), max(width, int(part.action_counts()[local].max()))
    values = np.full((wanted.size, width), _nothing(table.sense))
    actions = np.full(values.shape, -1, np.int64)
    for mine, q, numbers in found:
        values[mine, : q.shape[1]] = q[:, :width]
        actions[mine, : q.shape[1]] = numbers[:, :width]
    return QValues(values, error, actions)


def partitions_with_q(table: Table, after: Continuation) -> Iterator[tuple[IntArray, FloatArray, float]]:
    """Read partition after partition.

    Yields
    ------
    the source's numbers of its states, float64 [n, actions] with as many columns as the partition needs, their error
    """
    for p in range(table.n_partitions):
        q, error = _q_of(table.read(p)[0], after, table.sense)
        yield table.original_states(p), q, error


def widest(table: Table) -> int:
    """The largest number of actions of a state."""
    uniform = table.facts.actions_per_state
    return uniform or max(int(table.action_counts(p).max(initial=0)) for p in range(table.n_partitions))


def _next_values(solution: Solution, stage: int) -> tuple[FloatArray, float]:
    """Values after the step, in the source's order, and their error."""
    stages = solution.stages
    if solution.certificate.quantity == "gain":
        raise OptionsError(
            "the values of an average reward are relative ones, whose own error is not proved; actions have values "
            "where rewards are discounted or end: solve with a discount near 1, such as 0.999"
        )
    if solution.criterion.get("within") is not None:
        raise OptionsError(
            f"the answer is for {solution.criterion['within']} steps, and values of actions need that for one step "
            f"less: solve with --within {solution.criterion['within'] - 1}, or without --within"
        )
    if stages is None:
        if stage != 0:
            raise OptionsError(f"stage {stage} is one of a finite horizon, and this solution has no stages")
        return solution.values, solution.certificate.error_bound
    if not 0 <= stage < stages.count:
        raise OptionsError(f"there are no actions in stage {stage}: the stages are 0 to {stages.count - 1}")
    return stages.values(stage + 1), float(stages.errors[stage + 1])


def _check_size(table: Table, solution: Solution) -> None:
    if solution.values.size != table.n_states:
        raise OptionsError(
            f"the solution has values of {solution.values.size} states, and {table.name} has {table.n_states}; give "
            f"the table that it was solved from"
        )


def _checked_states(states: Any, n_states: int) -> IntArray:
    """int64 [n]; OptionsError where one is no state."""
    if np.ndim(states) == 0:
        states = [whole_number("a state", states)]
    numbers = np.asarray(states).reshape(-1)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise OptionsError(f"states are of type {numbers.dtype}; give whole numbers, such as [0, 5]")
    wrong = np.flatnonzero((numbers < 0) | (numbers >= n_states))
    if wrong.size:
        raise OptionsError(f"there is no state {numbers[wrong[0]]}: the states are 0 to {n_states - 1}")
    return numbers.astype(np.int64)


def _q_of(part: PartitionTable, after: Continuation, sense: str) -> tuple[FloatArray, float]:
    """float64 [n, actions] of a partition's states, and the error of its rows."""
    counts = part.action_counts()
    q = np.full((part.n_states, int(counts.max(initial=0))), _nothing(sense))
    if part.n_rows == 0:
        return q, 0.0
    rows, error = _values_of_rows(part, after)
    q[_columns(counts)] = rows
    return q, error


def _source_numbers(table: Table, part: PartitionTable) -> IntArray:
    """int64 [n, actions]; the source's numbers of the actions of a partition's states, -1 where there is none."""
    counts = part.action_counts()
    state, column = _columns(counts)
    numbers = np.full((part.n_states, int(counts.max(initial=0))), -1, np.int64)
    has_own = "action_labels" in table.facts.dtypes
    numbers[state, column] = table.read_field("action_labels", part.index)[0] if has_own else column
    return numbers


def _columns(counts: IntArray) -> tuple[IntArray, IntArray]:
    """State and column of each row, of states with so many actions."""
    first = np.cumsum(counts) - counts
    return np.repeat(np.arange(counts.size), counts), np.arange(int(counts.sum())) - np.repeat(first, counts)


def _values_of_rows(part: PartitionTable, after: Continuation) -> tuple[FloatArray, float]:
    """float64 [m], and the largest error among them."""
    lengths = part.row_lengths()
    begin = np.cumsum(lengths) - lengths
    own = after.values[part.first_state : part.first_state + part.n_states]
    v = np.concatenate([own, after.values[part.halo]])[part.successors]
    p = part.probabilities.astype(np.float64)
    v[p == 0] = 0.0  # which an infinite value would make no number
    mass, expected, size = (np.add.reduceat(term, begin) for term in (p, p * v, p * np.abs(v)))
    divisor = np.where(mass >= _ROUNDED_ROW, mass, 1.0) if after.divides_rows else np.ones(part.n_rows)
    factor = discounts(after.discount, part.durations) if part.durations.size else np.full(part.n_rows, after.discount)
    goes_on = factor > 0
    weight = np.divide(factor, divisor)
    rewards = part.rewards.astype(np.float64)
    q, sizes = rewards.copy(), np.abs(rewards)
    q[goes_on] += weight[goes_on] * expected[goes_on]
    sizes[goes_on] += weight[goes_on] * size[goes_on]
    rounding = np.where(np.isfinite(q), (lengths + _FEW_OPERATIONS) * _UNIT_ROUNDOFF * sizes, 0.0)
    rounding[goes_on] += weight[goes_on] * mass[goes_on] * after.error_bound
    return q, float(np.nextafter(rounding.max() * (1 + 4 * _UNIT_ROUNDOFF), np.inf))


def _own(table: Table, p: int) -> slice:
    return slice(int(table.facts.partition_ptr[p]), int(table.facts.partition_ptr[p + 1]))


def _nothing(sense: str) -> float:
    """In place of an action that a state does not have."""
    return -np.inf if sense == "max" else np.inf
