"""Points between the states of a grid: the simplex around each with its weights, and the nearest state.

    position of x along axis i, in cells:   u_i = (x_i - low_i) / h_i = k_i + f_i
    Kuhn's triangulation: with f sorted downwards, f_(1) >= f_(2) >= ..., the weights of the simplex' vertices are
    1 - f_(1), f_(1) - f_(2), ..., f_(d): of the cell's base, then one step further along axis (1), (2), ... in turn

These are the weights by which control problems are discretised (`ooc_mdp.problems.control.kuhn`), here for many points
at a time in NumPy. A periodic axis goes round; on a clipped one a point beyond the bounds is held at the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["GridPoints", "control_values", "interpolated"]

_OUTSIDE = 1e-9
"""Share of an axis by which a point may be beyond its bounds, as rounding has it."""


@dataclass(frozen=True, slots=True)
class GridPoints:
    """The axes of a grid; its states are numbered in C order."""

    names: tuple[str, ...]
    points: tuple[int, ...]
    low: FloatArray
    """float64 [d]."""
    high: FloatArray
    """float64 [d]; of a periodic axis the same place as `low`."""
    periodic: npt.NDArray[np.bool_]
    """bool [d]."""
    clipped: npt.NDArray[np.bool_]
    """bool [d]; where a point beyond the bounds is held at them."""

    @staticmethod
    def of(geometry: Any, n_states: int) -> GridPoints:
        """The axes that a store's geometry describes.

        Raises
        ------
        OptionsError : the states are no grid whose axes have bounds.
        """
        axes: Any = geometry.get("axes") if isinstance(geometry, Mapping) else None
        shape: Any = geometry.get("shape") if isinstance(geometry, Mapping) else None
        if not (_is_shape(shape) and math.prod(shape) == n_states and _are_axes(axes, len(shape))):
            raise OptionsError(
                "the states are no grid whose axes are known, so that nothing lies between them; use values and policy "
                "by the number of the state"
            )
        for axis, n in zip(axes, shape, strict=True):
            low, high = axis.get("low"), axis.get("high")
            if not (_is_number(low) and _is_number(high) and low < high and n > 1):
                raise OptionsError(
                    f"the axis {axis.get('name')!r} has {n} points from {low} to {high}, which are no interval with "
                    f"points between them; use values and policy by the number of the state"
                )
        return GridPoints(
            tuple(str(axis.get("name", i)) for i, axis in enumerate(axes)),
            tuple(shape),
            np.array([axis["low"] for axis in axes], np.float64),
            np.array([axis["high"] for axis in axes], np.float64),
            np.array([bool(axis.get("periodic")) for axis in axes]),
            np.array([bool(axis.get("clipped")) for axis in axes]),
        )

    @property
    def steps(self) -> FloatArray:
        """float64 [d]; distance between neighbours."""
        cells = np.array(self.points) - ~self.periodic
        return np.asarray((self.high - self.low) / cells)

    @property
    def strides(self) -> IntArray:
        """int64 [d]; state numbers between neighbours."""
        return np.array([math.prod(self.points[i + 1 :]) for i in range(len(self.points))], np.int64)

    def coordinates(self, states: IntArray) -> FloatArray:
        """float64 [n, d]; where states lie."""
        return np.asarray(self.low + np.stack(np.unravel_index(states, self.points), axis=1) * self.steps)

    def nearest(self, x: FloatArray) -> IntArray:
        """int64 [n]; the state nearest to each point along every axis, the upper one of two as near."""
        index = np.floor(self._cells(x) + 0.5).astype(np.int64)
        counts = np.array(self.points)
        index = np.where(self.periodic, index % counts, np.clip(index, 0, counts - 1))
        return np.asarray(index @ self.strides)

    def simplex(self, x: FloatArray) -> tuple[IntArray, FloatArray]:
        """int64 and float64 [n, d + 1]; the vertices around each point, and their weights, which sum to 1."""
        u, counts = self._cells(x), np.array(self.points)
        lower = np.clip(np.floor(u).astype(np.int64), 0, counts - 1 - ~self.periodic)
        fraction = np.clip(u - lower, 0.0, 1.0)
        order = np.argsort(-fraction, axis=1, kind="stable")
        ranked = np.take_along_axis(fraction, order, axis=1)
        bounds = np.concatenate([np.ones((len(x), 1)), ranked, np.zeros((len(x), 1))], axis=1)
        last = self.periodic & (lower == counts - 1)
        step = np.where(last, -(counts - 1), 1) * self.strides
        along = np.take_along_axis(step, order, axis=1)
        base = (lower @ self.strides)[:, None]
        vertices = np.concatenate([base, base + np.cumsum(along, axis=1)], axis=1)
        return vertices, bounds[:, :-1] - bounds[:, 1:]

    def checked(self, x: Any) -> FloatArray:
        """float64 [n, d]; the points, of one point [1, d].

        Raises
        ------
        OptionsError : they are no numbers, have another number of components, or one is beyond an axis.
        """
        try:
            given = np.asarray(x, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise OptionsError(f"the points are no array of numbers: {error}") from None
        d = len(self.points)
        if given.ndim not in (1, 2) or given.shape[-1] != d:
            raise OptionsError(
                f"the points have the shape {given.shape}; give (n, {d}), or ({d},) for one: {', '.join(self.names)}"
            )
        points = given.reshape(-1, d)
        slack = _OUTSIDE * (self.high - self.low)
        free = self.periodic | self.clipped
        outside = ~np.isfinite(points) | (~free & ((points < self.low - slack) | (points > self.high + slack)))
        if outside.any():
            n, i = np.argwhere(outside)[0]
            raise OptionsError(
                f"point {n} has {self.names[i]} = {points[n, i]:.6g}, and the axis reaches from {self.low[i]:.6g} to "
                f"{self.high[i]:.6g}"
            )
        return points

    def _cells(self, x: FloatArray) -> FloatArray:
        """float64 [n, d]; positions along the axes in cells, of periodic ones from 0 to the number of points."""
        u = (x - self.low) / self.steps
        counts = np.array(self.points, np.float64)
        wrapped = u - counts * np.floor(u / counts)
        return np.where(self.periodic, wrapped, np.clip(u, 0.0, counts - 1))


def interpolated(grid: GridPoints, values: FloatArray, x: FloatArray) -> FloatArray:
    """float64 [n]; values at points, between those of the vertices around them."""
    vertices, weights = grid.simplex(x)
    terms = values[vertices]
    terms[weights == 0] = 0.0  # which an infinite value would make no number
    return np.asarray((weights * terms).sum(axis=1))


def control_values(geometry: Any, policy: npt.NDArray[np.int32], source_actions: IntArray | None) -> FloatArray | None:
    """float64 [actions, inputs]: the values of each action's control; None where the problem has none, or others."""
    listed = geometry.get("controls") if isinstance(geometry, Mapping) else None
    try:
        controls = np.array(listed, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    most = int(policy.max(initial=-1))
    return controls if controls.ndim == 2 and most < controls.shape[0] and source_actions is None else None


def _is_shape(x: Any) -> bool:
    return isinstance(x, list | tuple) and all(isinstance(n, int | np.integer) for n in x)


def _are_axes(x: Any, count: int) -> bool:
    return isinstance(x, list | tuple) and len(x) == count and all(isinstance(axis, Mapping) for axis in x)


def _is_number(x: Any) -> bool:
    try:
        return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)
    except OverflowError:  # a whole number beyond float64
        return False
