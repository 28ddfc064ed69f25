"""The tiled engine: what it reports is true of the values it has, and what solves by it claim holds.

Without a GPU it runs on the emulator of CUDA; the same checks run on a device where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from small_mdps import Case, make_store, rows_of
from store_models import Action, Model, State
from tiled_engine import LAYOUTS, STORES, Engine, LittleRoom, ShuffledDevice, emulated, make

from ooc_mdp.kernels.base import SweepLimits
from ooc_mdp.kernels.device import CudaDevice, Device
from ooc_mdp.kernels.tile_layout import Tiling
from ooc_mdp.reference import backup
from ooc_mdp.store import Store

MakeDevice = Callable[[], Device]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """Stores by name, made when they are first asked for."""
    made: dict[str, Store] = {}

    def get(name: str) -> Store:
        if name not in made:
            made[name] = make(name, tmp_path_factory.mktemp("stores") / "s")
        return made[name]

    return get


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> MakeDevice:
    return emulated if request.param == "emulated" else lambda: CudaDevice(0)


# ----------------------------------------------------------------------------------------------- what it reports


def wander(engine: Engine, seed: int, steps: int) -> None:
    """Loads, evictions, batches of some residents, visits and measurements in any order; bounds hold after each."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        here = list(engine.residents)
        absent = [p for p in range(engine.store.n_partitions) if p not in engine.residents]
        what = rng.choice(["load", "load", "evict", "together", "together", "together", "alone", "measure"])
        limits = SweepLimits(0.0, int(rng.integers(1, 6)), float(rng.choice([0.0, 1e-3, 0.1])), bool(rng.integers(2)))
        if what == "load" and absent and len(here) < engine.slots:
            engine.load(int(rng.choice(absent)))
        elif what == "evict" and here:
            engine.evict(int(rng.choice(here)))
        elif what == "together" and here:
            some = rng.choice(here, int(rng.integers(1, len(here) + 1)), replace=False)
            before = engine.backend.values()
            reports = engine.sweep_together(some.tolist(), limits)
            after = engine.backend.values()
            for p, report in zip(some.tolist(), reports, strict=True):
                own = after[engine.own(p)]
                assert (report.smallest_value, report.largest_value) == (own.min(), own.max())
                boundary = engine.tables[p].boundary
                change = (own - before[engine.own(p)])[boundary]
                if isinstance(engine.backend, LittleRoom):
                    assert report.boundary_up >= change.max(initial=0.0)
                    assert report.boundary_down >= -change.min(initial=0.0)
                    assert not change.any() or report.boundary_value >= own[boundary][change != 0].max()
                else:
                    assert report.boundary_up == change.max(initial=0.0)
                    assert report.boundary_down == -change.min(initial=0.0)
                    assert report.boundary_value == own[boundary][change != 0].max(initial=-np.inf)
        elif what == "alone" and here:
            engine.sweep(int(rng.choice(here)), limits)
        elif what == "measure" and here:
            engine.measure(int(rng.choice(here)), 0.0)
        else:
            continue
        engine.assert_that_the_bounds_are_true()


