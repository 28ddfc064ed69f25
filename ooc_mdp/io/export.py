"""Write the values and policy of a result as one file for other programs; the suffix chooses the format.

.npy   values        .npz   value, policy        .csv   state, axes of the grid, value, policy, controls

A column `action` follows the policy where the source does not number its actions 0, 1, ...: the source's numbers. In
CSV each axis of a grid has a column, of the point's position where the axis' bounds are known and else of its index
along the axis; `control0`, ... are the control values of the policy's action, where the problem has such values.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.store.atomic_file import atomic_file
from ooc_mdp.store.result import Result
from ooc_mdp.store.result_grid import ResultGrid, grid_of

__all__ = ["export_result"]

_LINES = 1 << 16
"""States whose lines are written at a time."""
_COLUMNS = frozenset({"state", "value", "policy", "action"})


def export_result(result: Result, file: Path, *, overwrite: bool = False) -> None:
    """Write values and policy, in the source's state order and sign.

    Raises
    ------
    OptionsError : another suffix than .npy, .npz and .csv.
    StoreError : the file exists or cannot be written.
    """
    write = {".npy": _write_npy, ".npz": _write_npz, ".csv": _write_csv}.get(file.suffix)
    if write is None:
        raise OptionsError(f"cannot export to {file.name}: the name must end in .npy, .npz or .csv")
    with atomic_file(file, overwrite=overwrite) as temporary:
        write(temporary, result)


def _write_npy(file: Path, result: Result) -> None:
    with file.open("wb") as f:
        np.save(f, result.values)


def _write_npz(file: Path, result: Result) -> None:
    with file.open("wb") as f:
        np.savez(f, value=result.values, **_choices(result))  # type: ignore[arg-type]


def _write_csv(file: Path, result: Result) -> None:
    values, choices, controls = result.values, _choices(result), _controls(result)
    grid = grid_of(result.geometry, values.size, _COLUMNS)
    inputs = [] if controls is None else [f"control{i}" for i in range(controls.shape[1])]
    with file.open("w", newline="", encoding="utf-8") as f:
        out = csv.writer(f)
        out.writerow(("state", *_axis_names(grid), "value", *choices, *inputs))
        for start in range(0, values.size, _LINES):
            states = np.arange(start, min(start + _LINES, values.size))
            columns = [
                states.tolist(),
                *_positions(grid, states),
                map(repr, values[states].tolist()),
                *(choice[states].tolist() for choice in choices.values()),
                *([] if controls is None else _held(controls, result.policy[states])),
            ]
            out.writerows(zip(*columns, strict=True))


def _choices(result: Result) -> dict[str, npt.NDArray[Any]]:
    """The policy by the position of each action in its state, and by the source's number where that differs."""
    choices: dict[str, npt.NDArray[Any]] = {"policy": result.policy}
    if result.actions is not None:
        choices["action"] = result.actions
    return choices


def _axis_names(grid: ResultGrid) -> list[str]:
    """Headings of the axes, with units where they are known; none for a result without a grid."""
    if grid.dimensions == ("state",):
        return []
    units = [grid.coordinates[name].attributes["units"] if name in grid.coordinates else "" for name in grid.dimensions]
    return [f"{name} [{unit}]" if unit else name for name, unit in zip(grid.dimensions, units, strict=True)]


def _positions(grid: ResultGrid, states: npt.NDArray[np.int64]) -> Iterator[list[Any]]:
    """For each axis, where the states lie on it."""
    if grid.dimensions == ("state",):
        return
    for name, indices in zip(grid.dimensions, np.unravel_index(states, grid.shape), strict=True):
        place = grid.coordinates.get(name)
        yield (indices if place is None else place.positions[indices]).tolist()


def _controls(result: Result) -> FloatArray | None:
    """float64 [actions, inputs]: the values of each action's control; None where the problem has none, or others."""
    listed = (result.geometry or {}).get("controls")
    try:
        controls = np.array(listed, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    most = int(result.policy.max(initial=-1))
    return controls if controls.ndim == 2 and most < controls.shape[0] and result.actions is None else None


def _held(controls: FloatArray, policy: npt.NDArray[np.int32]) -> Iterator[list[float | str]]:
    """For each input, its value in each state; empty where the policy has no action."""
    for values in controls.T.tolist():
        yield ["" if action < 0 else values[action] for action in policy.tolist()]
