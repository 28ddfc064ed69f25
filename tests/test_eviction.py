"""Who makes way under eviction by priority: clean partitions before dirty ones, and the lowest priority of those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.partition import Coupling
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.priority import H1, H2
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.eviction import eviction_rank


def _target(residuals: list[float], wanted: float) -> Target:
    """Five partitions or so that read themselves only, with these bounds."""
    n = len(residuals)
    coupling = Coupling(np.arange(n + 1), np.arange(n), np.ones(n))
    ones = np.ones(n)
    reward_range = np.array([np.zeros(n), residuals]).T
    successors = np.ones(n, np.int64)
    bounds = ResidualBounds(coupling, Contraction.of(0.5, ones, ones, successors), reward_range, successors)
    bounds.from_zero_values(reward_range)
    return Target(SolveOptions(0.5, residual=wanted), bounds, 1.0)


def test_clean_partitions_are_equal_and_go_before_dirty_ones_of_lower_priority_first() -> None:
    target = _target([0.5, 0.01, 3.0, 0.02, 1.0], wanted=0.1)
    levels = target.levels()
    assert (levels[[0, 2, 4]] > 0.1).all()
    assert (levels[[1, 3]] < 0.1).all()
    ranks = eviction_rank(target, H1())(np.array([4, 3, 2, 1, 0]))
    assert ranks[1] == ranks[3] < ranks[4] < ranks[0] < ranks[2]


def test_a_dirty_partition_into_which_nothing_flows_goes_after_clean_ones() -> None:
    h2 = H2(np.array([5.0, 0.0]))
    h2.visited(1)
    clean, dirty = eviction_rank(_target([0.01, 1.0], wanted=0.1), h2)(np.array([0, 1]))
    assert clean < dirty


def test_a_solve_says_how_it_evicted(tmp_path: Path) -> None:
    store = make_store(Case(random_model(1, 60, terminal=0, uniform=True), partitions=10), tmp_path / "s")
    cache = 3 * int(store.partition_bytes.max())
    solution = ooc_mdp.solve(store, 0.9, cache=cache, device="cpu", eviction="priority")
    assert solution.method == "p-eva joint, lowest evicted"
    assert solution.outcome.proved
