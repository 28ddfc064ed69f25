"""pymdptoolbox: value iteration on one sparse matrix an action.

Its tolerance is epsilon; it stops on the span of the last change, which bounds the error up to a constant. What it does
with all pairs of states is left out: the checks of the matrices, which become dense with this SciPy, and the bound on
the iterations. Its policy iterations make a policy's matrix dense too, so there is none of them here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mdptoolbox.mdp
import mdptoolbox.util
import numpy as np
import scipy.sparse
from table import Asked, Model, Solved, run, with_absorbing_state


class _ValueIteration(mdptoolbox.mdp.ValueIteration):
    def _boundIter(self, epsilon: float) -> None:
        pass


def prepare(model: Model, asked: Asked) -> Callable[[], Solved]:
    mdptoolbox.util.check = _no_check
    whole = with_absorbing_state(model)
    shape = (whole.n_states * whole.actions, whole.n_states)
    rows = scipy.sparse.csr_array((whole.weights, whole.successors, whole.row_ptr), shape=shape)
    transitions = [rows[a :: whole.actions] for a in range(whole.actions)]
    rewards = whole.rewards.reshape(whole.n_states, whole.actions)
    solver = _ValueIteration(transitions, rewards, whole.discount, asked.tolerance, asked.max_iterations)

    def solve() -> Solved:
        solver.run()
        return Solved(np.asarray(solver.V), int(solver.iter))

    return solve


def _no_check(transitions: Any, rewards: Any) -> None:
    pass


if __name__ == "__main__":
    run("pymdptoolbox", prepare)
