"""How many sweeps are enough, known before the first: I(alpha, epsilon, C) of Inamoto, Higami and Kobayashi.

    |J_k+1 - J_k| <= alpha^k C,    J_0 = 0, costs of at most C
    I(alpha, epsilon, C) = ceil( (log((1 - alpha) epsilon) - log(2 alpha C)) / log alpha )

Sweep I + 1 changes no value by more than (1 - alpha) epsilon / (2 alpha), their equation 15, from which an error of
epsilon follows. An estimate for users who wait: never too few,
often far too many. Nothing of a solve depends on it.

Source: T. Inamoto, Y. Higami, S. Kobayashi, on the time taken by convergence tests of infinite-stage dynamic
programming on GPUs (in Japanese), equations 15 to 17.
"""

from __future__ import annotations

import math

import numpy as np

from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.target import RELATIVE_EPSILON

__all__ = ["describe_sweep_bound", "sweep_bound"]


def sweep_bound(discount: float, epsilon: float, largest_cost: float) -> int:
    """I(alpha, epsilon, C), their equation 17; 0 where already the first sweep changes so little.

    Parameters
    ----------
    discount : alpha, at least 0 and below 1.
    epsilon : the error, above 0.
    largest_cost : C, the largest |r(s,a)|.
    """
    if (1 - discount) * epsilon >= 2 * discount * largest_cost:
        return 0
    return math.ceil((math.log((1 - discount) * epsilon) - math.log(2 * discount * largest_cost)) / math.log(discount))


def describe_sweep_bound(facts: ModelFacts, options: SolveOptions) -> str:
    """The bound for a solve, as a line of its plan.

    alpha is the largest factor that a row has for the values of its successors. Where no error is asked for, 1e-4 of
    the range of rewards is, which is taken for that of the values.
    """
    alpha = float((facts.contraction.discount * facts.contraction.row_sum).max())
    largest = float(np.abs(facts.reward_range).max(initial=0.0))
    if options.residual is not None:
        epsilon = 2 * alpha * options.residual / (1 - alpha)
        what = f"changes of at most {options.residual:.3g}"
    else:
        epsilon = options.epsilon or RELATIVE_EPSILON * (float(np.ptp(facts.reward_range)) or largest)
        what = f"an error of {epsilon:.3g}"
    sweeps = sweep_bound(alpha, epsilon, largest)
    return (
        f"sweeps, estimate: I({alpha:.6g}, {epsilon:.3g}, {largest:.3g}) = {sweeps}: {sweeps + 1} sweeps of all states "
        f"from values of 0 are enough for {what} (Inamoto, Higami and Kobayashi, equation 17)"
    )
