"""Policy iteration that hardly reads the store, for tables whose partitions depend strongly on each other.

    improve    a partition is read, its policy made greedy; the rows of its actions and each state's Q2 are kept
    evaluate   the policy of all partitions, on those rows, without the store (`ooc_mdp.backends.base.KeepsPolicyRows`)
    prove      residuals of the policy are measured on the rows, those of other actions bounded by their gaps
               (`ooc_mdp.scheduling.action_gaps`): what meets the target so need not be read again

Values change in evaluations only, so that whatever is improved between two of them is improved at the same values: a
round over all partitions is a step of Howard's policy iteration (1960; modified: Puterman and Shin 1978), one over some
of them a step of asynchronous policy iteration. How much is read before the next evaluation follows from what the last
one cost: reading takes about as much work as evaluating. Where evaluations are long, because everything depends on
everything, whole passes are read; where they are short, a few partitions, those with the largest bounds.

Asynchronous policy iteration need not converge from any values (Williams and Baird 1993), nor can inexact evaluations
beat rounding: where many reads have not brought the bounds down, value iteration finishes the work.
"""

from __future__ import annotations

import time
from itertools import takewhile

import numpy as np

from ooc_mdp.backends.base import Evaluation, KeepsPolicyRows
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.scheduling.action_gaps import ActionGaps
from ooc_mdp.solver.methods.value_iteration import read_ahead, value_iteration
from ooc_mdp.solver.run import SETTLED_SHARE, Run

__all__ = ["policy_iteration"]

_FORCING = 0.02
"""An evaluation brings the policy's residuals down to this share of the largest, or to what the target asks."""
_MOST_SWEEPS = 2000
"""Of an evaluation, or products with the matrix of the rows."""
_FIRST_SWEEPS, _FEWEST_SWEEPS = 100, 10
_SECONDS = 5.0
"""A piece of an evaluation, about."""
_READING = 3.0
"""Work of reading a transition, in that of backing one up."""
_WORTH = 0.1
"""Partitions are read whose bound is at least this share of the largest one."""
_TOGETHER = 16
"""Most partitions of an improvement."""
_PATIENCE = 20
"""Reads of as many partitions as there are, without the largest bound coming down to `_LESS` of the least so far, after
which value iteration takes over."""
_LESS = 0.9


def policy_iteration(run: Run) -> None:
    """Improve and evaluate until the target is reached; raises StoppedEarly."""
    assert isinstance(run.backend, KeepsPolicyRows)  # the options say so
    run.refresh_target()
    if run.reached():
        return
    run.backend.open_rows(run.store.coupling)
    try:
        _PolicyIteration(run, run.backend).work()
    finally:
        run.backend.close_rows()
    if not run.reached():
        value_iteration(run)


