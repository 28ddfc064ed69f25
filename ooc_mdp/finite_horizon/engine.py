"""Backward induction over the stages of a horizon, out of core.

    final values ─▶ for each pass: partitions, several stages each ─▶ V_0     the policy of each stage goes to the disk
                         Schedule ─▶ StageBackend.advance ─▶ StageBounds

Two value vectors are in memory, of the stages done by parity; neighbouring partitions are a stage apart at most
(`ooc_mdp.finite_horizon.schedule`). What a stage of a partition is depends on the stage after it alone: whatever the
schedule, the cache, and however often a solve is stopped, each value has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.compiling import load_until
from ooc_mdp.errors import OptionsError
from ooc_mdp.finite_horizon.backends import StageBackend, check_durations, stage_backend
from ooc_mdp.finite_horizon.bounds import StageBounds
from ooc_mdp.finite_horizon.criterion import FiniteHorizon
from ooc_mdp.finite_horizon.plan import StagePlan, plan_stages
from ooc_mdp.finite_horizon.state import StageState, final_values
from ooc_mdp.model.criterion import record_of
from ooc_mdp.model.facts import MAX_VALUE, check_reward_range
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Certificate, Outcome, Solution, with_ends
from ooc_mdp.model.stages import StageResults
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions, format_bytes
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.stager import Stager
from ooc_mdp.solver.history import HistoryRecorder
from ooc_mdp.solver.output import Output, Snapshot
from ooc_mdp.solver.run import Job, run_steps
from ooc_mdp.solver.session import Session
from ooc_mdp.store.checkpoint import check_stages, checkpoint_path
from ooc_mdp.store.stage_file import StageFile, remove_stages, stages_path

__all__ = ["METHOD", "HorizonEngine", "HorizonSolve"]

METHOD = "backward induction"
_PROOF = "the values of the stages differ from exact ones by rounding alone, which is summed up outward, stage by stage"


class HorizonEngine:
    """Finite horizons, in this process."""

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        """Refuse a target that there is not."""
        if options.residual is not None:
            raise OptionsError(
                "--residual is a stopping rule of methods that approach a solution; with --horizon each stage is "
                "computed once: leave it out, or bound the error with --epsilon"
            )

    def default_target(self, table: Table, solution: Solution) -> float:
        """What is proved: nothing else could be done."""
        return solution.certificate.error_bound

    def begin(self, job: Job) -> HorizonSolve:
        """Plan, allocate, and continue from what is there."""
        table, options, output, stack = job.table, job.options, job.output, job.stack
        asked = cast(FiniteHorizon, options.question)
        check_durations(table)
        _check_sizes(table, asked)
        session = job.session(job.await_signals())
        return_freed_memory()
        backend = stage_backend(options.device)
        stack.callback(backend.close)
        stopped = _load_code(table, backend, job.writes, session)
        plan = plan_stages(table, options, backend, job.writes)
        job.note(plan.describe(asked.stages))
        state = _start(job, asked, backend, plan, session)
        backend.start(table, options, state.values)
        state.trace = stack.enter_context(output.trace(METHOD, table.n_partitions))
        return HorizonSolve(state, session, stopped)


def _check_sizes(table: Table, asked: FiniteHorizon) -> None:
    """Refuse final values of other states, and rewards whose sums are too large."""
    final = asked.final_values
    if final is not None and final.size != table.n_states:
        raise OptionsError(
            f"there are {final.size} final values, and {table.name} has {table.n_states} states: give one for each"
        )
    if final is not None and not np.abs(final).max() <= MAX_VALUE:
        raise OptionsError(
            f"final values up to {np.abs(final).max():.3g} are above {MAX_VALUE:.0e}, and too large for sums in "
            f"float64; give them, and the rewards, in a larger unit"
        )
    factor = asked.discount * float(table.facts.row_sum_range[:, 1].max())
    growth = factor**asked.stages if factor > 1 else 1.0
    steps = growth * (asked.stages if factor >= 1 else min(asked.stages, 1 / (1 - factor)))
    check_reward_range(table.facts, steps)


def _load_code(table: Table, backend: StageBackend, writes: bool, session: Session) -> Outcome | None:
    """Load compiled loops now, so that the plan counts them; the outcome that ended it between two of them."""
    if writes:
        import zarr.codecs  # noqa: F401
    return load_until(session.ended, lambda: backend.load_code(table))


@dataclass(frozen=True, slots=True)
class HorizonSolve:
    """A solve of a finite horizon that has begun."""

    state: StageState
    session: Session
    stopped: Outcome | None
    """What ended it before it could begin."""

    def run(self) -> Outcome:
        """Take all stages."""
        self.state.history.row(self.state.row())
        outcome = self.stopped or run_steps(self.state, self.state.iterate(), self.session)
        self.state.stager.close()
        return outcome

    def snapshot(self) -> Snapshot | None:
        """What a solve continues from."""
        return self.state.snapshot()

    def conclude(self, outcome: Outcome) -> Solution:
        """The first stage's values and policy, and how to read the others; what is known where a limit ended it."""
        return _conclude(self.state, outcome)


