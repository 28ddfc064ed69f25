"""A pendulum with a motor-driven wheel at its end, to balance upright: three dimensions and a wheel that must not race.

    ooc-mdp generate docs/examples/reaction_wheel_pendulum.py wheel.store --grid 41,41,41
    ooc-mdp solve wheel.store --discount 0.9 --residual 1e-4 --output wheel.result
    ooc-mdp simulate wheel.result --problem docs/examples/reaction_wheel_pendulum.py --start 0.05,0,0 --plot wheel.png

Equations and constants are those of the laboratory pendulum of Spong, Corke and Lozano, "Nonlinear control of the
reaction wheel pendulum", Automatica 37 (2001), with the angle taken from upright: the motor's torque turns the wheel
one way and the pendulum the other.
"""

from math import sin
from typing import NamedTuple

from ooc_mdp import Axis, ControlProblem


class Parameters(NamedTuple):
    """Constants of the equations of motion, SI units."""

    gravity: float = 78.4
    """Weight times length over inertia, 1/s2."""
    on_pendulum: float = 1.08
    """Of the motor on the pendulum, 1/s2 per unit of control."""
    on_wheel: float = 198.0
    """Of the motor on the wheel, 1/s2 per unit of control."""
    angle: float = 0.2
    """The pendulum counts as up within this angle."""


def dynamics(state, control, p):
    """Angle from upright, angular velocity of the pendulum and of the wheel."""
    angle, speed, _ = state
    return speed, p.gravity * sin(angle) - p.on_pendulum * control[0], p.on_wheel * control[0]


def reward_rate(state, control, p):
    """1 while the pendulum is upright, falling to 0 at the angle that still counts as up."""
    return max(0.0, 1.0 - abs(state[0]) / p.angle)


def is_terminal(state, p):
    """The pendulum has fallen."""
    return abs(state[0]) > 0.3


problem = ControlProblem(
    name="reaction-wheel-pendulum",
    summary="a pendulum to be balanced by a motor-driven wheel: 3 dimensions, 3 torques",
    axes=(
        Axis("angle", -0.35, 0.35, unit="rad"),
        Axis("velocity", -2.5, 2.5, clipped=True, unit="rad/s"),
        Axis("wheel", -800.0, 800.0, clipped=True, unit="rad/s"),
    ),
    controls=((-10.0,), (0.0,), (10.0,)),
    dynamics=dynamics,
    reward_rate=reward_rate,
    is_terminal=is_terminal,
    parameters=Parameters(),
    initial_state=(0.0, 0.0, 0.0),
    max_step=0.02,
)
