"""Backward induction in NumPy: the best plan for a number of stages, for one MDP in memory.

    V_T(s) = final(s),      V_t(s) = opt_a { r(s,a) + gamma sum_s' p(s'|s,a) V_{t+1}(s') }  for t = T-1, ..., 0

    V_t(s) = terminal_rewards(s) in every stage where s has no action

(Puterman 1994, section 4.5.) It is exact but for rounding, of which `error_bounds` has the sum: one backup rounds by so
many units, and what stage t + 1 is off by enters stage t times gamma and the largest row sum. Written to be read, not
to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.contraction import UNDERFLOW, UNIT_ROUNDOFF, UP
from ooc_mdp.model.mdp import FloatArray, IntArray, Rows
from ooc_mdp.reference.equations import backup

__all__ = ["Stages", "backward_induction"]


@dataclass(frozen=True, slots=True)
class Stages:
    """The value and the policy of every stage."""

    values: FloatArray
    """float64 [T+1, n]; row t is the value with T - t stages to go."""
    policy: IntArray
    """int64 [T, n]; the lowest best action of each state in each stage, -1 where there is none."""
    error_bounds: FloatArray
    """float64 [T+1]; no value of stage t is further from the exact one, all rounding included; 0 for the last."""


def backward_induction(
    rows: Rows, stages: int, discount: float = 1.0, final_values: FloatArray | None = None, sense: str = "max"
) -> Stages:
    """The values and the policy of each stage.

    Parameters
    ----------
    stages : T, at least 0.
    discount : of each stage, at least 0 and at most 1.
    final_values : float64 [n], of states with actions after the last stage; 0 by default. States without actions have
        their terminal rewards.
    sense : "max" or "min".

    Raises
    ------
    OptionsError : rows have durations other than 1 and infinity, which ends the process: stages are of one length.
    """
    if rows.durations is not None and (np.isfinite(rows.durations) & (rows.durations != 1.0)).any():
        raise OptionsError(
            "rows have durations, and stages are all of one length; solve for a discount, or let time be part of the "
            "state"
        )
    n, ends = rows.n_states, np.diff(rows.action_ptr) == 0
    values, policy, errors = np.zeros((stages + 1, n)), np.full((stages, n), -1, np.int64), np.zeros(stages + 1)
    if final_values is not None:
        values[stages] = final_values
    if rows.terminal_rewards is not None:
        values[stages, ends] = rows.terminal_rewards[ends]
    elif ends.any():
        values[stages, ends] = 0.0
    for t in reversed(range(stages)):
        found = backup(rows, values[t + 1], discount, sense)
        values[t], policy[t] = found.values, found.policy
        errors[t] = _error_bound(rows, discount, values[t + 1], float(errors[t + 1]))
    return Stages(values, policy, errors)


def _error_bound(rows: Rows, discount: float, following: FloatArray, error: float) -> float:
    """Most that the backups of a stage are off by, where the values of the stage after it are off by `error`.

    A sum of k products rounds by k + 1 units of sum p |V| at most in any order, the discount and the reward by one
    each.
    """
    if not rows.n_rows:
        return 0.0
    counts = np.diff(rows.successor_ptr)
    row_sum = float(np.add.reduceat(rows.probabilities, rows.successor_ptr[:-1]).max())
    row_sum *= 1 + (int(counts.max()) + 2) * UNIT_ROUNDOFF
    # What is added up may be as large as the values are and be off by as much as they are.
    size = float(np.abs(rows.rewards).max()) + discount * row_sum * (float(np.abs(following).max()) + error)
    rounding = (int(counts.max()) + 4) * UNIT_ROUNDOFF * size + UNDERFLOW
    return float((discount * row_sum * error + rounding) * UP)
