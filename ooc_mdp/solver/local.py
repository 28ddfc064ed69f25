"""`solve`: put a run together, let a method work, and say what is proved.

store ─▶ values, bounds, plan ─▶ method (vi | p-eva | exact p-eva) ─▶ certificate, Solution, result on disk
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from ooc_mdp.backends.base import Backend, SlotsTooSmall, SweepsAside
from ooc_mdp.backends.select import select_backend
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import SolveOptions
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
from ooc_mdp.store import open_store
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.store.trace import Trace, check_trace

__all__ = ["solve"]

_METHODS: dict[str, Callable[[Run], None]] = {
    "auto": auto,
    "vi": value_iteration,
    "p-eva": p_eva,
    "policy-iteration": policy_iteration,
}


def solve(
    store: TableSource | Path | str,
    options: SolveOptions,
    *,
    output: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    trace: Path | None = None,
    watch: SolveWatcher | None = None,
    announce: Callable[[MemoryPlan], None] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve the discounted MDP of a store to a proved error, through a cache of bounded size.

    Parameters
    ----------
    store : an open source of tables, or a store's path.
    options : discount, target, method, cache, device, limits.
    output : where the result is written (whole or not at all); checkpoints lie beside it while it is worked on.
    resume : go on from the output's checkpoint, or from the output itself; from the beginning if there is neither.
    overwrite : replace an output or trace that exists.
    trace : CSV file that gets every access.
    watch : told of progress a few times a second.
    announce : given the memory plan before anything large is allocated.
    note : told in a sentence where a resumed solve begins, and of what makes this one slow.

    Returns
    -------
    Solution : whatever the outcome; values and policy in the source's state order.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : before any work, or when the disk fails.
    BusyError : before any work, where another process writes the output or reads what is there.
    """
    opened = open_store(store) if isinstance(store, (str, Path)) else store
    with open_output(opened, options.discount, output, resume=resume, overwrite=overwrite, note=note) as place:
        if trace is not None:
            check_trace(trace, overwrite, output)
        finished = place.finished(options)
        if finished is not None:
            return finished
        return _solve(opened, options, place, trace, watch, announce, note)


def _solve(
    opened: TableSource,
    options: SolveOptions,
    output: Output,
    trace: Path | None,
    watch: SolveWatcher | None,
    announce: Callable[[MemoryPlan], None] | None,
    note: Callable[[str], None],
) -> Solution:
    """:func:`solve` with the output checked and locked."""
    check_size(opened, options)
    backend = select_backend(options.device, options.sweep_order, options.kernel)
    model = model_of(opened, options)
    writes = output.path is not None
    give_memory_back()
    warm_up(opened, options, backend, model, writes=writes)
    plan = plan_memory(opened, options, backend, model, writes=writes)
    if announce is not None:
        announce(plan)
    _warn_of_strong_coupling(opened, options, backend, note)
    with ExitStack() as stack:
        stack.callback(backend.close)
        session = Session(
            output,
            watch=watch,
            note=note,
            interrupted=stack.enter_context(signals()),
            time_limit=options.time_limit,
            checkpoint_interval=options.checkpoint_interval,
        )
        run = start_run(opened, options, backend, model, stack, session=session)
        session.begin(_resume(run, output))
        if trace is not None:
            facts = {**output.identity, "method": method_name(options), "partitions": opened.n_partitions}
            run.trace = stack.enter_context(Trace(trace, facts))
        take = partial(snapshot_of, run)
        with output.saved_on_damage(take), short_turns(run.backend.loads_beside):
            outcome = _work(run)
        run.stager.close()
        return output.finish(opened, outcome, take, lambda: conclude(opened, options, outcome, _end_of(run, plan)))


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
