"""The compiled loops of the CPU backend: sweeps of one partition, rounds over several, and measurements.

    full sweep      V(s) <- max_a { sign r(s,a) + g(s,a) sum_k p_k V(succ_k) }
    policy sweep    V(s) <-         sign r(s,b) + g(s,b) sum_k p_k V(succ_k),     b the policy's action in s

`visit` makes full sweeps of one partition, whose last changes its bounds rest on. `evaluate` makes rounds of policy
sweeps over several partitions (full ones where the policy is still moving), and `measure` gives the residuals at the
values that come out, and the greedy policy for the next rounds: modified policy iteration (Puterman and Shin 1978). A
policy sweep touches one action's transitions, and halos are gathered again in each round, so that what circulates
across a border converges as fast as what stays within. Where successive sweeps' changes shrink by one ratio, the limit
of their geometric series is taken at once (Aitken's delta squared process): the level of states that the policy never
leaves would take 1/(1 - g) sweeps. It moves no value by more than the partition's largest: a policy that is still poor
may be worth far less than any value there will be. No bound rests on that; `measure` sees whatever values came out.

A table is a row of addresses (`ooc_mdp.backends.cpu.table`), so that one call works on many partitions without the
interpreter. Actions a state and transitions a row are tuples of that length, empty where they vary: their types make
the compiler unroll inner loops. A partition is swept over a local copy of own and halo values, which fits the
processor's cache, or, where it reads most of the model, over all values. Indices are unsigned, which spares a test for
negative ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from ooc_mdp.backends.cpu.claims import give_back, next_turn, take

__all__ = [
    "beyond",
    "boundaries",
    "evaluate",
    "full_sweep",
    "measure",
    "next_at_work",
    "pointer",
    "row_arrays",
    "visit",
]

_ONE = np.uint64(1)


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """The address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit(inline="always")
def row_arrays(row, successor_type, probability_type, reward_type):
    """The arrays of a table that rows are made of, by its addresses (int64 [15], `ooc_mdp.backends.cpu.table`).

    Lengths are not those of the arrays, but that of one that is absent is 0: action_ptr, successor_ptr, successors,
    probabilities, rewards, discounts, terminal rewards.
    """
    return (
        carray(pointer(row[3]), (1,), np.uint32),
        carray(pointer(row[4]), (1,), np.uint32),
        carray(pointer(row[5]), (1,), successor_type.dtype),
        carray(pointer(row[6]), (1,), probability_type.dtype),
        carray(pointer(row[7]), (1,), reward_type.dtype),
        carray(pointer(row[8]), (1 if row[8] != 0 else 0,), np.float64),
        carray(pointer(row[9]), (1 if row[9] != 0 else 0,), np.float64),
    )


@njit(nogil=True, cache=True)
def _lines(extents, strides, starts):
    """First state of each line of a walk, in its order; the number of lines."""
    inner = extents.size - 1
    at = np.zeros(extents.size, np.int64)
    line = 0
    count = 1
    for axis in range(extents.size):
        if strides[axis] < 0:
            line -= strides[axis] * (extents[axis] - 1)
        if axis < inner:
            count *= extents[axis]
    for i in range(count):
        starts[i] = line
        for axis in range(inner - 1, -1, -1):
            at[axis] += 1
            line += strides[axis]
            if at[axis] < extents[axis]:
                break
            line -= strides[axis] * extents[axis]
            at[axis] = 0
    return count


@njit(nogil=True, cache=True)
def full_sweep(
    actions, width, rows_each, width_each, policy, local, base, action_ptr, successor_ptr, successors, probabilities,
    rewards, discounts,
    terminal, starts, run, step, discount, sign,
):  # fmt: skip
    """Back up every state over all actions: largest rise and fall, and the states whose action changed."""
    n_actions = len(actions) if len(actions) > 0 else rows_each
    n_width = len(width) if len(width) > 0 else width_each
    up = 0.0
    down = 0.0
    differing = 0
    for line in range(starts.size):
        start = starts[line]
        for i in range(run):
            s = np.uint64(start + i * step)
            if n_actions > 0:
                row, end = s * np.uint64(n_actions), (s + _ONE) * np.uint64(n_actions)
            else:
                row, end = np.uint64(action_ptr[s]), np.uint64(action_ptr[s + _ONE])
            choice = -1
            if row == end:
                best = sign * terminal[s] if terminal.size > 0 else 0.0
            else:
                best = -np.inf
                hi = row * np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[row])
                for a in range(len(actions) if len(actions) > 0 else np.int64(end - row)):
                    j = row + np.uint64(a)
                    lo = hi
                    hi = lo + np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[j + _ONE])
                    total = 0.0
                    for k in range(len(width) if len(width) > 0 else np.int64(hi - lo)):
                        transition = lo + np.uint64(k)
                        total += np.float64(probabilities[transition]) * local[successors[transition]]
                    g = discounts[j] if discounts.size > 0 else discount
                    q = sign * np.float64(rewards[j]) + g * total
                    choice = a if q > best else choice
                    best = q if q > best else best
            change = best - local[base + s]
            up = max(up, change)
            down = max(down, -change)
            local[base + s] = best
            differing += policy[s] != choice
            policy[s] = choice
    return up, down, differing


