"""What a solve will take: memory, disk, bytes and seconds of a pass, and how many passes are to be expected.

    the solve's own memory plan ─┐
    sizes of the chunks         ─┼─▶ SolveForecast
    a trial of half a second    ─┘

A *pass* is as many loads as there are partitions; where the cache holds the whole table, as many accesses. Its seconds
are those of the trial, which is the solve itself (:func:`ooc_mdp.solver.run.run_trial`): reading, decoding, copying and
sweeping as they overlap there. Nothing here reads a table.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory_plan import PROCESS
from ooc_mdp.runtime.room import Room

__all__ = ["Passes", "Recorded", "SolveForecast", "expected_passes", "forecast_solve", "turns_of"]

_RESULT_STATE = 12
"""Bytes per state of a result, before compression: value and policy."""
_BOUNDS_STATE = 16
"""More of them where each state has bounds of its own."""
_CHECKPOINT_STATE = 12
"""Bytes per state of a checkpoint."""
_RELATIVE_TARGET = 1e-4
"""Of the value range: the error that is proved where none is asked for."""


class Passes(NamedTuple):
    """How many passes a solve is expected to take."""

    least: float
    most: float
    basis: str
    """What the numbers come from."""


class Recorded(NamedTuple):
    """Loads per partition of solves that were measured (`benchmarks/plan.py`)."""

    coupling: float
    """Others that a partition reads on average, at most, as a share of all others."""
    cache: float
    """Share of the table that the cache holds, at least."""
    least: float
    most: float
    solves: int


RECORDED = (
    Recorded(0.1, 0.5, 1.3, 4.5, 6),
    Recorded(0.1, 0.22, 1.5, 4.1, 6),
    Recorded(0.1, 0.1, 2.5, 7.3, 6),
    Recorded(1.0, 0.5, 3.8, 4.6, 2),
    Recorded(1.0, 0.22, 5.3, 7.7, 3),
    Recorded(1.0, 0.1, 5.7, 10.3, 3),
)
"""Of the methods auto, p-eva and policy-iteration, with discounts from 0.9 to 0.99, the default target, and a cache
that does not hold the table; the first that fits a solve counts."""


@dataclass(frozen=True, slots=True)
class SolveForecast:
    """What a solve will take, as far as is known before it."""

    table: str
    n_states: int
    n_state_actions: int
    n_transitions: int
    n_partitions: int
    partitions_read: float
    """Others that a partition reads on average."""
    table_bytes: int
    """Decoded."""
    cache_bytes: int
    method: str
    """That the solve begins with, and what is known to follow."""
    device: str
    memory: dict[str, dict[str, int]]
    """The solve's memory plan: bytes by name on the host and on the device."""
    output_bytes: int
    """Most bytes of result and checkpoint on disk; 0 where none is written."""
    free: Room
    bytes_per_pass: int
    """Bytes that are read from disk in a pass."""
    seconds_per_pass: float | None
    """Measured in the trial; None where it loaded nothing."""
    load_seconds_per_pass: float | None
    """Of all threads together, in reading and decoding, or in recomputing; part of the above where they overlap."""
    trial_seconds: float
    trial_loads: int
    passes: Passes | None
    """None where no estimate is known."""

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Least and most seconds of the solve; None where that is not known."""
        if self.passes is None or self.seconds_per_pass is None:
            return None
        return self.passes.least * self.seconds_per_pass, self.passes.most * self.seconds_per_pass

    @property
    def memory_bytes(self) -> int:
        """Most RAM of the process, by the plan."""
        return sum(self.memory["host"].values())

    @property
    def fits(self) -> bool:
        """Whether the free disk has room for the output; the memory was compared before the trial."""
        return self.free.disk is None or self.output_bytes <= self.free.disk

    def summary(self) -> dict[str, Any]:
        """The figures as plain values, as --json prints them."""
        figures = {name: value for name, value in asdict(self).items() if name not in ("free", "passes")}
        new = self.memory_bytes - self.memory["host"].get(PROCESS, 0)
        return {
            **figures,
            "memory_bytes": self.memory_bytes,
            "new_memory_bytes": new,
            "free_memory_bytes": self.free.memory,
            "free_disk_bytes": self.free.disk,
            "passes": None if self.passes is None else self.passes._asdict(),
            "seconds": None if self.seconds is None else list(self.seconds),
            "fits": self.fits,
        }


def turns_of(statistics: SolveStatistics) -> int:
    """Loads, or accesses where the cache holds the whole table and each partition is loaded once at most."""
    return statistics.accesses if statistics.cache_bytes >= statistics.table_bytes else statistics.loads


def _measured_pace(trial: Solution) -> tuple[float, int]:
    """Seconds and turns of the trial's later half, since threads and caches are new in its first.

    Of the whole trial where it ended by itself, or the later half was slower: an evaluation of a policy loads nothing.
    """
    done, history = trial.statistics, trial.history
    whole = done.solve_seconds, turns_of(done)
    if history is None or trial.outcome is not Outcome.TIME_LIMIT:
        return whole
    turns = history.misses + (history.hits if done.cache_bytes >= done.table_bytes else 0)
    begin = int(np.searchsorted(history.seconds, 0.5 * done.solve_seconds))
    if begin >= history.seconds.size - 1 or turns[-1] <= turns[begin]:
        return whole
    later = float(history.seconds[-1] - history.seconds[begin]), int(turns[-1] - turns[begin])
    return later if later[0] * whole[1] < whole[0] * later[1] else whole


def forecast_solve(table: Table, options: SolveOptions, trial: Solution, writes: bool, free: Room) -> SolveForecast:
    """The forecast of a solve whose first seconds were tried.

    Parameters
    ----------
    trial : of the table, with these options.
    writes : whether the solve writes checkpoints and a result.
    """
    facts, done = table.facts, trial.statistics
    p = facts.n_partitions
    seconds, turns = _measured_pace(trial)
    per_state = _RESULT_STATE + _CHECKPOINT_STATE + (0 if trial.value_lower is None else _BOUNDS_STATE)
    return SolveForecast(
        table=table.name,
        n_states=facts.n_states,
        n_state_actions=int(facts.partition_rows.sum()),
        n_transitions=int(facts.partition_transitions.sum()),
        n_partitions=p,
        partitions_read=(facts.coupling.mass.size - p) / p,
        table_bytes=done.table_bytes,
        cache_bytes=done.cache_bytes,
        method=trial.method,
        device=trial.device,
        memory=trial.memory_plan,
        output_bytes=per_state * facts.n_states if writes else 0,
        free=free,
        bytes_per_pass=table.pass_bytes(),
        seconds_per_pass=seconds * p / turns if turns else None,
        load_seconds_per_pass=p / done.loads * done.load_seconds if done.loads else None,
        trial_seconds=done.solve_seconds,
        trial_loads=done.loads,
        passes=expected_passes(table, options, trial),
    )


def expected_passes(table: Table, options: SolveOptions, trial: Solution) -> Passes | None:
    """From the trial, where it ended the solve; from the discount, for value iteration; else from recorded solves."""
    done, p = trial.statistics, table.n_partitions
    if trial.outcome not in (Outcome.TIME_LIMIT, Outcome.INTERRUPTED):
        turns = turns_of(done)
        return Passes(turns / p, turns / p, f"the trial, in which the solve ended ({trial.outcome.value})")
    if options.question.name != "discounted":
        return None
    if options.effective_method == "vi":
        return _of_value_iteration(table, options)
    if options.exact_priorities:
        return None
    read = (table.facts.coupling.mass.size - p) / p / max(p - 1, 1)
    cache = done.cache_bytes / max(done.table_bytes, 1)
    for known in RECORDED if cache < 1 else ():
        if read <= known.coupling and cache >= known.cache:
            where = f"at most {known.coupling:.0%} of the others" if known.coupling < 1 else "more of the others"
            return Passes(
                known.least,
                known.most,
                f"{known.solves} recorded solves whose partitions read {where}, with a cache of {known.cache:.0%} or "
                f"more of the table",
            )
    return None


def _of_value_iteration(table: Table, options: SolveOptions) -> Passes | None:
    """Each pass multiplies the error, at first at most the range of all discounted sums of rewards, by the discount."""
    rewards, discount = table.facts.reward_range, options.discount
    low, high = min(float(rewards[:, 0].min()), 0.0), max(float(rewards[:, 1].max()), 0.0)
    spread = (high - low) / (1 - discount)
    if options.residual is not None:
        left = options.residual / max(high - low, options.residual)
    else:
        left = min(1.0, (options.epsilon or _RELATIVE_TARGET * spread) / max(spread, 1e-300))
    if discount == 0.0 or left >= 1.0:
        return Passes(1.0, 2.0, "the discount, which no pass has to reduce")
    most = 1.0 + math.ceil(math.log(left) / math.log(discount))
    return Passes(1.0, most, f"the discount: {most:.0f} passes multiply the largest possible error by {left:.1e}")
