"""The method for average rewards: policy iteration on kept rows, with relative value iteration where that stalls.

    read what may move the interval ─▶ interval narrow enough? ─▶ evaluate the policy on its rows ─▶ read ...
      greedy policy, bounds of x               proved               h with x = g, in memory

A reading changes no value, so that all bounds are about one h at any time (`ooc_mdp.average.bounds`). The next h may
prove less; what is claimed is the narrowest interval so far (`ooc_mdp.average.proved`). Where the policy
has several recurrent classes, h is that of a discount near 1; where that does not help, or rows take too much memory, h
moves by half of max_a x_a: a step of relative value iteration in the model with P' = (I + P) / 2, which has no period.
Where that stalls as well, the gain may differ between states, which is then looked at (`ooc_mdp.average.differing`).
``docs/theory/average-reward.md`` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ooc_mdp.average.backends import GainBackend, Measured, System
from ooc_mdp.average.bounds import GainBounds
from ooc_mdp.average.differing import Differing, prove_differing
from ooc_mdp.average.proved import Interval, Proved, rewards_of
from ooc_mdp.errors import OptionsError
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.solver.history import HistoryRecorder, HistoryRow, progress_of, row_of
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.undiscounted.tables import Streamed, Work

__all__ = ["PROVING", "AverageIteration", "default_gain_target"]

PROVING = "proving_values"
"""Name, in a checkpoint, of the values that prove the narrowest interval, where h is another."""
_RELATIVE_WIDTH = 1e-4
"""Width of the interval, as a share of the range of the rewards, where no epsilon is given."""
_STEP = 0.5
"""w: by which share of max_a x_a a step moves h."""
_GOAL = 0.03
"""An evaluation ends at this share of what other actions leave between the bounds, or of the range of the rewards where
that is less: values that leave a wider interval say little about how precise the next ones have to be;"""
_AIM = 0.02
"""or at this share of the target."""
_ACCEPTED = 0.5
"""Share of the spread of the policy's x that relative values may leave."""
_MAX_SPACING = 1e-9
"""Share of that spread beforehand that a unit in the last place of h may be, where it is more than the target."""
_FIRST_INTEREST = 1e-2
"""1 - discount of the first evaluation under a discount,"""
_LEAST_INTEREST = 1e-10
"""and of the last."""
_MAX_WAIT = 16
"""Evaluations under a discount, at most, before relative values are tried again."""
_PROGRESS = 0.8
"""A reading that leaves more than this share of the narrowest interval so far is one in vain."""
_MAX_REJECTED = 6
"""Evaluations that failed, one after the other, after which h only takes steps of relative value iteration;"""
_MAX_EVALUATIONS = 100
"""so many that leave the interval as wide, too: on the way to the best policy it may widen for a while."""
_MAX_STEPS = 12
"""Steps in vain after which the gain may differ between states; twice as many after one that could not be shown."""
_STALLED = 1.02
"""A reading that leaves at most so many times the narrowest interval says that the gain may differ as well,"""
_PATIENCE = 8
"""once there have been so many readings; twice as many after each time that it could not be shown."""
_MARGIN = 4.0
"""Times the rounding of x by which another action must be better."""
_MIN_ROUNDINGS = 8.0
"""An interval that is narrower than so many times the rounding of x may be all that float64 has to give."""


def default_gain_target(table: Table) -> float:
    """Half the width of the interval by default."""
    rewards = rewards_of(table)
    return 0.5 * _RELATIVE_WIDTH * ((rewards.high - rewards.low) or abs(rewards.high) or 1.0)