@njit(nogil=True, cache=True)
def _policy_sweep(
    actions, width, rows_each, width_each, policy, local, base, changes, action_ptr, successor_ptr, successors,
    probabilities, rewards,
    discounts, starts, run, step, discount, sign,
):  # fmt: skip
    """Back up every state over its policy's action: the largest change, and its products with the last and itself.

    Two distant runs of states are swept in turns: a value that the next backup waits for holds up one of them only.
    """
    n_actions = len(actions) if len(actions) > 0 else rows_each
    n_width = len(width) if len(width) > 0 else width_each
    largest_0 = largest_1 = 0.0
    along_0 = along_1 = 0.0
    square_0 = square_1 = 0.0
    lines = starts.size
    half = (lines + 1) // 2
    for pair in range(half):
        start_0 = starts[pair]
        length = run if lines > 1 else (run + 1) // 2
        if lines == 1:
            start_1, length_1 = start_0 + step * length, run - length
        elif pair + half < lines:
            start_1, length_1 = starts[pair + half], run
        else:
            start_1, length_1 = start_0, 0
        for i in range(length):
            for lane in range(2):
                if lane == 1 and i >= length_1:
                    continue
                s = np.uint64((start_0 if lane == 0 else start_1) + i * step)
                choice = policy[s]
                if choice >= 0:
                    if n_actions > 0:
                        j = s * np.uint64(n_actions) + np.uint64(choice)
                    else:
                        j = np.uint64(action_ptr[s]) + np.uint64(choice)
                    lo = j * np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[j])
                    hi = lo + np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[j + _ONE])
                    total = 0.0
                    for k in range(len(width) if len(width) > 0 else np.int64(hi - lo)):
                        transition = lo + np.uint64(k)
                        total += np.float64(probabilities[transition]) * local[successors[transition]]
                    g = discounts[j] if discounts.size > 0 else discount
                    value = sign * np.float64(rewards[j]) + g * total
                    change = value - local[base + s]
                    local[base + s] = value
                    if lane == 0:
                        largest_0 = max(largest_0, abs(change))
                        along_0 += change * changes[s]
                        square_0 += change * change
                    else:
                        largest_1 = max(largest_1, abs(change))
                        along_1 += change * changes[s]
                        square_1 += change * change
                    changes[s] = change
    return max(largest_0, largest_1), along_0 + along_1, square_0 + square_1


@njit(nogil=True, cache=True)
def beyond(own, before, along, square, largest, stray_share):
    """How many times the last changes lead to the limit of the geometric series that two sweeps began; 0: to none.

    Parameters
    ----------
    own : float64 [n]; the values.
    before : squared norm of the changes of the sweep before; 0 where there is none to compare with.
    along, square, largest : products of the last changes with those and with themselves, and the largest of them.
    stray_share : as for `evaluate`.
    """
    if not before > 0.0:
        return 0.0
    ratio = along / before
    stray = square - along * ratio
    if not (0.0 < ratio < 1.0 and stray < (stray_share * (1.0 - ratio)) ** 2 * square):
        return 0.0
    return min(ratio / (1.0 - ratio), max(abs(own.max()), abs(own.min())) / largest)


@njit(nogil=True, cache=True)
def boundary_changes(boundary, before, after):
    """Largest rise and fall of a boundary value, and the largest of those that changed (-inf: none did)."""
    rise = 0.0
    fall = 0.0
    value = -np.inf
    for i in range(boundary.size):
        if boundary[i]:
            change = after[i] - before[i]
            if change != 0.0:
                value = max(value, after[i])
                rise = max(rise, change)
                fall = max(fall, -change)
    return rise, fall, value


