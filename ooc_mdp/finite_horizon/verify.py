"""`verify` for finite horizons: backward induction once more, in NumPy, by the table alone.

Nothing of the solve is trusted but its final values, which must have the recorded SHA-256. The table is streamed once
for each stage, and once before, where it is compared with its small arrays. Each stage's policy is compared with the
best action; what the policies lose adds up over the stages as errors do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import TableRows
from ooc_mdp.errors import StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.finite_horizon.backends import check_durations
from ooc_mdp.finite_horizon.bounds import StageBounds
from ooc_mdp.finite_horizon.state import final_values
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.stages import StageResults
from ooc_mdp.model.table import Table
from ooc_mdp.runtime.memory import available_bytes, resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, SMALLER_PARTITIONS, MemoryPlan
from ooc_mdp.solver.verify import Exceeded, Verification, checked_table, compare_all, from_original
from ooc_mdp.solver.verify_memory import partitions_bytes, threads_with_room
from ooc_mdp.store.result import Result
from ooc_mdp.undiscounted.tables import Streamed

__all__ = ["verify"]

_DEPTH = 2
"""Partitions that are read at a time."""
_COPIES = 64
"""Bytes per state of values of two stages, a policy and a result's values in the store's order."""
_ROWS = 6
"""Times a partition's bytes that NumPy takes to back it up."""


def verify(
    table: Table,
    result: Result,
    watch: Watcher | None = None,
    *,
    other_store: bool = False,
    note: Callable[[str], None] | None = None,
) -> Verification:
    """:func:`ooc_mdp.solver.verify.verify` of a finite horizon.

    Raises
    ------
    StoreError : the result lacks its stages, or its final values are others than it records.
    """
    stages = result.solution.stages
    if stages is None:
        raise StoreError(f"{result.path} has no policies of its stages; solve again with an output")
    table.load_code()
    largest, whole = int(table.facts.partition_bytes.max()), int(table.facts.partition_bytes.sum())
    least = (_DEPTH + 1) * largest
    spare = (available_bytes() or 0) // 2 - _COPIES * table.n_states
    cache = max(least, min(whole, spare))
    backed_up = cache + _ROWS * largest + _DEPTH * table.loader("cpu").scratch_bytes

    def plan_of(threads: int) -> MemoryPlan:
        host = {
            PROCESS: resident_bytes(),
            "copies of the result": _COPIES * table.n_states,
            "partitions": max(backed_up, partitions_bytes(table, threads)),
        }
        return MemoryPlan(host, {})

    threads, plan = threads_with_room(table, plan_of)
    plan.check_available(f"the verification of {result.path}", SMALLER_PARTITIONS)
    if note is not None:
        note(plan.describe())
    with checked_table(table, result, other_store) as checked:
        check_durations(checked)
        if checked.facts.stored_fields:
            compare_all(checked, threads)
        with Streamed(checked, cache, _DEPTH) as tables:
            return _Induction(checked, result, stages, tables).verification(watch)


@dataclass(slots=True)
class _Stage:
    """What one stage showed."""

    loss: float = 0.0
    """Most that an action of the policy is worse than the best one."""
    wrong_actions: int = 0


