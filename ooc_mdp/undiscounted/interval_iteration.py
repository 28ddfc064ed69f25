"""Interval iteration for total rewards without a discount: a lower and an upper value swept at once, then checked.

Rewards are perturbed: each exit costs, or pays, a little more, the *perturbation*. Where the values settle,
L < T_pi L for the greedy policy pi and T U < U, strictly (`ooc_mdp.undiscounted.inductive`). A perturbation that
spreads L and U further than what was asked for is made smaller. ``docs/theory/undiscounted.md`` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import TableRows
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.target import RELATIVE_EPSILON
from ooc_mdp.solver.history import HistoryRecorder, HistoryRow, progress_of, row_of
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.undiscounted.end_components import Analysis, Staying, ZeroRewardComponents, check_totals
from ooc_mdp.undiscounted.inductive import Inductive, inductive
from ooc_mdp.undiscounted.kernels.end_components import lift
from ooc_mdp.undiscounted.kernels.totals import greedy, sweep
from ooc_mdp.undiscounted.mean_rewards import MeanLoss
from ooc_mdp.undiscounted.policy_evaluation import (
    POLICY_SWEEPS,
    Exits,
    PolicyRowCollector,
    PolicyTables,
    evaluate,
    rows_bytes,
)
from ooc_mdp.undiscounted.refusals import undecided
from ooc_mdp.undiscounted.shared_values import SharedValues
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, Work

__all__ = ["FIRST_PERTURBATION", "IntervalIteration", "Totals", "default_total_target", "value_floor"]

FIRST_PERTURBATION = 1e-3
"""The first perturbation as a share of the target: enough for a thousand exits."""
_PERTURBATION_DIVISOR = 8.0
"""Charges are divided by this when values have come apart too far."""
_ROUNDS = 2
"""Rounds over dirty partitions after which the policy is evaluated; half as many again each time, so that sweeps,
which settle from any start, have the last word."""
_STEPS = 64
"""Steps of the first evaluation, where it reads nothing; twice as many after one in vain."""
_SWEEPS = 16
"""Most sweeps of a visit."""
_SETTLED = 1 / 8
"""A visit ends once its changes are down to this share of the perturbation."""
_DIRTY = 1 / 2
"""A partition is visited again when its own or inflowing changes may exceed this share of the perturbation."""
_MIN_ULPS = 8.0
"""A perturbation below so many units in the last place of the values would be lost to rounding."""
_MAX_FAILURES = 6
"""Checks in vain, each after sweeps with a fourth of the tolerance, after which rounding must be the reason."""
_MAX_SLOW = 20
"""Evaluations in vain after which U counts as growing without end."""
_CONSTANT = 1e-8
"""Values count as one number, whose size stands in for their range, where L and U lie in so small a share of it."""


def value_floor(table: Table) -> float:
    """Size of the values that is assumed while they are unknown: the span of one step's rewards, or 1."""
    low, high = table.facts.reward_range.T
    return float(high.max() - low.min()) or float(np.abs(table.facts.reward_range).max()) or 1.0


