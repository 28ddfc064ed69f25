"""The table of a given policy: of each state of another table, the row of the policy's action alone.

    V_pi(s) = r(s, pi(s)) + g(s, pi(s)) sum p(s' | s, pi(s)) V_pi(s')

It is a table like others, with at most one action in each state, so that whatever solves a table evaluates the policy,
by any criterion, and its certificate bounds V_pi. What is known of it before a partition is loaded comes from one pass
over the other table: sizes, ranges and coupling are those of the policy's rows. Its fingerprint is that of the other
table and of the policy together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.io.conversion.executor import ThreadsExecutor
from ooc_mdp.io.conversion.partition_builder import local_successors, with_coupling
from ooc_mdp.model.annotations import Annotations, VariableValues
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.solution import Solution
from ooc_mdp.model.table import DerivedTable, Loader, Table, TableFacts
from ooc_mdp.policies.given import GivenPolicy, recorded_policy
from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.result import Result
from ooc_mdp.store.seal import hash_of
from ooc_mdp.store.source_order import source_states
from ooc_mdp.store.table_summary import TableSummary

__all__ = ["PolicyTable", "evaluated_table", "policy_table"]

_TITLE = "ooc-mdp policy 1"
_DEPTH = 2
"""Partitions that the first pass reads at a time."""
_SCRATCH = {"transition": 48, "row": 24, "state": 48}
"""Bytes beside the other table's partition while rows are selected: of each transition and state of the policy, and of
each row of the other table."""


@dataclass(frozen=True, eq=False)
class PolicyTable(DerivedTable):
    """The rows of a policy; made by :func:`policy_table`."""

    base: Table
    policy: GivenPolicy
    actions: npt.NDArray[np.int32]
    """int32 [n_states]; the policy in the table's order."""
    summary: TableSummary
    facts: TableFacts

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p of the other table without the rows of other actions."""
        table, n_bytes = self.base.read(p)
        return self.summary.table(p, _selected(self.base, table, self.actions)), n_bytes

    def loader(self, device: str) -> Loader:
        """Rows are selected in host memory, whatever the device."""
        facts, other = self.base.facts, self.base.loader("cpu")
        beside = facts.partition_bytes + _SCRATCH["row"] * facts.partition_rows
        beside += _SCRATCH["transition"] * self.facts.partition_transitions
        beside += _SCRATCH["state"] * np.diff(facts.partition_ptr)
        return Loader(self.read, other.scratch_bytes + int(beside.max()), prefetch=other.prefetch)

    @property
    def annotations(self) -> Annotations:
        """Those of the other table, with the rewards of the policy's rows."""
        return _PolicyAnnotations(self)

    def checking_sha256(self) -> Table:
        """The same rows of the other table, checked."""
        return replace(self, base=self.base.checking_sha256())

    def action_counts(self, p: int) -> IntArray:
        """int64 [n]; 1 where the policy has an action, else 0."""
        return (self.actions[_own(self.facts, p)] >= 0).astype(np.int64)


def policy_table(table: Table, policy: GivenPolicy, note: Callable[[str], None] = lambda _: None) -> PolicyTable:
    """The table of a policy's rows, after one pass over all partitions of the other one.

    Parameters
    ----------
    note : called with a sentence before the pass.

    Raises
    ------
    OptionsError : the policy has another number of states, or an action that a state does not have.
    """
    facts = table.facts
    if policy.actions.size != table.n_states:
        raise OptionsError(
            f"{policy.where} has actions of {policy.actions.size} states, and {table.name} has {table.n_states}: give "
            f"one for each state"
        )
    actions = np.empty(table.n_states, np.int32)
    for own, states in source_states(table):
        actions[own] = policy.actions[states]
    note("reading the table once for the rows of the given policy")
    table.load_code()
    summary = TableSummary(facts.partition_ptr, facts.dtypes["rewards"], facts.dyadic_probabilities)

    def scan(p: int) -> None:
        part = table.read(p)[0]
        _check_actions(table, part, policy)
        summary.note(p, with_coupling(_selected(table, part, actions), p, facts.partition_ptr))

    with table.hold(), closing(ThreadsExecutor(_DEPTH).map(scan, range(table.n_partitions))) as done:
        for _ in done:
            pass
    return PolicyTable(table, policy, actions, summary, _facts(facts, summary, policy))


