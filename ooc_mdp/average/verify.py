"""`verify` for average rewards: the interval of a result, measured anew by the table and the values alone.

    min_s x of the policy's row  <=  gain of the policy <= g*(s)  <=  max_s max_a x_a(s),    x = r + P h - h

The same is true of x = r, which is h = 0, so that each end is the better one of the two.
One pass over the table in NumPy, which shares no loop with the solver; each sum has a bound on its rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ooc_mdp.average.engine import check_table
from ooc_mdp.average.verify_by_state import BY_STATE_BYTES, load_code, streamed_bytes, verify_by_state
from ooc_mdp.errors import OptionsError
from ooc_mdp.events import Watcher
from ooc_mdp.model.contraction import UNDERFLOW, UNIT_ROUNDOFF
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Table
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, SMALLER_PARTITIONS, MemoryPlan
from ooc_mdp.runtime.threads import in_order
from ooc_mdp.solver.verify import Exceeded, Verification, checked_table, read_checked, values_and_policy
from ooc_mdp.solver.verify_memory import partitions_bytes, threads_with_room
from ooc_mdp.store.result import Result

__all__ = ["verify"]

_TRANSITION_BYTES = 48
"""Of what is computed of a transition: successor, probability, difference, product, its size, sums."""


def verify(
    table: Table,
    result: Result,
    watch: Watcher | None = None,
    *,
    other_store: bool = False,
    note: Callable[[str], None] | None = None,
) -> Verification:
    """:func:`ooc_mdp.solver.verify.verify` of an average reward, whose results have relative values."""
    by_state = result.solution.value_lower is not None
    table.load_code()
    if by_state:
        load_code(table)

    def plan_of(threads: int) -> MemoryPlan:
        partitions = partitions_bytes(table, threads, per_transition=_TRANSITION_BYTES)
        host = {PROCESS: resident_bytes(), "values and policy": 20 * table.n_states, "partitions": partitions}
        if by_state:
            host |= {"bounds and analysis": BY_STATE_BYTES * table.n_states, "cache": streamed_bytes(table)}
        return MemoryPlan(host, {})

    threads, plan = threads_with_room(table, plan_of)
    plan.check_available(f"the verification of {result.path}", SMALLER_PARTITIONS)
    if note is not None:
        note(plan.describe())
    with checked_table(table, result, other_store) as checked:
        check_table(checked)
        if by_state:
            return verify_by_state(checked, result, watch, _advantages)
        return _verify(checked, result, watch, threads)


def _verify(table: Table, result: Result, watch: Watcher | None, threads: int) -> Verification:
    values, policy = values_and_policy(table, result)
    sign = 1.0 if table.sense == "max" else -1.0
    low, high, rounding, wrong, n_bytes, worst, apart = np.inf, -np.inf, 0.0, 0, 0, 0, -np.inf
    least, largest = np.inf, -np.inf
    middle = 0.5 * sign * (result.solution.certificate.lower + result.solution.certificate.upper)

    def measure(p: int) -> tuple[_Measured, int]:
        part, read = read_checked(table, p)
        own = slice(part.first_state, part.first_state + part.n_states)
        return _Measured.of(table, part, values, policy[own], sign), read

    for p, (found, read) in enumerate(in_order(measure, range(table.n_partitions), threads)):
        low, high = min(low, found.low), max(high, found.high)
        least, largest = min(least, found.least), max(largest, found.largest)
        rounding, wrong, n_bytes = max(rounding, found.rounding), wrong + found.wrong, n_bytes + read
        if max(found.high - middle, middle - found.low) > apart:
            apart = max(found.high - middle, middle - found.low)
            worst = int(table.original_states(p)[0])
        if watch is not None:
            watch("verify", p + 1, table.n_partitions)
    ends = sign * np.array([max(low, least), min(high, largest)])
    return _verification(result, ends, rounding, wrong, worst, n_bytes)


def _verification(
    result: Result, ends: FloatArray, rounding: float, wrong: int, worst: int, n_bytes: int
) -> Verification:
    """Compare with what the result claims; `ends` are those of the measured interval, in the source's sign."""
    claims = result.solution.certificate
    lower, upper = float(ends.min()), float(ends.max())
    half = 0.5 * (upper - lower) + rounding
    violated = []
    # The claim holds for the exact x, which are within `rounding` of those that were computed.
    if not claims.lower <= lower + rounding:
        violated.append("lower")
    if not claims.upper >= upper - rounding:
        violated.append("upper")
    due = float(np.nextafter(claims.upper - claims.lower, np.inf))
    if not due <= 2 * np.nextafter(claims.error_bound, np.inf):
        violated.append("error_bound")
    if not due <= np.nextafter(claims.policy_loss_bound, np.inf):
        violated.append("policy_loss_bound")
    exceeded = Exceeded()
    exceeded.note("residual_bound", half, claims.residual_bound, 2 * rounding)
    violated += exceeded.names(result, wrong)
    return Verification(
        holds=not violated,
        violated_claims=tuple(violated),
        residual=half,
        error_bound=half,
        claimed_bound=claims.error_bound,
        worst_state=worst,
        invalid_policy_states=wrong,
        bytes_read=n_bytes,
        gain=(float(np.nextafter(lower - rounding, -np.inf)), float(np.nextafter(upper + rounding, np.inf))),
    )


