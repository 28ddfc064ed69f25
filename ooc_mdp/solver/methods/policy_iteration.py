"""Policy iteration that hardly reads the store, for tables whose partitions depend strongly on each other.

    improve    partitions are read and swept once, unless everything depends on everything, and their policy made
               greedy; the rows of its actions and each state's Q2 are kept
    evaluate   the policy of all partitions, on those rows, without the store (`ooc_mdp.backends.base.PolicyRows`)
    prove      residuals of the policy are measured on the rows, those of other actions bounded by their gaps
               (`ooc_mdp.scheduling.action_gaps`): what meets the target so need not be read again

A round over all partitions is a step of Howard's policy iteration (1960; modified: Puterman and Shin 1978) after a
sweep of value iteration, one over some of them a step of asynchronous policy iteration. The sweep costs no reading, and
the policy that is greedy after it looks a step further, so that fewer rounds are needed. How much is read before
the next evaluation follows from what the last one cost: reading takes about as much work as evaluating. Where
evaluations are long, because everything depends on everything, whole passes are read; where they are short, a few
partitions, those with the largest bounds.

Asynchronous policy iteration need not converge from any values (Williams and Baird 1993), nor can inexact evaluations
beat rounding: where neither residuals nor changes of the policy have become less for long, value iteration finishes the
work.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Evaluation, PolicyRows
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.scheduling.action_gaps import ActionGaps
from ooc_mdp.solver.driver import Part, Steps
from ooc_mdp.solver.methods.value_iteration import awaited_together, value_iteration
from ooc_mdp.solver.state import VISIT_TOLERANCE, SolveState

__all__ = ["improve_and_evaluate", "policy_iteration"]

_FORCING_TERM = 0.02
"""An evaluation brings the policy's residuals down to this share of the largest, or to what the target asks."""
_FORCING_TERM_CACHED = 0.1
"""The same where the cache holds the table, so that an improvement takes little beside an evaluation."""
_FORCING_TERM_DENSE = 0.005
"""The same where everything depends on everything: evaluations are short there, and the error of each value reaches all
others."""
_MAX_SWEEPS = 2000
"""Of an evaluation, or products with the matrix of the rows."""
_SECONDS = 5.0
"""Of an evaluation between two reports, about."""
_REPORTING_SHARE = 20
"""An evaluation goes on for so many times as long as its last report took, at least."""
_READ_COST = 3.0
"""Work of reading a transition, in that of backing one up."""
_MIN_BOUND_SHARE = 0.1
"""Partitions are read whose bound is at least this share of the largest one."""
_TOGETHER = 16
"""Most partitions of an improvement, where others are being read meanwhile or the CPU improves them."""
_MAX_STALLED_LOADS = 20
"""Loads of as many partitions as there are, without progress (`_Progress`), after which value iteration takes over."""
_MAX_STALLED_BACKUPS = 10_000
"""Backups of every state likewise: five evaluations that have not ended by themselves."""
_PROGRESS_RATIO = 0.9
"""Progress is what comes down to this share of the least so far."""


def policy_iteration(s: SolveState) -> Steps:
    """Improve and evaluate until nothing gets better; then sweep."""
    yield from improve_and_evaluate(s)
    return (yield from value_iteration(s))


def improve_and_evaluate(s: SolveState) -> Steps:
    """Improve and evaluate until nothing gets better."""
    rows = s.backend.policy_rows
    assert rows is not None  # `choose_method` has looked
    rows.open_rows(s.table.facts.coupling)
    try:
        yield from _PolicyIteration(s, rows).steps()
    finally:
        rows.close_rows()
    return Outcome.PRECISION_LIMIT


def as_loaded(s: SolveState, chosen: IntArray, most: int) -> Iterator[IntArray]:
    """The chosen partitions, those that are loaded together, while others are being read.

    Their order is only that in which loads begin: none has to wait for one before it. Further loads are queued, so that
    reading threads go on while partitions are improved: one load for each thread where a device improves them, two
    batches where improvements run on the same cores, which are then busy also while one of the threads has to wait.

    Parameters
    ----------
    most : partitions of a batch at most.
    """
    waiting = s.stager.depth if s.backend.features.overlaps_loads else 2 * most
    while chosen.size:
        if s.peers.owned is not None:
            chosen = chosen[s.peers.owned[chosen]]
        if not chosen.size:
            return
        s.stager.load_in_order(chosen, awaited_together(s, most), waiting)
        batch = chosen[s.cache.present[chosen]][:most]
        chosen = chosen[~np.isin(chosen, batch)]
        yield batch
        s.stager.collect()


