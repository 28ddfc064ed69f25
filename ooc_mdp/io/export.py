"""Write the values and policy of a result as one file for other programs; the suffix chooses the format.

.npy   values        .npz   value, policy        .csv   state, value, policy

A column `action` follows the policy where the source does not number its actions 0, 1, ...: the source's numbers.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.store.atomic_file import atomic_file
from ooc_mdp.store.result import Result

__all__ = ["export_result"]

_LINES = 1 << 20
"""States whose lines are written at a time."""


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
        np.save(f, result.solution.values)


def _write_npz(file: Path, result: Result) -> None:
    with file.open("wb") as f:
        np.savez(f, value=result.solution.values, **_choices(result))  # type: ignore[arg-type]


def _write_csv(file: Path, result: Result) -> None:
    values, choices = result.solution.values, _choices(result)
    with file.open("w", newline="", encoding="ascii") as f:
        out = csv.writer(f)
        out.writerow(("state", "value", *choices))
        for start in range(0, values.size, _LINES):
            part = slice(start, start + _LINES)
            states = range(start, min(start + _LINES, values.size))
            chosen = [choice[part].tolist() for choice in choices.values()]
            out.writerows(zip(states, map(repr, values[part].tolist()), *chosen, strict=True))


def _choices(result: Result) -> dict[str, npt.NDArray[Any]]:
    """The policy by the position of each action in its state, and by the source's number where that differs."""
    choices: dict[str, npt.NDArray[Any]] = {"policy": result.solution.policy}
    if result.actions is not None:
        choices["action"] = result.actions
    return choices
