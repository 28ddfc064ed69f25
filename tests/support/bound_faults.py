"""Bookkeeping of residual bounds that is wrong, each in one way that the code could have; the tests must find all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from solve_accounting import Kept

from ooc_mdp.backends.base import Backups, Evaluation, Improvement, VisitReport
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.solver.state import Access, SolveState

__all__ = ["FAULTS"]


class _NothingPropagated(ResidualBounds):
    """No change reaches a dependent."""

    def propagate(self, q: IntArray, rise: FloatArray, fall: FloatArray) -> None:
        """Nothing."""


class _SignsSwapped(ResidualBounds):
    """Rises of boundary values count as falls."""

    def propagate(self, q: IntArray, rise: FloatArray, fall: FloatArray) -> None:
        super().propagate(q, fall, rise)


class _LastChangeOnly(ResidualBounds):
    """What flowed in before is forgotten whenever more flows in."""

    def propagate(self, q: IntArray, rise: FloatArray, fall: FloatArray) -> None:
        self._forget_inflow()
        super().propagate(q, rise, fall)


class _LargestChangeOnly(ResidualBounds):
    """Changes of several partitions that one reads count as the largest of them, without the row sum's share."""

    def propagate(self, q: IntArray, rise: FloatArray, fall: FloatArray) -> None:
        for i in range(q.size):
            before = self._bounds.present.copy()
            super().propagate(q[i : i + 1], rise[i : i + 1], fall[i : i + 1])
            self._forget_inflow()
            np.maximum(before, self._bounds.present, out=self._bounds.present)


class _StaleBase(ResidualBounds):
    """What flows in is added to the bounds of an earlier visit, or of the beginning."""

    def settle(self, p: IntArray, residuals: FloatArray) -> None:
        settled = self._bounds.settled.copy()
        super().settle(p, residuals)
        self._bounds.settled[:] = settled


class _FlowForgottenOfAll(ResidualBounds):
    """A visit forgets what flowed into others too, of which the next change is all that is left."""

    def settle(self, p: IntArray, residuals: FloatArray) -> None:
        super().settle(p, residuals)
        self._forget_inflow()


class _NoOwnMass(ResidualBounds):
    """A partition does not read itself."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.own_mass[:] = 0.0


class _NotNormalised(ResidualBounds):
    """The last sweep's change bounds normalised residuals as if they were plain."""

    def after_sweep(self, p: IntArray, rise: FloatArray, fall: FloatArray) -> FloatArray:
        return super().after_sweep(p, rise, fall)[[2, 3, 2, 3]]


class _LooserOfTwo(ResidualBounds):
    """A visit that proves twice leaves the larger bounds."""

    def of_visit(self, p: IntArray, report: VisitReport) -> FloatArray:
        if report.residuals is None or report.last_change is None:
            return super().of_visit(p, report)
        return np.maximum(self.after_sweep(p, *report.last_change), report.residuals)


class _SmallerOfEnds(ResidualBounds):
    """A visit that proves twice leaves the smaller of rise and fall for both ends."""

    def of_visit(self, p: IntArray, report: VisitReport) -> FloatArray:
        found = super().of_visit(p, report)
        if report.residuals is None or report.last_change is None:
            return found
        return np.minimum(found, found[[1, 0, 3, 2]])


class _OneEndShifted(ResidualBounds):
    """A shift leaves the lower end of the residuals as it was."""

    def _shifted(self, by: float, value_size: float) -> FloatArray:
        found = super()._shifted(by, value_size)
        found[[1, 3]] = self._bounds.present[[1, 3]]
        return found


class _ShiftNotStretched(ResidualBounds):
    """All rows sum to the largest sum."""

    def _shifted(self, by: float, value_size: float) -> FloatArray:
        true = self.contraction
        self.contraction = replace(true, shift_ratio=np.ones_like(true.shift_ratio))
        found = super()._shifted(by, value_size)
        self.contraction = true
        return found


class _ShiftOnOldBase(ResidualBounds):
    """After a shift, what flows in is added to the bounds before it."""

    def apply_shift(self, by: float, value_size: float) -> None:
        settled = self._bounds.settled.copy()
        super().apply_shift(by, value_size)
        self._bounds.settled[:] = settled


class _AlwaysSettledLast(SolveState):
    """Each visit is taken for a joint one: partitions forget the changes of those that were swept after them."""

    def record(self, access: Access, report: VisitReport) -> None:
        joint = replace(report, residuals=self.bounds.of_visit(access.partitions, report), last_change=None, joint=True)
        SolveState.record(self, access, joint)


class _AlwaysSettledFirst(SolveState):
    """No visit is taken for a joint one: bounds hold, but count changes that the residuals know of already."""

    def record(self, access: Access, report: VisitReport) -> None:
        SolveState.record(self, access, replace(report, joint=False))


class _FirstMovedOnly(SolveState):
    """Of a visit of several, only the first changed values of others' surroundings."""

    def record(self, access: Access, report: VisitReport) -> None:
        first = np.arange(access.partitions.size) == 0
        rise, fall = np.where(first, report.boundary_rise, 0.0), np.where(first, report.boundary_fall, 0.0)
        SolveState.record(self, access, replace(report, boundary_rise=rise, boundary_fall=fall))


