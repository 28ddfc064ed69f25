"""Which states initial states lead to, and what is paid there: a question about these alone has no answer elsewhere.

Marks of all states are in RAM, two bytes each; partitions are read one at a time, as long as one has a state that was
marked since it was read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import table_rows
from ooc_mdp.model.annotations import StateSet
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.table import Table
from ooc_mdp.undiscounted.kernels.reachability import reward_ends, spread_ahead

__all__ = ["reachable_states", "reward_ranges"]


def reachable_states(table: Table, first: StateSet) -> StateSet:
    """bool [n_states]; the first states, and those that some policy comes to from them; in the table's order."""
    marked, expanded = first.astype(np.uint8), np.zeros(first.size, np.uint8)
    begins = table.facts.partition_ptr[:-1]
    while True:
        waiting = np.flatnonzero(np.maximum.reduceat(marked > expanded, begins))
        if not waiting.size:
            found: npt.NDArray[np.bool_] = marked != 0
            return found
        for p in waiting.tolist():
            spread_ahead(table_rows(table.read(p)[0]), marked, expanded)


def reward_ranges(table: Table, states: StateSet) -> FloatArray:
    """float64 [P, 2]; of each partition the least and the largest reward in some states, and 0."""
    marked = states.astype(np.uint8)
    found = np.zeros((table.n_partitions, 2))
    for p in np.flatnonzero(np.maximum.reduceat(marked, table.facts.partition_ptr[:-1])).tolist():
        found[p] = reward_ends(table_rows(table.read(p)[0]), marked, 0.0, 0.0)
    return found
