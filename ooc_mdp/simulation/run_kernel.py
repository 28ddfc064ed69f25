"""The loop that takes runs of a table's process through one partition, each until it leaves or is over.

    a run in state s with action a:   earn factor * r(s,a);   s' ~ p(.|s,a);   factor *= gamma**tau(s,a)

The random number of a run's step is a hash of seed, run and step (`ooc_mdp.problems.counter_random`), so that runs are
the same whichever partitions there are and whichever is loaded first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.backends.cpu.rows import MIN_MASS, ends, first_row, index, past_row, row_begin, row_end
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.problems.counter_random import draw, unit

__all__ = ["ENDED", "GOES_ON", "NO_ACTION", "OUT_OF_STEPS", "Runs", "advance"]

GOES_ON, ENDED, OUT_OF_STEPS, NO_ACTION = (np.uint8(code) for code in range(4))
"""What becomes of a run: the process ended, its steps are used up, or the policy has no action in its state."""


class Runs(NamedTuple):
    """Runs of a process; one entry each."""

    place: IntArray
    """int64; the state, in the table's order."""
    step: IntArray
    """int64; steps that were taken."""
    factor: FloatArray
    """float64; what a reward counts now."""
    earned: FloatArray
    """float64; rewards so far, each times its factor."""
    status: npt.NDArray[np.uint8]


@njit(nogil=True, cache=True)
def advance(t, policy, runs, which, until, key, gamma):
    """Take runs through the partition, each for at most `until` steps in all.

    Parameters
    ----------
    t : the partition's rows.
    policy : int32 [n_states], in the table's order.
    which : int64; numbers of the runs that are in the partition.
    key : uint64; of the random numbers.
    """
    for r in which:
        place = runs.place[r]
        while t.first <= place < t.first + t.n:
            i = place - t.first
            j, past = first_row(t, i), past_row(t, i)
            if j == past:
                if t.terminal.size > 0:
                    runs.earned[r] += runs.factor[r] * t.terminal[i]
                runs.status[r] = ENDED
                break
            if runs.step[r] >= until:
                runs.status[r] = OUT_OF_STEPS
                break
            if policy[place] < 0:
                runs.status[r] = NO_ACTION
                break
            j += policy[place]
            runs.earned[r] += runs.factor[r] * np.float64(t.rewards[j])
            chance = unit(draw(key, np.uint64(r), np.uint64(runs.step[r])))
            runs.step[r] += 1
            chosen = np.int64(-1) if ends(t, j) else _successor(t, j, chance)
            if chosen < 0:
                runs.status[r] = ENDED
                break
            if t.durations.size > 0:
                runs.factor[r] *= gamma ** t.durations[j]
            else:
                runs.factor[r] *= gamma
            place = index(t, t.successors[chosen])
            runs.place[r] = place


@njit(nogil=True, cache=True)
def _successor(t, j, chance):
    """The transition of row j that a number from [0, 1) chooses; -1 where the row's missing mass ends the process."""
    mass = 0.0
    for k in range(row_begin(t, j), row_end(t, j)):
        mass += np.float64(t.probabilities[k])
    if mass >= MIN_MASS:
        chance *= mass
    chosen = -1
    reached = 0.0
    for k in range(row_begin(t, j), row_end(t, j)):
        p = np.float64(t.probabilities[k])
        if p > 0:
            reached += p
            chosen = k
            if chance < reached:
                return chosen
    return chosen if mass >= MIN_MASS else np.int64(-1)
