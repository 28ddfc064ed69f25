"""Two views of a table, by which the gain of each state is found where it differs between states.

    UnpaidTable      no row pays: its end components of rows without reward are all end components of the table
    ConfinedTable    rows that leave their end component lead back to their own state instead, at a penalty

Both have the pointers of the other table and rewards in float64, so that their partitions are of one size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import MIN_MASS
from ooc_mdp.model.partition import PartitionTable, led_back
from ooc_mdp.model.table import DerivedTable, Loader, Table, TableFacts

__all__ = ["ConfinedTable", "UnpaidTable", "inside_rows"]

Labels = npt.NDArray[np.uint32]
"""uint32 [n]; the same in all states of an end component."""


@dataclass(eq=False)
class UnpaidTable(DerivedTable):
    """A table in which no row pays."""

    base: Table
    facts: TableFacts

    @classmethod
    def of(cls, base: Table, least: float, largest: float) -> Self:
        """Of a table whose answers lie between these two."""
        return cls(base, _facts(base, least, largest))

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p of the other table, without rewards."""
        table, n_bytes = self.base.read(p)
        return replace(table, rewards=np.zeros(table.n_rows)), n_bytes

    def loader(self, device: str) -> Loader:
        """Made of the other table's in host memory."""
        return _loader(self, device)


@dataclass(eq=False)
class ConfinedTable(DerivedTable):
    """A table in which no row leaves its end component; states of none only pay the penalty."""

    base: Table
    facts: TableFacts
    components: Labels
    """uint32 [n]; a number of each state's end component; `nowhere` for none."""
    nowhere: np.uint32
    penalty: float
    """Reward of a row that would leave: worse than any."""

    @classmethod
    def of(cls, base: Table, components: Labels, nowhere: np.uint32) -> Self:
        """Of a table whose end components are known."""
        low, high = float(base.facts.reward_range[:, 0].min()), float(base.facts.reward_range[:, 1].max())
        span = 1.0 + 2.0 * (high - low)
        penalty = low - span if base.sense == "max" else high + span
        return cls(base, _facts(base, min(low, penalty), max(high, penalty)), components, nowhere, penalty)

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p of the other table; rows that leave their component are self-loops that pay the penalty."""
        table, n_bytes = self.base.read(p)
        leaving = ~inside_rows(table, self.components, self.nowhere)
        rewards = np.where(leaving, self.penalty, table.rewards.astype(np.float64))
        return replace(table, rewards=rewards, successors=led_back(table, leaving)), n_bytes

    def loader(self, device: str) -> Loader:
        """Made of the other table's in host memory."""
        return _loader(self, device)


def inside_rows(table: PartitionTable, components: Labels, nowhere: np.uint32) -> npt.NDArray[np.bool_]:
    """bool [m]; whether a row stays in the end component of its state for certain.

    Parameters
    ----------
    components : uint32 [n_states]; of all states in the order of partitions, `nowhere` for those in none.
    """
    row = np.repeat(np.arange(table.n_rows), table.row_lengths())
    local = np.concatenate([components[table.first_state : table.first_state + table.n_states], components[table.halo]])
    own = local[np.repeat(np.arange(table.n_states), table.action_counts())]
    away = (local[table.successors] != own[row]) & (table.probabilities > 0)
    inside: npt.NDArray[np.bool_] = (own != nowhere) & (
        np.bincount(row, table.probabilities.astype(np.float64), table.n_rows) >= MIN_MASS
    )
    inside[row[away]] = False
    return inside


def _facts(base: Table, least: float, largest: float) -> TableFacts:
    """Facts of the table with rewards in float64, between these numbers."""
    facts = base.facts
    wider = np.dtype(np.float64).itemsize - facts.dtypes["rewards"].itemsize
    return replace(
        facts,
        dtypes={**facts.dtypes, "rewards": np.dtype(np.float64)},
        partition_bytes=facts.partition_bytes + wider * facts.partition_rows,
        reward_range=np.tile([least, largest], (facts.n_partitions, 1)),
        stored_fields=(),
        frame_buffer_bytes=0,
    )


def _loader(table: UnpaidTable | ConfinedTable, device: str) -> Loader:
    other = table.base.loader(device)
    most = int(table.facts.partition_bytes.max())
    return Loader(table.read, other.scratch_bytes + 3 * most, prefetch=other.prefetch)
