"""Storm through stormpy: discounted total reward of a sparse MDP, `Rmax=? [Cdiscount=...]`, by its value iteration.

Its tolerance is the precision of its min-max solver, absolute. Storm takes rows that add up to 1 with ascending
columns; its matrix is built from lists. Sound computations are not forced: the error is measured here. The values of
all states are asked for; they come as a list.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import stormpy
from table import Asked, Model, Solved, run, with_absorbing_state

_PIECE = 1_000_000
"""Transitions that are lists of Python numbers at a time."""


def prepare(model: Model, asked: Asked) -> Callable[[], Solved]:
    whole = with_absorbing_state(model)
    n_rows = whole.n_states * whole.actions
    groups = range(0, n_rows, whole.actions)
    builder = stormpy.datastructures.SparseMatrixBuilder[float](
        rows=n_rows,
        columns=whole.n_states,
        entries=int(np.count_nonzero(whole.weights > 0)),
        has_custom_row_grouping=True,
        row_groups=whole.n_states,
    )
    states_a_piece = max(1, _PIECE // (whole.actions * whole.largest_row))
    for first in range(0, whole.n_states, states_a_piece):
        begin, end = first * whole.actions, min(first + states_a_piece, whole.n_states) * whole.actions
        at = slice(int(whole.row_ptr[begin]), int(whole.row_ptr[end]))
        rows = np.repeat(np.arange(begin, end), np.diff(whole.row_ptr[begin : end + 1]))
        kept = whole.weights[at] > 0
        builder.add_next_values(
            rows[kept].tolist(),
            whole.successors[at][kept].tolist(),
            whole.weights[at][kept].tolist(),
            groups[first : first + states_a_piece],
        )
    labeling = stormpy.models.StateLabeling(whole.n_states)
    labeling.add_label("init")
    labeling.add_label_to_state("init", 0)
    rewards = stormpy.models.SparseRewardModel[float](optional_state_action_reward_vector=whole.rewards.tolist())
    mdp = stormpy.models.SparseMdp[float](
        stormpy.models.SparseModelComponents[float](
            transition_matrix=builder.build(), state_labeling=labeling, reward_models={"": rewards}
        )
    )
    (wanted,) = stormpy.parse_properties(f"Rmax=? [Cdiscount={whole.discount!r}]")
    environment = stormpy.Environment()
    min_max = environment.solver().min_max()
    min_max.method = stormpy.environments.MinMaxMethod.VALUE_ITERATION
    min_max.precision = stormpy.Rational(repr(asked.tolerance))
    min_max.relative_termination_criterion = False
    min_max.maximal_number_of_iterations = asked.max_iterations

    def solve() -> Solved:
        found = stormpy.model_checking(mdp, wanted, only_initial_states=False, environment=environment)
        return Solved(found.get_value_vector(), None)

    return solve


if __name__ == "__main__":
    run("stormpy", prepare)
