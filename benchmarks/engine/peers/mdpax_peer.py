"""mdpax (JAX) on the CPU: value iteration in float64, the whole table as arrays of a problem of its own.

Its tolerance is epsilon. "vi" tests the largest change, "vi:span" the span of the change. A batch is 4,096 states. A
tiny solve cannot compile for the shapes of the large one, so one iteration is made before, outside the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from mdpax.core.problem import Problem
from mdpax.solvers.value_iteration import ValueIteration
from table import Asked, Model, Solved, run, with_absorbing_state

jax.config.update("jax_enable_x64", True)


class Table(Problem):
    """Rows of one length: event i of a (state, action) is its i-th successor, its probability the row's i-th weight."""

    def __init__(self, model: Model) -> None:
        successors, weights = model.dense_rows()
        self._sizes = (model.n_states, model.actions, successors.shape[2])
        self._successors, self._weights = jnp.asarray(successors), jnp.asarray(weights)
        self._rewards = jnp.asarray(model.rewards.reshape(model.n_states, model.actions))
        super().__init__()

    @property
    def name(self) -> str:
        """What the solver calls it."""
        return "table"

    def state_to_index(self, state):  # type: ignore[no-untyped-def]
        """A state is its number."""
        return state[0]

    def _construct_state_space(self):  # type: ignore[no-untyped-def]
        return jnp.arange(self._sizes[0], dtype=jnp.int32)

    def _construct_action_space(self):  # type: ignore[no-untyped-def]
        return jnp.arange(self._sizes[1], dtype=jnp.int32)

    def _construct_random_event_space(self):  # type: ignore[no-untyped-def]
        return jnp.arange(self._sizes[2], dtype=jnp.int32)

    def random_event_probability(self, state, action, random_event):  # type: ignore[no-untyped-def]
        """Weight of the row's transition of this number."""
        return self._weights[state[0], action[0], random_event[0]]

    def transition(self, state, action, random_event):  # type: ignore[no-untyped-def]
        """Successor of the row's transition of this number, and the row's reward, paid once in all."""
        at = (state[0], action[0])
        return self._successors[(*at, random_event[0])][None], self._rewards[at]


def prepare(model: Model, asked: Asked) -> Callable[[], Solved]:
    model = with_absorbing_state(model)
    solver = ValueIteration(
        Table(model),
        gamma=model.discount,
        epsilon=asked.tolerance,
        max_batch_size=4096,
        verbose=0,
        convergence_test="span" if asked.method == "vi:span" else "max_diff",
    )
    solver.solve(1)
    solver._initialize_solver_state_elements()

    def solve() -> Solved:
        values = solver.solve(asked.max_iterations).values
        return Solved(np.asarray(values.block_until_ready()), int(solver.iteration))

    return solve


if __name__ == "__main__":
    run("mdpax", prepare)