@njit(nogil=True, cache=True)
def visit(
    actions, width, values, policy, table, walk, alternate, change_limit, most, workspace, starts, successor_type,
    probability_type, reward_type, discount, sign,
):  # fmt: skip
    """Full sweeps of one partition until one changes no value by more than change_limit, `most` at most.

    Parameters are those of `evaluate`, for one member. Returns what a `VisitReport` holds.
    """
    first, n, h, whole = table[0], table[1], table[2], table[12] != 0
    before = workspace[:n]
    before[:] = values[first : first + n]
    if whole:
        base, local = np.uint64(first), values
    else:
        base, local = np.uint64(0), workspace[n : 2 * n + h]
        local[:n] = before
        halo = carray(pointer(table[10]), (h,), np.int64)
        for i in range(h):
            local[n + i] = values[np.uint64(halo[i])]
    action_ptr, successor_ptr, successors, probabilities, rewards, discounts, terminal = row_arrays(
        table, successor_type, probability_type, reward_type
    )
    own_policy = policy[first : first + n]
    count = _lines(walk[0], walk[1], starts)
    run, step = walk[0, -1], walk[1, -1]
    sweeps = 0
    up = 0.0
    down = 0.0
    while sweeps < most:
        up, down, _ = full_sweep(
            actions, width, table[13], table[14], own_policy, local, base, action_ptr, successor_ptr, successors,
            probabilities, rewards, discounts, terminal, starts[:count], run, step, discount, sign,
        )  # fmt: skip
        sweeps += 1
        if up <= change_limit and down <= change_limit:
            break
        if alternate:
            step = _turned(starts[:count], run, step)
    own = local[base : base + np.uint64(n)]
    values[first : first + n] = own
    rise, fall, value = boundary_changes(carray(pointer(table[11]), (n,), np.bool_), before, own)
    return sweeps, up, down, rise, fall, value, own.max(), own.min()


@njit(nogil=True, cache=True)
def _turned(starts, run, step):
    """Turn the lines of a walk round in place; the step of the way back."""
    starts[:] = starts[::-1].copy()
    starts += (run - 1) * step
    return -step


@njit(nogil=True, cache=True)
def next_at_work(path, table, places, values, workspace, turns, progress, rounds):
    """The next member that is due and has something to do, held by this thread; -1: there is none.

    Its halo is gathered anew, and in its first round its own values are copied (where it begins, and where sweeps
    change them). Whoever is done with it sets path[2] where it is not quiet, and calls `give_back`. Others are
    parameters of `evaluate`.

    Parameters
    ----------
    path : int64 [3]; where the thread is: the next member, the round, and whether a member is at work or not quiet in
        it, without which there is no other round. 0 at first.
    """
    members = table.shape[0]
    while path[1] < rounds:
        m, around = path[0], path[1]
        if m == 0 and around > 0:
            if path[2] == 0:
                return -1
            path[2] = 0
        path[0] += 1
        if path[0] == members:
            path[0] = 0
            path[1] += 1
        if not take(turns.ctypes.data + 8 * m):
            path[2] = 1
        else:
            due, begun = turns[1, m] <= around, turns[1, m] > 0
            first, n, h, place = table[m, 0], table[m, 1], table[m, 2], places[m]
            whole = table[m, 12] != 0
            inflow = 0.0
            if due:
                turns[1, m] = around + 1
                if not begun:
                    workspace[place : place + n] = values[first : first + n]
                if not whole:
                    local = workspace[place + 2 * n : place + 3 * n + h]
                    if not begun:
                        local[:n] = values[first : first + n]
                    halo = carray(pointer(table[m, 10]), (h,), np.int64)
                    for i in range(h):
                        value = values[np.uint64(halo[i])]
                        inflow = max(inflow, abs(value - local[n + i]))
                        local[n + i] = value
            still = begun and not whole and progress[2, m] != 0.0
            if due and not (still and inflow <= progress[1, m]):
                return m
            if not still:
                path[2] = 1
            give_back(turns.ctypes.data + 8 * m)
    return -1


