"""What the verification of a discounted result holds: copies of its arrays, and two partitions at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooc_mdp.model.table import Table
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan

__all__ = ["verification_plan"]

_MEASURED = 4
"""Bytes per byte of a table that is measured: itself, probabilities in float64, sums, and what a sweep reads."""


def verification_plan(store: Table, workspace: Mapping[str, int]) -> MemoryPlan:
    """Bytes by name; the result's own arrays are in the process.

    Parameters
    ----------
    workspace : bytes of the backend that measures, beside its cache.
    """
    # One partition is measured while the next is read and compared with what the store says of it.
    measured = _MEASURED * store.facts.partition_bytes
    read = store.facts.partition_bytes + store.contradictions_bytes()
    together = measured + read
    if together.size > 1:
        together = np.maximum(measured[:-1] + read[1:], np.maximum(measured, read)[:-1])
    host = {
        PROCESS: resident_bytes(),
        "values and policy": 20 * store.n_states,
        "partitions": int(together.max()) + store.loader("cpu").scratch_bytes,
        **workspace,
    }
    return MemoryPlan(host, {})
