"""MDPSolver (C++ with OpenMP): value, modified policy and policy iteration; standard and Gauss-Seidel updates.

Its tolerance is its own epsilon. It takes nested lists, so building takes long and much memory. Rows must add up to 1.
"mpi:10" evaluates a policy by at most 10 sweeps (its own default is 100), "mpi:10:gs" and "vi:0:gs" update in place;
only the standard update runs in parallel. Its number of iterations is not to be had.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import mdpsolver
import numpy as np
from table import Asked, Model, Solved, run, with_absorbing_state


def prepare(model: Model, asked: Asked) -> Callable[[], Solved]:
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    method, sweeps, update, *_ = [*asked.method.split(":"), "", ""]
    whole = with_absorbing_state(model)
    shape = (whole.n_states, whole.actions)
    if (np.diff(whole.row_ptr) == whole.largest_row).all():
        successors = whole.successors.reshape(*shape, -1).tolist()
        weights = whole.weights.reshape(*shape, -1).tolist()
    else:
        successors, weights = _ragged(whole, whole.successors), _ragged(whole, whole.weights)
    solver = mdpsolver.model()
    solver.mdp(
        discount=whole.discount,
        rewards=whole.rewards.reshape(shape).tolist(),
        tranMatProbs=weights,
        tranMatColumns=successors,
    )
    del successors, weights

    def solve() -> Solved:
        solver.solve(
            algorithm=method,
            tolerance=asked.tolerance,
            update=update or "standard",
            parIterLim=int(sweeps or 100),
            parallel=not update,
            postProcessing=False,
            makeFinalCheck=False,
        )
        return Solved(np.array(solver.getValueVector()), None)

    return solve


def _ragged(model: Model, transitions: np.ndarray) -> list[list[list[float]]]:
    listed, ends = transitions.tolist(), model.row_ptr.tolist()
    rows = [listed[ends[j] : ends[j + 1]] for j in range(len(ends) - 1)]
    return [rows[s : s + model.actions] for s in range(0, len(rows), model.actions)]


if __name__ == "__main__":
    run("mdpsolver", prepare)
