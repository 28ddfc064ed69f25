"""The tiled engine on a group of devices: what it reports is true, and what each device does is its own partitions'.

Groups are emulated, and do their work in any order that their streams allow; the same checks run on as many GPUs where
there are so many.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from emulated_device import EmulatedDevice, emulated_group
from emulated_order import Order
from tiled_engine import STORES, TILE_STATES, Engine, MakeGroup, emulated, on_group, wander

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store

ALL_DUE = SweepLimits(-1.0, 1, -1.0)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STORES)
def test_bounds_stay_above_the_true_residuals_on_a_group(
    name: str, count: int, stores: Callable[[str], Store], group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._ROUNDS", 2)
    devices = group(count, seed=len(name))
    engine = Engine(stores(name), 0.9, devices[0], slots=2, backend=on_group(devices))
    assert engine.layout.devices == min(count, engine.model.n_partitions)
    wander(engine, seed=len(name) + count, steps=25)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["car", "pendulum", "double pendulum", "gridworld"])
def test_values_and_policy_come_in_the_order_of_the_grid(
    name: str, count: int, stores: Callable[[str], Store], group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.exchange._PIECE", 8 * 13)
    store, devices, rng = stores(name), group(count), np.random.default_rng(5)
    grid, backend = store.facts.grid, TiledBackend(devices[0], TILE_STATES, devices[1:])
    assert grid is not None
    model = ModelFacts.of(store.facts, 0.9)
    values, policy = rng.normal(size=store.n_states), rng.integers(0, 3, store.n_states).astype(np.int32)
    backend.start(model, backend.layout(model, Needs()), values, policy)
    expected_values, expected_policy = np.empty_like(values), np.empty_like(policy)
    for p in range(store.n_partitions):
        own = slice(*store.facts.partition_ptr[p : p + 2].tolist())
        expected_values[grid.states(p)], expected_policy[grid.states(p)] = values[own], policy[own]
    np.testing.assert_array_equal(backend.values(grid), expected_values)
    np.testing.assert_array_equal(backend.policy(grid), expected_policy)
    np.testing.assert_array_equal(backend.values(), values)
    backend.close()


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["car", "random", "ragged"])
def test_partitions_swept_one_after_the_other_have_the_values_of_one_device(
    name: str, count: int, stores: Callable[[str], Store], group: MakeGroup
) -> None:
    # One tile in each partition: of several that run at once, one may see what another has just written, or not.
    store, alone, devices, tile = stores(name), group(1), group(count), 128
    engines = (
        Engine(store, 0.9, alone[0], tile_states=tile),
        Engine(store, 0.9, devices[0], tile_states=tile, backend=on_group(devices)),
    )
    for engine in engines:
        assert engine.backend._tiling.per_partition.max() == 1
        engine.load(*range(store.n_partitions))
        for p in range(store.n_partitions):
            engine.sweep(p, ALL_DUE)
    np.testing.assert_array_equal(*(engine.backend.values() for engine in engines))
    np.testing.assert_array_equal(*(engine.backend.policy() for engine in engines))
    for p in range(store.n_partitions):
        assert engines[0].measure(p, 0.1) == engines[1].measure(p, 0.1)


def test_reports_are_in_the_order_of_the_batch(stores: Callable[[str], Store], group: MakeGroup) -> None:
    store, devices = stores("car"), group(3)
    engine = Engine(store, 0.9, devices[0], backend=on_group(devices))
    engine.load(*range(store.n_partitions))
    for batch in ([4, 1, 5, 0], [2], [5, 3, 1, 0, 2, 4]):
        before = engine.backend.values()
        report = engine.sweep_together(batch, ALL_DUE)
        change = engine.backend.values() - before
        for i, p in enumerate(batch):
            own = engine.backend.values()[engine.own(p)]
            assert report.largest_value[i] == pytest.approx(own.max(), rel=1e-5)
            assert report.boundary_rise[i] == change[engine.own(p)][engine.tables[p].boundary].max(initial=0.0)
            assert report.backups[i] >= own.size


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["car", "double pendulum", "random"])
def test_a_batch_may_begin_before_the_one_before_it_is_reported(
    name: str, count: int, stores: Callable[[str], Store], group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._ROUNDS", 2)
    store, devices = stores(name), group(count, seed=count)
    engine = Engine(store, 0.9, devices[0], backend=on_group(devices))
    engine.load(*range(store.n_partitions))
    rng = np.random.default_rng(count)
    for _ in range(6):
        first, second = (rng.permutation(store.n_partitions)[: rng.integers(1, 4)].tolist() for _ in range(2))
        engine.sweep_in_turn([first, second], SweepLimits(0.0, 3, float(rng.choice([0.0, 1e-3]))))
        engine.assert_that_the_bounds_are_true()


@pytest.mark.parametrize("name", ["car", "random"])
def test_every_replica_of_accumulated_changes_is_the_same_after_a_batch(
    name: str, stores: Callable[[str], Store], group: MakeGroup
) -> None:
    store, devices = stores(name), group(3)
    engine = Engine(store, 0.9, devices[0], backend=on_group(devices))
    engine.load(*range(store.n_partitions))
    rng = np.random.default_rng(0)
    for _ in range(3):
        engine.sweep_together(list(range(store.n_partitions)), SweepLimits(0.0, 3, 1e-3))
        own = np.arange(engine.own(1).start, engine.own(1).stop)
        engine.write((1, own, rng.normal(size=own.size)))
        replicas = []
        for member, stream in zip(engine.backend._memory.members, engine.backend._streams, strict=True):
            found = np.empty(engine.backend._tiling.total)
            stream.download(found, member.at["accumulated"])
            stream.wait()
            replicas.append(found)
        assert replicas[0].max() > 0
        for other in replicas[1:]:
            np.testing.assert_array_equal(other, replicas[0])


@pytest.mark.parametrize("name", ["car", "double pendulum", "random"])
def test_what_each_device_allocates_is_at_most_what_was_planned(name: str, stores: Callable[[str], Store]) -> None:
    devices = emulated_group(3)
    engine = Engine(stores(name), 0.9, devices[0], slots=1, backend=on_group(devices))
    free = [device.memory_free() for device in devices]
    for p in range(engine.store.n_partitions):
        engine.load(p)
        engine.sweep(p, SweepLimits(0.0, 2))
        engine.evict(p)
    assert [device.memory_free() for device in devices] == free, "a solve allocates while it runs"
    assert all((1 << 26) - left <= sum(engine.layout.device.values()) for left in free)
    engine.backend.close()
    assert [device.memory_free() for device in devices] == [1 << 26] * 3


def test_the_device_with_least_memory_counts(stores: Callable[[str], Store]) -> None:
    model = ModelFacts.of(stores("car").facts, 0.9)
    order = Order(0)
    devices = EmulatedDevice(1 << 26, 0, order), EmulatedDevice(1 << 11, 1, order)
    backend = TiledBackend(devices[0], TILE_STATES, devices[1:])
    assert backend.free_bytes() == 1 << 11
    with pytest.raises(MemoryBudgetError, match=r"values, policy and tiles .* on emulated:0, emulated:1, which has"):
        backend.start(model, backend.layout(model, Needs()), None, None)
    backend.close()


def test_a_cache_is_of_each_device(stores: Callable[[str], Store]) -> None:
    model = ModelFacts.of(stores("car").facts, 0.9)
    devices = emulated_group(2)
    alone, together = TiledBackend(emulated(), TILE_STATES), TiledBackend(devices[0], TILE_STATES, devices[1:])
    whole = [backend.layout(model, Needs()) for backend in (alone, together)]
    assert [layout.batch_size for layout in whole] == [6, 6]
    assert whole[1].device["cache"] == whole[0].device["cache"] // 2
    assert whole[1].device["values"] < whole[0].device["values"]
    assert whole[1].places is not None
    assert np.bincount(whole[1].places).tolist() == [3, 3]