def evaluated_table(
    table: Table, found: Result | Solution, note: Callable[[str], None] = lambda _: None
) -> tuple[Table, Result | Solution]:
    """The table that a result is the solution of, and the result as one of that table: both as they are, or, of the
    value of a given policy, those of the policy's rows.

    Raises
    ------
    OptionsError : the policy is none of the table.
    StoreError : the result holds another policy than the one that was evaluated.
    """
    solution, where = (found.solution, str(found.path)) if isinstance(found, Result) else (found, "the solution")
    policy = recorded_policy(solution, where)
    if policy is None:
        return table, found
    asked = policy.asked(solution)
    return policy_table(table, policy, note), replace(found, solution=asked) if isinstance(found, Result) else asked


def _facts(base: TableFacts, summary: TableSummary, policy: GivenPolicy) -> TableFacts:
    """The other table's facts with those that the policy's rows change."""
    coupling, dtypes = summary.coupling(), summary.fields()
    fingerprint = hash_of(_TITLE, {"table": base.fingerprint, "policy": policy.digest}, {})
    changed = {
        "n_rows": int(summary.rows.sum()),
        "n_transitions": int(summary.transitions.sum()),
        "n_couplings": int(coupling.partitions.size),
        "actions_per_state": summary.actions_per_state,
        "successors_per_action": summary.successors_per_action,
        "fields": list(dtypes),
        "fingerprint": fingerprint,
    }
    return replace(
        base,
        fingerprint=fingerprint,
        attributes={**base.attributes, **changed},
        dtypes=dtypes,
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
        stored_fields=(),
        frame_buffer_bytes=0,
    )


def _check_actions(table: Table, part: PartitionTable, policy: GivenPolicy) -> None:
    """Refuse an action that a state of the partition does not have, or that is another one by the source's numbers."""
    states = table.original_states(part.index)
    counts = np.diff(_pointers(part.action_ptr, part.n_states, part.actions_per_state))
    chosen = policy.actions[states]
    wrong = np.flatnonzero(np.where(counts > 0, (chosen < 0) | (chosen >= counts), chosen != -1))
    if wrong.size:
        s = int(wrong[0])
        has = "no action: give -1" if counts[s] == 0 else f"{counts[s]}: give a number from 0 to {counts[s] - 1}"
        raise OptionsError(
            f"{policy.where} takes action {chosen[s]} in state {states[s]}, which has {has} (actions count among the "
            f"available ones of their state)"
        )
    if policy.source_actions is None or "action_labels" not in table.facts.dtypes:
        return
    labels, acts = table.read_field("action_labels", part.index)[0], np.flatnonzero(counts)
    here = labels[(np.cumsum(counts) - counts + chosen)[acts]]
    named = policy.source_actions[states[acts]]
    other = np.flatnonzero(here != named)
    if other.size:
        i = int(other[0])
        s = int(acts[i])
        raise OptionsError(
            f"{policy.where} takes action {chosen[s]} in state {states[s]}, which its own source numbers {named[i]} "
            f"and that of {table.name} {here[i]}: it is of a model with other actions; give the policy as an array of "
            f"numbers among the available actions"
        )


