"""Discounts of the rows of a partition that is being loaded.

A control problem's durations are fractions of a time unit, all of them different, so gamma**tau is near 1, and the
exponential series has it after ten terms: in a sixth of the time that NumPy's `power` takes, which was a quarter of a
car's loads.
"""

from __future__ import annotations

import math

import numpy as np

from ooc_mdp.model.mdp import FloatArray, discounts
from ooc_mdp.runtime.compiled import loop

__all__ = ["MAX_EXPONENT", "replace_durations"]

MAX_EXPONENT = 0.125
"""Largest -tau log(gamma) for which the series is taken: x**11 / 11! is less than 2**-58 there."""


def replace_durations(gamma: float, numbers: FloatArray) -> FloatArray:
    """Durations (float64 [m]) become gamma**tau to 2 u of it, u = 2**-53, and 0 where tau is infinite; returns them.

    Of the series, the exponent x has an error of 3 u |x|, the last sum one of u, and those before it less than 2 u |x|.
    """
    if 0.0 < gamma < 1.0:
        rate = math.log(gamma)
        if _all_at_most(-MAX_EXPONENT / rate, numbers):
            _sum_series(rate, numbers)
            return numbers
    return discounts(gamma, numbers, out=numbers)


@loop
def _all_at_most(most: float, durations: FloatArray) -> bool:
    """Whether all durations are numbers from 0 to `most`, or infinite."""
    others = 0
    for tau in durations:
        others += not (0.0 <= tau <= most or tau == np.inf)
    return others == 0


@loop
def _sum_series(rate: float, numbers: FloatArray) -> None:
    """exp(rate tau) in place of each duration, by Horner's scheme."""
    for i in range(numbers.size):
        x = rate * numbers[i]
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
        numbers[i] = 0.0 if numbers[i] == np.inf else total
