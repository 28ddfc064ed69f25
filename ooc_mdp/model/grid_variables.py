"""The axes of a grid as variables of its states, for questions such as ``height > 3``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import DOUBLE, Annotations, Variable, VariableValues
from ooc_mdp.model.grid_points import GridPoints
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["GridVariables", "with_grid_variables"]


class GridVariables(Annotations):
    """Annotations of a grid, with a variable for each axis, unless the model has a variable of that name.

    Parameters
    ----------
    base : the labels, reward models and names that the model has.
    grid : the axes; states are numbered in C order.
    """

    def __init__(self, base: Annotations, grid: GridPoints) -> None:
        self._base, self._grid = base, grid
        last = grid.low + (np.array(grid.points) - 1) * grid.steps
        axes = zip(grid.names, grid.low.tolist(), last.tolist(), strict=True)
        self._axes = {name: i for i, name in enumerate(grid.names) if name not in base.variables}
        found = {name: Variable(DOUBLE, low, high) for name, low, high in axes if name in self._axes}
        self.variables = {**base.variables, **found}
        self.n_states, self.labels = int(np.prod(grid.points, dtype=np.int64)), base.labels
        self.table_rewards, self.reward_models = base.table_rewards, base.reward_models
        self.rewards_chosen, self.action_names = base.rewards_chosen, base.action_names

    def label_bits(self, name: str) -> npt.NDArray[np.uint8]:
        """The model's."""
        return self._base.label_bits(name)

    def values(self, name: str, first: int, end: int) -> VariableValues:
        """Of an axis, where the states lie; else the model's."""
        if name not in self._axes:
            return self._base.values(name, first, end)
        i, grid = self._axes[name], self._grid
        index = np.arange(first, end) // grid.strides[i] % grid.points[i]
        return np.asarray(grid.low[i] + index * grid.steps[i])

    def rewards(self, name: str, first: int, end: int) -> FloatArray:
        """The model's."""
        return self._base.rewards(name, first, end)

    def terminal_rewards(self, name: str, first: int, end: int) -> FloatArray:
        """The model's."""
        return self._base.terminal_rewards(name, first, end)

    def reward_range(self, name: str) -> tuple[float, float]:
        """The model's."""
        return self._base.reward_range(name)

    def row_names(self, first: int, end: int) -> IntArray:
        """The model's."""
        return self._base.row_names(first, end)

    def faults(self) -> list[str]:
        """The model's."""
        return self._base.faults()


def with_grid_variables(base: Annotations, geometry: Any, n_states: int) -> Annotations:
    """Annotations with the axes that a geometry describes; as they are where it describes no grid of the states."""
    try:
        return GridVariables(base, GridPoints.of(geometry, n_states))
    except OptionsError:
        return base
