"""What a verification holds in RAM beside its copies of a result's arrays: a partition on each thread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc_mdp.model.table import Table
from ooc_mdp.runtime import quotas
from ooc_mdp.runtime.memory import available_bytes
from ooc_mdp.runtime.memory_plan import MemoryPlan

__all__ = ["partitions_bytes", "threads_with_room"]


def threads_with_room(table: Table, plan_of: Callable[[int], MemoryPlan]) -> tuple[int, MemoryPlan]:
    """As many threads as there are cores and partitions, or RAM has room for, but at least one; and their plan.

    Parameters
    ----------
    plan_of : the memory plan of so many threads.
    """
    threads, available = min(quotas.cores(), table.n_partitions), available_bytes()
    while True:
        plan = plan_of(threads)
        if threads == 1 or available is None or plan.new_bytes <= available:
            return threads, plan
        threads = (threads + 1) // 2


def partitions_bytes(table: Table, threads: int, copies: int = 1, per_transition: int = 0) -> int:
    """Bytes of the partitions that so many threads read, each one, and compare with the store's small arrays.

    Parameters
    ----------
    copies : bytes per byte of a partition, itself included.
    per_transition : bytes per transition beside them.
    """
    each = copies * table.facts.partition_bytes + per_transition * table.facts.partition_transitions
    largest = np.sort(each + table.contradictions_bytes())[-threads:]
    return int(largest.sum()) + threads * table.loader("cpu").scratch_bytes
