"""Calls of compiled loops that are kept with their arguments, so that any thread makes them without the interpreter.

Several threads that call a loop from Python take turns at the interpreter before and after it, and the solve's own
thread has turns to take meanwhile. A `Call` lies in memory as words of eight bytes; a thread that finds it there runs
the loop, whatever the interpreter is busy with.

    0 address of the entry | 1 address of the loop | 2 ... arguments

A number is one word; an array is its address, sizes and strides; a tuple is the words of its elements. The entry is a
compiled function that reads arguments of these types and calls the loop by its address. If it called the loop by name,
Numba would compile the loop a second time within it, which takes a second or two.

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
_ENTRY_TYPES = (types.TypeRef(types.none), types.int64, types.int64, types.int64)
"""Of the arguments of any entry: as machine code, all types that are passed as arguments are alike."""


@dataclass(frozen=True, slots=True)
class Call:
    """A loop and its arguments, except for the last one: the number of the thread."""

    address: int
    """Where the words lie in memory."""
    words: IntArray
    """int64 [k]; the entry, the loop and the arguments."""
    referenced: tuple[Any, ...]
    """Code and arrays that the words refer to, which live as long as the call."""


def call_of(loop: Any, *arguments: Any) -> Call:
    """A call of a compiled loop with these arguments and the number of a thread; the loop returns nothing."""
    argument_types = types.Tuple([typeof(argument) for argument in arguments])
    entry = _entry.get_compile_result(types.none(types.TypeRef(argument_types), *_ENTRY_TYPES[1:]))
    compiled = loop.get_compile_result(types.none(*argument_types.types, types.int64))
    words = np.array([_address_of_code(entry), _address_of_code(compiled), *_words_of(arguments)], np.int64)
    return Call(words.ctypes.data, words, (entry, compiled, arguments))


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
def _entry(argument_types, place, thread, error):
    """Call the loop whose address lies at `place`, with arguments of these types that follow it."""
    _call_loop(argument_types, place, thread, error)


@intrinsic
def _call_loop(typing: Any, argument_types: Any, place: Any, thread: Any, error: Any) -> Any:
    """What :func:`_entry` does; an exception of the loop is written to `error`, see :func:`make_call`."""
    loop_types = (*argument_types.instance_type.types, types.int64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, place, thread, error = values
        words = (builder.inttoptr(builder.add(place, _WORD(8 * i)), _WORD.as_pointer()) for i in count())
        function_type = context.call_conv.get_function_type(types.none, loop_types)
        loop = builder.inttoptr(builder.load(next(words)), function_type.as_pointer())
        arguments = [_read_argument(context, builder, each, words) for each in loop_types[:-1]]
        status, _ = context.call_conv.call_function(builder, loop, types.none, loop_types, [*arguments, thread])
        with builder.if_then(status.is_error, likely=False):
            at = builder.inttoptr(error, _WORD.as_pointer())
            builder.store(builder.sext(status.code, _WORD), at)
            builder.store(builder.ptrtoint(status.excinfoptr, _WORD), builder.gep(at, [_WORD(1)]))
        return context.get_dummy_value()

    return types.none(argument_types, types.int64, types.int64, types.int64), generate


def _read_argument(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    """A value of this type from the next words. References to arrays are not counted, since the `Call` holds them."""
    if isinstance(kind, types.BaseTuple):
        element_types: Any = kind
        elements = [_read_argument(context, builder, each, words) for each in element_types.types]
        return context.make_tuple(builder, kind, elements)
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
        function_type = context.call_conv.get_function_type(types.none, _ENTRY_TYPES)
        entry = builder.load(builder.inttoptr(address, function_type.as_pointer().as_pointer()))
        given = [context.get_dummy_value(), builder.add(address, _WORD(8)), thread, error]
        context.call_conv.call_function(builder, entry, types.none, _ENTRY_TYPES, given)
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
