"""`verify`: read the whole table once, in float64, and say what the values of a result really leave.

Nothing of the solver is trusted: not its bounds, not the store's row sums, not its priorities. Every chunk's SHA-256 is
compared with the manifest's; row sums, ranges and coupling are recomputed and compared with what the store says; every
state's residual is computed from the stored values. Undiscounted results are checked in
`ooc_mdp.undiscounted.verify`.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Loops
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.solution import with_ends
from ooc_mdp.model.table import Table
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, SMALLER_PARTITIONS, MemoryPlan
from ooc_mdp.runtime.threads import in_order, least_and_largest
from ooc_mdp.scheduling.residual_bounds import ResidualBounds, rounded_up
from ooc_mdp.solver.verify_memory import partitions_bytes, threads_with_room
from ooc_mdp.store.check_table import sums_of_rows
from ooc_mdp.store.result import Result
from ooc_mdp.store.source_order import source_states

__all__ = [
    "Exceeded",
    "Verification",
    "check_belongs",
    "checked_table",
    "compare_all",
    "from_original",
    "read_checked",
    "values_and_policy",
    "verify",
]

_SLACK = 1e-9
"""Share of a measured bound that sums may have rounded away."""
_UNIT_ROUNDOFF = 2.0**-53
_MEASURED = 4
"""Bytes per byte of a table that is measured: itself, probabilities in float64, sums, and what a sweep reads."""


_ON_ANOTHER = ", or measure it on this one with --other-store (in Python other_store=True)"


@dataclass(frozen=True, slots=True)
class Verification:
    """What one pass over the table found."""

    holds: bool
    """Whether all that the result claims stands."""
    violated_claims: tuple[str, ...]
    """What does not stand, by the certificate's names: those of its bounds that the residuals exceed by more than
    float64 rounding, "lower" or "upper" where its ends are closer than its values and error interval, "policy" where an
    entry is no action, and "outcome" where it says proved and the bound that was asked for is infinite."""
    residual: float
    """Largest |opt_a Q_a - V| over all states."""
    error_bound: float
    """||V - V*|| is at most this: the largest normalised residual, rounding included; of total rewards the distance to
    the lower and upper values, infinite where they are not inductive."""
    claimed_bound: float
    """What the result's certificate says."""
    worst_state: int
    """A state of the partition with the largest normalised residual (source numbering): that partition's first. Of
    total rewards a state where the check fails, else that with the largest error."""
    invalid_policy_states: int
    """States whose policy names an action that they do not have, or none where they have one."""
    bytes_read: int
    gain: tuple[float, float] | None = None
    """Of an average reward: the gain of every state lies between these, as measured, in the source's sign."""
    evaluated_policy: str | None = None
    """SHA-256 of the given policy whose value the result is; None where it is that of the best one."""

    def summary(self) -> dict[str, Any]:
        """The figures as plain values."""
        gain = {} if self.gain is None else {"gain_lower": self.gain[0], "gain_upper": self.gain[1]}
        evaluated = {} if self.evaluated_policy is None else {EVALUATED: self.evaluated_policy}
        return {
            **gain,
            **evaluated,
            "holds": self.holds,
            "violated_claims": list(self.violated_claims),
            "residual": self.residual,
            "error_bound": self.error_bound,
            "claimed_bound": self.claimed_bound,
            "worst_state": self.worst_state,
            "invalid_policy_states": self.invalid_policy_states,
            "bytes_read": self.bytes_read,
        }


