"""When a whole model is swept at once, every state from the values before, and its values are centred.

Modified policy iteration (Puterman and Shin 1978) with MacQueen's (1966) stopping rule: some sweeps over the greedy
policy, a measurement that improves the policy and gives the residuals' range from both sides, and a shift of all values
(`Run.centre`). It needs as many rounds as the model takes to forget where it began, whatever the discount; sweeps of
some partitions at a time take 1 / (1 - discount) of them for the error that all states share. Where a model does not
forget soon (a grid) it is the slower way, so that is found out by trying, seldom where partitions mostly read
themselves.
"""

from __future__ import annotations

from ooc_mdp.solver.plan import at_once_bytes
from ooc_mdp.solver.run import Run

__all__ = ["AtOnce"]

_MOST_SWEEPS = 16
_DROP = 0.05
"""Sweeps over a policy end when their changes differ by this share of what they did at first."""
_SLOW_ANYWHERE, _SLOW_AT_HOME = 0.75, 0.25
"""A round must bring the range of the residuals down to this share, or partitions are swept some at a time again: the
first where they mostly read others, the second where they mostly read themselves, which is what visits are good at."""
_EARLY_ROUNDS = 4
"""Rounds that need not, because the policy is still poor."""
_FIRST_PAUSE = 24
"""Backups a state between two trials at first; four times as many after each that failed."""


class AtOnce:
    """Decides between rounds over the whole model and visits of some partitions, in a solve that has a cache for all.

    Parameters
    ----------
    run : the solve.
    """

    def __init__(self, run: Run) -> None:
        store = run.store
        self._run = run
        self._possible = at_once_bytes(store, run.options, run.backend, run.facts, run.cache.budget) > 0
        # Partitions that read more from outside than from themselves are no better than any other sets of states.
        anywhere = run.facts.densely_coupled
        self._slow, early = (_SLOW_ANYWHERE, _EARLY_ROUNDS) if anywhere else (_SLOW_AT_HOME, 1)
        self._trying = anywhere
        self._pause = _FIRST_PAUSE * store.n_states
        self._next = 0 if self._trying else self._pause
        self._early = early
        """Rounds left that nothing is asked of."""

    def due(self) -> bool:
        """Whether the next visit should be :meth:`round`."""
        run = self._run
        if not (self._possible and run.alone and run.cache.present.all()):
            return False
        if not self._trying and run.statistics.backups >= self._next:
            self._trying, self._early = True, 1
        return self._trying

    def round(self) -> None:
        """Sweeps, measurement and shift; gives up for some time where the residuals' range does not come down."""
        run = self._run
        before = run.bounds.width()
        run.sweep_all(_MOST_SWEEPS if run.visited.all() else 0, _DROP)
        width = run.bounds.width()
        run.centre()
        self._early -= 1
        if self._early < 0 and width > self._slow * before:
            self._trying = False
            self._next = run.statistics.backups + self._pause
            self._pause *= 4
