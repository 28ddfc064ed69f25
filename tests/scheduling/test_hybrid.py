"""H2 between meta-partitions, H1 within them (Wingate 2004, section 11.1): the order of visits, and the groups."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accounting import settle
from hypothesis import given
from hypothesis import strategies as st
from small_mdps import Case, make_store, rows_of
from store_models import random_model

import ooc_mdp
from ooc_mdp.backends.base import VisitReport
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.options import SolveOptions
from ooc_mdp.reference import policy_iteration
from ooc_mdp.scheduling.meta_partitions import meta_partitions
from ooc_mdp.scheduling.priority import Hybrid, SchedulerView, make_priority
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target

THRESHOLD = 1e-3


def rule(
    members: IntArray, worked_on: Collection[int], dirty: Collection[int], h1: FloatArray, h2: FloatArray
) -> list[int]:
    """Dirty partitions in the order in which they are taken up, as the docstring of `Hybrid` states it."""
    order: list[int] = []
    largest = {m: max(h2[p] for p in dirty if members[p] == m) for m in {members[p] for p in dirty}}
    while len(largest) > 0:
        converging = [m for m in largest if m in worked_on] or list(largest)
        chosen = min(converging, key=lambda m: (-largest[m], m))
        order += sorted((p for p in dirty if members[p] == chosen), key=lambda p: (-h1[p], p))
        del largest[chosen]
    return order


def hybrid_of(members: list[int]) -> tuple[Hybrid, ResidualBounds, Target]:
    """Partitions that read nothing but themselves; discount 0.5, and none of them dirty."""
    n = len(members)
    ones = np.ones(n)
    bounds = ResidualBounds(
        Coupling(np.arange(n + 1), np.arange(n), ones),
        Contraction.of(0.5, ones, ones, np.full(n, 2)),
        np.zeros((n, 2)),
        np.full(n, 2),
    )
    bounds.settle(np.arange(n), np.zeros((4, n)))
    target = Target(SolveOptions(0.5, residual=THRESHOLD), bounds, 0.0)
    return Hybrid(np.array(members), np.zeros(n), 0.5, bounds, target), bounds, target


def visit_to(partitions: list[int]) -> tuple[IntArray, VisitReport]:
    """A visit that changes nothing."""
    zeros = np.zeros(len(partitions))
    whole = zeros.astype(np.int64)
    return np.array(partitions, np.int64), VisitReport(whole, whole, zeros, zeros, zeros, zeros, zeros)


def order_of(hybrid: Hybrid, target: Target) -> list[int]:
    """Dirty partitions by their rank, as `SolveState.by_priority` sorts them."""
    dirty = np.flatnonzero(target.dirty())
    return [int(p) for p in dirty[np.argsort(-hybrid.rank(target.bounds())[dirty], kind="stable")]]


@given(data=st.data())
def test_the_order_is_that_of_the_rule(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    members = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    few = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=n, max_size=n)
    hybrid, bounds, target = hybrid_of(members)
    visited = data.draw(st.lists(st.integers(0, n - 1), max_size=2, unique=True))
    hybrid.after_visit(*visit_to(visited))
    for p, (residual, value) in enumerate(zip(data.draw(few), data.draw(few), strict=True)):
        settle(bounds, p, residual, 0.0, residual, 0.0)
        hybrid.set_exact(p, value)
    dirty = np.flatnonzero(target.dirty()).tolist()
    worked_on = {members[p] for p in visited}
    assert order_of(hybrid, target) == rule(np.array(members), worked_on, dirty, target.bounds(), hybrid.value)
    clean = np.setdiff1d(np.arange(n), dirty)
    assert not hybrid.rank(target.bounds())[clean].any()


def test_a_meta_partition_is_worked_on_until_it_has_converged() -> None:
    hybrid, bounds, target = hybrid_of([0, 0, 1, 1])
    for p, (residual, value) in enumerate([(1.0, 3.0), (2.0, 1.0), (9.0, 2.0), (8.0, 2.0)]):
        settle(bounds, p, residual, 0.0, residual, 0.0)
        hybrid.set_exact(p, value)
    assert order_of(hybrid, target) == [1, 0, 2, 3], "the first has the largest value, and 1 its largest residual"
    hybrid.after_visit(*visit_to([1]))
    settle(bounds, 1, 0.0, 0.0, 0.0, 0.0)
    hybrid.set_exact(0, -1.0)
    assert order_of(hybrid, target) == [0, 2, 3], "although the second has larger values now"
    hybrid.after_visit(*visit_to([0]))
    settle(bounds, 0, 0.0, 0.0, 0.0, 0.0)
    assert order_of(hybrid, target) == [2, 3]
    settle(bounds, 0, 1.0, 0.0, 1.0, 0.0)
    hybrid.set_exact(0, 5.0)
    assert order_of(hybrid, target) == [0, 2, 3], "nothing is worked on, and the first has the largest value"
    hybrid.after_visit(*visit_to([2]))
    assert order_of(hybrid, target) == [2, 3, 0]


@given(data=st.data())
def test_one_meta_partition_is_h1_and_one_for_each_partition_is_h2(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    values = np.array(data.draw(st.lists(st.sampled_from([-1.0, 0.0, 2.0, 3.0]), min_size=n, max_size=n)))
    residuals = data.draw(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=n, max_size=n))
    for members, expected in (([0] * n, np.array(residuals)), (list(range(n)), values)):
        hybrid, bounds, target = hybrid_of(members)
        for p in range(n):
            settle(bounds, p, residuals[p], 0.0, residuals[p], 0.0)
            hybrid.set_exact(p, values[p])
        assert order_of(hybrid, target) == np.argsort(-expected, kind="stable").tolist()


def test_meta_partitions_are_boxes_of_the_grid_of_partitions() -> None:
    found = meta_partitions(20, (5, 4)).reshape(5, 4)
    assert found.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    assert np.bincount(meta_partitions(900, (30, 30))).tolist() == [36] * 25
    assert np.bincount(meta_partitions(16, (2, 2, 2, 2))).tolist() == [16], "two partitions of an axis stay together"
    assert meta_partitions(1, (1, 1)).tolist() == [0]


def test_meta_partitions_are_runs_of_partitions_where_there_is_no_grid() -> None:
    assert meta_partitions(10, None).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert meta_partitions(1, None).tolist() == [0]


@pytest.mark.parametrize(("blocks", "grid"), [({"partition_grid": (4, 6)}, (4, 6)), ({"partitioner": "ranges"}, None)])
def test_a_solve_forms_them_from_the_grid_of_its_store(tmp_path: Path, blocks: Any, grid: Any) -> None:
    store = ooc_mdp.generate("GW-24x4", tmp_path / "s", {"seed": 1}, **blocks)
    facts = ModelFacts.of(store.facts, 0.5)
    assert facts.partition_grid == grid
    bounds = ResidualBounds.of_model(facts)
    options = SolveOptions(0.5, priority="hybrid", residual=THRESHOLD)
    n = facts.n_partitions
    view = SchedulerView(np.zeros(n, np.bool_), np.zeros(n, np.bool_), lambda: THRESHOLD)
    made = make_priority(options, facts, bounds, Target(options, bounds, 1.0), view)
    assert isinstance(made, Hybrid)
    assert made.arrays()["inflow"].tolist() == facts.reward_range[:, 1].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_each_visit_of_exact_p_eva_is_the_one_that_the_rule_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    store = make_store(Case(random_model(seed, 60), partitions=12), tmp_path / "s")
    members = meta_partitions(12, None)
    visits: list[int] = []
    named: list[int] = []
    rank, after_visit = Hybrid.rank, Hybrid.after_visit

    def expect(self: Hybrid, residual: FloatArray, resident: None = None) -> FloatArray:
        dirty = np.flatnonzero(self._target.dirty()).tolist()
        named.append(rule(members, {members[p] for p in visits[-1:]}, dirty, residual, self.value)[0])
        return rank(self, residual, resident)

    def note(self: Hybrid, partitions: IntArray, report: VisitReport) -> None:
        visits.extend(partitions.tolist())
        after_visit(self, partitions, report)

    monkeypatch.setattr(Hybrid, "rank", expect)
    monkeypatch.setattr(Hybrid, "after_visit", note)
    solution = ooc_mdp.solve(store, 0.7, epsilon=1e-2, priority="exact-hybrid", cache="40%", device="cpu")
    assert solution.outcome.proved
    assert visits == named
    assert len(visits) > 12
    best = policy_iteration(rows_of(store), 0.7, store.sense).values
    assert np.abs(solution.values - best).max() <= solution.error_bound


def test_exact_priorities_may_be_those_of_the_hybrid() -> None:
    assert SolveOptions(0.9, priority="exact-hybrid").effective_priority == "hybrid"
    assert SolveOptions(0.9, priority="exact-hybrid").exact_priorities
    assert not SolveOptions(0.9, priority="hybrid").exact_priorities
