"""Threads that share a list of members in compiled loops: who has which, and who takes the next.

A member that is being worked on is held by one thread, and others go on to the next without waiting. Threads that pass
along the list again and again, taking what is free and has something to do, are as busy as the work allows, however
long each member takes and whatever else the cores do; fixed shares are as slow as the slowest of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["give_back", "next_turn", "take"]

_WORD = ir.IntType(64)


@intrinsic
def take(typing: Any, address: Any) -> Any:
    """Whether the int64 at the address was 0, and is 1 now: everything that its last holder wrote is seen then."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], _WORD.as_pointer())
        swapped = builder.cmpxchg(word, _WORD(0), _WORD(1), "acq_rel", "monotonic")
        return builder.extract_value(swapped, 1)

    return types.boolean(types.int64), generate


@intrinsic
def give_back(typing: Any, address: Any) -> Any:
    """The int64 at the address becomes 0, after everything that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(_WORD(0), word, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def next_turn(typing: Any, address: Any) -> Any:
    """The int64 at the address, which is one more now: no two calls return the same."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", word, _WORD(1), "monotonic")

    return types.int64(types.int64), generate
