"""How states are renumbered so that each partition owns a contiguous range, and back. NumPy only, no files.

Three numberings, each O(1) or stated memory:

    ranges   new = original; only the cuts between partitions are kept
    grid     hypercube blocks over a shape in C order; blocks in C order, inside a block the grid's C order
    array    any assignment of states to partitions; two int64 a state in memory

    grid 4x6 in blocks of 2x3:     0  1  2 |  6  7  8
                                   3  4  5 |  9 10 11
                                   --------+---------
                                  12 13 14 | 18 19 20
                                  15 16 17 | 21 22 23
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.threads import map_on_threads

__all__ = ["GridOrder", "IdentityOrder", "PermutedOrder", "StateOrder", "partition_of"]


_LONG_NUMBER = 10**20
_MANY_BYTES = 64 << 20
"""From which on blocks are copied on several threads."""


class StateOrder(Protocol):
    """To add a numbering, define these; states(p) must ascend."""

    @property
    def partition_ptr(self) -> IntArray:
        """int64 [P+1]; partition p owns new states partition_ptr[p] .. partition_ptr[p+1]-1."""
        ...

    def to_store(self, states: IntArray) -> IntArray:
        """New numbers of original states."""
        ...

    def states(self, p: int) -> IntArray:
        """Original numbers of partition p's states, ascending, in the order of their new numbers."""
        ...

    def state_order(self) -> dict[str, Any]:
        """The store's attribute that says how to map back."""
        ...


def partition_of(partition_ptr: IntArray, states: IntArray) -> IntArray:
    """Partitions that own the given new states."""
    return np.searchsorted(partition_ptr, states, side="right") - 1


def _counted(n: int) -> str:
    """A number for messages, which may be a product of many."""
    return str(n) if n < _LONG_NUMBER else f"more than {_LONG_NUMBER}"


@dataclass(frozen=True, slots=True, eq=False)
class IdentityOrder:
    """States keep their numbers; partitions are consecutive ranges."""

    partition_ptr: IntArray
    """int64 [P+1], strictly increasing from 0."""

    def to_store(self, states: IntArray) -> IntArray:
        """The states themselves."""
        return states

    def states(self, p: int) -> IntArray:
        """The range of partition p."""
        return np.arange(self.partition_ptr[p], self.partition_ptr[p + 1], dtype=np.int64)

    def state_order(self) -> dict[str, Any]:
        """Kind "identity"."""
        return {"kind": "identity"}


