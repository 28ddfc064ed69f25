"""Arrays by their addresses, for structures of compiled loops.

Numba counts references of an array inside a tuple at each use, which makes inner loops three to six times slower.
Structures therefore hold a `Span` in place of an array, callers of a loop keep the array alive, and `load` and
`store` reach its elements. They do not check an index, unless the loop was compiled for a `Specialisation` with checks
(`ooc_mdp.backends.cpu.table.CHECKED`): one outside the span is then an IndexError.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ooc_mdp.runtime.compiled import inlined

__all__ = ["NOWHERE", "Span", "address_of", "cast", "load", "pointer", "span", "store"]


class Span(NamedTuple):
    """Where an array lies."""

    address: int
    """0 where it is absent."""
    size: int
    """Its number of elements."""


NOWHERE = Span(0, 0)
"""An array that is absent."""


def span(array: npt.NDArray[Any]) -> Span:
    """Where a contiguous array lies, for loops that do not outlive it; an empty one is absent."""
    return Span(array.ctypes.data, array.size) if array.size else NOWHERE


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """The address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def load(typing: Any, spec: Any, span: Any, index: Any, like: Any) -> Any:
    """The element of that index, whose type is that of `like`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_element(context, builder, spec, like, arguments[1], arguments[2]))

    return like(spec, span, types.uint64, like), generate


@intrinsic
def store(typing: Any, spec: Any, span: Any, index: Any, value: Any) -> Any:
    """Make the value the element of that index; the array is of its type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[3], _element(context, builder, spec, value, arguments[1], arguments[2]))
        return context.get_dummy_value()

    return types.void(spec, span, types.uint64, value), generate


@intrinsic
def cast(typing: Any, value: Any, like: Any) -> Any:
    """The number in the type of `like`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], value, like)

    return like(value, like), generate


def _element(context: Any, builder: Any, spec: Any, element: Any, span: Any, index: Any) -> Any:
    """Pointer to an element, and the check of its index before it is used, if there is one."""
    if spec.types[spec.fields.index("checked")].count > 0:
        outside = builder.icmp_unsigned(">=", index, builder.extract_value(span, 1))
        with builder.if_then(outside, likely=False):
            message = "an index of a compiled loop lies outside its array; the table was not checked when it was loaded"
            context.call_conv.return_user_exc(builder, IndexError, (message,))
    element_type = context.get_value_type(element)
    assert not isinstance(element_type, ir.IntType) or element_type.width >= 8  # a bool is a byte in memory
    return builder.gep(builder.inttoptr(builder.extract_value(span, 0), element_type.as_pointer()), [index])


@inlined
def address_of(array):
    """Where a contiguous array begins; callers that keep the address keep the array."""
    return np.int64(array.ctypes.data)
