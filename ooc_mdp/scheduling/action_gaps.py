"""Proof without reading: how much better another action can have become since a partition was last improved.

When partition p is improved, each of its states s keeps Q2(s), what the best other action is worth at the values of
that time. Values change afterwards, by c(t) at state t. Another action's value then rises by g sum_t p(t) c(t) at most,
and over all rows of p that is no more than

    g { rho c0 + min(sum_q w[p,q] (c[q] - c0), rho (max_q c[q] - c0)) },      c[q] = max of c(t) over partition q,

c0 the least of the c[q] of the partitions that p reads; where it is negative, the least g times row sum takes the place
of g rho. Summed over evaluations this is D[p], and while Q2(s) + D[p] <= V(s) + tolerance for every state, no action of
p can be better than the policy's by more than the tolerance: p need not be read (action elimination, MacQueen 1967,
used to save I/O). The changes have their signs: where all values rise or fall alike, no gap closes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooc_mdp.backends.base import Evaluation
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling

__all__ = ["ActionGaps"]

_UP = 1.0 + 1e-12
"""Sums of a few float64 bounds are rounded up by this factor."""


class ActionGaps:
    """The drift D[p] of P partitions.

    Parameters
    ----------
    coupling : w[p,q]; every partition is in its own row.
    contraction : discounts and row sums of the partitions.
    least : float64 [P]; at most what every row of a partition sums to, times its discount.
    """

    def __init__(self, coupling: Coupling, contraction: Contraction, least: FloatArray) -> None:
        self._coupling = coupling
        self._rows = np.repeat(np.arange(coupling.ptr.size - 1), np.diff(coupling.ptr))
        self._contraction = contraction
        self._most = contraction.discount * contraction.row_sum * _UP
        """float64 [P]; largest g times row sum."""
        self._least = least
        self.drift = np.zeros(coupling.ptr.size - 1)
        """float64 [P]; by how much an action's value may have risen since the partition was improved; may be < 0."""

    def improve(self, batches: Sequence[IntArray], rise: FloatArray) -> None:
        """Batches of partitions were improved one after the other: each partition's values rose, then its Q2 was taken.

        Parameters
        ----------
        batches : no partition twice.
        rise : float64 [P]; 0 for partitions that are in none.
        """
        order = np.full(self.drift.size, -1)
        for number, batch in enumerate(batches):
            order[batch] = number
        self.drift[order >= 0] = 0.0
        read = self._coupling.partitions
        self._add(np.where(order[read] > order[self._rows], rise[read], 0.0))

    def add_rise(self, rise: FloatArray) -> None:
        """Values of each partition rose by at most `rise` (float64 [P], with its sign)."""
        self._add(rise[self._coupling.partitions])

    def _add(self, change: FloatArray) -> None:
        """Values that each entry of the coupling is about rose by so much."""
        starts = self._coupling.ptr[:-1]
        least = np.minimum.reduceat(change, starts)
        above = (change - least[self._rows]) * _UP
        mass = np.bincount(self._rows, self._coupling.mass * above, least.size)
        discount = self._contraction.discount
        spread = np.minimum(discount * mass, self._most * np.maximum.reduceat(above, starts)) * _UP
        alike = np.where(least > 0, self._most, self._least) * least
        # What is rounded away, of the rises too, is a share of the terms, which may cancel out.
        rounded = 4 * self._most * np.maximum.reduceat(np.abs(change), starts) + np.abs(self.drift)
        self.drift += alike + spread + rounded * (_UP - 1)

    def residuals(self, evaluation: Evaluation) -> FloatArray:
        """float64 [4, P]: bounds on the residuals over all actions: normalised rise and fall, plain rise and fall."""
        rise, fall, plain_rise, plain_fall = evaluation.measured
        known = np.where(np.isfinite(evaluation.second_best), evaluation.second_best, 0.0)
        others = evaluation.second_best + self.drift + (np.abs(known) + np.abs(self.drift)) * (_UP - 1)
        # Of an action that is worse, how far it is normalised is not known, but it is divided by 1 at most.
        normalised = others * np.where(others > 0, self._contraction.normaliser, 1.0)
        return np.stack([np.maximum(rise, normalised), fall, np.maximum(plain_rise, others), plain_fall])
