"""Small models whose tables have the types and shapes of another's, on which compiled loops are called before a solve.

So the plan of its memory counts the loops (some 60 MB, and 100 to 200 more where they are compiled first), and its
clock does not. Loops are compiled for the numbers of actions and successors of a partition
(`ooc_mdp.backends.cpu.table`), so there is a small model for each kind of partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ooc_mdp.backends.cpu.table import MAX_UNROLLED, MIN_COMPILED_FOR, uniform_width
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.partition import PartitionTable

__all__ = ["small_models"]


def small_models(facts: ModelFacts) -> Iterator[tuple[ModelFacts, PartitionTable]]:
    """For each kind of partition that the model has: facts of a model of one partition, and its table."""
    large = np.diff(facts.partition_ptr) >= MIN_COMPILED_FOR
    uniform = uniform_width(
        facts.partition_rows,
        facts.partition_transitions,
        facts.row_widths,
        facts.successor_dtype.itemsize + facts.probability_dtype.itemsize,
    )
    widths = np.where(large, facts.successors_per_action or uniform, facts.longest_row)
    widths[widths > MAX_UNROLLED] = 0
    states = np.where(large, MIN_COMPILED_FOR, MIN_COMPILED_FOR - 1)
    for n, width in np.unique(np.stack([states, widths], axis=1), axis=0).tolist():
        yield _facts(facts, n), _table(facts, n, width)


def _facts(facts: ModelFacts, n: int) -> ModelFacts:
    """Of a model of one partition of n states, whose rows are as long as the other's, as far as loops depend on it."""
    shape = None if facts.block_shapes is None else np.ones((1, facts.block_shapes.shape[1]), np.int32)
    if shape is not None:
        shape[0, -1] = n
    alike = np.ptp(facts.row_widths) == 0
    return replace(
        facts,
        n_states=n,
        partition_halo=np.zeros(1, np.int64),
        contraction=replace(facts.contraction, row_sum=np.ones(1)),
        block_shapes=shape,
        partition_ptr=np.array([0, n]),
        row_widths=np.array([min(facts.longest_row, MAX_UNROLLED + 1) if alike else MAX_UNROLLED + 1]),
    )


def _table(facts: ModelFacts, n: int, width: int) -> PartitionTable:
    """The table of that partition; `width` is the number of successors of each row, 0 where they differ."""
    actions, longest = facts.actions_per_state, min(facts.longest_row, MAX_UNROLLED + 1)
    m = n * (actions or 1)
    if width:
        counts = np.full(m, width)
    else:  # too many successors to be made alike; or there is no row
        counts = np.array([longest, *[1] * (m - 1)] if longest > 1 else [], np.int64)
        m = counts.size
    uniform = width if facts.successors_per_action else 0
    return PartitionTable(
        index=0,
        first_state=0,
        n_states=n,
        actions_per_state=actions,
        successors_per_action=uniform,
        action_ptr=np.minimum(np.arange(0 if actions else n + 1, dtype=np.uint32), m),
        successor_ptr=np.concatenate([[0], np.cumsum(counts)])[: 0 if uniform else None].astype(np.uint32),
        successors=np.zeros(counts.sum(), facts.successor_dtype),
        probabilities=np.repeat(1 / counts, counts).astype(facts.probability_dtype),
        rewards=np.zeros(m, facts.probability_dtype),
        durations=np.ones(0 if facts.duration_dtype is None else m),
        terminal_rewards=np.zeros(0),
        initial_values=np.zeros(0),
        halo=np.empty(0, np.int64),
        boundary=np.zeros(n, np.bool_),
    )