def default_total_target(table: Table, low: float, high: float, share: float = RELATIVE_EPSILON) -> float:
    """The default of the error that is asked for, if the values lie between the two."""
    span, size = high - low, max(abs(low), abs(high), value_floor(table))
    return share * (size if span <= _CONSTANT * size else span)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a solve ends with, of the maximisation and in the order of partitions."""

    outcome: Outcome
    middle: FloatArray
    """float64 [n]; the values."""
    policy: npt.NDArray[np.int32]
    found: Inductive | None = None
    """What proves the lower and upper values; None where nothing does."""


@dataclass(slots=True)
class IntervalIteration:
    """A solve at work: first the analysis, then values are settled and proved."""

    tables: Streamed
    neighbours: Neighbours
    options: SolveOptions
    counters: SolveStatistics
    values: FloatArray
    """float64 [n, 2]; L and U, of the maximisation."""
    seconds: Callable[[], float]
    """Of work so far."""
    staying: Staying
    """Value of staying in a zero-reward component for ever."""
    share: float = RELATIVE_EPSILON
    """The default of the error that is asked for, as a share of the range of the values."""
    perturbation: float = 0.0
    max_perturbation: float = np.inf
    """The largest that has not been too large."""
    within: ZeroRewardComponents | None = None
    """Where a policy may stay without reward; None during the analysis, which finds that."""
    mean_loss: MeanLoss | None = None
    """Of the analysis."""
    shared: SharedValues | None = None
    """Components in which L, or U, has one value; None during the analysis."""
    width: float = 0.0
    """Largest U - L, and what rounding adds to twice the distance from the middle."""
    steps: int = _STEPS
    """Of an evaluation that reads nothing."""
    expected_exits: float = 0.0
    """Largest of any state, under the policy that was evaluated last and ends; 0 before."""
    residual: float = np.inf
    """Largest plain residual when it was last measured."""
    totals: Totals | None = None
    """What the method ended with; None until then."""
    dirty: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    history: HistoryRecorder = field(init=False)

    def __post_init__(self) -> None:
        """The history begins with the run."""
        self.history = HistoryRecorder(self.tables.cache.loads)

    def target(self) -> float:
        """What half of `width` must come down to."""
        if self.options.epsilon is not None:
            return self.options.epsilon
        low, high = float(self.values[:, 0].min()), float(self.values[:, 1].max())
        if self.options.residual is not None:  # no error is asked for, only a sensible perturbation
            return max(abs(low), abs(high), value_floor(self.tables.source))
        return default_total_target(self.tables.source, low, high, self.share)

    def snapshot(self) -> Snapshot | None:
        """What a checkpoint holds; None during the analysis, of which nothing is kept."""
        if self.within is None:
            return None
        self.history.row(self.row())
        return Snapshot({"bounds": self.values, **self.history.arrays()}, self.statistics())

    def progress(self) -> SolveProgress:
        """Where the solve stands; no error is proved before the end."""
        s = self.statistics()
        return progress_of(
            s,
            error_bound=np.inf,
            residual_bound=self.residual,
            target=self.options.residual or self.options.epsilon,
            stopping_rule="epsilon" if self.options.residual is None else "residual",
            dirty=self._dirty(),
        )

    def row(self, error_bound: float = np.inf) -> HistoryRow:
        """Where the solve stands, for the history; no error is proved before the end."""
        resident = int(np.count_nonzero(self.tables.cache.present))
        return row_of(self.statistics(), error_bound, self.residual, self._dirty(), resident)

    def _dirty(self) -> int:
        """Partitions that are yet to be visited, by the search of the graph during the analysis."""
        return int(np.count_nonzero(self.tables.dirty if self.within is None else self.dirty))

    def statistics(self) -> SolveStatistics:
        """The counters now."""
        self.tables.count(self.counters)
        self.counters.solve_seconds = self.seconds()
        return self.counters

    @property
    def sign(self) -> float:
        """1 where values are maximised, -1 where they are minimised."""
        return 1.0 if self.tables.source.sense == "max" else -1.0

    def settle(self, tolerance: float, rounds: int) -> Work[Literal["settled", "apart", "slow"]]:
        """Sweep until values change by less than the perturbation, come too far apart, or `rounds` have passed."""
        store, shared = self.tables.source, self.shared
        assert shared is not None  # the analysis is done
        flown = np.zeros(store.n_partitions)
        # While values spread, their range is no measure yet.
        first = 0.0 if self.options.epsilon is not None else self.share * value_floor(store)
        for _ in range(rounds):
            for p, rows, hit in self.tables.in_order(self.dirty.copy(), sweeps=True):
                sweeps, change, moved = sweep(
                    rows, self.values, shared.lower, shared.upper, shared.alike, self.perturbation, self.sign,
                    _SWEEPS, _SETTLED * tolerance, bool(self.counters.visits & 1),
                )  # fmt: skip
                self.counters.visits += 1
                self.counters.sweeps += sweeps
                self.counters.backups += sweeps * rows.n
                self.history.visit(p, 1, sweeps, self.seconds())
                readers = self.neighbours.dependents(p)
                flown[readers] += moved
                flown[p] = change
                self.dirty[readers] |= flown[readers] > _DIRTY * tolerance
                self.dirty[p] = change > _DIRTY * tolerance
                if self.tables.trace is not None:
                    self.tables.trace.access(p, False, hit, sweeps, change, -np.inf)
                yield
            moved = shared.merge(self.values, _SETTLED * self.perturbation)
            for p in np.unique(np.searchsorted(store.facts.partition_ptr, moved, side="right") - 1).tolist():
                self.dirty[self.neighbours.dependents(p)] = True
            size = float(np.abs(self.values).max(initial=0.0))
            with np.errstate(invalid="ignore"):  # of values beyond float64 nothing is known, and nothing is settled
                self.width = float((self.values[:, 1] - self.values[:, 0]).max(initial=0.0) + 8 * np.spacing(size))
            if not self.width <= 2 * max(self.target(), first):
                return "apart"
            if not self.dirty.any():
                return "settled" if self.width <= 2 * self.target() else "apart"
        return "slow"

    def iterate(self, resumed: bool) -> Generator[None, None, Outcome]:
        """The method: the analysis, then the proof, whose findings are in `totals`; pauses between partitions."""
        found = yield from check_totals(self.tables, self.neighbours, self.staying)
        self.totals = yield from self.prove(found, resumed)
        return self.totals.outcome

    def prove(self, found: Analysis, resumed: bool) -> Work[Totals]:
        """Settle, choose the policy, check; until the check holds, or float64 can do no more.

        Parameters
        ----------
        resumed : whether to begin from the values as they are, and not from those of a policy that ends.

        Raises
        ------
        UndefinedTotalError : rewards of both signs balance, as far as float64 can tell at the size of the values.
        """
        within = self.within = found.within
        self.mean_loss = found.mean_loss
        self.shared = SharedValues(self.tables, self.neighbours, within, self.staying)
        failures, slow, finer, rounds = 0, 0, 1.0, _ROUNDS
        # A gift in each step must leave a loss in the mean.
        most = np.inf if found.mean_loss is None else -0.5 * found.mean_loss.most
        self.max_perturbation = min(self.perturbation / FIRST_PERTURBATION, most)
        self.perturbation = min(self.perturbation, most)
        if not resumed and self.staying.allowed:  # else the first policy need not leave components
            start = Exits(within, np.full(within.count, -1), found.start, self.staying.lower)
            kept = self.keep_rows()
            for p, rows, _ in self.tables.in_order(np.ones_like(self.dirty)):
                kept.take(p, rows, start.policy)
                yield
            yield from self.evaluate(start, kept.rows(), finer, rounds)
        self.dirty = np.ones(self.tables.source.n_partitions, np.bool_)
        while True:
            if not self._is_precise(most):
                return self.unfinished(Outcome.PRECISION_LIMIT)
            if (yield from self.shared.choose(self.perturbation)):
                self.dirty[:] = True
            state = yield from self.settle(finer * self.perturbation, rounds)
            if state != "settled":
                slow = slow + 1 if state == "slow" else 0
                if state == "apart" or slow > _MAX_SLOW:
                    self._restart_from_middle()
                    slow = 0
                kept = self.keep_rows()
                by = yield from self.best_exits(kept)
                yield from self.evaluate(by, kept.rows(), finer, rounds)
                rounds += -(-rounds // 2)
                continue
            policy = yield from self.greedy_policy()
            middle = self.values.mean(axis=1)
            proof = yield from inductive(
                self.tables, self.neighbours, self.values, middle, policy, self.sign, self.staying
            )
            self.residual = proof.residual + proof.rounding
            if proof.holds:
                if self.options.residual is None:
                    return Totals(Outcome.PROVED, middle, policy, proof)
                if self.residual <= self.options.residual:
                    return Totals(Outcome.RESIDUAL_REACHED, middle, policy, proof)
                self._restart_from_middle()
                continue
            failures += 1
            if failures > _MAX_FAILURES:
                return self.unfinished(Outcome.PRECISION_LIMIT)
            finer /= 4
            self.dirty |= proof.violated

    def unfinished(self, outcome: Outcome) -> Totals:
        """What there is where the solve ends without a proof."""
        return Totals(outcome, self.values.mean(axis=1), np.full(self.values.shape[0], -1, np.int32))

    def _is_precise(self, most: float) -> bool:
        """Return False where the perturbation would be lost to rounding; UndefinedTotalError where it may be no larger
        than `most`, which is so small."""
        least = self._least_perturbation()
        if most < least and self.mean_loss is not None:
            loss = self.mean_loss
            raise undecided(self.tables.source, loss.states, loss.least, loss.most)
        return self.perturbation >= least

    def _least_perturbation(self) -> float:
        """What is still seen beside the values."""
        return _MIN_ULPS * float(np.spacing(np.abs(self.values).max(initial=0.0)))

    def least_target(self) -> float:
        """About the least error for which the perturbation is seen over the expected exits of the last policy."""
        return 4 * self._least_perturbation() * max(1.0, self.expected_exits)

    def _restart_from_middle(self) -> None:
        """Go on with a smaller perturbation, from between the two."""
        self.perturbation /= _PERTURBATION_DIVISOR
        self.max_perturbation = self.perturbation
        self.values[:] = self.values.mean(axis=1)[:, None]
        self.dirty[:] = True

    def keep_rows(self) -> PolicyRowCollector:
        """For the rows of one policy."""
        return PolicyRowCollector(rows_bytes(self.tables.source))

    def evaluate(self, by: Exits, rows: PolicyTables | None, finer: float, rounds: int) -> Work[None]:
        """Take the totals of a policy as the middle, and a perturbation that suits its exits, if it ends."""
        start = np.stack([self.values.mean(axis=1), np.ones(self.values.shape[0])], axis=1)
        enough = np.array([finer * self.perturbation / 32, 1 / 32])
        partitions = self.tables.source.n_partitions
        most = rounds // 2 if rows is None else self.steps
        found = yield from evaluate(rows or self.tables, partitions, by, self.sign, start, enough, most)
        self.counters.backups += found.passes * POLICY_SWEEPS * self.values.shape[0]
        if not found.ends or found.residual > max(10 * enough[0], 0.1 * found.residual_before):
            self.steps *= 2
            return
        self.values[:] = found.totals[:, None]
        self.expected_exits = float(found.expected_exits.max())
        self.width = 0.0
        if self.options.residual is None:
            suits = self.target() / (2 * max(1.0, self.expected_exits))
            self.perturbation = min(self.max_perturbation, suits)
        spread = self.perturbation * found.expected_exits
        self.values[:, 0] -= spread
        self.values[:, 1] += spread
        self.dirty[:] = True

    def best_exits(self, kept: PolicyRowCollector | None = None) -> Work[Exits]:
        """The best exits by L; in components of several states, which of the states is left from, if leaving is best.

        Their rows go to `kept`.
        """
        assert self.shared is not None  # the analysis is done
        store, within, lower = self.tables.source, self.shared.within, self.shared.lower
        exits = lower.exits
        policy = np.full(store.n_states, -1, np.int32)
        for p, rows, _ in self.tables.in_order(np.ones(store.n_partitions, np.bool_)):
            greedy(rows, self.values, lower, self.perturbation, self.sign, policy)
            if kept is not None:
                kept.take(p, rows, policy)
            yield
        members, node = within.members, within.node
        if not members.size:
            return Exits(within, np.empty(0, np.int64), policy, self.staying.lower)
        best = np.full(within.count, -np.inf)
        np.maximum.at(best, node, exits)
        leaves = best > within.of_each(self.staying.lower)
        at_best = np.flatnonzero(leaves[node] & (exits == best[node]))
        chosen = np.full(best.size, members.size)
        np.minimum.at(chosen, node[at_best], at_best)
        chosen[~leaves] = -1
        policy[members[~leaves[node]]] = -2
        return Exits(within, chosen, policy, self.staying.lower)

    def greedy_policy(self) -> Work[npt.NDArray[np.int32]]:
        """int32 [n]: the best exits by L, and in components the way to the one that is best, if it is above 0."""
        store = self.tables.source
        by = yield from self.best_exits()
        within = by.within
        policy = by.policy
        stays = (policy == -2).astype(np.uint8)
        on_the_way = np.arange(within.members.size) != by.chosen[within.node]
        others = within.members[on_the_way & (by.chosen[within.node] >= 0)]
        policy[others] = -2
        stays[others] = 0  # those that no row leaves from are on the way like the rest
        settled = np.ones(store.n_states, np.uint8)
        settled[others] = 0
        open_states = np.zeros(store.n_partitions, np.bool_)
        lifted = np.flatnonzero(policy == -2)
        open_states[np.unique(np.searchsorted(store.facts.partition_ptr, lifted, side="right") - 1)] = True
        waiting = open_states.copy()

        def lifting(p: int, rows: TableRows) -> IntArray | None:
            before = int((policy[rows.first : rows.first + rows.n] == -2).sum())
            left = lift(rows, within.zero_reward, stays, settled, policy)
            waiting[p] = left > 0
            readers = self.neighbours.dependents(p)
            return readers[waiting[readers]] if left < before else None

        yield from self.tables.until_clean(open_states, lifting)
        return policy
