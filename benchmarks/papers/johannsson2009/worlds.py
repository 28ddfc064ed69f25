"""Johannsson's gridworlds as his framework holds them: every action with the same number of successors, in tiles.

    blocks of the kernels    16 x 8 cells each (section 6.1), so the states of a tile follow one another in the table
    padding                  a row along the border has fewer successors here; it is filled up with transitions of
                             probability 0 to the state itself, which change no value

Tables are in RAM and float32, as in the thesis, before anything is timed. The default kernel gets the same world in
partitions, without tiles and padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from resident import InMemory

import ooc_mdp
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.table import Table
from ooc_mdp.problems.registry import make_problem

__all__ = ["ACTIONS", "Rows", "World"]

ACTIONS = 4
_TILE = (8, 16)
"""Rows and columns of cells of a tile: 128 states."""
_SIDE_OF_A_PARTITION = 128
"""Of the tables of the default kernel."""


@dataclass(frozen=True, slots=True)
class World:
    """One gridworld."""

    side: int
    """Cells along each axis, a multiple of 16."""
    successors: int
    """Outcomes of an action: 1, 2 or 4."""
    random: float = 0.0
    """Share of the successors that are random states (section 6.3)."""

    @property
    def name(self) -> str:
        """As table 6.1 calls it."""
        return f"GW-{self.side}x{self.side}x{self.successors}"

    @property
    def states(self) -> int:
        """Number of cells."""
        return self.side**2

    @property
    def cost(self) -> int:
        """The thesis's computational cost: states x actions x successors."""
        return self.states * ACTIONS * self.successors

    @property
    def parameters(self) -> dict[str, Any]:
        """As `ooc_mdp.generate` takes them."""
        return {"height": self.side, "width": self.side, "successors": self.successors, "scramble": self.random}

    def describe(self) -> dict[str, Any]:
        """For the figures."""
        rewarded = make_problem("gridworld", self.parameters).parameters()["reward_states"]
        facts = {"states": self.states, "successors": self.successors, "reward_states": rewarded}
        return {"name": self.name, "side": self.side, **facts, "cost": self.cost, "random": self.random}

    def source(self, blocks: int = 1) -> Table:
        """The table in so many partitions along each axis, computed anew whenever it is read."""
        shape = [blocks, blocks]
        return ooc_mdp.open_problem("gridworld", self.parameters, dtype="float32", partition_grid=shape, device="cpu")

    def partitioned(self) -> InMemory:
        """In RAM, in partitions of 128 x 128 cells: what the default kernel gets."""
        source = self.source(max(1, self.side // _SIDE_OF_A_PARTITION))
        return InMemory(source, [source.read(p)[0] for p in range(source.n_partitions)])


@dataclass(frozen=True, slots=True)
class Rows:
    """A whole world in one piece, in row-major order."""

    source: Table
    successors: npt.NDArray[np.uint32]
    """[n, 4, K]"""
    probabilities: npt.NDArray[np.float32]
    """[n, 4, K]"""
    rewards: npt.NDArray[np.float32]
    """[n, 4]; expected, as tables of ooc-mdp have them."""
    arrival: npt.NDArray[np.float32]
    """[n]; what arriving in a state pays, as the thesis's tables have it."""

    @classmethod
    def of(cls, world: World) -> Rows:
        """Compute them."""
        source = world.source()
        table = source.read(0)[0]
        n, k = table.n_states, world.successors
        lengths = np.diff(table.successor_ptr.astype(np.int64)) if table.successor_ptr.size else np.full(4 * n, k)
        row = np.repeat(np.arange(ACTIONS * n), lengths)
        place = np.arange(row.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        successors = np.repeat(np.arange(n, dtype=np.uint32), ACTIONS * k).reshape(ACTIONS * n, k)
        probabilities = np.zeros((ACTIONS * n, k), np.float32)
        successors[row, place], probabilities[row, place] = table.successors, table.probabilities
        shape = (n, ACTIONS, k)
        arrival = make_problem("gridworld", world.parameters).cell_rewards(np.arange(n))  # type: ignore[attr-defined]
        rewards = table.rewards.reshape(n, ACTIONS)
        return cls(source, successors.reshape(shape), probabilities.reshape(shape), rewards, arrival.astype(np.float32))

    def in_tiles(self) -> InMemory:
        """The world as one partition whose states are ordered by tiles."""
        n, _, k = self.successors.shape
        side, (rows, columns) = int(np.sqrt(n)), _TILE
        cells = np.arange(n).reshape(side // rows, rows, side // columns, columns)
        order = cells.transpose(0, 2, 1, 3).reshape(-1)
        place = np.empty(n, np.uint32)
        place[order] = np.arange(n, dtype=np.uint32)
        old = self.source.read(0)[0]
        table = replace(
            old,
            successor_ptr=np.empty(0, np.uint32),
            successors_per_action=k,
            successors=place[self.successors[order].reshape(-1)].astype(old.successors.dtype),
            probabilities=self.probabilities[order].reshape(-1),
            rewards=self.rewards[order].reshape(-1),
        )
        return InMemory(self.source, [table], successors_per_action=k)

    def residual(self, values: FloatArray) -> float:
        """The largest |BV - V|, in float64."""
        largest = 0.0
        for first in range(0, values.size, 1 << 18):
            piece = slice(first, first + (1 << 18))
            mean = (self.probabilities[piece].astype(np.float64) * values[self.successors[piece]]).sum(axis=2)
            best = (self.rewards[piece] + 0.9 * mean).max(axis=1)
            largest = max(largest, float(np.abs(best - values[piece]).max()))
        return largest
