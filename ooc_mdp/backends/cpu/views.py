"""Where a partition's values are while it is swept, and in which order its states come.

A partition is swept over a local copy of own and halo values, which fits the processor's cache, or, where it reads most
of the model, over all values. Its place in a workspace has

    values before [n] | changes of the last policy sweep [n] | own [n] and halo [h] values, unless successors are global
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooc_mdp.backends.cpu.addresses import Span, address_of, load, store
from ooc_mdp.backends.cpu.table import open_table
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.compiled import inlined, loop, part

__all__ = [
    "Model",
    "Order",
    "Scratch",
    "View",
    "copy_own",
    "gather",
    "gather_halo",
    "open_member",
    "order_of",
    "order_of_memory",
    "put_back",
    "reverse",
    "view_of",
]


class Model(NamedTuple):
    """What all partitions share."""

    discount: float
    sign: float
    """Of the rewards: -1 where they are costs."""


class View(NamedTuple):
    """Where a partition's values are while it is swept."""

    values: Span
    """float64; what successors index: own and halo values, or those of the model."""
    own: Span
    """float64 [n]; the part of them that is its own."""
    policy: Span
    """int32 [n]"""
    before: Span
    """float64 [n]; its values when sweeps began."""
    changes: Span
    """float64 [n]; those of the last policy sweep."""


class Order(NamedTuple):
    """The contiguous runs of a traversal: states start, start + step, ..."""

    starts: Span
    """int64; the first state of each run."""
    length: int
    """States of a run."""
    step: int


class Scratch(NamedTuple):
    """Arrays of one thread."""

    workspace: FloatArray
    starts: IntArray
    """int64 [n]; room for the runs of a traversal."""


@inlined
def view_of(table, place, workspace, values, policy):
    """A partition whose place in the workspace is that."""
    base, n = address_of(workspace) + 8 * place, table.n
    all_values = address_of(values)
    local = Span(
        all_values if table.global_successors else base + 16 * n,
        values.size if table.global_successors else n + table.halo.size,
    )
    return View(
        local,
        Span(all_values + 8 * table.first if table.global_successors else base + 16 * n, n),
        Span(address_of(policy) + 4 * table.first, n),
        Span(base, n),
        Span(base + 8 * n, n),
    )


@inlined
def copy_own(spec, table, values, to):
    """Copy the partition's own values, float64 [n]."""
    for i in range(table.n):
        store(spec, to, np.uint64(i), values[np.uint64(table.first + i)])


@inlined
def gather_halo(spec, table, view, values):
    """Copy the values of the halo to their local places; by how much one of those that were there rose and fell."""
    rise = fall = 0.0
    for i in range(table.halo.size):
        at = np.uint64(table.n + i)
        value = values[np.uint64(load(spec, table.halo, np.uint64(i), np.int64(0)))]
        change = value - load(spec, view.values, at, 0.0)
        rise, fall = max(rise, change), max(fall, -change)
        store(spec, view.values, at, value)
    return rise, fall


@inlined
def gather(spec, table, view, values):
    """Copy own values and those of the halo to their local places."""
    if not table.global_successors:
        copy_own(spec, table, values, view.own)
    gather_halo(spec, table, view, values)


@inlined
def open_member(spec, row, place, workspace, values, policy):
    """The table that a row of numbers describes, and its view with all values in their local places."""
    table = open_table(row)
    view = view_of(table, place, workspace, values, policy)
    gather(spec, table, view, values)
    return table, view


@inlined
def put_back(spec, table, view, values):
    """Copy local values to those of the model."""
    if not table.global_successors:
        for i in range(table.n):
            values[np.uint64(table.first + i)] = load(spec, view.own, np.uint64(i), 0.0)


@part
def _runs(extents, strides, starts):
    """First state of each run of a traversal, in its order; the number of runs."""
    inner = extents.size - 1
    at = np.zeros(extents.size, np.int64)
    run = 0
    count = 1
    for axis in range(extents.size):
        if strides[axis] < 0:
            run -= strides[axis] * (extents[axis] - 1)
        if axis < inner:
            count *= extents[axis]
    for i in range(count):
        starts[i] = run
        for axis in range(inner - 1, -1, -1):
            at[axis] += 1
            run += strides[axis]
            if at[axis] < extents[axis]:
                break
            run -= strides[axis] * extents[axis]
            at[axis] = 0
    return count


@part
def reverse(starts, length, step):
    """Reverse the runs of a traversal in place; the step of the way back.

    Loops in place of expressions of arrays, whose checks of shapes take Numba two seconds to compile.
    """
    last, along = starts.size - 1, (length - 1) * step
    for i in range((starts.size + 1) // 2):
        first = starts[i]
        starts[i] = starts[last - i] + along
        if i != last - i:
            starts[last - i] = first + along
    return -step


@loop
def order_of(traversal, backwards, starts):
    """The order that a traversal (int64 [2, d]; extents and strides) gives; its runs are kept in `starts`."""
    count = _runs(traversal[0], traversal[1], starts)
    length, step = traversal[0, -1], traversal[1, -1]
    if backwards:
        step = reverse(starts[:count], length, step)
    return Order(Span(address_of(starts), count), length, step)


@inlined
def order_of_memory(n, backwards, starts):
    """The order of n states in memory, or backwards."""
    starts[0] = n - 1 if backwards else 0
    return Order(Span(address_of(starts), 1), n, -1 if backwards else 1)
