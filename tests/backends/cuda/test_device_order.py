"""States and tiles in device order: what comes out of the tiled engine is, in store order, what it is without."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from plain_rows import evaluated
from tiled_engine import STORES, TILE_STATES, Engine, MakeDevice, Reordered, emulated, layout_of, wander

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.policy.evaluation import EvaluationOptions
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.state_lists import StateLists
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store


def assert_equal_values(first: Engine, second: Engine) -> None:
    np.testing.assert_array_equal(first.backend.values(), second.backend.values())
    np.testing.assert_array_equal(first.backend.policy(), second.backend.policy())


@pytest.mark.parametrize("name", STORES)
def test_values_policy_and_reports_are_those_of_store_order(
    name: str, stores: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, where every tile is due: without windows, of which tiles' numbers decide which are looked at."""
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._WINDOW_ROUNDS", ())
    store = stores(name)
    usual = Engine(store, 0.9, emulated())
    reordered = Engine(store, 0.9, emulated(), backend=Reordered)
    assert reordered.backend.division(reordered.model).reordered
    everything = list(range(store.n_partitions))
    for limits in (SweepLimits(-1.0, 1, -1.0), SweepLimits(-1.0, 3, -1.0)):
        reports = []
        for engine in (usual, reordered):
            for p in everything:
                if p not in engine.residents:
                    engine.load(p)
                engine.sweep(p, limits)
            reports.append(engine.sweep_together(everything[::-1], limits))
        assert_equal_values(usual, reordered)
        for field in ("backups", "boundary_rise", "boundary_fall", "largest_value", "smallest_value"):
            np.testing.assert_array_equal(getattr(reports[0], field), getattr(reports[1], field))
        for p in everything:
            assert usual.measure(p, 0.1) == reordered.measure(p, 0.1)


@pytest.mark.parametrize("name", ["car", "double pendulum", "random", "ragged"])
def test_bounds_stay_above_the_true_residuals_in_device_order(
    name: str, stores: Callable[[str], Store], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._ROUNDS", 2)
    wander(Engine(stores(name), 0.9, device(), slots=4, backend=Reordered), seed=len(name), steps=30)


@pytest.mark.parametrize("solves", [False, True], ids=["sweeps", "solver"])
@pytest.mark.parametrize("name", ["car", "double pendulum", "random", "ragged"])
def test_an_evaluated_policy_has_the_values_of_store_order(
    name: str, solves: bool, stores: Callable[[str], Store]
) -> None:
    store, exact, values = stores(name), [], []
    everything = list(range(store.n_partitions))
    for backend in (TiledBackend, Reordered):
        engine = Engine(store, 0.9, emulated(), backend=backend)
        engine.load(*everything)
        engine.backend.open_rows(store.facts.coupling)
        assert engine.backend._rows is not None
        engine.backend._rows.options = EvaluationOptions(mix_from=0 if solves else math.inf, patience=0)
        improved = engine.backend.improve([engine.residents[p] for p in everything], 0.0)
        exact.append((improved.measured, engine.backend.policy()))
        found = evaluated(engine.backend, 1e-6, 200)
        assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-6
        values.append(engine.backend.values())
        engine.backend.close_rows()
    for usual, reordered in zip(*exact, strict=True):
        np.testing.assert_array_equal(usual, reordered)
    # Rows are swept in the order in which they lie.
    np.testing.assert_allclose(*values, rtol=0, atol=1e-4)


def test_values_and_policy_that_a_solve_begins_with_keep_their_states(stores: Callable[[str], Store]) -> None:
    store, rng = stores("car"), np.random.default_rng(0)
    values, policy = rng.normal(size=store.n_states), rng.integers(0, 3, store.n_states).astype(np.int32)
    backend, model = Reordered(emulated(), TILE_STATES), ModelFacts.of(store.facts, 0.9)
    backend.start(model, layout_of(backend, model, 2), values, policy)
    np.testing.assert_array_equal(backend.values(), values)
    np.testing.assert_array_equal(backend.policy(), policy)
    own = slice(int(store.facts.partition_ptr[2]), int(store.facts.partition_ptr[3]))
    policy[own] = 2 - policy[own]
    backend.write_policy(2, policy[own])
    np.testing.assert_array_equal(backend.policy(), policy)
    part, actions = np.empty(50), np.empty(50, np.int32)
    backend.copy(30, part, actions)
    np.testing.assert_array_equal(part, values[30:80])
    np.testing.assert_array_equal(actions, policy[30:80])


@pytest.mark.parametrize("name", ["car", "ragged"])
def test_values_from_outside_reach_their_states_and_the_bounds_of_tiles(
    name: str, stores: Callable[[str], Store]
) -> None:
    store, rng = stores(name), np.random.default_rng(3)
    engine = Engine(store, 0.9, emulated(), backend=Reordered)
    engine.load(*range(1, store.n_partitions))
    for _ in range(4):
        engine.sweep_together(list(engine.residents), SweepLimits(0.0, 3, 1e-2))
        own = np.arange(engine.own(0).start, engine.own(0).stop)
        states = rng.choice(own, own.size // 2, replace=False)
        before, new = engine.backend.values(), rng.normal(size=states.size)
        engine.write((0, states, new))
        before[states] = new
        np.testing.assert_array_equal(engine.backend.values(), before)
        np.testing.assert_array_equal(engine.backend.read(states), new)
        lists = StateLists(np.array([0]), np.array([0, states.size]), states)
        np.testing.assert_array_equal(engine.backend.gather(lists, np.array([0])), new)
        engine.assert_that_the_bounds_are_true()
