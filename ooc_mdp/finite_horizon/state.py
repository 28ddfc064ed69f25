"""How far backward induction has come: the values of two stages, and the steps from one to the next.

Nothing here plans, allocates or concludes: see `ooc_mdp.finite_horizon.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.events import SolveProgress
from ooc_mdp.finite_horizon.acyclic import Histories, take_all_stages
from ooc_mdp.finite_horizon.backends import StageBackend
from ooc_mdp.finite_horizon.bounds import StageBounds
from ooc_mdp.finite_horizon.criterion import FiniteHorizon
from ooc_mdp.finite_horizon.plan import StagePlan
from ooc_mdp.finite_horizon.schedule import Step
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.stager import Stager
from ooc_mdp.solver.history import HistoryRecorder, HistoryRow, progress_of, row_of
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.solver.verify import from_original
from ooc_mdp.store.stage_file import StageFile
from ooc_mdp.store.trace import Trace

__all__ = ["StageState", "final_values"]


def final_values(table: Table, asked: FloatArray | None) -> FloatArray:
    """float64 [n], in the order of partitions and of the maximisation: those asked for, and terminal rewards.

    Parameters
    ----------
    asked : in the source's order and sign; None: 0.
    """
    sign = 1.0 if table.sense == "max" else -1.0
    values = np.zeros(table.n_states) if asked is None else sign * from_original(table, asked)
    facts = table.facts
    paying = "terminal_rewards" in facts.dtypes
    if facts.actions_per_state or (asked is None and not paying):
        return values
    for p in range(table.n_partitions):
        action_ptr, paid = _ends(table, p)
        ends = np.diff(action_ptr) == 0
        if ends.any():
            own = values[facts.partition_ptr[p] : facts.partition_ptr[p + 1]]
            own[ends] = sign * paid[ends] if paid.size else 0.0
    return values


def _ends(table: Table, p: int) -> tuple[npt.NDArray[np.uint32], FloatArray]:
    """Pointers to the actions of a partition's states, and terminal rewards: one computation where it is not stored."""
    if table.facts.kind == "store":
        return table.read_field("action_ptr", p)[0], table.read_field("terminal_rewards", p)[0]
    part, _ = table.read(p)
    return part.action_ptr, part.terminal_rewards


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
    histories: Histories = field(default_factory=Histories)
    held: set[int] = field(default_factory=set)
    """Partitions that are kept from eviction, since they have more stages to do in this pass."""
    trace: Trace | None = None
    policy: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """int32, as long as the largest partition."""

    def iterate(self) -> Generator[None, None, Outcome]:
        """Take every partition through all stages, several of them for each load, or all."""
        acyclic, stages = self.plan.acyclic, self.asked.stages
        none_between = bool(np.isin(self.done, (0, stages)).all())
        if acyclic is not None and none_between and (self.plan.takes_all(stages) or self.apart()):
            self.cache.budget = self.plan.cache_bytes - acyclic.history_bytes
            yield from take_all_stages(self, acyclic)
        for order, steps in self.plan.schedule.passes(self.done, self.asked.stages):
            for step in steps:
                self._take(step, order)
                yield
            self._let_go(list(self.held))
        return self._outcome()

    def _take(self, step: Step, order: IntArray) -> None:
        """One stage of one partition, which stays in the cache until its last one of the pass."""
        p = step.partition
        resident, hit = self.stager.load_and_access(p)
        if step.last:
            self._let_go([p])
        elif p not in self.held:
            self.cache.pin(p)
            self.held.add(p)
        self.stager.prefetch_in_order(order[step.place : step.place + 1 + self.plan.ahead])
        self.stager.collect()
        self.advance(p, resident)
        self.count(p, hit, 1)

    def advance(self, p: int, resident: Resident) -> None:
        """Compute and record a stage of a resident partition."""
        done, stages = int(self.done[p]), self.asked.stages
        policy = self.policy[: resident.n_states]
        values = self.backend.advance(resident, self.values, done % 2, policy)
        self.bounds.advance(p, done, float(np.abs(values).max(initial=0.0)))
        self.pieces.write_policy(stages - done - 1, p, policy)
        self.pieces.write_values(stages - done - 1, p, values)
        self.done[p] += 1

    def count(self, p: int, hit: bool, stages: int) -> None:
        """A partition was taken so many stages further."""
        counters = self.counters
        counters.visits += not hit
        counters.sweeps += stages
        counters.backups += stages * int(np.diff(self.table.facts.partition_ptr[p : p + 2])[0])
        self.history.visit(p, not hit, stages, self.seconds())
        if self.trace is not None:
            error = float(self.bounds.errors[self.done[p] % 2, p])
            self.trace.access(p, False, hit, stages, error, -np.inf)

    def apart(self) -> bool:
        """Whether neighbours are more than a stage apart, as after some partitions were taken through all stages."""
        coupling = self.table.facts.coupling
        readers = np.repeat(np.arange(self.done.size), np.diff(coupling.ptr))
        return bool((np.abs(self.done[readers] - self.done[coupling.partitions]) > 1).any())

    def _let_go(self, partitions: Sequence[int]) -> None:
        for p in self.held.intersection(partitions):
            self.cache.unpin(p)
            self.held.remove(p)

    def _outcome(self) -> Outcome:
        epsilon = self.options.epsilon
        return Outcome.PROVED if epsilon is None or self.error() <= epsilon else Outcome.PRECISION_LIMIT

    def error(self) -> float:
        """The largest error of any stage, infinite until all are done."""
        return float(self.bounds.of_stages.max()) if self.done.min() == self.asked.stages else np.inf

    def progress(self) -> SolveProgress:
        """Where the solve stands."""
        s = self.statistics()
        return progress_of(
            s,
            error_bound=self.error(),
            residual_bound=self.bounds.residual,
            target=self.options.epsilon,
            stopping_rule="epsilon",
            dirty=int(np.count_nonzero(self.done < self.asked.stages)),
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
        arrays = {**self.arrays(), **self.histories.arrays(), **self.history.arrays()}
        return Snapshot(arrays, self.statistics())
