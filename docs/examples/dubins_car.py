"""A car that drives forwards only and turns within a radius (Dubins), to reach a disc behind two pillars.

    ooc-mdp generate docs/examples/dubins_car.py dubins.store
    ooc-mdp solve dubins.store --discount 0.95 --epsilon 1e-2 --output dubins.result
    ooc-mdp plot dubins.result
    ooc-mdp simulate dubins.result --problem docs/examples/dubins_car.py --plot dubins-runs.png

A penalty is paid where the car hits a pillar or leaves the square.
"""

from math import cos, pi, sin
from typing import NamedTuple

from ooc_mdp import Axis, ControlProblem


class Parameters(NamedTuple):
    """Constants of the car and its surroundings."""

    speed: float = 1.0
    """m/s."""
    pillar: float = 1.0
    """Radius of the pillars, m."""
    goal: float = 0.6
    """Radius of the goal, m."""
    penalty: float = 100.0
    """For hitting a pillar or leaving the square."""


def dynamics(state, control, p):
    """Position and heading; the control is the turning rate."""
    heading = state[2]
    return p.speed * cos(heading), p.speed * sin(heading), control[0]


def is_goal(state, p):
    """The disc at (3.5, 3.5)."""
    return (state[0] - 3.5) ** 2 + (state[1] - 3.5) ** 2 < p.goal**2


def is_terminal(state, p):
    """The goal, or one of the pillars at (1, 0.5) and (-1.5, 2)."""
    first = (state[0] - 1.0) ** 2 + (state[1] - 0.5) ** 2
    second = (state[0] + 1.5) ** 2 + (state[1] - 2.0) ** 2
    return is_goal(state, p) or first < p.pillar**2 or second < p.pillar**2


def reward_rate(state, control, p):
    """Time is paid for."""
    return -1.0


def terminal_reward(state, p):
    """10 for the goal."""
    if is_goal(state, p):
        return 10.0
    return -p.penalty


problem = ControlProblem(
    name="dubins-car",
    summary="a car with a turning radius among pillars: 3 dimensions, 3 turning rates",
    axes=(
        Axis("x", -5.0, 5.0, unit="m"),
        Axis("y", -5.0, 5.0, unit="m"),
        Axis("heading", -pi, pi, periodic=True, unit="rad"),
    ),
    controls=((-1.0,), (0.0,), (1.0,)),
    dynamics=dynamics,
    parameters=Parameters(),
    reward_rate=reward_rate,
    terminal_reward=terminal_reward,
    is_terminal=is_terminal,
    is_goal=is_goal,
    initial_state=(-4.0, -3.0, 0.0),
    default_grid=(41, 41, 24),
)
