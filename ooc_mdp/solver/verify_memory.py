"""What the verification of a discounted result holds: copies of its arrays, and a partition on each thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooc_mdp.model.table import Table
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan

__all__ = ["verification_plan"]

_MEASURED = 4
"""Bytes per byte of a table that is measured: itself, probabilities in float64, sums, and what a sweep reads."""


def verification_plan(store: Table, threads: int, workspace: Mapping[str, int]) -> MemoryPlan:
    """Bytes by name; the result's own arrays are in the process.

    Parameters
    ----------
    threads : that read, compare and measure a partition each.
    workspace : bytes of the backend that measures, beside its cache.
    """
    each = _MEASURED * store.facts.partition_bytes + store.contradictions_bytes()
    largest = np.sort(each)[-threads:]
    host = {
        PROCESS: resident_bytes(),
        "values and policy": 20 * store.n_states,
        "partitions": int(largest.sum()) + threads * store.loader("cpu").scratch_bytes,
        **workspace,
    }
    return MemoryPlan(host, {})