def _selected(base: Table, table: PartitionTable, actions: npt.NDArray[np.int32]) -> PartitionArrays:
    """A partition with the policy's rows alone, and with the halo that these reach; without its coupling row.

    Parameters
    ----------
    actions : of all states, in the table's order.
    """
    ptr, present = base.facts.partition_ptr, base.facts.dtypes
    chosen = actions[_own(base.facts, table.index)]
    action_ptr = _pointers(table.action_ptr, table.n_states, table.actions_per_state)
    successor_ptr = _pointers(table.successor_ptr, table.n_rows, table.successors_per_action)
    acts = chosen >= 0
    rows = action_ptr[:-1][acts] + chosen[acts]
    lengths = np.diff(successor_ptr)[rows]
    new_ptr = _sums(lengths)
    places = np.arange(new_ptr[-1]) + np.repeat(successor_ptr[rows] - new_ptr[:-1], lengths)
    reached = table.successors[places].astype(np.int64)
    outside = reached >= table.n_states
    reached[outside] = table.halo[reached[outside] - table.n_states]
    reached[~outside] += table.first_state
    successors, halo = local_successors(reached, table.index, ptr)
    return PartitionArrays(
        action_ptr=_sums(acts.astype(np.int64)),
        successor_ptr=new_ptr,
        successors=successors,
        probabilities=table.probabilities[places],
        rewards=table.rewards[rows],
        halo=halo,
        coupling_partitions=np.empty(0, np.int64),
        coupling_mass=np.empty(0),
        row_sum_range=(1.0, 1.0),
        terminal_rewards=table.terminal_rewards if "terminal_rewards" in present else None,
        durations=table.durations[rows] if "durations" in present else None,
        initial_values=table.initial_values if "initial_values" in present else None,
    )


def _own(facts: TableFacts, p: int) -> slice:
    """Where partition p's states are in the table's order."""
    return slice(int(facts.partition_ptr[p]), int(facts.partition_ptr[p + 1]))


def _pointers(given: npt.NDArray[np.uint32], count: int, uniform: int) -> IntArray:
    """int64 [count + 1]: where the parts begin, each of so many where that is uniform."""
    return np.arange(count + 1) * uniform if uniform else given.astype(np.int64)


def _sums(counts: IntArray) -> IntArray:
    """int64 [count + 1]: where the parts of these lengths begin."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


class _PolicyAnnotations(Annotations):
    """Labels, variables and reward models of the other table; rewards are of the policy's rows."""

    def __init__(self, table: PolicyTable) -> None:
        self._table, self._other = table, table.base.annotations
        self.n_states = self._other.n_states
        self.labels, self.reward_models = self._other.labels, self._other.reward_models
        self.variables = self._other.variables
        self.table_rewards, self.rewards_chosen = self._other.table_rewards, self._other.rewards_chosen

    def label_bits(self, name: str) -> npt.NDArray[np.uint8]:
        """As of the other table."""
        return self._other.label_bits(name)

    def values(self, name: str, first: int, end: int) -> VariableValues:
        """As of the other table."""
        return self._other.values(name, first, end)

    def rewards(self, name: str, first: int, end: int) -> FloatArray:
        """float64 [end - first]; rewards of the policy's rows, by one of `reward_models`."""
        mine, theirs = (_sums(table.facts.partition_rows) for table in (self._table, self._table.base))
        parts = [np.empty(0)]
        for p in np.flatnonzero((mine[:-1] < end) & (mine[1:] > first)).tolist():
            counts = self._table.base.action_counts(p)
            chosen = self._table.actions[_own(self._table.facts, p)]
            rows = (np.cumsum(counts) - counts + chosen)[chosen >= 0]
            found = self._other.rewards(name, int(theirs[p]), int(theirs[p + 1]))[rows]
            parts.append(found[max(first - int(mine[p]), 0) : end - int(mine[p])])
        return np.concatenate(parts)

    def terminal_rewards(self, name: str, first: int, end: int) -> FloatArray:
        """As of the other table."""
        return self._other.terminal_rewards(name, first, end)

    def reward_range(self, name: str) -> tuple[float, float]:
        """As of the other table: that of all actions."""
        return self._other.reward_range(name)

    def faults(self) -> list[str]:
        """As of the other table."""
        return self._other.faults()
