"""The kernel that runs a control problem's dynamics under a policy, compiled by Numba for one problem.

    V(x)        = sum_k weight_k V(vertex_k)          Kuhn's triangulation of the cell around x, as in the rows
    W(x, plan)  = int_0^T gamma**t reward_rate dt + gamma**T V(x(T)),     or the final reward where the process ends

A plan is `depth` controls in turn, each held for the time T / depth in which the fastest control crosses `cells`
cells; the best plan's first control is held for its time, then all plans are weighed again. All plans last equally
long: within a cell the interpolated V lies above what any control makes good, so that of unequal times the shortest
would win. One control is not enough, nor is it to decide more often: V has kinks at grid lines, to which greedy
controls chatter back (the car before its exit: thrust, then coasting crosses the last cell, while each alone looks
worse than standing there).

Between two decisions the control is held. Samples are taken at regular times, whatever the decisions; whether the
goal is held is judged at every step of the integrator. This module judges nothing else and knows no files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem

from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.integrate import (
    STEP_SHARE,
    compile_point,
    compiled_function,
    once_for_functions,
)

__all__ = ["LOOKAHEAD", "NEAREST", "VOTE", "Grid", "Limits", "Loop", "compile_loop"]

LOOKAHEAD, NEAREST, VOTE = 0, 1, 2
"""How the policy is interpolated."""


class Grid(NamedTuple):
    """The grid of a discretised problem, as tuples that compiled code can read; an entry an axis."""

    points: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    span: tuple[float, ...]
    h: tuple[float, ...]
    """Distance between neighbours."""
    periodic: tuple[bool, ...]
    clipped: tuple[bool, ...]


class Limits(NamedTuple):
    """Times, in the problem's unit."""

    longest_step: float
    """Of the integrator where it looks ahead."""
    most_time: float
    """That it looks ahead."""
    seconds: float
    """Length of the run."""
    fine_step: float
    """Longest step of the integrator in the run."""
    sample: float
    """Between two samples."""
    keep: float
    """Last part of the run, for which it is judged whether the goal is held."""
    period: float
    """Between two decisions; 0: the first stage of a plan, or until the state has moved by `share` of a cell."""
    share: float
    shortest: float
    """Least time between two decisions, where the state decides when."""
    cells: float
    """That the fastest control crosses in one stage of a plan."""
    depth: int
    """Stages of a plan."""


class Loop(NamedTuple):
    """The compiled functions of a problem."""

    run: Callable[..., Any]
    """(start, grid, limits, controls, p, values, policy, kind, sign, decay, past_end, times, states, chosen, worth)
    -> samples taken, and figures as :class:`~ooc_mdp.simulation.simulate.Trajectory` names them; fills the arrays."""
    value_at: Callable[..., float]
    """(state, grid, values) -> V."""
    follow: Callable[..., Any]
    """(state, control, grid, longest step, most time, most cells, p, past_end) -> state, time, reward on the way and
    whether it ended: a row of the MDP before its triangulation, where the state is a grid point and cells are 1."""


def _never(state, p):
    return False


def _nothing_at_end(state, p):
    return 0.0


def _no_rate(state, control, p):
    return 0.0


@njit(nogil=True)
def _located(x, grid, vertices, weights):
    """Kuhn's simplex around x: its vertices and barycentric weights, as tuples of the given ones' types."""
    d = len(x)
    fraction = x
    order = grid.points
    lower = grid.points
    for i in range(d):
        u = (x[i] - grid.low[i]) / grid.h[i]
        if grid.periodic[i]:
            u -= grid.points[i] * np.floor(u / grid.points[i])
            k = min(np.int64(np.floor(u)), grid.points[i] - 1)
        else:
            k = min(max(np.int64(np.floor(u)), 0), grid.points[i] - 2)
        f = min(max(u - k, 0.0), 1.0)
        lower = tuple_setitem(lower, i, k)
        j = i
        while j > 0 and fraction[j - 1] < f:
            fraction = tuple_setitem(fraction, j, fraction[j - 1])
            order = tuple_setitem(order, j, order[j - 1])
            j -= 1
        fraction = tuple_setitem(fraction, j, f)
        order = tuple_setitem(order, j, i)
    vertex = np.int64(0)
    for i in range(d):
        vertex += lower[i] * grid.stride[i]
    for j in range(d + 1):
        if j > 0:
            axis = order[j - 1]
            vertex += grid.stride[axis]
            if grid.periodic[axis] and lower[axis] == grid.points[axis] - 1:
                vertex -= grid.points[axis] * grid.stride[axis]
        above = 1.0 if j == 0 else fraction[j - 1]
        below = fraction[j] if j < d else 0.0
        vertices = tuple_setitem(vertices, j, vertex)
        weights = tuple_setitem(weights, j, above - below)
    return vertices, weights


