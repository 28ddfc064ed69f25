"""The Bellman equation on the CPU, sweeps of one partition, and measurements.

    full sweep      V(s) <- max_a { sign r(s,a) + g(s,a) sum_k p_k V(succ_k) }
    policy sweep    V(s) <-         sign r(s,b) + g(s,b) sum_k p_k V(succ_k),     b the policy's action in s

`action_value` is the braces and `action_values` those of all actions of a state; all loops call these two, those over
the rows of a policy (`ooc_mdp.backends.cpu.policy_loops`) too. `exact_sweeps` makes full sweeps of one
partition, whose last changes its bounds rest on. `measure` gives the residuals of partitions at the present values, and
the greedy policy. Rounds of sweeps over a batch of partitions are in `ooc_mdp.backends.cpu.rounds`.

Structures hold addresses (`ooc_mdp.backends.cpu.addresses`); arrays are parameters of the loops that Python calls.
Indices are unsigned, which spares a test for negative ones. The loop over a state's actions is inlined by Numba, which
makes full sweeps an eighth faster than LLVM's inlining; the rest by LLVM, which takes less time to compile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from ooc_mdp.backends.cpu.addresses import load, store
from ooc_mdp.backends.cpu.claims import fetch_increment
from ooc_mdp.backends.cpu.table import first_probability, first_row, row_begin
from ooc_mdp.backends.cpu.views import Order, copy_own, open_member, order_of, put_back, reverse
from ooc_mdp.model.contraction import UP
from ooc_mdp.runtime.compiled import inlined, loop, part

__all__ = [
    "ActionValues",
    "Limits",
    "MeasureOptions",
    "action_value",
    "action_values",
    "backup",
    "bound_states",
    "boundary_changes",
    "discount_of",
    "exact_sweeps",
    "expectation",
    "full_sweep",
    "measure",
    "measure_states",
    "policy_sweep",
    "row_value",
    "terminal_value",
]

_ONE = np.uint64(1)


class Limits(NamedTuple):
    """When exact sweeps end."""

    change: float
    most: int
    alternate: bool
    """Whether every second sweep goes the other way."""


class MeasureOptions(NamedTuple):
    """How partitions are measured."""

    improve: bool
    """Whether the policy becomes greedy, or only where a state has none yet."""
    significant: float
    """Residuals above this count for the largest promising value."""


class ActionValues(NamedTuple):
    """Values of the actions of a state; of a state that has none, its terminal value."""

    best: float
    """max_a Q_a,"""
    action: int
    """the lowest action that has it (-1: there is none),"""
    second: float
    """and the largest Q_a of the others (-inf: there are none)."""
    known: float
    """Q_a of the action that the caller knew."""
    normalised: float
    """max_a (Q_a - V) / (1 - g_a c), c the largest row sum of the partition."""


@inlined
def discount_of(spec, rows, model, j):
    """g of row j."""
    return load(spec, rows.discounts, j, 0.0) if rows.discounts.address != 0 else model.discount


@inlined
def expectation(spec, rows, values, begin, end, first):
    """sum_k p_k V(succ_k) over the transitions of a row, whose probabilities begin at `first`.

    Where rows share no distribution it is a loop with one index in place of two, which is faster.
    """
    if first == begin:
        return _expectation(spec, rows, values, begin, end, begin)
    return _expectation(spec, rows, values, begin, end, first)


@inlined
def _expectation(spec, rows, values, begin, end, first):
    """The loop of :func:`expectation`."""
    total = 0.0
    for k in range(len(spec.width) if len(spec.width) > 0 else np.int64(end - begin)):
        transition = begin + np.uint64(k)
        successor = np.uint64(load(spec, rows.successors, transition, spec.successor))
        probability = np.float64(load(spec, rows.probabilities, first + np.uint64(k), spec.probability))
        total += probability * load(spec, values, successor, 0.0)
    return total


@inlined
def action_value(spec, rows, model, values, j, begin, end, first):
    """sign r + g sum_k p_k V(succ_k) of row j of a table or of a policy; transitions and probabilities are there."""
    reward = np.float64(load(spec, rows.rewards, j, spec.reward))
    total = expectation(spec, rows, values, begin, end, first)
    return model.sign * reward + discount_of(spec, rows, model, j) * total


@inlined
def row_value(spec, table, model, values, j):
    """The same of row j of a table."""
    begin, end = row_begin(spec, table, j), row_begin(spec, table, j + _ONE)
    return action_value(spec, table, model, values, j, begin, end, first_probability(spec, table, j))


@inlined
def terminal_value(spec, table, model, s):
    """The value of state s, which has no actions."""
    return model.sign * load(spec, table.terminal, s, 0.0) if table.terminal.address != 0 else 0.0


@njit(inline="always")
def action_values(spec, table, model, values, s, here, known, row_sum):
    """Values of the actions of state s, whose value is `here`; `known` is an action of it, or -1."""
    row, last = first_row(spec, table, s), first_row(spec, table, s + _ONE)
    best = second = own = normalised = -np.inf
    action = -1
    if row == last:
        best = own = terminal_value(spec, table, model, s)
        normalised = best - here
    else:
        action = 0
        end = row_begin(spec, table, row)
        for a in range(len(spec.actions) if len(spec.actions) > 0 else np.int64(last - row)):
            j = row + np.uint64(a)
            begin = end
            end = row_begin(spec, table, j + _ONE)
            q = action_value(spec, table, model, values, j, begin, end, first_probability(spec, table, j))
            if table.discounts.address != 0:
                normalised = max(normalised, (q - here) / (1.0 - discount_of(spec, table, model, j) * row_sum))
            own = q if a == known else own
            second = best if q > best else max(second, q)
            action = a if q > best else action
            best = q if q > best else best
        if table.discounts.address == 0:
            normalised = (best - here) / (1.0 - model.discount * row_sum)
    return ActionValues(best, action, second, own, normalised)


@njit(inline="always")
def backup(spec, table, model, values, s):
    """max_a Q_a of state s and the lowest action that has it; its final value and -1 where it has no actions."""
    found = action_values(spec, table, model, values, s, 0.0, -1, 0.0)
    return found.best, found.action


@part
def full_sweep(spec, table, model, view, order):
    """Back up every state over all actions: largest rise and fall, and the states whose action changed."""
    up = 0.0
    down = 0.0
    differing = 0
    for run in range(order.starts.size):
        start = load(spec, order.starts, np.uint64(run), np.int64(0))
        for i in range(order.length):
            s = np.uint64(start + i * order.step)
            best, choice = backup(spec, table, model, view.values, s)
            change = best - load(spec, view.own, s, 0.0)
            up = max(up, change)
            down = max(down, -change)
            store(spec, view.own, s, best)
            differing += load(spec, view.policy, s, np.int32(0)) != choice
            store(spec, view.policy, s, np.int32(choice))
    return up, down, differing


@inlined
def _policy_backup(spec, table, model, view, s):
    """Back up state s over its policy's action: its change, and that of the sweep before."""
    choice = load(spec, view.policy, s, np.int32(0))
    change = 0.0
    last = 0.0
    if choice >= 0:
        j = first_row(spec, table, s) + np.uint64(choice)
        value = row_value(spec, table, model, view.values, j)
        change = value - load(spec, view.own, s, 0.0)
        last = load(spec, view.changes, s, 0.0)
        store(spec, view.own, s, value)
        store(spec, view.changes, s, change)
    return change, last


