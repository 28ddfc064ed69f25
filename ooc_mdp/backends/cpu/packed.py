"""The policy's rows of one partition, packed in the topological order of the policy, and sweeps over them.

    V(s) <- V(s) + w(s) { sign r(s,b) + g(s,b) sum_k p_k V(succ_k) - V(s) },      b the policy's action in s
    w(s) = 1 / (1 - g p_self - c g p_later)

States are swept out from where the policy's most likely path ends (a state that stays, a cycle, another partition), so
that nearly every value comes after those that it depends on. What a sweep leaves is then due to successors that come
later, of probability p_later. They will change much as the state itself does, so the step w(s) lumps a share of them
into the diagonal, the relaxation factor c: Gauss-Seidel with its upper triangle lumped, as in modified incomplete
factorisations (Gustafsson 1978). It is no contraction for every policy: who uses it looks at the changes, and falls
back on c = 0, plain Gauss-Seidel but for states that stay. No bound rests on it.

Packed rows hold, for each state in that order, w g p_k (float64 [n, K]) | 1 - w (float64 [n]) | w r (float64 [n]) | the
state (uint32 [n]) | successors ([n, K], local), which a sweep reads from one end to the other; the table holds a
state's greedy row among its others. The actions of the rows (int32 [n]) are in the order of states, as the policy is,
so that comparing the two is one pass over both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from ooc_mdp.backends.cpu.addresses import Span, address_of, load, pointer, store
from ooc_mdp.backends.cpu.loops import discount_of, terminal_value
from ooc_mdp.backends.cpu.table import first_probability, first_row, row_begin
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.compiled import inlined, loop, part

__all__ = [
    "PackScratch",
    "PackedRows",
    "count_outdated",
    "make_plain",
    "pack",
    "packed_at",
    "packed_bytes",
    "patch",
    "sweep_packed",
    "topological_order",
]

_MAX_LATER = 0.3
"""Largest g p_later of a state that gets a longer step."""


class PackedRows(NamedTuple):
    """Where packed rows lie; rows gathered in the order of states have no steps, no order and no choices."""

    weights: Span
    keep: Span
    """1 - w"""
    rewards: Span
    order: Span
    choices: Span
    """The action of each state's row, in the order of states."""
    successors: Span


class PackScratch(NamedTuple):
    """Arrays of one thread, as long as the largest partition and the longest row want them."""

    workspace: FloatArray
    """As in `ooc_mdp.backends.cpu.views.Scratch`, and the next one."""
    starts: IntArray
    integers: npt.NDArray[np.int32]
    """int32 [4, n]"""
    numbers: FloatArray
    """float64 [(K + 1) n]"""
    successors: npt.NDArray[np.uint32]
    """uint32 [n K]"""
    alternate: bool
    """Whether every second full sweep goes the other way."""


class PackScratches(NamedTuple):
    """Those of all threads; the first axis of each array is the thread."""

    integers: npt.NDArray[np.int32]
    numbers: FloatArray
    successors: npt.NDArray[np.uint32]
    alternate: bool


