"""The kernel that turns dynamics into rows of an MDP, compiled by Numba for one problem.

From each vertex x of the grid and each control, Runge-Kutta steps of order 4 follow the trajectory until it has left
the hypercube [x - h, x + h] around the vertex, has ended, or time runs out; Kuhn's triangulation of the cell that it
is then in gives d + 1 vertices and barycentric weights (Munos and Moore 2002; Wingate 2004, section 9.1):

    V(x) = max_a { int_0^tau reward_rate dt + gamma**tau sum_k weight_k V(vertex_k) }

    steps   dt = 0.3 min_i h_i / |dx_i/dt|, so that four of them leave a cell at constant speed and none ends on its
            face, where rounding would decide which cell is next (longest_step, where it is shorter, may)
    Kuhn    fractions f of the position in its cell, sorted downwards: 1 - f_(1), f_(1) - f_(2), ..., f_(d)
            belong to the base vertex and to those reached by adding axis (1), then (2), ...
    ends    duration inf: nothing after counts; the vertices are those of the last cell inside

Weights are multiples of 2**-24 that sum to 1 exactly, durations and rewards are float32 numbers: part of the model's
definition, so that a store of either type holds it without rounding. Tuples carry states, because arrays passed
between compiled functions count references at each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np
from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem
from numba.extending import register_jitable

from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.definitions_of import called_functions, plain_function

__all__ = [
    "MOST_STEPS",
    "STEP_SHARE",
    "WEIGHT_UNIT",
    "compile_point",
    "compile_rows",
    "compiled_function",
    "once_for_functions",
]

T = TypeVar("T")

_MOST_COMPILED = 32
"""Problems whose kernels are kept; the oldest goes."""

WEIGHT_UNIT = 2.0**-24
"""Weights are multiples of this."""

STEP_SHARE = 0.3
"""Share of a cell that one Runge-Kutta step crosses."""

MOST_STEPS = 1_000_000
"""Steps of a trajectory at which it is given up, some tenths of a second: its row's duration is then no number."""


def _never(state, p):
    return False


def _nothing_at_end(state, p):
    return 0.0


def _no_rate(state, control, p):
    return 0.0


@njit(nogil=True, inline="always")
def _ahead(x, h, k):
    """x + h k for tuples."""
    out = x
    for i in range(len(x)):
        out = tuple_setitem(out, i, x[i] + h * k[i])
    return out


@njit(nogil=True, inline="always")
def _wrapped(x, low, span, periodic):
    """Periodic components brought into [low, low + span)."""
    out = x
    for i in range(len(x)):
        if periodic[i]:
            out = tuple_setitem(out, i, x[i] - span[i] * np.floor((x[i] - low[i]) / span[i]))
    return out


def compiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled; also where it calls plain functions of its module, which Numba must be told of."""
    plain = plain_function(function)
    for called in [] if plain is None else called_functions(plain):
        if called not in _told:
            _told.add(called)
            register_jitable(called)
    compiled: Callable[..., Any] = njit(nogil=True)(plain or function)
    return compiled


_told: WeakSet[Callable[..., Any]] = WeakSet()


def once_for_functions(compile_problem: Callable[[ControlProblem], T]) -> Callable[[ControlProblem], T]:
    """A compiler that is called once for problems of the same functions, whatever their parameters; thread-safe."""
    made: dict[tuple[Any, ...], T] = {}
    compiling = threading.Lock()

    @wraps(compile_problem)
    def compiled(problem: ControlProblem) -> T:
        key = (problem.dynamics, problem.reward_rate, problem.final_reward, problem.ends, len(problem.axes))
        with compiling:
            if key not in made:
                if len(made) == _MOST_COMPILED:
                    made.pop(next(iter(made)))
                made[key] = compile_problem(problem)
            return made[key]

    return compiled


def compile_point(problem: ControlProblem) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled (step, look): one Runge-Kutta step with clipping, and what holds at a state.

    step(x, control, p, dt, k1, low, high, clipped) -> x after dt, from the derivative k1 at x
    look(x, p, low, high, span, periodic, clipped) -> (ended, state with periodic components wrapped)
    """
    dynamics = compiled_function(problem.dynamics)
    ends = compiled_function(problem.ends or _never)

    @njit(nogil=True)
    def step(x, control, p, dt, k1, low, high, clipped):
        k2 = dynamics(_ahead(x, 0.5 * dt, k1), control, p)
        k3 = dynamics(_ahead(x, 0.5 * dt, k2), control, p)
        k4 = dynamics(_ahead(x, dt, k3), control, p)
        out = x
        for i in range(len(x)):
            moved = x[i] + dt / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i])
            if clipped[i]:
                moved = min(max(moved, low[i]), high[i])
            out = tuple_setitem(out, i, moved)
        return out

    @njit(nogil=True)
    def look(x, p, low, high, span, periodic, clipped):
        seen = _wrapped(x, low, span, periodic)
        ended = False
        for i in range(len(x)):
            if not periodic[i] and not clipped[i] and (x[i] < low[i] or x[i] > high[i]):
                ended = True
        if not ended:
            ended = ends(seen, p)
        return ended, seen

    return step, look


