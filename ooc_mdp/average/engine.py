"""Average rewards in this process on the CPU: plan, resume, solve, and what is concluded.

    g*(s) = max_pi lim inf of E_pi [ r_1 + ... + r_T ] / T

What is proved is one interval that holds the gain of every state (`ooc_mdp.average.iteration`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooc_mdp.average.criterion import AverageReward
from ooc_mdp.average.iteration import AverageIteration, default_gain_target
from ooc_mdp.average.kernels import FOUND, any_row_leaves, improve, measure, policy_leaves, relax
from ooc_mdp.average.policy import EVALUATION_BYTES, KeptRows, policy_rows, rows_bytes
from ooc_mdp.backends.compiling import load_until
from ooc_mdp.backends.cpu.rows import MIN_MASS
from ooc_mdp.backends.layout import cache_of_size
from ooc_mdp.errors import OptionsError
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.criterion import record_of
from ooc_mdp.model.facts import check_reward_range
from ooc_mdp.model.solution import Certificate, Outcome, Solution
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.runtime.memory import resident_bytes, return_freed_memory
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan
from ooc_mdp.solver.history import history_bytes
from ooc_mdp.solver.output import Output, Snapshot
from ooc_mdp.solver.plan import beside_tables, fitting_cache, writing_bytes
from ooc_mdp.solver.run import Job, run_solve, run_steps
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.verify import from_original
from ooc_mdp.store.check_load import check_bytes
from ooc_mdp.store.checkpoint import check_bounds, checkpoint_path
from ooc_mdp.undiscounted.tables import Streamed, no_states

__all__ = ["METHOD", "AverageEngine", "AverageSolve", "check_table", "solve"]

METHOD = "policy and relative value iteration"
_PROOF = "min_s max_a x <= g*(s) <= max_s max_a x for x = r + P h - h at the values h, float64 rounding included"
_DEPTH = 2
"""Partitions that are read at a time."""


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
            "there, and a long-run average is of processes that go on; convert again with --normalize"
        )
    check_reward_range(facts, steps=1.0)


class AverageEngine:
    """Average rewards, in this process on the CPU."""

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
        stopped = _load_code(table, job.writes, session)
        budget, plan = _plan(table, options, job.writes)
        job.note(plan.describe())
        tables = stack.enter_context(Streamed(table, budget, _DEPTH))
        state = _start(tables, options, budget, session.clock.seconds)
        stack.callback(state.threads.close)
        session.begin(0.0)
        _resume(state, output, session)
        tables.trace = stack.enter_context(output.trace(METHOD, table.n_partitions))
        return AverageSolve(state, session, plan, stopped)


@dataclass(frozen=True, slots=True)
class AverageSolve:
    """A solve for the average reward that has begun."""

    state: AverageIteration
    session: Session
    plan: MemoryPlan
    stopped: Outcome | None
    """What ended it before it could begin."""

    def run(self) -> Outcome:
        """Until the interval is narrow enough."""
        self.state.history.row(self.state.row())
        return self.stopped or run_steps(self.state, self.state.iterate(), self.session)

    def snapshot(self) -> Snapshot | None:
        """What a solve continues from."""
        return self.state.snapshot()

    def conclude(self, outcome: Outcome) -> Solution:
        """Certificate, values and policy."""
        return _conclude(self.state, outcome, self.plan)


def _start(tables: Streamed, options: SolveOptions, budget: int, seconds: Callable[[], float]) -> AverageIteration:
    """A run of which nothing is known yet."""
    table = tables.source
    return AverageIteration(
        tables=tables,
        epsilon=default_gain_target(table) if options.epsilon is None else options.epsilon,
        rows=KeptRows(table.facts.partition_ptr, rows_bytes(table, budget)),
        counters=SolveStatistics.of_table(table.facts, budget),
        seconds=seconds,
        values=np.zeros(table.n_states),
    )


def _load_code(table: Table, writes: bool, session: Session) -> Outcome | None:
    """Load compiled loops now, so that the plan counts them; the outcome that ended it between two of them."""
    return load_until(session.ended, lambda: _warm_up(table, writes))


def _warm_up(table: Table, writes: bool) -> None:
    """Call all loops on no states of the smallest partition."""
    if writes:
        import zarr.codecs  # noqa: F401
    rows = no_states(table)
    policy, inside, numbers = np.zeros(1, np.int32), np.zeros(1, np.uint8), np.zeros(1)
    improve(rows, 0, 0, numbers, policy, numbers, 0.0, 1.0, np.zeros(FOUND))
    any_row_leaves(rows, inside)
    policy_leaves(rows, policy, inside)
    kept = policy_rows(rows, policy)
    measure(kept, numbers, numbers, 1.0)
    relax(kept, numbers, numbers, 0, 0, 0.0, 1.0, 1.0, True)


def _plan(table: Table, options: SolveOptions, writes: bool) -> tuple[int, MemoryPlan]:
    """The cache's budget, and every large buffer of the solve in bytes.

    Raises
    ------
    MemoryBudgetError : the cache cannot hold the largest partition.
    """
    n, loader, sizes = table.n_states, table.loader("cpu"), table.facts.partition_bytes
    budget = cache_of_size(sizes, options.cache_size)
    host = {
        PROCESS: resident_bytes(),
        "relative values": 16 * n,
        "policy and advantages": 12 * n,
        "evaluations": EVALUATION_BYTES * n,
        "marks of loaded states": check_bytes(n),
        "coupling": 64 * table.n_partitions + 96 * table.facts.coupling.mass.size,
        "rows of the policy": rows_bytes(table, budget),
        "history": history_bytes(table.n_partitions),
        "cache": min(budget, int(sizes.sum())),
        "padding and objects of tables": beside_tables(sizes, budget, loader.padding),
        "staging": _DEPTH * loader.scratch_bytes,
    }
    if writes:
        host["output buffers"] = writing_bytes(table)
    plan = MemoryPlan(host, {})
    plan.check_available(f"this solve of {table.name}", fitting_cache(plan, int(sizes.max())))
    return budget, plan


def _resume(run: AverageIteration, output: Output, session: Session) -> None:
    """Continue from the values of a checkpoint, or of a result that proves less: any values will do."""
    saved = output.checkpoint(lambda: {"values": run.values}, what="the values of ")
    if saved is None or output.path is None:
        values = output.take_result_values()
        if values is not None:
            run.values = run.sign * from_original(run.tables.source, values)
        return
    check_bounds(checkpoint_path(output.path), saved.arrays["values"])
    run.history.restore(saved.arrays, checkpoint_path(output.path))
    run.values = saved.arrays["values"].copy()
    session.begin(saved.statistics.solve_seconds, saved.statistics.backups)
    run.tables.count_on(saved.statistics)
    for name in ("visits", "sweeps", "backups", "policy_evaluations"):
        setattr(run.counters, name, getattr(saved.statistics, name))


def _conclude(run: AverageIteration, outcome: Outcome, plan: MemoryPlan) -> Solution:
    """The solution of a solve: its certificate, and values and policy in the source's order."""
    table, (low, high) = run.tables.source, run.bounds.interval
    lower, upper = (low, high) if run.sign > 0 else (-high, -low)
    half = float(np.nextafter(0.5 * run.bounds.width, np.inf))
    return Solution(
        outcome=outcome,
        method=METHOD,
        device="cpu",
        criterion=record_of(AverageReward()),
        certificate=Certificate(
            error_bound=half,
            error_lower=-half,
            error_upper=half,
            residual_bound=half,
            rounding_bound=run.rounding,
            target=run.epsilon,
            stopping_rule="epsilon",
            policy_loss_bound=run.bounds.width,
            proof=_PROOF if run.differing is None else f"{_PROOF}; {run.differing.describe(run.sign)}",
            quantity="gain",
            lower=lower,
            upper=upper,
        ),
        statistics=run.statistics(),
        history=run.history.end(run.row()),
        values=table.to_source(run.sign * run.values),
        policy=table.to_source(run.policy),
        memory_plan={"host": plan.host, "device": plan.device},
    )
