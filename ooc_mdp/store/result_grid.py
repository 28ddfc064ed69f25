"""The axes of a result's arrays: those of the grid that a table's geometry describes, or one axis of states.

    geometry {shape, axes: [{name, low, high, periodic, unit}, ...]}  ->  names, lengths and positions of the axes

Positions are low + i (high - low) / (n - 1); on a periodic axis, whose high is the same place as its low, divided by n.
Knows no files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_mdp.model.mdp import FloatArray

__all__ = ["Coordinate", "ResultGrid", "grid_of"]

_NAME = re.compile(r"[^\W\d]\w*")
_LARGEST_INT = 2**53


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Where the points of one axis lie."""

    positions: FloatArray
    attributes: dict[str, str]
    """`units` and `long_name`, as xarray and CF call them."""


@dataclass(frozen=True, slots=True)
class ResultGrid:
    """Names, lengths and coordinates of the axes of a result's arrays."""

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    """Its product is the number of states; their order in the source is the C order of the grid."""
    coordinates: dict[str, Coordinate]
    """By axis, where its bounds are known."""


def grid_of(geometry: Any, n_states: int, reserved: frozenset[str]) -> ResultGrid:
    """The axes of a result of so many states.

    Parameters
    ----------
    geometry : as in a store's attributes; None, or of another shape than the states, for one axis of states.
    reserved : names that axes cannot have.
    """
    shape = _lengths(geometry, n_states)
    if shape is None:
        return ResultGrid(("state",), (n_states,), {})
    axes = geometry.get("axes")
    if not isinstance(axes, list | tuple) or len(axes) != len(shape):
        axes = [{}] * len(shape)
    described = [axis if isinstance(axis, Mapping) else {} for axis in axes]
    names = [str(axis.get("name", "")) for axis in described]
    fit = [bool(_NAME.fullmatch(name)) and name not in reserved and names.count(name) == 1 for name in names]
    dimensions = tuple(name if fits else f"axis_{i}" for i, (name, fits) in enumerate(zip(names, fit, strict=True)))
    if len(set(dimensions)) != len(dimensions):
        dimensions = tuple(f"axis_{i}" for i in range(len(shape)))
    coordinates = {}
    for name, axis, n in zip(dimensions, described, shape, strict=True):
        positions = _positions(axis, n)
        if positions is not None:
            labels = {"units": str(axis.get("unit", "")), "long_name": str(axis.get("name") or name)}
            coordinates[name] = Coordinate(positions, labels)
    return ResultGrid(dimensions, shape, coordinates)


def _lengths(geometry: Any, n_states: int) -> tuple[int, ...] | None:
    """Points along each axis; None where there is no grid of so many states."""
    shape = geometry.get("shape") if isinstance(geometry, Mapping) else None
    if not isinstance(shape, list | tuple) or not shape or not all(type(n) is int and n > 0 for n in shape):
        return None
    return tuple(shape) if math.prod(shape) == n_states else None


def _positions(axis: Mapping[str, Any], n: int) -> FloatArray | None:
    """float64 [n]; None where the bounds are unknown or no interval."""
    bounds = axis.get("low"), axis.get("high")
    if not all(map(_is_finite, bounds)):
        return None
    low, high = (float(bound) for bound in bounds if bound is not None)
    if (n > 1 and not low < high) or not math.isfinite(high - low):
        return None
    parts = n if axis.get("periodic") else max(1, n - 1)
    return np.asarray(low + np.arange(n) * ((high - low) / parts))


def _is_finite(x: Any) -> bool:
    return (type(x) is int and abs(x) < _LARGEST_INT) or (isinstance(x, float) and math.isfinite(x))