class Exceeded:
    """Claims that what was measured exceeds."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def note(self, name: str, measured: float, claimed: float, rounding: float) -> None:
        """Compare, up to rounding of the measurement and of the claim's own sums; a number that is none refutes."""
        if not measured - abs(measured) * _SLACK - rounding <= claimed:
            self._names[name] = None

    def names(self, result: Result, invalid_policy_states: int) -> tuple[str, ...]:
        """Everything that is violated_claims."""
        solution = result.solution
        claims = solution.certificate
        if claims.quantity != "gain":  # which is no range of the values
            ends = with_ends(claims, solution.values, result.identity.get("sense", "max"))
            if claims.lower > ends.lower:
                self._names["lower"] = None
            if claims.upper < ends.upper:
                self._names["upper"] = None
        due = claims.residual_bound if claims.stopping_rule == "residual" else claims.error_bound
        if invalid_policy_states:
            self._names["policy"] = None
        if solution.outcome.proved and not np.isfinite(due):
            self._names["outcome"] = None
        return tuple(self._names)


def verify(
    table: Table,
    result: Result,
    watch: Watcher | None = None,
    *,
    other_store: bool = False,
    note: Callable[[str], None] | None = None,
) -> Verification:
    """Stream the table once and compare.

    Parameters
    ----------
    other_store : whether to measure the result on this table although it was solved from another.
    note : called with the memory plan.

    Raises
    ------
    OptionsError : the result belongs to another table, or has another number of states, or another sense.
    StoreError : a chunk is damaged, the store's small arrays contradict its chunks, or a value is not finite.
    MemoryBudgetError : a partition, with what is recomputed of it, takes more than the RAM that is available.
    """
    with checked_table(table, result, other_store) as checked:
        return _verify(checked, result, watch, note)


@contextmanager
def checked_table(table: Table, result: Result, other_store: bool) -> Iterator[Table]:
    """The table that a result is of, held open, each chunk's SHA-256 compared with the manifest's as it is read.

    Raises
    ------
    OptionsError : the result is of another table, without `other_store`.
    """
    check_belongs(table, result, other_store, remedy=_ON_ANOTHER)
    with table.hold():
        yield table.checking_sha256()


def values_and_policy(table: Table, result: Result) -> tuple[FloatArray, np.ndarray[Any, Any]]:
    """Values of the maximisation and policy, in the store's order; StoreError where a value is no number."""
    sign = 1.0 if table.sense == "max" else -1.0
    values = sign * from_original(table, result.solution.values)
    if not np.isfinite(values).all():
        state = int(np.flatnonzero(~np.isfinite(result.solution.values))[0])
        raise StoreError(f"{result.path} has no finite value for state {state}: it is damaged; solve again")
    return values, from_original(table, result.solution.policy)


def check_belongs(table: Table, result: Result, other_store: bool = False, remedy: str = "") -> None:
    """OptionsError where a result is of another sense, or of another table without `other_store`.

    Parameters
    ----------
    remedy : what else can be done about another table, after what it was solved from.
    """
    if result.solution.values.size != table.n_states:
        raise OptionsError(
            f"{result.path} has values of {result.solution.values.size} states, {table.name} has {table.n_states}"
        )
    if result.identity.get("fingerprint") != table.fingerprint and not other_store:
        raise OptionsError(
            f"{result.path} was solved from another table than {table.name} holds (their fingerprints differ); give "
            f"the store, or the problem and options, that it was solved from{remedy}"
        )
    theirs = result.identity.get("sense")
    if theirs != table.sense:
        raise OptionsError(
            f"{result.path} was solved for the sense {theirs!r}, and {table.name} has {table.sense!r}: its values "
            "answer another question; give the store that it was solved from"
        )


def _verify(table: Table, result: Result, watch: Watcher | None, note: Callable[[str], None] | None) -> Verification:
    facts = ModelFacts.of(table.facts, result.solution.discount)
    table.load_code()
    threads, plan = threads_with_room(table, partial(_plan, table, facts))
    plan.check_available(f"the verification of {result.path}", SMALLER_PARTITIONS)
    if note is not None:
        note(plan.describe())
    with closing(CpuBackend(threads=threads)) as backend:
        backend.load_code(facts, Loops.MEASURE)
        measuring = _Measuring(table, result, facts, backend, threads)
        found = _Found(result)
        for p, partition in enumerate(in_order(measuring.of, range(table.n_partitions), threads)):
            found.note(partition)
            if watch is not None:
                watch("verify", p + 1, table.n_partitions)
    return found.verification()


