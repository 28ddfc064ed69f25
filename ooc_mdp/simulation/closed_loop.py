"""The kernel that runs a control problem's dynamics under a policy, compiled by Numba for one problem.

    V(x)        = sum_k weight_k V(vertex_k)          Kuhn's triangulation of the cell around x, as in the rows
    W(x, plan)  = int_0^T gamma**t reward_rate dt + gamma**T V(x(T)),     or the terminal reward where the process ends

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
from numba import njit, typeof
from numba.cpython.unsafe.tuple import tuple_setitem

from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.integration import (
    MAX_STEP_CELLS,
    Point,
    cache_by_functions,
    compile_point,
    compiled_function,
    fastest,
    inner,
)
from ooc_mdp.problems.control.kuhn import cell_of, grid_point, vertex_after, weight_of
from ooc_mdp.simulation.kernel_types import LOOKAHEAD, NEAREST, Figures, Goal

__all__ = ["CompiledSimulation", "compile_for", "compile_loop"]


class CompiledSimulation(NamedTuple):
    """The compiled functions of a problem; `grid`, `controls` and `p` are `DiscretisedProblem.kernel_arguments`."""

    run: Callable[..., Any]
    """(start, grid, limits, controls, p, feedback, samples) -> Figures; fills the samples."""
    value_at: Callable[..., float]
    """(state, grid, values) -> V."""
    integrate_control: Callable[..., Any]
    """(state, control, grid, longest step, most time, most cells, p, continues) -> state, time, reward on the way
    and whether it ended: a row of the MDP before its triangulation, where the state is a grid point and cells are 1."""
    has_end: Callable[..., bool]
    """(grid, states, p, sign, least) -> whether the process ends at some grid point with a terminal reward of at least
    `least`."""
    pays_at_most: Callable[..., bool]
    """(grid, states, controls, p, sign, share) -> of the grid points where the process goes on, whether at most this
    share have a control whose reward rate is above 0."""


@njit(nogil=True, cache=True)
def value_at(x, grid, values):
    """V interpolated at x; no number where x is in no cell."""
    if not _finite(x):
        return np.nan
    fraction, order, lower, vertex = cell_of(x, grid)
    total = 0.0
    for j in range(len(x) + 1):
        vertex = vertex_after(vertex, j, order, lower, grid)
        total += weight_of(j, fraction) * values[vertex]
    return total


@njit(nogil=True, cache=True)
def _voted(x, grid, policy, n_controls):
    """The action with the largest weight among the stored ones of the simplex around x; the first of equal ones."""
    fraction, order, lower, vertex = cell_of(x, grid)
    stored, weights = grid.points + (vertex,), x + (0.0,)  # noqa: RUF005 - Numba unpacks no tuples
    for j in range(len(x) + 1):
        vertex = vertex_after(vertex, j, order, lower, grid)
        stored = tuple_setitem(stored, j, np.int64(policy[vertex]))
        weights = tuple_setitem(weights, j, weight_of(j, fraction))
    best = np.int64(0)
    most = -np.inf
    for a in range(n_controls):
        vote = 0.0
        for j in range(len(x) + 1):
            if stored[j] == a:
                vote += weights[j]
        if vote > most:
            most = vote
            best = np.int64(a)
    return best


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _left(x, grid):
    """Whether x is outside a bounded axis."""
    for i in range(len(x)):
        if not grid.periodic[i] and not grid.clipped[i] and (x[i] < grid.low[i] or x[i] > grid.high[i]):
            return True
    return False


@njit(nogil=True, cache=True)
def _finite(x):
    """Whether every component is a finite number."""
    finite = True
    for i in range(len(x)):
        finite = finite and np.isfinite(x[i])
    return finite


@njit(nogil=True, cache=True)
def _moved(x, start, grid):
    """Cells between two states along the axis where they differ most."""
    most = 0.0
    for i in range(len(x)):
        most = max(most, abs(x[i] - start[i]) / grid.h[i])
    return most


@njit(nogil=True, cache=True)
def _due(time, decided, planned, x, decided_at, grid, limits):
    """Whether it is time to decide: when it was planned, or as the state has moved since."""
    if planned < np.inf:
        return time >= planned
    waited = time - decided
    return waited >= limits.max_step or (
        waited >= limits.shortest and _moved(x, decided_at, grid) >= limits.cell_fraction
    )


@njit(nogil=True, cache=True)
def _judged(goal, inside, time, dt, limits):
    """The goal's figures after a step of dt that ends at `time`, inside the goal or not."""
    if not inside:
        return Goal(goal.reached, np.inf, goal.inside, goal.inside_last)
    last = min(dt, max(0.0, time - (limits.duration - limits.hold_time)))
    return Goal(min(goal.reached, time), min(goal.held_since, time), goal.inside + dt, goal.inside_last + last)


