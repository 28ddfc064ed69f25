"""Discounted solves in this process: plan, start, drive, conclude.

table, options ─▶ SolvePlan ─▶ SolveState ─▶ drive(method) ─▶ Certificate, Solution ─▶ result on disk
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooc_mdp.backends.select import select_backend
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.method_record import method_name
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.runtime.memory import keep_freed_buffers
from ooc_mdp.scheduling.stager import short_switch_interval
from ooc_mdp.scheduling.target import default_target
from ooc_mdp.solver.certificate import FinalState, conclude
from ooc_mdp.solver.driver import Method, drive
from ooc_mdp.solver.methods.exact_p_eva import exact_p_eva
from ooc_mdp.solver.methods.handover import p_eva_then
from ooc_mdp.solver.methods.p_eva import p_eva
from ooc_mdp.solver.methods.p_eva_on_device import p_eva_on_device
from ooc_mdp.solver.methods.policy_iteration import policy_iteration
from ooc_mdp.solver.methods.synchronous import synchronous_value_iteration
from ooc_mdp.solver.methods.value_iteration import value_iteration
from ooc_mdp.solver.output import Output, Snapshot
from ooc_mdp.solver.plan import MethodChoice, load_code, plan_solve
from ooc_mdp.solver.refinement import Refined, refine
from ooc_mdp.solver.run import Job, run_solve
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.start import start
from ooc_mdp.solver.state import OPTIONAL_ARRAYS, SolveState
from ooc_mdp.store.checkpoint import checkpoint_path

__all__ = ["METHODS", "LocalEngine", "LocalSolve", "method_of", "solve"]

METHODS: dict[str, Method] = {
    "p-eva": p_eva,
    "p-eva on device": p_eva_on_device,
    "exact p-eva": exact_p_eva,
    "vi": value_iteration,
    "synchronous vi": synchronous_value_iteration,
    "policy-iteration": policy_iteration,
}
"""To add a method, write a generator in `solver/methods` and name it here and in `ooc_mdp.options.MethodName`."""


def solve(
    table: Table,
    options: SolveOptions,
    run: RunOptions | None = None,
    *,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve the discounted MDP of a table in this process: :func:`ooc_mdp.solver.run.run_solve`."""
    return run_solve(table, options, run, LocalEngine(), watch=watch, note=note)


class LocalEngine:
    """Discounted solves in this process, through a cache of bounded size."""

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        """Do nothing: whatever options allow is done."""

    def default_target(self, table: Table, solution: Solution) -> float:
        """A share of the range of the values, above what float64 rounds."""
        values, claims = solution.values, solution.certificate
        low, high = float(values.min()), float(values.max())
        return default_target(low, high, lambda: claims.error_bound, claims.rounding_bound)

    def begin(self, job: Job) -> LocalSolve:
        """Plan, allocate, and continue from what is there."""
        table, options, output, stack = job.table, job.options, job.output, job.stack
        session = job.session(job.await_signals())
        facts = ModelFacts.of(table.facts, options.discount)
        backend = select_backend(options.device, options.sweep_order, options.kernel, None, options.stopping, facts)
        stack.callback(backend.close)
        keep_freed_buffers()
        stopped = load_code(table, backend, facts, options, job.writes, session.ended)
        plan = plan_solve(table, options, backend, facts, writes=job.writes)
        job.note(plan.describe())
        state = start(table, plan, backend, stack, values=output.take_result_values())
        state.note, state.seconds = job.note, session.clock.seconds
        session.begin(_resume(state, output), state.counters.backups)
        state.trace = stack.enter_context(output.trace(method_name(options), table.n_partitions))
        _begin_method(state)
        return LocalSolve(state, session, stopped)


