"""Rounds of sweeps over several partitions, by several threads: modified policy iteration (Puterman and Shin 1978).

A partition gets full sweeps while its policy is not yet stable, else policy sweeps, which touch one action's
transitions. Its halo is gathered again in each round, so that what circulates across a border converges as fast as what
stays within. Where successive sweeps' changes shrink by one ratio, the limit of their geometric series is taken
(Aitken's delta squared process): the level of states that the policy never leaves would take 1/(1 - g) sweeps. It moves
no value by more than the partition's largest: a policy that is still poor may be worth far less than any value there
will be.
No bound rests on that; `ooc_mdp.backends.cpu.loops.measure` sees whatever values came out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.addresses import load, store
from ooc_mdp.backends.cpu.batch import (
    EXTRAPOLATED,
    FIRST_CHANGE,
    FULL,
    MAX_DIFFERING,
    POLICY,
    Findings,
    Members,
    Progress,
    Shared,
)
from ooc_mdp.backends.cpu.calls import Call, call_of
from ooc_mdp.backends.cpu.claims import acquire, release
from ooc_mdp.backends.cpu.loops import full_sweep, policy_sweep
from ooc_mdp.backends.cpu.sweep_order import SweepOrders, Votes, choose_traversal, of_any_shape
from ooc_mdp.backends.cpu.table import Specialisation, open_table
from ooc_mdp.backends.cpu.views import copy_own, gather_halo, order_of, put_back, view_of
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime.compiled import inlined, loop, part

__all__ = [
    "ACCEPTANCE_THRESHOLD",
    "RoundPlan",
    "clear",
    "depth_of_visit",
    "extrapolation_factor",
    "next_member",
    "rounds_in_order",
    "run_rounds",
]

_ROUNDS, _ROUNDS_OF_FEW = 6, 12
"""Rounds of a partition in a visit before its residuals are measured and its policy improved."""
_SWEEPS = 4
"""Policy sweeps of a partition in a round: they find its rows in the processor's cache."""
_DROP, _DROP_OF_FEW = 0.03, 0.01
"""A visit leaves a partition once its changes have fallen to this share: its neighbours' changes come first."""
_FEW = 8
"""A visit of at most so many partitions goes further: few others are dirty, and the work between two visits takes as
long as its sweeps."""
ACCEPTANCE_THRESHOLD = 0.5
"""Most of the present change that extrapolation may leave, in the Euclidean norm."""


class RoundPlan(NamedTuple):
    """What the rounds of all visits have in common."""

    sweeps: int
    """Policy sweeps of a member in a round; one where it reads most of the model: they would hardly see each other."""
    acceptance_threshold: float
    """Most of the change that extrapolation may leave, as the two last sweeps predict it."""
    alternate: bool
    """Whether every second full sweep goes the other way."""


def depth_of_visit(count: int) -> tuple[int, float]:
    """Most rounds of a visit of so many partitions, and the share of a partition's first changes that it leaves."""
    return (_ROUNDS_OF_FEW, _DROP_OF_FEW) if count <= _FEW else (_ROUNDS, _DROP)


@loop
def next_member(spec, path, section, members, progress, values, policy, workspace, rounds):
    """The next member that is due and has something to do, held by this thread; -1: there is none.

    Its halo is gathered anew, and in its first round its own values are copied (where it begins, and where sweeps
    change them). Whoever is done with it sets path[2] where it is not quiescent, and calls `release`.

    Parameters
    ----------
    path : int64 [3]; where the thread is: the next member of the group, the round, and whether a member is held or not
        quiescent in it, without which there is no other round. 0 at first.
    section : int64 [3]; see `ooc_mdp.backends.cpu.batch.Group`.
    """
    while path[1] < rounds:
        m, around = section[0] + path[0], path[1]
        if path[0] == 0 and around > 0:
            if path[2] == 0:
                return -1
            path[2] = 0
        path[0] += 1
        if path[0] == section[1] - section[0]:
            path[0] = 0
            path[1] += 1
        claim = progress.claims.ctypes.data + 8 * m
        if not acquire(claim):
            path[2] = 1
        else:
            due, begun = progress.claims[1, m] <= around, progress.claims[1, m] > 0
            table = open_table(members.tables[m])
            rise = fall = 0.0
            if due:
                progress.claims[1, m] = around + 1
                view = view_of(table, members.places[m], workspace, values, policy)
                if not begun:
                    _begin(spec, table, view, values)
                rise, fall = gather_halo(spec, table, view, values)
            still = begun and not table.global_successors and progress.quiescent[m]
            if due and not (still and max(rise, fall) <= progress.goals[m]):
                progress.inflow[m] = 0.0
                return m
            progress.inflow[m, 0] += rise
            progress.inflow[m, 1] += fall
            if not still:
                path[2] = 1
            release(claim)
    return -1


@inlined
def _begin(spec, table, view, values):
    """Copy a member's own values: to where they are kept, and to where sweeps change them."""
    copy_own(spec, table, values, view.before)
    if not table.global_successors:
        copy_own(spec, table, values, view.own)


