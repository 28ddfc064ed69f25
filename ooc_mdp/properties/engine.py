"""Probabilities to reach a goal and rewards until then: the graph first, then interval iteration, or K backups.

decide (graph) ─▶ states with a decided answer end the process ─▶ interval iteration ─▶ bounds of every state
within K steps: K double-buffered backups of a lower and an upper bound, rounded outwards
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from ooc_mdp.model.criterion import TotalReward
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Certificate, Outcome, Solution, with_ends
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.properties.criterion import Reachability
from ooc_mdp.properties.graph import GRAPH_BYTES, Decided, decide, load_code
from ooc_mdp.properties.table import CONTINUES, GOAL, INFINITE, AskedTable, Ends
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.solver.run import Job, Task, run_steps
from ooc_mdp.solver.session import Session
from ooc_mdp.undiscounted.end_components import Staying
from ooc_mdp.undiscounted.inductive import Inductive
from ooc_mdp.undiscounted.interval_iteration import IntervalIteration, Totals, default_total_target
from ooc_mdp.undiscounted.kernels.reachability import backup_bounds
from ooc_mdp.undiscounted.tables import Streamed, Work, no_states
from ooc_mdp.undiscounted.totals import (
    METHOD,
    TotalsEngine,
    conclude_totals,
    load_code_of_totals,
    noting_search,
    plan_totals,
    resume_iteration,
    start_iteration,
)

__all__ = [
    "PropertyEngine",
    "TotalRewardEngine",
    "bounded_values",
    "decided_values",
    "difference_bound",
    "infinite_totals",
]

_SHARE = 1e-6
"""The error that is asked for by default, as a share of the range of the values."""
_DEPTH = 2
"""Partitions that are read at a time."""
_PROOF = (
    "decided by the graph where the answer is 0, 1 or infinite; elsewhere lower and upper values checked to be "
    "inductive: T_pi L > L and T U < U in every state, float64 rounding included"
)
_BOUNDED_PROOF = "as many backups of a lower and an upper bound as there are steps, each rounded outwards"
_BACKUPS = "backward induction"
_ADVICE = {
    True: "ask for the probability within K steps (--within K), which is proved and at most this one",
    False: "give each step a cost, or a discount below 1",
}
"""By whether a probability is asked for: what to ask for where a process goes on for more steps than float64 counts."""


class PropertyEngine:
    """Questions about a goal, and totals that may be infinite, in this process on the CPU."""

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        """Do nothing: the options have refused what steers other methods."""

    def default_target(self, table: Table, solution: Solution) -> float:
        """A share of the range of the finite values, or of their size."""
        if solution.value_lower is None or solution.value_upper is None:
            return 0.0
        low, high = (values[np.isfinite(values)] for values in (solution.value_lower, solution.value_upper))
        return default_total_target(table, float(low.min(initial=np.inf)), float(high.max(initial=-np.inf)), _SHARE)

    def begin(self, job: Job) -> PropertySolve:
        """Plan, allocate, and continue from what is there."""
        table = infinite_totals(job.table)
        session = job.session(job.await_signals())
        return_freed_memory()
        stopped = load_code_of_totals(table, job.writes, session)
        _load_code(table)
        budget, plan = plan_totals(table, job.options, job.writes, {"sets of states": GRAPH_BYTES * table.n_states})
        job.note(plan.describe())
        tables = job.stack.enter_context(Streamed(table, budget, _DEPTH))
        state = start_iteration(tables, job.options, budget, session.clock.seconds, _SHARE)
        session.begin(0.0)
        question = job.options.question
        steps = question.within if isinstance(question, Reachability) else None
        resumed = steps is None and resume_iteration(state, job.output, session)
        tables.trace = job.stack.enter_context(job.output.trace(METHOD, table.n_partitions))
        return PropertySolve(table, state, session, plan, resumed, stopped, steps)


class TotalRewardEngine:
    """Total rewards: those that are finite, or, where the question allows it, infinite ones as well."""

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        """Do nothing: the options have refused what steers other methods."""

    def default_target(self, table: Table, solution: Solution) -> float:
        """That of the engine that solved it."""
        return _engine_of(bool(solution.criterion.get("infinite"))).default_target(table, solution)

    def begin(self, job: Job) -> Task:
        """Begin by the engine that the question needs."""
        question = job.options.question
        return _engine_of(isinstance(question, TotalReward) and question.infinite).begin(job)


def _engine_of(infinite: bool) -> PropertyEngine | TotalsEngine:
    return PropertyEngine() if infinite else TotalsEngine()


def infinite_totals(table: Table) -> AskedTable:
    """The table of a question, also where it is another table as it is."""
    if isinstance(table, AskedTable):
        return table
    return AskedTable.of(table)


def _load_code(table: AskedTable) -> None:
    """Load the compiled loops of the graph's searches and of backups, so that the plan counts them."""
    rows, values = no_states(table), np.zeros((1, 2))
    load_code(rows)
    backup_bounds(rows, values, values, 1.0, np.zeros(1, np.int32))


