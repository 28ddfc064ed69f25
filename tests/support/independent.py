"""The optimum of a control problem's table by other means than the solver's: policy iteration on whole arrays (SciPy).

    (I - G_pi P_pi) V = r_pi          solved anew for each policy pi, until no action is better anywhere

The linear systems are solved directly (sparse LU) or, where LU's fill-in would not fit, by BiCGSTAB until the residual
proves an error of 1e-10. A few hundred Jacobi sweeps find the policy to begin with. Nothing of ooc-mdp is used but the
rows of the problem; everything is held in memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.sparse.linalg

from ooc_mdp.problems.control import DiscretisedProblem

__all__ = ["Model", "Optimum", "model_of", "optimum"]

FloatArray = npt.NDArray[np.float64]
_LINEAR_ERROR = 1e-10
"""Largest error of a policy's values that the iterative method leaves."""


@dataclass(frozen=True, slots=True)
class Model:
    """All rows of n states with A actions and K successors each."""

    successors: npt.NDArray[np.int32]
    """[n, A, K]."""
    weights: npt.NDArray[np.float32]
    """[n, A, K]; multiples of 2**-24, so exact."""
    rewards: FloatArray
    """[n, A]."""
    discounts: FloatArray
    """[n, A]; gamma**tau, 0 where the process ends."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """What policy iteration found."""

    values: FloatArray
    policy: npt.NDArray[np.int64]
    error: float
    """Bound on |V - V*|: the largest residual of V over 1 - the largest discount."""
    linear: str
    """How its linear systems were solved: "lu" or "bicgstab"."""
    policies: int
    """Policies evaluated."""
    seconds: float


def model_of(problem: DiscretisedProblem, discount: float) -> Model:
    """Rows of every state, computed in pieces."""
    n, a, k = problem.n_states, problem.n_actions, len(problem.points) + 1
    model = Model(np.empty((n, a, k), np.int32), np.empty((n, a, k), np.float32), np.empty((n, a)), np.empty((n, a)))
    for first in range(0, n, 100_000):
        part = slice(first, min(first + 100_000, n))
        rows = problem.rows(np.arange(part.start, part.stop))
        if rows.durations is None:
            raise TypeError(f"{problem.name} has no durations; it is no control problem")
        model.successors[part] = rows.successors.reshape(-1, a, k)
        model.weights[part] = rows.probabilities.reshape(-1, a, k)
        model.rewards[part] = rows.rewards.reshape(-1, a)
        ending = np.isinf(rows.durations)
        gammas = np.where(ending, 0.0, discount ** np.where(ending, 1.0, rows.durations))
        model.discounts[part] = gammas.reshape(-1, a)
    return model


def q_values(model: Model, values: FloatArray) -> FloatArray:
    """[n, A]: each row's value after which `values` follow."""
    q = np.empty_like(model.rewards)
    for first in range(0, q.shape[0], 100_000):  # the gathered values of all rows at once would be larger than the rows
        part = slice(first, first + 100_000)
        following = np.einsum("nak,nak->na", model.weights[part], values[model.successors[part]])
        q[part] = model.rewards[part] + model.discounts[part] * following
    return q


def optimum(model: Model, linear: str = "lu", sweeps: int = 300, start: FloatArray | None = None) -> Optimum:
    """Policy iteration from the greedy policy after `sweeps` Jacobi sweeps of `start` (0 by default).

    Raises
    ------
    ArithmeticError : a linear system could not be solved to 1e-10.
    """
    began = time.monotonic()
    n = model.rewards.shape[0]
    every = np.arange(n)
    values = np.zeros(n) if start is None else start
    for _ in range(sweeps):
        values = q_values(model, values).max(axis=1)
    policy = q_values(model, values).argmax(axis=1)
    contraction = 1.0 - float(model.discounts.max())
    policies = 0
    while True:
        values = evaluate(model, policy, values, linear)
        policies += 1
        q = q_values(model, values)
        best = q.max(axis=1)
        # Another action must be better by more than the linear system's error, or policies could take turns.
        better = best > q[every, policy] + _LINEAR_ERROR * contraction
        if not better.any():
            error = float(np.abs(best - values).max()) / contraction
            return Optimum(values, policy, error, linear, policies, time.monotonic() - began)
        policy = np.where(better, q.argmax(axis=1), policy)


def evaluate(model: Model, policy: npt.NDArray[np.int64], guess: FloatArray, linear: str) -> FloatArray:
    """[n]: the value of a policy."""
    n, _, k = model.successors.shape
    every = np.arange(n)
    gammas, rewards = model.discounts[every, policy], model.rewards[every, policy]
    following = (gammas[:, None] * model.weights[every, policy]).reshape(-1)
    pointer = np.arange(0, n * k + 1, k)
    moves = scipy.sparse.csr_array((following, model.successors[every, policy].reshape(-1), pointer), shape=(n, n))
    matrix = scipy.sparse.eye_array(n, format="csr") - moves
    if linear == "lu":
        factors = scipy.sparse.linalg.splu(matrix.tocsc())
        values = factors.solve(rewards)
        return np.asarray(values + factors.solve(rewards - matrix @ values))  # refined once
    allowed = _LINEAR_ERROR * (1.0 - float(gammas.max()))
    values = guess
    for _ in range(20):
        left = rewards - matrix @ values
        if float(np.abs(left).max()) <= allowed:
            return values
        change, _ = scipy.sparse.linalg.bicgstab(matrix, left, rtol=1e-6, maxiter=5000)
        values = values + change
    raise ArithmeticError(f"BiCGSTAB left a residual of {float(np.abs(left).max()):.1e}, above {allowed:.1e}")
