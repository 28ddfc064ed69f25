"""Calls of compiled loops that are kept with their arguments, so that any thread makes them without the interpreter.

Several threads that call a loop from Python take turns at the interpreter before and after it, and the solve's own
thread has turns to take meanwhile. A `Call` lies in memory as the address of a function and a structure of arguments:
a thread that finds it there runs the loop, whatever the interpreter is busy with.

    @loop
    def keep_sweep(arguments):
        return keep(sweep, arguments)

    call = call_of(keep_sweep, spec, values, limit)      # sweep(spec, values, limit, thread), on any thread
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callconv import Status, errcode_t, excinfo_ptr_t
from numba.extending import intrinsic

from ooc_mdp.backends.cpu.addresses import address_of
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime.compiled import inlined

__all__ = ["Call", "call_of", "keep", "make_call", "raise_error", "word_at"]

_WORD = ir.IntType(64)
_FUNCTION = ir.FunctionType(ir.VoidType(), [_WORD, _WORD, _WORD])
"""Called with the addresses of a call's arguments, the number of a thread and the address of a `make_call`'s error."""


@dataclass(frozen=True, slots=True)
class Call:
    """A loop and its arguments, but for the last: the number of the thread."""

    address: int
    """Of the function's address, after which the arguments lie."""
    kept: IntArray
    """What lies there,"""
    arguments: tuple[Any, ...]
    """and whose arrays that refers to."""


def call_of(keeping: Callable[[tuple[Any, ...]], tuple[int, IntArray]], *arguments: Any) -> Call:
    """A call with these arguments of the loop that a compiled function keeps (:func:`keep`)."""
    return Call(*keeping(arguments), arguments)


@inlined
def keep(loop, arguments):
    """Keep a call of a loop with a tuple of arguments and the number of a thread; its address, and where it lies."""
    words = np.empty(1 + (_size_of(arguments) + 7) // 8, np.int64)
    words[0] = _entry_of(loop, arguments)
    address = address_of(words)
    _put(address + 8, arguments)
    return address, words


@intrinsic
def make_call(typing: Any, address: Any, thread: Any, error: Any) -> Any:
    """Make the call that lies at an address.

    Parameters
    ----------
    error : address of two int64, written where the loop raises: what `raise_error` raises again.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, thread, error = arguments
        function = builder.load(builder.inttoptr(address, _FUNCTION.as_pointer().as_pointer()))
        builder.call(function, [builder.add(address, _WORD(8)), thread, error])
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


@intrinsic
def _size_of(typing: Any, arguments: Any) -> Any:
    """Bytes of the arguments as a structure."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _WORD(context.get_abi_sizeof(context.get_value_type(arguments)))

    return types.int64(arguments), generate


@intrinsic
def _put(typing: Any, address: Any, arguments: Any) -> Any:
    """Write the arguments there."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = builder.inttoptr(values[0], context.get_value_type(arguments).as_pointer())
        builder.store(_borrowed(context, builder, arguments, values[1]), place)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


def _borrowed(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The value, with arrays whose references are not counted: the owner of the call keeps them."""
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        kinds: Any = kind
        values = zip(kinds.types, cgutils.unpack_tuple(builder, value), strict=True)
        return context.make_tuple(builder, kind, [_borrowed(context, builder, k, v) for k, v in values])
    return value


@intrinsic
def _entry_of(typing: Any, loop: Any, arguments: Any) -> Any:
    """Address of a function that takes such arguments from memory and calls the loop."""
    called = loop.get_call_type(typing, (*arguments.types, types.int64), {})

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        module, compiled = builder.module, loop.dispatcher.get_compile_result(called)
        entry = ir.Function(module, _FUNCTION, module.get_unique_name("entry"))
        entry.linkage = "internal"
        inside = ir.IRBuilder(entry.append_basic_block())
        place, thread, error = entry.args
        kept = inside.load(inside.inttoptr(place, context.get_value_type(arguments).as_pointer()))
        parts = zip(cgutils.unpack_tuple(inside, kept), arguments.types, called.args, strict=False)
        given = [context.cast(inside, value, kind, wanted) for value, kind, wanted in parts]
        context.add_linking_libs([compiled.library])
        status, _ = context.call_internal_no_propagate(inside, compiled.fndesc, called, [*given, thread])
        with inside.if_then(status.is_error, likely=False):
            at = inside.inttoptr(error, _WORD.as_pointer())
            inside.store(inside.sext(status.code, _WORD), at)
            inside.store(inside.ptrtoint(status.excinfoptr, _WORD), inside.gep(at, [_WORD(1)]))
        inside.ret_void()
        return builder.ptrtoint(entry, _WORD)

    return types.int64(loop, arguments), generate
