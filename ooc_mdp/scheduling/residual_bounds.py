"""Bounds on every partition's Bellman residual, kept in RAM, from which the final error is proved.

Values are those of a maximisation here (a minimisation is solved with its signs turned). With
Q_a(s) = r(s,a) + g(s,a) sum p V and g = gamma**tau, the normalised residual of a state is

    N(s) = max_a (Q_a(s) - V(s)) / (1 - g(s,a) rho),     rho = largest row sum of the stored probabilities,

and V* - V lies in [min_s N_pi(s), max_s N(s)]: the contraction gives the upper end, and the lower is attained by any
policy pi, with N_pi the same fraction for its actions (MacQueen 1966 for rho = 1 and one discount; terminal states
have N = 0). The policy kept here is the one whose actions the last sweeps chose.
For each partition p two numbers bound N from above (`rise`) and -N_pi from above (`fall`), and two more bound the plain
residuals Q - V alike. Both ends are signed: where all of p errs to one side, one of them is negative. They stay valid
without reading p:

- a sweep of p that changed its values by at most d+ upwards and d- downwards leaves
  g w[p,p] d+ and g w[p,p] d- as its plain bounds, whatever the order of its backups, since each new value was a
  backup of values that differ from the present ones by no more than that;
- visits to partitions q that changed their boundary values by at most c+[q] and c-[q] since p's last visit add
  g min(sum_q w[p,q] c+[q], rho max_q c+[q]) to p's, and the same with c-: a row has mass w[p,q] in q, and rho in all.

Division by 1 - g rho, with the largest g and rho of p, normalises both. The design's R[p] is max(rise, fall).
Where every state errs to the same side, a number added to all values halves the error or does better
(:meth:`ResidualBounds.best_shift`; the argument is in ``docs/theory/error-bounds.md``).
Float64 rounding of a backup is bounded apart (:meth:`ResidualBounds.rounding`) and added to what is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import RESIDUALS, VisitReport
from ooc_mdp.model.contraction import UNDERFLOW, UNIT_ROUNDOFF, UP, Contraction, underflow_of
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.scheduling.loops import Accumulated, Bounds, Dependents, Factors, above, raise_bounds, settle_bounds

__all__ = ["Inflow", "ResidualBounds", "rounded_up"]


def _raised(bound: FloatArray, share: FloatArray | float) -> FloatArray:
    """The bound, of either sign, made larger by a share of its size."""
    return bound + np.abs(bound) * share


def rounded_up(residuals: FloatArray) -> FloatArray:
    """Measured residuals, wider by what the subtraction of V and the division may have rounded away."""
    return _raised(residuals, UP - 1)


def _entries_of(ptr: IntArray, which: IntArray) -> tuple[IntArray, IntArray]:
    """The numbers ptr[i] .. ptr[i + 1] - 1 for each i of `which`, one after the other, and where in `which` i was."""
    counts = ptr[which + 1] - ptr[which]
    source = np.repeat(np.arange(which.size), counts)
    return np.repeat(ptr[which] - (np.cumsum(counts) - counts), counts) + np.arange(source.size), source


class Inflow(NamedTuple):
    """What changes of some partitions' values may do to the rows of each partition that reads them."""

    partition: IntArray
    source: IntArray
    """Which of the changed partitions, counted as they were given."""
    plain: FloatArray
    """By how much a plain residual may grow."""
    normalised: FloatArray