class _PolicyIteration:
    """What one solve's policy iteration remembers.

    Parameters
    ----------
    s : the solve.
    rows : of its backend, which has room for them.
    """

    def __init__(self, s: SolveState, rows: PolicyRows) -> None:
        table = s.table
        self._s, self._rows = s, rows
        self._gaps = ActionGaps(table.facts.coupling, s.bounds.contraction, s.plan.facts.min_weights)
        self._has_rows = np.zeros(table.n_partitions, np.bool_)
        """bool [P]; whether a partition has rows."""
        self._residuals = np.zeros(table.n_partitions)
        """float64 [P]; the policy's largest plain residual, where there are rows."""
        self._sweeps_first = not s.plan.facts.densely_coupled
        """Whether a sweep before each improvement pays: not where evaluations mix everything with everything."""
        self._moved = 0.0
        """By how much improvements have changed a value since the last evaluation, at most."""
        self._states = np.diff(table.facts.partition_ptr)
        self._work = np.inf if s.plan.facts.strongly_coupled else 0.0
        """Of the last evaluation that had any: backups per state. Where everything depends on everything, all is read
        at first: policies of a few partitions would be of no use."""
        self._reading = (
            _READ_COST * table.facts.partition_bytes / table.facts.partition_bytes.sum() * s.plan.facts.rows_per_state
        )
        """float64 [P]; work of reading each partition, in backups of every state."""
        self._forcing_term = _FORCING_TERM
        if s.plan.layout.holds_all:
            self._forcing_term = _FORCING_TERM_CACHED
        elif s.plan.facts.densely_coupled:
            self._forcing_term = _FORCING_TERM_DENSE
        self._progress = _Progress(*self._spent())
        self._remote_rise = np.zeros(table.n_partitions)
        """float64 [P]; rises of other solvers' values that no evaluation has taken in yet."""

    def steps(self) -> Part:
        """Until nothing gets better."""
        while True:
            if not self._changed_by_peers():
                chosen = self._choose()
                changed = yield from self._improve(chosen)
                if self._stalled(chosen, changed):
                    return
            yield from self._evaluate()
            yield

    def _changed_by_peers(self) -> bool:
        """Whether others' values have changed under partitions with rows, so that evaluating comes before reading."""
        s = self._s
        rises = s.peers.take_rises()
        if rises is None:
            return False
        self._remote_rise += rises
        affected = self._has_rows & s.target.dirty()
        self._residuals[affected] = s.bounds.policy_residual_bounds()[affected]
        return bool(affected.any())

    def _choose(self) -> IntArray:
        """Partitions to be improved: the worst, those that are resident, and others as far as the work allows."""
        s, levels = self._s, self._s.target.bounds()
        # From unknown initial values bounds are infinite: then all of those, and no others.
        dirty = s.target.dirty()
        worst = np.flatnonzero(dirty & (levels >= _MIN_BOUND_SHARE * levels[dirty].max(initial=0.0)))
        present = s.cache.present[worst]
        absent = s.by_priority(worst[~present])
        count = int(np.searchsorted(np.cumsum(self._reading[absent]), self._work))
        if not present.any():
            count = max(count, s.stager.depth)
        return np.concatenate([worst[present], absent[:count]])

    def _improve(self, chosen: IntArray) -> Generator[None, None, int]:
        """Improve partitions, those that are absent as they arrive; of how many states the action changed."""
        s, changed = self._s, 0
        margin = 2.0 * s.bounds.rounding(s.value_size, plain=True)
        batches: list[IntArray] = []
        rise = np.zeros(self._has_rows.size)
        for batch in as_loaded(s, chosen, self._together(chosen)):
            with s.access(batch) as access:
                swept = self._rows.back_up(access.residents) if self._sweeps_first else None
                found = self._rows.improve(access.residents, margin)
                s.record_improvement(access, found, swept)
            changed += int(found.changed.sum())
            self._has_rows[batch] = True
            self._residuals[batch] = s.bounds.policy_residual_bounds()[batch]
            batches.append(batch)
            if swept is not None:
                self._moved = max(self._moved, float(swept.rise.max()), float(swept.fall.max()))
                rise[batch] = swept.rise
            yield
        self._gaps.improve(batches, rise)
        return changed

    def _together(self, chosen: IntArray) -> int:
        """Partitions of a batch at most: all of them where nothing has to be read and a device improves them, so that
        the host waits once."""
        s = self._s
        return chosen.size if s.backend.features.overlaps_loads and s.cache.present[chosen].all() else _TOGETHER

    def _evaluate(self) -> Part:
        """Evaluate the policy, unless it is known well enough, and take over what that means.

        A long evaluation is left every few seconds, so that the solve can report, save and stop.
        """
        s = self._s
        wanted = VISIT_TOLERANCE * s.target.plain_threshold()
        largest = float(self._residuals[self._has_rows].max(initial=0.0))
        if max(largest, self._moved) <= wanted:
            return
        self._moved = 0.0
        evaluation = self._rows.evaluation(max(wanted, self._forcing_term * largest), _MAX_SWEEPS)
        s.counters.policy_evaluations += 1
        backups, reporting = 0, 0.0
        while True:
            done = evaluation.advance(max(_SECONDS, _REPORTING_SHARE * reporting))
            began = time.monotonic()
            found = evaluation.report()
            s.record_evaluation(found, self._has_rows, self._bounds(found))
            self._residuals = np.maximum(found.measured[2], found.measured[3])
            backups += found.backups
            reporting = time.monotonic() - began
            if done:
                break
            yield
        self._work = backups / s.table.n_states

    def _bounds(self, found: Evaluation) -> FloatArray:
        # Both for a partition that was another solver's when its rise was received, and has rows since.
        self._gaps.add_rise(np.where(self._has_rows, found.rise, 0.0) + self._remote_rise)
        self._remote_rise[:] = 0.0
        return self._gaps.residuals(found)

    def _stalled(self, improved: IntArray, changed: int) -> bool:
        s, owned = self._s, self._owned()
        residual = float(s.bounds.plain()[owned].max(initial=0.0))
        states = max(1.0, float(self._states[owned].sum()))
        passes = float(self._states[improved].sum()) / states
        return self._progress.stalled(passes, changed / states, residual, *self._spent())

    def _owned(self) -> npt.NDArray[np.bool_]:
        owned = self._s.peers.owned
        return np.ones(self._has_rows.size, np.bool_) if owned is None else owned

    def _spent(self) -> tuple[float, float]:
        """Loads of each partition and backups of each state so far, of those that are owned now."""
        s, owned = self._s, self._owned()
        loads, backups = s.cache.statistics.loads, s.counters.backups
        return loads / max(1, int(owned.sum())), backups / max(1, int(self._states[owned].sum()))


