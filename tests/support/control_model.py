"""One row of a discretised control problem in plain Python: what the compiled kernel is compared with.

Written from the equations of `ooc_mdp.problems.control.integration`, with lists, sorting and dictionaries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ooc_mdp.problems.control import DiscretisedProblem

__all__ = ["Row", "interpolated_offset", "row_of"]

UNIT = 2.0**-24


@dataclass(frozen=True)
class Row:
    """What follows a state under a control."""

    end: tuple[float, ...]
    """Where the trajectory was when it was left; periodic components are not brought back."""
    ended: bool
    duration: float
    """In the problem's time, not rounded."""
    reward: float
    weights: dict[int, float]
    """Successor -> weight."""


def row_of(mdp: DiscretisedProblem, state: int, action: int) -> Row:
    """Follow the trajectory and find the simplex that it ends in."""
    problem, p, h = mdp.problem, mdp.problem.parameters, mdp.steps
    axes, control = problem.axes, problem.controls[action]
    rate = problem.reward_rate or (lambda x, u, p: 0.0)
    start = [float(x) for x in mdp.coordinates(np.array([state]))[0]]

    def wrapped(x: list[float]) -> tuple[float, ...]:
        return tuple(
            axis.low + (xi - axis.low) % (axis.high - axis.low) if axis.periodic else xi
            for axis, xi in zip(axes, x, strict=True)
        )

    def over(x: list[float]) -> bool:
        gone = any(
            not (axis.periodic or axis.clipped or axis.low <= xi <= axis.high) for axis, xi in zip(axes, x, strict=True)
        )
        return gone or (problem.is_terminal is not None and bool(problem.is_terminal(wrapped(x), p)))

    def moved(x: list[float], k: tuple[float, ...], dt: float) -> tuple[float, ...]:
        return tuple(xi + dt * ki for xi, ki in zip(x, k, strict=True))

    x, time, earned, paid, ended = start, 0.0, 0.0, rate(wrapped(start), control, p), over(start)
    while not ended and time < mdp.max_duration:
        k1 = problem.dynamics(tuple(x), control, p)
        cells_a_second = max(abs(k) / hi for k, hi in zip(k1, h, strict=True))
        dt = min(mdp.max_step, mdp.max_duration - time)
        if cells_a_second * dt > 0.3:
            dt = 0.3 / cells_a_second
        k2 = problem.dynamics(moved(x, k1, 0.5 * dt), control, p)
        k3 = problem.dynamics(moved(x, k2, 0.5 * dt), control, p)
        k4 = problem.dynamics(moved(x, k3, dt), control, p)
        x = [xi + dt / 6 * (a + 2 * b + 2 * c + d) for xi, a, b, c, d in zip(x, k1, k2, k3, k4, strict=True)]
        x = [min(max(xi, axis.low), axis.high) if axis.clipped else xi for axis, xi in zip(axes, x, strict=True)]
        time += dt
        ended = over(x)
        pays = rate(wrapped(x), control, p)
        earned += 0.5 * dt * (paid + pays)
        paid = pays
        if any(abs(a - b) >= hi for a, b, hi in zip(x, start, h, strict=True)):
            break
    if ended:
        time = math.inf
        earned += problem.terminal_reward(wrapped(x), p) if problem.terminal_reward else 0.0
    return Row(tuple(x), ended, time, earned, _simplex(mdp, x))


def _simplex(mdp: DiscretisedProblem, x: list[float]) -> dict[int, float]:
    """Kuhn's triangulation: from the cell's lowest corner along the axes, that of the largest fraction first."""
    corner, fractions = [], []
    for axis, n, h, xi in zip(mdp.problem.axes, mdp.points, mdp.steps, x, strict=True):
        u = (xi - axis.low) / h
        k = math.floor(u) if axis.periodic else min(max(math.floor(u), 0), n - 2)
        corner.append(k)
        fractions.append(min(max(u - k, 0.0), 1.0))
    order = sorted(range(len(x)), key=lambda i: -fractions[i])
    bounds = [1.0, *(fractions[i] for i in order), 0.0]
    found = {}
    for j in range(len(x) + 1):
        if j:
            corner[order[j - 1]] += 1
        place = tuple(k % n for k, n in zip(corner, mdp.points, strict=True))
        found[int(np.ravel_multi_index(place, mdp.points))] = bounds[j] - bounds[j + 1]
    return found


def interpolated_offset(
    mdp: DiscretisedProblem, end: tuple[float, ...], successors: np.ndarray, weights: np.ndarray
) -> list:
    """How far the mean of the successors' places lies from `end` on each axis, in cells, the short way round."""
    offsets = mdp.coordinates(successors) - np.array(end)
    for i, axis in enumerate(mdp.problem.axes):
        if axis.periodic:
            span = axis.high - axis.low
            offsets[:, i] -= span * np.round(offsets[:, i] / span)
    return list(weights @ offsets / np.array(mdp.steps))
