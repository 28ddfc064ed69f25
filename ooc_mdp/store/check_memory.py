"""What `check` and `verify` hold while they recompute what a store says of one partition: arithmetic on its sizes.

Loops over rows are NumPy's there, so that they share no code with the writer: each works on temporary arrays of the
length of what it looks at. The constants are the bytes of those that exist at the same time.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.table import TableFacts
from ooc_mdp.store.check_table import SLICE

__all__ = ["claims_bytes"]

_TRANSITION, _ROW, _STATE, _HALO = 40, 48, 40, 48
"""Bytes of temporary arrays per item."""


def claims_bytes(facts: TableFacts) -> IntArray:
    """int64 [P]; bytes of RAM that the comparison of each partition with the store's claims takes beside its table."""
    rows, transitions, halo = facts.partition_rows, facts.partition_transitions, facts.partition_halo
    states, read = np.diff(facts.partition_ptr), np.diff(facts.coupling.ptr)
    step = np.maximum(SLICE // read, 1)  # rows whose sums into every partition are held at once
    at_once = np.minimum(transitions, np.minimum(step, rows) * facts.max_successors)
    sums = 2 * 8 * np.minimum(step, rows) * read
    total: IntArray = _TRANSITION * at_once + sums + _ROW * rows + _STATE * states + _HALO * halo + 8 * transitions
    return total
