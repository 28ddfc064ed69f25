"""How much work a solve is expected to take, before it: passes over the table, and backups of each state.

ended in its trial  ─▶  what it took
finite horizon      ─▶  at most a pass for each stage
value iteration     ─▶  at most what the discount says, where no step takes less than a unit of time
other methods       ─▶  least and most of the recorded solves that are most like it
"""

from __future__ import annotations

import math
from bisect import bisect_right
from statistics import median
from typing import NamedTuple

from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver.recorded_solves import RECORDED

__all__ = ["ExpectedWork", "expected_work"]

_RELATIVE_TARGET = 1e-4
"""Of the value range: the error that is proved where none is asked for."""
_COUPLINGS = 6, 16
"""Others that a partition reads: fewer are neighbours on a plane, more what partitions of a dense model read."""


class ExpectedWork(NamedTuple):
    """What a solve is expected to take: at least, as a rule, and at most. Nothing of it is proved."""

    passes: tuple[float, float, float]
    """Loads over the number of partitions."""
    backups: tuple[float, float, float]
    """Of each state, on average."""
    basis: str
    """What the numbers come from."""


def expected_work(table: Table, options: SolveOptions, trial: Solution) -> ExpectedWork | None:
    """From the trial, where it ended the solve; from the stages, or the discount of value iteration; else from
    recorded solves.

    None where nothing is known: other criteria, exact priorities, caches smaller than those of recorded solves; value
    iteration of tables with shorter steps, of which the discount says little.

    Parameters
    ----------
    trial : the solve as far as it came.
    """
    done = trial.statistics
    if trial.outcome not in (Outcome.TIME_LIMIT, Outcome.INTERRUPTED):
        passes, backups = done.loads_per_partition, done.backups / done.n_states
        basis = f"the trial, in which the solve ended ({trial.outcome.value})"
        return ExpectedWork((passes, passes, passes), (backups, backups, backups), basis)
    cache = done.cache_bytes / max(done.table_bytes, 1)
    if "stages" in options.question.parameters:
        return _of_stages(options.question.parameters["stages"], cache)
    if options.question.name != "discounted" or options.exact_priorities:
        return None
    if options.effective_method == "vi":
        if table.facts.duration_range[:, 0].min() < 1.0:
            return None
        return _of_value_iteration(table, options, cache)
    p = table.n_partitions
    return _of_recorded_solves((table.facts.coupling.mass.size - p) / p, cache, options.discount)


def _of_stages(stages: int, cache: float) -> ExpectedWork:
    """Each stage backs every state up once, and loads the table at most once."""
    most = 1.0 if cache >= 1 else float(stages)
    return ExpectedWork((1.0, most, most), (float(stages),) * 3, "the horizon: a backup of every state in each stage")


def _of_value_iteration(table: Table, options: SolveOptions, cache: float) -> ExpectedWork:
    """Each pass multiplies the error, at first at most the range of all discounted sums of rewards, by the discount."""
    rewards, discount = table.facts.reward_range, options.discount
    low, high = min(float(rewards[:, 0].min()), 0.0), max(float(rewards[:, 1].max()), 0.0)
    spread = (high - low) / (1 - discount)
    if options.residual is not None:
        left = options.residual / max(high - low, options.residual)
    else:
        left = min(1.0, (options.epsilon or _RELATIVE_TARGET * spread) / max(spread, 1e-300))
    if discount == 0.0 or left >= 1.0:
        most, basis = 2.0, "the discount, which no pass has to reduce"
    else:
        most = 1.0 + math.ceil(math.log(left) / math.log(discount))
        basis = f"the discount: {most:.0f} sweeps multiply the largest possible error by {left:.1e}"
    passes, backups = 1.0 if cache >= 1 else most, most * options.sweeps_per_visit
    return ExpectedWork((1.0, passes, passes), (1.0, backups, backups), basis)


def _of_recorded_solves(partitions_read: float, cache: float, discount: float) -> ExpectedWork | None:
    """Of those with few, some or many partitions read, the next smaller and larger cache, and the nearest discount.

    Parameters
    ----------
    partitions_read : others that a partition reads on average.
    cache : share of the table that the cache holds.
    """
    coupling = bisect_right(_COUPLINGS, partitions_read)
    alike = [x for x in RECORDED if bisect_right(_COUPLINGS, x.partitions_read) == coupling]
    sizes = {x.cache for x in alike}
    smaller = [size for size in sizes if size <= cache]
    if not smaller:
        return None
    between = {max(smaller), min((size for size in sizes if size >= cache), default=max(smaller))}
    alike = [x for x in alike if x.cache in between]
    nearest = min((x.discount for x in alike), key=lambda x: abs(math.log((1 - x) / (1 - discount))))
    found = [x for x in alike if x.discount == nearest]
    caches = " or ".join(f"{size:.0%}" for size in sorted(between))
    read = (f"fewer than {_COUPLINGS[0]}", "{} to {}".format(*_COUPLINGS), f"more than {_COUPLINGS[1]}")[coupling]
    return ExpectedWork(
        _spread([each.passes for each in found]),
        _spread([each.backups for each in found]),
        f"{len(found)} recorded solves with discount {nearest}, a cache of {caches} and partitions that read {read} "
        "others",
    )


def _spread(numbers: list[float]) -> tuple[float, float, float]:
    """Least, median and most."""
    return min(numbers), median(numbers), max(numbers)
