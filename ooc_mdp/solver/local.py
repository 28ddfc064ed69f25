"""`solve` in this process: plan, start, drive, conclude.

table, options ─▶ SolvePlan ─▶ SolveState ─▶ drive(method) ─▶ Certificate, Solution ─▶ result on disk
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.select import select_backend
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory import give_memory_back
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.runtime.signals import signals
from ooc_mdp.scheduling.stager import short_turns
from ooc_mdp.solver.certificate import conclude, method_name, turn_signs
from ooc_mdp.solver.driver import Method, drive
from ooc_mdp.solver.methods.exact_p_eva import exact_p_eva
from ooc_mdp.solver.methods.handover import p_eva_then
from ooc_mdp.solver.methods.p_eva import p_eva
from ooc_mdp.solver.methods.p_eva_on_device import p_eva_on_device
from ooc_mdp.solver.methods.policy_iteration import policy_iteration
from ooc_mdp.solver.methods.synchronous import synchronous_value_iteration
from ooc_mdp.solver.methods.value_iteration import value_iteration
from ooc_mdp.solver.plan import (
    MethodChoice,
    MethodName,
    plan_solve,
    warm_up,
)
from ooc_mdp.solver.resume import finished_before
from ooc_mdp.solver.session import Pauses, StoppedEarly
from ooc_mdp.solver.start import start
from ooc_mdp.solver.state import SolveState
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

__all__ = ["METHODS", "method_of", "solve"]

METHODS: dict[MethodName, Method] = {
    "p-eva": p_eva,
    "p-eva on device": p_eva_on_device,
    "exact p-eva": exact_p_eva,
    "vi": value_iteration,
    "synchronous vi": synchronous_value_iteration,
    "policy-iteration": policy_iteration,
}
"""To add a method, write a generator in `solver/methods` and name it here and in `solver.plan.choose_method`."""


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
    facts = ModelFacts.of(opened, options.discount)
    backend = select_backend(options.device, options.sweep_order, options.kernel)
    give_memory_back()
    warm_up(opened, options, backend, facts, writes=output is not None)
    plan = plan_solve(opened, options, backend, facts, writes=output is not None)
    if announce is not None:
        announce(plan.memory)
    with ExitStack() as stack:
        stack.callback(backend.close)
        state = start(opened, plan, backend, stack)
        pauses = Pauses(options, watch, stack.enter_context(signals()), note=note)
        state.seconds = lambda: pauses.seconds
        state.note = note
        if resume and output is not None:
            finished = _take_up(state, pauses, output, identity, note)
            if finished is not None:
                return finished
        if output is not None:
            where = checkpoint_path(output)
            pauses.save = lambda: save_checkpoint(where, identity, _kept(state), state.statistics())
        if trace is not None:
            about = {**identity, "method": method_name(options), "partitions": opened.n_partitions}
            state.trace = stack.enter_context(Trace(trace, about))
        _remark_choice(state)
        with checkpoint_on_damage(lambda: pauses.save), short_turns(backend.features.overlaps_loads):
            state.history.row(state.row())
            outcome = drive(state, method_of(plan.choice), Between(pauses, state.counters.backups))
        state.stager.close()
        if not outcome.proved and pauses.save is not None:
            pauses.save()  # before the solution is made of what it saves
        values = backend.values()
        solution = conclude(
            opened,
            options,
            outcome,
            method=method_name(options) + (f": {', then '.join(state.phases)}" if state.phases else ""),
            device=backend.name,
            bounds=state.bounds,
            target=state.target,
            value_size=state.value_size,
            values=values,
            policy=backend.policy(),
            visited=state.visited,
            statistics=state.statistics(),
            plan=plan.memory,
            history=state.history,
            resident=int(np.count_nonzero(state.cache.present)),
        )
        if output is not None and outcome.proved:
            with saved_unless_written(pauses.save, lambda: turn_signs(values) if opened.sense == "min" else None):
                write_result(output, opened, solution, identity, replace=resume or overwrite)
            remove_checkpoint(checkpoint_path(output))
    return solution


@dataclass(slots=True)
class Between:
    """What happens between two steps: reports, history, checkpoints, and what ends a solve early."""

    pauses: Pauses
    saved_backups: int = 0
    """Backups that the checkpoint knows of: without new ones there is nothing to save."""

    def after_step(self, state: SolveState) -> Outcome | None:
        """See :class:`ooc_mdp.solver.driver.Observer`."""
        self.pauses.report(state.progress)
        state.history.offer(state.row)
        if state.target.out_of_reach:
            return Outcome.PRECISION
        try:
            self.pauses.stop()
        except StoppedEarly as stop:
            return stop.outcome
        if state.counters.backups > self.saved_backups and self.pauses.keep():
            self.saved_backups = state.counters.backups
        return None


def method_of(choice: MethodChoice) -> Method:
    """The first method, with the change to the second."""
    first = METHODS[choice.first]
    return first if choice.then is None else p_eva_then(first, METHODS[choice.then])


def _remark_choice(state: SolveState) -> None:
    """Say which method was chosen and why, and where one that was asked for is known to be slow."""
    choice, facts, options = state.plan.choice, state.plan.facts, state.plan.options
    word = "p-eva" if choice.first == "p-eva on device" else choice.first
    if options.way == "auto":
        state.remark(f"auto: {word.replace('policy-', 'policy ')}, since {choice.reason}")
        state.phases = [word]
    elif options.way == "p-eva" and word != "synchronous vi" and facts.strongly_coupled:
        state.note(
            f"a partition reads {facts.mean_partitions_read:.0f} of the {facts.n_partitions - 1} others on average: "
            f"where partitions are so strongly coupled, policy iteration (--method policy-iteration, or auto) reads "
            f"far less than p-eva"
        )


def _take_up(
    state: SolveState, pauses: Pauses, output: Path, identity: dict[str, Any], note: Callable[[str], None]
) -> Solution | None:
    """Continue from the checkpoint; return the result itself where it is there and good enough."""
    where = checkpoint_path(output)
    saved = load_checkpoint(where, identity)
    if saved is None:
        return finished_before(output, identity, state.plan.options, note)
    arrays, statistics = saved
    check_arrays(where, arrays, state.snapshot(), optional=frozenset({"inflow"}))
    note(f"going on from the checkpoint {where}, after {statistics.seconds:.1f} s of work")
    pauses.earlier_seconds = statistics.seconds
    state.restore(arrays, statistics)
    state.history.restore(arrays, where)
    return None


def _kept(state: SolveState) -> dict[str, npt.NDArray[Any]]:
    """What a checkpoint holds: what the solve goes on from, and its history so far."""
    state.history.row(state.row())
    return {**state.snapshot(), **state.history.arrays()}
