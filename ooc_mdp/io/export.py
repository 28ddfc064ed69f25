"""Write the values and policy of a result as one file for other programs; the suffix chooses the format.

.npy   values        .npz   value, policy        .csv   state, axes of the grid, value, policy, controls

A column `action` follows the policy where the source does not number its actions 0, 1, ...: the source's numbers. Where
it names actions a column `action_name` follows, empty where an action has no name. In CSV each axis of a grid has a
column, of the point's position where the axis' bounds are known and else of its index along the axis; `control0`, ...
are the control values of the policy's action, where the problem has such values.
Of a finite horizon these are the value and the policy of the first stage; `value_10` and `policy_10` are those of stage
10, where that is asked for.

Values of actions, where they are asked for, are an array `q` [states, actions], in CSV the columns `q0`, `q1`, ..., and
in .npy what the file holds in place of the values. They are computed partition by partition into a file on disk.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.grid_points import control_values
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.q_values import Continuation, partitions_with_q, widest
from ooc_mdp.model.table import Table
from ooc_mdp.store.atomic_file import atomic_file
from ooc_mdp.store.result import Result
from ooc_mdp.store.result_grid import ResultGrid, grid_of

__all__ = ["export_result"]

_LINES = 1 << 16
"""States whose lines are written at a time."""
_COLUMNS = frozenset({"state", "value", "policy", "action", "action_name"})


def export_result(
    result: Result, file: Path, *, overwrite: bool = False, stages: Sequence[int] = (), asked: Table | None = None
) -> float | None:
    """Write values and policy, in the source's state order and sign.

    Parameters
    ----------
    stages : of a finite horizon, that are written beside the first one; in .npy one stage in its place.
    asked : the table that the result is the answer to (`ooc_mdp.answers.answered_table`), to write the values of its
        actions too, of a finite horizon those of the first stage; None to write none.

    Returns
    -------
    float : no value of an action is further from the exact one; None where none were asked for.

    Raises
    ------
    OptionsError : another suffix than .npy, .npz and .csv, a stage that the result does not have, or a criterion that
        has no values of actions.
    StoreError : the file exists or cannot be written.
    """
    write = {".npy": _write_npy, ".npz": _write_npz, ".csv": _write_csv}.get(file.suffix)
    if write is None:
        raise OptionsError(f"cannot export to {file.name}: the name must end in .npy, .npz or .csv")
    of_stages = _of_stages(result, stages)
    if file.suffix == ".npy" and len(stages) > 1:
        raise OptionsError(f"{file.name} holds the values of one stage; give one, or write a .npz or .csv file")
    if file.suffix == ".npy" and stages and f"value_{stages[0]}" not in of_stages:
        assert result.solution.stages is not None
        result.solution.stages.values(stages[0])  # which says why it is not there
    if file.suffix == ".npy" and stages and asked is not None:
        raise OptionsError(
            f"{file.name} holds one array; leave --stages or --q-values out, or write a .npz or .csv file"
        )
    after = None if asked is None else Continuation.of(asked, result.solution)
    with atomic_file(file, overwrite=overwrite) as temporary:
        if asked is None or after is None:
            write(temporary, result, of_stages)
            return None
        q, error = _computed_q(temporary.with_name("q.npy"), asked, after)
        if file.suffix == ".npy":
            temporary.with_name("q.npy").rename(temporary)
        else:
            write(temporary, result, {**of_stages, "q": q})
        return error


def _computed_q(file: Path, asked: Table, after: Continuation) -> tuple[FloatArray, float]:
    """float64 [n, actions] in a .npy file, of all states, and their error; beside it one partition is in memory."""
    shape = (asked.n_states, max(1, widest(asked)))
    q = np.lib.format.open_memmap(file, mode="w+", dtype=np.float64, shape=shape)
    with file.open("r+b") as written:  # a full disk is an error here, and would kill the process in a mapped write
        os.posix_fallocate(written.fileno(), 0, file.stat().st_size)
    nothing, error = (-np.inf if asked.sense == "max" else np.inf), 0.0
    for states, of_partition, its_error in partitions_with_q(asked, after):
        q[states, : of_partition.shape[1]] = of_partition
        q[states, of_partition.shape[1] :] = nothing
        error = max(error, its_error)
    q.flush()
    return q, error


def _of_stages(result: Result, stages: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
    """Values, where they were kept, and policies of some stages by name; OptionsError where there are none."""
    known = result.solution.stages
    found: dict[str, npt.NDArray[Any]] = {}
    if stages and known is None:
        raise OptionsError(f"{result.path} is no result of a finite horizon, and has no stages; leave --stages out")
    for stage in stages:
        assert known is not None
        if stage == 0 or stage in known.kept:
            found[f"value_{stage}"] = known.values(stage) if stage in known.kept else result.values
        if stage != known.count or stage not in known.kept:
            found[f"policy_{stage}"] = known.policy(stage)
    return found


def _write_npy(file: Path, result: Result, of_stages: dict[str, npt.NDArray[Any]]) -> None:
    with file.open("wb") as f:
        np.save(f, next((array for name, array in of_stages.items() if name.startswith("value")), result.values))


def _write_npz(file: Path, result: Result, of_stages: dict[str, npt.NDArray[Any]]) -> None:
    with file.open("wb") as f:
        np.savez(f, value=result.values, **_choices(result), **of_stages)  # type: ignore[arg-type]


def _write_csv(file: Path, result: Result, of_stages: dict[str, npt.NDArray[Any]]) -> None:
    values, choices = result.values, _choices(result)
    controls = control_values(result.geometry, result.policy, result.solution.source_actions)
    more = [
        name if array.ndim == 1 else f"{name}{i}"
        for name, array in of_stages.items()
        for i in range(1 if array.ndim == 1 else array.shape[1])
    ]
    grid = grid_of(result.geometry, values.size, _COLUMNS)
    inputs = [] if controls is None else [f"control{i}" for i in range(controls.shape[1])]
    with file.open("w", newline="", encoding="utf-8") as f:
        out = csv.writer(f)
        out.writerow(("state", *_axis_names(grid), "value", *choices, *inputs, *more))
        for start in range(0, values.size, _LINES):
            states = np.arange(start, min(start + _LINES, values.size))
            columns = [
                states.tolist(),
                *_positions(grid, states),
                map(repr, values[states].tolist()),
                *(choice[states].tolist() for choice in choices.values()),
                *([] if controls is None else _held(controls, result.policy[states])),
                *(map(repr, column) for array in of_stages.values() for column in _columns(array[states])),
            ]
            out.writerows(zip(*columns, strict=True))


def _columns(array: npt.NDArray[Any]) -> list[list[Any]]:
    """The columns of an array of one or two dimensions."""
    columns: list[list[Any]] = np.atleast_2d(array.T).tolist()
    return columns


def _choices(result: Result) -> dict[str, npt.NDArray[Any]]:
    """The policy by the position of each action in its state, by the source's number where that differs, by name."""
    choices: dict[str, npt.NDArray[Any]] = {"policy": result.policy}
    if result.solution.source_actions is not None:
        choices["action"] = result.solution.source_actions
    names = result.solution.action_names
    if names is not None:
        choices["action_name"] = names
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


def _held(controls: FloatArray, policy: npt.NDArray[np.int32]) -> Iterator[list[float | str]]:
    """For each input, its value in each state; empty where the policy has no action."""
    for values in controls.T.tolist():
        yield ["" if action < 0 else values[action] for action in policy.tolist()]