@part
def run_rounds(
    spec, section, model, values, policy, members, progress, findings, votes, plan, workspace, all_starts, thread
):
    """Rounds of sweeps over the members, by several threads at the same time; values and policy are updated.

    Each thread goes along the members round by round and sweeps those that it has not swept in the round
    and that no other thread holds. Members in the back-off get full sweeps alone.
    """
    starts = all_starts[thread]
    path = np.zeros(3, np.int64)
    while True:
        m = next_member(spec, path, section, members, progress, values, policy, workspace, progress.rounds[0])
        if m < 0:
            break
        table = open_table(members.tables[m])
        view = view_of(table, members.places[m], workspace, values, policy)
        counts = progress.swept[m]
        begins = counts[FULL] + counts[POLICY] == 0
        p = table.partition
        unstable = findings.unstable[p]
        backwards = unstable and plan.alternate and progress.claims[1, m] % 2 == 0
        if begins and votes.due[m]:
            row, traversal = members.tables[m], votes.traversals[p]
            choose_traversal(of_any_shape(spec), row, votes.shapes[p], policy, model.discount, traversal)
        order = order_of(votes.traversals[p], backwards, starts)
        if unstable:
            up, down, differing = full_sweep(spec, table, model, view, order)
            largest = max(up, down)
            progress.last_full[m, 0], progress.last_full[m, 1] = up, down
            counts[FULL] += 1
            findings.unstable[p] = findings.backoff[p] > 0 or differing > MAX_DIFFERING * table.n
            progress.squares[m] = 0.0
        else:
            largest = _policy_sweeps(spec, table, model, view, order, progress, m, plan)
            progress.last_full[m] = np.inf
        if begins:
            progress.goals[m] = max(progress.goals[m], progress.drop[0] * largest)
            counts[FIRST_CHANGE] = largest
        progress.quiescent[m] = largest <= progress.goals[m]
        path[2] |= not progress.quiescent[m]
        put_back(spec, table, view, values)
        release(progress.claims.ctypes.data + 8 * m)


@part
def _policy_sweeps(spec, table, model, view, order, progress, m, plan):
    """A round's policy sweeps of member m, and extrapolations; the largest change of the last sweep."""
    if progress.squares[m] == 0.0:
        clear(spec, view.changes)
    largest = 0.0
    for _ in range(1 if table.global_successors else plan.sweeps):
        largest, along, square = policy_sweep(spec, table, model, view, order)
        progress.swept[m, POLICY] += 1
        before, progress.squares[m] = progress.squares[m], square
        if largest <= progress.goals[m]:
            break
        further = extrapolation_factor(spec, view.own, before, along, square, largest, plan.acceptance_threshold)
        if further > 0.0:
            for i in range(table.n):
                s = np.uint64(i)
                store(spec, view.own, s, load(spec, view.own, s, 0.0) + further * load(spec, view.changes, s, 0.0))
            clear(spec, view.changes)
            progress.squares[m] = 0.0
            progress.swept[m, EXTRAPOLATED] += 1
    return largest


@part
def extrapolation_factor(spec, own, before, along, square, largest, acceptance_threshold):
    """How many times the last changes lead to the limit of the geometric series that two sweeps began; 0: to none.

    Parameters
    ----------
    own : float64 [n]; the values.
    before : squared norm of the changes of the sweep before; 0 where there is none to compare with.
    along, square, largest : products of the last changes with those and with themselves, and the largest of them.
    acceptance_threshold : most of the change that may be left, as the two last sweeps predict it.
    """
    if not before > 0.0:
        return 0.0
    ratio = along / before
    remainder = square - along * ratio
    if not (0.0 < ratio < 1.0 and remainder < (acceptance_threshold * (1.0 - ratio)) ** 2 * square):
        return 0.0
    size = 0.0
    for i in range(own.size):
        size = max(size, abs(load(spec, own, np.uint64(i), 0.0)))
    return min(ratio / (1.0 - ratio), size / largest)


@inlined
def clear(spec, changes):
    """Set the last changes to 0."""
    for i in range(changes.size):
        store(spec, changes, np.uint64(i), 0.0)


def rounds_in_order(
    spec: Specialisation,
    section: IntArray,
    shared: Shared,
    members: Members,
    progress: Progress,
    findings: Findings,
    orders: SweepOrders,
    due: npt.NDArray[np.bool_],
) -> Call:
    """Rounds over a section of the members, in the orders that their votes give.

    Parameters
    ----------
    orders : of all partitions.
    due : bool [M]; members that vote before they are swept.
    """
    plan = RoundPlan(_SWEEPS, ACCEPTANCE_THRESHOLD, orders.alternate)
    votes = Votes(due, orders.shapes, orders.traversals)
    of_all = shared.model, shared.values, shared.policy, members, progress, findings
    return call_of(run_rounds, spec, section, *of_all, votes, plan, shared.workspace, shared.starts)