class _EvaluationsNotPropagated(SolveState):
    """An evaluation settles its own partitions, and changes no others'."""

    def record_evaluation(self, found: Evaluation, kept: npt.NDArray[np.bool_], residuals: FloatArray) -> None:
        same = np.zeros_like(found.rise)
        SolveState.record_evaluation(self, replace(found, rise=same, fall=same), kept, residuals)


class _EvaluationsSettledFirst(SolveState):
    """Bounds of what was evaluated count changes that the residuals know of already."""

    def record_evaluation(self, found: Evaluation, kept: npt.NDArray[np.bool_], residuals: FloatArray) -> None:
        SolveState.record_evaluation(self, found, kept, residuals)
        p = np.flatnonzero(kept)
        self.bounds.propagate(p, np.maximum(found.rise[p], 0.0), np.maximum(found.fall[p], 0.0))


class _ImprovementsNotPropagated(SolveState):
    """The sweep before an improvement changes bounds of its own partitions alone."""

    def record_improvement(self, access: Access, found: Improvement, swept: Backups | None = None) -> None:
        assert swept is not None
        same = np.zeros_like(swept.rise)
        SolveState.record_improvement(self, access, found, replace(swept, rise=same, fall=same))


class _ImprovementsSettledFirst(SolveState):
    """Bounds of what was improved count changes that the residuals know of already."""

    def record_improvement(self, access: Access, found: Improvement, swept: Backups | None = None) -> None:
        assert swept is not None
        SolveState.record_improvement(self, access, found, swept)
        self.bounds.propagate(access.partitions, np.maximum(swept.rise, 0.0), np.maximum(swept.fall, 0.0))


class _CommitsNotPropagated(SolveState):
    """A synchronous pass leaves each partition as if only its own values had changed."""

    def commit(self, rise: FloatArray, fall: FloatArray) -> None:
        before = self.bounds.after_sweep(np.arange(rise.size), rise, fall)
        SolveState.commit(self, rise, fall)
        self.bounds.settle(np.arange(rise.size), before)


class _CommitsSettledOnly(SolveState):
    """A synchronous pass leaves the residuals that it measured, at values that are no longer there."""

    def commit(self, rise: FloatArray, fall: FloatArray) -> None:
        measured = np.stack(list(self.bounds.arrays().values()))
        SolveState.commit(self, rise, fall)
        self.bounds.settle(np.arange(rise.size), measured)


class _PeersIgnored(SolveState):
    """Values of peers are taken over, and the bounds left as they were."""

    def apply_remote(self, partitions: IntArray, rise: FloatArray, fall: FloatArray, value: FloatArray) -> None:
        same = np.zeros_like(rise)
        SolveState.apply_remote(self, partitions, same, same, value)


_SWEEPS = ("visit", "visits in turn", "joint visit")
_SHIFTS = ("shift", "visit", "measured visit")
_EVALUATIONS = ("evaluate", "improve", "measure")
_PASSES = ("sweep synchronously", "measure")

FAULTS: dict[str, Kept] = {
    "nothing propagated": Kept(bounds=_NothingPropagated, events=_SWEEPS),
    "rises and falls swapped": Kept(bounds=_SignsSwapped, events=_SWEEPS),
    "the last change only": Kept(bounds=_LastChangeOnly, events=_SWEEPS),
    "the largest change only": Kept(bounds=_LargestChangeOnly, events=_SWEEPS),
    "stale base of what flows in": Kept(bounds=_StaleBase, events=("evaluate", "visit", "joint visit")),
    "inflow of all forgotten": Kept(bounds=_FlowForgottenOfAll, events=_SWEEPS),
    "no mass of its own": Kept(bounds=_NoOwnMass, events=_SWEEPS),
    "last change not normalised": Kept(bounds=_NotNormalised, events=_SWEEPS),
    "looser of two proofs": Kept(bounds=_LooserOfTwo, loose=True, events=("measured visit",)),
    "smaller of two ends": Kept(bounds=_SmallerOfEnds, events=("measured visit", "evaluate")),
    "one end shifted": Kept(bounds=_OneEndShifted, events=_SHIFTS),
    "shift not stretched": Kept(bounds=_ShiftNotStretched, events=_SHIFTS),
    "shift on the old base": Kept(bounds=_ShiftOnOldBase, events=_SHIFTS),
    "every visit settled last": Kept(state=_AlwaysSettledLast, events=("visits in turn",)),
    "every visit settled first": Kept(state=_AlwaysSettledFirst, loose=True, events=("joint visit",)),
    "changes of the first only": Kept(state=_FirstMovedOnly, events=_SWEEPS),
    "evaluations not propagated": Kept(state=_EvaluationsNotPropagated, events=_EVALUATIONS),
    "evaluations settled first": Kept(state=_EvaluationsSettledFirst, loose=True, events=_EVALUATIONS),
    "improvements not propagated": Kept(state=_ImprovementsNotPropagated, events=("improve", "measure")),
    "improvements settled first": Kept(state=_ImprovementsSettledFirst, loose=True, events=("improve",)),
    "commits not propagated": Kept(state=_CommitsNotPropagated, events=_PASSES),
    "commits as measured": Kept(state=_CommitsSettledOnly, events=_PASSES),
    "peers ignored": Kept(state=_PeersIgnored, events=("apply remote", "measure")),
}
"""Bookkeeping that is wrong, by name."""
