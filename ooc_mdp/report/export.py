"""The values and policy of a result as one file for other programs; the suffix chooses which.

.npy   values        .npz   value, policy        .csv   state, value, policy
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.methods.results import Result
from ooc_mdp.report.files import whole_file
from ooc_mdp.solution import Solution

__all__ = ["export_result"]

_LINES = 1 << 20
"""States of which lines are made at a time."""


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
    with whole_file(file, overwrite=overwrite) as temporary:
        write(temporary, result.solution)


def _write_npy(file: Path, solution: Solution) -> None:
    with file.open("wb") as f:
        np.save(f, solution.values)


def _write_npz(file: Path, solution: Solution) -> None:
    with file.open("wb") as f:
        np.savez(f, value=solution.values, policy=solution.policy)


def _write_csv(file: Path, solution: Solution) -> None:
    values, policy = solution.values, solution.policy
    with file.open("w", newline="", encoding="ascii") as f:
        out = csv.writer(f)
        out.writerow(("state", "value", "policy"))
        for start in range(0, values.size, _LINES):
            part = slice(start, start + _LINES)
            states = range(start, min(start + _LINES, values.size))
            out.writerows(zip(states, map(repr, values[part].tolist()), policy[part].tolist(), strict=True))
