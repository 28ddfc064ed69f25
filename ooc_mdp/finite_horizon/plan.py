"""What is decided before a finite horizon is solved: the schedule, and every large buffer in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ooc_mdp.finite_horizon.acyclic import AcyclicPlan, plan_acyclic
from ooc_mdp.finite_horizon.backends import StageBackend
from ooc_mdp.finite_horizon.criterion import FiniteHorizon
from ooc_mdp.finite_horizon.schedule import Schedule, plan_schedule
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan
from ooc_mdp.solver.history import history_bytes
from ooc_mdp.solver.plan import beside_tables, fitting_cache, writing_bytes
from ooc_mdp.store.check_load import check_bytes
from ooc_mdp.store.stage_file import policy_type

__all__ = ["StagePlan", "plan_stages"]

_AHEAD = 2
"""Partitions that are read while another works."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What was decided."""

    schedule: Schedule
    acyclic: AcyclicPlan | None
    """How each partition can be taken through all stages in one load, where it can."""
    cache_bytes: int
    """Budget of the cache, with the histories that an acyclic order keeps."""
    ahead: int
    policy_dtype: np.dtype[Any]
    memory: MemoryPlan

    def describe(self, stages: int) -> str:
        """Lines for the user."""
        if self.takes_all(stages):
            return f"{self.memory.describe()}\n{stages} stages, all of them for each load: partitions have no cycle"
        return f"{self.memory.describe()}\n{stages} stages, {min(self.schedule.stages, stages)} for each load"

    def takes_all(self, stages: int) -> bool:
        """Whether partitions are taken through all stages one after the other; not where the cache holds them all."""
        return self.acyclic is not None and self.schedule.stages < stages


def plan_stages(table: Table, options: SolveOptions, backend: StageBackend, writes: bool) -> StagePlan:
    """The schedule and the memory; `writes`: checkpoints and a result are written.

    Raises
    ------
    MemoryBudgetError : the cache cannot hold the largest partition, or memory is short.
    """
    facts, asked = table.facts, cast(FiniteHorizon, options.question)
    n, n_partitions, loader = table.n_states, table.n_partitions, table.loader(backend.name)
    cache, own, device = backend.plan(table, options, _AHEAD)
    grid = None if facts.grid is None else facts.grid.partition_grid
    schedule = plan_schedule(facts.coupling, facts.partition_bytes, cache, _AHEAD, asked.stages, grid)
    acyclic = plan_acyclic(facts, cache, _AHEAD, asked.stages)
    dtype = policy_type(_most_actions(table))
    kept = len(asked.kept_stages)
    host = {
        PROCESS: resident_bytes(),
        "values of two stages": 16 * n,
        "the first stage in the source's order": 20 * n,
        "a stage on its way to the result": (2 * dtype.itemsize + 8) * n + (16 * n if kept else 0),
        "policy of a partition": 8 * int(np.diff(facts.partition_ptr).max()),
        "marks of loaded states": check_bytes(n),
        "coupling": 96 * n_partitions + 64 * facts.coupling.mass.size,
        "checksums of the stages": 4 * n_partitions * (asked.stages + kept),
        "bounds of the stages": 8 * (asked.stages + 1) + 32 * n_partitions,
        "history": history_bytes(n_partitions),
        "padding and objects of tables": beside_tables(facts.partition_bytes, cache, loader.padding),
        "reading": _AHEAD * (loader.scratch_bytes if not loader.on_device else 0),
        **own,
    }
    if writes:
        host["output buffers"] = writing_bytes(table)
    else:
        host["policies of all stages, without an output"] = asked.stages * n * dtype.itemsize + 8 * kept * n
    if device and acyclic is not None:
        host["histories of partitions"] = acyclic.history_bytes  # on the CPU within the cache
    memory = MemoryPlan(host, device)
    remedy = fitting_cache(memory, int(facts.partition_bytes.max()))
    if not writes:
        remedy += "; with an output (--output) the policies of the stages go to the disk"
    memory.check_available(f"this solve of {table.name}", remedy)
    return StagePlan(schedule, acyclic, cache, _AHEAD, dtype, memory)


def _most_actions(table: Table) -> int | None:
    """Most actions of a state; None where only reading all partitions would show it."""
    uniform = table.facts.actions_per_state
    if uniform or table.facts.kind != "store":
        return uniform or None
    return max(int(table.action_counts(p).max(initial=0)) for p in range(table.n_partitions))
