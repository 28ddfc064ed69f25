"""Putting a run together: values, bounds, cache, stager and backend, before a method works on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Backend, CompilesRowKernels, ModelConstants, Resident
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.contraction import underflow_of
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import SolveStatistics
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.priority import Standing, make_priority
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.stager import Stager
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.eviction import eviction_rank
from ooc_mdp.solver.plan import LARGEST_VALUE, cache_budget, contraction_of, may_keep_rows, model_of, staging_depth
from ooc_mdp.solver.run import Run
from ooc_mdp.solver.session import Session

__all__ = ["bounds_of", "lay_out_again", "open_cache", "see_values", "start_run"]


def bounds_of(store: TableSource, options: SolveOptions) -> ResidualBounds:
    """Bounds of which nothing is known yet."""
    maximised = store.reward_range if store.sense == "max" else -store.reward_range[:, ::-1]
    underflow = underflow_of(store.fields["probabilities"].dtype)
    return ResidualBounds(store.coupling, contraction_of(store, options), maximised, store.max_successors, underflow)


def start_run(
    store: TableSource,
    options: SolveOptions,
    backend: Backend,
    model: ModelConstants,
    stack: ExitStack,
    owned: npt.NDArray[np.bool_] | None = None,
    session: Session | None = None,
) -> Run:
    """A run at its first values: the store's initial ones, or 0.

    Parameters
    ----------
    stack : gets what must be closed after the run.
    owned : bool [P]; the partitions that this run is to solve, where others solve the rest. Read at all times.
    session : by default one that saves nothing, shows nothing and knows no limit.

    Raises
    ------
    OptionsError : initial values are too large for float64 once they are squared.
    """
    p, session = store.n_partitions, session or Session()
    bounds = bounds_of(store, options)
    reward_range = bounds.reward_range
    values = _initial_values(store, model.sign)
    if values is None:
        bounds.from_zero_values(reward_range)
    backend.start(model, values, None)
    if isinstance(backend, CompilesRowKernels) and may_keep_rows(store, options):
        backend.load_row_kernels()
    budget = cache_budget(store, options, backend, model)
    entry, read = open_cache(store, backend, budget)
    cache: PartitionCache[Resident] = PartitionCache(budget, p, backend.release)
    stack.callback(cache.clear)
    stager = Stager(store, cache, backend, staging_depth(backend), read, entry)
    stack.enter_context(stager)
    target = Target(options, bounds, float(reward_range.max() - reward_range.min()), owned)
    visited = np.zeros(p, np.bool_)
    standing = Standing(cache.present, visited, lambda: target.wanted)
    run = Run(
        store=store,
        options=options,
        backend=backend,
        bounds=bounds,
        target=target,
        priority=make_priority(options.metric, reward_range[:, 1], store.coupling, standing),
        cache=cache,
        stager=stager,
        statistics=SolveStatistics(
            n_states=store.n_states,
            n_partitions=p,
            cache_bytes=cache.budget,
            table_bytes=int(store.partition_bytes.sum()),
            source=store.kind,
        ),
        pauses=session,
        note=session.note,
        largest=np.zeros(p),
        smallest=np.zeros(p),
        visited=visited,
        moved=np.zeros(p, np.bool_),
        owned=owned,
        heard_rise=np.zeros(0 if owned is None else p),
    )
    if options.eviction == "priority":
        cache.rank = eviction_rank(run.target, run.priority)
    see_values(run, values)
    return run


def _initial_values(store: TableSource, sign: float) -> FloatArray | None:
    """The store's, as values of the maximisation; None where it has none. OptionsError where they are too large."""
    if "initial_values" not in store.fields:
        return None
    values = np.empty(store.n_states)
    for q in range(store.n_partitions):
        own = slice(store.partition_ptr[q], store.partition_ptr[q + 1])
        values[own] = sign * store.read_field("initial_values", q)[0]
    size = max(float(values.max()), -float(values.min()))
    if not size <= LARGEST_VALUE:
        raise OptionsError(
            f"{store.name}: initial values up to {size:.3g} are above {LARGEST_VALUE:.0e}, and too large for "
            f"float64 once they are squared; start the solve from others, or from none"
        )
    return values


def see_values(run: Run, values: FloatArray | None) -> None:
    """Take the range of each partition's values from the value vector; None: they are 0."""
    if values is not None:
        starts = run.store.partition_ptr[:-1]
        run.largest[:] = np.maximum.reduceat(values, starts)
        run.smallest[:] = np.minimum.reduceat(values, starts)
    run.refresh_target()


def open_cache(
    store: TableSource, backend: Backend, budget: int
) -> tuple[int | None, Callable[[int], tuple[Any, int]]]:
    """Make room for partitions: what each takes of it, if that is not its table's size, and what reads one."""
    entry_bytes = backend.open_cache(budget)
    return entry_bytes, backend.reader(store) or store.loader(backend.name).read


def lay_out_again(run: Run) -> None:
    """A partition needs more room than slots have: empty the cache, and go on with larger ones."""
    run.stager.drop()
    run.cache.clear()
    run.backend.enlarge()
    run.cache.budget = cache_budget(run.store, run.options, run.backend, model_of(run.store, run.options))
    run.statistics.cache_bytes = run.cache.budget
    run.stager.entry_bytes, run.stager.read_table = open_cache(run.store, run.backend, run.cache.budget)