class _Measured:
    """Of one partition, of the maximisation: the least x of the policy, the largest x, the same of the rewards, the
    largest rounding, and how many entries of the policy are no action of their state."""

    def __init__(self, low: float, high: float, rewards: tuple[float, float], rounding: float, wrong: int) -> None:
        self.low, self.high, self.rounding, self.wrong = low, high, rounding, wrong
        self.least, self.largest = rewards

    @classmethod
    def of(
        cls, table: Table, part: PartitionTable, values: FloatArray, policy: npt.NDArray[np.int32], sign: float
    ) -> _Measured:
        """Measure a partition at the values; OptionsError where a state has no action."""
        actions = table.action_counts(part.index)
        if not actions.all():
            state = int(table.original_states(part.index)[int(np.argmin(actions))])
            raise OptionsError(f"state {state} of {table.name} has no action: there is no long-run average there")
        first_rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(actions)])
        x, error = _advantages(part, np.repeat(np.arange(part.n_states), actions), values, sign)
        wrong = (policy < 0) | (policy >= actions)
        chosen = first_rows[:-1] + np.where(wrong, 0, policy)
        rewards = sign * part.rewards.astype(np.float64)
        range_of_rewards = float(rewards[chosen].min()), float(rewards.max())
        return cls(float(x[chosen].min()), float(x.max()), range_of_rewards, float(error.max()), int(wrong.sum()))


def _advantages(
    part: PartitionTable, states: IntArray, values: FloatArray, sign: float
) -> tuple[FloatArray, FloatArray]:
    """float64 [m] twice: x of each row, and at least its rounding.

    Parameters
    ----------
    states : int64 [m]; the state of each row, counted in the partition.
    """
    m = part.n_rows
    if part.successors_per_action:
        ptr = np.arange(m + 1, dtype=np.int64) * part.successors_per_action
    else:
        ptr = part.successor_ptr.astype(np.int64)
    lengths = np.diff(ptr)
    numbers = np.concatenate([part.first_state + np.arange(part.n_states), part.halo])
    own = values[part.first_state + states]
    change = part.probabilities * (values[numbers[part.successors]] - np.repeat(own, lengths))
    mass = np.add.reduceat(part.probabilities.astype(np.float64), ptr[:-1])
    moved, size = (np.add.reduceat(terms, ptr[:-1]) / mass for terms in (change, np.abs(change)))
    rewards = part.rewards.astype(np.float64)
    error = 2.02 * (lengths + 8) * UNIT_ROUNDOFF * (np.abs(rewards) + size) + UNDERFLOW
    return sign * rewards + moved, error
