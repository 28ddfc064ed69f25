"""Totals and exits of a policy, whether its rows are in memory or streamed, are those of a dense solve."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import Action, Model, State

from ooc_mdp.undiscounted.end_components import ZeroRewardComponents
from ooc_mdp.undiscounted.kernels.end_components import NO_COMPONENT
from ooc_mdp.undiscounted.policy_evaluation import Exits, PolicyRowCollector, evaluate, rows_bytes
from ooc_mdp.undiscounted.tables import Streamed, finish


def walks(seed: int, n: int, ending: float) -> Model:
    """Random steps nearby, a small chance to end; some states have no action, some rows end for certain."""
    rng = np.random.default_rng(seed)

    def action(s: int) -> Action:
        near = np.unique(np.clip(s + rng.integers(-5, 6, 4), 0, n - 1))
        weights = rng.integers(1, 5, near.size).astype(float)
        successors = dict(zip(near.tolist(), ((1 - ending) * weights / weights.sum()).tolist(), strict=True))
        successors[0] = successors.get(0, 0.0) + ending
        return Action(float(rng.integers(-8, 8)), successors, math.inf if rng.random() < 0.02 else 1.0)

    states = [State(tuple(action(s) for _ in range(3))) for s in range(n)]
    states[0] = State((), 3.0)
    return Model(tuple(states), durations=True)


def dense(model: Model, policy: np.ndarray) -> np.ndarray:
    """float64 [n, 2]; steps that stay in their state are no exits."""
    n = len(model.states)
    matrix, right = np.eye(n), np.zeros((n, 2))
    for s, a in enumerate(policy):
        if a < 0:
            right[s, 0] = model.states[s].terminal_reward
            continue
        own = model.states[s].actions[a]
        stay = own.successors.get(s, 0.0) if own.duration != math.inf else 0.0
        right[s] = own.reward / (1 - stay), 1.0
        if own.duration != math.inf:
            for t, p in own.successors.items():
                matrix[s, t] -= p / (1 - stay) if t != s else 0.0
    return np.linalg.solve(matrix, right)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("ending", [0.1, 1e-3])
def test_an_evaluation_is_a_dense_solve_in_memory_and_streamed(tmp_path: Path, sign: float, ending: float) -> None:
    n = 120
    model = walks(1, n, ending)
    store = make_store(Case(model, "max", "float64", 7), tmp_path / "m.store")
    policy = np.random.default_rng(2).integers(0, 3, n).astype(np.int32)
    policy[0] = -1
    none = np.empty(0, np.int64)
    by = Exits(ZeroRewardComponents.of(np.full(n, NO_COMPONENT, np.uint32)), none, policy, np.zeros(policy.size))
    expected = dense(model, policy) * [sign, 1.0]
    with Streamed(store, int(store.facts.partition_bytes.max()), 1) as tables:
        room, too_little = PolicyRowCollector(rows_bytes(store)), PolicyRowCollector(1000)
        for p, rows, _ in tables.in_order(np.ones(store.n_partitions, np.bool_)):
            room.take(p, rows, policy)
            too_little.take(p, rows, policy)
        kept = room.rows()
        assert kept is not None
        assert sum(a.nbytes for t in kept.tables for a in t[4:]) <= rows_bytes(store)
        assert too_little.rows() is None
        for way in (tables, kept):
            start = np.zeros((n, 2))
            found = finish(evaluate(way, store.n_partitions, by, sign, start, np.array([1e-10, 1e-10]), 200))
            assert found.ends
            size = np.abs(expected[:, 0]).max()
            assert found.residual <= 1e-5 * found.residual_before
            np.testing.assert_allclose(found.totals, expected[:, 0], atol=1e-2 * size)
            again = np.stack([found.totals, found.expected_exits], axis=1)
            found = finish(evaluate(way, store.n_partitions, by, sign, again, np.array([1e-10, 1e-10]), 200))
            np.testing.assert_allclose(found.totals, expected[:, 0], rtol=1e-6, atol=1e-5 * size)
            np.testing.assert_allclose(found.expected_exits, expected[:, 1], rtol=1e-7, atol=1e-6)


def test_a_policy_that_never_ends_is_known_by_its_exits(tmp_path: Path) -> None:
    ring = Model((*(State((Action(-1.0, {(s + 1) % 9: 1.0}), Action(-5.0, {9: 1.0}))) for s in range(9)), State(())))
    store = make_store(Case(ring, "max", "float64", 3), tmp_path / "m.store")
    none = np.empty(0, np.int64)
    for choice, ends in ((0, False), (1, True)):
        policy = np.array([choice] * 9 + [-1], np.int32)
        by = Exits(ZeroRewardComponents.of(np.full(10, NO_COMPONENT, np.uint32)), none, policy, np.zeros(policy.size))
        with Streamed(store, int(store.facts.partition_bytes.max()), 1) as tables:
            found = finish(evaluate(tables, 3, by, 1.0, np.zeros((10, 2)), np.array([1e-9, 1e-9]), 50))
        assert found.ends == ends


def test_totals_whose_squares_overflow_are_no_cause_for_warnings(tmp_path: Path) -> None:
    waiting = [State((Action(-1.0, {s: 1.0, (s + 1) % 4: 1e-200, 4: 1e-200}),)) for s in range(4)]
    store = make_store(Case(Model((*waiting, State(()))), "max", "float64", 2), tmp_path / "m.store")
    none = np.empty(0, np.int64)
    policy = np.array([0, 0, 0, 0, -1], np.int32)
    by = Exits(ZeroRewardComponents.of(np.full(5, NO_COMPONENT, np.uint32)), none, policy, np.zeros(policy.size))
    with Streamed(store, int(store.facts.partition_bytes.max()), 1) as tables:
        found = finish(evaluate(tables, 2, by, 1.0, np.zeros((5, 2)), np.array([1e-9, 1e-9]), 50))
    assert not found.ends
