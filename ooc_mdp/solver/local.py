"""`solve`: put a run together, let a method work, and say what is proved.

store ─▶ values, bounds, plan ─▶ method (vi | p-eva | exact p-eva) ─▶ certificate, Solution, result on disk
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Backend, SlotsTooSmall, SweepsAside
from ooc_mdp.backends.select import select_backend
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome, Solution, SolveStatistics
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory import give_memory_back
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.runtime.signals import signals
from ooc_mdp.scheduling.priority import H2
from ooc_mdp.scheduling.stager import short_turns
from ooc_mdp.solver.certificate import conclude, method_name, turn_signs
from ooc_mdp.solver.methods.exact_p_eva import exact_p_eva
from ooc_mdp.solver.methods.handover import auto
from ooc_mdp.solver.methods.p_eva import p_eva
from ooc_mdp.solver.methods.policy_iteration import policy_iteration
from ooc_mdp.solver.methods.value_iteration import value_iteration
from ooc_mdp.solver.plan import plan_memory, warm_up
from ooc_mdp.solver.resume import finished_before
from ooc_mdp.solver.run import Run
from ooc_mdp.solver.session import StoppedEarly
from ooc_mdp.solver.start import lay_out_again, open_cache, see_values, start_run
from ooc_mdp.store import open_store
from ooc_mdp.store.checkpoint import (
    check_arrays,
    checkpoint_on_damage,
    checkpoint_path,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    saved_unless_written,
)
from ooc_mdp.store.output_lock import locked_output
from ooc_mdp.store.result import check_output, write_result
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
    with opened.hold(), locked_output(output, partial(check_output, replace=resume or overwrite)):
        return _solve(
            opened,
            options,
            output=output,
            resume=resume,
            overwrite=overwrite,
            trace=trace,
            watch=watch,
            announce=announce,
            note=note,
        )


def _solve(
    opened: TableSource,
    options: SolveOptions,
    *,
    output: Path | None,
    resume: bool,
    overwrite: bool,
    trace: Path | None,
    watch: SolveWatcher | None,
    announce: Callable[[MemoryPlan], None] | None,
    note: Callable[[str], None],
) -> Solution:
    """:func:`solve` with the output checked and locked."""
    if trace is not None:
        check_trace(trace, overwrite, output)
    identity = {"fingerprint": opened.fingerprint, "sense": opened.sense, "discount": options.discount}
    model = ModelFacts.of(opened, options.discount)
    backend = select_backend(options.device, options.sweep_order, options.kernel)
    give_memory_back()
    warm_up(opened, options, backend, model, writes=output is not None)
    plan = plan_memory(opened, options, backend, model, writes=output is not None)
    if announce is not None:
        announce(plan)
    _warn_of_strong_coupling(model, options, backend, note)
    with ExitStack() as stack:
        stack.callback(backend.close)
        run = start_run(opened, options, backend, model, stack)
        if resume and output is not None:
            finished = _take_up(run, output, identity, note)
            if finished is not None:
                return finished
        if output is not None:
            where = checkpoint_path(output)
            run.pauses.save = lambda: save_checkpoint(where, identity, _kept(run), _statistics(run))
        if trace is not None:
            facts = {**identity, "method": method_name(options), "partitions": opened.n_partitions}
            run.trace = stack.enter_context(Trace(trace, facts))
        run.note = run.pauses.note = note
        run.pauses.watch = watch
        run.pauses.interrupted = stack.enter_context(signals())
        with checkpoint_on_damage(lambda: run.pauses.save), short_turns(run.backend.loads_beside):
            outcome = _work(run)
        run.stager.close()
        if not outcome.proved and run.pauses.save is not None:
            run.pauses.save()  # before the solution is made of what it saves
        values = backend.values()
        solution = conclude(
            opened,
            options,
            outcome,
            method=method_name(options) + (f": {', then '.join(run.taken)}" if run.taken else ""),
            device=backend.name,
            bounds=run.bounds,
            target=run.target,
            value_size=run.value_size,
            values=values,
            policy=backend.policy(),
            visited=run.visited,
            statistics=_statistics(run),
            plan=plan,
            history=run.history,
            resident=int(np.count_nonzero(run.cache.present)),
        )
        if output is not None and outcome.proved:
            with saved_unless_written(run.pauses.save, lambda: turn_signs(values) if opened.sense == "min" else None):
                write_result(output, opened, solution, identity, replace=resume or overwrite)
            remove_checkpoint(checkpoint_path(output))
    return solution


def _warn_of_strong_coupling(
    model: ModelFacts, options: SolveOptions, backend: Backend, note: Callable[[str], None]
) -> None:
    """Say so where partitions read so many others that visiting them by priority is known to be slow."""
    otherwise = isinstance(backend, SweepsAside) and model.densely_coupled and not options.exact_priorities
    if options.way == "p-eva" and model.strongly_coupled and not otherwise:
        note(
            f"a partition reads {model.mean_partitions_read:.0f} of the {model.n_partitions - 1} others on average: "
            f"where partitions are so strongly coupled, policy iteration (--method policy-iteration, or auto) reads "
            f"far less than p-eva"
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


def _take_up(run: Run, output: Path, identity: dict[str, Any], note: Callable[[str], None]) -> Solution | None:
    """Continue from the checkpoint; return the result itself where it is there and good enough."""
    where = checkpoint_path(output)
    saved = load_checkpoint(where, identity)
    if saved is None:
        return finished_before(output, identity, run.options, note)
    arrays, statistics = saved
    check_arrays(where, arrays, _state(run), optional=frozenset({"inflow"}))
    note(f"going on from the checkpoint {where}, after {statistics.seconds:.1f} s of work")
    # Nobody has chosen actions where no run has been yet, whatever a backend keeps in their place.
    arrays["policy"][np.repeat(~arrays["visited"], np.diff(run.store.partition_ptr))] = -1
    run.backend.start(run.facts, arrays["values"], arrays["policy"])
    run.stager.entry_bytes, run.stager.read_table = open_cache(run.store, run.backend, run.cache.budget)
    run.bounds.restore(arrays)
    run.visited[:] = arrays["visited"]
    if isinstance(run.priority, H2) and "inflow" in arrays:
        run.priority.value[:] = arrays["inflow"]
    run.pauses.earlier_seconds, run.saved_backups = statistics.seconds, statistics.backups
    run.value_size = float(arrays["value_size"])
    statistics.cache_bytes, statistics.cache_peak_bytes = run.cache.budget, 0  # of this cache
    run.statistics = statistics
    run.cache.statistics.go_on_from(statistics)
    run.stager.load_seconds = statistics.load_seconds
    run.history.restore(arrays, where)
    see_values(run, arrays["values"])
    return None


def _state(run: Run) -> dict[str, npt.NDArray[Any]]:
    state: dict[str, npt.NDArray[Any]] = {
        "values": run.backend.values(),
        "policy": run.backend.policy(),
        "visited": run.visited,
        "value_size": np.array(run.value_size),
        **run.bounds.arrays(),
    }
    if isinstance(run.priority, H2):
        state["inflow"] = run.priority.value
    return state


def _kept(run: Run) -> dict[str, npt.NDArray[Any]]:
    """What a checkpoint holds: what the solve goes on from, and its history so far."""
    run.history.row(run.row())
    return {**_state(run), **run.history.arrays()}


def _statistics(run: Run) -> SolveStatistics:
    run.collect()
    return run.statistics
