"""Stages per load: every order that a schedule gives is one in which two value vectors are enough."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_mdp.finite_horizon.schedule import Schedule, plan_schedule
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import Coupling


def coupled(reads: list[set[int]]) -> Coupling:
    """Partitions that read these others, and themselves."""
    rows = [sorted({p, *read}) for p, read in enumerate(reads)]
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    partitions = np.concatenate(rows).astype(np.int64)
    return Coupling(ptr, partitions, np.ones(partitions.size))


def grid(height: int, width: int) -> Coupling:
    """Blocks of a grid that read the eight around them."""
    return coupled(
        [
            {
                r * width + c
                for r in range(max(0, i - 1), min(height, i + 2))
                for c in range(max(0, j - 1), min(width, j + 2))
            }
            for i in range(height)
            for j in range(width)
        ]
    )


def random_coupling(rng: np.random.Generator) -> Coupling:
    n = int(rng.integers(1, 12))
    return coupled([set(rng.choice(n, int(rng.integers(0, min(n, 4) + 1)), replace=False).tolist()) for _ in range(n)])


def run(schedule: Schedule, coupling: Coupling, done: IntArray, stages: int, most: int = 1 << 30) -> int:
    """Take the steps, checking each; how many there were."""
    n = done.size
    neighbours = [set[int]() for _ in range(n)]
    for p in range(n):
        for q in coupling.partitions[coupling.ptr[p] : coupling.ptr[p + 1]].tolist():
            neighbours[p].add(q)
            neighbours[q].add(p)
    taken = 0
    for _, steps in schedule.passes(done, stages):
        for step in steps:
            if taken == most:
                return taken
            assert done[step.partition] == step.done
            near = done[sorted(neighbours[step.partition])]
            assert near.min() >= step.done, "a value of the stage after is missing, or would be overwritten while read"
            assert near.max() <= step.done + 1, "a value of the stage after has been overwritten"
            done[step.partition] += 1
            taken += 1
    return taken


@pytest.mark.parametrize("seed", range(60))
def test_no_neighbour_is_behind_whatever_is_coupled_and_cached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    coupling, stages = random_coupling(rng), int(rng.integers(1, 8))
    n = coupling.ptr.size - 1
    schedule = plan_schedule(coupling, rng.integers(1, 9, n), int(rng.integers(9, 60)), 1, stages)
    done = np.zeros(n, np.int64)
    assert run(schedule, coupling, done, stages) == n * stages
    assert (done == stages).all()


@pytest.mark.parametrize("seed", range(40))
def test_a_solve_that_stopped_anywhere_goes_on_by_any_other_schedule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    coupling, stages = random_coupling(rng), int(rng.integers(1, 8))
    n = coupling.ptr.size - 1
    done, taken = np.zeros(n, np.int64), 0
    while done.min() < stages:
        schedule = plan_schedule(coupling, rng.integers(1, 9, n), int(rng.integers(9, 60)), 1, stages)
        taken += run(schedule, coupling, done, stages, most=int(rng.integers(1, 3 * n + 1)))
    assert taken == n * stages


def test_a_pass_takes_as_many_stages_as_the_cache_has_windows() -> None:
    coupling, sizes = grid(16, 16), np.ones(256, np.int64)
    assert plan_schedule(coupling, sizes, 256, 2, 200).bandwidth == 17
    assert plan_schedule(coupling, sizes, 19, 2, 200).stages == 1
    assert plan_schedule(coupling, sizes, 20, 2, 200).stages == 2
    assert plan_schedule(coupling, sizes, 56, 2, 200).stages == 4
    assert plan_schedule(coupling, sizes, 256, 2, 200).stages == 200


def test_an_order_is_found_in_which_scattered_neighbours_are_near() -> None:
    order = np.random.default_rng(1).permutation(40)
    reads = [set[int]() for _ in range(40)]
    for before, after in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        reads[after].add(before)
    schedule = plan_schedule(coupled(reads), np.ones(40, np.int64), 5, 1, 10)
    assert (schedule.bandwidth, schedule.stages) == (1, 4)
