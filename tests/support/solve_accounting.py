"""A solve's state without a backend: it receives reports of what happened to values, and keeps the bounds.

This is the only file of `test_bound_accounting` that knows which functions keep the bounds; the test itself names
visits, evaluations, shifts and updates of other solvers. `bound_faults` has versions of these functions that are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Backups, Evaluation, Improvement, Resident, VisitReport
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.priority import SchedulerView, make_priority
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.history import HistoryRecorder
from ooc_mdp.solver.peers import NO_PEERS, Signal
from ooc_mdp.solver.state import Access, SolveState

__all__ = ["SOUND", "Accounting", "Facts", "Kept", "Swept"]


@dataclass(frozen=True)
class Facts:
    """The small arrays of a model of P partitions, as `ResidualBounds` and `Contraction` take them."""

    discount: float
    partition_ptr: IntArray
    coupling: Coupling
    reward_range: FloatArray
    max_successors: IntArray
    shortest_durations: FloatArray
    row_sums: FloatArray
    """float64 [P, 2]; least and largest."""
    alike: bool
    """Whether every state has actions and all rows the same discount."""

    @property
    def n_partitions(self) -> int:
        return self.partition_ptr.size - 1

    @property
    def partition_grid(self) -> None:
        """The states are no grid."""

    def contraction(self) -> Contraction:
        least, largest = self.row_sums.T
        durations, successors = self.shortest_durations, self.max_successors
        return Contraction.of(self.discount, durations, largest, successors, least, self.alike)


@dataclass(frozen=True)
class Swept:
    """What the sweeps of one partition in one visit did."""

    sweeps: int
    last: tuple[float, float]
    """Largest rise and fall of a value in the last sweep."""
    boundary: tuple[float, float]
    """The same of boundary values, over the whole visit."""
    boundary_value: float
    """Largest boundary value that changed."""
    largest: float
    smallest: float
    residuals: FloatArray | None = None
    """float64 [4], as in `ooc_mdp.backends.base.RESIDUALS`, if they were measured."""


def _report(found: Sequence[Swept], joint: bool = False) -> VisitReport:
    """Of a backend that measured all partitions at the end (`joint`), or each after its own sweeps, or none."""
    measured = np.transpose([np.full(4, np.inf) if f.residuals is None else f.residuals for f in found])
    rise, fall = np.transpose([f.boundary for f in found])
    sweeps = np.array([f.sweeps for f in found])
    return VisitReport(
        sweeps=sweeps,
        backups=sweeps,
        boundary_rise=rise,
        boundary_fall=fall,
        boundary_value=np.array([f.boundary_value for f in found]),
        largest_value=np.array([f.largest for f in found]),
        smallest_value=np.array([f.smallest for f in found]),
        residuals=measured if np.isfinite(measured).any() else None,
        joint=joint,
        last_change=None if joint else np.transpose([f.last for f in found]),
    )


@dataclass(frozen=True)
class _OtherSolvers:
    """Peers that exist, and to which nothing is sent."""

    owned: npt.NDArray[np.bool_]
    count: int = 2

    def before_step(self, state: SolveState) -> Signal:
        return Signal.GO

    def boundary_changed(self, partitions: IntArray) -> None:
        """The test does not look at what is sent."""

    def take_rises(self) -> None:
        """Only evaluations take them."""


@dataclass(frozen=True)
class Kept:
    """Which classes keep the bounds."""

    state: type[SolveState] = SolveState
    bounds: type[ResidualBounds] = ResidualBounds
    loose: bool = False
    """Whether what is wrong with them is that bounds are larger than what was just measured."""
    events: tuple[str, ...] = ()
    """Names of the events of `test_bound_accounting` that show soonest what is wrong."""


SOUND = Kept()


class Accounting:
    """The bounds of a solve, kept by `SolveState` from reports of what happened to values.

    Parameters
    ----------
    owned : bool [P]; the partitions that this solver sweeps; values of the others arrive from peers.
    values : initial values; where all are 0, the bounds at zero values hold, and otherwise none is known.
    """

    def __init__(
        self, facts: Facts, priority: Any, owned: npt.NDArray[np.bool_], values: FloatArray, kept: Kept = SOUND
    ) -> None:
        options, n = SolveOptions(facts.discount, residual=1e-3, priority=priority), owned.size
        self.bounds = kept.bounds(facts.coupling, facts.contraction(), facts.reward_range, facts.max_successors)
        if not values.any():
            self.bounds.at_zero_values(facts.reward_range)
        target = Target(options, self.bounds, float(np.ptp(facts.reward_range)), owned)
        visited, present = np.zeros(n, np.bool_), np.ones(n, np.bool_)
        view = SchedulerView(present, visited, lambda: target.threshold)
        self._measured: tuple[FloatArray, float]
        self._committed: tuple[FloatArray, FloatArray]
        synchronous = SimpleNamespace(shift=lambda by: None, commit=lambda: self._committed)
        backend: Any = SimpleNamespace(synchronous=synchronous, measure=lambda *_: self._measured)
        cache: Any = SimpleNamespace(loads=np.zeros(n, np.int64), present=present)
        stager: Any = SimpleNamespace(load_and_access=lambda p, auxiliary: (Resident(p, 1, False, ()), True))
        table: Any = SimpleNamespace(facts=facts)
        plan: Any = SimpleNamespace(options=options)
        self.state = kept.state(
            table=table,
            plan=plan,
            backend=backend,
            bounds=self.bounds,
            target=target,
            priority=make_priority(options, facts, self.bounds, target, view),
            cache=cache,
            stager=stager,
            counters=SolveStatistics(n_partitions=n),
            visited=visited,
            history=HistoryRecorder(cache.loads),
            peers=NO_PEERS if owned.all() else _OtherSolvers(owned),
        )
        self.state.see_values(values)
        self._proved = np.inf

    def upper(self) -> FloatArray:
        """float64 [4, P]: the bounds of each partition as in `RESIDUALS`, without rounding."""
        return np.stack(list(self.bounds.arrays().values()))

    def rounding(self) -> FloatArray:
        """float64 [4]: what the rounding of backups adds to each kind of bound."""
        size = self.state.value_size
        return np.array([self.bounds.rounding(size, plain) for plain in (False, False, True, True)])

    def dependents(self, p: int) -> list[int]:
        """Partitions that read p."""
        return self.bounds.dependents(p).tolist()

    def visit(self, partitions: Sequence[int], found: Sequence[Swept]) -> None:
        """Partitions were swept one after the other; residuals, if any, are those after a partition's own sweeps."""
        self.state.record(_access(partitions), _report(found))

    def joint_visit(self, partitions: Sequence[int], found: Sequence[Swept]) -> None:
        """Partitions were swept at the same time; residuals hold at the values of all of them at the end."""
        self.state.record(_access(partitions), _report(found, joint=True))

    def measure(self, p: int, residuals: FloatArray) -> None:
        """A partition was measured at the present values, and none changed."""
        self._measured = residuals, float(self.state.largest[p])
        self.state.recompute_priority(p)

    def improve(
        self,
        partitions: Sequence[int],
        change: FloatArray,
        residuals: FloatArray,
        largest: FloatArray,
        smallest: FloatArray,
    ) -> None:
        """Partitions were swept together, and their policies made greedy at the values that resulted.

        Parameters
        ----------
        change : float64 [2, k]; the largest and the smallest change of a value.
        residuals : float64 [4, k]; at the values that resulted.
        """
        swept = Backups(change[0], -change[1], largest, smallest)
        found = Improvement(residuals, np.zeros(len(partitions), np.int64))
        self.state.record_improvement(_access(partitions), found, swept)

    def evaluate(
        self,
        evaluated: npt.NDArray[np.bool_],
        change: FloatArray,
        residuals: FloatArray,
        largest: FloatArray,
        smallest: FloatArray,
    ) -> None:
        """The policy of partitions (bool [P]) was evaluated on its rows.

        Parameters
        ----------
        change : float64 [2, P]; the largest and the smallest change of a value.
        residuals : float64 [4, P]; over all actions at the values that resulted.
        """
        unused = np.full(evaluated.size, np.nan)
        found = Evaluation(1, change[0], -change[1], residuals, unused, largest, smallest)
        self.state.record_evaluation(found, evaluated, residuals)

    def sweep_synchronously(
        self, residuals: FloatArray, rise: FloatArray, fall: FloatArray, largest: FloatArray, smallest: FloatArray
    ) -> None:
        """Every state took the backup of the values before, to which the residuals (float64 [4, P]) belong."""
        state = self.state
        for p in np.array_split(np.arange(rise.size), min(2, rise.size)):
            nothing, once = np.zeros(p.size), np.ones(p.size, np.int64)
            changes = (nothing, nothing, np.full(p.size, -np.inf), state.largest[p], state.smallest[p])
            state.record(
                _access(p.tolist()), VisitReport(once, once, *changes, residuals=residuals[:, p], changed=False)
            )
        self._committed = largest, smallest
        state.commit(rise, fall)

    def shift(self, by: float) -> None:
        """A number was added to all values."""
        self.state.shift(by)

    def centre(self) -> float:
        """By how much the bookkeeping wants all values shifted (0: not at all), for which it has accounted already."""
        self._proved = min(self._proved, self.bounds.error(self.state.value_size))
        by = self.bounds.best_shift(self.state.value_size, self._proved)
        if by != 0.0:
            self.state.shift(by)
        return by

    def apply_remote(
        self, partitions: IntArray, rise: FloatArray, fall: FloatArray, largest: FloatArray, smallest: FloatArray
    ) -> None:
        """Boundary values of peers arrived: how far one of each partition rose and fell from what was known."""
        self.state.apply_remote(partitions, rise, fall, largest)
        self.state.update_value_range(partitions, smallest, largest)


def _access(partitions: Sequence[int]) -> Access:
    return Access(np.array(partitions, np.int64), (), np.ones(len(partitions), np.bool_))