@njit(nogil=True, cache=True)
def evaluate(
    actions, width, values, policy, table, walks, alternate, moving, workspace, places, turns, progress, starts,
    successor_type, probability_type, reward_type, discount, sign, rounds, sweeps, most_differing, drop, stray_share,
    out,
):  # fmt: skip
    """Rounds of sweeps over the members, by several threads at the same time; values and policy are updated.

    Each thread goes along the members round by round and sweeps those that have not had the round's turn yet and that
    no other thread is at. All but `starts` is the same for all threads.

    Parameters
    ----------
    actions, width : tuples whose lengths are the actions of every state and the transitions of every row; empty where
        these vary, or where the table says them.
    table : int64 [G, 15]; see `ooc_mdp.backends.cpu.table`.
    walks : int64 [G, 2, d]; extents and strides.
    alternate : every second full sweep goes the other way.
    moving : bool [G]; whether the policy of a member is still to be found by full sweeps; updated.
    workspace : float64; for each member its values before, its changes, and own and halo values where it is not swept
        over all values.
    places : int64 [G]; where those begin.
    turns : int64 [2, G]; whether a thread is at the member, and the rounds in which it has had its turn; 0 at first.
    progress : float64 [3, G]; squared norm of a member's last changes (0 before two sweeps can be compared), the change
        at which it is quiet, and whether it is (not 0). At first 0, the largest change that it may be left with, 0.
    starts : int64; scratch for the lines of a walk.
    rounds, sweeps : rounds of each member, and policy sweeps of a member in a round (1 where it reads most of the
        model: they would hardly see each other).
    most_differing : float64 [G]; share of states whose action may change in a full sweep before policy sweeps follow;
        below 0 none do.
    drop : a member is quiet once its changes have fallen to this share of those of its first round.
    stray_share : most of the change that extrapolation may leave, as the two last sweeps predict it.
    out : float64 [G, 7]; full sweeps, policy sweeps, (`boundaries` fills three places), extrapolations, largest change
        of the first round; 0 at first.
    """
    squares, goals, quiet = progress[0], progress[1], progress[2]
    path = np.zeros(3, np.int64)
    while True:
        m = next_at_work(path, table, places, values, workspace, turns, progress, rounds)
        if m < 0:
            break
        first, n, h, whole = table[m, 0], table[m, 1], table[m, 2], table[m, 12] != 0
        place, around, begins = places[m], turns[1, m] - 1, out[m, 0] + out[m, 1] == 0
        changes = workspace[place + n : place + 2 * n]
        if whole:
            base, local = np.uint64(first), values
        else:
            base, local = np.uint64(0), workspace[place + 2 * n : place + 3 * n + h]
        action_ptr, successor_ptr, successors, probabilities, rewards, discounts, terminal = row_arrays(
            table[m], successor_type, probability_type, reward_type
        )
        own_policy = policy[first : first + n]
        count = _lines(walks[m, 0], walks[m, 1], starts)
        run, step = walks[m, 0, -1], walks[m, 1, -1]
        if moving[m]:
            if alternate and around % 2 == 1:
                step = _turned(starts[:count], run, step)
            up, down, differing = full_sweep(
                actions, width, table[m, 13], table[m, 14], own_policy, local, base, action_ptr, successor_ptr,
                successors, probabilities,
                rewards, discounts, terminal, starts[:count], run, step, discount, sign,
            )  # fmt: skip
            largest = max(up, down)
            out[m, 0] += 1
            moving[m] = differing > most_differing[m] * n
            squares[m] = 0.0
        else:
            if squares[m] == 0.0:
                changes[:] = 0.0
            largest = 0.0
            for _ in range(1 if whole else sweeps):
                largest, along, square = _policy_sweep(
                    actions, width, table[m, 13], table[m, 14], own_policy, local, base, changes, action_ptr,
                    successor_ptr, successors,
                    probabilities, rewards, discounts, starts[:count], run, step, discount, sign,
                )  # fmt: skip
                out[m, 1] += 1
                before, squares[m] = squares[m], square
                if largest <= goals[m]:
                    break
                own = local[base : base + np.uint64(n)]
                further = beyond(own, before, along, square, largest, stray_share)
                if further > 0.0:
                    for i in range(n):
                        own[i] += further * changes[i]
                    changes[:] = 0.0
                    squares[m] = 0.0
                    out[m, 5] += 1
        if begins:
            goals[m] = max(goals[m], drop * largest)
            out[m, 6] = largest
        quiet[m] = largest <= goals[m]
        path[2] |= quiet[m] == 0.0
        if not whole:
            values[first : first + n] = local[:n]
        give_back(turns.ctypes.data + 8 * m)


@njit(nogil=True, cache=True)
def boundaries(values, table, workspace, places, out):
    """Changes of the members' boundary values since the rounds began: places 2 to 4 of what `evaluate` gives."""
    for m in range(table.shape[0]):
        first, n = table[m, 0], table[m, 1]
        out[m, 2], out[m, 3], out[m, 4] = boundary_changes(
            carray(pointer(table[m, 11]), (n,), np.bool_), workspace[places[m] : places[m] + n],
            values[first : first + n],
        )  # fmt: skip


@njit(nogil=True, cache=True)
def measure(
    actions, width, values, policy, table, workspace, copies, turn, successor_type, probability_type, reward_type,
    discount, sign, row_sums, improve, significant, aside, out,
):  # fmt: skip
    """Residuals of the members at the present values; several threads may share the members.

    Parameters
    ----------
    workspace : float64; a copy of a member's own and halo values.
    copies : int64 [G]; where it begins.
    turn : int64 [1]; the member that is next, 0 at first; the same for all threads.
    row_sums : float64 [G]; largest row sum of each member.
    improve : whether the policy becomes greedy, or only where a state has none yet.
    significant : see the last but one figure.
    aside : float64 [n] or empty; gets max_a Q_a of the members' states.
    out : float64 [G, 8]; normalised rise and fall, plain rise and fall, largest and smallest value, largest B + V where
        |B| > significant, states whose action changed.
    Others as for `evaluate`.
    """
    while True:
        m = int(next_turn(turn.ctypes.data))
        if m >= table.shape[0]:
            break
        first, n, h = table[m, 0], table[m, 1], table[m, 2]
        n_actions = len(actions) if len(actions) > 0 else table[m, 13]
        n_width = len(width) if len(width) > 0 else table[m, 14]
        if table[m, 12] != 0:
            base, local = np.uint64(first), values
        else:
            base, local = np.uint64(0), workspace[copies[m] : copies[m] + n + h]
            local[:n] = values[first : first + n]
            halo = carray(pointer(table[m, 10]), (h,), np.int64)
            for i in range(h):
                local[n + i] = values[np.uint64(halo[i])]
        action_ptr, successor_ptr, successors, probabilities, rewards, discounts, terminal = row_arrays(
            table[m], successor_type, probability_type, reward_type
        )
        row_sum = row_sums[m]
        one_scale = 1.0 / (1.0 - discount * row_sum)
        rise = -np.inf
        fall = -np.inf
        plain_rise = -np.inf
        plain_fall = -np.inf
        largest = -np.inf
        smallest = np.inf
        promising = -np.inf
        differing = 0
        for i in range(n):
            s = np.uint64(i)
            here = local[base + s]
            largest = max(largest, here)
            smallest = min(smallest, here)
            if n_actions > 0:
                row, end = s * np.uint64(n_actions), (s + _ONE) * np.uint64(n_actions)
            else:
                row, end = np.uint64(action_ptr[s]), np.uint64(action_ptr[s + _ONE])
            known = policy[first + i]
            if row == end:
                best = sign * terminal[s] if terminal.size > 0 else 0.0
                residual = best - here
                normalised = kept = kept_normalised = residual
            else:
                chosen = -1 if improve else known
                best = -np.inf
                normalised = -np.inf
                kept = 0.0
                kept_normalised = 0.0
                greedy = 0
                hi = row * np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[row])
                for a in range(len(actions) if len(actions) > 0 else np.int64(end - row)):
                    j = row + np.uint64(a)
                    lo = hi
                    hi = lo + np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[j + _ONE])
                    total = 0.0
                    for k in range(len(width) if len(width) > 0 else np.int64(hi - lo)):
                        transition = lo + np.uint64(k)
                        total += np.float64(probabilities[transition]) * local[successors[transition]]
                    if discounts.size > 0:
                        q = sign * np.float64(rewards[j]) + discounts[j] * total
                        scaled = (q - here) / (1.0 - discounts[j] * row_sum)
                    else:
                        q = sign * np.float64(rewards[j]) + discount * total
                        scaled = (q - here) * one_scale
                    greedy = a if q > best else greedy
                    best = q if q > best else best
                    normalised = max(normalised, scaled)
                    if a == chosen or (chosen < 0 and greedy == a):
                        kept = q - here
                        kept_normalised = scaled
                if chosen < 0:
                    differing += known != greedy
                    policy[first + i] = greedy
                residual = best - here
            rise = max(rise, normalised)
            fall = max(fall, -kept_normalised)
            plain_rise = max(plain_rise, residual)
            plain_fall = max(plain_fall, -kept)
            if abs(residual) > significant:
                promising = max(promising, best)
            if aside.size > 0:
                aside[first + i] = best
        out[m, 0], out[m, 1], out[m, 2], out[m, 3] = rise, fall, plain_rise, plain_fall
        out[m, 4], out[m, 5], out[m, 6], out[m, 7] = largest, smallest, promising, differing
