"""Total reward without a discount: is it defined, and between which bounds does it lie.

    V(s) = max_pi E_pi [ sum of rewards until the process ends ],      V(s) = r(s) where s has no action

First the graph (`ooc_mdp.undiscounted.end_components`): totals that are infinite or undefined are refused. Then a lower
and an upper value are swept at once (`ooc_mdp.undiscounted.interval_iteration`), until a last pass over the table
proves L <= V_pi <= V <= U (`ooc_mdp.undiscounted.inductive`). ``docs/theory/undiscounted.md`` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing

import numpy as np

from ooc_mdp.backends.layout import cache_of_size
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.criterion import record_of
from ooc_mdp.model.facts import check_reward_range
from ooc_mdp.model.solution import Certificate, Outcome, Solution, with_ends
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.scheduling.target import RELATIVE_EPSILON
from ooc_mdp.solver.output import Output
from ooc_mdp.solver.run import Job, run_solve
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.verify import from_original
from ooc_mdp.undiscounted.end_components import ANALYSIS_BYTES, COMPONENT_BYTES, Staying, states_near_zero
from ooc_mdp.undiscounted.inductive import load_code
from ooc_mdp.undiscounted.interval_iteration import (
    FIRST_PERTURBATION,
    IntervalIteration,
    Totals,
    default_total_target,
    value_floor,
)
from ooc_mdp.undiscounted.kernels.end_components import (
    NO_REWARD,
    can_end,
    gain,
    least_loss,
    lift,
    rewards_inside,
    spread_backward,
    spread_forward,
    trim,
)
from ooc_mdp.undiscounted.kernels.end_components import labels as of_states
from ooc_mdp.undiscounted.kernels.totals import Components, greedy, relax, sweep
from ooc_mdp.undiscounted.policy_evaluation import EVALUATION_BYTES, PolicyRowCollector, rows_bytes
from ooc_mdp.undiscounted.shared_values import CHEAP_LOSS
from ooc_mdp.undiscounted.streamed_solve import DEPTH, StreamedSolve, continue_counters, load_loops, plan_streamed
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, no_states

__all__ = [
    "METHOD",
    "TotalsEngine",
    "conclude_totals",
    "load_code_of_totals",
    "noting_search",
    "plan_totals",
    "resume_iteration",
    "solve",
    "start_iteration",
    "totals_solve",
]

METHOD = "interval iteration"
_ADVICE = "give each step a cost, or a discount below 1"
_MANY_STEPS = 1e9
"""Expected steps from which on a larger error is of little help."""
_PROOF = (
    "lower and upper values checked to be inductive: T_pi L > L and T U < U in every state, float64 rounding included"
)

_FIRST_NOTE = 10.0
"""Seconds after which a search of the graph is noted,"""
_NEXT_NOTE = 60.0
"""and between two notes of it."""


def solve(
    table: Table,
    options: SolveOptions,
    run: RunOptions | None = None,
    *,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve for total rewards: :func:`ooc_mdp.solver.run.run_solve`.

    Raises
    ------
    UndefinedTotalError : the totals are infinite, or may be undefined.
    """
    return run_solve(table, options, run, TotalsEngine(), watch=watch, note=note)


class TotalsEngine:
    """Total rewards, in this process on the CPU."""

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        """Do nothing: the options have refused what steers other methods."""

    def default_target(self, table: Table, solution: Solution) -> float:
        """A share of the range of the values, or of their size."""
        if solution.value_lower is None or solution.value_upper is None:
            return 0.0
        return default_total_target(table, float(solution.value_lower.min()), float(solution.value_upper.max()))

    def begin(self, job: Job) -> StreamedSolve:
        """Plan, allocate, and continue from what is there."""
        table, options, output, stack = job.table, job.options, job.output, job.stack
        check_reward_range(table.facts, steps=1.0)
        session = job.session(job.await_signals())
        return_freed_memory()
        stopped = load_code_of_totals(table, job.writes, session)
        budget, plan = plan_totals(table, options, job.writes)
        job.note(plan.describe())
        tables = stack.enter_context(Streamed(table, budget, DEPTH))
        state = start_iteration(tables, options, budget, session.clock.seconds)
        session.begin(0.0)
        resumed = resume_iteration(state, output, session)
        tables.trace = stack.enter_context(output.trace(METHOD, table.n_partitions))
        return totals_solve(state, session, plan, resumed, stopped)


