"""Actions of a policy by the numbers and names that the source of a model gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.table import Table

__all__ = ["NamedActions", "named_actions", "source_actions"]


@dataclass(frozen=True, slots=True, eq=False)
class NamedActions:
    """Which of a model's names of actions a policy takes."""

    names: tuple[str, ...]
    """Different names."""
    of_states: npt.NDArray[np.int32]
    """int32 [n_states]; which of them the policy's action has, -1 for none."""

    def texts(self, states: Any = slice(None)) -> npt.NDArray[np.str_]:
        """The names in some states; empty where there is none."""
        found: npt.NDArray[np.str_] = np.array([*self.names, ""])[self.of_states[states]]
        return found


def source_actions(policy: npt.NDArray[np.int32], table: Table) -> IntArray | None:
    """int64 [n_states]: the source's numbers of the policy's actions, -1 where it has none; None if it has no own."""
    if "action_labels" not in table.facts.dtypes:
        return None
    found = np.full(policy.size, -1, np.int64)
    for p in range(table.n_partitions):
        states, rows, _ = _policy_rows(policy, table, p)
        found[states] = table.read_field("action_labels", p)[0][rows]
    return found


def named_actions(policy: npt.NDArray[np.int32], table: Table) -> NamedActions | None:
    """The names of a policy's actions (int32 [n_states], -1 for none); None where the model has no names."""
    kept = table.annotations
    if not kept.action_names:
        return None
    found, first = np.full(policy.size, -1, np.int32), 0
    for p in range(table.n_partitions):
        states, rows, count = _policy_rows(policy, table, p)
        found[states] = kept.row_names(first, first + count)[rows]
        first += count
    return NamedActions(tuple(kept.action_names), found)


def _policy_rows(policy: npt.NDArray[np.int32], table: Table, p: int) -> tuple[IntArray, IntArray, int]:
    """The states of partition p that have an action, the rows of these actions in it, and how many rows it has."""
    states, counts = table.original_states(p), table.action_counts(p)
    rows, acts = np.cumsum(counts) - counts + policy[states], policy[states] >= 0
    return states[acts], rows[acts], int(counts.sum())
