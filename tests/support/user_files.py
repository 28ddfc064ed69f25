"""The text of a user's Python file with a control problem."""

from __future__ import annotations

LEAKING_TANK = """
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

class P(NamedTuple):
    k: float = 1.0

def dynamics(x, u, p):
    return (p.k * u[0] - x[0],)

problem = ControlProblem("leak", "a leaking tank", (Axis("level", 0.0, 1.0, clipped=True),), ((0.0,), (1.0,)),
                         dynamics, P(), reward_rate=lambda x, u, p: x[0])
"""
