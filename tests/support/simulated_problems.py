"""Small control problems whose controlled runs can be foretold, and their solutions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

import ooc_mdp
from ooc_mdp.problems.control import Axis, ControlProblem
from ooc_mdp.simulation import (
    Simulation,
    problem_of,
)
from ooc_mdp.simulation import simulate as run_policy


class NoParameters(NamedTuple):
    unused: float = 0.0


def drift(state, control, p):
    return (control[0],)


def one_on_the_right(state, p):
    return 1.0 if state[0] > 0.0 else 0.0


LINE = ControlProblem(
    name="line",
    summary="x' = u on [-1, 1]; 1 for leaving on the right",
    axes=(Axis("x", -1.0, 1.0),),
    controls=((-1.0,), (1.0,)),
    dynamics=drift,
    terminal_reward=one_on_the_right,
    parameters=NoParameters(),
)


def divided_by_nothing(state, control, p):
    return (-1.0 + 0.0 / max(state[0] - 0.25, 0.0),)


def without_root(state, control, p):
    return (-1.0 + 0.0 * math.sqrt(state[0] - 0.25),)


def below_a_half(state, p):
    return state[0] < 0.5


def double_integrator(state, control, p):
    return state[1], control[0]


def near_origin(state, p):
    return abs(state[0]) < 0.1 and abs(state[1]) < 0.2


def one_near_origin(state, p):
    return 1.0 if near_origin(state, p) else 0.0


def minus_one_near_origin(state, p):
    return -1.0 if near_origin(state, p) else 0.0


ONLY_COSTS = """
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

class Parameters(NamedTuple):
    flow: float = 1.0

def dynamics(state, control, p):
    return (p.flow * control[0],)

def reward_rate(state, control, p):
    return SIGN(state[0] ** 2 + 1.0)

problem = ControlProblem(
    name="tank", summary="a level to be kept low", axes=(Axis("level", -2.0, 2.0, clipped=True),),
    controls=((-1.0,), (1.0,)), dynamics=dynamics, reward_rate=reward_rate, parameters=Parameters(),
)
"""


MASS = ControlProblem(
    name="mass",
    summary="x'' = u, to be brought to rest at 0",
    axes=(Axis("x", -2.0, 2.0), Axis("v", -2.5, 2.5, clipped=True)),
    controls=((-1.0,), (1.0,)),
    dynamics=double_integrator,
    is_terminal=near_origin,
    terminal_reward=one_near_origin,
    parameters=NoParameters(),
    max_step=0.05,
)


def solved(problem, discount, folder, residual=1e-4):
    """Values and policy of a problem that can be generated under a name."""
    store = ooc_mdp.generate(problem[0], folder / "store", problem[1], dtype="float32", partitions=64)
    solution = ooc_mdp.solve(store, discount, residual=residual, device="cpu", output=folder / "result")
    assert solution.outcome.proved
    return folder / "result"


def iterated(problem, discount):
    """Values and policy by plain value iteration, for problems too small for a store."""
    rows = problem.rows(np.arange(problem.n_states))
    gamma = np.where(np.isinf(rows.durations), 0.0, discount ** np.where(np.isinf(rows.durations), 0, rows.durations))
    k = len(problem.problem.axes) + 1
    values = np.zeros(problem.n_states)
    for _ in range(20000):
        q = rows.rewards + gamma * (rows.probabilities * values[rows.successors]).reshape(-1, k).sum(axis=1)
        q = q.reshape(problem.n_states, -1)
        new = q.max(axis=1)
        if np.abs(new - values).max() < 1e-10:
            return new, q.argmax(axis=1).astype(np.int32)
        values = new
    raise AssertionError("value iteration does not converge")


def any_policy(problem):
    return np.zeros(problem.n_states), np.zeros(problem.n_states, np.int32)


def still(state, control, p):
    return 0.0, 0.0, 0.0, 0.0


FOUR_AXES = ControlProblem(
    name="still",
    summary="nothing moves",
    axes=tuple(Axis(f"x{i}", -1.0 - i, 2.0 + i) for i in range(4)),
    controls=((0.0,),),
    dynamics=still,
    parameters=NoParameters(),
)


def run_result(result: Path, starts, options=None) -> Simulation:
    opened = ooc_mdp.open_result(result)
    problem = problem_of(opened)
    solution = opened.solution
    return run_policy(problem, solution.values, solution.policy, solution.discount, starts(problem.problem), options)
