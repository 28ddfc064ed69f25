"""Not a package but the floor that anyone reaches in ten lines: value iteration with one SciPy sparse product a sweep.

Its tolerance is the largest change of a value in the last sweep, or with "vi:span" the span of the changes. SciPy's
product uses one core.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
from table import Asked, Model, Solved, run


def prepare(model: Model, asked: Asked) -> Callable[[], Solved]:
    n_rows = model.n_states * model.actions
    matrix = scipy.sparse.csr_array((model.weights, model.successors, model.row_ptr), shape=(n_rows, model.n_states))
    matrix.data *= model.discount

    def solve() -> Solved:
        values, sweeps, change = np.zeros(model.n_states), 0, np.inf
        while change > asked.tolerance and sweeps < asked.max_iterations:
            q = matrix @ values
            q += model.rewards
            new = q.reshape(model.n_states, model.actions).max(axis=1)
            moved = new - values
            change = float(np.ptp(moved) if asked.method == "vi:span" else np.abs(moved).max())
            values, sweeps = new, sweeps + 1
        return Solved(values, sweeps)

    return solve


if __name__ == "__main__":
    run("scipy", prepare)
