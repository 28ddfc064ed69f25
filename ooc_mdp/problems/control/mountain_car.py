"""The car on the hill: a thrust too weak for the slope must be helped by a run-up (Wingate 2004, section 9.2.1).

    hill   H(x) = x**2 + x for x < 0,  x / sqrt(1 + 5 x**2) for x >= 0        position x in [-1, 1]
    motion (1 + H'**2) x'' = F / m - g H' - x'**2 H' H''                       velocity clipped to [-4, 4]

The car of Moore and Atkeson (1995) as Munos and Moore (2002) draw it, whose figure the thesis adapts. Leaving on the
right ends the process with a reward that is 1 at velocity 0 and falls linearly to 0 at +-`tolerance` (the thesis:
"a velocity of zero, plus or minus a small epsilon"); leaving on the left ends it with none.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from ooc_mdp.problems.control.definition import Axis, ControlProblem, State

__all__ = ["problem"]


class Parameters(NamedTuple):
    """SI units."""

    mass: float = 1.0
    thrust: float = 4.0
    gravity: float = 9.81
    tolerance: float = 0.5
    """Speed of exit at which the reward is 0."""


def dynamics(state: State, control: State, p: Parameters) -> State:
    """Position and velocity."""
    x, v = state
    if x < 0.0:
        slope = 2.0 * x + 1.0
        bend = 2.0
    else:
        w = 1.0 + 5.0 * x * x
        slope = 1.0 / (w * sqrt(w))
        bend = -15.0 * x / (w * w * sqrt(w))
    push = control[0] * p.thrust / p.mass
    return v, (push - p.gravity * slope - v * v * slope * bend) / (1.0 + slope * slope)


def terminal_reward(state: State, p: Parameters) -> float:
    """1 for leaving on the right at rest."""
    x, v = state
    if x > 0.0:
        return max(0.0, 1.0 - abs(v) / p.tolerance)
    return 0.0


problem = ControlProblem(
    name="mountain-car",
    summary="car on the hill: 2 dimensions, 3 thrusts, a reward for leaving on the right at rest",
    axes=(Axis("position", -1.0, 1.0, unit="m"), Axis("velocity", -4.0, 4.0, clipped=True, unit="m/s")),
    controls=((-1.0,), (0.0,), (1.0,)),
    dynamics=dynamics,
    terminal_reward=terminal_reward,
    parameters=Parameters(),
    initial_state=(-0.5, 0.0),
)
