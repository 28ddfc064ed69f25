"""The compiled backup of one stage: a partition's own states, from the values of the stage after.

    after[i] = max_a { sign r(i,a) + g sum_k p_k local[successor_k] },     local = own values, then those of the halo

Ties go to the lowest action, and sums are taken in stored order: whatever the schedule and the number of threads, a
value has the same bits.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ooc_mdp.backends.cpu.rows import ends, first_row, past_row, row_begin, row_end

__all__ = ["advance"]


@njit(nogil=True, cache=True)
def advance(t, begin, end, local, after, policy, discount, sign):
    """Back up the states from `begin` to `end` of a partition.

    Parameters
    ----------
    t : `TableRows`.
    local : float64 [n + h]; values of the stage after, by local numbers.
    after, policy : float64 [n] and int32 [n]; get the values and the actions, -1 where there is none.
    """
    for i in range(begin, end):
        row, past = first_row(t, i), past_row(t, i)
        best, choice = 0.0, -1
        if row == past and t.terminal.size > 0:
            best = sign * t.terminal[i]
        for j in range(row, past):
            total = 0.0
            for k in range(row_begin(t, j), row_begin(t, j) if ends(t, j) else row_end(t, j)):
                total += np.float64(t.probabilities[k]) * local[t.successors[k]]
            value = sign * np.float64(t.rewards[j]) + discount * total
            if choice < 0 or value > best:
                best, choice = value, j - row
        after[i] = best
        policy[i] = choice
