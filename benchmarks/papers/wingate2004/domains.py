"""The thesis's test problems at the sizes of its figures, or as near to them as a solve of a minute allows.

All have a single reward and a discount of 0.9 a unit of time. The thesis does not say which unit; here it is 0.05 s
unless a case says otherwise. README.md says how that was chosen. A table is computed once and then kept in RAM.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import ooc_mdp
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Loader, Table

__all__ = ["CAR", "DISCOUNT", "DOUBLE", "RESIDUAL", "SINGLE", "TRIPLE", "Case", "Domain", "InMemory"]

DISCOUNT = 0.9
RESIDUAL = 1e-4
"""The thesis's epsilon: the largest change of a backup (section 9)."""


@dataclass(frozen=True, slots=True)
class Domain:
    """One of the thesis's problems."""

    label: str
    """As the thesis calls it."""
    problem: str
    dimensions: int
    parameters: dict[str, float] = field(default_factory=dict)


CAR = Domain("MCAR", "mountain-car", 2)
SINGLE = Domain("SAP", "single-pendulum", 2, {"hold": 0.0})
DOUBLE = Domain("DAP", "double-pendulum", 4, {"hold": 0.0})
TRIPLE = Domain("TAP", "triple-pendulum", 6, {"hold": 0.0})


@dataclass(frozen=True, slots=True)
class Case:
    """A problem at one size, cut in one way."""

    domain: Domain
    points: int
    """Along each axis."""
    blocks: int
    """Along each axis."""
    time_unit: float = 0.05
    """Seconds in which a value falls to 0.9 of itself."""

    @property
    def states(self) -> int:
        """Points of the grid."""
        return int(self.points**self.domain.dimensions)

    @property
    def parameters(self) -> dict[str, Any]:
        """As `ooc_mdp.generate` takes them."""
        grid = ",".join([str(self.points)] * self.domain.dimensions)
        return self.domain.parameters | {"grid": grid, "time_unit": self.time_unit}

    def store(self, path: Any) -> ooc_mdp.Store:
        """Write the table."""
        return ooc_mdp.generate(
            self.domain.problem,
            path,
            self.parameters,
            partition_grid=[self.blocks] * self.domain.dimensions,
            device="cpu",
        )

    def in_memory(self) -> InMemory:
        """Compute the table."""
        return InMemory(self.computed())

    def computed(self) -> Table:
        """The table, computed anew whenever it is read."""
        return ooc_mdp.open_problem(
            self.domain.problem, self.parameters, partition_grid=[self.blocks] * self.domain.dimensions, device="cpu"
        )

    def describe(self) -> dict[str, Any]:
        """For the figures."""
        return {
            "label": self.domain.label,
            "problem": self.domain.problem,
            "parameters": self.parameters,
            "states": self.states,
            "partitions": self.blocks**self.domain.dimensions,
            "states_per_partition": self.states / self.blocks**self.domain.dimensions,
        }


class InMemory(Table):
    """A table all of whose partitions are in RAM before a solve begins, as in the thesis's timed experiments."""

    def __init__(self, source: Table) -> None:
        self._source = source
        self.facts = replace(source.facts, stored_fields=(), frame_buffer_bytes=0)
        self._tables = [source.read(p) for p in range(source.n_partitions)]

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table."""
        return self._tables[p]

    def loader(self, device: str) -> Loader:
        """How the CPU gets at it."""
        return Loader(self.read, 0)

    def original_states(self, p: int) -> IntArray:
        """As the source has them."""
        return self._source.original_states(p)

    def to_source(self, values: np.ndarray) -> np.ndarray:
        """In the order of the source's states."""
        return self._source.to_source(values)
