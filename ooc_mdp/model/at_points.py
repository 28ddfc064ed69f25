"""A solution at points between the states of a grid: values interpolated, actions of the nearest state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.grid_points import GridPoints, control_values, interpolated
from ooc_mdp.model.mdp import FloatArray

if TYPE_CHECKING:
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.model.stages import StageResults

__all__ = ["control_at", "policy_at", "value_at"]


def value_at(solution: Solution, x: Any, stage: int) -> FloatArray:
    """:meth:`Solution.value_at`."""
    grid = GridPoints.of(solution.geometry, solution.values.size)
    values = solution.values if stage == 0 else _stages(solution, stage).values(stage)
    return np.asarray(interpolated(grid, values, grid.checked(x)).reshape(np.shape(x)[:-1]))


def policy_at(solution: Solution, x: Any, stage: int) -> npt.NDArray[np.int32]:
    """:meth:`Solution.policy_at`."""
    grid = GridPoints.of(solution.geometry, solution.values.size)
    policy = solution.policy if stage == 0 else _stages(solution, stage).policy(stage)
    return np.asarray(policy[grid.nearest(grid.checked(x))].reshape(np.shape(x)[:-1]))


def control_at(solution: Solution, x: Any, stage: int) -> FloatArray:
    """:meth:`Solution.control_at`."""
    controls = control_values(solution.geometry, solution.policy, solution.source_actions)
    if controls is None:
        raise OptionsError("the actions have no control values, which those of control problems have; use policy_at")
    chosen = policy_at(solution, x, stage)
    return np.where(chosen[..., None] >= 0, controls[chosen], np.nan)


def _stages(solution: Solution, stage: int) -> StageResults:
    if solution.stages is None:
        raise OptionsError(f"stage {stage} is one of a finite horizon, and this solution has no stages")
    return solution.stages
