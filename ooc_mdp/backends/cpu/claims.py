"""Claims of threads that share a list of members in compiled loops: an atomic test-and-set for each member.

A member that is being worked on is held by one thread, and others go on to the next without waiting. Threads that pass
along the list again and again, taking what is free and has something to do, are as busy as the work allows, however
long each member takes and whatever else the cores do; fixed shares are as slow as the slowest of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["acquire", "fetch_increment", "release"]

_WORD = ir.IntType(64)


@intrinsic
def acquire(typing: Any, address: Any) -> Any:
    """Set the int64 at the address to 1; True where it was 0. Everything that its last holder wrote is then visible."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], _WORD.as_pointer())
        swapped = builder.cmpxchg(word, _WORD(0), _WORD(1), "acq_rel", "monotonic")
        return builder.extract_value(swapped, 1)

    return types.boolean(types.int64), generate


@intrinsic
def release(typing: Any, address: Any) -> Any:
    """Set the int64 at the address to 0, after everything that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(_WORD(0), word, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def fetch_increment(typing: Any, address: Any) -> Any:
    """Add 1 to the int64 at the address, and return what it was: no two calls return the same.

    Everything that those who added before had written is then visible.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", word, _WORD(1), "acq_rel")

    return types.int64(types.int64), generate