@once_for_functions
def compile_rows(problem: ControlProblem) -> Callable[..., None]:
    """The kernel fill(states, ..., out) of a problem; see :class:`~ooc_mdp.problems.control.discretised.Discretised`.

    Arguments of the kernel: states int64 [n]; points, stride (tuples of int), low, high, span, h (tuples of float),
    periodic, clipped (tuples of bool), controls (tuple of tuples), p (the NamedTuple), longest_step, most_time,
    time_unit; it fills successors int64 [n A K], probabilities float64 [n A K], rewards and durations float64 [n A].
    At the first trajectory of MOST_STEPS steps it stops, with a duration that is no number.
    """
    dynamics = compiled_function(problem.dynamics)
    rate = compiled_function(problem.reward_rate or _no_rate)
    final = compiled_function(problem.final_reward or _nothing_at_end)
    step, look = compile_point(problem)
    d = len(problem.axes)
    share = STEP_SHARE
    unit = WEIGHT_UNIT
    most_steps = MOST_STEPS
    zero = (0.0,) * d
    zeros = (0,) * d

    @njit(nogil=True)
    def fill(
        states, points, stride, low, high, span, h, periodic, clipped, controls, p, longest_step, most_time,
        time_unit, successors, probabilities, rewards, durations,
    ):  # fmt: skip
        for n in range(states.size):
            start = zero
            rest = states[n]
            for i in range(d):
                k = rest // stride[i]
                rest -= k * stride[i]
                start = tuple_setitem(start, i, low[i] + k * h[i])
            over, seen = look(start, p, low, high, span, periodic, clipped)
            for a in range(len(controls)):
                control = controls[a]
                x = start
                ended = over
                time = 0.0
                earned = 0.0
                paid = rate(seen, control, p)
                steps = 0
                while not ended and time < most_time:
                    k1 = dynamics(x, control, p)
                    fastest = 0.0
                    for i in range(d):
                        fastest = max(fastest, abs(k1[i]) / h[i])
                    dt = min(longest_step, most_time - time)
                    if fastest * dt > share:
                        dt = share / fastest
                    x = step(x, control, p, dt, k1, low, high, clipped)
                    time += dt
                    ended, at = look(x, p, low, high, span, periodic, clipped)
                    pays = rate(at, control, p)
                    earned += 0.5 * dt * (paid + pays)
                    paid = pays
                    left = False
                    for i in range(d):
                        left = left or abs(x[i] - start[i]) >= h[i]
                    steps += 1
                    if left or steps == most_steps:
                        break
                row = n * len(controls) + a
                if steps == most_steps:
                    durations[row] = np.nan
                    return
                if ended:
                    earned += final(_wrapped(x, low, span, periodic), p)
                    durations[row] = np.inf
                else:
                    durations[row] = np.float64(np.float32(time / time_unit))
                rewards[row] = np.float64(np.float32(earned))
                # The cell and the fractions, largest first; `order` says which axis each belongs to.
                fraction = zero
                order = zeros
                lower = zeros
                for i in range(d):
                    u = (x[i] - low[i]) / h[i]
                    if periodic[i]:
                        u -= points[i] * np.floor(u / points[i])
                        k = min(np.int64(np.floor(u)), points[i] - 1)
                    else:
                        k = min(max(np.int64(np.floor(u)), 0), points[i] - 2)
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
                    vertex += lower[i] * stride[i]
                base = row * (d + 1)
                for j in range(d + 1):
                    if j > 0:
                        axis = order[j - 1]
                        vertex += stride[axis]
                        if periodic[axis] and lower[axis] == points[axis] - 1:
                            vertex -= points[axis] * stride[axis]
                    above = 1.0 if j == 0 else fraction[j - 1]
                    weight = above - (fraction[j] if j < d else 0.0)
                    # Wrapping an axis goes back to lower numbers: keep the row ascending.
                    q = base + j
                    while q > base and successors[q - 1] > vertex:
                        successors[q] = successors[q - 1]
                        probabilities[q] = probabilities[q - 1]
                        q -= 1
                    successors[q] = vertex
                    probabilities[q] = weight
                others = 0.0
                for j in range(base, base + d):
                    w = np.floor(probabilities[j] / unit) * unit
                    probabilities[j] = w
                    others += w
                probabilities[base + d] = 1.0 - others

    kernel: Callable[..., None] = fill
    return kernel