@dataclass(slots=True)
class PropertySolve:
    """A solve that has begun."""

    table: AskedTable
    state: IntervalIteration
    session: Session
    plan: MemoryPlan
    resumed: bool
    """Whether it continues from values."""
    stopped: Outcome | None
    """What ended it before it could begin."""
    steps: int | None
    """In which the goal must be reached; None for any number."""
    decided: Decided | None = field(default=None, init=False)
    """What the graph has decided; None until then."""

    def run(self) -> Outcome:
        """The graph, then the proof."""
        self.state.history.row(self.state.row())
        if self.steps is None:
            steps = noting_search(self._unbounded(), self.state, self.session)
        else:
            steps = self._bounded(self.steps)
        return self.stopped or run_steps(self.state, steps, self.session)

    def snapshot(self) -> Snapshot | None:
        """What a solve continues from; None while only the graph is looked at, and in bounded questions."""
        return self.state.snapshot()

    def conclude(self, outcome: Outcome) -> Solution:
        """Certificate, values and policy; what there is where a limit ended the solve."""
        totals = self.state.totals or self.state.unfinished(outcome)
        solution = conclude_totals(self.state, totals, self.plan, _ADVICE[self.table.pays_goal])
        if totals.found is None:
            return solution if self.decided is None else _with_known_values(solution, self.table, self.decided)
        if self.steps is not None:
            return _with_policy_of_first_step(solution)
        assert self.decided is not None  # the method has ended
        return _with_decided(solution, self.table, self.decided)

    def _unbounded(self) -> Generator[None, None, Outcome]:
        """Decide what the graph decides; then interval iteration on what is left."""
        state = self.state
        self.decided = found = yield from decide(state.tables, state.neighbours)
        state.staying = Staying.everywhere(found.staying, state.values.shape[0])
        state.tables.change(self.table.with_ends(found.ends, found.penalty))
        return (yield from state.iterate(self.resumed))

    def _bounded(self, steps: int) -> Generator[None, None, Outcome]:
        """Backups from the states of the goal."""
        state = self.state
        policy = np.full(state.values.shape[0], -1, np.int32)
        values = yield from bounded_values(state.tables, steps, policy)
        state.counters.backups += steps * policy.size
        state.values[:] = values if state.sign > 0 else -values[:, ::-1]
        middle = state.values.mean(axis=1)
        error = float(np.ptp(values, axis=1).max())
        state.residual, state.width = error, error
        target = state.options.residual if state.options.residual is not None else state.target()
        met = error <= target
        outcome = Outcome.PROVED if state.options.residual is None else Outcome.RESIDUAL_REACHED
        nothing = np.zeros(self.table.n_partitions, np.bool_)
        found = Inductive(nothing, -1, 0, error, error)
        state.totals = Totals(outcome if met else Outcome.PRECISION_LIMIT, middle, policy, found)
        return state.totals.outcome


