"""A policy's rows on groups of devices: as on one device, whatever the order in which devices do their work.

Groups are emulated, and do their work in any order that their streams allow; the same tests run on as many GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from emulated_device import EmulatedDevice, emulated_group
from kept_rows import (
    DISCOUNT,
    SOLVING,
    SWEEPING,
    WAYS,
    Kept,
    assert_that_an_evaluation_is_true,
    assert_that_rows_are_the_policy_s,
)
from plain_rows import evaluated
from tiled_engine import LAYOUTS, TILE_STATES

from ooc_mdp.backends.cuda.device import CudaDevice, Device, device_count
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.policy import layout as layout_of_rows
from ooc_mdp.backends.cuda.policy.evaluation import DeviceEvaluation, EvaluationOptions
from ooc_mdp.backends.cuda.policy.layout import VECTORS, RowSizes
from ooc_mdp.backends.cuda.policy.rows import DeviceRows
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.backends.layout import ROWS, Needs
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store

MakeKept = Callable[..., Kept]
Stores = Callable[[str], Store]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def make_kept(request: pytest.FixtureRequest) -> Iterator[MakeKept]:
    """Makes rows of a store on so many devices; on emulated ones with a seed."""
    made: list[Kept] = []

    def make(store: Store, count: int, seed: int = 0, options: EvaluationOptions = SOLVING, **more: object) -> Kept:
        first: Device
        if request.param == "emulated":
            first, *others = emulated_group(count, seed)
        elif device_count() < count:
            pytest.skip(f"there are {device_count()} GPUs, {count} are needed")
        else:
            first, *others = (CudaDevice(number) for number in range(count))
        made.append(Kept(store, first, options=options, others=others, **more))
        return made[-1]

    yield make
    for kept in made:
        kept.backend.close()


def rows_of(kept: Kept) -> DeviceRows:
    assert kept.backend._rows is not None
    return kept.backend._rows


@WAYS
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_evaluation_on_a_group_reaches_the_policy_s_values(
    name: str, count: int, options: EvaluationOptions, stores: Stores, make_kept: MakeKept
) -> None:
    store = stores(name)
    kept = make_kept(store, count, len(name), options)
    everything = list(range(store.n_partitions))
    kept.improve(everything)
    assert_that_rows_are_the_policy_s(kept)
    others = kept.of_states("second_best", "f8")
    found = evaluated(kept.backend, 1e-8, 10_000)
    assert_that_an_evaluation_is_true(kept, found, kept.values, others, everything)
    assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-8


def solver_state(kept: Kept, partitions: list[int], iterations: int) -> dict[str, bytes]:
    """All that the solver knows after some iterations, on every device."""
    kept.improve(partitions)
    rows = rows_of(kept)
    kept.backend.evaluation(math.inf, 1)  # the devices know what has rows
    rows.launches.begin_batch(0.0)
    rows.launches.begin_solver()
    rows.launches.iterate(iterations)
    rows.launches.progress()
    scalars = ["rho", "alpha", "omega", "beta", "residual", "first_residual", "state", "products"]
    progress = [b"".join(one[name].tobytes() for name in scalars) for one in rows.launches._progress]
    assert len(set(progress)) == 1, "all devices have the same scalars"
    assert rows.launches._progress[0]["products"][0] == 1 + 2 * iterations
    rows.launches.take_over()
    vectors = {name: kept.of_states(name, "f8").tobytes() for name in VECTORS}
    return vectors | {"scalars": progress[0], "values": kept.backend.values().tobytes()}


@pytest.mark.parametrize("partitions", [[0, 1, 2, 3], [3, 1]])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_solver_s_steps_repeat_bit_by_bit_and_are_those_of_one_device_but_for_rounding(
    name: str, partitions: list[int], stores: Stores, make_kept: MakeKept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Division, "choose", Division.contiguous)  # states are in the order of one device
    store, found = stores(name), []
    for count, seed in ((2, 1), (2, 2), (3, 3), (3, 4), (1, 0)):
        kept = make_kept(store, count, seed)
        for vector in VECTORS:  # what no kernel writes is equal, too
            rows_of(kept)._group.clear(rows_of(kept)._streams, rows_of(kept).at[vector], 8 * store.n_states)
        rows_of(kept).launches.wait()
        found.append(solver_state(kept, partitions, 3))
    two, two_again, three, three_again, alone = found
    assert two["z"] != two["r"]
    assert two == two_again
    assert three == three_again
    for vector in ("r", "p", "values"):  # sums have a part for each device
        for group in (two, three):
            one, other = (np.frombuffer(of[vector]) for of in (alone, group))
            np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-9 * np.abs(one).max())


def test_what_is_measured_is_what_one_device_measures(stores: Stores, make_kept: MakeKept) -> None:
    store, found = stores("ragged"), []
    for count in (1, 2, 3):
        kept = make_kept(store, count, options=SWEEPING)
        kept.improve([0, 2, 5])
        kept.backend.evaluation(0.0, 0)
        found.append(rows_of(kept).report(1))
    for one in found[1:]:
        for field in ("backups", "rise", "fall", "measured", "second_best", "largest_value", "smallest_value"):
            assert (np.asarray(getattr(one, field)) == np.asarray(getattr(found[0], field))).all(), field


@pytest.mark.parametrize("many", [0, 1 << 30], ids=["claims", "strides"])
@pytest.mark.parametrize("seed", range(4))
def test_no_residual_is_above_what_the_largest_change_of_a_sweep_allows(
    seed: int, many: int, stores: Stores, make_kept: MakeKept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order devices sweep: they have met after each sweep."""
    monkeypatch.setattr("ooc_mdp.backends.cuda.policy.launches._MANY", many)
    store = stores("random")
    kept = make_kept(store, 3, seed, SWEEPING)
    kept.improve(range(store.n_partitions))
    evaluated(kept.backend, math.inf, 1)
    work = DeviceEvaluation(rows_of(kept), 0.0, 10**9, lambda: None)
    for count in (1, 2, 5):
        work._sweep(count)
        values = kept.backend.values()
        residual = np.abs(kept.backup(values) - values).max()
        assert residual <= DISCOUNT * kept.model.row_sums.max() * work._change * (1 + 1e-12)