class GridOrder:
    """Hypercube blocks over a grid; memory grows with the blocks and the longest axis, not with the states.

    Parameters
    ----------
    shape : points along each axis; original states count them in C order.
    edges : for each axis, where its blocks begin, from 0, and the axis length at the end.
    """

    def __init__(self, shape: Sequence[int], edges: Sequence[Sequence[int]]) -> None:
        self.shape = tuple(int(n) for n in shape)
        self.edges = tuple(np.asarray(e, np.int64) for e in edges)
        if len(self.edges) != len(self.shape) or not self.shape:
            raise OptionsError(f"{len(self.edges)} lists of block edges for a grid of shape {self.shape}")
        for n, e in zip(self.shape, self.edges, strict=True):
            if e.size < 2 or e[0] != 0 or e[-1] != n or (np.diff(e) <= 0).any():
                raise OptionsError(f"block edges {str(e[:20].tolist())[:80]} do not cut an axis of {n} points")
        self.partition_grid = tuple(e.size - 1 for e in self.edges)
        sizes = np.ones(1, np.int64)
        for e in self.edges:
            sizes = np.multiply.outer(sizes, np.diff(e)).ravel()
        self.partition_ptr: IntArray = np.concatenate([[0], np.cumsum(sizes)])

    @staticmethod
    def from_order(order: Mapping[str, Any], partition_ptr: IntArray) -> GridOrder:
        """The numbering that a store's state_order attribute describes.

        Raises
        ------
        OptionsError : it has other numbers of states or blocks than the store's partitions; nothing of their size has
            been allocated.
        """
        shape, edges = order["shape"], order["edges"]
        states, blocks = math.prod(shape), math.prod(len(e) - 1 for e in edges)
        if (states, blocks) != (int(partition_ptr[-1]), partition_ptr.size - 1):
            raise OptionsError(
                f"a grid of {_counted(states)} points in {_counted(blocks)} blocks is not the table's, of "
                f"{partition_ptr[-1]} states in {partition_ptr.size - 1} partitions"
            )
        return GridOrder(shape, edges)

    @cached_property
    def _block_of(self) -> tuple[IntArray, ...]:
        """For each axis, the block of each of its points."""
        return tuple(np.repeat(np.arange(e.size - 1, dtype=np.int64), np.diff(e)) for e in self.edges)

    def to_store(self, states: IntArray) -> IntArray:
        """New numbers of flat grid indices."""
        partition = np.zeros(states.shape, np.int64)
        inside = np.zeros(states.shape, np.int64)
        rest = states
        stride = math.prod(self.shape)
        for n, edges, block_of in zip(self.shape, self.edges, self._block_of, strict=True):
            stride //= n
            x, rest = np.divmod(rest, stride) if stride > 1 else (rest, np.zeros_like(rest))
            block = block_of[x]
            partition *= edges.size - 1
            partition += block
            inside *= np.diff(edges)[block]
            inside += x - edges[block]
        inside += self.partition_ptr[partition]
        return inside

    def states(self, p: int) -> IntArray:
        """Flat grid indices of block p."""
        corner = np.unravel_index(p, self.partition_grid)
        flat: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        for n, edges, b in zip(self.shape, self.edges, corner, strict=True):
            flat = np.add.outer(flat * n, np.arange(edges[b], edges[b + 1], dtype=np.int64)).ravel()
        return flat

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values in the order of blocks, in the grid's C order; those of many bytes are copied on several threads."""
        values, out = np.ascontiguousarray(values), np.empty_like(values)
        alike = list(product(*map(_runs_of_one_size, self.edges)))
        map_on_threads(
            lambda runs: self._place_alike(out, values, runs), alike, 16 if values.nbytes >= _MANY_BYTES else 1
        )
        return out

    def _place_alike(self, out: npt.NDArray[Any], values: npt.NDArray[Any], runs: Sequence[_Run]) -> None:
        """Copy the blocks of one shape that are in a run of blocks along each axis to their places of the grid.

        They follow each other in `values` at constant distances, so that one copy does for all.
        """
        apart, inside, first, before = [], [], 0, 1
        for axis, run in enumerate(runs):
            after = math.prod(self.shape[axis + 1 :])
            first += run.points.start * before * after
            apart.append(run.size * before * after)
            inside.append(math.prod(other.size for other in runs[axis + 1 :]))
            before *= run.size
        counts, sizes = [run.blocks for run in runs], [run.size for run in runs]
        strides = [values.itemsize * distance for distance in apart + inside]
        blocks = np.ndarray(counts + sizes, values.dtype, values, values.itemsize * first, strides)
        region = out.reshape(self.shape)[tuple(run.points for run in runs)]
        cut = region.reshape([n for run in runs for n in (run.blocks, run.size)])
        cut.transpose([*range(0, cut.ndim, 2), *range(1, cut.ndim, 2)])[...] = blocks

    def place(self, out: npt.NDArray[Any], first: int, values: npt.NDArray[Any]) -> None:
        """Put the values of successive states in the order of blocks, from `first` on, in their places of the grid.

        Parameters
        ----------
        out : [n], in the grid's C order.
        """
        grid, end = out.reshape(self.shape), first + values.size
        for p in range(int(np.searchsorted(self.partition_ptr, first, "right")) - 1, self.partition_ptr.size - 1):
            own, stop = int(self.partition_ptr[p]), int(self.partition_ptr[p + 1])
            if own >= end:
                return
            corner = np.unravel_index(p, self.partition_grid)
            block = grid[tuple(slice(e[b], e[b + 1]) for e, b in zip(self.edges, corner, strict=True))]
            begin = max(first, own)
            _fill(block, begin - own, values[begin - first : min(end, stop) - first])

    def block_shapes(self) -> npt.NDArray[np.int32]:
        """int32 [P, d]; points along each axis of each block."""
        sizes = np.meshgrid(*(np.diff(e).astype(np.int32) for e in self.edges), indexing="ij")
        return np.stack([s.ravel() for s in sizes], axis=1)

    def block_centres(self) -> FloatArray:
        """float64 [P, d]; the middle of each block, from 0 to 1 along each axis."""
        axes = zip(self.shape, self.edges, strict=True)
        middles = np.meshgrid(*((e[:-1] + e[1:]) / (2 * n) for n, e in axes), indexing="ij")
        return np.stack([m.ravel() for m in middles], axis=1)

    def state_order(self) -> dict[str, Any]:
        """Kind "grid" with shape, largest block and edges of the blocks."""
        return {
            "kind": "grid",
            "shape": list(self.shape),
            "block_shape": [int(np.diff(e).max()) for e in self.edges],
            "edges": [e.tolist() for e in self.edges],
        }


class _Run(NamedTuple):
    """Successive blocks along an axis that are of one size."""

    blocks: int
    size: int
    """Points of each block along the axis,"""
    points: slice
    """and all of them."""


def _runs_of_one_size(edges: IntArray) -> list[_Run]:
    """All blocks of an axis, as few runs as there are."""
    sizes = np.diff(edges)
    begins = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), sizes.size]
    return [_Run(b - a, int(sizes[a]), slice(int(edges[a]), int(edges[b]))) for a, b in pairwise(begins)]


def _fill(block: npt.NDArray[Any], first: int, values: npt.NDArray[Any]) -> None:
    """Write a part of a block, counted in its C order."""
    if block.ndim == 1:
        block[first : first + values.size] = values
        return
    row = math.prod(block.shape[1:])
    i, begun = divmod(first, row)
    if begun and values.size:
        head = min(row - begun, values.size)
        _fill(block[i], begun, values[:head])
        i, values = i + 1, values[head:]
    whole = values.size // row
    block[i : i + whole] = values[: whole * row].reshape(whole, *block.shape[1:])
    if whole * row < values.size:
        _fill(block[i + whole], 0, values[whole * row :])


class PermutedOrder:
    """Partitions given state by state; keeps 16 bytes a state in memory.

    Parameters
    ----------
    part : int [n]; label of each original state's partition; partitions are numbered by their labels' order,
        and labels that no state has are skipped.
    """

    def __init__(self, part: npt.NDArray[np.integer[Any]]) -> None:
        counts = np.bincount(part)
        self.partition_ptr: IntArray = np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.int64)
        self._original: IntArray = np.argsort(part, kind="stable")
        self._new: IntArray = np.empty_like(self._original)
        self._new[self._original] = np.arange(part.size)

    def to_store(self, states: IntArray) -> IntArray:
        """New numbers by look-up."""
        return self._new[states]

    def states(self, p: int) -> IntArray:
        """Original states of partition p."""
        return self._original[self.partition_ptr[p] : self.partition_ptr[p + 1]]

    def state_order(self) -> dict[str, Any]:
        """Kind "array": the field original_state holds it."""
        return {"kind": "array"}