def totals_solve(
    state: IntervalIteration, session: Session, plan: MemoryPlan, resumed: bool, stopped: Outcome | None
) -> StreamedSolve:
    """A solve that has begun; `resumed`: it continues from values."""

    def conclude(outcome: Outcome) -> Solution:
        return conclude_totals(state, state.totals or state.unfinished(outcome), plan)

    return StreamedSolve(
        state, session, lambda: noting_search(state.iterate(resumed), state, session), conclude, stopped
    )


def noting_search(
    steps: Generator[None, None, Outcome], state: IntervalIteration, session: Session
) -> Generator[None, None, Outcome]:
    """The steps of a solve, with a note now and then of how far the search of the graph before the values is."""
    due = session.seconds + _FIRST_NOTE
    with closing(steps):
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                outcome: Outcome = ended.value
                return outcome
            if state.within is None and session.seconds >= due:
                left, partitions = int(np.count_nonzero(state.tables.dirty)), state.tables.source.n_partitions
                session.note(
                    f"the graph is searched before values are computed, so there is no error and no checkpoint yet: "
                    f"pass {state.tables.passes}, {left} of {partitions} partitions left in this search"
                )
                due = session.seconds + _NEXT_NOTE
            yield


def start_iteration(
    tables: Streamed,
    options: SolveOptions,
    budget: int,
    seconds: Callable[[], float],
    share: float = RELATIVE_EPSILON,
) -> IntervalIteration:
    """A run of which nothing is known yet; `share` of the values' range is the error where the options give none."""
    store = tables.source
    run = IntervalIteration(
        tables=tables,
        neighbours=Neighbours(store.facts.coupling),
        options=options,
        counters=SolveStatistics.of_table(store.facts, budget),
        values=np.zeros((store.n_states, 2)),
        staying=Staying.everywhere(0.0, store.n_states),
        seconds=seconds,
        dirty=np.ones(store.n_partitions, np.bool_),
        share=share,
    )
    run.perturbation = FIRST_PERTURBATION * _first_target(store, options, share)
    return run


def load_code_of_totals(table: Table, writes: bool, session: Session) -> Outcome | None:
    """Call :func:`_warm_up`; the outcome that ended it between two functions that are compiled."""
    return load_loops(writes, session, lambda: _warm_up(table))


def _warm_up(table: Table) -> None:
    """Call all loops on no states of the smallest partition."""
    rows = no_states(table)
    load_code(rows)
    marks, labels = np.zeros(1, np.uint8), of_states(1)
    policy, numbers, values = np.zeros(1, np.int32), np.zeros(1), np.zeros((1, 2))
    members, exits = np.zeros(1, np.int64), np.zeros((1, 2))
    staying = Staying.everywhere(0.0, 2).lower
    components = Components(labels, members, np.zeros(1), staying)
    trim(rows, NO_REWARD, labels, labels)
    spread_forward(rows, NO_REWARD, labels, labels, labels)
    spread_backward(rows, NO_REWARD, labels, labels, labels)
    least_loss(rows, 1.0)
    can_end(rows, labels, marks, policy)
    sweep(rows, values, components, components, True, 0.0, 1.0, 1, 0.0, True)
    greedy(rows, values, components, 0.0, 1.0, policy)
    lift(rows, labels, marks, marks, policy)
    rewards_inside(rows, labels, labels, labels, 1.0, marks)
    gain(rows, labels, labels, numbers, 1.0, numbers)
    kept = PolicyRowCollector(1 << 30)
    kept.take(0, rows, policy)
    copied = kept.rows()
    for own in (rows, *(copied.tables if copied is not None else ())):
        relax(own, values, labels, members, exits, staying, policy, True, (1.0, 1.0), 1, True)


def plan_totals(
    table: Table, options: SolveOptions, writes: bool, beside: Mapping[str, int] | None = None
) -> tuple[int, MemoryPlan]:
    """The cache's budget, and every large buffer of the solve in bytes, those named in `beside` among them.

    Raises
    ------
    MemoryBudgetError : the cache cannot hold the largest partition.
    """
    n, sizes = table.n_states, table.facts.partition_bytes
    budget = cache_of_size(sizes, options.cache_size)
    own = {
        "lower and upper values": 16 * n,
        "policy, labels and marks": 26 * n,
        "components": COMPONENT_BYTES * states_near_zero(table, CHEAP_LOSS * _first_target(table, options) / 2),
        "graph analysis, then evaluations": max(ANALYSIS_BYTES, EVALUATION_BYTES) * n,
        "coupling": 64 * table.n_partitions + 32 * table.facts.coupling.mass.size,
        "rows of the policy": rows_bytes(table),
        "cache": min(budget, int(sizes.sum())),
        **(beside or {}),
    }
    return budget, plan_streamed(table, budget, own, writes)


