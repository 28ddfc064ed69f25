"""Facts of models that have no table, for tests of one part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import Coupling

__all__ = ["facts_with"]


def facts_with(
    partition_ptr: Sequence[int], discount: float = 0.9, row_sums: FloatArray | None = None, **given: Any
) -> ModelFacts:
    """Facts of partitions that own some states, where nothing is coupled; what is not given is plain or empty."""
    ptr = np.array(partition_ptr, np.int64)
    p = ptr.size - 1
    sums, ones = np.ones(p) if row_sums is None else row_sums, np.ones(p)
    facts: dict[str, Any] = {
        "name": "made up",
        "n_states": int(ptr[-1]),
        "partition_ptr": ptr,
        "partition_rows": np.diff(ptr),
        "partition_transitions": np.diff(ptr),
        "partition_bytes": np.zeros(p, np.int64),
        "partition_halo": np.zeros(p, np.int64),
        "discount": discount,
        "sign": 1.0,
        "reward_range": np.zeros((p, 2)),
        "contraction": Contraction(discount * ones, sums, 1 / (1 - discount * sums), np.inf * ones, ones),
        "coupling": Coupling(np.arange(p + 1), np.arange(p), ones),
        "min_weights": np.zeros(p),
        "row_widths": np.zeros(p, np.int64),
        "block_shapes": None,
        "partition_grid": None,
        "actions_per_state": 0,
        "successors_per_action": 0,
        "dyadic_probabilities": False,
        "probability_dtype": np.dtype(np.float64),
        "successor_dtype": np.dtype(np.uint16),
        "duration_dtype": None,
        "stored_fields": (),
        "frame_buffer_bytes": 0,
    }
    return ModelFacts(**facts | given)