class _Progress:
    """Detects stagnation: how long ago there was progress, in loads and in work.

    There is progress while improvements change the action of a smaller share of states than ever before, or the
    largest plain residual is less than it has been since then. At first values grow, and residuals with them, while
    fewer and fewer actions change; later it may be the other way round. Neither comes down for ever.

    Parameters
    ----------
    loads, work : so far: of each partition, and backups of each state.
    """

    def __init__(self, loads: float, work: float) -> None:
        self._improved = self._changed = 0.0
        """Improvements of a state since the last share was taken, and those that changed its action."""
        self._share = self._residual = np.inf
        """The least so far, and the least since then."""
        self._loads, self._work = loads, work
        """At the last progress."""

    def stalled(self, improved: float, changed: float, residual: float, loads: float, work: float) -> bool:
        """Whether there has been none for too long.

        Parameters
        ----------
        improved, changed : states that have just been improved, and whose action is another now, as shares of all.
        residual : the largest now.
        loads, work : so far.
        """
        self._improved += improved
        self._changed += changed
        share = np.inf
        if self._improved >= 1.0 - 1e-9:  # a pass over all, or as much
            share = self._changed / self._improved
            self._improved = self._changed = 0.0
        fewer = share < _PROGRESS_RATIO * self._share
        if fewer:
            self._share = share
        if fewer or residual < _PROGRESS_RATIO * self._residual:
            self._residual = residual
            self._loads, self._work = loads, work
        return loads - self._loads > _MAX_STALLED_LOADS or work - self._work > _MAX_STALLED_BACKUPS