@dataclass(slots=True)
class _Classes:
    """What is known of policies that seem to have several recurrent classes."""

    interest: float = _FIRST_INTEREST
    """1 - discount."""
    spread: float = np.inf
    """Least that x of a policy was apart under a discount."""
    failures: int = 0
    """Policies without relative values, one after the other."""
    wait: int = 0
    """Evaluations until relative values are tried again."""

    def waiting(self) -> bool:
        """Whether relative values are not tried; counts."""
        self.wait -= 1
        return self.wait >= 0

    def failed(self) -> None:
        """There were no relative values: wait twice as long as the last time, up to a limit."""
        if self.wait < 0:
            self.failures += 1
            self.wait = min(2**self.failures, _MAX_WAIT)

    def discounted(self, spread: float, left: float) -> bool:
        """Note how far x of a policy is apart under the discount, where other actions leave so much between the bounds;
        whether it was never so little. The discount comes nearer to 1 where it is what keeps the interval wide."""
        if spread > 0.5 * left:
            self.interest = max(self.interest / 8, _LEAST_INTEREST)
        progress, self.spread = spread < _PROGRESS * self.spread, min(self.spread, spread)
        return progress


@dataclass(slots=True)
class AverageIteration:
    """A solve at work."""

    tables: Streamed
    epsilon: float
    """Half the width that is asked for."""
    backend: GainBackend
    """Has h and the policy."""
    counters: SolveStatistics
    seconds: Callable[[], float]
    """Of work so far."""
    bounds: GainBounds = field(init=False)
    history: HistoryRecorder = field(init=False)
    rounding: float = 0.0
    """Largest rounding of an x in the last reading."""
    margin: float = 0.0
    """By how much x of the policy may be less there than that of the best action, rounding apart."""
    changed: int = 0
    """States whose action the last reading changed."""
    classes: _Classes = field(default_factory=lambda: _Classes())
    differing: Differing | None = None
    """What shows that the gain differs between states, once that is known."""
    continued: FloatArray | None = None
    """float64 [n]; h from which the solve goes on once it has read at the first h, which proves more."""
    kept: Proved | None = field(default=None, init=False)
    """The narrowest interval of values before the present ones, with its proof."""
    is_kept: bool = field(default=False, init=False)
    """Whether the values that are kept are h as it stands."""
    rewards: Interval = field(init=False)
    """Between the least and the largest."""

    def __post_init__(self) -> None:
        """Nothing has been read yet."""
        self.bounds = GainBounds(self.tables.source.facts.coupling)
        self.history = HistoryRecorder(self.tables.cache.loads)
        self.rewards = rewards_of(self.tables.source)

    @property
    def sign(self) -> float:
        """1 where rewards are maximised, -1 where they are minimised."""
        return 1.0 if self.tables.source.sense == "max" else -1.0

    def is_narrow(self) -> bool:
        """Whether the interval is as narrow as was asked for."""
        return self.interval.width <= 2 * self.epsilon

    @property
    def interval(self) -> Interval:
        """The narrowest that is proved."""
        return self._present() if self.kept is None or self._is_narrowest() else self.kept.interval

    def proved(self) -> Proved:
        """The same with its proof."""
        if self.kept is not None and not self._is_narrowest():
            return self.kept
        return Proved(self._present(), self.rounding, self.backend.values(), self.backend.policy())

    def _present(self) -> Interval:
        """What the values as they stand prove."""
        return Interval(*self.bounds.interval).within(self.rewards)

    def _is_narrowest(self) -> bool:
        """Whether the values as they stand prove more than any before."""
        return self._present().width < (np.inf if self.kept is None else self.kept.interval.width)

    def _keep(self) -> None:
        """Keep the proof of the narrowest interval, as h is about to change."""
        if self._is_narrowest():
            self.kept, self.is_kept = self.proved(), True

    # ------------------------------------------------------------------------------------------- the method

    def iterate(self) -> Work[Outcome]:
        """Read, evaluate, and again, until the interval is narrow or float64 can do no more."""
        best, vain, rejected, most_steps, stepping = np.inf, 0, 0, _MAX_STEPS, False
        readings, patience = 0, _PATIENCE
        while True:
            yield from self._read(stepping)
            readings += 1
            width = self.bounds.width
            if self.is_narrow():
                return Outcome.PROVED
            if self.continued is not None:
                self._continue(self.continued)
                continue
            if readings >= patience and _PROGRESS * best < width <= _STALLED * best:
                readings, patience = 0, 2 * patience
                yield from self._read(True)
                self.differing = yield from prove_differing(self)
                if self.differing is not None:
                    return Outcome.GAIN_DIFFERS
            vain = 0 if width <= _PROGRESS * best else vain + 1
            best = min(best, width)
            if vain and width <= _MIN_ROUNDINGS * self.rounding:
                return Outcome.PRECISION_LIMIT
            steps = stepping or not self.backend.rows_complete
            if steps and vain > most_steps:
                self.differing = yield from prove_differing(self)
                if self.differing is not None:
                    return Outcome.GAIN_DIFFERS
                most_steps *= 2
                stepping, vain, rejected, best = False, 0, 0, np.inf
            elif not steps and (rejected > _MAX_REJECTED or vain > _MAX_EVALUATIONS):
                stepping, vain, best = True, 0, np.inf
            if steps:
                self._step()
            elif (yield from self._evaluate()):
                rejected = 0
                if self.is_narrow():
                    return Outcome.PROVED
            else:
                rejected += 1

    def _continue(self, values: FloatArray) -> None:
        """Go on from other values, of which nothing is known yet."""
        self._keep()
        self.backend.take(values)
        self.bounds = GainBounds(self.tables.source.facts.coupling)
        self.continued, self.is_kept = None, False

    def _read(self, everything: bool) -> Work[None]:
        """Measure partitions over all actions, and make their policy greedy: those of which other actions than the
        policy's keep the interval from being narrow, or all."""
        due = self.bounds.others > self.bounds.interval[0] + 2 * self.epsilon
        if everything or not self.backend.rows_complete:
            due[:] = True
        self.margin, self.rounding, self.changed = _MARGIN * self.rounding, 0.0, 0
        hits: dict[int, bool] = {}
        try:
            for p, resident, hit in self.tables.residents_in_order(due, sweeps=True):
                self.backend.improve(resident, self.margin)
                self._count(p, resident.n_states)
                hits[p] = hit
                yield
        finally:
            partitions, found = self.backend.found()
            self._note(partitions, found, hits)
        without = np.flatnonzero(found[:, 5])
        if without.size:
            raise _no_action(self.tables.source, int(partitions[without[0]]), int(found[without[0], 5]) - 1)

    def _note(self, partitions: IntArray, found: FloatArray, hits: Mapping[int, bool]) -> None:
        """Take what a reading found into the bounds."""
        for p, (low, high, others, rounding, changed, _) in zip(partitions.tolist(), found.tolist(), strict=True):
            self.bounds.read(p, low, high, others)
            self.rounding = max(self.rounding, rounding)
            self.changed += int(changed)
            if self.tables.trace is not None:
                self.tables.trace.access(p, False, hits[p], 1, high - low, -np.inf)

    def _evaluate(self) -> Work[bool]:
        """Take values of the policy as h, and hold that against the bounds; whether that was of use.

        Relative values where it has one recurrent class, as far as one can tell; else those of a discount, under which
        the policies become better as well.
        """
        self._keep()
        backend, finished = self.backend, False
        backend.begin_trial()
        try:
            useful = yield from self._try(backend.measure())
            finished = True
            return useful
        finally:
            if not finished:  # an evaluation that is left halfway has bounds for h as it was
                backend.withdraw()

    def _try(self, before: Measured) -> Work[bool]:
        """The same, where x of the policy is what it is before."""
        low, others = self.bounds.interval[0], float(self.bounds.others.max())
        goal = max(_GOAL * min(others - low, self.rewards.width), _AIM * self.epsilon)
        after = before
        if not self.classes.waiting():
            after = yield from self._solve(System(before.middle, goal, self.backend.iterations))
        better = self._has_digits(after, before) and after.spread <= max(_ACCEPTED * before.spread, self.epsilon)
        if not better:
            self.classes.failed()
            self.backend.withdraw()
            discount = 1.0 - self.classes.interest
            after = yield from self._solve(System(before.middle, goal, self.backend.iterations, discount))
            if not self._has_digits(after, before):
                self.backend.withdraw()
                after = before
        self.is_kept &= after is before
        self.bounds.moved(after.least, after.largest)
        self.bounds.evaluated(after.low, after.high)
        if better:
            self.classes = _Classes()
            return True
        left = float(self.bounds.others.max()) - float(after.low.min())
        return self.classes.discounted(after.spread, left) or self.changed > 0

    def _solve(self, system: System) -> Work[Measured]:
        """Evaluate the policy, and measure what came out."""
        self.counters.backups += yield from self.backend.evaluate(system)
        self.counters.backups += self.tables.source.n_states
        self.counters.policy_evaluations += 1
        return self.backend.measure()

    def _has_digits(self, after: Measured, before: Measured) -> bool:
        """Whether values have digits enough to prove something: what separates two recurrent classes of a policy may
        come out as large as float64 has numbers."""
        return float(np.spacing(after.size)) <= max(self.epsilon, _MAX_SPACING * before.spread)

    def _step(self) -> None:
        """h moves by half of x, less the middle of the interval."""
        self._keep()
        self.is_kept = False
        low, high = self.bounds.interval
        self.bounds.moved(*self.backend.step(_STEP, 0.5 * (low + high)))

    def _count(self, p: int, backups: int) -> None:
        self.counters.visits += 1
        self.counters.sweeps += 1
        self.counters.backups += backups
        self.history.visit(p, 1, 1, self.seconds())

    # ------------------------------------------------------------------------------ what others may ask

    def snapshot(self) -> Snapshot | None:
        """What a checkpoint holds: h, and the values that prove more, if there are some."""
        self.history.row(self.row())
        if self.continued is not None:
            arrays = {"values": self.continued, PROVING: self.backend.values()}
        elif self.kept is None or self._is_narrowest():
            arrays = {"values": self.backend.values()}
        elif self.is_kept:
            arrays = {"values": self.kept.values}
        else:
            arrays = {"values": self.backend.values(), PROVING: self.kept.values}
        return Snapshot({**arrays, **self.history.arrays()}, self.statistics())

    def progress(self) -> SolveProgress:
        """Where the solve stands."""
        s = self.statistics()
        half = 0.5 * self.interval.width
        return progress_of(
            s,
            error_bound=half,
            residual_bound=half,
            target=self.epsilon,
            stopping_rule="epsilon",
            dirty=self._dirty(),
        )

    def row(self) -> HistoryRow:
        """The same for the history."""
        resident, half = int(np.count_nonzero(self.tables.cache.present)), 0.5 * self.interval.width
        return row_of(self.statistics(), half, half, self._dirty(), resident)

    def statistics(self) -> SolveStatistics:
        """The counters now."""
        self.tables.count(self.counters)
        self.counters.partitions_unread = int(np.count_nonzero(np.isinf(self.bounds.low)))
        self.counters.solve_seconds = self.seconds()
        return self.counters

    def _dirty(self) -> int:
        """Partitions whose bound keeps the interval from being narrow."""
        return int(np.count_nonzero(~(self.bounds.high <= self.bounds.interval[0] + 2 * self.epsilon)))


def _no_action(table: Table, p: int, i: int) -> OptionsError:
    """Of state i of partition p."""
    state = int(table.original_states(p)[i])
    return OptionsError(
        f"state {state} of {table.name} has no action: the process ends there, and a long-run average is of processes "
        "that go on; give it an action that stays or starts anew, or ask for the total reward (--total)"
    )
