"""Calls of compiled loops that are kept with their arguments, so that any thread makes them without the interpreter.

Several threads that call a loop from Python take turns at the interpreter before and after it, and the solve's own
thread has turns to take meanwhile. A `Call` lies in memory as words of eight bytes; a thread that finds it there runs
the loop, whatever the interpreter is busy with.

    0 entry | 1 loop | 2 ... arguments

A number takes a word, an array its address, sizes and strides, a tuple what its elements take. The entry is compiled
for the types of the arguments: it reads them and calls the loop, which it knows by its address. Otherwise the loop's
code would be compiled once more within it, which takes a second or two.

    call = call_of(sweep, spec, values, limit)      # sweep(spec, values, limit, thread), on any thread
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from llvmlite import ir
from numba import typeof, types
from numba.core.callconv import Status, errcode_t, excinfo_ptr_t
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime.compiled import part

__all__ = ["Call", "call_of", "make_call", "raise_error", "word_at"]

_WORD = ir.IntType(64)
_ENTERED = (types.TypeRef(types.none), types.int64, types.int64, types.int64)
"""What an entry is called with, as machine code: a type says nothing there."""


@dataclass(frozen=True, slots=True)
class Call:
    """A loop and its arguments, but for the last: the number of the thread."""

    address: int
    """Of the words."""
    words: IntArray
    """int64 [k]"""
    kept: tuple[Any, ...]
    """Code and arrays that they refer to."""


def call_of(loop: Any, *arguments: Any) -> Call:
    """A call of a compiled loop, which returns nothing, with these arguments and the number of a thread."""
    kinds = types.Tuple([typeof(argument) for argument in arguments])
    entry = _enter.get_compile_result(types.none(types.TypeRef(kinds), *_ENTERED[1:]))
    called = loop.get_compile_result(types.none(*kinds.types, types.int64))
    words = np.array([_address_of_code(entry), _address_of_code(called), *_words_of(arguments)], np.int64)
    return Call(words.ctypes.data, words, (entry, called, arguments))


def _address_of_code(compiled: Any) -> int:
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return address


def _words_of(argument: Any) -> Iterator[int]:
    """The words of an argument."""
    if isinstance(argument, tuple):
        for element in argument:
            yield from _words_of(element)
    elif isinstance(argument, np.ndarray):
        yield from (argument.__array_interface__["data"][0], *argument.shape, *argument.strides)
    else:
        yield int(np.frombuffer(np.asarray(argument).tobytes().ljust(8, b"\0"), np.int64)[0])


@part
def _enter(kinds, words, thread, error):
    """Read arguments of these kinds, and call the loop whose address lies before them."""
    _call_loop(kinds, words, thread, error)


@intrinsic
def _call_loop(typing: Any, kinds: Any, words: Any, thread: Any, error: Any) -> Any:
    """What :func:`_enter` does; what the loop raises is noted as :func:`make_call` says."""
    taken = (*kinds.instance_type.types, types.int64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, place, thread, error = values
        words = (builder.inttoptr(builder.add(place, _WORD(8 * i)), _WORD.as_pointer()) for i in count())
        kind = context.call_conv.get_function_type(types.none, taken)
        loop = builder.inttoptr(builder.load(next(words)), kind.as_pointer())
        given = [_read(context, builder, kind, words) for kind in taken[:-1]]
        status, _ = context.call_conv.call_function(builder, loop, types.none, taken, [*given, thread])
        with builder.if_then(status.is_error, likely=False):
            at = builder.inttoptr(error, _WORD.as_pointer())
            builder.store(builder.sext(status.code, _WORD), at)
            builder.store(builder.ptrtoint(status.excinfoptr, _WORD), builder.gep(at, [_WORD(1)]))
        return context.get_dummy_value()

    return types.none(kinds, types.int64, types.int64, types.int64), generate


def _read(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    """A value of that kind from the next words; references to arrays are not counted: the call's owner keeps them."""
    if isinstance(kind, types.BaseTuple):
        kinds: Any = kind
        return context.make_tuple(builder, kind, [_read(context, builder, each, words) for each in kinds.types])
    if not isinstance(kind, types.Array):
        place = builder.bitcast(next(words), context.get_data_type(kind).as_pointer())
        return context.unpack_value(builder, kind, place)
    array = context.make_array(kind)(context, builder)
    address, *extents = [builder.load(next(words)) for _ in range(1 + 2 * kind.ndim)]
    item_bytes = _WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    data = builder.inttoptr(address, array.data.type)
    populate_array(array, data, extents[: kind.ndim], extents[kind.ndim :], item_bytes, None)
    return array._getvalue()


@intrinsic
def make_call(typing: Any, address: Any, thread: Any, error: Any) -> Any:
    """Make the call that lies at an address.

    Parameters
    ----------
    error : address of two int64, written where the loop raises: what `raise_error` raises again.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, thread, error = arguments
        kind = context.call_conv.get_function_type(types.none, _ENTERED)
        entry = builder.load(builder.inttoptr(address, kind.as_pointer().as_pointer()))
        given = [context.get_dummy_value(), builder.add(address, _WORD(8)), thread, error]
        context.call_conv.call_function(builder, entry, types.none, _ENTERED, given)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def word_at(typing: Any, address: Any) -> Any:
    """The int64 that lies at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def raise_error(typing: Any, code: Any, info: Any) -> Any:
    """Raise what a call has raised, unless the code is 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, info = arguments
        with builder.if_then(builder.icmp_signed("!=", code, _WORD(0)), likely=False):
            narrow, place = builder.trunc(code, errcode_t), builder.inttoptr(info, excinfo_ptr_t)
            context.call_conv.return_status_propagate(builder, Status(narrow, *[None] * 6, place))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate
