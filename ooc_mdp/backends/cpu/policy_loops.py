"""Compiled loops over the rows of a policy, laid out as `backends.cpu.policy_rows` says.

`improve_rows` copies them from tables; sweeps, measurements and products read nothing else. Their Bellman equation is
that of tables (`ooc_mdp.backends.cpu.loops`): a policy's rows are a table with one row a state, whose rewards have
their sign already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooc_mdp.backends.cpu.addresses import Span, address_of, cast, load, store
from ooc_mdp.backends.cpu.loops import action_value, action_values, backup, discount_of, expectation, terminal_value
from ooc_mdp.backends.cpu.table import first_probability, first_row, row_begin
from ooc_mdp.backends.cpu.views import open_member
from ooc_mdp.runtime.compiled import inlined, loop, part

__all__ = [
    "Rows",
    "Share",
    "back_up_tables",
    "block_of",
    "improve_rows",
    "measure_rows",
    "open_rows",
    "product_rows",
    "sweep_rows",
]


class Rows(NamedTuple):
    """A policy's rows of the whole model, and which partitions read which."""

    first: Span
    """int64 [P + 1]; first state of each partition,"""
    begin: Span
    """int64 [P + 1]; where its rows begin,"""
    widths: Span
    """int64 [P]; their length,"""
    row_sums: Span
    """float64 [P]; the largest row sum of its table,"""
    valid: Span
    """bool [P]; and whether it has rows."""
    successors: Span
    probabilities: Span
    rewards: Span
    """float64 [n]; signed."""
    discounts: Span
    """float64 [n]; absent where all rows have the model's."""
    second_best: Span
    """float64 [n]; Q2, the second-best action value."""
    readers_ptr: Span
    """int64 [P + 1]; the coupling matrix by columns,"""
    readers: Span
    """int64; who reads a partition,"""
    mass: Span
    """float64; and how much of it."""


class Share(NamedTuple):
    """A thread's partitions."""

    begin: int
    end: int


class Block(NamedTuple):
    """The rows of one partition."""

    valid: bool
    first: int
    """Its first state,"""
    n: int
    """and their number."""
    begin: int
    """Where its rows begin,"""
    width: int
    """and their length."""


@inlined
def open_rows(numbers):
    """The rows that numbers (int64 [26]: addresses and sizes in the order of the fields) describe.

    One array takes a microsecond less to pass to a loop than the structure, which is half of a sweep of 200 states.
    """
    return Rows(
        Span(numbers[0], numbers[1]),
        Span(numbers[2], numbers[3]),
        Span(numbers[4], numbers[5]),
        Span(numbers[6], numbers[7]),
        Span(numbers[8], numbers[9]),
        Span(numbers[10], numbers[11]),
        Span(numbers[12], numbers[13]),
        Span(numbers[14], numbers[15]),
        Span(numbers[16], numbers[17]),
        Span(numbers[18], numbers[19]),
        Span(numbers[20], numbers[21]),
        Span(numbers[22], numbers[23]),
        Span(numbers[24], numbers[25]),
    )


@inlined
def block_of(spec, rows, p):
    """The rows of partition p."""
    at = np.uint64(p)
    first = load(spec, rows.first, at, np.int64(0))
    return Block(
        load(spec, rows.valid, at, np.uint8(0)) != 0,
        first,
        load(spec, rows.first, at + np.uint64(1), np.int64(0)) - first,
        load(spec, rows.begin, at, np.int64(0)),
        load(spec, rows.widths, at, np.int64(0)),
    )


@inlined
def _all_values(values):
    """Where the values of the model are."""
    return Span(address_of(values), values.size)


@inlined
def _backup(spec, rows, model, values, block, i):
    """r + g sum_k p_k V(succ_k) of the block's state i."""
    begin = np.uint64(block.begin + i * block.width)
    end = begin + np.uint64(block.width)
    return action_value(spec, rows, model, values, np.uint64(block.first + i), begin, end, begin)


