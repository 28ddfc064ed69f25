"""Chunks that are runs of an array in C order, so that they are written and read without any reordering.

    shape (4, 6, 5), chunks (1, 3, 5):     chunk (i, j, 0) is the elements (i * 6 + 3 * j) * 5 to (... + 3) * 5

All axes before one have chunks of length 1, all after it chunks of full length; only along that one may the last chunk
be shorter, and is padded at its end. Knows no files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

__all__ = ["Slab", "count_slabs", "slab_chunks", "slabs"]

MAX_ELEMENTS = 1 << 20
"""Elements of a chunk."""


class Slab(NamedTuple):
    """One chunk."""

    number: int
    """Of all chunks, in C order."""
    key: tuple[int, ...]
    """Its place in the grid of chunks."""
    start: int
    stop: int
    """The elements, in C order, that it holds."""


def slab_chunks(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The chunks of an array: as large as MAX_ELEMENTS allows, and as equal as they can be."""
    axis = next(i for i in range(len(shape)) if math.prod(shape[i + 1 :]) <= MAX_ELEMENTS)
    length = max(1, shape[axis])
    most = max(1, MAX_ELEMENTS // max(1, math.prod(shape[axis + 1 :])))
    pieces = -(-length // most)
    return (1,) * axis + (-(-length // pieces),) + shape[axis + 1 :]


def count_slabs(shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    """Number of chunks.

    Raises
    ------
    ValueError : the chunks are no runs in C order, or too large.
    """
    axis = _axis(shape, chunks)
    return math.prod(shape[:axis]) * -(-shape[axis] // chunks[axis])


def slabs(shape: tuple[int, ...], chunks: tuple[int, ...], start: int = 0, stop: int | None = None) -> Iterator[Slab]:
    """The chunks in C order, of all elements or of those from one to another; ValueError as :func:`count_slabs`."""
    axis = _axis(shape, chunks)
    inner, length, most = math.prod(shape[axis + 1 :]), shape[axis], chunks[axis]
    rest, pieces = (0,) * (len(shape) - axis - 1), -(-shape[axis] // chunks[axis])
    stop = math.prod(shape) if stop is None else stop

    def number_of(element: int) -> int:
        outer, along = divmod(element // inner, length)
        return outer * pieces + along // most

    for number in range(number_of(start), number_of(stop - 1) + 1) if start < stop else ():
        outer, piece = divmod(number, pieces)
        key = tuple(int(i) for i in np.unravel_index(outer, shape[:axis])) if axis else ()
        first, last = piece * most, min((piece + 1) * most, length)
        row = outer * length
        yield Slab(number, (*key, piece, *rest), (row + first) * inner, (row + last) * inner)


def _axis(shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    """The axis along which chunks are cut."""
    if len(shape) != len(chunks) or not shape or min(shape) < 1 or min(chunks) < 1:
        raise ValueError(f"chunks {chunks} do not fit the shape {shape}")
    axis = max((i for i in range(len(shape)) if chunks[i] != shape[i]), default=0)
    if chunks[axis] > shape[axis] or any(n != 1 for n in chunks[:axis]) or math.prod(chunks) > MAX_ELEMENTS:
        raise ValueError(f"chunks {chunks} of the shape {shape} are no runs of at most {MAX_ELEMENTS} elements")
    return axis
