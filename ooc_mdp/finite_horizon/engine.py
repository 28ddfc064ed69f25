"""Backward induction over the stages of a horizon, out of core.

    final values ─▶ for each pass: partitions, several stages each ─▶ V_0     the policy of each stage goes to the disk
                         Schedule ─▶ StageBackend.advance ─▶ StageBounds

Two value vectors are in memory, of the stages done by parity; neighbouring partitions are a stage apart at most
(`ooc_mdp.finite_horizon.schedule`). What a stage of a partition is depends on the stage after it alone: whatever the
schedule, the cache, and however often a solve is stopped, each value has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.compiling import CompilationStopped, stoppable_compilation
from ooc_mdp.errors import OptionsError
from ooc_mdp.events import SolveProgress
from ooc_mdp.finite_horizon.backends import StageBackend, check_durations, stage_backend
from ooc_mdp.finite_horizon.bounds import StageBounds
from ooc_mdp.finite_horizon.criterion import FiniteHorizon
from ooc_mdp.finite_horizon.plan import StagePlan, plan_stages
from ooc_mdp.finite_horizon.schedule import Step
from ooc_mdp.model.criterion import record_of
from ooc_mdp.model.facts import check_reward_range
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Certificate, Outcome, Solution, SolveStatistics, with_ends
from ooc_mdp.model.stages import StageResults
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.stager import Stager
from ooc_mdp.solver.history import HistoryRecorder, HistoryRow, row_of
from ooc_mdp.solver.output import Output, Snapshot
from ooc_mdp.solver.run import Job, run_steps
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.verify import from_original
from ooc_mdp.store.checkpoint import check_stages, checkpoint_path
from ooc_mdp.store.stage_file import StageFile, stages_path
from ooc_mdp.store.trace import Trace

__all__ = ["METHOD", "HorizonEngine", "HorizonSolve", "final_values"]

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
        output.take_result_values()  # of no use: a stage is computed from the one after it alone
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
    factor = asked.discount * float(table.facts.row_sum_range[:, 1].max())
    growth = factor**asked.stages if factor > 1 else 1.0
    steps = growth * (asked.stages if factor >= 1 else min(asked.stages, 1 / (1 - factor)))
    check_reward_range(table.facts, steps)


def _load_code(table: Table, backend: StageBackend, writes: bool, session: Session) -> Outcome | None:
    """Load compiled loops now, so that the plan counts them; the outcome that ended it between two of them."""
    if writes:
        import zarr.codecs  # noqa: F401
    try:
        with stoppable_compilation(lambda: session.ended() is not None):
            backend.load_code(table)
    except CompilationStopped:
        return session.ended()
    return None


def final_values(table: Table, asked: FloatArray | None) -> FloatArray:
    """float64 [n], in the order of partitions and of the maximisation: those asked for, and terminal rewards.

    Parameters
    ----------
    asked : in the source's order and sign; None: 0.
    """
    sign = 1.0 if table.sense == "max" else -1.0
    values = np.zeros(table.n_states) if asked is None else sign * from_original(table, asked)
    ptr = table.facts.partition_ptr
    for p in range(table.n_partitions if table.facts.actions_per_state == 0 else 0):
        ends = table.action_counts(p) == 0
        if ends.any():
            paid = table.read_field("terminal_rewards", p)[0]
            values[ptr[p] : ptr[p + 1]][ends] = sign * paid[ends] if paid.size else 0.0
    return values


@dataclass(slots=True)
class StageState:
    """How far a solve has come."""

    table: Table
    options: SolveOptions
    asked: FiniteHorizon
    backend: StageBackend
    plan: StagePlan
    values: FloatArray
    """float64 [2, n], in the order of partitions, of the maximisation: by the parity of the stages done."""
    done: IntArray
    """int64 [P]; stages that each partition has done."""
    bounds: StageBounds
    pieces: StageFile
    cache: PartitionCache[Resident]
    stager: Stager
    counters: SolveStatistics
    history: HistoryRecorder
    seconds: Callable[[], float]
    writes: bool = False
    """Whether there is an output."""
    trace: Trace | None = None
    policy: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """int32, as long as the largest partition."""

    def iterate(self) -> Generator[None, None, Outcome]:
        """Take every partition through all stages, several of them for each load."""
        for order, steps in self.plan.schedule.passes(self.done, self.asked.stages):
            for step in steps:
                self._take(step, order)
                yield
            self._unpin()
        return self._outcome()

    def _take(self, step: Step, order: IntArray) -> None:
        """One stage of one partition, which stays in the cache until its last one of the pass."""
        p = step.partition
        resident, hit = self.stager.load_and_access(p)
        self.cache.pin(p, not step.last)
        self.stager.prefetch_in_order(order[step.place : step.place + 1 + self.plan.ahead])
        self.stager.collect()
        self.advance(p, resident)
        self._count(p, hit)

    def advance(self, p: int, resident: Resident) -> None:
        """Compute and record a stage of a resident partition."""
        done, stages = int(self.done[p]), self.asked.stages
        policy = self.policy[: resident.n_states]
        values = self.backend.advance(resident, self.values, done % 2, policy)
        self.bounds.advance(p, done, float(np.abs(values).max(initial=0.0)))
        self.pieces.write_policy(stages - done - 1, p, policy)
        self.pieces.write_values(stages - done - 1, p, values)
        self.done[p] += 1

    def _count(self, p: int, hit: bool) -> None:
        counters = self.counters
        counters.visits += not hit
        counters.sweeps += 1
        counters.backups += int(np.diff(self.table.facts.partition_ptr[p : p + 2])[0])
        self.history.visit(p, not hit, 1, self.seconds())
        if self.trace is not None:
            error = float(self.bounds.errors[self.done[p] % 2, p])
            self.trace.access(p, False, hit, 1, error, -np.inf)

    def _unpin(self) -> None:
        for p in np.flatnonzero(self.cache.present).tolist():
            self.cache.pin(p, False)

    def _outcome(self) -> Outcome:
        epsilon = self.options.epsilon
        return Outcome.PROVED if epsilon is None or self.error() <= epsilon else Outcome.PRECISION_LIMIT

    def error(self) -> float:
        """The largest error of any stage, infinite until all are done."""
        return float(self.bounds.of_stages.max()) if self.done.min() == self.asked.stages else np.inf

    def progress(self) -> SolveProgress:
        """Where the solve stands."""
        s = self.statistics()
        return SolveProgress(
            error_bound=self.error(),
            residual_bound=self.bounds.residual,
            target=self.options.epsilon,
            stopping_rule="epsilon",
            dirty=int(np.count_nonzero(self.done < self.asked.stages)),
            partitions=s.n_partitions,
            hit_rate=s.hit_rate,
            bytes_read=s.bytes_read,
            read_rate=0.0,
            loads=s.loads,
            seconds=s.solve_seconds,
            stages=(int(self.done.min()), self.asked.stages),
        )

    def row(self) -> HistoryRow:
        """The same for the history."""
        dirty = int(np.count_nonzero(self.done < self.asked.stages))
        resident = int(np.count_nonzero(self.cache.present))
        return row_of(self.statistics(), self.error(), self.bounds.residual, dirty, resident)

    def statistics(self) -> SolveStatistics:
        """The counters now."""
        self.cache.statistics.copy_to(self.counters)
        self.counters.cache_peak_bytes = max(self.counters.cache_peak_bytes, self.cache.peak)
        self.counters.load_seconds = self.stager.load_seconds
        self.counters.solve_seconds = self.seconds()
        return self.counters

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """What a checkpoint holds, by name."""
        return {"values": self.values, "done": self.done, **self.bounds.arrays(), **self.pieces.arrays()}

    def snapshot(self) -> Snapshot | None:
        """What a solve continues from; what was written of the stages is on the disk before."""
        if not self.done.any():
            return None
        self.pieces.sync()
        return Snapshot({**self.arrays(), **self.history.arrays()}, self.statistics())


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
        counters=SolveStatistics(
            n_states=table.n_states,
            n_partitions=table.n_partitions,
            cache_bytes=plan.cache_bytes,
            table_bytes=int(facts.partition_bytes.sum()),
            source=facts.kind,
        ),
        history=HistoryRecorder(cache.loads),
        seconds=session.clock.seconds,
        writes=job.writes,
        policy=np.zeros(int(np.diff(facts.partition_ptr).max()), np.int32),
    )
    _resume_or_begin(state, output, session, stack)
    return state


def _resume_or_begin(state: StageState, output: Output, session: Session, stack: ExitStack) -> None:
    """Continue from the output's checkpoint, if there is one."""
    saved = output.checkpoint(state.arrays())
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