@inlined
def _two_runs(spec, order, pair):
    """Starts and lengths of two distant contiguous runs, or of the halves of the only one; the second may have none."""
    runs = order.starts.size
    half = (runs + 1) // 2
    start_0 = load(spec, order.starts, np.uint64(pair), np.int64(0))
    length_0 = order.length if runs > 1 else (order.length + 1) // 2
    start_1 = start_0 + order.step * length_0
    length_1 = order.length - length_0
    if runs > 1 and pair + half < runs:
        start_1 = load(spec, order.starts, np.uint64(pair + half), np.int64(0))
        length_1 = order.length
    return start_0, length_0, start_1, length_1


@part
def policy_sweep(spec, table, model, view, order):
    """Back up every state over its policy's action: the largest change, and its products with the last and itself.

    Two distant runs of states are swept alternately: a value that the next backup waits for holds up one of them only.
    """
    largest_0 = largest_1 = 0.0
    along_0 = along_1 = 0.0
    square_0 = square_1 = 0.0
    for pair in range((order.starts.size + 1) // 2):
        start_0, length_0, start_1, length_1 = _two_runs(spec, order, pair)
        for i in range(length_0):
            change, last = _policy_backup(spec, table, model, view, np.uint64(start_0 + i * order.step))
            largest_0 = max(largest_0, abs(change))
            along_0 += change * last
            square_0 += change * change
            if i < length_1:
                change, last = _policy_backup(spec, table, model, view, np.uint64(start_1 + i * order.step))
                largest_1 = max(largest_1, abs(change))
                along_1 += change * last
                square_1 += change * change
    return max(largest_0, largest_1), along_0 + along_1, square_0 + square_1


@part
def boundary_changes(spec, table, view):
    """Largest rise and fall of a boundary value, and the largest of those that changed (-inf: none did)."""
    rise = 0.0
    fall = 0.0
    value = -np.inf
    for i in range(table.n):
        s = np.uint64(i)
        if load(spec, table.boundary, s, np.uint8(0)) != 0:
            after = load(spec, view.own, s, 0.0)
            change = after - load(spec, view.before, s, 0.0)
            if change != 0.0:
                value = max(value, after)
                rise = max(rise, change)
                fall = max(fall, -change)
    return rise, fall, value


@loop
def exact_sweeps(spec, model, values, policy, row, traversal, limits, scratch):
    """Full sweeps of one partition until one changes no value by more than the limit, so many at most.

    Parameters
    ----------
    row : int64 [27]; its table.
    traversal : int64 [2, d]; extents and strides.

    Returns
    -------
    sweeps, rise and fall of the last one, rise, fall and largest changed value of the boundary, largest and smallest
    value
    """
    table, view = open_member(spec, row, 0, scratch.workspace, values, policy)
    copy_own(spec, table, values, view.before)
    starts = scratch.starts
    order = order_of(traversal, False, starts)
    sweeps = 0
    up = 0.0
    down = 0.0
    while sweeps < limits.most:
        up, down, _ = full_sweep(spec, table, model, view, order)
        sweeps += 1
        if up <= limits.change and down <= limits.change:
            break
        if limits.alternate:
            order = Order(order.starts, order.length, reverse(starts[: order.starts.size], order.length, order.step))
    put_back(spec, table, view, values)
    rise, fall, value = boundary_changes(spec, table, view)
    largest, smallest = -np.inf, np.inf
    for i in range(table.n):
        own = values[np.uint64(table.first + i)]
        largest, smallest = max(largest, own), min(smallest, own)
    return sweeps, up, down, rise, fall, value, largest, smallest


@loop
def measure(spec, model, values, policy, members, how, workspace):
    """Residuals of the members at the present values; several threads may share the members.

    Parameters
    ----------
    members : `ooc_mdp.backends.cpu.batch.Members`, whose `measured` is filled.
    workspace : float64; where their places are.
    """
    while True:
        m = int(fetch_increment(members.next.ctypes.data))
        if m >= members.tables.shape[0]:
            break
        table, view = open_member(spec, members.tables[m], members.places[m], workspace, values, policy)
        measure_states(spec, table, model, view, how, members.row_sums[m], members.measured[m])


@part
def measure_states(spec, table, model, view, how, row_sum, out):
    """One partition: float64 [8]; see `ooc_mdp.backends.cpu.batch.Members`."""
    one_scale = 1.0 / (1.0 - model.discount * row_sum)
    rise = fall = plain_rise = plain_fall = largest = promising = -np.inf
    smallest = np.inf
    differing = 0
    for i in range(table.n):
        s = np.uint64(i)
        here = load(spec, view.own, s, 0.0)
        known = np.int64(load(spec, view.policy, s, np.int32(0)))
        found = action_values(spec, table, model, view.values, s, here, known, row_sum)
        chooses = how.improve or known < 0
        kept = (found.best if chooses else found.known) - here
        if found.action >= 0 and chooses:
            differing += known != found.action
            store(spec, view.policy, s, np.int32(found.action))
        normalised, kept_normalised = found.best - here, kept
        if found.action >= 0:
            if table.discounts.address != 0:
                normalised = found.normalised
                if kept > -np.inf:  # a policy from a file may name an action that the state does not have
                    j = first_row(spec, table, s) + np.uint64(found.action if chooses else known)
                    kept_normalised = kept / (1.0 - discount_of(spec, table, model, j) * row_sum)
            else:
                normalised *= one_scale
                kept_normalised *= one_scale
        largest = max(largest, here)
        smallest = min(smallest, here)
        rise = max(rise, normalised)
        fall = max(fall, -kept_normalised)
        plain_rise = max(plain_rise, found.best - here)
        plain_fall = max(plain_fall, -kept)
        if abs(found.best - here) > how.significant:
            promising = max(promising, found.best)
    out[0], out[1], out[2], out[3] = rise, fall, plain_rise, plain_fall
    out[4], out[5], out[6], out[7] = largest, smallest, promising, differing


@part
def bound_states(spec, table, model, view, up, down, row_sum, out):
    """Bounds on what :func:`measure_states` would find, after a full sweep, in its place: float64 [8].

    In that sweep each value became a backup of values that have changed since, by no more than own values did in the
    sweep and those of the halo after it. A backup changes by that times the discount and the sum of a row's
    probabilities. All rows have the model's discount.

    Parameters
    ----------
    up, down : the largest rise and fall of these.
    """
    factor = model.discount * row_sum * UP
    largest, smallest = -np.inf, np.inf
    for i in range(table.n):
        here = load(spec, view.own, np.uint64(i), 0.0)
        largest, smallest = max(largest, here), min(smallest, here)
    out[2], out[3] = factor * up, factor * down
    one_scale = 1.0 / (1.0 - model.discount * row_sum)
    out[0], out[1] = out[2] * one_scale, out[3] * one_scale
    out[4], out[5], out[6], out[7] = largest, smallest, -np.inf, 0.0
