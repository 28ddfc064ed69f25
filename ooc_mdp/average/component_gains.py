"""The gain of each maximal end component, in all of them at once: discounted policy iteration, then steps.

Each state of an end component can be reached from each other one by its rows, so that one gain is the best of all of
its states (Puterman 1994, theorem 8.3.2), and it lies between the least and the largest max_a x_a there, whatever h is.
The confined table (`ooc_mdp.average.component_tables`) keeps to end components. h is that of the greedy policy
under a discount near 1, with the middle of its component's interval taken off all rewards; where that does not make
intervals narrower, h takes steps of relative value iteration, each component towards its own middle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ooc_mdp.average.backends import System
from ooc_mdp.average.component_tables import ConfinedTable
from ooc_mdp.average.host import HostGains
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.undiscounted.end_components import Staying
from ooc_mdp.undiscounted.tables import Streamed, Work

__all__ = ["COMPONENT_GAINS_BYTES", "ComponentGains"]

COMPONENT_GAINS_BYTES = 64
"""Bytes for each state, what the backend keeps apart."""
_STEP = 0.5
"""By which share of max_a x_a a step moves h."""
_GOAL = 0.03
"""An evaluation ends at this share of the widest interval,"""
_AIM = 0.02
"""or at this share of the target."""
_FIRST_INTEREST = 1e-2
"""1 - discount of the first evaluation,"""
_LEAST_INTEREST = 1e-10
"""and of the last."""
_PROGRESS = 0.8
"""A reading that leaves more than this share of the narrowest interval so far is one in vain."""
_MAX_EVALUATIONS = 40
"""Evaluations in vain, one after the other, after which h only takes steps."""
_MARGIN = 4.0
"""Times the rounding of x by which another action must be better,"""
_SLACK = 4.0
"""and by which ends of an interval are moved outward: what a verification by other sums may find."""
_MIN_ROUNDINGS = 64.0
"""An interval that is narrower than so many times the rounding of x may be all that float64 has to give."""


@dataclass(slots=True)
class ComponentGains:
    """A solve at work; all of the maximisation."""

    tables: Streamed
    """Of the confined table."""
    backend: HostGains
    """Has h and the policy."""
    epsilon: float
    """Half the width that intervals may have."""
    counters: SolveStatistics
    lower: FloatArray = field(init=False)
    """float64 [k]; the gain of each component is at least this, and the policy's is,"""
    upper: FloatArray = field(init=False)
    """and at most this."""
    _order: IntArray = field(init=False)
    """int64; states of components, one component after the other."""
    _starts: IntArray = field(init=False)
    """int64 [k]; where each begins."""
    _rounding: float = field(default=0.0, init=False)
    """The largest of an x in the last reading."""

    def __post_init__(self) -> None:
        """Nothing has been read yet."""
        confined = self._confined
        inside = np.flatnonzero(confined.components != confined.nowhere)
        self._order = inside[np.argsort(confined.components[inside], kind="stable")]
        numbers = confined.components[self._order]
        self._starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        self.lower, self.upper = np.full(self._starts.size, -np.inf), np.full(self._starts.size, np.inf)

    @property
    def _confined(self) -> ConfinedTable:
        table = self.tables.source
        assert isinstance(table, ConfinedTable)
        return table

    @property
    def _penalty(self) -> float:
        """Of the maximisation."""
        return self._confined.penalty * (1.0 if self._confined.sense == "max" else -1.0)

    def staying(self) -> Staying:
        """Between which numbers the gain of staying lies in each state; minus infinity in states of no component."""
        lower, upper = (self._of_states(values, -np.inf) for values in (self.lower, self.upper))
        return Staying(lower, upper)

    def narrow(self) -> Work[bool]:
        """Read and evaluate until each interval is as narrow as was asked for; False where float64 can do no more."""
        best, vain, interest, steps = np.inf, 0, _FIRST_INTEREST, False
        while True:
            yield from self._read()
            width = float((self.upper - self.lower).max())
            if width <= 2 * self.epsilon and float(self.lower.min()) > self._penalty:
                return True
            vain = 0 if width <= _PROGRESS * best else vain + 1
            best = min(best, width)
            if vain and width <= _MIN_ROUNDINGS * self._rounding:
                return False
            if vain:
                interest = max(interest / 8, _LEAST_INTEREST)
            steps |= vain > _MAX_EVALUATIONS or not self.backend.rows_complete
            if steps or not (yield from self._evaluate(width, interest)):
                self._step()

    def _read(self) -> Work[None]:
        """Measure all partitions, make the policy greedy and keep its rows; then the interval of each component."""
        margin = _MARGIN * self._rounding
        everything = np.ones(self._confined.n_partitions, np.bool_)
        for p, resident, hit in self.tables.residents_in_order(everything, sweeps=True):
            self.backend.improve(resident, margin)
            if self.tables.trace is not None:
                self.tables.trace.access(p, False, hit, 1, np.inf, -np.inf)
            self.counters.visits += 1
            self.counters.sweeps += 1
            self.counters.backups += resident.n_states
            yield
        self._rounding = float(self.backend.found()[1][:, 3].max())
        x = self.backend.advantage()[self._order]
        slack = _SLACK * self._rounding
        self.lower = np.minimum.reduceat(x, self._starts) - margin - slack
        self.upper = np.maximum.reduceat(x, self._starts) + slack

    def _evaluate(self, width: float, interest: float) -> Work[bool]:
        """Take values of the policy under a discount as h; False where they have no digits left."""
        backend, middle = self.backend, self._middle()
        backend.lower_rewards(middle)
        backend.begin_trial()
        goal = max(_GOAL * width, _AIM * self.epsilon)
        self.counters.backups += yield from backend.evaluate(System(0.0, goal, backend.iterations, 1.0 - interest))
        self.counters.policy_evaluations += 1
        h = backend.h
        mean = np.add.reduceat(h[self._order], self._starts) / np.diff(np.r_[self._starts, self._order.size])
        largest = float(np.abs(h).max())
        if not np.isfinite(largest) or np.spacing(largest) > self.epsilon:
            backend.withdraw()
            return False
        h -= self._of_states(mean, 0.0)
        return True

    def _step(self) -> None:
        """h moves by half of x, less the middle of each component's interval."""
        self.backend.h += _STEP * (self.backend.advantage() - self._middle())

    def _middle(self) -> FloatArray:
        """float64 [n]; of the interval of each state's component, and the penalty in states of none."""
        return self._of_states(0.5 * (self.lower + self.upper), self._penalty)

    def _of_states(self, values: FloatArray, elsewhere: float) -> FloatArray:
        """float64 [n]; a number of each component (float64 [k]) in its states."""
        found = np.full(self._confined.n_states, elsewhere)
        found[self._order] = np.repeat(values, np.diff(np.r_[self._starts, self._order.size]))
        return found
