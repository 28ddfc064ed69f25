"""QuantEcon's DiscreteDP in its sparse state-action pair form: value, modified policy and policy iteration.

Its tolerance is epsilon: values within epsilon / 2 of the optimum. Modified policy iteration does `k` evaluation sweeps
an improvement ("mpi:100": k = 100; its default is 20), and adds a constant that is right where rows add up to 1. Its
start, the least reward for ever, would let the value of an absorbing state fall for as long as discounts near 1 take:
such tables start from 0. It does not use several cores.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
from quantecon.markov import DiscreteDP
from table import Asked, FloatArray, Model, Solved, run, with_absorbing_state


def prepare(model: Model, asked: Asked) -> Callable[[], Solved]:
    method, _, k = asked.method.partition(":")
    _solve(_tiny(), Asked(method, 1e-3, 10, asked.threads), 2, None)  # compiles
    problem = _problem(with_absorbing_state(model))
    start = None if model.stochastic else np.zeros(problem.num_states)
    return lambda: _solve(problem, asked, int(k or 20), start)


def _problem(model: Model) -> DiscreteDP:
    n_rows = model.n_states * model.actions
    matrix = scipy.sparse.csr_matrix(
        (model.weights, model.successors, model.row_ptr), shape=(n_rows, model.n_states), copy=False
    )
    states, actions = np.divmod(np.arange(n_rows), model.actions)
    return DiscreteDP(model.rewards, matrix, model.discount, states, actions)


def _tiny() -> DiscreteDP:
    pointer, successors = np.arange(5, dtype=np.int64), np.array([0, 1, 1, 0], np.int32)
    return _problem(Model(2, 2, 0.5, np.arange(4.0), pointer, successors, np.ones(4), stochastic=True))


def _solve(problem: DiscreteDP, asked: Asked, k: int, start: FloatArray | None) -> Solved:
    method = asked.method.partition(":")[0]
    if method == "mpi":
        found = problem.solve(method=method, v_init=start, epsilon=asked.tolerance, max_iter=asked.max_iterations, k=k)
    elif method == "vi":
        found = problem.solve(method=method, v_init=start, epsilon=asked.tolerance, max_iter=asked.max_iterations)
    else:
        found = problem.solve(method=method, v_init=start, max_iter=asked.max_iterations)
    return Solved(found.v, int(found.num_iter))


if __name__ == "__main__":
    run("quantecon", prepare)
