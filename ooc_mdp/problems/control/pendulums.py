"""One, two and three links to swing up and balance, driven by a torque on the first (Wingate 2004, section 9.2.2).

Point masses m_i at the ends of massless links l_i, absolute angles theta_i from upright, in [-pi, pi). With
c_ij = (m_max(i,j) + ... + m_n) l_i l_j and Lagrange's equations

    sum_j c_ij cos(theta_i - theta_j) theta_j'' = - sum_j c_ij sin(theta_i - theta_j) theta_j'**2
                                                  + g (m_i + ... + m_n) l_i sin theta_i + [i = 1] torque

Torques and limits on angular velocities are the thesis's: +-10, and 10; 10 and 15; 8, 10 and 10 rad/s. It gives no
masses or lengths; here each mass is 1 kg and each length 1 m, but the single link's mass is 2 kg: with less than
1.02 kg the torque would lift it straight up, and the thesis says that it must be rocked.

The reward. What must be upright is the last link (thesis: "the secondary link"), nearly at rest: a closeness that is
1 there and falls linearly to 0 where |theta| / `angle` + |theta'| / `speed` = 1. With `hold` = 1 (the default) it is
paid as long as the pendulum stays, so a policy must keep it up and values reach 1 / ln(1 / gamma). With `hold` = 0
the process ends with a reward of 1 where closeness is above 0: a minimum-time problem with a single reward, as the
thesis describes its own, with values in [0, 1].
"""

from __future__ import annotations

from math import cos, pi, sin
from typing import NamedTuple

from ooc_mdp.problems.control.definition import Axis, ControlProblem, State

__all__ = ["double_pendulum", "single_pendulum", "triple_pendulum"]

TORQUES = ((-1.0,), (1.0,))


def _angle(name: str) -> Axis:
    return Axis(name, -pi, pi, periodic=True, unit="rad")


def _speed(name: str, limit: float) -> Axis:
    return Axis(name, -limit, limit, clipped=True, unit="rad/s")


class SingleParameters(NamedTuple):
    """SI units."""

    mass: float = 2.0
    length: float = 1.0
    gravity: float = 9.81
    torque: float = 10.0
    friction: float = 0.0
    """Torque that brakes, per rad/s."""
    hold: float = 1.0
    angle: float = 0.5
    speed: float = 2.0


def single_dynamics(state: State, control: State, p: SingleParameters) -> State:
    """Angle and angular velocity."""
    angle, speed = state
    torque = control[0] * p.torque - p.friction * speed
    return speed, torque / (p.mass * p.length * p.length) + p.gravity / p.length * sin(angle)


def single_rate(state: State, control: State, p: SingleParameters) -> float:
    """Closeness, while it is to be held."""
    angle, speed = state
    return p.hold * max(0.0, 1.0 - abs(angle) / p.angle - abs(speed) / p.speed)


def single_ends(state: State, p: SingleParameters) -> bool:
    """Close to upright, where that is enough."""
    angle, speed = state
    return p.hold == 0.0 and abs(angle) / p.angle + abs(speed) / p.speed < 1.0


def one_at_end(state: State, p: NamedTuple) -> float:
    """A reward of 1 where the process ends."""
    return 1.0


single_pendulum = ControlProblem(
    name="single-pendulum",
    summary="one link to swing up and balance: 2 dimensions, 2 torques",
    axes=(_angle("angle"), _speed("speed", 10.0)),
    controls=TORQUES,
    dynamics=single_dynamics,
    reward_rate=single_rate,
    is_terminal=single_ends,
    terminal_reward=one_at_end,
    parameters=SingleParameters(),
    initial_state=(-pi, 0.0),
)


class DoubleParameters(NamedTuple):
    """SI units."""

    mass1: float = 1.0
    mass2: float = 1.0
    length1: float = 1.0
    length2: float = 1.0
    gravity: float = 9.81
    torque: float = 10.0
    friction: float = 0.0
    """Torque that brakes each link, per rad/s."""
    hold: float = 1.0
    angle: float = 0.5
    speed: float = 2.0


def double_dynamics(state: State, control: State, p: DoubleParameters) -> State:
    """Angles and angular velocities of both links."""
    angle1, angle2, speed1, speed2 = state
    c11 = (p.mass1 + p.mass2) * p.length1 * p.length1
    c12 = p.mass2 * p.length1 * p.length2
    c22 = p.mass2 * p.length2 * p.length2
    m12 = c12 * cos(angle1 - angle2)
    turn = c12 * sin(angle1 - angle2)
    right1 = (
        control[0] * p.torque
        - p.friction * speed1
        - turn * speed2 * speed2
        + p.gravity * (p.mass1 + p.mass2) * p.length1 * sin(angle1)
    )
    right2 = turn * speed1 * speed1 - p.friction * speed2 + p.gravity * p.mass2 * p.length2 * sin(angle2)
    size = c11 * c22 - m12 * m12
    return speed1, speed2, (c22 * right1 - m12 * right2) / size, (c11 * right2 - m12 * right1) / size


