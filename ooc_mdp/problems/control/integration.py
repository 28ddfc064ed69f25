"""The kernel that turns dynamics into rows of an MDP, compiled by Numba for one problem.

From each vertex x of the grid and each control, Runge-Kutta steps of order 4 follow the trajectory until it has left
the hypercube [x - h, x + h] around the vertex, has ended, or time runs out; Kuhn's triangulation of the cell that it
is then in (`kuhn.py`) gives d + 1 vertices and barycentric weights (Munos and Moore 2002; Wingate 2004, section 9.1):

    V(x) = max_a { int_0^tau reward_rate dt + gamma**tau sum_k weight_k V(vertex_k) }

    steps   dt = 0.3 min_i h_i / |dx_i/dt|, so that four of them leave a cell at constant speed and none ends on its
            face, where rounding would decide which cell is next (max_step, where it is shorter, may)
    ends    duration inf: nothing after counts; the vertices are those of the last cell inside

Weights are multiples of 2**-24 that sum to 1 exactly, durations and rewards are float32 numbers: part of the model's
definition, so that a store of either type holds it without rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem
from numba.extending import register_jitable

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.problems.control.cuda.python_source import called_functions, plain_function
from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.kuhn import Grid, cell_of, grid_point, vertex_after, weight_of, wrapped
from ooc_mdp.problems.control.purity import FUNCTION_NAMES

__all__ = [
    "MAX_STEPS",
    "MAX_STEP_CELLS",
    "WEIGHT_UNIT",
    "Horizon",
    "Point",
    "RowArrays",
    "cache_by_functions",
    "compile_goal",
    "compile_point",
    "compile_rows",
    "compiled_function",
    "fastest",
    "inner",
]

T = TypeVar("T")

_MAX_COMPILED = 32
"""Problems whose kernels are kept; the oldest goes."""

WEIGHT_UNIT = 2.0**-24
"""Weights are multiples of this."""

MAX_STEP_CELLS = 0.3
"""Share of a cell that one Runge-Kutta step crosses."""

MAX_STEPS = 1_000_000
"""Steps of a trajectory at which it is given up, some tenths of a second: its row's duration is then no number."""


def _never(state, p):
    return False


def _nothing_at_end(state, p):
    return 0.0


def _no_rate(state, control, p):
    return 0.0


@njit(nogil=True, forceinline=True, cache=True)
def _ahead(x, h, k):
    """x + h k for tuples."""
    out = x
    for i in range(len(x)):
        out = tuple_setitem(out, i, x[i] + h * k[i])
    return out


def inner(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator for functions that only compiled ones call: a third less to compile without entries from Python."""
    chosen: dict[str, Any] = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    decorator: Callable[..., Callable[..., Any]] = njit(**chosen)
    return decorator


def compiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled; also where it calls plain functions of its module, which Numba must know."""
    plain = plain_function(function)
    for called in [] if plain is None else called_functions(plain):
        if called not in _told:
            _told.add(called)
            register_jitable(called)
    return inner()(plain or function)


_told: WeakSet[Callable[..., Any]] = WeakSet()


def cache_by_functions(compile_problem: Callable[[ControlProblem], T]) -> Callable[[ControlProblem], T]:
    """A compiler that is called once for problems of the same functions, whatever their parameters; thread-safe."""
    made: dict[tuple[Any, ...], T] = {}
    compiling = threading.Lock()

    @wraps(compile_problem)
    def compiled(problem: ControlProblem) -> T:
        key = (*(getattr(problem, name) for name in FUNCTION_NAMES), len(problem.axes))
        with compiling:
            if key not in made:
                if len(made) == _MAX_COMPILED:
                    made.pop(next(iter(made)))
                made[key] = compile_problem(problem)
            return made[key]

    return compiled


class Point(NamedTuple):
    """The compiled functions of a problem at one state."""

    dynamics: Callable[..., Any]
    """(x, control, p) -> dx/dt."""
    rate: Callable[..., float]
    """(x, control, p) -> reward rate."""
    final: Callable[..., float]
    """(x, p) -> reward where the process ends."""
    step: Callable[..., Any]
    """(x, control, p, dt, dx/dt at x, grid) -> x after one Runge-Kutta step of dt, clipped."""
    look: Callable[..., Any]
    """(x, p, grid) -> whether the process ends at x, and x with its periodic components wrapped."""


def compile_point(problem: ControlProblem) -> Point:
    """The functions of a problem, with defaults for those that it does not have."""
    dynamics = compiled_function(problem.dynamics)
    is_terminal = compiled_function(problem.is_terminal or _never)

    @inner(forceinline=True)
    def step(x, control, p, dt, k1, grid):
        k2 = dynamics(_ahead(x, 0.5 * dt, k1), control, p)
        k3 = dynamics(_ahead(x, 0.5 * dt, k2), control, p)
        k4 = dynamics(_ahead(x, dt, k3), control, p)
        out = x
        for i in range(len(x)):
            moved = x[i] + dt / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i])
            if grid.clipped[i]:
                moved = min(max(moved, grid.low[i]), grid.high[i])
            out = tuple_setitem(out, i, moved)
        return out

    @inner()
    def look(x, p, grid):
        seen = wrapped(x, grid)
        ended = False
        for i in range(len(x)):
            if not grid.periodic[i] and not grid.clipped[i] and (x[i] < grid.low[i] or x[i] > grid.high[i]):
                ended = True
        if not ended:
            ended = is_terminal(seen, p)
        return ended, seen

    rate = compiled_function(problem.reward_rate or _no_rate)
    final = compiled_function(problem.terminal_reward or _nothing_at_end)
    return Point(dynamics, rate, final, step, look)


