"""Relative value iteration in NumPy: the largest long-run average reward, for one MDP in memory.

    x_a(s) = r(s,a) + sum_s' p(s'|s,a) (h(s') - h(s)),      min_s max_a x_a(s)  <=  g*(s)  <=  max_s max_a x_a(s)

for any h, in every state s, also where the gain g* differs between states (Puterman 1994, theorem 8.5.5 and section
9.4: both sides follow from the monotonicity of T). A step moves h by w max_a x_a with 0 < w < 1: that is a step of the
model with P' = (1 - w) I + w P and r' = w r, which has no period. A row represents p / sum p. Written to be read, not
to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.contraction import UNDERFLOW, UNIT_ROUNDOFF
from ooc_mdp.model.mdp import FloatArray, IntArray, Rows

__all__ = ["Gain", "advantages", "measure_gain", "relative_value_iteration"]


@dataclass(frozen=True, slots=True)
class Gain:
    """An interval that holds the gain of every state, and what it was measured at."""

    lower: float
    """g*(s) is at least this in every state, and so is the gain of `policy`; rounding included."""
    upper: float
    """g*(s) is at most this in every state."""
    values: FloatArray
    """float64 [n]; h."""
    policy: IntArray
    """int64 [n]; the lowest best action of each state."""


def advantages(rows: Rows, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """float64 [m] twice: x_a(s) of every row, and by how much rounding may have moved it.

    A sum of k products rounds by k + 1 units of the sum of their sizes at most in any order; differences, division and
    reward add a few.

    Raises
    ------
    OptionsError : a state has no action, or a row has a duration other than 1.
    """
    counts = np.diff(rows.action_ptr)
    if not counts.all():
        state = int(np.flatnonzero(counts == 0)[0])
        raise OptionsError(
            f"state {state} has no action: the process ends there, and a long-run average is of processes that go on; "
            "give it an action that stays"
        )
    if rows.durations is not None and (rows.durations != 1.0).any():
        raise OptionsError("rows have durations, and the average is per step; divide time into steps of one length")
    starts, own = rows.successor_ptr[:-1], np.repeat(np.arange(rows.n_states), counts)
    length = np.diff(rows.successor_ptr)
    change = values[rows.successors] - np.repeat(values[own], length)
    mass = np.add.reduceat(rows.probabilities, starts)
    found = rows.rewards + np.add.reduceat(rows.probabilities * change, starts) / mass
    size = np.abs(rows.rewards) + np.add.reduceat(rows.probabilities * np.abs(change), starts) / mass
    return found, 2.02 * (length + 8) * UNIT_ROUNDOFF * size + UNDERFLOW


def measure_gain(rows: Rows, values: FloatArray, sense: str = "max") -> Gain:
    """The interval that values prove."""
    sign = 1.0 if sense == "max" else -1.0
    found, rounding = advantages(rows, values)
    found, starts = sign * found, rows.action_ptr[:-1]
    best = np.maximum.reduceat(found, starts)
    policy = np.array([np.argmax(found[lo:hi]) for lo, hi in zip(starts, rows.action_ptr[1:], strict=True)])
    chosen = starts + policy
    lower = np.nextafter(float((best - rounding[chosen]).min()), -np.inf)
    upper = np.nextafter(float(np.maximum.reduceat(found + rounding, starts).max()), np.inf)
    low, high = (lower, upper) if sign > 0 else (-upper, -lower)
    return Gain(float(low), float(high), values, policy)


def relative_value_iteration(
    rows: Rows, epsilon: float, sense: str = "max", step: float = 0.5, most: int = 10_000
) -> Gain:
    """Steps until the interval is no wider than 2 epsilon, or `most` of them: where the gain is not constant it stays
    wider.

    Parameters
    ----------
    step : w, above 0 and below 1; 1 may go round in circles in a periodic model.
    """
    sign = 1.0 if sense == "max" else -1.0
    values = np.zeros(rows.n_states)
    for _ in range(most):
        gain = measure_gain(rows, values, sense)
        if gain.upper - gain.lower <= 2 * epsilon:
            break
        found = sign * np.asarray(advantages(rows, values)[0])
        best = sign * np.maximum.reduceat(found, rows.action_ptr[:-1])
        values = values + step * (best - best[0])
    return gain