@njit(nogil=True)
def _nearest(x, grid):
    """Number of the grid point nearest to x."""
    vertex = np.int64(0)
    for i in range(len(x)):
        k = int(np.floor((x[i] - grid.low[i]) / grid.h[i] + 0.5))
        if grid.periodic[i]:
            k %= grid.points[i]
        else:
            k = min(max(k, 0), grid.points[i] - 1)
        vertex += k * grid.stride[i]
    return vertex


@njit(nogil=True)
def _left(x, grid):
    """Whether x is outside a bounded axis."""
    for i in range(len(x)):
        if not grid.periodic[i] and not grid.clipped[i] and (x[i] < grid.low[i] or x[i] > grid.high[i]):
            return True
    return False


@njit(nogil=True)
def _finite(x):
    """Whether every component is a finite number."""
    finite = True
    for i in range(len(x)):
        finite = finite and np.isfinite(x[i])
    return finite


@njit(nogil=True)
def _fastest(slope, grid):
    """Cells a unit of time along the fastest axis."""
    fastest = 0.0
    for i in range(len(slope)):
        fastest = max(fastest, abs(slope[i]) / grid.h[i])
    return fastest


@njit(nogil=True)
def _moved(x, start, grid):
    """Cells between two states along the axis where they differ most."""
    most = 0.0
    for i in range(len(x)):
        most = max(most, abs(x[i] - start[i]) / grid.h[i])
    return most


