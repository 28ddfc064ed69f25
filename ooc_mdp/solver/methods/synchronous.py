"""Value iteration where partitions read each other everywhere: synchronous passes, and MacQueen's shift of all values.

A pass changes no value until it is done (Jacobi over partitions), so that it measures every residual from both sides as
it goes: when what is left of the error is one number for all states, a shift ends the solve (MacQueen 1966; Puterman
and Shin 1978). Passes in place, of which fewer would be needed otherwise, cannot see that number: what they sweep last
has no residual. Where a model forgets within a few steps where it began (a random MDP) it takes as many passes as that,
whatever the discount; where passes do not narrow the residuals, sweeps in place go on.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.solver.driver import Steps
from ooc_mdp.solver.methods.value_iteration import in_order, value_iteration
from ooc_mdp.solver.state import SolveState

__all__ = ["synchronous_value_iteration"]

_SLOW = 0.8
"""A pass must bring the span of the residuals down to this share, or values are shifted, or else changed in place."""
_EARLY_PASSES = 4
"""Passes that need not, because the policy is still poor or values have been shifted."""
_MAX_SLOW = 4
"""Passes that did not, one after the other, after which values are changed in place."""
_BATCH = 16
"""Partitions of a batch, which threads share, while others must be loaded."""
_BATCH_CACHED = 128
"""The same where all partitions are cached: larger batches need less bookkeeping."""


def synchronous_value_iteration(s: SolveState) -> Steps:
    """Passes from the values before them, as long as they help; then sweeps in place."""
    order, sweeps = np.arange(s.table.n_partitions), s.backend.synchronous
    assert sweeps is not None  # `choose_method` has looked
    span, proved, early, slow = np.inf, np.inf, _EARLY_PASSES, 0
    change = np.zeros((2, order.size))
    while slow < _MAX_SLOW:
        most = _BATCH_CACHED if s.cache.present.all() else _BATCH
        for batch in in_order(s, order, most):
            with s.access(batch) as access:
                report = sweeps.sweep_synchronously(access.residents)
                assert report.residuals is not None, "synchronous sweeps measure"
                change[:, batch] = np.maximum(report.residuals[2:], 0.0)
                s.record(access, report)
            yield
        order = order[::-1]
        before, span = span, s.bounds.span()
        proved = min(proved, s.bounds.error(s.value_size))
        early -= 1
        slow = slow + 1 if early < 0 and span > _SLOW * before else 0
        if _shift(s, proved, only_last=slow == 0):  # what the pass made is lost with it
            early, slow = _EARLY_PASSES, 0
        else:
            s.commit(*change)
        yield
    return (yield from value_iteration(s, order))


def _shift(s: SolveState, proved: float, only_last: bool) -> bool:
    """Add a number to all values where that brings the error down; whether it was done.

    Parameters
    ----------
    proved : the least error that was proved so far.
    only_last : only if the target is met by it.
    """
    by = s.bounds.best_shift(s.value_size, proved)
    if by == 0.0:
        return False
    left = s.bounds.bound_after_shift(by, s.value_size, s.target.plain) + s.target.rounding
    if only_last and left > s.target.tolerance:
        return False
    s.shift(by)
    return True
