"""Discounts of the rows of a partition that is being loaded.

The durations of a control problem are short and all different. There gamma**tau = exp(tau log gamma) is near 1, and the
terms of the exponential series up to x**10 suffice for float64. They take a sixth of the time of NumPy's `power`, which
was a quarter of the time of a mountain car's loads.
"""

from __future__ import annotations

import math

import numpy as np

from ooc_mdp.model.mdp import FloatArray, discounts
from ooc_mdp.runtime.compiled import loop

__all__ = ["MAX_EXPONENT", "discounts_in_place"]

MAX_EXPONENT = 0.125
"""Largest -tau log(gamma) for which the series is taken: x**11 / 11! is less than 2**-58 there."""


def discounts_in_place(gamma: float, durations: FloatArray) -> FloatArray:
    """Replace durations tau (float64 [m]) by gamma**tau, and infinite ones by 0; returns the array.

    The relative error of the series is at most 2 u, u = 2**-53: the exponent x has an error of 3 u |x|, the last sum
    one of u, and those before it together less than 2 u |x|. Longer time steps get NumPy's `power`.
    """
    if 0.0 < gamma < 1.0:
        rate = math.log(gamma)
        if _all_short(-MAX_EXPONENT / rate, durations):
            _sum_series(rate, durations)
            return durations
    return discounts(gamma, durations, out=durations)


@loop
def _all_short(most: float, durations: FloatArray) -> bool:
    """Whether each duration is from 0 to `most`, or infinite; false where one is not a number."""
    others = 0
    for tau in durations:
        others += not (0.0 <= tau <= most or tau == np.inf)
    return others == 0


@loop
def _sum_series(rate: float, durations: FloatArray) -> None:
    """exp(rate tau) in place of each duration, by Horner's scheme."""
    for i in range(durations.size):
        x = rate * durations[i]
        total = 1.0 + x * (1.0 / 10.0)
        total = 1.0 + x * (1.0 / 9.0) * total
        total = 1.0 + x * (1.0 / 8.0) * total
        total = 1.0 + x * (1.0 / 7.0) * total
        total = 1.0 + x * (1.0 / 6.0) * total
        total = 1.0 + x * (1.0 / 5.0) * total
        total = 1.0 + x * (1.0 / 4.0) * total
        total = 1.0 + x * (1.0 / 3.0) * total
        total = 1.0 + x * (1.0 / 2.0) * total
        total = 1.0 + x * total
        durations[i] = 0.0 if durations[i] == np.inf else total