@loop
def back_up_tables(spec, model, values, policy, members, backups, workspace):
    """Back up every state of the members over all actions, at values that stay as they are.

    Parameters
    ----------
    members : `ooc_mdp.backends.cpu.batch.Members`, whose `measured` begins with the largest and, its sign turned, the
        smallest difference between a backup and its value, the largest backup and the smallest.
    backups : float64 [n]; gets max_a Q_a of the states.
    """
    for m in range(members.tables.shape[0]):
        table, view = open_member(spec, members.tables[m], members.places[m], workspace, values, policy)
        rise = fall = largest = -np.inf
        smallest = np.inf
        for i in range(table.n):
            s = np.uint64(i)
            best, _ = backup(spec, table, model, view.values, s)
            change = best - load(spec, view.own, s, 0.0)
            rise = max(rise, change)
            fall = max(fall, -change)
            largest = max(largest, best)
            smallest = min(smallest, best)
            backups[table.first + i] = best
        out = members.measured[m]
        out[0], out[1], out[2], out[3] = rise, fall, largest, smallest


@loop
def improve_rows(spec, model, values, policy, members, row_spec, numbers, margin, workspace):
    """Make policies greedy at the present values, copy their rows, and keep Q2.

    Parameters
    ----------
    members : `ooc_mdp.backends.cpu.batch.Members`, whose `measured` is filled but for values.
    row_spec, numbers : what loops over the policy's rows are compiled for, and the rows (:func:`open_rows`).
    margin : by how much more than the state's own action another must be worth.
    """
    rows = open_rows(numbers)
    for m in range(members.tables.shape[0]):
        table, view = open_member(spec, members.tables[m], members.places[m], workspace, values, policy)
        block = block_of(row_spec, rows, table.partition)
        measured = members.measured[m]
        _improve_states(spec, table, model, view, row_spec, rows, block, margin, members.row_sums[m], measured)


@part
def _improve_states(spec, table, model, view, row_spec, rows, block, margin, row_sum, out):
    """One partition."""
    rise = fall = plain_rise = plain_fall = -np.inf
    differing = 0
    for i in range(table.n):
        s = np.uint64(i)
        here = load(spec, view.own, s, 0.0)
        known = np.int64(load(spec, view.policy, s, np.int32(0)))
        found = action_values(spec, table, model, view.values, s, here, known, row_sum)
        keeps = known >= 0 and found.action >= 0 and found.best - found.known <= margin
        choice = known if keeps else np.int64(found.action)
        kept = (found.known if keeps else found.best) - here
        kept_normalised = kept
        if choice >= 0:
            j = first_row(spec, table, s) + np.uint64(choice)
            kept_normalised = kept / (1.0 - discount_of(spec, table, model, j) * row_sum)
        other = found.second if choice == found.action else found.best
        store(row_spec, rows.second_best, np.uint64(block.first + i), other)
        if choice != known or not block.valid:
            differing += choice != known
            store(spec, view.policy, s, np.int32(choice))
            _copy_row(spec, table, model, s, choice, row_spec, rows, block)
        rise = max(rise, found.normalised)
        fall = max(fall, -kept_normalised)
        plain_rise = max(plain_rise, found.best - here)
        plain_fall = max(plain_fall, -kept)
    out[0], out[1], out[2], out[3], out[7] = rise, fall, plain_rise, plain_fall, differing


@inlined
def _copy_row(spec, table, model, s, choice, row_spec, rows, block):
    """Copy the row of an action of state s (-1: it has none), filled up with probability 0."""
    state = np.uint64(block.first) + s
    at = np.uint64(block.begin) + s * np.uint64(block.width)
    count = np.uint64(0)
    reward, discount = terminal_value(spec, table, model, s), 0.0
    if choice >= 0:
        j = first_row(spec, table, s) + np.uint64(choice)
        begin, first = row_begin(spec, table, j), first_probability(spec, table, j)
        count = row_begin(spec, table, j + np.uint64(1)) - begin
        reward = model.sign * np.float64(load(spec, table.rewards, j, spec.reward))
        discount = discount_of(spec, table, model, j)
        for k in range(np.int64(count)):
            from_k, to_k = begin + np.uint64(k), at + np.uint64(k)
            to = np.int64(load(spec, table.successors, from_k, spec.successor))
            if not table.global_successors:
                inside = to < table.n
                to = table.first + to if inside else load(spec, table.halo, np.uint64(to - table.n), np.int64(0))
            store(row_spec, rows.successors, to_k, cast(to, row_spec.successor))
            probability = load(spec, table.probabilities, first + np.uint64(k), spec.probability)
            store(row_spec, rows.probabilities, to_k, cast(probability, row_spec.probability))
    store(row_spec, rows.rewards, state, reward)
    if rows.discounts.address != 0:
        store(row_spec, rows.discounts, state, discount)
    for k in range(np.int64(count), block.width):
        to_k = at + np.uint64(k)
        store(row_spec, rows.successors, to_k, cast(state, row_spec.successor))
        store(row_spec, rows.probabilities, to_k, row_spec.probability)