class Horizon(NamedTuple):
    """Times of a discretisation, in the problem's unit."""

    max_step: float
    """Of the integrator."""
    max_duration: float
    """That a trajectory is followed."""
    time_unit: float
    """Of one unit of duration."""


class RowArrays(NamedTuple):
    """What the kernel fills, for n states, A controls and K = d + 1 successors."""

    successors: IntArray
    """int64 [n A K]; ascending in each row."""
    probabilities: FloatArray
    """float64 [n A K]."""
    rewards: FloatArray
    """float64 [n A]."""
    durations: FloatArray
    """float64 [n A]; inf where the process ends; no number where a trajectory takes MAX_STEPS steps."""


@njit(nogil=True, forceinline=True, cache=True)
def fastest(slope, grid):
    """Cells a unit of time along the fastest axis."""
    most = 0.0
    for i in range(len(slope)):
        most = max(most, abs(slope[i]) / grid.h[i])
    return most


@njit(nogil=True, forceinline=True, cache=True)
def _write_row(x, grid, base, successors, probabilities):
    """The row of a trajectory's end, from `base` on: ascending successors, weights as multiples of 2**-24."""
    d = len(x)
    fraction, order, lower, vertex = cell_of(x, grid)
    for j in range(d + 1):
        vertex = vertex_after(vertex, j, order, lower, grid)
        q = base + j  # wrapping an axis goes back to lower numbers
        while q > base and successors[q - 1] > vertex:
            successors[q] = successors[q - 1]
            probabilities[q] = probabilities[q - 1]
            q -= 1
        successors[q] = vertex
        probabilities[q] = weight_of(j, fraction)
    others = 0.0
    for j in range(base, base + d):
        w = np.floor(probabilities[j] / WEIGHT_UNIT) * WEIGHT_UNIT
        probabilities[j] = w
        others += w
    probabilities[base + d] = 1.0 - others


def _compile_trajectory(point: Point) -> Callable[..., Any]:
    """(start, its look, control, p, grid, horizon) -> end of a trajectory: x, whether ended, time, reward, steps."""
    dynamics, rate, step, look = point.dynamics, point.rate, point.step, point.look

    @inner(forceinline=True)
    def trajectory(start, over, seen, control, p, grid, horizon):
        x = start
        ended = over
        time = 0.0
        earned = 0.0
        paid = rate(seen, control, p)
        steps = 0
        while not ended and time < horizon.max_duration:
            k1 = dynamics(x, control, p)
            speed = fastest(k1, grid)
            dt = min(horizon.max_step, horizon.max_duration - time)
            if speed * dt > MAX_STEP_CELLS:
                dt = MAX_STEP_CELLS / speed
            x = step(x, control, p, dt, k1, grid)
            time += dt
            ended, at = look(x, p, grid)
            pays = rate(at, control, p)
            earned += 0.5 * dt * (paid + pays)
            paid = pays
            left = False
            for i in range(len(x)):
                left = left or abs(x[i] - start[i]) >= grid.h[i]
            steps += 1
            if left or steps == MAX_STEPS:
                break
        return x, ended, time, earned, steps

    return trajectory


@cache_by_functions
def compile_goal(problem: ControlProblem) -> Callable[[IntArray, Grid, Any, npt.NDArray[np.bool_]], None]:
    """The kernel mark(states, grid, p, found) of a problem with `is_goal`: in which of int64 [n] states that holds."""
    assert problem.is_goal is not None
    is_goal = compiled_function(problem.is_goal)

    @njit(nogil=True)
    def mark(states, grid, p, found):
        for n in range(states.size):
            found[n] = bool(is_goal(grid_point(states[n], grid), p))

    kernel: Callable[..., None] = mark
    return kernel


@cache_by_functions
def compile_rows(problem: ControlProblem) -> Callable[[IntArray, Grid, Any, Any, Horizon, RowArrays], None]:
    """The kernel fill(states, grid, controls, p, horizon, rows) of a problem.

    It computes the rows of int64 [n] states under controls (a tuple of tuples) with parameters p (the NamedTuple). At
    the first trajectory of MAX_STEPS steps it stops, with a duration that is no number.
    """
    point = compile_point(problem)
    final, look, trajectory = point.final, point.look, _compile_trajectory(point)

    @njit(nogil=True)
    def fill(states, grid, controls, p, horizon, rows):
        successors, probabilities, rewards, durations = rows
        for n in range(states.size):
            start = grid_point(states[n], grid)
            over, seen = look(start, p, grid)
            for a in range(len(controls)):
                x, ended, time, earned, steps = trajectory(start, over, seen, controls[a], p, grid, horizon)
                row = n * len(controls) + a
                if steps == MAX_STEPS:
                    durations[row] = np.nan
                    return
                if ended:
                    earned += final(wrapped(x, grid), p)
                    durations[row] = np.inf
                else:
                    durations[row] = np.float64(np.float32(time / horizon.time_unit))
                rewards[row] = np.float64(np.float32(earned))
                _write_row(x, grid, row * (len(x) + 1), successors, probabilities)

    kernel: Callable[..., None] = fill
    return kernel
