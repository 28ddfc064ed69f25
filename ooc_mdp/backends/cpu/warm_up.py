"""A small model with the types and shapes of another, on which compiled loops are called before a solve begins.

So the plan of its memory counts them (some 60 MB), and its clock does not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.partition import PartitionTable

__all__ = ["small_model"]

_STATES = 256
_SUCCESSORS = 64


def small_model(model: ModelFacts) -> tuple[ModelFacts, PartitionTable]:
    """Facts of a model of one partition, and its table."""
    actions, successors = model.actions_per_state, model.successors_per_action
    n = min(model.largest_partition, _STATES)
    m, k = n * (actions or 1), successors or min(model.longest_row, _SUCCESSORS)
    table = PartitionTable(
        index=0,
        first_state=0,
        n_states=n,
        actions_per_state=actions,
        successors_per_action=successors,
        action_ptr=np.arange(0 if actions else n + 1, dtype=np.uint32),
        successor_ptr=k * np.arange(0 if successors else m + 1, dtype=np.uint32),
        successors=np.zeros(m * k, model.successor_dtype),
        probabilities=np.full(m * k, 1 / (k or 1), model.probability_dtype),
        rewards=np.zeros(m, model.probability_dtype),
        durations=np.ones(0 if model.duration_dtype is None else m),
        terminal_rewards=np.zeros(0),
        initial_values=np.zeros(0),
        halo=np.empty(0, np.int64),
        boundary=np.zeros(n, np.bool_),
    )
    shape = None if model.block_shapes is None else np.ones((1, model.block_shapes.shape[1]), np.int32)
    if shape is not None:
        shape[0, -1] = n
    small = replace(
        model,
        n_states=n,
        largest_halo=0,
        contraction=replace(model.contraction, row_sum=np.ones(1)),
        block_shapes=shape,
        partition_ptr=np.array([0, n]),
        row_widths=np.array([k]),
    )
    return small, table