def packed_bytes(n: int, width: int, successor_bytes: int) -> int:
    """Bytes of the packed rows of n states with so many successors each, a multiple of 8."""
    return n * (8 * width + 8 + 8 + 4 + 4) + -(-n * successor_bytes * width // 8) * 8


@inlined
def packed_at(address, n, width):
    """The packed rows of n states with so many successors each that begin there."""
    keep = address + 8 * n * width
    rewards = keep + 8 * n
    order = rewards + 8 * n
    return PackedRows(
        Span(address, n * width),
        Span(keep, n),
        Span(rewards, n),
        Span(order, n),
        Span(order + 4 * n, n),
        Span(order + 8 * n, n * width),
    )


@inlined
def _gathered_in(scratch, n, width):
    """Rows in the order of the table, in a thread's own arrays."""
    numbers = address_of(scratch.numbers)
    return PackedRows(
        Span(numbers, n * width),
        Span(numbers, 0),
        Span(numbers + 8 * n * width, n),
        Span(numbers, 0),
        Span(numbers, 0),
        Span(address_of(scratch.successors), n * width),
    )


@part
def count_outdated(spec, table, view, packed):
    """Number of packed rows that are outdated, since the policy chooses another action now."""
    outdated = 0
    for i in range(table.n):
        s = np.uint64(i)
        outdated += load(spec, view.policy, s, np.int32(0)) != load(spec, packed.choices, s, np.int32(0))
    return outdated


@loop
def pack(spec, table, model, view, packed, scratch, relaxation):
    """Pack the policy's rows: gather them in one pass over the table, order them, and bring them into their order.

    Returns the mean of g p_later.
    """
    n, integers = table.n, scratch.integers
    gathered = _gathered_in(scratch, n, _width(spec, table))
    _gather(spec, table, model, view, gathered, integers[0])
    order = carray(pointer(packed.order.address), (n,), np.uint32)
    topological_order(n, integers[0], integers[1], integers[2], integers[3], order)
    return _bring_into_order(spec, table, view, gathered, packed, integers[3], relaxation)


@loop
def patch(spec, table, model, view, packed, place, relaxation):
    """Replace the rows of states whose action has changed; the order stays as it is.

    Parameters
    ----------
    place : int32 [n]; scratch.
    """
    width = _width(spec, table)
    for i in range(table.n):
        place[load(spec, packed.order, np.uint64(i), np.uint32(0))] = i
    for state in range(table.n):
        s = np.uint64(state)
        choice = load(spec, view.policy, s, np.int32(0))
        if choice == load(spec, packed.choices, s, np.int32(0)):
            continue
        store(spec, packed.choices, s, choice)
        i = place[s]
        _copy_row(spec, table, model, packed, np.uint64(i), first_row(spec, table, s) + np.uint64(choice))
        _scale_row(spec, table, packed, i, width, _step(spec, table, packed, i, place, relaxation)[0])


@inlined
def _width(spec, table):
    """Successors of every row."""
    return len(spec.width) if len(spec.width) > 0 else table.width


@part
def _gather(spec, table, model, view, rows, towards):
    """The policy's rows in the order of states, and where each state most likely goes.

    Parameters
    ----------
    towards : int32 [n]; most likely successor; -1 where the state stays, leaves the partition, or ends the process.
    """
    width = _width(spec, table)
    for i in range(table.n):
        s = np.uint64(i)
        choice = load(spec, view.policy, s, np.int32(0))
        nearest = np.int64(-1)
        if choice >= 0:
            j = first_row(spec, table, s) + np.uint64(choice)
            nearest = _copy_row(spec, table, model, rows, s, j)
            if nearest == i or nearest >= table.n:
                nearest = np.int64(-1)
        else:
            store(spec, rows.rewards, s, terminal_value(spec, table, model, s))
            for k in range(width):
                store(spec, rows.weights, s * np.uint64(width) + np.uint64(k), 0.0)
                store(spec, rows.successors, s * np.uint64(width) + np.uint64(k), spec.successor)
        towards[i] = nearest


@inlined
def _copy_row(spec, table, model, rows, place, j):
    """Copy row j, discounted, to its place; its most likely successor."""
    width = _width(spec, table)
    at, begin, first = place * np.uint64(width), row_begin(spec, table, j), first_probability(spec, table, j)
    g = discount_of(spec, table, model, j)
    store(spec, rows.rewards, place, model.sign * np.float64(load(spec, table.rewards, j, spec.reward)))
    most = 0.0
    nearest = np.int64(-1)
    for k in range(len(spec.width) if len(spec.width) > 0 else width):
        successor = load(spec, table.successors, begin + np.uint64(k), spec.successor)
        weight = g * np.float64(load(spec, table.probabilities, first + np.uint64(k), spec.probability))
        nearest = np.int64(successor) if weight > most else nearest
        most = weight if weight > most else most
        store(spec, rows.weights, at + np.uint64(k), weight)
        store(spec, rows.successors, at + np.uint64(k), successor)
    return nearest


@part
def _bring_into_order(spec, table, view, rows, packed, place, relaxation):
    """Copy rows in the order of states to their places, with the steps of their backups; the mean of g p_later."""
    width = _width(spec, table)
    total = 0.0
    for i in range(table.n):
        s = np.uint64(load(spec, packed.order, np.uint64(i), np.uint32(0)))
        source, at = s * np.uint64(width), np.uint64(i) * np.uint64(width)
        store(spec, packed.rewards, np.uint64(i), load(spec, rows.rewards, s, 0.0))
        store(spec, packed.choices, s, load(spec, view.policy, s, np.int32(0)))
        for k in range(len(spec.width) if len(spec.width) > 0 else width):
            from_k, to_k = source + np.uint64(k), at + np.uint64(k)
            store(spec, packed.weights, to_k, load(spec, rows.weights, from_k, 0.0))
            store(spec, packed.successors, to_k, load(spec, rows.successors, from_k, spec.successor))
        w, later = _step(spec, table, packed, i, place, relaxation)
        total += later
        _scale_row(spec, table, packed, i, width, w)
    return total / table.n


@inlined
def _step(spec, table, packed, i, place, relaxation):
    """w of the row at place i, and its g p_later."""
    width = _width(spec, table)
    at = np.uint64(i) * np.uint64(width)
    to_self = 0.0
    later = 0.0
    for k in range(len(spec.width) if len(spec.width) > 0 else width):
        t = np.int64(load(spec, packed.successors, at + np.uint64(k), spec.successor))
        if t < table.n:
            weight = load(spec, packed.weights, at + np.uint64(k), 0.0)
            where = place[t]
            to_self += weight if where == i else 0.0
            later += weight if where > i else 0.0
    return 1.0 / (1.0 - to_self - (relaxation * later if later <= _MAX_LATER else 0.0)), later


@inlined
def _scale_row(spec, table, packed, i, width, w):
    """Make w the step of the row at place i, which has none yet."""
    at = np.uint64(i)
    store(spec, packed.keep, at, 1.0 - w)
    store(spec, packed.rewards, at, w * load(spec, packed.rewards, at, 0.0))
    for k in range(len(spec.width) if len(spec.width) > 0 else width):
        at_k = at * np.uint64(width) + np.uint64(k)
        store(spec, packed.weights, at_k, w * load(spec, packed.weights, at_k, 0.0))


@part
def make_plain(spec, table, packed):
    """Make the steps those of plain Gauss-Seidel."""
    width = np.uint64(_width(spec, table))
    for i in range(table.n):
        at = np.uint64(i)
        w = 1.0 - load(spec, packed.keep, at, 0.0)
        store(spec, packed.keep, at, 0.0)
        store(spec, packed.rewards, at, load(spec, packed.rewards, at, 0.0) / w)
        for k in range(width):
            at_k = at * width + np.uint64(k)
            store(spec, packed.weights, at_k, load(spec, packed.weights, at_k, 0.0) / w)


@loop
def topological_order(n, towards, first, after, place, order):
    """Order states out from where the paths along `towards` end: at -1, or in a cycle.

    Parameters
    ----------
    first, after, place : int32 [n]; scratch, the last of them the place of each state in the order.
    order : uint32 [n]; the result, each state once.
    """
    filled = 0
    for i in range(n):
        first[i] = -1
    for i in range(n):
        nearest = towards[i]
        if nearest >= 0:
            after[i] = first[nearest]
            first[nearest] = i
            place[i] = -1
        else:
            order[filled] = i
            filled += 1
            place[i] = 0
    for i in range(n):  # -1: not seen, -2 - i: on the path from i, -2 - n: on an earlier one, 0: ordered
        t = i
        while place[t] == -1:
            place[t] = -2 - i
            t = towards[t]
        if place[t] == -2 - i:
            last, t = t, towards[t]
            length = 1
            while t != last:
                length += 1
                t = towards[t]
            order[filled] = last
            place[last] = 0
            t = towards[last]
            for k in range(length - 1, 0, -1):
                order[filled + k] = t
                place[t] = 0
                t = towards[t]
            filled += length
        t = i
        while place[t] == -2 - i:
            place[t] = -2 - n
            t = towards[t]
    done = 0
    while done < filled:
        t = first[order[done]]
        done += 1
        while t >= 0:
            if place[t] != 0:
                order[filled] = t
                filled += 1
            t = after[t]
    for i in range(n):
        place[order[i]] = i


@part
def sweep_packed(spec, table, view, packed):
    """Back up every state: the largest change, and its products with the last and itself.

    Changes (`view.changes`) are in the order of the packed rows.
    """
    width = _width(spec, table)
    largest = along = square = 0.0
    for i in range(table.n):
        at = np.uint64(i)
        s = np.uint64(load(spec, packed.order, at, np.uint32(0)))
        before = load(spec, view.own, s, 0.0)
        value = load(spec, packed.rewards, at, 0.0) + load(spec, packed.keep, at, 0.0) * before
        for k in range(len(spec.width) if len(spec.width) > 0 else width):
            to = at * np.uint64(width) + np.uint64(k)
            successor = np.uint64(load(spec, packed.successors, to, spec.successor))
            value += load(spec, packed.weights, to, 0.0) * load(spec, view.values, successor, 0.0)
        change = value - before
        last = load(spec, view.changes, at, 0.0)
        store(spec, view.own, s, value)
        store(spec, view.changes, at, change)
        largest = max(largest, abs(change))
        along += change * last
        square += change * change
    return largest, along, square
