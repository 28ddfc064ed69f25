"""Which two axes of a grid a picture shows, and at which points of the other axes: one panel for each combination.

    axes (x, y), slices {heading: [0, 1.57]}    ->    two panels of x across and y up, at heading 0 and 1.57

An axis that is neither drawn nor sliced is sampled: of one or two such axes several points are drawn, of further ones
the point nearest to 0, or the middle one. Knows names, positions and indices; draws nothing and reads no values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.quoting import quote
from ooc_mdp.store.result_grid import ResultGrid

__all__ = ["MOST_PANELS", "GridAxis", "Panel", "SlicePlan", "axes_of", "plan_slices"]

MOST_PANELS = 36
_MOST_POINTS = 600
"""Points along a drawn axis at most."""
_SAMPLED_ALONE, _SAMPLED_OF_TWO = (5, 6), (3, 4)
"""Points of a sampled axis that is bounded, or periodic: an odd number includes the middle of a bounded one."""


@dataclass(frozen=True, slots=True)
class GridAxis:
    """One axis of the states' grid."""

    name: str
    unit: str
    positions: FloatArray
    """float64 [n], ascending; the number of the point, where the axis has no coordinates."""
    periodic: bool = False

    @property
    def label(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def extent(self) -> float:
        """Length of the axis; the last point of a periodic one is a step before the end. 1 where there is one point."""
        n, span = self.positions.size, float(np.ptp(self.positions))
        return (span * n / (n - 1) if self.periodic and n > 1 else span) or 1.0

    def written(self, index: int) -> str:
        """A point of the axis for a title: "heading = 1.57 rad"."""
        return f"{self.name} = {self.positions[index]:.3g} {self.unit}".rstrip()

    def nearest(self, x: float) -> int:
        """The point nearest to a position.

        Raises
        ------
        OptionsError : the position is beyond the axis, which is not periodic.
        """
        low, high = float(self.positions[0]), float(self.positions[-1])
        if self.periodic:
            x = low + (x - low) % self.extent
            return int(np.abs(np.append(self.positions, low + self.extent) - x).argmin()) % self.positions.size
        slack = 1e-9 * (high - low)
        if not low - slack <= x <= high + slack:
            raise OptionsError(
                f"the slice {self.name}={x:g} is beyond the axis, which reaches from {low:g} to {high:g} "
                f"{self.unit}".rstrip()
                + "; give a position on it"
            )
        return int(np.abs(self.positions - x).argmin())


def axes_of(grid: ResultGrid, geometry: Any) -> tuple[GridAxis, ...]:
    """The axes of a result's grid, by its geometry."""
    described = geometry.get("axes") if isinstance(geometry, Mapping) else None
    if not isinstance(described, list | tuple) or len(described) != len(grid.shape):
        described = [{}] * len(grid.shape)
    found = []
    for name, n, axis in zip(grid.dimensions, grid.shape, described, strict=True):
        at = grid.coordinates.get(name)
        positions = np.arange(n, dtype=np.float64) if at is None else at.positions
        unit = "" if at is None else at.attributes.get("units", "")
        periodic = bool(axis.get("periodic")) if isinstance(axis, Mapping) else False
        found.append(GridAxis(name, unit, positions, periodic and at is not None))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of two axes."""

    fixed: dict[int, int]
    """By number of the axis, the point at which it is cut."""
    title: str
    """A line for each axis in which panels differ."""


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The panels of a picture, row by row."""

    axes: tuple[GridAxis, ...]
    across: int
    up: int
    panels: tuple[Panel, ...]
    columns: int
    title: str
    """The axes that are cut at the same point in all panels."""

    @property
    def strides(self) -> tuple[int, int]:
        """Every how many points across and up are drawn."""
        return self._stride(self.across), self._stride(self.up)

    def _stride(self, axis: int) -> int:
        return -(-self.axes[axis].positions.size // _MOST_POINTS)

    def positions(self) -> tuple[FloatArray, FloatArray]:
        """Where the drawn points lie, across and up."""
        k, m = self.strides
        return self.axes[self.across].positions[::k], self.axes[self.up].positions[::m]

    def cut(self, flat: npt.NDArray[Any], panel: Panel) -> npt.NDArray[Any]:
        """The drawn points of a panel, [points up, points across].

        Parameters
        ----------
        flat : [n_states], in C order of the grid.
        """
        k, m = self.strides
        index: list[Any] = [panel.fixed.get(i, 0) for i in range(len(self.axes))]
        index[self.across], index[self.up] = slice(None, None, k), slice(None, None, m)
        found = flat.reshape([axis.positions.size for axis in self.axes])[tuple(index)]
        return np.asarray(found.T if self.across < self.up else found)


def plan_slices(
    axes: tuple[GridAxis, ...],
    drawn: Sequence[str] | None = None,
    slices: Mapping[str, Sequence[float]] | None = None,
) -> SlicePlan:
    """The panels for two axes and cuts of the others.

    Parameters
    ----------
    axes : of the grid, two or more.
    drawn : names of the axes across and up; the first two that are not sliced, or column and row.
    slices : by name of an axis, positions at which it is cut, in its unit.

    Raises
    ------
    OptionsError : there is no such axis, one is named twice, a position is beyond its axis, or panels are too many.
    """
    cuts = {_number(axes, name): [float(x) for x in at] for name, at in (slices or {}).items()}
    across, up = _drawn(axes, drawn, set(cuts))
    for i in (across, up):
        if i in cuts:
            raise OptionsError(
                f"the axis {axes[i].name} is drawn and cannot be cut as well; leave out its slice, or draw other axes"
            )
    points = {i: list(dict.fromkeys(axes[i].nearest(x) for x in at)) for i, at in cuts.items()}
    points |= _sampled(axes, [i for i in range(len(axes)) if i not in (across, up, *cuts)])
    count = math.prod(map(len, points.values()))
    if count > MOST_PANELS:
        raise OptionsError(
            f"the slices make {count} panels, and at most {MOST_PANELS} can be told apart; give fewer positions"
        )
    several = sorted(i for i, at in points.items() if len(at) > 1)
    same = [axes[i].written(at[0]) for i, at in sorted(points.items()) if len(at) == 1]
    panels = tuple(
        Panel(dict(zip(sorted(points), at, strict=True)), "")
        for at in itertools.product(*(points[i] for i in sorted(points)))
    )
    panels = tuple(Panel(p.fixed, "\n".join(axes[i].written(p.fixed[i]) for i in several)) for p in panels)
    columns = len(points[several[-1]]) if len(several) > 1 else min(count, 3)
    return SlicePlan(axes, across, up, panels, columns, ", ".join(same))


def _number(axes: tuple[GridAxis, ...], name: str) -> int:
    found = [i for i, axis in enumerate(axes) if axis.name == name]
    if not found:
        listed = ", ".join(axis.label for axis in axes)
        raise OptionsError(f"there is no axis {quote(name)}; the axes of this result are {listed}")
    return found[0]


def _drawn(axes: tuple[GridAxis, ...], names: Sequence[str] | None, cut: set[int]) -> tuple[int, int]:
    """The axes across and up."""
    if names is None:
        if [axis.name for axis in axes] == ["row", "column"]:
            return 1, 0
        free = [i for i in range(len(axes)) if i not in cut]
        if len(free) < 2:
            raise OptionsError(
                f"{len(axes) - len(free)} of the {len(axes)} axes are cut, and two have to be drawn; give fewer slices"
            )
        return free[0], free[1]
    if len(names) != 2 or names[0] == names[1]:
        raise OptionsError(
            f"the axes to draw are {', '.join(names) or 'none'}; give two different ones, such as "
            f"{axes[0].name},{axes[1].name}"
        )
    return _number(axes, names[0]), _number(axes, names[1])


def _sampled(axes: tuple[GridAxis, ...], free: list[int]) -> dict[int, list[int]]:
    """By axis, the points at which those are cut of which nothing is said."""
    found = {}
    for place, i in enumerate(free):
        at = axes[i].positions
        counts = _SAMPLED_ALONE if len(free) == 1 else _SAMPLED_OF_TWO
        if place >= 2:
            found[i] = [int(np.abs(at).argmin())] if at[0] <= 0 <= at[-1] else [at.size // 2]
        elif axes[i].periodic:
            found[i] = _distinct(np.arange(counts[1]) * at.size / counts[1])
        else:
            found[i] = _distinct(np.linspace(0, at.size - 1, counts[0] + 2)[1:-1])
    return found


def _distinct(places: FloatArray) -> list[int]:
    return list(dict.fromkeys(np.round(places).astype(int).tolist()))