@dataclass(slots=True)
class LocalSolve:
    """A discounted solve that has begun."""

    state: SolveState
    session: Session
    stopped: Outcome | None
    """What ended it before it could begin."""
    refined: Refined | None = None

    def run(self) -> Outcome:
        """Drive the method; refine the values where sweeps have come down to float64's precision."""
        state = self.state
        with short_switch_interval(state.backend.features.overlaps_loads):
            state.history.row(state.row())
            outcome = self.stopped or drive(state, method_of(state.plan.choice), self.session)
            state.stager.close()
            if outcome is Outcome.PRECISION_LIMIT:
                self.refined = _refine(state, state.plan.options, self.session)
        return outcome if self.refined is None else self.refined.outcome

    def snapshot(self) -> Snapshot:
        """Everything that a solve continues from."""
        return self.state.snapshot()

    def conclude(self, outcome: Outcome) -> Solution:
        """Certificate, values and policy."""
        state = self.state
        return conclude(state.table, state.plan.options, outcome, _final_state(state, self.refined))


def method_of(choice: MethodChoice) -> Method:
    """The first method, with the change to the second."""
    first = METHODS[choice.first]
    return first if choice.then is None else p_eva_then(first, METHODS[choice.then])


def _begin_method(state: SolveState) -> None:
    """Note which method was chosen and why, and where one that was asked for is known to be slow."""
    choice, facts, options = state.plan.choice, state.plan.facts, state.plan.options
    word = "p-eva" if choice.first == "p-eva on device" else choice.first
    if choice.then is not None and state.phases and state.phases[-1].method == choice.then:
        state.remark(f"auto: {choice.then.replace('policy-', 'policy ')} goes on")
        return
    state.begin_phase(word)
    if options.effective_method == "auto":
        state.remark(f"auto: {word.replace('policy-', 'policy ')}, since {choice.reason}")
    elif options.effective_method == "p-eva" and word != "synchronous vi" and facts.strongly_coupled:
        state.note(
            f"a partition reads {facts.mean_partitions_read:.0f} of the {facts.n_partitions - 1} others on average: "
            f"where partitions are so strongly coupled, policy iteration (--method policy-iteration, or auto) reads "
            f"far less than p-eva"
        )


def _resume(state: SolveState, output: Output) -> float:
    """Continue from the output's checkpoint, if there is one; seconds of the runs before it."""
    saved = output.checkpoint(state.arrays, OPTIONAL_ARRAYS, table=state.table)
    if saved is None or output.path is None:
        return 0.0
    state.restore(saved.arrays, saved.statistics)
    state.phases = list(saved.method.phases)
    state.history.restore(saved.arrays, checkpoint_path(output.path))
    return saved.statistics.solve_seconds


def _refine(state: SolveState, options: SolveOptions, session: Session) -> Refined | None:
    """Measure the values beyond float64, and refine them; the cache is empty then."""
    state.cache.clear()
    refined = refine(state.table, options, state.backend.values(), session, state.note)
    if refined is not None:
        counted, work = state.cache.statistics, refined.work
        counted.loads += work.loads
        counted.bytes_read += work.bytes_read
        counted.bytes_decoded += work.bytes_decoded
        state.cache.loads += refined.loads
        state.counters.backups += work.backups
        state.counters.policy_evaluations += work.policy_evaluations
    return refined


def _final_state(state: SolveState, refined: Refined | None) -> FinalState:
    """What a solve knows when it is over."""
    name, taken = method_name(state.plan.options), ", then ".join(phase.method for phase in state.phases)
    grid = None if refined is not None else state.table.facts.grid
    told = state.plan.options.effective_method == "auto" or len(state.phases) > 1
    return FinalState(
        method=f"{name}: {taken}" if told else name,
        device=state.backend.name,
        plan=state.plan.memory,
        bounds=state.bounds,
        target=state.target,
        value_size=state.value_size,
        values=state.backend.values(grid),
        policy=state.backend.policy(grid),
        placed=grid is not None,
        visited=state.visited,
        statistics=state.statistics(),
        history=state.history,
        resident=int(np.count_nonzero(state.cache.present)),
        refined=refined,
    )