@once_for_functions
def compile_loop(problem: ControlProblem) -> Loop:
    """The compiled functions of a problem; they serve all its parameters and grids."""
    dynamics = compiled_function(problem.dynamics)
    rate = compiled_function(problem.reward_rate or _no_rate)
    final = compiled_function(problem.final_reward or _nothing_at_end)
    step, look = compile_point(problem)
    crossing = STEP_SHARE
    no_vertices = (0,) * (len(problem.axes) + 1)
    no_weights = (0.0,) * (len(problem.axes) + 1)

    @njit(nogil=True)
    def value_at(x, grid, values):
        if not _finite(x):  # in no cell
            return np.nan
        vertices, weights = _located(x, grid, no_vertices, no_weights)
        total = 0.0
        for j in range(len(vertices)):
            total += weights[j] * values[vertices[j]]
        return total

    @njit(nogil=True)
    def follow(start, control, grid, longest_step, most_time, cells, p, past_end):
        """Where a control leads within a time and so many cells: state, time, reward on the way, whether ended."""
        x = start
        ended, at = look(x, p, grid.low, grid.high, grid.span, grid.periodic, grid.clipped)
        ended = ended and not (past_end and not _left(x, grid))
        time = 0.0
        earned = 0.0
        paid = rate(at, control, p)
        while not ended and time < most_time and _moved(x, start, grid) < cells:
            k1 = dynamics(x, control, p)
            dt = longest_step
            fastest = _fastest(k1, grid)
            if fastest * dt > crossing:
                dt = crossing / fastest
            arrives = time + dt >= most_time
            if arrives:
                dt = most_time - time
            x = step(x, control, p, dt, k1, grid.low, grid.high, grid.clipped)
            time = most_time if arrives else time + dt
            ended, at = look(x, p, grid.low, grid.high, grid.span, grid.periodic, grid.clipped)
            ended = ended and not (past_end and not _left(x, grid))
            pays = rate(at, control, p)
            earned += 0.5 * dt * (paid + pays)
            paid = pays
        return (at if ended else x), time, earned, ended

    @njit(nogil=True)
    def first_of_best_plan(x, grid, limits, controls, p, values, sign, decay, past_end):
        """First control of the best plan, and for how long it is held; see the module's head."""
        part = limits.most_time
        for a in range(len(controls)):
            part = min(part, follow(x, controls[a], grid, limits.longest_step, part, limits.cells, p, past_end)[1])
        best = np.int64(0)
        most = -np.inf
        plans = len(controls) ** limits.depth
        for plan in range(plans):
            y = x
            time = 0.0
            worth = 0.0
            rest = plan
            ended = False
            base = plans
            for _ in range(limits.depth):
                base //= len(controls)
                a = rest // base
                rest -= a * base
                y, spent, earned, ended = follow(y, controls[a], grid, limits.longest_step, part, 1e300, p, past_end)
                worth += np.exp(-decay * time) * earned
                time += spent
                if ended:
                    worth += np.exp(-decay * time) * final(y, p)
                    break
            if not ended:
                worth += np.exp(-decay * time) * value_at(y, grid, values)
            if sign * worth > most:
                most = sign * worth
                best = np.int64(plan // (plans // len(controls)))
        return best, part

    @njit(nogil=True)
    def decide(x, grid, limits, controls, p, values, policy, kind, sign, decay, past_end):
        if kind == NEAREST:
            return np.int64(policy[_nearest(x, grid)]), np.inf
        if kind == LOOKAHEAD:
            return first_of_best_plan(x, grid, limits, controls, p, values, sign, decay, past_end)
        best = np.int64(0)
        most = -np.inf
        vertices, weights = _located(x, grid, no_vertices, no_weights)
        for a in range(len(controls)):
            vote = 0.0
            for j in range(len(vertices)):
                if policy[vertices[j]] == a:
                    vote += weights[j]
            if vote > most:
                most = vote
                best = np.int64(a)
        return best, np.inf

    @njit(nogil=True)
    def run(
        start, grid, limits, controls, p, values, policy, kind, sign, decay, past_end, times, states, chosen, worth
    ):  # fmt: skip
        ended, at = look(start, p, grid.low, grid.high, grid.span, grid.periodic, grid.clipped)
        x = at
        over = ended and not (past_end and not _left(x, grid))
        time = 0.0
        earned = 0.0
        reached = np.inf
        held_since = np.inf
        inside_time = 0.0
        inside_last = 0.0
        samples = 0
        action = np.int64(-1)
        hold = np.inf
        if not over:
            action, hold = decide(x, grid, limits, controls, p, values, policy, kind, sign, decay, past_end)
        control = controls[max(action, 0)]
        paid = rate(x, control, p)
        inside = sign * paid > 0.0 or (ended and sign * final(x, p) > 0.0)
        if inside:
            reached = 0.0
            held_since = 0.0
        decided_at = x
        decided = 0.0
        due = False
        while not over and time < limits.seconds:
            if time >= samples * limits.sample:
                times[samples] = time
                chosen[samples] = action
                worth[samples] = value_at(x, grid, values)
                for i in range(len(x)):
                    states[samples, i] = at[i]
                samples += 1
            k1 = dynamics(x, control, p)
            dt = limits.fine_step
            fastest = _fastest(k1, grid)
            if fastest * dt > crossing:
                dt = crossing / fastest
            planned = decided + (limits.period if limits.period > 0.0 else max(hold, limits.shortest))
            until = min(limits.seconds, samples * limits.sample, planned)
            arrives = time + dt >= until
            if arrives:
                dt = until - time
            x = step(x, control, p, dt, k1, grid.low, grid.high, grid.clipped)
            time = until if arrives else time + dt
            ended, at = look(x, p, grid.low, grid.high, grid.span, grid.periodic, grid.clipped)
            if not _finite(at) and not _left(at, grid):
                raise ValueError("the dynamics give no finite number")
            over = ended and not (past_end and not _left(x, grid))
            pays = rate(at, control, p)
            earned += np.exp(-decay * (time - 0.5 * dt)) * 0.5 * dt * (paid + pays)
            paid = pays
            inside = sign * pays > 0.0 or (ended and sign * final(at, p) > 0.0)
            if inside:
                reached = min(reached, time)
                held_since = min(held_since, time)
                inside_time += dt
                inside_last += min(dt, max(0.0, time - (limits.seconds - limits.keep)))
            else:
                held_since = np.inf
            if over:
                x = at
                earned += np.exp(-decay * time) * final(at, p)
            elif planned < np.inf:
                due = time >= planned
            else:
                waited = time - decided
                due = waited >= limits.longest_step or (
                    waited >= limits.shortest and _moved(x, decided_at, grid) >= limits.share
                )
            if not over and due:
                x = at
                action, hold = decide(x, grid, limits, controls, p, values, policy, kind, sign, decay, past_end)
                control = controls[action]
                paid = rate(x, control, p)
                decided_at = x
                decided = time
        times[samples] = time
        chosen[samples] = action
        ended, at = look(x, p, grid.low, grid.high, grid.span, grid.periodic, grid.clipped)
        worth[samples] = final(at, p) if over else value_at(x, grid, values)
        for i in range(len(x)):
            states[samples, i] = at[i]
        samples += 1
        reward = final(at, p) if over else 0.0
        return samples, over, _left(at, grid), time, reward, earned, reached, held_since, inside_time, inside_last

    return Loop(run, value_at, follow)