def _first_target(table: Table, options: SolveOptions, share: float = RELATIVE_EPSILON) -> float:
    """An error, or a residual, that the first perturbation is a share of."""
    if options.epsilon is not None:
        return options.epsilon
    if options.residual is not None:
        return options.residual
    return share * value_floor(table)


def resume_iteration(run: IntervalIteration, output: Output, session: Session) -> bool:
    """Continue from the values of a checkpoint, or of a result that proves less: sweeps settle from any start.

    A solve that stopped at float64's precision had the smallest perturbation; another target begins with its own.
    """
    saved = output.checkpoint(lambda: {"bounds": run.values}, what="the values of ")
    if saved is None:
        values = output.take_result_values(infinite=True)
        if values is None:
            return False
        run.values[:] = run.sign * from_original(run.tables.source, values)[:, None]
        return True
    continue_counters(run, output, saved, session, "bounds", ())
    run.values[:] = saved.arrays["bounds"].mean(axis=1)[:, None]
    return True


def conclude_totals(run: IntervalIteration, totals: Totals, plan: MemoryPlan, advice: str = _ADVICE) -> Solution:
    """The solution of a solve: its certificate, and values and policy in the source's order.

    Parameters
    ----------
    advice : what to ask for in place of totals over more steps than float64 can tell apart.
    """
    store, middle, found = run.tables.source, totals.middle, totals.found
    low, high = (np.ascontiguousarray(run.values[:, i]) for i in (0, 1))
    below, above = -np.inf, np.inf
    if found is not None:
        below, above = float((low - middle).min(initial=0.0)), float((high - middle).max(initial=0.0))
        below, above = np.nextafter(below, -np.inf), np.nextafter(above, np.inf)
    if run.sign < 0:
        low, high = 0.0 - high, 0.0 - low
        middle = 0.0 - middle
    proved = found is not None
    error_bound = float(max(-below, above))
    certificate = Certificate(
        error_bound=error_bound,
        error_lower=float(below),
        error_upper=float(above),
        residual_bound=run.residual,
        rounding_bound=found.rounding if found is not None else 0.0,
        target=run.options.residual if run.options.residual is not None else run.target(),
        stopping_rule="residual" if run.options.residual is not None else "epsilon",
        policy_loss_bound=float(np.nextafter(above - below, np.inf)) if proved else np.inf,
        proof=_PROOF if proved else "nothing is proved",
    )
    return Solution(
        outcome=totals.outcome,
        reason=_reason(run, totals, advice),
        method=METHOD,
        device="cpu",
        criterion=record_of(run.options.question),
        certificate=with_ends(certificate, middle, store.sense),
        statistics=run.statistics(),
        history=run.history.end(run.row(error_bound)),
        values=store.to_source(middle),
        policy=store.to_source(totals.policy),
        memory_plan={"host": plan.host, "device": plan.device},
        value_lower=store.to_source(low) if proved else None,
        value_upper=store.to_source(high) if proved else None,
    )


def _reason(run: IntervalIteration, totals: Totals, advice: str) -> str | None:
    """Why float64 could do no more, and what to try; None where another target is what to try."""
    asked = run.options.epsilon is not None or run.options.residual is not None
    many = run.expected_exits >= _MANY_STEPS
    if totals.outcome is not Outcome.PRECISION_LIMIT or totals.found is not None or (asked and not many):
        return None
    steps = f"an expected {run.expected_exits:.0e} steps" if many else "very many steps"
    least, size = run.least_target(), float(np.abs(run.values).max(initial=0.0))
    larger = f"; --epsilon {least:.0e} may be large enough" if many and least < size else ""
    return (
        f"a good policy may go on for {steps} before the process ends, and over so many the rounding of float64 hides "
        f"by how much a lower and an upper value differ; {advice}{larger}"
    )