def bounded_values(
    tables: Streamed, steps: int, policy: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> Work[FloatArray]:
    """float64 [n, 2]; lower and upper bounds of the probability to reach the goal within so many steps.

    Parameters
    ----------
    policy : int32 [n]; gets the rows of the first step.
    """
    table = cast(AskedTable, tables.source)
    assert table.ends is not None
    sign = 1.0 if table.sense == "max" else -1.0
    before = np.repeat((table.ends == GOAL).astype(np.float64)[:, None], 2, axis=1)
    after = before.copy()
    for p in range(table.n_partitions if steps == 0 else 0):
        first, counts = int(table.facts.partition_ptr[p]), table.action_counts(p)
        policy[first : first + counts.size] = np.where(counts > 0, 0, -1)
    for _ in range(steps):
        for _, rows, _ in tables.in_order(np.ones(table.n_partitions, np.bool_)):
            backup_bounds(rows, before, after, sign, policy)
            yield
        if np.array_equal(before, after):
            break
        before, after = after, before
    return before


def decided_values(table: AskedTable, ends: Ends) -> FloatArray:
    """float64 [n]; the answer in states that end the process, in the table's order and the source's sign; else NaN."""
    values = np.where(ends == CONTINUES, np.nan, 0.0)
    if table.pays_goal:
        values[ends == GOAL] = 1.0
    values[ends == INFINITE] = np.inf if float(table.facts.reward_range[:, 0].min()) >= 0 else -np.inf
    return values


def _with_decided(solution: Solution, table: AskedTable, decided: Decided) -> Solution:
    """The solution with the exact answers of the graph, and rows by which they are reached."""
    exact = table.to_source(decided_values(table, decided.ends))
    known = ~np.isnan(exact)
    assert solution.value_lower is not None
    assert solution.value_upper is not None
    lower, upper = (np.where(known, exact, values) for values in (solution.value_lower, solution.value_upper))
    values = np.where(known, exact, solution.values)
    if solution.certificate.stopping_rule == "epsilon":
        values = np.clip(values, *table.limits)
    rows = table.to_source(decided.policy)
    policy = np.where(known & (rows >= 0) & (solution.policy >= 0), rows, solution.policy).astype(np.int32)
    finite = np.isfinite(values)
    moved = float(np.abs(values[finite] - solution.values[finite]).max(initial=0.0))
    below = -_largest_difference(values[finite], lower[finite])
    above = _largest_difference(upper[finite], values[finite])
    if table.sense == "min":
        below, above = -above, -below
    certificate = replace(
        solution.certificate,
        error_bound=max(-below, above),
        error_lower=below,
        error_upper=above,
        residual_bound=float(np.nextafter(solution.certificate.residual_bound + 2 * moved, np.inf)),
        policy_loss_bound=difference_bound(above - below),
        proof=_PROOF,
    )
    return replace(
        solution,
        certificate=with_ends(certificate, values, table.sense),
        values=values,
        policy=policy,
        value_lower=lower,
        value_upper=upper,
    )


def _largest_difference(above: FloatArray, below: FloatArray) -> float:
    """At least 0 and every exact above - below, float64 [n] both."""
    return difference_bound(float((above - below).max(initial=0.0)))


def difference_bound(difference: float) -> float:
    """At least the exact difference of two float64, given as float64 rounds it: 0 is exact."""
    return float(np.nextafter(difference, np.inf)) if difference else 0.0


def _with_known_values(solution: Solution, table: AskedTable, decided: Decided) -> Solution:
    """A solution without a proof, with the answers that the graph has decided, and the others within their limits."""
    exact = table.to_source(decided_values(table, decided.ends))
    open_states = np.isnan(exact)
    values = np.where(open_states, np.clip(solution.values, *table.limits), exact)
    known = (
        f"{exact.size - np.count_nonzero(open_states):,} of {exact.size:,} states have the exact answer of the graph"
    )
    reason = None if solution.reason is None else f"{known}, and nothing is proved of the others: {solution.reason}"
    return replace(solution, values=values, reason=reason)


def _with_policy_of_first_step(solution: Solution) -> Solution:
    """The solution of a bounded question, whose policy is that of the first step: nothing is proved of following it."""
    certificate: Certificate = replace(solution.certificate, policy_loss_bound=np.inf, proof=_BOUNDED_PROOF)
    return replace(solution, method=_BACKUPS, certificate=certificate)