def _plan(table: Table, facts: ModelFacts, threads: int) -> MemoryPlan:
    """Bytes by name; the result's own arrays are in the process."""
    with closing(CpuBackend(threads=threads)) as backend:
        workspace = {name: size for name, size in backend.layout(facts, Needs()).host.items() if name != "cache"}
    host = {
        PROCESS: resident_bytes(),
        "values and policy": 20 * table.n_states,
        "partitions": partitions_bytes(table, threads, _MEASURED),
        **workspace,
    }
    return MemoryPlan(host, {})


@dataclass(frozen=True, slots=True)
class _Partition:
    """What a partition leaves of a result."""

    measured: FloatArray
    """float64 [4], as in `RESIDUALS`, rounded up."""
    rounding: float
    plain_rounding: float
    """What rounding may have added to its normalised and plain residuals."""
    apart: float
    """Share by which the normalisation of the claims may differ from this one."""
    wrong_actions: int
    first_state: int
    """In the source's numbering."""
    bytes_read: int


class _Measuring:
    """The values and policy of a result, and what measures them; several threads may, each a partition of its own.

    Parameters
    ----------
    backend : has a workspace for each of the threads.
    """

    def __init__(self, table: Table, result: Result, facts: ModelFacts, backend: CpuBackend, threads: int) -> None:
        self._store, self._discount, self._backend = table, facts.discount, backend
        values, self._policy = values_and_policy(table, result)
        self._size = max(map(abs, least_and_largest(values)))
        self._row_sums = np.zeros(table.n_partitions)
        # Residuals are normalised by the row sums that are found in the tables, not by those that the store claims.
        measured = replace(facts, contraction=replace(facts.contraction, row_sum=self._row_sums))
        backend.start(measured, backend.layout(facts, Needs()), values, self._policy)
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        for thread in range(threads):
            self._idle.put(thread)

    def of(self, p: int) -> _Partition:
        """Read partition p and measure it."""
        store = self._store
        table, n_bytes = read_checked(store, p)
        longest, contraction = _contraction(table, self._discount)
        self._row_sums[p] = float(contraction.row_sum[0])
        actions = store.action_counts(p)
        own = self._policy[table.first_state : table.first_state + table.n_states]
        wrong = np.where(actions > 0, (own < 0) | (own >= actions), own != -1)
        wrong_actions = int(wrong.sum())  # before measuring, which chooses where there is no policy
        rewards, k = _reward_range(table, actions), np.array([longest])
        thread = self._idle.get()
        try:
            residuals, _ = self._backend.measure(self._backend.admit(self._backend.prepare(table)), 0.0, thread)
        finally:
            self._idle.put(thread)
        return _Partition(
            measured=rounded_up(residuals),
            rounding=ResidualBounds.rounding_of(contraction, rewards, k, self._size),
            plain_rounding=ResidualBounds.rounding_of(contraction, rewards, k, self._size, True),
            # Two sums of a row, in different orders, differ, and 1 - g rho by as much.
            apart=(2 * longest + 16) * _UNIT_ROUNDOFF * float(contraction.normaliser[0]),
            wrong_actions=wrong_actions,
            first_state=int(store.original_states(p)[0]),
            bytes_read=n_bytes,
        )