@njit(nogil=True, cache=True)
def _sample(samples, n, time, x, action, value):
    """Take sample n."""
    samples.times[n] = time
    samples.actions[n] = action
    samples.values[n] = value
    for i in range(len(x)):
        samples.states[n, i] = x[i]


def _compile_advance(point: Point) -> Callable[..., Any]:
    """(x, time, control, grid, longest step, until, p, continues) -> one integrator step, no later than `until`.

    It returns the state, the state with its periodic components wrapped, the time, the length of the step, whether
    the process ends there, and whether it is over: what ends inside the axes goes on with `continues`.
    """
    dynamics, step, look = point.dynamics, point.step, point.look

    @inner(forceinline=True)
    def advance(x, time, control, grid, max_step, until, p, continues):
        k1 = dynamics(x, control, p)
        dt = max_step
        speed = fastest(k1, grid)
        if speed * dt > MAX_STEP_CELLS:
            dt = MAX_STEP_CELLS / speed
        arrives = time + dt >= until
        if arrives:
            dt = until - time
        y = step(x, control, p, dt, k1, grid)
        ended, at = look(y, p, grid)
        over = ended and not (continues and not _left(y, grid))
        return y, at, (until if arrives else time + dt), dt, ended, over

    return advance


def _compile_integrate_control(point: Point, advance: Callable[..., Any]) -> Callable[..., Any]:
    """`CompiledSimulation.integrate_control`: where a control leads within a time and so many cells."""
    rate, look = point.rate, point.look

    @njit(nogil=True)
    def integrate_control(start, control, grid, max_step, max_duration, cells, p, continues):
        x = start
        ended, at = look(x, p, grid)
        over = ended and not (continues and not _left(x, grid))
        time = 0.0
        earned = 0.0
        paid = rate(at, control, p)
        while not over and time < max_duration and _moved(x, start, grid) < cells:
            x, at, time, dt, ended, over = advance(x, time, control, grid, max_step, max_duration, p, continues)
            pays = rate(at, control, p)
            earned += 0.5 * dt * (paid + pays)
            paid = pays
        return (at if over else x), time, earned, over

    return integrate_control