@dataclass(slots=True)
class _Induction:
    """Backward induction beside a result."""

    table: Table
    result: Result
    stages: StageResults
    tables: Streamed
    exceeded: Exceeded = field(default_factory=Exceeded)
    wrong_actions: int = 0
    error: float = 0.0
    worst: int = 0

    def verification(self, watch: Watcher | None) -> Verification:
        """Go through all stages."""
        table, stages, solution = self.table, self.stages, self.result.solution
        bounds = StageBounds(table.facts, stages.count, solution.discount)
        values = final_values(table, self._final())
        bounds.begin(values, table.facts.partition_ptr)
        lost = most_lost = 0.0
        self._compare(stages.count, values, bounds)
        for done in range(stages.count):
            stage = stages.count - done - 1
            values, found = self._back_up(values, stage, done, bounds, watch)
            lost = bounds.step_of_all(lost) + found.loss
            most_lost = max(most_lost, lost)
            self.wrong_actions += found.wrong_actions
            self._compare(stage, values, bounds)
        claims, own = solution.certificate, float(bounds.of_stages.max())
        # Two summations of a row differ by their rounding, in which a best action may lie.
        self.exceeded.note("policy_loss_bound", lost, claims.policy_loss_bound, 4 * own)
        self.exceeded.note("error_bound", float(stages.errors.max()), claims.error_bound, 0.0)
        violated = self.exceeded.names(self.result, self.wrong_actions)
        return Verification(
            holds=not violated,
            violated_claims=violated,
            residual=self.error,
            error_bound=self.error + own,
            claimed_bound=claims.error_bound,
            worst_state=self.worst,
            invalid_policy_states=self.wrong_actions,
            bytes_read=self.tables.cache.statistics.bytes_read,
        )

    def _final(self) -> FloatArray | None:
        """The final values that were given, which are what the result records."""
        due = self.result.identity.get("final_values")
        found = None if self.stages.read_final is None else self.stages.read_final()
        digest = None if found is None else hashlib.sha256(np.ascontiguousarray(found, "<f8").data).hexdigest()
        if digest != due:
            raise StoreError(
                f"{self.result.path} records final values with the SHA-256 {due}, and has some with {digest}: it is "
                f"damaged; solve again"
            )
        return found

    def _compare(self, stage: int, values: FloatArray, bounds: StageBounds) -> None:
        """Compare what the result has of a stage with values that were computed here."""
        own = float(bounds.of_stages[stage])
        for claimed in self._claimed(stage):
            theirs = self._sign * from_original(self.table, claimed)
            if not np.isfinite(theirs).all():
                raise StoreError(f"{self.result.path} has a value of stage {stage} that is not finite: it is damaged")
            apart = values - theirs
            error = float(np.abs(apart).max())
            self.exceeded.note("stage_error", error, float(self.stages.errors[stage]), own)
            self.exceeded.note("error_upper", float(apart.max()), self.result.solution.certificate.error_upper, own)
            self.exceeded.note("error_lower", float(-apart.min()), -self.result.solution.certificate.error_lower, own)
            if error > self.error:
                self.error, self.worst = error, self._original(int(np.abs(apart).argmax()))

    def _claimed(self, stage: int) -> list[FloatArray]:
        """Values of a stage that the result has, in the source's order: none, or once, or twice of the first stage."""
        kept = [self.stages.values(stage)] if stage in self.stages.kept else []
        return [*kept, self.result.solution.values] if stage == 0 else kept

    @property
    def _sign(self) -> float:
        return 1.0 if self.table.sense == "max" else -1.0

    def _original(self, state: int) -> int:
        """The source's number of a state."""
        p = int(np.searchsorted(self.table.facts.partition_ptr, state, side="right")) - 1
        return int(self.table.original_states(p)[state - int(self.table.facts.partition_ptr[p])])

    def _back_up(
        self, following: FloatArray, stage: int, done: int, bounds: StageBounds, watch: Watcher | None
    ) -> tuple[FloatArray, _Stage]:
        """The values of a stage, and what its policy loses against them."""
        policy = from_original(self.table, self.stages.policy(stage))
        if stage == 0 and not np.array_equal(policy, from_original(self.table, self.result.solution.policy)):
            self.exceeded.note("policy", 1.0, 0.0, 0.0)
        values, found = following.copy(), _Stage()
        n_partitions = self.table.n_partitions
        for i, (p, rows, _) in enumerate(self.tables.in_order(np.ones(n_partitions, np.bool_))):
            own = slice(rows.first, rows.first + rows.n)
            _back_up_partition(rows, following, values[own], policy[own], (self._discount, self._sign), found)
            bounds.advance(p, done, float(np.abs(values[own]).max(initial=0.0)))
            if watch is not None:
                watch("verify", done * n_partitions + i + 1, self.stages.count * n_partitions)
        return values, found

    @property
    def _discount(self) -> float:
        return self.result.solution.discount


def _back_up_partition(
    rows: TableRows,
    following: FloatArray,
    values: FloatArray,
    policy: npt.NDArray[np.int32],
    weights: tuple[float, float],
    found: _Stage,
) -> None:
    """Write the values of a partition's states with actions, and note what its policy loses.

    Parameters
    ----------
    following : of all states, in the stage after.
    values, policy : of the partition's states; those of states without actions stay.
    weights : discount and sign.
    """
    discount, sign = weights
    action_ptr = _pointers(rows.action_ptr, rows.n, rows.actions)
    successor_ptr = _pointers(rows.successor_ptr, rows.rewards.size, rows.width)
    counts = np.diff(action_ptr)
    wrong = np.where(counts > 0, (policy < 0) | (policy >= counts), policy != -1)
    found.wrong_actions += int(wrong.sum())
    if rows.rewards.size == 0:
        return
    local = np.concatenate([following[rows.first : rows.first + rows.n], following[rows.halo]])
    products = rows.probabilities.astype(np.float64) * local[rows.successors]
    expected = np.add.reduceat(np.append(products, 0.0), successor_ptr[:-1])
    expected[np.diff(successor_ptr) == 0] = 0.0
    if rows.durations.size:
        expected[np.isinf(rows.durations)] = 0.0
    q = sign * rows.rewards.astype(np.float64) + discount * expected
    acts = np.flatnonzero(counts > 0)
    values[acts] = np.maximum.reduceat(q, action_ptr[acts])
    right = acts[~wrong[acts]]
    lost = values[right] - q[action_ptr[right] + policy[right]]
    found.loss = max(found.loss, float(lost.max(initial=0.0)))


def _pointers(given: npt.NDArray[Any], count: int, uniform: int) -> IntArray:
    """int64 [count + 1]: where the parts begin, each of so many where that is uniform."""
    return np.arange(count + 1) * uniform if uniform else given.astype(np.int64)
