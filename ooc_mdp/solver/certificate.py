"""What a solve hands back: the certificate from the bounds, values and policy in the source's order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.criterion import record_of
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Certificate, Outcome, Solution, with_ends
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.runtime.threads import map_on_threads, slices
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.history import HistoryRecorder, row_of
from ooc_mdp.solver.refinement import Refined, error_of

__all__ = ["FinalState", "conclude"]


@dataclass(frozen=True, slots=True)
class FinalState:
    """What is known of all partitions when a solve ends; a checkpoint may still be taken of it afterwards."""

    method: str
    device: str
    plan: MemoryPlan
    bounds: ResidualBounds
    target: Target
    value_size: float
    """Largest |V| at any time."""
    values: FloatArray
    """float64 [n], of the maximisation, in the store's order unless `placed`."""
    policy: npt.NDArray[np.int32]
    """int32 [n], likewise."""
    visited: npt.NDArray[np.bool_]
    """bool [P]; partitions that were read at least once."""
    statistics: SolveStatistics
    history: HistoryRecorder
    resident: int
    """Partitions in the cache."""
    placed: bool = False
    """Whether values and policy are new arrays in the source's order."""
    refined: Refined | None = None
    """Values that were measured beyond float64, if they were: they are returned in place of those above."""


def conclude(table: Table, options: SolveOptions, outcome: Outcome, end: FinalState) -> Solution:
    """The solution of a solve: its certificate, and values and policy in the source's order; `end` stays as it is."""
    refined = end.refined
    certificate = _of_bounds(end) if refined is None else _of_refinement(refined, end)
    values, policy, visited, placed = end.values, end.policy, end.visited, end.placed
    if refined is not None:
        values, policy, visited, placed = refined.values, refined.policy, np.ones_like(end.visited), False
    dirty = int(np.count_nonzero(end.target.dirty()))
    last = row_of(end.statistics, certificate.error_bound, certificate.residual_bound, dirty, end.resident)
    of_source = _source_values(table, values, placed)
    return Solution(
        outcome=outcome,
        method=end.method,
        device=end.device,
        criterion=record_of(options.question),
        certificate=with_ends(certificate, of_source, table.sense),
        statistics=end.statistics,
        values=of_source,
        policy=_source_policy(table, policy, visited, placed),
        memory_plan={"host": end.plan.host, "device": end.plan.device},
        history=end.history.end(last),
    )


def _of_bounds(end: FinalState) -> Certificate:
    """What the bounds on residuals prove."""
    bounds, target, value_size = end.bounds, end.target, end.value_size
    lower, upper = bounds.error_interval(value_size)
    return Certificate(
        error_bound=error_of(lower, upper),
        error_lower=lower,
        error_upper=upper,
        residual_bound=bounds.residual() + bounds.rounding(value_size, plain=True),
        rounding_bound=bounds.rounding(value_size),
        target=target.tolerance,
        stopping_rule="residual" if target.plain else "epsilon",
        policy_loss_bound=bounds.policy_loss_bound(value_size),
        proof="bounds on every partition's normalised Bellman residual, float64 rounding included",
    )


def _of_refinement(refined: Refined, end: FinalState) -> Certificate:
    """What was measured beyond float64."""
    return Certificate(
        error_bound=refined.error,
        error_lower=refined.lower,
        error_upper=refined.upper,
        residual_bound=refined.residual,
        rounding_bound=refined.rounding,
        target=refined.target,
        stopping_rule="residual" if end.target.plain else "epsilon",
        policy_loss_bound=refined.policy_loss,
        proof="normalised Bellman residuals of every state, measured in twice the precision of float64",
    )


def _source_values(table: Table, values: FloatArray, placed: bool) -> FloatArray:
    """The values of the maximisation, in the source's order and sign; those given stay as they are unless placed."""
    original = values if placed else table.to_source(values)
    if table.sense == "max":
        return original
    turned = original if placed or not np.may_share_memory(original, values) else np.empty_like(values)
    # Not -values: a value of 0 stays +0.
    map_on_threads(lambda part: np.subtract(0.0, original[part], out=turned[part]), slices(values.size))
    return turned


def _source_policy(
    table: Table, policy: npt.NDArray[np.int32], visited: npt.NDArray[np.bool_], placed: bool
) -> npt.NDArray[np.int32]:
    """The policy in the source's order, completed where nothing was read; one in the store's order stays as it is."""
    original: npt.NDArray[np.int32] = policy if placed else table.to_source(policy)
    unread = np.flatnonzero(~visited)
    if unread.size and not placed and np.may_share_memory(original, policy):
        original = original.copy()

    grid = table.facts.grid

    def complete(q: int) -> None:  # bounded without ever being read: any action is as good as the bound says
        actions = _first_actions(table, q)
        if grid is None:
            original[table.original_states(q)] = actions
        else:
            grid.place(original, int(table.facts.partition_ptr[q]), actions)

    map_on_threads(complete, unread.tolist())
    return original


def _first_actions(table: Table, q: int) -> npt.NDArray[np.int32]:
    """int32 [n]: the first action of each state of a partition, -1 where it has none; only to be read."""
    if table.facts.actions_per_state:
        return np.broadcast_to(np.int32(0), int(np.diff(table.facts.partition_ptr[q : q + 2])[0]))
    return np.where(table.action_counts(q) > 0, np.int32(0), np.int32(-1))