class _Found:
    """What was measured of the partitions so far, and which claims of the result that exceeds."""

    def __init__(self, result: Result) -> None:
        self._result, self._exceeded = result, Exceeded()
        self._residual = self._bound = self._rise = self._fall = 0.0
        self._worst = 0
        self._invalid_policy_states = self._bytes_read = 0

    def note(self, of: _Partition) -> None:
        """Take in a partition."""
        claims, exceeded = self._result.solution.certificate, self._exceeded
        rise, fall, plain_rise, plain_fall = of.measured.tolist()
        normalised, plain = max(rise, fall), max(plain_rise, plain_fall)
        slack = of.rounding + normalised * of.apart
        exceeded.note("error_bound", normalised, claims.error_bound, slack)
        exceeded.note("error_upper", rise, claims.error_upper, slack)
        exceeded.note("error_lower", fall, -claims.error_lower, slack)
        exceeded.note("residual_bound", plain, claims.residual_bound, of.plain_rounding)
        self._rise, self._fall = max(self._rise, rise - slack), max(self._fall, fall - slack)
        self._residual = max(self._residual, plain)
        if normalised + of.rounding > self._bound:
            self._bound, self._worst = normalised + of.rounding, of.first_state
        self._invalid_policy_states += of.wrong_actions
        self._bytes_read += of.bytes_read

    def verification(self) -> Verification:
        """Everything, once all partitions were measured."""
        claims = self._result.solution.certificate
        self._exceeded.note("policy_loss_bound", self._rise + self._fall, claims.policy_loss_bound, 0.0)
        violated_claims = self._exceeded.names(self._result, self._invalid_policy_states)
        return Verification(
            holds=not violated_claims,
            violated_claims=violated_claims,
            residual=self._residual,
            error_bound=self._bound,
            claimed_bound=claims.error_bound,
            worst_state=self._worst,
            invalid_policy_states=self._invalid_policy_states,
            bytes_read=self._bytes_read,
        )


def _contraction(table: PartitionTable, discount: float) -> tuple[int, Contraction]:
    """The transitions of a table's longest row, and what its durations and row sums make of the discount."""
    sums, longest = _row_sums(table), _longest_row(table)
    largest = float(sums.max(initial=0.0)) if sums.size else 1.0
    least = table.durations.min(initial=np.inf) if table.durations.size else 1.0
    return longest, Contraction.of(discount, np.array([least]), np.array([largest]), np.array([longest]))


def _row_sums(table: PartitionTable) -> FloatArray:
    """float64 [<= m]: the sum of each row's stored probabilities, without the rows that end the process."""
    if table.n_rows == 0:
        return np.empty(0)
    total = sums_of_rows(table.probabilities, table.successors_per_action, table.successor_ptr.astype(np.int64))
    return total[np.isfinite(table.durations)] if table.durations.size else total


def read_checked(table: Table, p: int) -> tuple[PartitionTable, int]:
    """A table and the bytes read; StoreError where a store's small arrays are not what its chunks give."""
    part, n_bytes = table.read(p)
    findings = table.contradictions(part)
    if findings:
        raise StoreError(f"{table.name} contradicts itself: {findings[0]}; make the store again")
    return part, n_bytes


def compare_all(table: Table, threads: int) -> None:
    """Read all partitions as :func:`read_checked` does, each of the threads one at a time."""

    def compare(p: int) -> None:
        read_checked(table, p)

    for _ in in_order(compare, range(table.n_partitions), threads):
        pass


def _longest_row(table: PartitionTable) -> int:
    """Transitions of the table's longest row."""
    if table.successors_per_action:
        return table.successors_per_action if table.n_rows else 0
    return int(np.diff(table.successor_ptr.astype(np.int64)).max(initial=0))


def _reward_range(table: PartitionTable, action_counts: npt.NDArray[np.int64]) -> FloatArray:
    """float64 [1,2]: least and largest reward, values of terminal states included."""
    terminal = action_counts == 0
    paid = table.terminal_rewards[terminal] if table.terminal_rewards.size else np.zeros(int(terminal.sum()))
    every = [array for array in (table.rewards, paid) if array.size]
    return np.array([[min(float(array.min()) for array in every), max(float(array.max()) for array in every)]])


def from_original(table: Table, original: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of an array over states, from the source's order into the store's."""
    out = np.empty_like(original)
    for own, states in source_states(table):
        out[own] = original[states]
    return out
