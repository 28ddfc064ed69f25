"""How a field's values become the values that its chunks hold, and back: fewer bytes for what the rest determines.

row-delta        successors     the first of each row less its own state, the others less the one before
fixed24          probabilities  in units of 2**-24, without the last of each row: it is 1 minus the others
fixed24-delta2   probabilities  the same where rows are uniform: a plane for each (action, k), the states of the
                                partition in it, as zigzag of second differences
float32-delta2   durations      the bits of float32 values, a plane for each action, differences as above

Successors and weights of neighbouring states hardly differ in a discretised control problem, so differences are
small numbers, which compress. ``docs/decisions/store-encodings.md`` has the reasons. This module knows
neither files nor stores, and compiles nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.partition import StoredField
from ooc_mdp.store.layout import PartitionSizes

__all__ = ["IN_PLACE", "WITHOUT_LAST", "InexactWeights", "RowLayout", "decode", "encode", "load_code", "stored_count"]

Array = npt.NDArray[Any]

WITHOUT_LAST = ("fixed24", "fixed24-delta2")
"""Encodings of probabilities that are multiples of 2**-24 and leave the last of each row out."""


class InexactWeights(Exception):
    """A row of probabilities is not made of multiples of 2**-24 that sum to 1."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _none() -> npt.NDArray[np.uint32]:
    return np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where one partition's rows lie in its arrays; every row has a transition, or its last could not be left out."""

    sizes: PartitionSizes
    actions: int
    """Rows of every state, or 0 where action_ptr says it."""
    width: int
    """Transitions of every row, or 0 where successor_ptr says it."""
    action_ptr: npt.NDArray[np.uint32] = field(default_factory=_none)
    """uint32 [n+1], empty where uniform."""
    successor_ptr: npt.NDArray[np.uint32] = field(default_factory=_none)
    """uint32 [m+1], empty where uniform."""

    def fault(self) -> str | None:
        """What is wrong, if the loops over rows would leave the arrays."""
        s = self.sizes
        for name, ptr, uniform, count, end, least in (
            ("action_ptr", self.action_ptr, self.actions, s.states, s.rows, 0),
            ("successor_ptr", self.successor_ptr, self.width, s.rows, s.transitions, 1),
        ):
            if uniform and count * uniform != end:
                return f"{count} times {uniform} is not {end}"
            if not uniform and (ptr.size != count + 1 or ptr[0] != 0 or ptr[-1] != end or not _rises(ptr, least)):
                return f"{name} does not rise from 0 to {end}" + (" by at least 1 each" if least else "")
        return None


def _rises(ptr: npt.NDArray[np.uint32], least: int) -> bool:
    """Whether unsigned pointers rise by at least so much, 0 or 1, from each to the next."""
    return bool((ptr[1:] > ptr[:-1]).all() if least else (ptr[1:] >= ptr[:-1]).all())


def stored_count(length: int, encoding: str | None, sizes: PartitionSizes) -> int:
    """Values that a chunk holds of a field with `length` values."""
    return length - sizes.rows if encoding in WITHOUT_LAST else length


def encode(encoding: str, values: Array, layout: RowLayout) -> Array:
    """Values as the chunk holds them.

    Raises
    ------
    InexactWeights : probabilities that only "plain" storage could hold.
    """
    from ooc_mdp.store import compiled_encodings as compiled

    n, rows = layout.sizes.states, layout.sizes.rows
    match encoding:
        case "row-delta":
            out = np.empty_like(values)
            pointers = layout.action_ptr, layout.successor_ptr
            compiled.to_row_differences(values, out, n, layout.actions, layout.width, *pointers)
            return out
        case "fixed24" | "fixed24-delta2":
            weights = np.empty(values.size - rows, np.uint32)
            row = compiled.weights_of_rows(values, weights, rows, layout.width, layout.successor_ptr)
            if row >= 0:
                raise InexactWeights(row)
            return weights if encoding == "fixed24" else _planes(weights, n, layout.actions * (layout.width - 1))
        case "float32-delta2":
            return _planes(values.astype(np.float32).view(np.uint32), n, layout.actions)
        case _:
            raise ValueError(encoding)


IN_PLACE = ("row-delta",)
"""Encodings whose values take the place of what the chunk holds."""


def decode(
    encoding: str,
    stored: Array,
    dtype: np.dtype[Any],
    layout: RowLayout,
    new: Callable[[int, np.dtype[Any]], Array] = np.empty,
) -> Array:
    """Values from what the chunk holds, in the type that the table has, in memory of `new`; may change `stored`.

    The layout's pointers must be sound (see :meth:`RowLayout.fault`).
    """
    from ooc_mdp.store import compiled_encodings as compiled

    n, rows = layout.sizes.states, layout.sizes.rows
    match encoding:
        case "row-delta":
            pointers = layout.action_ptr, layout.successor_ptr
            compiled.from_row_differences(stored, n, layout.actions, layout.width, *pointers)
            return stored
        case "fixed24":
            out = new(layout.sizes.transitions, dtype)
            compiled.weights_from_rows(stored, out, rows, layout.width, layout.successor_ptr)
            return out
        case "fixed24-delta2":
            out = new(layout.sizes.transitions, dtype)
            compiled.weights_from_planes(stored, out, n, layout.actions, layout.width)
            return out
        case "float32-delta2":
            bits = (new if dtype == np.float32 else np.empty)(rows, np.dtype(np.uint32))
            compiled.bits_from_planes(stored, bits, n, layout.actions)
            if dtype == np.float32:
                return bits.view(np.float32)
            out = new(rows, dtype)
            out[:] = bits.view(np.float32)
            return out
        case _:
            raise ValueError(encoding)


def load_code(fields: Iterable[StoredField]) -> None:
    """Load the loops that decode values of these fields now, so that a memory plan counts them."""
    sizes = PartitionSizes(1, 1, 1, 0)
    for each in fields:
        if each.encoding is not None:
            stored = np.zeros(stored_count(1, each.encoding, sizes), each.stored)
            decode(each.encoding, stored, each.dtype, RowLayout(sizes, 1, 1))


def _planes(values: npt.NDArray[np.uint32], n: int, planes: int) -> npt.NDArray[np.uint32]:
    from ooc_mdp.store import compiled_encodings as compiled

    out = np.empty_like(values)
    compiled.to_planes(values, out, n, planes)
    return out
