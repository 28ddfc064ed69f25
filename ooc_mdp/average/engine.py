"""Average rewards in this process: plan, resume, solve, and what is concluded.

    g*(s) = max_pi lim inf of E_pi [ r_1 + ... + r_T ] / T

What is proved is one interval that holds the gain of every state (`ooc_mdp.average.iteration`); where that is proved to
differ between states, an interval of each (`ooc_mdp.average.by_state`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_mdp.average.backends import gain_backend
from ooc_mdp.average.by_state import GainsByState, begin_by_state
from ooc_mdp.average.iteration import PROVING, AverageIteration, default_gain_target
from ooc_mdp.average.proved import KEPT_BYTES
from ooc_mdp.backends.cpu.rows import MIN_MASS
from ooc_mdp.errors import OptionsError
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.criterion import record_of
from ooc_mdp.model.facts import check_reward_range
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Certificate, Outcome, Solution
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.solver.output import Output, Snapshot
from ooc_mdp.solver.run import Job, run_solve, run_steps
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.verify import from_original
from ooc_mdp.store.checkpoint import check_bounds, checkpoint_path
from ooc_mdp.undiscounted.streamed_solve import continue_counters, load_loops, plan_streamed
from ooc_mdp.undiscounted.tables import Streamed

__all__ = ["METHOD", "AverageEngine", "check_table", "solve"]

METHOD = "policy and relative value iteration"
_PROOF = (
    "min_s max_a x <= g*(s) <= max_s max_a x for x = r + P h - h at the values h, and for x = r, where h = 0; "
    "float64 rounding included"
)


def solve(
    table: Table,
    options: SolveOptions,
    run: RunOptions | None = None,
    *,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve for the average reward: :func:`ooc_mdp.solver.run.run_solve`."""
    return run_solve(table, options, run, AverageEngine(), watch=watch, note=note)


def check_table(table: Table) -> None:
    """Raise OptionsError where a table's process ends or has steps of other lengths, as far as its facts show."""
    facts = table.facts
    if (facts.duration_range != 1.0).any():
        p = int(np.flatnonzero((facts.duration_range != 1.0).any(axis=1))[0])
        low, high = facts.duration_range[p]
        raise OptionsError(
            f"{table.name} has durations from {low:.6g} to {high:.6g} in partition {p}, and the average is per step of "
            "length 1: rows must have no durations, and none that ends the process; divide time into such steps"
        )
    if facts.row_sum_range.min() < MIN_MASS:
        raise OptionsError(
            f"{table.name} has a row whose probabilities sum to {facts.row_sum_range.min():.9g}: the process may end "
            "there, and a long-run average is of processes that go on; make the store again with --normalize (in "
            "Python normalize=True)"
        )
    check_reward_range(facts, steps=1.0)


class AverageEngine:
    """Average rewards, in this process, on the CPU or on a CUDA device."""

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        """Refuse a plain residual: the interval is what is measured."""
        if options.residual is not None:
            raise OptionsError(
                "--residual is the stopping rule of discounted and total rewards; of an average reward an interval is "
                "proved: give --epsilon, half the width that it may have"
            )

    def default_target(self, table: Table, solution: Solution) -> float:
        """A share of the range of the rewards."""
        return default_gain_target(table)

    def begin(self, job: Job) -> AverageSolve:
        """Plan, allocate, and continue from what is there."""
        table, options, output, stack = job.table, job.options, job.output, job.stack
        check_table(table)
        session = job.session(job.await_signals())
        return_freed_memory()
        backend = gain_backend(options.device)
        stack.callback(backend.close)

        def load() -> None:
            table.load_code()
            backend.load_code(table)

        stopped = load_loops(job.writes, session, load)
        budget, own, on_device = backend.plan(table, options)
        own["narrowest interval"] = KEPT_BYTES * table.n_states
        own["coupling"] = 64 * table.n_partitions + 96 * table.facts.coupling.mass.size
        plan = plan_streamed(table, budget, own, job.writes, on_device, backend.name, backend.staged)
        job.note(plan.describe())
        tables = stack.enter_context(Streamed(table, budget, backend.staged, backend, backend.name))
        state = AverageIteration(
            tables=tables,
            epsilon=default_gain_target(table) if options.epsilon is None else options.epsilon,
            backend=backend,
            counters=SolveStatistics.of_table(table.facts, budget),
            seconds=session.clock.seconds,
        )
        session.begin(0.0)
        backend.start(table, _first_values(state, output, session))
        tables.trace = stack.enter_context(output.trace(METHOD, table.n_partitions))
        return AverageSolve(job, session, state, plan, stopped)


