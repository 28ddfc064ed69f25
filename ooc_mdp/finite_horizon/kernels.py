"""The compiled backup of one stage: a partition's own states, from the values of the stage after.

    after[i] = max_a { sign r(i,a) + g sum_k p_k local[successor_k] },     local = own values, then those of the halo

Ties go to the lowest action, and sums are taken in stored order: whatever the schedule and the number of threads, a
value has the same bits. Arrays are bound to local names before the loops: taken from the table in them, each access
counts a reference, and a row takes twenty times as long.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.runtime.compiled import loop

__all__ = ["advance"]


@loop
def advance(t, begin, end, local, after, policy, discount, sign):
    """Back up the states from `begin` to `end` of a partition.

    Parameters
    ----------
    t : `TableRows`.
    local : float64 [n + h]; values of the stage after, by local numbers.
    after, policy : float64 [n] and int32 [n]; get the values and the actions, -1 where there is none.
    """
    action_ptr, successor_ptr, successors = t.action_ptr, t.successor_ptr, t.successors
    probabilities, rewards, durations, terminal = t.probabilities, t.rewards, t.durations, t.terminal
    actions, width, ending = np.int64(t.actions), np.int64(t.width), durations.size > 0
    for i in range(begin, end):
        if actions > 0:
            row, past = i * actions, (i + 1) * actions
        else:
            row, past = np.int64(action_ptr[i]), np.int64(action_ptr[i + 1])
        best, choice = 0.0, np.int64(-1)
        if row == past and terminal.size > 0:
            best = sign * terminal[i]
        for j in range(row, past):
            if width > 0:
                first, last = j * width, (j + 1) * width
            else:
                first, last = np.int64(successor_ptr[j]), np.int64(successor_ptr[j + 1])
            if ending and np.isinf(durations[j]):
                last = first
            total = 0.0
            for k in range(first, last):
                total += np.float64(probabilities[k]) * local[successors[k]]
            value = sign * np.float64(rewards[j]) + discount * total
            if choice < 0 or value > best:
                best, choice = value, j - row
        after[i] = best
        policy[i] = choice
