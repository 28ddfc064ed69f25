"""The tiled engine: what it reports is true of the values it has.

Without a GPU it runs on the emulator of CUDA; the same checks run on a device where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_mdps import Case, make_store, rows_of
from store_models import Action, Model, State
from tiled_engine import (
    LAYOUTS,
    STORES,
    TILE_STATES,
    Engine,
    LittleRoom,
    MakeDevice,
    ShuffledDevice,
    emulated,
    wander,
)

import ooc_mdp
from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.tiles.layout import Tiling
from ooc_mdp.reference import backup
from ooc_mdp.store import Store


@pytest.mark.parametrize("name", STORES)
def test_bounds_stay_above_the_true_residuals_whatever_is_loaded_and_swept(
    name: str, stores: Callable[[str], Store], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ooc_mdp.backends.cuda.tiles.launches._ROUNDS", 2
    )  # few, so that batches end before all is quiet
    wander(Engine(stores(name), 0.9, device(), slots=4), seed=len(name), steps=40)


@pytest.mark.parametrize("name", ["car", "ragged"])
def test_without_room_for_boundary_values_their_changes_are_bounded_by_their_tiles(
    name: str, stores: Callable[[str], Store], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._ROUNDS", 2)
    wander(Engine(stores(name), 0.9, device(), slots=4, backend=LittleRoom), seed=1, steps=40)


@pytest.mark.parametrize(("name", "states"), [("car", TILE_STATES), ("double pendulum", 128)])
def test_bounds_hold_where_blocks_cannot_stage_their_next_tile(
    name: str, states: int, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    plain = device()
    plain.staging_shared = 0
    engine = Engine(stores(name), 0.9, plain, slots=4, tile_states=states)
    usual = Engine(stores(name), 0.9, emulated(), slots=4, tile_states=states)
    assert engine.backend._launches.staged == 0 < usual.backend._launches.staged
    wander(engine, seed=3, steps=25)


@pytest.mark.parametrize("name", ["car", "random"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bounds_hold_in_whatever_order_blocks_and_threads_run(
    name: str, stores: Callable[[str], Store], seed: int
) -> None:
    wander(Engine(stores(name), 0.9, ShuffledDevice(seed), slots=4), seed=seed, steps=25)


@pytest.mark.parametrize(
    ("problem", "grid", "blocks", "dtype", "states", "entries", "threads"),
    [
        ("double-pendulum", "5", [2, 1, 2, 2], "float32", 64, 64, 32),
        ("double-pendulum", "5", [2, 1, 2, 2], "float32", 128, 160, 96),
        ("mountain-car", "17,14", [2, 3], "float64", 128, 64, 32),
    ],
)
def test_bounds_hold_where_threads_have_two_states(
    problem: str, grid: str, blocks: list[int], dtype: str, states: int, entries: int, threads: int, tmp_path: Path
) -> None:
    """Tiles of 64 entries leave no thread of a warp idle, those of 160 some; some entries have no state."""
    store = ooc_mdp.generate(problem, tmp_path / "store", {"grid": grid}, partition_grid=blocks, dtype=dtype)
    engine = Engine(store, 0.9, ShuffledDevice(4), slots=4, tile_states=states)
    tiling, layout = engine.backend._tiling, engine.backend._layout
    assert (tiling.threads, layout.thread.states, layout.sweep_threads(tiling)) == (entries, 2, threads)
    wander(engine, seed=2, steps=25)


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
    room = Tiling.of(engine.model, 1).max_inputs
    for table in engine.tables:
        states = np.concatenate([table.first_state + np.arange(table.n_states), table.halo])
        for s, listed in enumerate(engine.inputs(table.index)):
            reads = states[table.successors[table.successor_ptr[s] : table.successor_ptr[s + 1]]]
            outside = set(reads.tolist()) - {table.first_state + s}
            assert listed == outside if len(outside) < room else listed in (None, outside)
            assert listed is None or len(listed) <= room


@pytest.mark.parametrize("name", ["car", "double pendulum"])
def test_halos_are_the_outside_states_that_tiles_read_in_ascending_order(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    engine = Engine(stores(name), 0.9, device())
    partitions = range(engine.store.n_partitions)
    engine.load(*partitions)
    for p in partitions:
        own, read = engine.own(p), set[int]()
        halos = engine.halos(p)
        for halo in halos:
            assert halo == sorted(set(halo))
            read |= set(halo)
        # Beyond the partition, tiles list together what the partition reads.
        assert {s for s in read if not own.start <= s < own.stop} == set(engine.tables[p].halo.tolist())
        assert max(map(len, halos)) > 0


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
                assert measured == pytest.approx(engine.true(p)[0], rel=1e-6, abs=1e-12 * size)
                assert value == pytest.approx(promising(engine, p, significant), abs=1e-12 * size)
        np.testing.assert_array_equal(engine.backend.values(), values)


@pytest.mark.parametrize("duration", [1e-12, 1e-13])
def test_bounds_hold_where_discounts_are_next_to_1(duration: float, tmp_path: Path, device: MakeDevice) -> None:
    states = (State((Action(1.0, {s: 1.0}, duration), Action(0.5, {s: 1.0}, duration))) for s in range(40))
    store = make_store(Case(Model(tuple(states), durations=True), partitions=2), tmp_path / "s")
    engine = Engine(store, 0.99, device())
    engine.load(0, 1)
    for _ in range(3):
        engine.sweep_together([0, 1], SweepLimits(0.0, 5, 1e-3))
        engine.assert_that_the_bounds_are_true()


@pytest.mark.parametrize("name", ["gridworld", "random"])
def test_tiles_whose_inputs_have_not_changed_are_left_alone(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    engine = Engine(stores(name), 0.5, device())
    everyone = range(engine.store.n_partitions)
    engine.load(*everyone)
    limits = SweepLimits(0.0, 5, 1e-3)
    for _ in range(50):
        done = int(engine.sweep_together(everyone, limits).backups.sum())
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
            engine.backend._read = store.read
        engine.load(*range(store.n_partitions))
        for p in range(store.n_partitions):
            engine.sweep(p, SweepLimits(-1.0, 1, -1.0))
        values.append(engine.backend.values())
    np.testing.assert_array_equal(*values)
