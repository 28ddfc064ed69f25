"""What the second pass of a conversion holds: partitions under way, one for each thread, from the counts of their rows.

A partition's rows are gathered from the spool (each block's piece, then all joined), renumbered and written field by
field. The constants are the bytes of the arrays that exist at the same time.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.io.conversion.row_spool import Spool
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.state_order import StateOrder, partition_of
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.memory import available_bytes, peak_bytes, resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan

__all__ = ["check_conversion", "conversion_plan", "partition_work"]

_OPTIONAL = 24
"""Bytes of an optional array per row or state: gathered, joined, and as it is stored."""
_WRITER = 8 << 20
"""Bytes per thread for frames, and for the blocks that blosc compresses at a time."""
_ENTRY = 4 << 10
"""Bytes that are kept of a partition once it is written: numbers, and names and checksums of its chunks."""


def partition_work(spool: Spool, order: StateOrder) -> IntArray:
    """int64 [P]; bytes that the conversion of each partition takes while it is under way."""
    ptr = order.partition_ptr
    rows, transitions = np.zeros(ptr.size - 1, np.int64), np.zeros(ptr.size - 1, np.int64)
    for first, actions, counts in spool.counts():
        states = np.arange(first, first + actions.size, dtype=np.int64)
        p = partition_of(ptr, order.to_store(states))
        for total, values in ((rows, actions), (transitions, counts)):
            np.add.at(total, p, values)
    states = np.diff(ptr)
    gathering = 32 * transitions + 48 * rows + 33 * states
    building = 64 * transitions + 24 * rows + 16 * states
    optional = _OPTIONAL * len(spool.optional) * np.maximum(rows, states)
    work: IntArray = np.maximum(gathering, building) + optional
    return work


def conversion_plan(work: IntArray, n_states: int, couplings_at_most: int, threads: int) -> MemoryPlan:
    """Bytes by name; what has been read so far is in the process, and its peak is part of the plan.

    Parameters
    ----------
    work : as `partition_work` gives it.
    couplings_at_most : pairs of partitions that may depend on each other.
    threads : partitions that are under way at a time.
    """
    largest = np.sort(work)[-threads:]
    host = {
        PROCESS: resident_bytes(),
        "partitions under way": int(largest.sum()) + largest.size * _WRITER,
        "entries of partitions": _ENTRY * work.size + 16 * couplings_at_most,
        "boundary": -(-n_states // 8),
    }
    read = peak_bytes() - sum(host.values())
    return MemoryPlan(host | ({"blocks that were read": read} if read > 0 else {}), {})


def check_conversion(plan: MemoryPlan, work: IntArray, order: StateOrder) -> None:
    """Refuse a conversion whose second pass has no room.

    Raises
    ------
    MemoryBudgetError : the partitions that are under way at a time take more than the RAM that is available.
    """
    p = int(work.argmax())
    one, states = int(work[p]) + _WRITER, int(order.partition_ptr[p + 1] - order.partition_ptr[p])
    left = (available_bytes() or 0) - (plan.new_bytes - plan.host["partitions under way"])
    if one <= left:
        remedy = f"take --threads {max(left // one, 1)}, each of which takes up to {format_bytes(one)}"
    elif states > 1:
        fitting = max(left // 16, 1)
        remedy = f"take --threads 1 and smaller partitions (--partition-size {fitting})"
    else:
        state = int(order.states(p)[0])
        remedy = f"the rows of state {state} alone take {format_bytes(one)}: use a machine with so much memory"
    plan.check_available("writing the partitions of this model", remedy)
