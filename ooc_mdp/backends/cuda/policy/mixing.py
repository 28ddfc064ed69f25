"""Mixing of an evaluation's batches of sweeps on a device: which directions are kept, and their weights.

    batch ─▶ record: f, directions, scalar products ─▶ weights: |f - sum_j w_j d_j| the least ─▶ values ─▶ batch

Anderson (1965), type II of Fang and Saad (2009). Of a policy whose chains mix slowly, sweeps leave what few directions
make up, a constant at the least: where each sweep takes a hundredth off, mixing takes off what remains at once. Of a
policy that goes a long way by many short steps nothing is gained. Kernels and formulas: ``policy/mixing.cu``.
"""

from __future__ import annotations

import math

import numpy as np

from ooc_mdp.backends.cuda.policy.launches import RowLaunches
from ooc_mdp.backends.cuda.policy.layout import MIXED
from ooc_mdp.model.mdp import FloatArray

__all__ = ["Mixing"]

_LEAST_EIGENVALUE = 1e-10
"""Added to the matrix of scalar products, as a share of its trace: directions may be nearly the same."""


class Mixing:
    """Of one evaluation.

    Parameters
    ----------
    launches : of its kernels.
    nbytes : of the value vector.
    """

    def __init__(self, launches: RowLaunches, nbytes: int) -> None:
        self._launches, self._nbytes = launches, nbytes
        self._products = np.zeros((MIXED, MIXED))
        """float64 [MIXED, MIXED]; of directions with each other."""
        self.forget()

    def forget(self) -> None:
        """Sweeps that are not recorded follow, or something else changes the values."""
        self._begun = False
        self._batches = 0
        """Recorded, one after the other."""
        self._size = math.inf
        """|f|^2 of the last one."""

    def begin_batch(self) -> None:
        """What has not been begun begins at the values as they are."""
        if not self._begun:
            self._launches.begin_mixing(self._nbytes)
            self._begun = True

    def mix(self) -> None:
        """Record the batch that has been swept, and mix the values; a batch that changed more than the one before it is
        the first of new ones."""
        slot = (self._batches - 1) % MIXED if self._batches else -1
        kept = min(self._batches, MIXED)
        size, on_f, on_slot = np.split(self._launches.record_batch(slot, kept), [1, 1 + MIXED])
        if self._batches:
            self._products[slot, :kept] = self._products[:kept, slot] = on_slot[:kept]
        weights = self._weights(on_f[:kept]) if size[0] < self._size else np.zeros(0)
        self._batches = self._batches + 1 if weights.size == kept else 1
        self._size = float(size[0])
        self._launches.mix_values(weights)

    def _weights(self, on_f: FloatArray) -> FloatArray:
        """float64 [kept]; none where directions have no numbers that could be divided by."""
        kept = on_f.size
        products = self._products[:kept, :kept]
        trace = float(np.trace(products))
        if kept and not 0.0 < trace < math.inf:
            return np.zeros(0)
        weights = np.asarray(np.linalg.solve(products + _LEAST_EIGENVALUE * trace * np.eye(kept), on_f), np.float64)
        return weights if np.isfinite(weights).all() else np.zeros(0)
