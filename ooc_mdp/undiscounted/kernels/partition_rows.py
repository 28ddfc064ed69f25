"""What the compiled passes over one partition share: the order of its states, and the sums over a row's transitions."""

from __future__ import annotations

import numpy as np
from numba import njit

from ooc_mdp.backends.cpu.rows import MIN_MASS, index, row_begin, row_end

__all__ = ["UNIT_ROUNDOFF", "expected_change", "leaving", "state_at", "terminal_value"]

UNIT_ROUNDOFF = 2.0**-53


@njit(inline="always")
def state_at(t, x, forwards):
    """The x-th state of the partition from its first, or from its last."""
    return x if forwards else t.n - 1 - x


@njit(inline="always")
def terminal_value(t, i, sign):
    """The value of state i, which has no actions."""
    return sign * t.terminal[i] if t.terminal.size > 0 else 0.0


@njit(inline="always")
def expected_change(t, j, values, own):
    """Of row j: sum p, sum p (V(s') - own), the sum of the sizes of its terms, and whether every V(s') is `own`."""
    mass = moved = size = 0.0
    level = True
    for k in range(row_begin(t, j), row_end(t, j)):
        p = np.float64(t.probabilities[k])
        if p > 0:
            difference = values[index(t, t.successors[k])] - own
            mass += p
            moved += p * difference
            size += p * abs(difference)
            level = level and difference == 0
    return mass, moved, size, level


@njit(inline="always")
def leaving(mass, away):
    """Of a row with these sums of p, in all and outside its component: the weight of its reward, and the divisor.

    A row that does not end the process has its sum of p divided out; what is missing of 1 ends the process otherwise.
    """
    if mass >= MIN_MASS:
        return mass, away
    return 1.0, away + (1 - mass)