@dataclass(slots=True)
class AverageSolve:
    """A solve that has begun."""

    job: Job
    session: Session
    iteration: AverageIteration
    """Towards one interval for all states."""
    plan: MemoryPlan
    """Of that."""
    stopped: Outcome | None
    """What ended it before it could begin."""
    interval: Solution | None = None
    """What the iteration came to where the gain differs; its memory is free again then."""
    left: Snapshot | None = None
    """What a solve would continue from then."""
    by_state: GainsByState | None = None
    """Towards an interval for each state afterwards; None where there is not so much memory."""

    def run(self) -> Outcome:
        """One interval for all states; then, if the gain differs, one for each."""
        state, session = self.iteration, self.session
        state.history.row(state.row())
        outcome = self.stopped or run_steps(state, state.iterate(), session)
        if outcome is not Outcome.GAIN_DIFFERS:
            return outcome
        self.left, self.interval = state.snapshot(), self.conclude(outcome)
        state.tables.close()
        state.backend.close()
        trace = state.tables.trace
        self.by_state = begin_by_state(self.job, session, self.interval, state.epsilon, state.history, trace)
        return outcome if self.by_state is None else run_steps(self.by_state, self.by_state.solve(), session)

    def snapshot(self) -> Snapshot | None:
        """What a solve continues from."""
        if self.by_state is not None:
            return self.by_state.snapshot()
        return self.iteration.snapshot() if self.interval is None else self.left

    def conclude(self, outcome: Outcome) -> Solution:
        """Certificate, values and policy; what there is where a limit ended the solve."""
        if self.by_state is not None:
            return self.by_state.conclude(outcome)
        if self.interval is not None:
            return self.interval
        return _conclude(self.iteration, outcome, self.plan, record_of(self.job.options.question))


def _first_values(run: AverageIteration, output: Output, session: Session) -> FloatArray:
    """h of a checkpoint, or of a result that proves less: any values will do; 0 where there is neither.

    Where a checkpoint has other values that prove more, the solve begins with these, and goes on from h.
    """
    nothing = np.zeros(run.tables.source.n_states)
    expected = {"values": nothing, PROVING: nothing}
    saved = output.checkpoint(lambda: expected, frozenset({PROVING}), what="the values of ")
    if saved is None:
        values = output.take_result_values()
        return nothing if values is None else run.sign * from_original(run.tables.source, values)
    continue_counters(run, output, saved, session, "values", ("policy_evaluations",))
    values, proving = saved.arrays["values"], saved.arrays.get(PROVING)
    if proving is None:
        return values
    assert output.path is not None  # a checkpoint lies beside an output
    check_bounds(checkpoint_path(output.path), proving)
    run.continued = values
    return proving


def _conclude(run: AverageIteration, outcome: Outcome, plan: MemoryPlan, record: dict[str, Any]) -> Solution:
    """The solution of a solve: its certificate, and values and policy in the source's order.

    Parameters
    ----------
    record : of the criterion.
    """
    table, proved = run.tables.source, run.proved()
    interval = proved.interval
    lower, upper = (interval.low, interval.high) if run.sign > 0 else (-interval.high, -interval.low)
    half = float(np.nextafter(0.5 * interval.width, np.inf))
    return Solution(
        outcome=outcome,
        method=METHOD,
        device=run.backend.name,
        criterion=record,
        certificate=Certificate(
            error_bound=half,
            error_lower=-half,
            error_upper=half,
            residual_bound=half,
            rounding_bound=proved.rounding,
            target=run.epsilon,
            stopping_rule="epsilon",
            policy_loss_bound=interval.width,
            proof=_PROOF if run.differing is None else f"{_PROOF}; {run.differing.describe(run.sign)}",
            quantity="gain",
            lower=lower,
            upper=upper,
        ),
        statistics=run.statistics(),
        history=run.history.end(run.row()),
        values=table.to_source(run.sign * proved.values),
        policy=table.to_source(proved.policy),
        memory_plan={"host": plan.host, "device": plan.device},
    )
