"""Which partition next: Wingate's H1, H2 and hybrid (2004) and a joint priority, over bounds kept in RAM.

H1 orders by the residual B; H2 by B + V where B > epsilon: what a state would be worth after its backup, so that
large values settle before they spread. The solver knows B only as the bound R[p], and B + V as the value that
flows in: the largest reward at the start, afterwards the largest discounted boundary value that changed (section 4.2).
Hybrid takes H2 between meta-partitions and H1 within them (section 11.1).
Joint looks at the cache too: what is read together converges together, and need not be read again; and at what was
never read, which must be, however small its residual.
This module ranks; it loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import VisitReport
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.loops import Residency, rank_jointly
from ooc_mdp.scheduling.meta_partitions import meta_partitions
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target

__all__ = ["H1", "H2", "Hybrid", "Joint", "Priority", "SchedulerView", "make_priority"]

_ALONE = 0.01
"""Weight of a partition none of whose dependents is resident, against 1 for one with all of them."""
_POWER_FEW, _POWER_MANY = 0.2, 0.5
"""Of the residual, where partitions have few dependents and where they have many."""
_FAR = 100.0
"""Times the target: a residual beyond which no partition that was never read is much more urgent than another."""
_SIGNIFICANT = 1e-3
"""Share of the target that a change must amount to, to raise what flows in."""
_TINY = float(np.finfo(np.float64).tiny)
_MANY = 12.0
"""Dependents of a partition on average: as many as make a coupling strong (`ooc_mdp.solver.plan`)."""


class Priority(Protocol):
    """A rank of dirty partitions, named in `make_priority` and in `ooc_mdp.options.PriorityName`."""

    name: str

    def rank(self, residual: FloatArray, resident: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """float64 [P]: larger means sooner, given R[p].

        Parameters
        ----------
        resident : bool [P]; which partitions count as resident; None: those that are.
        """
        ...

    def after_visit(self, partitions: IntArray, report: VisitReport) -> None:
        """Partitions were visited: their own sweeps took in all that had flowed in."""
        ...

    def after_change(self, partitions: IntArray, change: FloatArray, value: FloatArray) -> None:
        """Boundary values of partitions changed by at most `change`, to at most `value` (float64 [k])."""
        ...

    def set_exact(self, partition: int, value: float) -> None:
        """The partition was read: `value` is the exact largest B + V among its unconverged states."""
        ...

    def arrays(self) -> dict[str, FloatArray]:
        """What a checkpoint keeps of it, by name."""
        ...

    def restore(self, saved: Mapping[str, FloatArray]) -> None:
        """Go on from what :meth:`arrays` gave, as far as it is there."""
        ...


class H1:
    """Largest residual first: R[p] holds all that there is to know."""

    name = "h1"

    def rank(self, residual: FloatArray, resident: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """R[p] itself."""
        return residual

    def after_visit(self, partitions: IntArray, report: VisitReport) -> None:
        """Nothing to note."""

    def after_change(self, partitions: IntArray, change: FloatArray, value: FloatArray) -> None:
        """Nothing to note."""

    def set_exact(self, partition: int, value: float) -> None:
        """Nothing to note."""

    def arrays(self) -> dict[str, FloatArray]:
        """Nothing."""
        return {}

    def restore(self, saved: Mapping[str, FloatArray]) -> None:
        """Nothing."""


class H2:
    """Largest value that flows in first.

    Parameters
    ----------
    first : float64 [P]; largest value that a first backup could give each partition.
    discount : gamma; by how much a boundary value counts less one step before it.
    bounds : which partitions read which, and by how much a change raises their residuals.
    target : what every residual must come down to; read at all times.
    """

    name = "h2"

    def __init__(self, first: FloatArray, discount: float, bounds: ResidualBounds, target: Target) -> None:
        self.value = first.copy()
        self._discount, self._bounds, self._target = discount, bounds, target

    def rank(self, residual: FloatArray, resident: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """The value that flows in."""
        return self.value

    def after_visit(self, partitions: IntArray, report: VisitReport) -> None:
        """What had flowed in is worked in; what is dirty still has its own largest value before it."""
        change = np.maximum(report.boundary_rise, report.boundary_fall)
        self.after_change(partitions, change, report.boundary_value)
        dirty = self._target.bounds()[partitions] > self._target.threshold
        self.value[partitions] = np.where(dirty, report.largest_value, -np.inf)

    def after_change(self, partitions: IntArray, change: FloatArray, value: FloatArray) -> None:
        """Raise the partitions that read them to the discounted value, where the change matters."""
        inflow = self._bounds.inflow_of(partitions, change)
        amount = inflow.plain if self._target.plain else inflow.normalised
        matters = amount > max(_SIGNIFICANT * self._target.threshold, 0.0)  # rounding may leave nothing to want
        np.maximum.at(self.value, inflow.partition[matters], self._discount * value[inflow.source[matters]])

    def set_exact(self, partition: int, value: float) -> None:
        """Take the exact B + V."""
        self.value[partition] = value

    def arrays(self) -> dict[str, FloatArray]:
        """The values that flow in."""
        return {"inflow": self.value}

    def restore(self, saved: Mapping[str, FloatArray]) -> None:
        """Take them, where the solve that was saved had this priority."""
        if "inflow" in saved:
            self.value[:] = saved["inflow"]


class Hybrid(H2):
    """H2 between meta-partitions, H1 within them (Wingate 2004, section 11.1); rounds of sweeps within partitions.

    A meta-partition is worked on until it has converged, then the next is chosen (section 5.3):

        1. the meta-partitions of the last visit, while they have dirty partitions, before all others
        2. among meta-partitions the largest H2 of a dirty partition; of equal ones the lower number
        3. within a meta-partition the largest H1

    H1 alone moves on before a cluster has converged, and H2 alone converges one partition after another where they
    depend on each other. One meta-partition of all is H1, one for each partition is H2. Which were worked on is not
    saved: a resumed solve chooses anew by H2.

    Parameters
    ----------
    members : int64 [P]; number of each partition's meta-partition, 0 .. M-1 (`ooc_mdp.scheduling.meta_partitions`).
    first, discount, bounds, target : as of :class:`H2`.
    """

    name = "hybrid"

    def __init__(
        self, members: IntArray, first: FloatArray, discount: float, bounds: ResidualBounds, target: Target
    ) -> None:
        super().__init__(first, discount, bounds, target)
        self._members = members
        self._worked_on = np.zeros(int(members.max()) + 1, np.bool_)

    def rank(self, residual: FloatArray, resident: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """1, 2, ... for dirty partitions, in the order of the three rules; 0 for others."""
        rank = np.zeros(residual.size)
        dirty = np.flatnonzero(self._target.dirty())
        of = self._members[dirty]
        value = np.full(self._worked_on.size, -np.inf)
        np.maximum.at(value, of, self.value[dirty])
        place = np.empty(value.size, np.int64)
        place[np.lexsort((-np.arange(value.size), value, self._worked_on))] = np.arange(value.size)
        rank[dirty[np.lexsort((-dirty, residual[dirty], place[of]))]] = np.arange(1.0, dirty.size + 1)
        return rank

    def after_visit(self, partitions: IntArray, report: VisitReport) -> None:
        """As H2; and these meta-partitions are worked on."""
        super().after_visit(partitions, report)
        self._worked_on[:] = False
        self._worked_on[self._members[partitions]] = True


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """What a priority may know of the solve, besides bounds: arrays that are read whenever a rank is asked for."""

    present: npt.NDArray[np.bool_]
    """bool [P]; which partitions are resident."""
    visited: npt.NDArray[np.bool_]
    """bool [P]; which were swept at least once."""
    threshold: Callable[[], float]
    """What every residual must come down to, at present."""


class Joint(H1):
    """A large residual, and many resident dependents: urgency * (0.01 + fraction of p's dependents that are resident).

    A visit to p changes the residuals of its dependents. Where these are resident, they are swept next, and p after
    them, without a load.

        urgency of what was swept before     (R[p] / largest R)**e          e = 1/5
        urgency of what never was            R[p] / (100 target + R[p])

    With the fifth root, twice as many resident dependents count for more than a residual thirty times as large. A
    partition that was never swept has to be read once in any case, best while its dependents are resident. If it were
    postponed because its residual is small, it would be read after its neighbours were evicted, and where discounts are
    near 1 even a small change is then propagated once more through all that depends on them. Where partitions have
    many dependents, most of these are absent in any case, and e is 1/2 (figures:
    ``benchmarks/notes/2026-11-scheduling.md``). Of residents that wait to be worked on, those have a high rank whose
    dependents are worked on (`ooc_mdp.scheduling.working_set`).

    Parameters
    ----------
    coupling : which partitions read which.
    view : of the solve; read whenever the rank is asked for.
    """

    name = "joint"

    def __init__(self, coupling: Coupling, view: SchedulerView) -> None:
        n = view.present.size
        rows = np.repeat(np.arange(n), np.diff(coupling.ptr))
        others = rows != coupling.partitions
        read: IntArray = coupling.partitions[others]
        self._residency = Residency(
            ptr=np.searchsorted(rows[others], np.arange(n + 1)),
            read=read,
            counted=np.zeros(n, np.bool_),
            resident=np.zeros(n),
            share=1.0 / np.maximum(np.bincount(read, minlength=n), 1),
        )
        self._power = _POWER_FEW if read.size < _MANY * n else _POWER_MANY
        self._view = view

    def rank(self, residual: FloatArray, resident: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """The urgency, weighted; residuals may be infinite, where nothing is known of the first values."""
        view, far = self._view, max(_FAR * self._view.threshold(), _TINY)
        ranks: FloatArray = rank_jointly(
            residual,
            view.present if resident is None else resident,
            view.visited,
            self._residency,
            self._power,
            far,
            _ALONE,
        )
        return ranks


def make_priority(
    options: SolveOptions, facts: ModelFacts, bounds: ResidualBounds, target: Target, view: SchedulerView
) -> Priority:
    """The priority that the options ask for, over the P partitions of a model."""
    match options.effective_priority:
        case "joint":
            return Joint(facts.coupling, view)
        case "h1":
            return H1()
        case "h2":
            return H2(bounds.reward_range[:, 1], options.discount, bounds, target)
        case "hybrid":
            members = meta_partitions(facts.n_partitions, facts.partition_grid)
            return Hybrid(members, bounds.reward_range[:, 1], options.discount, bounds, target)
        case unknown:
            assert_never(unknown)
