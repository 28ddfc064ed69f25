"""`verify`: read the whole table once, in float64, and say what the values of a result really leave.

Nothing of the solver is trusted: not its bounds, not the store's row sums, not its priorities. Every row sum is added
up again, every state's residual is computed from the stored values. Undiscounted results are checked in
`ooc_mdp.methods.verify_undiscounted`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_mdp.bounds import Contraction, ResidualBounds
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.kernels.base import ModelConstants
from ooc_mdp.kernels.cpu import CpuBackend
from ooc_mdp.mdp import FloatArray
from ooc_mdp.methods.results import Result
from ooc_mdp.methods.verify_undiscounted import check_result
from ooc_mdp.partition import PartitionTable
from ooc_mdp.table_source import TableSource

__all__ = ["Verification", "verify"]


@dataclass(frozen=True, slots=True)
class Verification:
    """What one pass over the table found."""

    holds: bool
    """Whether the claim stands: no normalised residual above it by more than float64 rounding, and every policy entry
    is an action."""
    residual: float
    """Largest |opt_a Q_a - V| over all states."""
    error_bound: float
    """||V - V*|| is at most this: the largest normalised residual, rounding included; at discount 1 the distance to the
    lower and upper values, infinite where they are not inductive."""
    claimed_bound: float
    """What the result's certificate says."""
    worst_state: int
    """A state of the partition with the largest normalised residual (source numbering): that partition's first. At
    discount 1 a state where the check fails, else that with the largest error."""
    policy_errors: int
    """States whose policy names an action that they do not have, or none where they have one."""
    bytes_read: int

    def summary(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "holds": self.holds,
            "residual": self.residual,
            "error_bound": self.error_bound,
            "claimed_bound": self.claimed_bound,
            "worst_state": self.worst_state,
            "policy_errors": self.policy_errors,
            "bytes_read": self.bytes_read,
        }


def verify(store: TableSource, result: Result, watch: Watcher | None = None) -> Verification:
    """Stream the table once and compare.

    Raises
    ------
    OptionsError : the result belongs to another table.
    StoreError : a chunk is damaged, or a value is not finite.
    """
    if result.identity.get("fingerprint") != store.fingerprint:
        raise OptionsError(
            f"{result.path} was solved from another table than {store.name} holds (their fingerprints differ); give "
            f"the store, or the problem and options, that it was solved from"
        )
    sign = 1.0 if store.sense == "max" else -1.0
    gamma = result.solution.discount
    values = sign * from_original(store, result.solution.values)
    policy = from_original(store, result.solution.policy)
    if not np.isfinite(values).all():
        state = int(np.flatnonzero(~np.isfinite(result.solution.values))[0])
        raise StoreError(f"{result.path} has no finite value for state {state}: it is damaged; solve again")
    if gamma == 1:
        return _verify_total(store, result, sign, values, policy, watch)
    size = float(np.abs(values).max())
    row_sums = np.zeros(store.n_partitions)
    model = ModelConstants(
        n_states=store.n_states,
        largest_partition=int(np.diff(store.partition_ptr).max()),
        largest_halo=int(store.partition_halo.max()),
        discount=gamma,
        sign=sign,
        row_sums=row_sums,
    )
    backend = CpuBackend()
    backend.start(model, values, policy)
    claimed = result.solution.certificate.error_bound
    refuted = False
    residual = bound = 0.0
    worst = policy_errors = bytes_read = 0
    with ThreadPoolExecutor(1) as reader:
        following = reader.submit(store.read, 0)
        for p in range(store.n_partitions):
            table, n_bytes = following.result()
            if p + 1 < store.n_partitions:
                following = reader.submit(store.read, p + 1)
            bytes_read += n_bytes
            sums = _row_sums(table)
            k = int(store.max_successors[p])
            longest = float(sums.max(initial=0.0)) if sums.size else 1.0
            one = Contraction.of(
                gamma,
                np.array([table.durations.min(initial=np.inf) if table.durations.size else 1.0]),
                np.array([longest]),
                np.array([k]),
            )
            row_sums[p] = float(one.row_sum[0])
            own = policy[table.first_state : table.first_state + table.n_states]
            actions = store.action_counts(p)
            wrong = np.where(actions > 0, (own < 0) | (own >= actions), own != -1)
            policy_errors += int(wrong.sum())  # before measuring, which chooses where there is no policy
            measured = backend.measure(backend.admit(backend.prepare(table)), 0.0)[0].rounded_up()
            rounding = ResidualBounds.rounding_of(one, store.reward_range[p : p + 1], np.array([k]), size)
            normalised = max(measured.rise, measured.fall)
            refuted = refuted or normalised * (1 - 1e-9) - rounding > claimed
            residual = max(residual, measured.plain_rise, measured.plain_fall)
            if normalised + rounding > bound:
                bound, worst = normalised + rounding, int(store.original_states(p)[0])
            if watch is not None:
                watch("verify", p + 1, store.n_partitions)
    holds = not refuted and policy_errors == 0
    return Verification(holds, residual, bound, claimed, worst, policy_errors, bytes_read)


def _verify_total(
    store: TableSource,
    result: Result,
    sign: float,
    values: FloatArray,
    policy: np.ndarray[Any, Any],
    watch: Watcher | None,
) -> Verification:
    """:func:`verify` at discount 1, where the result brings a lower and an upper value of each state."""
    solution = result.solution
    low, high = (solution.lower, solution.upper) if sign > 0 else (solution.upper, solution.lower)
    if low is None or high is None:
        raise StoreError(f"{result.path} has no lower and upper values, which discount 1 needs; solve again")
    lower, upper = sign * from_original(store, low), sign * from_original(store, high)
    found, error, state, n_bytes = check_result(store, result, values, lower, upper, policy, watch)
    claimed = solution.certificate.error_bound
    holds = found.holds and error <= claimed * (1 + 1e-9)
    return Verification(holds, found.residual + found.rounding, error, claimed, state, found.wrong_actions, n_bytes)


def _row_sums(table: PartitionTable) -> FloatArray:
    """float64 [<= m]: the sum of each row's stored probabilities, without the rows that end the process."""
    m = table.n_rows
    if m == 0:
        return np.empty(0)
    p = table.probabilities.astype(np.float64)
    if table.successors_per_action:
        total: FloatArray = p.reshape(m, table.successors_per_action).sum(axis=1)
    else:
        total = np.add.reduceat(p, table.successor_ptr[:-1])
    return total[np.isfinite(table.durations)] if table.durations.size else total


def from_original(store: TableSource, original: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of an array over states, from the source's order into the store's."""
    out = np.empty_like(original)
    for p in range(store.n_partitions):
        own = slice(store.partition_ptr[p], store.partition_ptr[p + 1])
        out[own] = original[store.original_states(p)]
    return out