def test_sweeps_end_on_all_devices_once_no_device_changes_values_by_more(stores: Stores, make_kept: MakeKept) -> None:
    store = stores("car")
    kept = make_kept(store, 2, 1, SWEEPING)
    kept.improve(range(store.n_partitions))
    evaluated(kept.backend, math.inf, 1)
    launches = rows_of(kept).launches
    launches.begin_batch(0.5)
    launches.sweep(40, False)
    changes = launches.progress()["change"][:40]
    used = int(np.count_nonzero(changes > 0.5)) + 1
    assert 1 < used < 40
    assert (changes[used:] == changes[used - 1]).all(), "later sweeps report what ended them"
    assert all((one["change"][0][used:40] == changes[used - 1]).all() for one in launches._progress)


def test_a_solver_whose_devices_do_not_meet_is_found_out(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """By some order of work: the emulator is as unkind as devices may be."""
    store = stores("random")

    def state(seed: int) -> dict[str, bytes]:
        first, *others = emulated_group(2, seed)
        return solver_state(Kept(store, first, options=SOLVING, others=others), [0, 1, 2, 3, 4], 2)

    right = state(4)["z"]
    assert state(5)["z"] == right
    graph = DeviceGroup.graph
    monkeypatch.setattr(
        DeviceGroup,
        "graph",
        lambda self, streams, launches: graph(self, streams, lambda meet: launches(lambda: None)),
    )
    wrong = 0
    for seed in range(4):
        try:
            wrong += state(seed)["z"] != right
        except AssertionError:  # devices have other scalars
            wrong += 1
    assert wrong


@pytest.mark.parametrize(("on_device", "solves"), [(True, False), (False, True)])
def test_rows_of_a_group_may_lie_in_the_host_s_memory(
    on_device: bool, solves: bool, stores: Stores, make_kept: MakeKept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowSizes, "placed", lambda self, room: (on_device, solves))
    store = stores("car")
    kept = make_kept(store, 2)
    kept.improve(range(store.n_partitions))
    assert_that_rows_are_the_policy_s(kept)
    found = evaluated(kept.backend, 1e-8, 10_000)
    assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-8


def test_values_that_change_between_two_calls_are_seen_by_all_devices(stores: Stores, make_kept: MakeKept) -> None:
    store = stores("random")
    kept = make_kept(store, 3, 2, SWEEPING)
    last = store.n_partitions - 1
    kept.improve(range(last))
    states = np.arange(*store.facts.partition_ptr[last:].tolist())
    evaluation = kept.backend.evaluation(1e-10, 10_000)
    while not evaluation.advance(0.0):
        pass
    kept.backend.write(states, np.full(states.size, 7.0), np.array([last]), np.array([0, states.size]))
    found = evaluation.report()
    values = kept.backend.values()
    residual = np.abs(kept.plain.backup(values, kept.backend.policy()) - values)[: states[0]].max()
    assert found.measured[2:, :last].max() == pytest.approx(residual)
    assert residual > 0.01


def test_each_device_has_its_part_of_the_rows_and_all_is_freed(stores: Stores) -> None:
    model = ModelFacts.of(stores("double pendulum").facts, DISCOUNT)
    group = DeviceGroup(emulated_group(2))
    free = group.memory_free()
    rows = DeviceRows(group, group.streams(), model)
    taken = [before - now for before, now in zip(free, group.memory_free(), strict=True)]
    planned, in_host = DeviceRows.placed(model, 1 << 40, 2, group.page)
    assert in_host == 0
    assert max(taken) <= planned
    assert min(taken) > 0.8 * max(taken), "parts are of about as many bytes"
    rows.close()
    assert group.memory_free() == free


@pytest.mark.parametrize("name", ["car", "double pendulum"])
def test_the_plan_of_a_group_counts_the_rows_of_each_device(name: str, stores: Stores) -> None:
    model = ModelFacts.of(stores(name).facts, DISCOUNT)
    first, *others = emulated_group(3)
    backend = TiledBackend(first, TILE_STATES, others)
    layout, alone = (
        of.layout(model, Needs(policy_rows=True, free=1 << 26)) for of in (backend, TiledBackend(first, TILE_STATES))
    )
    sums = 8 * layout_of_rows.SUMS * layout_of_rows._MAX_BLOCKS
    assert layout.device[ROWS] - sums < 0.5 * (alone.device[ROWS] - sums)
    backend.start(model, layout, None, None)
    backend.open_rows(stores(name).facts.coupling)
    planned = sum(layout.device.values())
    assert all((1 << 26) - device.memory_free() <= planned for device in (first, *others))
    backend.close()
    assert backend.free_bytes() == 1 << 26


def test_the_device_with_the_least_room_decides_where_rows_lie(stores: Stores) -> None:
    model = ModelFacts.of(stores("double pendulum").facts, DISCOUNT)
    whole = DeviceRows(group := DeviceGroup(emulated_group(2)), group.streams(), model)
    assert (whole.on_device, whole.solves) == (True, True)
    taken = (1 << 26) - min(group.memory_free())
    whole.close()
    for room in (taken, taken - 256):
        first, second = emulated_group(2)
        second._size = room
        rows = DeviceRows(group := DeviceGroup([first, second]), group.streams(), model)
        assert (rows.on_device and rows.solves) == (room == taken)
        rows.close()
    second._size = 5000
    with pytest.raises(MemoryBudgetError, match=r"on emulated:0, emulated:1 .*4\.9 KiB are left"):
        DeviceRows(DeviceGroup([first, second]), group.streams(), model)
    assert first.memory_free() == 1 << 26


def test_nothing_stays_on_the_other_devices_where_one_has_no_room(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelFacts.of(stores("car").facts, DISCOUNT)
    first, second = emulated_group(2)
    group = DeviceGroup([first, second])
    monkeypatch.setattr(EmulatedDevice, "place", _refusing_after(5, EmulatedDevice.place))
    with pytest.raises(MemoryBudgetError, match="has no room for a policy's rows"):
        DeviceRows(group, group.streams(), model)
    assert group.memory_free() == (1 << 26, 1 << 26)


def _refusing_after(count: int, place: Callable[..., None]) -> Callable[..., None]:
    left = iter(range(count))

    def placed(self: EmulatedDevice, at: int, nbytes: int) -> None:
        if next(left, None) is None:
            raise MemoryError("no more")
        place(self, at, nbytes)

    return placed
