"""A control problem's file that uses everything which the documentation says its functions may contain."""

from __future__ import annotations

import math
from math import atan2, copysign, cos, exp, hypot, log, pi, sqrt
from math import sin as sine
from typing import NamedTuple

import numpy as np

from ooc_mdp.problems.control import Axis, ControlProblem

HALF = 0.5
COUNT = 3
WEIGHTS = (0.25, 0.5, 0.125)
HELD = True


class Parameters(NamedTuple):
    mass: float = 1.5
    double: float = 2.0  # a word of C++
    größe: float = 0.75


def square(x):
    return x * x


def twice(pair):
    a, b = pair
    return 2 * a, 2 * b


def weighed(state, p):
    """Calls others, with the parameters."""
    total = 0.0
    for i in range(COUNT):
        total += WEIGHTS[i] * state[i] * p.mass
    return total


def arithmetic(state, control, p):
    x, v, w = state
    return x + v * w - x / (1 + v * v) + (-w) + (+x) - 3 * p.mass + 1e-3 + 7 // 2 + 1 / 2


def floored(state, control, p):
    x, v, w = state
    return x % (1.0 + v * v), x // (1.0 + v * v), x % (-1.0 - w * w), x // (-1.0 - w * w), -0.0 % 3


def powers(state, control, p):
    x, v, w = state
    return x**2, x**3, (1.0 + v * v) ** -2, (1.0 + w * w) ** 0.5, (1 + x * x) ** w, pow(2.0, v), x**0, x**COUNT


def comparisons(state, control, p):
    x, v, w = state
    return x < v, x <= v < w, 0 < x != v, v >= w, x == x, (x > 0) + (v > 0) + True, -(x > 0)


def logic(state, control, p):
    x, v, w = state
    both = x > 0 and v > 0
    return both, x > 0 or v > 0 or w > 0, not both, x and v, x or v, (not x) * 2, HELD and x > v


def choices(state, control, p):
    x, v, w = state
    if x > 1:
        y = 1.0
        z = v
    elif x > 0:
        y = 2.0
        if v > 0:
            z = w
        else:
            return 0.0, 0.0, 1.0
    else:
        y, z = 3, 4
    return y, z, x if v > w else (v if x > w else True)


def early(state, control, p):
    if state[0] < 0.0:
        return -1
    if state[1] < 0.0:
        return state[-1]
    return state[0] > 2.0


def assignments(state, control, p):
    x, v, w = state
    (force,) = control
    x, v = v, x
    a = b = w + force
    a += 1
    a -= x
    b *= v
    b /= 3
    c: float = a
    c %= 5
    c //= 0.25
    c **= 2
    both = (a, b)
    state = (x, 0.0, 1.0)
    return x, v, a, b, c, both[1], state[0]


def loops(state, control, p):
    total, product = 0.0, 1
    for i in range(len(state)):
        for j in range(1, 6, 2):
            total += (i + 1) * state[i] / j
        product = product * state[-1 - i]
    for i in range(2, -1, -1):
        total = total * HALF + state[i] ** i
    return total, product


def functions(state, control, p):
    x, v, w = state
    return (
        sine(x),
        cos(v),
        exp(-x * x),
        log(1 + v * v),
        sqrt(w * w),
        atan2(x, v),
        hypot(x, v),
        copysign(x, v),
        math.floor(x),
        math.ceil(v),
        math.tanh(w),
        math.degrees(x),
        math.radians(x),
        math.fabs(v),
        math.pow(2, w),
        math.trunc(w),
        math.isnan(x),
        math.isfinite(x),
        math.fmod(x, 3),
        math.asin(sine(x)),
        math.acos(cos(x)),
        math.atan(x),
        math.cbrt(x),
        math.erf(x),
        math.log10(1 + x * x),
        math.log1p(v * v),
        math.expm1(-v * v),
    )


def numpys(state, control, p):
    x, v, w = state
    return (
        np.sin(x),
        np.arctan2(x, v),
        np.abs(w),
        np.sign(x),
        np.minimum(x, v),
        np.maximum(x, w),
        np.floor(x),
        np.sqrt(v * v),
        np.tan(0.1 * x),
        np.arcsin(np.sin(x)),
        np.power(2.0, v),
        np.pi * x,
        np.sinh(0.1 * x),
        np.cosh(0.1 * x),
        np.arcsinh(x),
        np.hypot(x, w),
        np.radians(x),
    )


def builtins(state, control, p):
    x, v, w = state
    return abs(x), min(x, v), max(x, v, w, 0), min(1, x), float(x > v), len(state)


def constants(state, control, p):
    return pi, math.pi, HALF * COUNT, WEIGHTS[2], math.inf, -math.inf, 1e300, 5e-324, 0.1


def calls(state, control, p):
    one, other = twice((state[0], state[1] > 0))
    return square(state[0]) + square(one), other, weighed(state, p), twice((1, 2) if state[0] > 0 else (0.5, p.mass))[1]


def fields(state, control, p):
    θ = p.größe
    return p.double + p.mass * θ


def dynamics(state, control, p):
    position, speed, heat = state
    pull = -sine(position) - HALF * speed + control[0] * p.mass
    for weight in range(2):
        pull += WEIGHTS[weight] * 0.1
    return speed, pull / p.double, square(speed) - heat * p.größe


def reward_rate(state, control, p):
    return -weighed(state, p) if state[2] > 0.5 else 0


def terminal_reward(state, p):
    return min(state[0], 1, state[1]) + (state[2] > 0)


def ends(state, p):
    return abs(state[0]) < 0.1 and not (state[1] > 0.1 or state[1] < -0.1)


problem = ControlProblem(
    name="every-construct",
    summary="a pendulum with heat",
    axes=(
        Axis("position", -pi, pi, periodic=True),
        Axis("speed", -3.0, 3.0, clipped=True),
        Axis("heat", -1.0, 4.0),
    ),
    controls=((-1.0,), (0.5,), (1.0,)),
    dynamics=dynamics,
    reward_rate=reward_rate,
    terminal_reward=terminal_reward,
    is_terminal=ends,
    parameters=Parameters(),
    default_grid=(12, 11, 10),
)