def _compile_lookahead(point: Point, integrate_control: Callable[..., Any]) -> Callable[..., Any]:
    """(x, grid, limits, controls, p, feedback) -> first control of the best plan, and for how long it is held."""
    final = point.final

    @inner()
    def lookahead(x, grid, limits, controls, p, feedback):
        sign, decay, continues = feedback.sign, feedback.decay, feedback.continue_after_end
        part = limits.max_duration
        for a in range(len(controls)):
            spent = integrate_control(x, controls[a], grid, limits.max_step, part, limits.cells, p, continues)[1]
            part = min(part, spent)
        best = np.int64(0)
        most = -np.inf
        plans = len(controls) ** limits.plan_depth
        for plan in range(plans):
            y = x
            time = 0.0
            worth = 0.0
            rest = plan
            ended = False
            base = plans
            for _ in range(limits.plan_depth):
                base //= len(controls)
                a = rest // base
                rest -= a * base
                y, spent, earned, ended = integrate_control(
                    y, controls[a], grid, limits.max_step, part, 1e300, p, continues
                )
                worth += np.exp(-decay * time) * earned
                time += spent
                if ended:
                    worth += np.exp(-decay * time) * final(y, p)
                    break
            if not ended:
                worth += np.exp(-decay * time) * value_at(y, grid, feedback.values)
            if sign * worth > most:
                most = sign * worth
                best = np.int64(plan // (plans // len(controls)))
        return best, part

    return lookahead


def _compile_decide(lookahead: Callable[..., Any]) -> Callable[..., Any]:
    """(x, grid, limits, controls, p, feedback) -> a control's number, and how long it is held; inf: as it moves."""

    @inner()
    def decide(x, grid, limits, controls, p, feedback):
        if feedback.kind == NEAREST:
            return np.int64(feedback.policy[_nearest(x, grid)]), np.inf
        if feedback.kind == LOOKAHEAD:
            return lookahead(x, grid, limits, controls, p, feedback)
        return _voted(x, grid, feedback.policy, len(controls)), np.inf

    return decide


def _compile_at_goal(problem: ControlProblem, point: Point) -> Callable[..., Any]:
    """(state, reward rate, whether the process ends there, p, grid, feedback) -> whether the goal is reached there."""
    final = point.final
    if problem.is_goal is not None:
        is_goal = compiled_function(problem.is_goal)

        @inner()
        def at_stated_goal(x, pays, ended, p, grid, feedback):
            return bool(is_goal(x, p))

        return at_stated_goal

    @inner()
    def at_goal(x, pays, ended, p, grid, feedback):
        if feedback.goal_is_end:
            return ended and not _left(x, grid) and feedback.sign * final(x, p) >= 0.0
        return (feedback.goal_pays and feedback.sign * pays > 0.0) or (ended and feedback.sign * final(x, p) > 0.0)

    return at_goal


def _compile_has_end(point: Point) -> Callable[..., bool]:
    """`CompiledSimulation.has_end`."""
    final, look = point.final, point.look

    @njit(nogil=True)
    def has_end(grid, states, p, sign, least):
        for state in range(states):
            ended, at = look(grid_point(state, grid), p, grid)
            if ended and sign * final(at, p) >= least:
                return True
        return False

    compiled: Callable[..., bool] = has_end
    return compiled


def _compile_pays_at_most(point: Point) -> Callable[..., bool]:
    """`CompiledSimulation.pays_at_most`."""
    rate, look = point.rate, point.look

    @njit(nogil=True)
    def pays_at_most(grid, states, controls, p, sign, share):
        going = 0
        paying = 0
        for state in range(states):
            ended, at = look(grid_point(state, grid), p, grid)
            if not ended:
                going += 1
                for a in range(len(controls)):
                    if sign * rate(at, controls[a], p) > 0.0:
                        paying += 1
                        break
            if going - paying >= (1.0 - share) * states:
                return True
        return paying <= share * going

    compiled: Callable[..., bool] = pays_at_most
    return compiled


def _compile_run(
    point: Point, advance: Callable[..., Any], decide: Callable[..., Any], at_goal: Callable[..., Any]
) -> Callable[..., Any]:
    """`CompiledSimulation.run`."""
    rate, final, look = point.rate, point.final, point.look

    @njit(nogil=True)
    def run(start, grid, limits, controls, p, feedback, samples):
        decay, continues = feedback.decay, feedback.continue_after_end
        ended, at = look(start, p, grid)
        x = at
        over = ended and not (continues and not _left(x, grid))
        time = 0.0
        earned = 0.0
        n = 0
        action = np.int64(-1)
        hold = np.inf
        if not over:
            action, hold = decide(x, grid, limits, controls, p, feedback)
        control = controls[max(action, 0)]
        paid = rate(x, control, p)
        inside = at_goal(x, paid, ended, p, grid, feedback)
        goal = Goal(0.0 if inside else np.inf, 0.0 if inside else np.inf, 0.0, 0.0)
        decided_at = x
        decided = 0.0
        while not over and time < limits.duration:
            if time >= n * limits.sample:
                _sample(samples, n, time, at, action, value_at(x, grid, feedback.values))
                n += 1
            planned = decided + (limits.period if limits.period > 0.0 else max(hold, limits.shortest))
            until = min(limits.duration, n * limits.sample, planned)
            x, at, time, dt, ended, over = advance(x, time, control, grid, limits.fine_step, until, p, continues)
            if not _finite(at) and not _left(at, grid):
                raise ValueError("the dynamics give no finite number")
            pays = rate(at, control, p)
            earned += np.exp(-decay * (time - 0.5 * dt)) * 0.5 * dt * (paid + pays)
            paid = pays
            goal = _judged(goal, at_goal(at, pays, ended, p, grid, feedback), time, dt, limits)
            if over:
                x = at
                earned += np.exp(-decay * time) * final(at, p)
            elif _due(time, decided, planned, x, decided_at, grid, limits):
                x = at
                action, hold = decide(x, grid, limits, controls, p, feedback)
                control = controls[action]
                paid = rate(x, control, p)
                decided_at = x
                decided = time
        ended, at = look(x, p, grid)
        reward = final(at, p) if over else 0.0
        _sample(samples, n, time, at, action, reward if over else value_at(x, grid, feedback.values))
        arrived = over and at_goal(at, 0.0, ended, p, grid, feedback)
        return Figures(n + 1, over, arrived, time, reward, earned, goal)

    return run


def compile_for(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Compile a function for the types of these arguments, without a call."""
    function.compile(tuple(typeof(each) for each in arguments))  # type: ignore[attr-defined]


@cache_by_functions
def compile_loop(problem: ControlProblem) -> CompiledSimulation:
    """The compiled functions of a problem; they serve all its parameters and grids."""
    point = compile_point(problem)
    advance = _compile_advance(point)
    integrate_control = _compile_integrate_control(point, advance)
    decide = _compile_decide(_compile_lookahead(point, integrate_control))
    run = _compile_run(point, advance, decide, _compile_at_goal(problem, point))
    return CompiledSimulation(run, value_at, integrate_control, _compile_has_end(point), _compile_pays_at_most(point))
