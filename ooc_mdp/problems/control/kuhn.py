"""A regular grid as compiled code reads it, and Kuhn's triangulation of its cells.

    fractions f of a position in its cell, sorted downwards: 1 - f_(1), f_(1) - f_(2), ..., f_(d)
    are the barycentric weights of the cell's base vertex and of those reached by adding axis (1), then (2), ...
    (Munos and Moore 2002). An axis that is periodic goes round; others end at the last cell.

Tuples carry positions, because arrays passed between compiled functions count references at each call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem

__all__ = ["Grid", "cell_of", "grid_point", "vertex_after", "weight_of", "wrapped"]


class Grid(NamedTuple):
    """The grid of a discretised problem, as tuples that compiled code can read; an entry an axis."""

    points: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    span: tuple[float, ...]
    h: tuple[float, ...]
    """Distance between neighbours."""
    periodic: tuple[bool, ...]
    clipped: tuple[bool, ...]


@njit(nogil=True, forceinline=True, cache=True)
def wrapped(x, grid):
    """Periodic components brought into [low, low + span)."""
    out = x
    for i in range(len(x)):
        if grid.periodic[i]:
            out = tuple_setitem(out, i, x[i] - grid.span[i] * np.floor((x[i] - grid.low[i]) / grid.span[i]))
    return out


@njit(nogil=True, forceinline=True, cache=True)
def grid_point(state, grid):
    """Where the state of a number lies."""
    x = grid.low
    rest = state
    for i in range(len(x)):
        k = rest // grid.stride[i]
        rest -= k * grid.stride[i]
        x = tuple_setitem(x, i, grid.low[i] + k * grid.h[i])
    return x


@njit(nogil=True, forceinline=True, cache=True)
def cell_of(x, grid):
    """The cell around x: fractions, largest first; the axis of each; the base's numbers along the axes; the base."""
    fraction = x
    order = grid.points
    lower = grid.points
    for i in range(len(x)):
        u = (x[i] - grid.low[i]) / grid.h[i]
        if grid.periodic[i]:
            u -= grid.points[i] * np.floor(u / grid.points[i])
            k = min(np.int64(np.floor(u)), grid.points[i] - 1)
        else:
            k = min(max(np.int64(np.floor(u)), 0), grid.points[i] - 2)
        f = min(max(u - k, 0.0), 1.0)
        lower = tuple_setitem(lower, i, k)
        j = i
        while j > 0 and fraction[j - 1] < f:
            fraction = tuple_setitem(fraction, j, fraction[j - 1])
            order = tuple_setitem(order, j, order[j - 1])
            j -= 1
        fraction = tuple_setitem(fraction, j, f)
        order = tuple_setitem(order, j, i)
    base = np.int64(0)
    for i in range(len(x)):
        base += lower[i] * grid.stride[i]
    return fraction, order, lower, base


@njit(nogil=True, forceinline=True, cache=True)
def vertex_after(vertex, j, order, lower, grid):
    """Vertex j of a cell's simplex after vertex j - 1; the first, for j = 0, is the base itself."""
    if j > 0:
        axis = order[j - 1]
        vertex += grid.stride[axis]
        if grid.periodic[axis] and lower[axis] == grid.points[axis] - 1:
            vertex -= grid.points[axis] * grid.stride[axis]
    return vertex


@njit(nogil=True, forceinline=True, cache=True)
def weight_of(j, fraction):
    """Barycentric weight of vertex j."""
    above = 1.0 if j == 0 else fraction[j - 1]
    return above - (fraction[j] if j < len(fraction) else 0.0)
