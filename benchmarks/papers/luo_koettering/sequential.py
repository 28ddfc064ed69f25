"""Algorithm 1 of the paper on one core, in Numba: four loops over dense tables T(s,a,s') and R(s,a,s'), two buffers.

    V'(s) <- max_a sum_s' T(s,a,s') [R(s,a,s') + discount V(s')]

Its maximum begins with the first action in place of 0, so that rewards may be negative. Numbers are float64.
"""

from __future__ import annotations

import numba
import numpy as np
from models import DISCOUNT, DenseModel

from ooc_mdp.model.mdp import FloatArray

__all__ = ["Sequential"]


class Sequential:
    """Iterations from values of 0."""

    what = "sequential"

    def __init__(self, model: DenseModel) -> None:
        self._model = model
        self.start()

    def start(self) -> None:
        """Values of 0."""
        n = self._model.states
        self._values, self._after = np.zeros(n), np.empty(n)

    def step(self) -> None:
        """One iteration."""
        _sweep(self._model.transitions, self._model.rewards, DISCOUNT, self._values, self._after)
        self._values, self._after = self._after, self._values

    def values(self) -> FloatArray:
        """float64 [states]."""
        return self._values

    def close(self) -> None:
        """Nothing to do."""


@numba.njit(cache=True, nogil=True)
def _sweep(transitions, rewards, discount, values, after):  # type: ignore[no-untyped-def]
    n, actions, _ = transitions.shape
    for s in range(n):
        best = -np.inf
        for a in range(actions):
            total = 0.0
            for to in range(n):
                total += transitions[s, a, to] * (rewards[s, a, to] + discount * values[to])
            best = max(best, total)
        after[s] = best
