"""A pole on a cart, to balance by pushing the cart left or right: an example of a control problem of one's own.

    ooc-mdp generate docs/examples/cart_pole.py cart.store --grid 13,13,19,19
    ooc-mdp solve cart.store --discount 0.9 --residual 1e-4 --output cart.result
    ooc-mdp simulate cart.result --problem docs/examples/cart_pole.py --start 0,0,0.1,0 --plot cart.png

The equations are those of Barto, Sutton and Anderson (1983) without friction; the cart's track ends at +-2.4 m.
"""

from math import cos, pi, sin
from typing import NamedTuple

from ooc_mdp import Axis, ControlProblem


class Parameters(NamedTuple):
    """SI units."""

    cart: float = 1.0
    pole: float = 0.1
    half_length: float = 0.5
    gravity: float = 9.81
    force: float = 10.0
    angle: float = 0.2
    """The pole counts as up within this angle."""


def dynamics(state, control, p):
    """Position and speed of the cart, angle from upright and angular velocity of the pole."""
    _, v, angle, speed = state
    mass = p.cart + p.pole
    push = (control[0] * p.force + p.pole * p.half_length * speed * speed * sin(angle)) / mass
    turn = (p.gravity * sin(angle) - cos(angle) * push) / (
        p.half_length * (4.0 / 3.0 - p.pole * cos(angle) * cos(angle) / mass)
    )
    return v, push - p.pole * p.half_length * turn * cos(angle) / mass, speed, turn


def reward_rate(state, control, p):
    """1 while the pole is upright, falling to 0 at the angle that still counts as up."""
    return max(0.0, 1.0 - abs(state[2]) / p.angle)


def is_terminal(state, p):
    """The pole has fallen."""
    return abs(state[2]) > 0.6


problem = ControlProblem(
    name="cart-pole",
    summary="a pole on a cart, to be balanced by pushing the cart: 4 dimensions, 2 forces",
    axes=(
        Axis("position", -2.4, 2.4, unit="m"),
        Axis("velocity", -3.0, 3.0, clipped=True, unit="m/s"),
        Axis("angle", -pi / 4, pi / 4, unit="rad"),
        Axis("turn", -4.0, 4.0, clipped=True, unit="rad/s"),
    ),
    controls=((-1.0,), (1.0,)),
    dynamics=dynamics,
    reward_rate=reward_rate,
    is_terminal=is_terminal,
    parameters=Parameters(),
    initial_state=(0.0, 0.0, 0.0, 0.0),
    max_step=0.05,
)
