"""Paths from a CSV file, such as `simulate --csv` writes, as a picture of some axes takes them.

    run,time,x,y,heading,...    a column for each axis by its name; `run` tells paths apart, and is not needed for one

Of a picture with several panels each sample belongs to the panel whose cut is nearest to it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.quoting import listed
from ooc_mdp.report.maps.slices import GridAxis, SlicePlan

__all__ = ["panel_of_samples", "read_paths", "with_gaps"]

_MOST_SAMPLES = 2_000_000


def read_paths(file: Path, axes: tuple[GridAxis, ...]) -> list[FloatArray]:
    """Each path as float64 [samples, axes].

    Raises
    ------
    InputError : the file cannot be read, lacks a column, or holds no sample or what is no number.
    """
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            return _paths(file, csv.reader(stream), [axis.name for axis in axes])
    except OSError as error:
        raise InputError(file, f"cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(file, f"is no CSV file: {error}; give one that simulate --csv wrote") from error


def _paths(file: Path, rows: Iterator[list[str]], names: list[str]) -> list[FloatArray]:
    header = next(rows, [])
    missing = [name for name in names if name not in header]
    if missing:
        raise InputError(
            file,
            f"has no column {listed(missing)}: its columns are {listed(header) or 'none'}, and the axes of the result "
            f"{listed(names)}; give the CSV file of a simulation of this problem",
            1,
        )
    columns = [header.index(name) for name in names]
    run = header.index("run") if "run" in header else None
    found: dict[str, list[list[float]]] = {}
    for n, row in enumerate(rows):
        if n >= _MOST_SAMPLES:
            raise InputError(file, f"has more than {_MOST_SAMPLES:,} samples; write fewer (simulate --sample)", n + 2)
        try:
            sample = [float(row[c]) for c in columns]
            found.setdefault("" if run is None else row[run], []).append(sample)
        except (ValueError, IndexError):
            raise InputError(file, f"has no number for each of {listed(names)} here", n + 2) from None
    if not found:
        raise InputError(file, "holds no sample: there is no path to draw")
    return [np.array(samples) for samples in found.values()]


def panel_of_samples(path: FloatArray, plan: SlicePlan) -> IntArray:
    """int64 [samples]; the number of the panel whose cut is nearest to each sample, in lengths of the axes."""
    nearest, least = np.zeros(len(path), np.int64), np.full(len(path), np.inf)
    for number, panel in enumerate(plan.panels):
        distance = np.zeros(len(path))
        for i, point in panel.fixed.items():
            axis = plan.axes[i]
            apart, extent = path[:, i] - axis.positions[point], axis.extent
            if axis.periodic:
                apart = np.minimum(apart % extent, -apart % extent)
            distance += (apart / extent) ** 2
        nearest[distance < least] = number
        least = np.minimum(least, distance)
    return nearest


def with_gaps(path: FloatArray, axes: tuple[GridAxis, ...], drawn: tuple[int, int]) -> FloatArray:
    """float64 [samples, 2]; the drawn components, NaN where a periodic one jumps from one end to the other."""
    shown = path[:, list(drawn)].copy()
    for column, i in enumerate(drawn):
        if axes[i].periodic:
            jumps = np.abs(np.diff(path[:, i])) > 0.5 * axes[i].extent
            shown[1:][jumps, column] = np.nan
    return shown