class ResidualBounds:
    """Upper bounds on the residuals of P partitions, updated after each visit.

    Parameters
    ----------
    coupling : w[p,q].
    contraction : discounts and row sums of the partitions.
    reward_range : float64 [P, 2], of the maximisation.
    max_successors : int64 [P].
    underflow : see :func:`underflow_of`.
    """

    def __init__(
        self,
        coupling: Coupling,
        contraction: Contraction,
        reward_range: FloatArray,
        max_successors: IntArray,
        underflow: float = UNDERFLOW,
    ) -> None:
        n = contraction.normaliser.size
        self.contraction = contraction
        self.reward_range = reward_range
        self._max_successors, self._underflow = max_successors, underflow
        rows = np.repeat(np.arange(n), np.diff(coupling.ptr))
        diagonal = rows == coupling.partitions
        self.own_mass = np.zeros(n)
        self.own_mass[rows[diagonal]] = coupling.mass[diagonal]
        off = ~diagonal
        order: IntArray = np.argsort(coupling.partitions[off], kind="stable")
        self._dependents = Dependents(
            ptr=np.searchsorted(coupling.partitions[off][order], np.arange(n + 1)),
            partitions=rows[off][order],
            mass=coupling.mass[off][order],
            places=order,
            row_ptr=np.searchsorted(rows[off], np.arange(n + 1)),
        )
        c = contraction
        self._factors = Factors(*map(np.ascontiguousarray, (c.discount, c.row_sum, c.normaliser)))
        self._accumulated = Accumulated(np.zeros((2, order.size)), np.zeros((2, n)), np.zeros((2, n)))
        present = np.empty((4, n))
        self.rise, self.fall, self.plain_rise, self.plain_fall = present
        self._bounds = Bounds(present, present.copy())
        self._above: tuple[tuple[float, float, bool], npt.NDArray[np.bool_]] | None = None
        """Arguments and result of the last call of :meth:`above`; None once bounds have changed."""
        self.measured = np.zeros(n, np.bool_)
        """bool [P]; whether the bounds rest on a load of the partition in this run, or may be believed without one
        (`Target.believe_small_arrays`): nothing is proved before all do."""
        self.claimed = np.zeros(n, np.bool_)
        """bool [P]; whether the bounds are those of a checkpoint, which only say how urgent a partition is."""
        self.invalidate()

    @classmethod
    def of_model(cls, facts: ModelFacts) -> ResidualBounds:
        """Bounds on the residuals of a model of which nothing else is known yet."""
        underflow = underflow_of(facts.probability_dtype)
        return cls(facts.coupling, facts.contraction, facts.reward_range, facts.row_widths, underflow)

    def arrays(self) -> dict[str, FloatArray]:
        """The bounds themselves by name, for a checkpoint."""
        return dict(zip(RESIDUALS, self._bounds.present, strict=True))

    def invalidate(self) -> None:
        """Nothing is known any longer: values came from outside."""
        self._replace_all(np.full_like(self._bounds.present, np.inf))

    def restore(self, saved: Mapping[str, FloatArray], measured: bool) -> None:
        """Go on from bounds that :meth:`arrays` gave, of which all or none are `measured`."""
        self._replace_all(np.stack([saved[name] for name in RESIDUALS]))
        self.measured[:], self.claimed[:] = measured, not measured

    def _replace_all(self, bounds: FloatArray) -> None:
        self._bounds.present[:] = self._bounds.settled[:] = bounds
        self._above = None
        self._forget_inflow()

    def _forget_inflow(self) -> None:
        for moved in self._accumulated:
            moved[:] = 0.0

    def at_zero_values(self, reward_range: FloatArray) -> None:
        """Bounds at V = 0, where each Q is a reward (terminal rewards lie in the range too)."""
        rise, fall = np.maximum(reward_range[:, 1], 0), np.maximum(-reward_range[:, 0], 0)
        inverse = self.contraction.normaliser
        self._replace_all(np.stack([rise * inverse, fall * inverse, rise, fall]))

    def dependents(self, q: int) -> IntArray:
        """Partitions that read boundary values of q, without q."""
        return self._dependents.partitions[self._dependents.ptr[q] : self._dependents.ptr[q + 1]]

    def readers(self, q: IntArray) -> npt.NDArray[np.bool_]:
        """bool [P]: partitions that read boundary values of any of these but themselves."""
        found = np.zeros(self.own_mass.size, np.bool_)
        if q.size:
            found[self._dependents.partitions[_entries_of(self._dependents.ptr, q)[0]]] = True
        return found

    def of(self, p: int) -> FloatArray:
        """float64 [4]: what is known of p, as in `RESIDUALS`."""
        return self._bounds.present[:, p].copy()

    def after_sweep(self, p: IntArray, rise: FloatArray, fall: FloatArray) -> FloatArray:
        """float64 [4, k]: bounds of partitions whose values a last sweep of every state moved by `rise` and `fall`."""
        factor = self.contraction.discount[p] * self.own_mass[p] * UP
        rise, fall, inverse = factor * rise, factor * fall, self.contraction.normaliser[p]
        return np.array((rise * inverse, fall * inverse, rise, fall))

    def after_synchronous_sweep(self, rise: FloatArray, fall: FloatArray) -> FloatArray:
        """float64 [4, P]: bounds once all values became backups of those before, which moved each partition's so far.

        Parameters
        ----------
        rise, fall : float64 [P], at least 0.
        """
        c, dependents = self.contraction, self._dependents
        source = np.repeat(np.arange(rise.size), np.diff(dependents.ptr))
        plain = np.empty((2, rise.size))
        for i, change in enumerate((rise, fall)):
            moved = change[source]
            flowed = self.own_mass * change + np.bincount(dependents.partitions, dependents.mass * moved, rise.size)
            largest = change.copy()
            np.maximum.at(largest, dependents.partitions, moved)
            plain[i] = c.discount * UP * np.minimum(flowed * UP, c.row_sum * largest)
        return np.concatenate((plain * c.normaliser, plain))

    def of_visit(self, p: IntArray, report: VisitReport) -> FloatArray:
        """float64 [4, k]: what a visit's report proves of the partitions; the tighter where it proves twice."""
        if report.last_change is None:
            assert report.residuals is not None, "a report has residuals or the last change"
            return report.residuals
        swept = self.after_sweep(p, *report.last_change)
        return swept if report.residuals is None else np.minimum(swept, report.residuals)

    def settle(self, p: IntArray, residuals: FloatArray) -> None:
        """Partitions p were visited: their bounds at the present values are `residuals`, float64 [4, p.size].

        Rounded up by what the subtraction of V and the division may have rounded away. What flowed into p before is
        part of them.
        """
        self._settle(p, residuals, UP - 1)
        self.measured[p], self.claimed[p] = True, False

    def expect(self, p: IntArray, residuals: FloatArray) -> None:
        """Take bounds of partitions p at the present values (float64 [4, p.size]) that were not measured here."""
        self._settle(p, residuals, 0.0)
        self.measured[p], self.claimed[p] = False, True

    def _settle(self, p: IntArray, residuals: FloatArray, share: float) -> None:
        residuals = np.ascontiguousarray(residuals)
        settle_bounds(p, residuals, share, self._dependents, self._accumulated, self._bounds)
        self._above = None

    def propagate(self, q: IntArray, rise: FloatArray, fall: FloatArray) -> None:
        """Boundary values of partitions q changed: raise the bounds of those that read them.

        Parameters
        ----------
        rise, fall : float64 [q.size], at least 0; most that one of them rose and fell.
        """
        rise, fall = np.ascontiguousarray(rise), np.ascontiguousarray(fall)
        raise_bounds(q, rise, fall, self._dependents, self._accumulated, self._factors, self._bounds)
        self._above = None

    def inflow_of(self, q: IntArray, change: FloatArray) -> Inflow:
        """What changes of at most `change` (float64 [q.size]) in partitions q may do to each of their dependents."""
        where, source = _entries_of(self._dependents.ptr, q)
        p = self._dependents.partitions[where]
        plain = self.contraction.discount[p] * UP * self._dependents.mass[where] * change[source]
        return Inflow(p, source, plain, plain * self.contraction.normaliser[p])

    def span(self) -> float:
        """How far N and N_pi are apart over all states, by their bounds: twice what a shift can leave of the error."""
        return float(self.rise.max() + self.fall.max())

    def best_shift(self, value_size: float, proved: float = 0.0) -> float:
        """The number that, added to all values, brings the proved error down most; 0 where none should be added.

        Every state has to err to the same side: none that is settled is spoilt. The error that is proved afterwards
        must be no more than what every state is proved to err by now, so that no state is worse off, or half of what
        was ever proved: that can happen so many times only.

        Parameters
        ----------
        value_size : largest |V|.
        proved : the least error that was proved at any time.
        """
        rise, fall, stretch = self.rise, self.fall, self.contraction.shift_ratio
        if not np.isfinite(stretch).all():
            return 0.0
        # All values too low (N_pi > 0 everywhere), or all too high (N < 0): `near` is what is largest then.
        for sign, near, far in ((1.0, rise, fall), (-1.0, fall, rise)):
            least = float((-far / stretch).min())
            if not (least > 0 and np.isfinite(near).all()):
                continue
            by = sign * (float(near.max()) + float(-far.max())) / (1 + float(stretch.max()))
            left = self.bound_after_shift(by, value_size, plain=False)
            if left + 2 * self.rounding(value_size + abs(by)) <= max(least, 0.5 * proved):
                return by
        return 0.0

    def bound_after_shift(self, by: float, value_size: float, plain: bool) -> float:
        """The largest bound, on N or on the plain residual, that would be left if `by` were added to all values."""
        after = self._shifted(by, value_size)
        return float(after[2:].max() if plain else after[:2].max())

    def apply_shift(self, by: float, value_size: float) -> None:
        """A number was added to all values, the largest of which was `value_size` in size before."""
        self._replace_all(self._shifted(by, value_size))

    def _shifted(self, by: float, value_size: float) -> FloatArray:
        """float64 [4, P]: the bounds after a shift.

        N of a row that sums to s falls by `by` (1 - g s) / (1 - g rho), which is `by` at least and `by` * stretch at
        most; N of a state without action by `by`.
        """
        c = self.contraction
        falls, rises = (by, -by * c.shift_ratio) if by > 0 else (by * c.shift_ratio, -by)
        # Of what was measured before, 1 - g rho is known up to a few roundings, and each new value has been rounded.
        known = 16 * UNIT_ROUNDOFF * c.normaliser
        rounded = 8 * UNIT_ROUNDOFF * (value_size + abs(by)) * c.normaliser
        rise = _raised(_raised(self.rise, known) - falls + rounded, UP - 1)
        fall = _raised(_raised(self.fall, known) - rises + rounded, UP - 1)
        narrowest = 1 / c.normaliser
        plain = [_raised(x * np.where(x > 0, c.normaliser_max, narrowest), UP - 1) for x in (rise, fall)]
        return np.stack([rise, fall, *plain])

    def normalised(self) -> FloatArray:
        """float64 [P]: R[p], the bound on |N| over each partition."""
        return np.maximum(self.rise, self.fall)

    def plain(self) -> FloatArray:
        """float64 [P]: the bound on |max_a Q_a - V| over each partition."""
        return np.maximum(self.plain_rise, self.plain_fall)

    def above(self, target: float, rounding: float, plain: bool) -> npt.NDArray[np.bool_]:
        """bool [P], read-only: whether the bound on N, or on the plain residual, exceeds a target, rounding included.

        Kept until bounds change: a step of a solve needs it several times.
        """
        arguments = target, rounding, plain
        if self._above is None or self._above[0] != arguments:
            found = above(self._bounds, plain, rounding, target)
            found.flags.writeable = False
            self._above = arguments, found
        return self._above[1]

    def policy_residual_bounds(self) -> FloatArray:
        """float64 [P]: the bound on the plain residual of the policy's action, if it is greedy."""
        return np.maximum(np.abs(self.plain_rise), np.abs(self.plain_fall))

    @staticmethod
    def rounding_of(
        contraction: Contraction,
        reward_range: FloatArray,
        max_successors: IntArray,
        value_size: float,
        plain: bool = False,
        underflow: float = UNDERFLOW,
    ) -> float:
        """Bound on what float64 rounding of a backup adds to N (or to the plain residual), if |V| <= value_size."""
        c = contraction
        size = np.abs(reward_range).max(axis=1, initial=0.0) + c.discount * c.row_sum * value_size
        rounding = (max_successors + 8.0) * (UNIT_ROUNDOFF * size + underflow * (size > 0))
        return float(np.max(rounding if plain else rounding * c.normaliser, initial=0.0))

    def rounding(self, value_size: float, plain: bool = False) -> float:
        """:meth:`rounding_of` over all partitions."""
        return self.rounding_of(
            self.contraction, self.reward_range, self._max_successors, value_size, plain, self._underflow
        )

    def error(self, value_size: float) -> float:
        """The proved bound on ||V - V*||, rounding included; infinite while some bounds are only claimed."""
        largest = np.inf if self.claimed.any() else float(self.normalised().max(initial=0.0))
        return largest + self.rounding(value_size)

    def residual(self) -> float:
        """The proved bound on the plain residual, without rounding; infinite as :meth:`error`."""
        return np.inf if self.claimed.any() else float(self.plain().max(initial=0.0))

    def policy_loss_bound(self, value_size: float) -> float:
        """Bound on V* - V^pi for the policy pi, rounding included."""
        lower, upper = self.error_interval(value_size)
        return upper - lower

    def error_interval(self, value_size: float) -> tuple[float, float]:
        """(lower, upper): V* - V lies between them in every state, rounding included; infinite as :meth:`error`."""
        if self.claimed.any():
            return -np.inf, np.inf
        slack = self.rounding(value_size)
        return -(float(self.fall.max(initial=0.0)) + slack), float(self.rise.max(initial=0.0)) + slack
