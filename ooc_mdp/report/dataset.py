"""A result as a Dataset of xarray: arrays in the grid's shape, with coordinates, units and the figures as attributes.

    value, policy, [action, value_lower, value_upper]   over the axes of the grid, or over `state`
    control     values of the control that the policy takes, NaN where a state has no action; over the axes, and
                `input` where controls have several components
    controls    a coordinate: the control values of each action

The group "history" has the figures of the solve over the coordinate `time`, and those of each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.model.grid_points import control_values
from ooc_mdp.quoting import quote
from ooc_mdp.store.result import Result
from ooc_mdp.store.result_attributes import HISTORY, history_arrays
from ooc_mdp.store.result_grid import grid_of

if TYPE_CHECKING:
    import xarray

__all__ = ["dataset_of"]

_RESERVED = frozenset(
    {
        "state",
        "value",
        "policy",
        "action",
        "value_lower",
        "value_upper",
        "control",
        "controls",
        "input",
        "action_number",
    }
)
"""Names that no axis can have."""


def dataset_of(result: Result, group: str | None = None) -> xarray.Dataset:
    """The Dataset of a result.

    Parameters
    ----------
    group : "history" for how the solve progressed.

    Raises
    ------
    MissingExtraError : xarray is not installed.
    OptionsError : there is no such group, or no history was recorded.
    """
    try:
        import xarray
    except ImportError as error:
        raise MissingExtraError("xarray", "xarray", "a Dataset of a result") from error
    if group is None:
        variables, coordinates = _states(result)
    elif group == HISTORY:
        variables, coordinates = _history(result)
    else:
        raise OptionsError(f"a result has no group {quote(group)}; give 'history', or none for the states")
    return xarray.Dataset(variables, coordinates, _figures(result))


def _states(result: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    """Variables and coordinates of the states."""
    solution = result.solution
    bounded = "value" if solution.gain is None else "gain"
    grid = grid_of(result.geometry, solution.values.size, _RESERVED)
    dimensions, shape = grid.dimensions, grid.shape
    arrays: dict[str, tuple[npt.NDArray[Any] | None, str]] = {
        "value": (solution.values, "value, within error_bound of the exact one"),
        "policy": (solution.policy, "number of the action among those of the state, -1 for none"),
        "action": (solution.source_actions, "the source's number of the action, -1 for none"),
        "value_lower": (solution.value_lower, f"proved lower bound on the {bounded}"),
        "value_upper": (solution.value_upper, f"proved upper bound on the {bounded}"),
    }
    variables: dict[str, Any] = {
        name: (dimensions, array.reshape(shape), {"long_name": text})
        for name, (array, text) in arrays.items()
        if array is not None
    }
    coordinates: dict[str, Any] = {
        name: (name, at.positions, {key: text for key, text in at.attributes.items() if text})
        for name, at in grid.coordinates.items()
    }
    controls = control_values(result.geometry, solution.policy, solution.source_actions)
    if controls is not None:
        several = ("input",) if controls.shape[1] > 1 else ()
        taken = np.where(solution.policy[:, None] >= 0, controls[solution.policy], np.nan)
        size = (controls.shape[1],) if several else ()
        variables["control"] = ((*dimensions, *several), taken.reshape(*shape, *size), {"long_name": "control"})
        coordinates["controls"] = (
            ("action_number", *several),
            controls.reshape(-1, *size),
            {"long_name": "control values of each action"},
        )
    return variables, coordinates


def _history(result: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    """Variables and coordinates of the solve's progress; its seconds are the coordinate `time`."""
    history = result.solution.history
    if history is None:
        raise OptionsError(f"{result.path} carries no history: the solve was not recorded")
    variables = {
        name: (dimension, array, {key: labels[key] for key in ("units", "long_name") if labels[key]})
        for name, (array, dimension, labels) in history_arrays(history).items()
    }
    return variables, {"time": variables.pop("seconds")}


def _figures(result: Result) -> dict[str, str | int | float]:
    """What is known of the whole result, as attributes that every format takes."""
    figures = {
        "sense": result.identity.get("sense"),
        "fingerprint": result.identity.get("fingerprint"),
        "model": result.provenance.get("source"),
        **result.solution.summary(),
    }
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in figures.items()
        if isinstance(value, str | int | float)
    }