@loop
def sweep_rows(spec, model, numbers, share, values, active, back, inflow_bounds):
    """A sweep of the share's active partitions, in place; the number of backups.

    Parameters
    ----------
    active : bool [P]
    back : whether partitions and states go from the last to the first.
    inflow_bounds : float64 [P]; bounds on what has flowed in. Other threads may add to them at the same time, and what
        is lost by that is found by the measurement.
    """
    rows, everywhere = open_rows(numbers), _all_values(values)
    backups = 0
    for step in range(share.end - share.begin):
        p = share.end - 1 - step if back else share.begin + step
        if not active[p]:
            continue
        block = block_of(spec, rows, p)
        inflow_bounds[p] = 0.0
        change = 0.0
        for number in range(block.n):
            i = block.n - 1 - number if back else number
            state = np.uint64(block.first + i)
            value = _backup(spec, rows, model, everywhere, block, i)
            change = max(change, abs(value - values[state]))
            values[state] = value
        backups += block.n
        at = np.uint64(p)
        last = load(spec, rows.readers_ptr, at + np.uint64(1), np.int64(0))
        for e in range(load(spec, rows.readers_ptr, at, np.int64(0)), last):
            reader = load(spec, rows.readers, np.uint64(e), np.int64(0))
            inflow_bounds[reader] += load(spec, rows.mass, np.uint64(e), 0.0) * change
    return backups


@loop
def measure_rows(spec, model, numbers, share, values, before, policy, out):
    """The share's partitions at the present values, float64 [P, 9]: as in `Evaluation`, in the order of its fields.

    Partitions without rows are left out.
    """
    rows, everywhere = open_rows(numbers), _all_values(values)
    for p in range(share.begin, share.end):
        block = block_of(spec, rows, p)
        if not block.valid:
            continue
        row_sum = load(spec, rows.row_sums, np.uint64(p), 0.0)
        scale = 1.0 / (1.0 - model.discount * row_sum)
        up = down = rise = fall = plain_rise = plain_fall = other = largest = -np.inf
        smallest = np.inf
        for i in range(block.n):
            state = np.uint64(block.first + i)
            here = values[state]
            residual = _backup(spec, rows, model, everywhere, block, i) - here
            if rows.discounts.address != 0:
                normalised = residual / (1.0 - discount_of(spec, rows, model, state) * row_sum)
            else:
                normalised = residual * scale if policy[state] >= 0 else residual  # without action it is the error
            up = max(up, here - before[state])
            down = max(down, before[state] - here)
            rise = max(rise, normalised)
            fall = max(fall, -normalised)
            plain_rise = max(plain_rise, residual)
            plain_fall = max(plain_fall, -residual)
            other = max(other, load(spec, rows.second_best, state, 0.0) - here)
            largest = max(largest, here)
            smallest = min(smallest, here)
        out[p, 0], out[p, 1], out[p, 2], out[p, 3], out[p, 4] = up, down, rise, fall, plain_rise
        out[p, 5], out[p, 6], out[p, 7], out[p, 8] = plain_fall, other, largest, smallest


@loop
def product_rows(spec, model, numbers, share, x, residual, out):
    """(1 - g P) x over the share's partitions, or r minus that."""
    rows, everywhere = open_rows(numbers), _all_values(x)
    for p in range(share.begin, share.end):
        block = block_of(spec, rows, p)
        for i in range(block.n):
            state = np.uint64(block.first + i)
            if not block.valid:
                out[state] = 0.0 if residual else x[state]
                continue
            begin = np.uint64(block.begin + i * block.width)
            total = expectation(spec, rows, everywhere, begin, begin + np.uint64(block.width), begin)
            product = x[state] - discount_of(spec, rows, model, state) * total
            out[state] = load(spec, rows.rewards, state, 0.0) - product if residual else product