def double_rate(state: State, control: State, p: DoubleParameters) -> float:
    """Closeness of the second link, while it is to be held."""
    angle2, speed2 = state[1], state[3]
    return p.hold * max(0.0, 1.0 - abs(angle2) / p.angle - abs(speed2) / p.speed)


def double_ends(state: State, p: DoubleParameters) -> bool:
    """Second link close to upright, where that is enough."""
    angle2, speed2 = state[1], state[3]
    return p.hold == 0.0 and abs(angle2) / p.angle + abs(speed2) / p.speed < 1.0


double_pendulum = ControlProblem(
    name="double-pendulum",
    summary="two links, a torque on the first, the second to swing up and balance: 4 dimensions, 2 torques",
    axes=(_angle("angle1"), _angle("angle2"), _speed("speed1", 10.0), _speed("speed2", 15.0)),
    controls=TORQUES,
    dynamics=double_dynamics,
    reward_rate=double_rate,
    is_terminal=double_ends,
    terminal_reward=one_at_end,
    parameters=DoubleParameters(),
    initial_state=(-pi, -pi, 0.0, 0.0),
    default_grid=(30, 30, 30, 30),
)


class TripleParameters(NamedTuple):
    """SI units."""

    mass1: float = 1.0
    mass2: float = 1.0
    mass3: float = 1.0
    length1: float = 1.0
    length2: float = 1.0
    length3: float = 1.0
    gravity: float = 9.81
    torque: float = 10.0
    friction: float = 0.0
    """Torque that brakes each link, per rad/s."""
    hold: float = 1.0
    angle: float = 0.5
    speed: float = 2.0


def triple_dynamics(state: State, control: State, p: TripleParameters) -> State:
    """Angle and angular velocity of each link in turn."""
    angle1, speed1, angle2, speed2, angle3, speed3 = state
    mass23 = p.mass2 + p.mass3
    c12 = mass23 * p.length1 * p.length2
    c13 = p.mass3 * p.length1 * p.length3
    c23 = p.mass3 * p.length2 * p.length3
    a = (p.mass1 + mass23) * p.length1 * p.length1
    b = mass23 * p.length2 * p.length2
    c = p.mass3 * p.length3 * p.length3
    d = c12 * cos(angle1 - angle2)
    e = c13 * cos(angle1 - angle3)
    f = c23 * cos(angle2 - angle3)
    turn12 = c12 * sin(angle1 - angle2)
    turn13 = c13 * sin(angle1 - angle3)
    turn23 = c23 * sin(angle2 - angle3)
    square1 = speed1 * speed1
    square2 = speed2 * speed2
    square3 = speed3 * speed3
    right1 = (
        control[0] * p.torque
        - p.friction * speed1
        - turn12 * square2
        - turn13 * square3
        + p.gravity * (p.mass1 + mass23) * p.length1 * sin(angle1)
    )
    right2 = turn12 * square1 - turn23 * square3 - p.friction * speed2 + p.gravity * mass23 * p.length2 * sin(angle2)
    right3 = turn13 * square1 + turn23 * square2 - p.friction * speed3 + p.gravity * p.mass3 * p.length3 * sin(angle3)
    # The symmetric matrix [[a, d, e], [d, b, f], [e, f, c]] by its cofactors.
    aa = b * c - f * f
    dd = e * f - d * c
    ee = d * f - b * e
    bb = a * c - e * e
    ff = d * e - a * f
    cc = a * b - d * d
    size = a * aa + d * dd + e * ee
    return (
        speed1,
        (aa * right1 + dd * right2 + ee * right3) / size,
        speed2,
        (dd * right1 + bb * right2 + ff * right3) / size,
        speed3,
        (ee * right1 + ff * right2 + cc * right3) / size,
    )


def triple_rate(state: State, control: State, p: TripleParameters) -> float:
    """Closeness of the third link, while it is to be held."""
    angle3, speed3 = state[4], state[5]
    return p.hold * max(0.0, 1.0 - abs(angle3) / p.angle - abs(speed3) / p.speed)


def triple_ends(state: State, p: TripleParameters) -> bool:
    """Third link close to upright, where that is enough."""
    angle3, speed3 = state[4], state[5]
    return p.hold == 0.0 and abs(angle3) / p.angle + abs(speed3) / p.speed < 1.0


triple_pendulum = ControlProblem(
    name="triple-pendulum",
    summary="three links, a torque on the first, the third to swing up and balance: 6 dimensions, 2 torques",
    axes=(
        _angle("angle1"),
        _speed("speed1", 8.0),
        _angle("angle2"),
        _speed("speed2", 10.0),
        _angle("angle3"),
        _speed("speed3", 10.0),
    ),
    controls=TORQUES,
    dynamics=triple_dynamics,
    reward_rate=triple_rate,
    is_terminal=triple_ends,
    terminal_reward=one_at_end,
    parameters=TripleParameters(),
    initial_state=(-pi, 0.0, -pi, 0.0, -pi, 0.0),
    default_grid=(10,) * 6,
)
