"""`solve`: put a run together, let a method work, and say what is proved.

store ─▶ values, bounds, plan ─▶ method (vi | p-eva | exact p-eva) ─▶ certificate, Solution, result on disk
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import numpy as np

from ooc_mdp.backends.base import Backend, SlotsTooSmall, SweepsAside
from ooc_mdp.backends.select import select_backend
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.runtime.memory import give_memory_back
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.runtime.signals import signals
from ooc_mdp.scheduling.priority import H2
from ooc_mdp.scheduling.stager import short_turns
from ooc_mdp.solver.certificate import FinalState, conclude, method_name
from ooc_mdp.solver.methods.exact_p_eva import exact_p_eva
from ooc_mdp.solver.methods.handover import auto
from ooc_mdp.solver.methods.p_eva import p_eva
from ooc_mdp.solver.methods.policy_iteration import policy_iteration
from ooc_mdp.solver.methods.value_iteration import value_iteration
from ooc_mdp.solver.output import Output, open_output
from ooc_mdp.solver.plan import (
    check_size,
    model_of,
    partitions_read,
    plan_memory,
    reads_everywhere,
    strongly_coupled,
    warm_up,
)
from ooc_mdp.solver.run import Run
from ooc_mdp.solver.session import Session, StoppedEarly
from ooc_mdp.solver.snapshot import OPTIONAL_ARRAYS, arrays_of, snapshot_of
from ooc_mdp.solver.start import lay_out_again, open_cache, see_values, start_run
from ooc_mdp.store.checkpoint import checkpoint_path

__all__ = ["solve"]

_METHODS: dict[str, Callable[[Run], None]] = {
    "auto": auto,
    "vi": value_iteration,
    "p-eva": p_eva,
    "policy-iteration": policy_iteration,
}


def solve(
    table: TableSource,
    options: SolveOptions,
    run: RunOptions | None = None,
    *,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve the discounted MDP of a table to a proved error, through a cache of bounded size.

    Parameters
    ----------
    table : an open source of tables.
    options : discount, target, method, cache, device.
    run : output, trace, limits; by default none of them.
    watch : called with progress a few times a second.
    note : called with sentences: the memory plan before anything large is allocated, where a resumed solve begins, and
        what makes this one slow.

    Returns
    -------
    Solution : whatever the outcome; values and policy in the source's state order.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : before any work, or when the disk fails.
    BusyError : before any work, where another process writes the output or reads what is there.
    """
    run = run or RunOptions()
    with open_output(table, options.discount, run, note) as output:
        finished = output.finished(options)
        if finished is not None:
            return finished
        return _solve(table, options, run, output, watch, note)


def _solve(
    table: TableSource,
    options: SolveOptions,
    run: RunOptions,
    output: Output,
    watch: SolveWatcher | None,
    note: Callable[[str], None],
) -> Solution:
    """:func:`solve` with the output checked and locked."""
    check_size(table, options)
    backend = select_backend(options.device, options.sweep_order, options.kernel)
    model = model_of(table, options)
    writes = output.path is not None
    give_memory_back()
    warm_up(table, options, backend, model, writes=writes)
    plan = plan_memory(table, options, backend, model, writes=writes)
    note(plan.describe())
    _warn_of_strong_coupling(table, options, backend, note)
    with ExitStack() as stack:
        stack.callback(backend.close)
        session = Session(output, run, watch=watch, note=note, interrupted=stack.enter_context(signals()))
        state = start_run(table, options, backend, model, stack, session=session)
        session.begin(_resume(state, output))
        state.trace = stack.enter_context(output.trace(method_name(options), table.n_partitions))
        take = partial(snapshot_of, state)
        with output.saved_on_damage(take), short_turns(backend.loads_beside):
            outcome = _work(state)
        state.stager.close()
        return output.finish(table, outcome, take, lambda: conclude(table, options, outcome, _end_of(state, plan)))


def _warn_of_strong_coupling(
    store: TableSource, options: SolveOptions, backend: Backend, note: Callable[[str], None]
) -> None:
    """Say so where partitions read so many others that visiting them by priority is known to be slow."""
    otherwise = isinstance(backend, SweepsAside) and reads_everywhere(store) and not options.exact_priorities
    if options.way == "p-eva" and strongly_coupled(store) and not otherwise:
        note(
            f"a partition reads {partitions_read(store):.0f} of the {store.n_partitions - 1} others on average: where "
            f"partitions are so strongly coupled, policy iteration (--method policy-iteration, or auto) reads far less "
            f"than p-eva"
        )


def _work(run: Run) -> Outcome:
    method = _METHODS[run.options.way]
    if run.options.exact_priorities:
        method = exact_p_eva
    run.history.row(run.row())
    while True:
        try:
            method(run)
        except StoppedEarly as stop:
            return stop.outcome
        except SlotsTooSmall:
            lay_out_again(run)
        else:
            break
    return Outcome.RESIDUAL if run.target.plain else Outcome.PROVED


def _resume(run: Run, output: Output) -> float:
    """Continue from the output's checkpoint, if there is one; seconds of the runs before it."""
    saved = output.checkpoint(arrays_of(run), OPTIONAL_ARRAYS)
    if saved is None or output.path is None:
        return 0.0
    arrays, statistics = saved.arrays, saved.statistics
    # Nobody has chosen actions where no run has been yet, whatever a backend keeps in their place.
    arrays["policy"][np.repeat(~arrays["visited"], np.diff(run.store.partition_ptr))] = -1
    run.backend.start(model_of(run.store, run.options), arrays["values"], arrays["policy"])
    run.stager.entry_bytes, run.stager.read_table = open_cache(run.store, run.backend, run.cache.budget)
    run.bounds.restore(arrays)
    run.visited[:] = arrays["visited"]
    if isinstance(run.priority, H2) and "inflow" in arrays:
        run.priority.value[:] = arrays["inflow"]
    run.saved_backups = statistics.backups
    run.value_size = float(arrays["value_size"])
    statistics.cache_bytes, statistics.cache_peak_bytes = run.cache.budget, 0  # of this cache
    run.statistics = statistics
    run.cache.statistics.go_on_from(statistics)
    run.stager.load_seconds = statistics.load_seconds
    run.history.restore(arrays, checkpoint_path(output.path))
    see_values(run, arrays["values"])
    return statistics.seconds


def _end_of(run: Run, plan: MemoryPlan) -> FinalState:
    """What a run knows when it is over."""
    run.collect()
    return FinalState(
        method=method_name(run.options) + (f": {', then '.join(run.taken)}" if run.taken else ""),
        device=run.backend.name,
        plan=plan,
        bounds=run.bounds,
        target=run.target,
        value_size=run.value_size,
        values=run.backend.values(),
        policy=run.backend.policy(),
        visited=run.visited,
        statistics=run.statistics,
        history=run.history,
        resident=int(np.count_nonzero(run.cache.present)),
    )
