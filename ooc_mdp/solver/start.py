"""Putting a solve together: values, bounds, cache, stager and backend, before a method works on it."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from ooc_mdp.backends.base import Backend, Resident
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import MAX_VALUE
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.priority import SchedulerView, make_priority
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.stager import Stager
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.history import HistoryRecorder
from ooc_mdp.solver.peers import NO_PEERS, Peers
from ooc_mdp.solver.plan import SolvePlan
from ooc_mdp.solver.state import SolveState
from ooc_mdp.solver.verify import from_original

__all__ = ["start"]


def start(
    table: Table,
    plan: SolvePlan,
    backend: Backend,
    stack: ExitStack,
    peers: Peers = NO_PEERS,
    values: FloatArray | None = None,
) -> SolveState:
    """A solve at its first values: those given, else the store's initial ones, else 0.

    Parameters
    ----------
    stack : gets what must be closed after the solve.
    values : float64 [n], in the order and sign of the source, as a result has them.

    Raises
    ------
    OptionsError : initial values are too large for float64 once they are squared.
    """
    options, p = plan.options, table.n_partitions
    bounds = ResidualBounds.of_model(plan.facts)
    if values is None:
        values = _initial_values(table, plan.facts.sign)
    else:
        values = plan.facts.sign * from_original(table, values)
    if values is None:
        bounds.at_zero_values(bounds.reward_range)
    layout = plan.layout
    cache: PartitionCache[Resident] = PartitionCache(layout.cache_bytes, p, backend.release, layout.places)
    stack.callback(cache.clear)
    current: list[SolveState] = []
    stack.callback(current.clear)  # else state and stager hold each other, and all memory, beyond the solve

    def entry_bytes(p: int) -> int:
        """What partition p takes of the cache; slots may have to be enlarged."""
        return int(current[0].plan.layout.entries[p])

    prefetch, smallest = table.loader(backend.name).prefetch, int(layout.entries.min())
    stager = stack.enter_context(Stager(cache, backend, entry_bytes, plan.staging_depth, prefetch, smallest))
    target = Target(options, bounds, float(np.ptp(bounds.reward_range)), peers.owned)
    visited = np.zeros(p, np.bool_)
    view = SchedulerView(cache.present, visited, lambda: target.threshold)
    counters = SolveStatistics.of_table(table.facts, cache.capacity)
    state = SolveState(
        table=table,
        plan=plan,
        backend=backend,
        bounds=bounds,
        target=target,
        priority=make_priority(options, plan.facts, bounds, target, view),
        cache=cache,
        stager=stager,
        counters=counters,
        visited=visited,
        history=HistoryRecorder(cache.loads),
        peers=peers,
    )
    current.append(state)
    state.start_backend(values, None)
    state.see_values(values)
    target.believe_small_arrays()
    return state


def _initial_values(table: Table, sign: float) -> FloatArray | None:
    """float64 [n] in the order of partitions, of the maximisation; None: all are 0."""
    if "initial_values" not in table.facts.dtypes:
        return None
    values = np.empty(table.n_states)
    for p in range(table.n_partitions):
        values[table.facts.partition_ptr[p] : table.facts.partition_ptr[p + 1]] = (
            sign * table.read_field("initial_values", p)[0]
        )
    size = max(float(values.max()), -float(values.min()))
    if not size <= MAX_VALUE:
        raise OptionsError(
            f"{table.name}: initial values up to {size:.3g} are above {MAX_VALUE:.0e}, and too large for float64 "
            f"once they are squared; start the solve from others, or from none"
        )
    return values
