"""What a solve hands back: the certificate from the bounds, values and policy in the source's order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Certificate, Outcome, Solution, SolveStatistics
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import DEFAULT_KERNEL, SolveOptions
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.runtime.threads import on_threads, slices
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.history import HistoryRecorder, row_of

__all__ = ["conclude", "method_name", "turn_signs"]


def conclude(
    store: TableSource,
    options: SolveOptions,
    outcome: Outcome,
    *,
    method: str,
    device: str,
    bounds: ResidualBounds,
    target: Target,
    value_size: float,
    values: FloatArray,
    policy: npt.NDArray[np.int32],
    visited: npt.NDArray[np.bool_],
    statistics: SolveStatistics,
    plan: MemoryPlan,
    history: HistoryRecorder,
    resident: int,
) -> Solution:
    """The solution of a run.

    Parameters
    ----------
    bounds, target, value_size : of all partitions at these values, and the largest |V| so far.
    values : float64 [n], store order, of the maximisation; may be changed.
    policy : int32 [n], store order; completed where nothing was read.
    visited : bool [P]; partitions that were read at least once.
    history : ends with what is proved now, and `resident` partitions in the cache.
    """
    if store.sense == "min":
        turn_signs(values)
    for q in np.flatnonzero(~visited):
        # Bounded without ever being read: any action is as good as the bound says.
        own = slice(store.partition_ptr[q], store.partition_ptr[q + 1])
        policy[own] = np.where(store.action_counts(int(q)) > 0, 0, -1)
    lower, upper = bounds.error_interval(value_size)
    error_bound = max(-lower, upper)
    residual_bound = float(bounds.plain().max(initial=0.0)) + bounds.rounding(value_size, plain=True)
    dirty = int(np.count_nonzero(target.dirty()))
    return Solution(
        outcome=outcome,
        method=method,
        device=device,
        discount=options.discount,
        certificate=Certificate(
            error_bound=error_bound,
            lower=lower,
            upper=upper,
            residual_bound=residual_bound,
            rounding=bounds.rounding(value_size),
            target=target.asked,
            target_kind="residual" if target.plain else "epsilon",
            policy_loss_bound=bounds.policy_loss(value_size),
            proof="bounds on every partition's normalised Bellman residual, float64 rounding included",
        ),
        statistics=statistics,
        values=store.to_original(values),
        policy=store.to_original(policy),
        memory_plan={"host": plan.host, "device": plan.device},
        history=history.end(row_of(statistics, error_bound, residual_bound, dirty, resident)),
    )


def turn_signs(values: FloatArray) -> None:
    """The values of a minimisation from those of the maximisation that stood for it, or back again, in place."""
    # Not -values: a value of 0 stays +0.
    on_threads(lambda part: np.subtract(0.0, values[part], out=values[part]), slices(values.size))


def method_name(options: SolveOptions) -> str:
    """The method and its variants, as traces and results call it."""
    kernel = "" if options.kernel == DEFAULT_KERNEL else f", {options.kernel} kernel"
    if options.way in ("auto", "policy-iteration"):
        return options.way + kernel
    if options.way == "vi":
        return ("vi" if options.sweeps == 1 else f"vi, {options.sweeps} sweeps a visit") + kernel
    exact = " exact" if options.exact_priorities else ""
    return f"p-eva {options.metric}{exact}{kernel}"
