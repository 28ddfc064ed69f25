"""A policy's values on its kept rows: relative values with one recurrent class, values of a discount with several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exact_gains import exact_policy_gains
from small_mdps import Case, make_store, rows_of
from store_models import Action, Model, State

from ooc_mdp import AverageReward
from ooc_mdp.average.backends import System
from ooc_mdp.average.engine import solve
from ooc_mdp.average.policy import KeptRows, Threads, evaluate, measure_policy
from ooc_mdp.backends.cpu.rows import table_rows
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.store import Store
from ooc_mdp.undiscounted.tables import finish


def kept_rows(store: Store, policy: np.ndarray) -> KeptRows:
    kept = KeptRows(store.facts.partition_ptr, 1 << 20)
    for p in range(store.n_partitions):
        kept.take(p, table_rows(store.read(p)[0]), policy)
    assert kept.complete
    return kept


def random_store(folder: Path, seed: int, n: int = 30) -> Store:
    """Every policy returns to state 0."""
    rng = np.random.default_rng(seed)

    def action() -> Action:
        chosen = [0, *(1 + rng.choice(n - 1, 3, replace=False)).tolist()]
        return Action(float(rng.normal()), dict(zip(chosen, rng.dirichlet(np.ones(4)).tolist(), strict=True)))

    return make_store(Case(Model(tuple(State((action(), action())) for _ in range(n))), partitions=5), folder / "s")


@pytest.fixture
def threads():
    own = Threads()
    yield own
    own.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_relative_values_make_x_the_exact_gain(tmp_path: Path, threads: Threads, seed: int, sign: float) -> None:
    store = random_store(tmp_path, seed)
    policy = np.random.default_rng(seed).integers(0, 2, store.n_states).astype(np.int32)
    kept, values, x = kept_rows(store, policy), np.zeros(store.n_states), np.empty(store.n_states)
    finish(evaluate(kept, threads, values, sign, System(0.0, 1e-13, 200)))
    low, high, _ = measure_policy(kept, threads, values, x, sign)
    gain = sign * float(exact_policy_gains(rows_of(store), policy)[0])
    assert high.max() - low.min() < 1e-11
    assert x == pytest.approx(np.full(store.n_states, gain), abs=1e-11)
    assert low.min() <= gain <= high.max()


def test_values_of_a_discount_solve_its_equation(tmp_path: Path, threads: Threads) -> None:
    model = Model(tuple(State((Action(float(r), {s: 1.0}),)) for s, r in enumerate((1, 3, 2))))
    store = make_store(Case(model, partitions=3), tmp_path / "s")
    kept, values = kept_rows(store, np.zeros(3, np.int32)), np.zeros(3)
    finish(evaluate(kept, threads, values, 1.0, System(2.0, 1e-12, 200, discount=0.99)))
    assert values == pytest.approx(np.array([-100.0, 100.0, 0.0]))


def test_rows_that_take_too_much_memory_are_dropped(tmp_path: Path) -> None:
    store = random_store(tmp_path, 1)
    kept = KeptRows(store.facts.partition_ptr, 1000)
    for p in range(store.n_partitions):
        kept.take(p, table_rows(store.read(p)[0]), np.zeros(store.n_states, np.int32))
    assert not kept.complete


def test_states_that_may_all_be_stayed_in_are_left_for_the_best_of_them(tmp_path: Path) -> None:
    """A ring: stay for a reward, or move without one. Most policies have many recurrent classes; the gain is one."""
    rng, n = np.random.default_rng(0), 24

    def state(s: int) -> State:
        moves = (Action(0.0, {(s + d) % n: 1.0}) for d in (-1, 1))
        return State((Action(float(rng.random()), {s: 1.0}), *moves))

    model = Model(tuple(state(s) for s in range(n)))
    best = max(s.actions[0].reward for s in model.states)
    store = make_store(Case(model, partitions=6), tmp_path / "s")
    solution = solve(store, SolveOptions(AverageReward(), epsilon=1e-4, cache=CacheSize(share=0.3)))
    assert solution.outcome is Outcome.PROVED
    assert solution.certificate.lower <= best <= solution.certificate.upper
    assert solution.statistics.loads_per_partition < 40
