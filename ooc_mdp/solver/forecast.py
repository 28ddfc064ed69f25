"""What a solve will take: memory, disk, bytes and seconds of a pass, and how much work is to be expected.

    the solve's own memory plan ─┐
    sizes of the chunks         ─┼─▶ SolveForecast
    a trial of half a second    ─┤
    expected passes and backups ─┘

A *pass* loads as many partitions as there are, and backs every state up once. The trial is the solve itself
(:func:`ooc_mdp.solver.run.run_trial`); of it come the seconds of a load and of a backup, which hardly change later, and
not how many backups come with a load, which does: a solve sweeps most when its cache has just been filled. Nothing here
reads a table.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Solution
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table, TableFacts
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime import quotas
from ooc_mdp.runtime.memory_plan import PROCESS
from ooc_mdp.runtime.room import Room
from ooc_mdp.solver.expected_work import ExpectedWork, expected_work

__all__ = ["SolveForecast", "forecast_solve", "seconds_of_work"]

_RESULT_STATE = 12
"""Bytes per state of a result, before compression: value and policy."""
_BOUNDS_STATE = 16
"""More of them where each state has bounds of its own."""
_CHECKPOINT_STATE = 12
"""Bytes per state of a checkpoint."""


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
    """Bytes that are read from disk in a pass, in which P-EVA loads some partitions more often than others."""
    load_seconds: float | None
    """Seconds of a pass in loading: to read and decode the table once, or to recompute it, on all cores; None where the
    trial loaded nothing."""
    sweep_seconds: float | None
    """Seconds of a pass in sweeping: to back every state up once; None where the trial swept nothing."""
    trial_seconds: float
    trial_loads: int
    expected: ExpectedWork | None
    """None where no estimate is known."""

    @property
    def seconds_per_pass(self) -> float | None:
        """To load the table once and back every state up once; None where the trial does not tell."""
        if self.load_seconds is None or self.sweep_seconds is None:
            return None
        return self.load_seconds + self.sweep_seconds

    @property
    def seconds(self) -> tuple[float, float, float] | None:
        """Of the solve, by the expected work: at least, as a rule, and at most; None where that is not known."""
        if self.expected is None or self.load_seconds is None or self.sweep_seconds is None:
            return None
        least, usual, most = (
            passes * self.load_seconds + backups * self.sweep_seconds
            for passes, backups in zip(self.expected.passes, self.expected.backups, strict=True)
        )
        return least, usual, most

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
        figures = {name: value for name, value in asdict(self).items() if name not in ("free", "expected")}
        new = self.memory_bytes - self.memory["host"].get(PROCESS, 0)
        return {
            **figures,
            "memory_bytes": self.memory_bytes,
            "new_memory_bytes": new,
            "free_memory_bytes": self.free.memory,
            "free_disk_bytes": self.free.disk,
            "seconds_per_pass": self.seconds_per_pass,
            "passes": None if self.expected is None else list(self.expected.passes),
            "backups_per_state": None if self.expected is None else list(self.expected.backups),
            "basis": None if self.expected is None else self.expected.basis,
            "seconds": None if self.seconds is None else list(self.seconds),
            "fits": self.fits,
        }


def seconds_of_work(done: SolveStatistics) -> tuple[float | None, float | None]:
    """What a solve, or the beginning of one, has taken for a load of each partition, and for a backup of each state.

    Loads take the seconds of their threads, divided by the cores; sweeps what is left of the solve's own.
    """
    loading = done.load_seconds / quotas.cores()
    sweeping = max(done.solve_seconds - loading, 0.0)
    return (
        loading / done.loads * done.n_partitions if done.loads else None,
        sweeping / done.backups * done.n_states if done.backups else None,
    )


def _loads_of_a_pass(facts: TableFacts, trial: Solution) -> FloatArray | None:
    """float64 [P]; how often each partition is loaded in a pass, where that is not once.

    P-EVA loads those more often that read more others, since more changes reach them.
    """
    done = trial.statistics
    if "p-eva" not in trial.method or done.cache_bytes >= done.table_bytes:
        return None
    partitions_read = np.diff(facts.coupling.ptr).astype(np.float64)
    loads: FloatArray = partitions_read / partitions_read.mean()
    return loads


def forecast_solve(table: Table, options: SolveOptions, trial: Solution, writes: bool, free: Room) -> SolveForecast:
    """The forecast of a solve whose first seconds were tried.

    Parameters
    ----------
    trial : of the table, with these options.
    writes : whether the solve writes checkpoints and a result.
    """
    facts, done = table.facts, trial.statistics
    p = facts.n_partitions
    loading, sweeping = seconds_of_work(done)
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
        bytes_per_pass=table.pass_bytes(_loads_of_a_pass(facts, trial)),
        load_seconds=loading,
        sweep_seconds=sweeping,
        trial_seconds=done.solve_seconds,
        trial_loads=done.loads,
        expected=expected_work(table, options, trial),
    )