class _PolicyIteration:
    """What one solve's policy iteration remembers.

    Parameters
    ----------
    run : the solve.
    backend : the run's, which has room for rows.
    """

    def __init__(self, run: Run, backend: KeepsPolicyRows) -> None:
        store = run.store
        self._run, self._backend = run, backend
        self._gaps = ActionGaps(store.coupling, run.bounds.contraction, run.facts.least_weights)
        self._kept = np.zeros(store.n_partitions, np.bool_)
        """bool [P]; whether a partition has rows."""
        self._residuals = np.zeros(store.n_partitions)
        """float64 [P]; the policy's largest plain residual, where there are rows."""
        self._states = np.diff(store.partition_ptr)
        self._sweeps = _FIRST_SWEEPS
        """Of a piece of an evaluation."""
        self._work = np.inf if run.facts.strongly_coupled else 0.0
        """Of the last evaluation that had any: backups a state. Where everything depends on everything, all is read at
        first: policies of a few partitions would be of no use."""
        self._reading = _READING * store.partition_bytes / store.partition_bytes.sum() * run.facts.rows_per_state
        """float64 [P]; work of reading each partition, in backups of every state."""
        self._least, self._idle = np.inf, 0
        """The least that the largest bound came down to, and partitions improved since then."""

    def work(self) -> None:
        """Until the target is reached, or nothing gets better."""
        run = self._run
        while not run.reached():
            if self._heard():
                self._evaluate()
                run.tick()
                continue
            chosen = self._choose()
            self._improve(chosen)
            if run.reached() or self._stalled(chosen.size):
                return
            self._evaluate()
            run.tick()

    def _heard(self) -> bool:
        """Whether others' values have changed under partitions with rows, so that evaluating comes before reading."""
        run = self._run
        if not run.told:
            return False
        run.told = False
        disturbed = self._kept & run.target.dirty()
        self._residuals[disturbed] = run.bounds.policy_residuals()[disturbed]
        return bool(disturbed.any())

    def _choose(self) -> IntArray:
        """Partitions to be improved: the worst, those that are resident, and others as far as the work allows."""
        run = self._run
        levels = run.target.levels()
        # From values of nowhere bounds are infinite: then all of those, and no others.
        worst = np.flatnonzero(run.target.dirty() & (levels >= _WORTH * levels.max()))
        present = run.cache.present[worst]
        absent = worst[~present]
        absent = absent[np.argsort(-run.priority.rank(levels)[absent], kind="stable")]
        count = int(np.searchsorted(np.cumsum(self._reading[absent]), self._work))
        if not present.any():
            count = max(count, run.stager.depth)
        return np.concatenate([worst[present], absent[:count]])

    def _improve(self, chosen: IntArray) -> None:
        run = self._run
        margin = 2.0 * run.bounds.rounding(run.value_size, plain=True)
        coming = chosen
        while coming.size:
            first = int(coming[0])
            read_ahead(run, first, coming[1:])
            run.stager.bring(first)
            together = [first, *takewhile(run.cache.present.__getitem__, coming[1:_TOGETHER].tolist())]
            run.improve(together, margin)
            coming = coming[len(together) :]
            run.stager.take_over()
            run.tick()
        self._kept[chosen] = True
        self._gaps.improved(chosen)
        self._residuals[chosen] = run.bounds.policy_residuals()[chosen]

    def _evaluate(self) -> None:
        """Evaluate the policy, unless it is known well enough, and take over what that means.

        Long evaluations are cut into pieces of some seconds, between which the solve can report, save and stop.
        """
        run = self._run
        wanted = SETTLED_SHARE * run.target.plain_limit()
        largest = float(self._residuals[self._kept].max())
        if largest <= wanted:
            return
        limit, left, backups = max(wanted, _FORCING * largest), _MOST_SWEEPS, 0
        states = int(self._states[self._kept].sum())
        while True:
            began = time.monotonic()
            found = self._backend.evaluate(limit, min(left, self._sweeps))
            run.evaluated(found, self._kept, self._bounds(found))
            self._residuals = np.maximum(found.measured[2], found.measured[3])
            backups += found.backups
            sweeps = max(found.backups // states, 1)
            left -= sweeps
            pace = sweeps / max(time.monotonic() - began, 1e-9)
            self._sweeps = int(min(max(_SECONDS * pace, _FEWEST_SWEEPS), _MOST_SWEEPS))
            if left <= 0 or not self._residuals[self._kept].max() > limit:
                break
            run.tick()
        self._work = backups / run.store.n_states

    def _bounds(self, found: Evaluation) -> FloatArray:
        heard = self._run.heard_rise
        # Of a partition that was another's when it was heard of, both: it may have come to have rows since.
        self._gaps.changed(np.where(self._kept, found.rise, 0.0) + (heard if heard.size else 0.0))
        heard[:] = 0.0
        return self._gaps.measured(found)

    def _stalled(self, improved: int) -> bool:
        largest = float(self._run.target.levels().max())
        self._idle += improved
        if largest <= _LESS * self._least:
            self._least, self._idle = largest, 0
        return self._idle > _PATIENCE * self._kept.size
