"""When to stop: a proved error, or the papers' plain Bellman residual.

The default target is 1e-4 of the value range, which is known only at the end; until then the span of one step's
rewards stands in where it is larger, and the last word is the range of the values themselves. Where the optimal
values may all be one number (the range is no wider than what is proved, and that is down to float64 rounding), their
size stands in for the range: a constant has none that could be met.

Bounds contain the rounding of a backup in float64, so no sweep proves less than that. Where less is asked for, sweeps
end at twice that rounding, and the values are measured and refined in a higher precision
(`ooc_mdp.solver.refinement`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.residual_bounds import ResidualBounds

__all__ = ["RELATIVE_EPSILON", "Target", "default_target"]

RELATIVE_EPSILON = 1e-4
"""The default target as a share of the value range."""
_LEAST_INFLUENCE = 1e-200
"""Of a partition on itself; a smaller one counts as none."""
_SWEPT_ROUNDINGS = 2.0
"""Sweeps end at a bound of so many times the rounding of a backup where less is asked for."""


def default_target(smallest: float, largest: float, proved: Callable[[], float], rounding: float) -> float:
    """The default of the error that is asked for.

    Parameters
    ----------
    smallest, largest : the range of the values.
    proved : the largest error that is possible, rounding included.
    rounding : the part of it that is float64's.
    """
    size, span = max(abs(largest), abs(smallest)), largest - smallest
    asked = RELATIVE_EPSILON * (span if span > 0 else size)
    if asked < 2 * rounding and span <= 2 * proved():
        return max(RELATIVE_EPSILON * size, 4 * rounding)
    return asked


class Target:
    """The stopping rule of one solve.

    Parameters
    ----------
    options : epsilon, residual, or neither.
    bounds : what is proved at any time.
    reward_span : largest minus smallest reward of the store.
    owned : bool [P]; the partitions that have to meet the target, read at all times; None: all of them.
    """

    def __init__(
        self,
        options: SolveOptions,
        bounds: ResidualBounds,
        reward_span: float,
        owned: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self.owned = owned
        """bool [P]: partitions that are not others' affair; None: all."""
        self._options = options
        self._bounds = bounds
        self._floor = reward_span
        self.plain = options.residual is not None
        """Whether the plain residual is what must come down."""
        self._relative = options.residual is None and options.epsilon is None
        c = bounds.contraction
        influence = c.discount * bounds.own_mass * (1.0 if self.plain else c.normaliser)
        self._own_influence = np.where(influence > _LEAST_INFLUENCE, influence, np.nan)
        """float64 [P]; the bound of each partition after a sweep, divided by the largest change of that sweep.

        NaN where the partition does not read itself."""
        self.smallest = 0.0
        self.largest = 0.0
        self.size = 0.0
        """Largest |V| so far."""
        self.rounding = bounds.rounding(0.0, self.plain)
        """What float64 rounding adds to the bound in force."""

    def update_value_range(self, smallest: float, largest: float, size: float) -> None:
        """The range of the values now, and the largest |V| so far."""
        self.smallest, self.largest = smallest, largest
        if size != self.size:
            self.size, self.rounding = size, self._bounds.rounding(size, self.plain)

    @property
    def tolerance(self) -> float:
        """The target as the user means it, at the present values."""
        if self._options.residual is not None:
            return self._options.residual
        if self._options.epsilon is not None:
            return self._options.epsilon
        return default_target(self.smallest, self.largest, lambda: self.proved, self.rounding)

    @property
    def active_tolerance(self) -> float:
        """What sweeps work for: `tolerance`, but no less than they can reach.

        While the range of the values is not known, another number may stand in for it.
        """
        wanted = max(self.tolerance, RELATIVE_EPSILON * self._floor) if self._relative else self.tolerance
        return max(wanted, self._least)

    @property
    def _least(self) -> float:
        """What sweeps can reach."""
        return _SWEPT_ROUNDINGS * self.rounding

    @property
    def threshold(self) -> float:
        """What every partition's bound must come down to, rounding set aside."""
        return self.active_tolerance - self.rounding

    def plain_threshold(self) -> float:
        """The plain residual at which every partition meets the target, rounding set aside."""
        wanted = max(self.threshold, 0.0)
        return wanted if self.plain else wanted / float(self._bounds.contraction.normaliser.max())

    def bounds(self) -> FloatArray:
        """float64 [P]: the bounds in force; 0 for partitions that are others' affair."""
        levels = self._bounds.plain() if self.plain else self._bounds.normalised()
        return levels if self.owned is None else np.where(self.owned, levels, 0.0)

    def dirty(self) -> npt.NDArray[np.bool_]:
        """bool [P], read-only: partitions whose bound, rounding included, is above the target in force.

        Once there are none, those that were not measured yet: nothing is proved before they were, and they come last.
        """
        found = self._above()
        return found if found.any() else ~self._bounds.measured & (True if self.owned is None else self.owned)

    def believe_small_arrays(self) -> None:
        """Let bounds that follow from the store's small arrays count as measured, unless these alone meet the target.

        What is never read is then believed as it is described, but nothing is proved by descriptions alone.
        """
        if self._above().any():
            self._bounds.measured[:] = True

    def _above(self) -> npt.NDArray[np.bool_]:
        found = self._bounds.above(self.active_tolerance, self.rounding, self.plain)
        return found if self.owned is None else found & self.owned

    def reached(self) -> bool:
        """Whether sweeps are done; tightens a stand-in target that turns out too large."""
        if self.dirty().any():
            return False
        if self._floor > 0 and not self.proved <= max(self.tolerance, self._least):
            self._floor = 0.0
            return not self.dirty().any()
        return True

    def known_at(self, error: float) -> bool:
        """Whether so much is proved that the range of the values, of which `tolerance` may be a share, is known."""
        return not self._relative or error <= self.largest - self.smallest

    def trivial_error(self) -> float:
        """What the error is at most whatever was swept.

        The largest value H >= 0 is in some partition p, of which H <= r_p + (1 - 1/n_p) H, so that H <= r_p n_p, with
        its largest reward r_p and normaliser n_p; the least value likewise.
        """
        sums = self._bounds.reward_range * self._bounds.contraction.normaliser[:, None]
        low, high = min(float(sums[:, 0].min()), 0.0), max(float(sums[:, 1].max()), 0.0)
        return max(high - self.smallest, self.largest - low)

    @property
    def proved(self) -> float:
        """The largest bound in force, rounding included."""
        return float(self.bounds().max(initial=0.0)) + self.rounding

    @property
    def outcome(self) -> Outcome:
        """Of a solve whose sweeps are done: PRECISION_LIMIT where they prove less than what is asked."""
        return self.outcome_of(self.proved)

    def outcome_of(self, proved: float, tolerance: float | None = None) -> Outcome:
        """Of a solve that has proved so much, in the sense of the stopping rule."""
        if not proved <= (self.tolerance if tolerance is None else tolerance):
            return Outcome.PRECISION_LIMIT
        return Outcome.RESIDUAL_REACHED if self.plain else Outcome.PROVED

    def significant(self, partition: int) -> float:
        """The plain residual above which a state of the partition keeps it from the target."""
        if self.plain:
            return self.active_tolerance
        return max(self.threshold / float(self._bounds.contraction.normaliser[partition]), 0.0)

    def change_limits(self, partitions: IntArray, share: float) -> FloatArray:
        """float64 [k]; largest change in a sweep of each partition that leaves it at `share` of `threshold`."""
        with np.errstate(over="ignore"):  # infinite then too
            limits: FloatArray = share * max(self.threshold, 0.0) / self._own_influence[partitions]
        limits[np.isnan(limits)] = np.inf  # those that do not read themselves
        return limits