def _start(job: Job, asked: FiniteHorizon, backend: StageBackend, plan: StagePlan, session: Session) -> StageState:
    """A solve at the final values, or where an earlier run came to."""
    table, output, stack = job.table, job.output, job.stack
    facts = table.facts
    cache: PartitionCache[Resident] = PartitionCache(plan.cache_bytes, table.n_partitions, backend.release)
    stack.callback(cache.clear)
    prefetch = table.loader(backend.name).prefetch
    stager = stack.enter_context(Stager(cache, backend, lambda p: int(facts.partition_bytes[p]), plan.ahead, prefetch))
    where = None if output.path is None else stages_path(output.path)
    pieces = StageFile(where, facts.partition_ptr, asked.stages, asked.kept_stages, plan.policy_dtype)
    state = StageState(
        table=table,
        options=job.options,
        asked=asked,
        backend=backend,
        plan=plan,
        values=np.zeros((2, table.n_states)),
        done=np.zeros(table.n_partitions, np.int64),
        bounds=StageBounds(facts, asked.stages, asked.discount),
        pieces=stack.enter_context(pieces),
        cache=cache,
        stager=stager,
        counters=SolveStatistics.of_table(facts, plan.cache_bytes),
        history=HistoryRecorder(cache.loads),
        seconds=session.clock.seconds,
        writes=job.writes,
        policy=np.zeros(int(np.diff(facts.partition_ptr).max()), np.int32),
    )
    if output.path is not None:
        stack.callback(_remove_unneeded, output.path)
    _resume_or_begin(state, output, session)
    return state


def _remove_unneeded(output: Path) -> None:
    """Remove the policies of the stages where no checkpoint refers to them: the solve ended before its first one."""
    if not checkpoint_path(output).exists():
        remove_stages(stages_path(output))


def _resume_or_begin(state: StageState, output: Output, session: Session) -> None:
    """Continue from the output's checkpoint, if there is one."""
    saved = output.checkpoint(state.arrays)
    if saved is None or output.path is None:
        values, ptr = final_values(state.table, state.asked.final_values), state.table.facts.partition_ptr
        state.values[0] = values
        state.bounds.begin(values, ptr)
        state.pieces.begin()
        for p in range(state.table.n_partitions):
            state.pieces.write_values(state.asked.stages, p, values[ptr[p] : ptr[p + 1]])
        session.begin(0.0)
        return
    where = checkpoint_path(output.path)
    check_stages(where, saved.arrays, state.asked.stages)
    state.values[:], state.done[:] = saved.arrays["values"], saved.arrays["done"]
    state.bounds.restore(saved.arrays)
    state.pieces.resume(saved.arrays)
    state.histories.restore(saved.arrays, state.asked.stages, where)
    if state.plan.acyclic is None and state.apart():
        raise OptionsError(
            f"the checkpoint {where} is of a run that took partitions through all stages in one load, for which a "
            f"cache of {format_bytes(state.plan.cache_bytes)} is too small; give --cache as it was"
        )
    state.history.restore(saved.arrays, where)
    state.cache.statistics.resume_from(saved.statistics)
    state.stager.load_seconds = saved.statistics.load_seconds
    for name in ("visits", "sweeps", "backups"):
        setattr(state.counters, name, getattr(saved.statistics, name))
    session.begin(saved.statistics.solve_seconds, saved.statistics.backups)


def _conclude(state: StageState, outcome: Outcome) -> Solution:
    """The solution: the first stage, where all are done; otherwise what the last stage of every partition is."""
    table, asked, error = state.table, state.asked, state.error()
    sign = 1.0 if table.sense == "max" else -1.0

    def in_source_order(values: FloatArray) -> FloatArray:
        found: FloatArray = table.to_source(values)
        return found.copy() if sign > 0 else np.subtract(0.0, found)

    complete = bool(np.isfinite(error))
    lasting = complete and (outcome.proved or not state.writes)
    final = asked.final_values
    stages = StageResults(
        asked.stages,
        state.bounds.of_stages.copy(),
        asked.kept_stages,
        state.pieces.dtype,
        lambda stage: cast("npt.NDArray[np.int32]", table.to_source(state.pieces.policy(stage))),
        lambda stage: in_source_order(state.pieces.values(stage)),
        None if final is None else lambda: final,
    )
    parity = np.repeat(state.done % 2, np.diff(table.facts.partition_ptr))
    values = in_source_order(np.where(parity == 1, state.values[1], state.values[0]))
    nothing = np.full(table.n_states, -1, np.int32)
    certificate = Certificate(
        error_bound=error,
        error_lower=-error,
        error_upper=error,
        residual_bound=state.bounds.residual if complete else np.inf,
        rounding_bound=error,
        target=state.options.epsilon or error,
        stopping_rule="epsilon",
        policy_loss_bound=float(np.nextafter(2 * error, np.inf)),
        proof=_PROOF,
        quantity="stage_value",
    )
    return Solution(
        outcome=outcome,
        method=METHOD,
        device=state.backend.name,
        criterion=record_of(asked),
        certificate=with_ends(certificate, values, table.sense),
        statistics=state.statistics(),
        history=state.history.end(state.row()),
        values=values,
        policy=stages.policy(0) if complete else nothing,
        memory_plan={"host": state.plan.memory.host, "device": state.plan.memory.device},
        stages=stages if lasting else None,
    )