@pytest.mark.parametrize("name", STORES)
def test_bounds_stay_above_the_true_residuals_whatever_is_loaded_and_swept(
    name: str, stores: Callable[[str], Store], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.kernels.tiled._ROUNDS", 2)  # few, so that batches end before all is quiet
    wander(Engine(stores(name), 0.9, device(), slots=4), seed=len(name), steps=60)


@pytest.mark.parametrize("name", ["car", "ragged"])
def test_without_room_for_boundary_values_their_changes_are_bounded_by_their_tiles(
    name: str, stores: Callable[[str], Store], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.kernels.tiled._ROUNDS", 2)
    wander(Engine(stores(name), 0.9, device(), slots=4, backend=LittleRoom), seed=1, steps=40)


@pytest.mark.parametrize("name", ["car", "random"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bounds_hold_in_whatever_order_blocks_and_threads_run(
    name: str, stores: Callable[[str], Store], seed: int
) -> None:
    wander(Engine(stores(name), 0.9, ShuffledDevice(seed), slots=4), seed=seed, steps=25)


def test_a_tile_lists_every_tile_that_it_reads_or_stands_for_all(tmp_path: Path, device: MakeDevice) -> None:
    """Tiles of one state, of which many read just one more than a list has room for."""
    rng = np.random.default_rng(0)
    n = 150

    def state() -> State:
        chosen = rng.choice(n, int(rng.integers(31, 36)), replace=False)
        return State((Action(1.0, {int(s): 1 / chosen.size for s in chosen}),))

    store = make_store(Case(Model(tuple(state() for _ in range(n))), partitions=3), tmp_path / "s")
    engine = Engine(store, 0.9, device(), tile_states=1)
    engine.load(0, 1, 2)
    engine.sweep_together([0, 1, 2], SweepLimits(0.0, 1, 1e-9))
    room = Tiling.of(engine.model, 1).most_inputs
    for table in engine.tables:
        states = np.concatenate([table.first_state + np.arange(table.n_states), table.halo])
        for s, listed in enumerate(engine.inputs(table.index)):
            reads = states[table.successors[table.successor_ptr[s] : table.successor_ptr[s + 1]]]
            outside = set(reads.tolist()) - {table.first_state + s}
            assert listed == outside if len(outside) < room else listed in (None, outside)
            assert listed is None or len(listed) <= room


def promising(engine: Engine, p: int, significant: float) -> float:
    """Largest B + V where |B| is significant, by the reference."""
    store, values = engine.store, engine.backend.values()
    originals = np.concatenate([store.original_states(q) for q in range(store.n_partitions)])
    before = np.empty(store.n_states)
    before[originals] = engine.sign * values
    after = backup(rows_of(store), before, engine.discount, store.sense).values[originals][engine.own(p)] * engine.sign
    return float(after[np.abs(after - values[engine.own(p)]) > significant].max(initial=-np.inf))


@pytest.mark.parametrize("name", LAYOUTS)
def test_measured_residuals_are_those_of_the_values(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    engine = Engine(stores(name), 0.9, device())
    engine.load(0, 1, 2)
    for sweeps in (0, 1, 3):
        for p in (0, 1, 2):
            if sweeps:
                engine.sweep(p, SweepLimits(-1.0, sweeps, -1.0))
        values = engine.backend.values()
        size = np.abs(values).max(initial=1.0)
        for p in (2, 0, 1):
            for significant in (1e-9, 0.2, 1e9):
                measured, value = engine.measure(p, significant)
                assert astuple(measured) == pytest.approx(astuple(engine.true(p)), rel=1e-6, abs=1e-12 * size)
                assert value == pytest.approx(promising(engine, p, significant), abs=1e-12 * size)
        np.testing.assert_array_equal(engine.backend.values(), values)


@pytest.mark.parametrize("name", ["gridworld", "random"])
def test_tiles_whose_inputs_have_not_changed_are_left_alone(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    engine = Engine(stores(name), 0.5, device())
    everyone = range(engine.store.n_partitions)
    engine.load(*everyone)
    limits = SweepLimits(0.0, 5, 1e-3)
    for _ in range(50):
        done = sum(r.backups or 0 for r in engine.sweep_together(everyone, limits))
        if not done:
            break
    assert not done
    assert engine.bounds.normalised().max() <= 2e-3
    engine.assert_that_the_bounds_are_true()


@pytest.mark.parametrize("name", ["car", "double pendulum", "ragged", "uniform with durations"])
def test_frames_and_tables_give_the_same_values(name: str, stores: Callable[[str], Store]) -> None:
    store = stores(name)
    values = []
    for frames in (True, False):
        engine = Engine(store, 0.9, emulated())
        if not frames:
            engine.read = store.read
        engine.load(*range(store.n_partitions))
        for p in range(store.n_partitions):
            engine.sweep(p, SweepLimits(-1.0, 1, -1.0))
        values.append(engine.backend.values())
    np.testing.assert_array_equal(*values)
