"""Successors get local numbers: own states first, then the halo in ascending order, however far it reaches."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_mdp.io.conversion.partition_builder import local_successors


@pytest.mark.parametrize("span", [0, 40, 10**6, 10**15])
def test_successors_of_other_partitions_are_numbered_behind_own_states(span: int):
    rng = np.random.default_rng(span % 97)
    ptr = np.array([0, 1000, 1020, 2000 + span])
    others = np.concatenate(
        [rng.integers(1000 - max(1, min(span, 1000)), 1000, 30), rng.integers(1020, 1021 + span, 30)]
    )
    successors = rng.permutation(np.concatenate([rng.integers(1000, 1020, 100), others]))
    if span == 0:
        successors = successors[(successors >= 1000) & (successors < 1020)]
    local, halo = local_successors(successors, 1, ptr)
    outside = (successors < 1000) | (successors >= 1020)
    assert halo.tolist() == sorted(set(successors[outside].tolist()))
    numbers = np.concatenate([np.arange(1000, 1020), halo])
    assert numbers[local].tolist() == successors.tolist()
    assert local.dtype == np.uint8


def test_a_partition_without_transitions_has_no_halo():
    local, halo = local_successors(np.empty(0, np.int64), 0, np.array([0, 3]))
    assert (local.size, halo.size) == (0, 0)
