"""The certificate where devices of a group see each other's stores late: every bound is above the true residual.

On emulated devices whose stores for others arrive in the midst of their kernels, in any order that fences and barriers
allow, and whose loads may give what was there before, unless an acquire forbids it (`emulated_peers`). Batches are of
few partitions, most of which are otherwise at rest: a bound that left a late value out would then be too small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from emulated_peers import LateGroup
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tiled_engine import Engine, on_group

import ooc_mdp
from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.store import Store

PARTITIONS = 9
NUMBERS = st.integers(0, PARTITIONS - 1)


class Batch(NamedTuple):
    """Values of a partition come from outside, then some are swept together."""

    written: int
    swept: frozenset[int]
    rounds: int
    limit: float
    plain: bool
    windows: bool
    """Whether the first round looks for windows with a trap."""


class Schedule(NamedTuple):
    """Batches, and the seed of the orders of launches, blocks, threads and arrivals."""

    seed: int
    batches: list[Batch]


BATCHES = st.builds(
    Batch,
    NUMBERS,
    st.frozensets(NUMBERS, min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from([0.0, 1e-6, 1e-3, 0.1]),
    st.booleans(),
    st.booleans(),
)
SCHEDULES = st.builds(Schedule, st.integers(0, 2**32), st.lists(BATCHES, min_size=1, max_size=4))
MakeLate = Callable[..., "Late"]


class Late:
    """A group that has all partitions, for many schedules."""

    def __init__(self, store: Store, devices: int, rewrite: dict[str, str] | None = None) -> None:
        self.group = LateGroup(devices, 0, rewrite)
        self.engine = Engine(store, 0.9, self.group.devices[0], backend=on_group(self.group.devices))
        self.group.open(self.engine.backend)
        self.engine.load(*range(PARTITIONS))

    def write(self, values: np.random.Generator, *partitions: int) -> None:
        owned = [np.arange(self.engine.own(p).start, self.engine.own(p).stop) for p in partitions]
        self.engine.write(*((p, own, values.normal(size=own.size)) for p, own in zip(partitions, owned, strict=True)))

    def check(self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every bound at every report, from random values on."""
        self.group.draw_anew(schedule.seed)
        values, launches = np.random.default_rng(schedule.seed), self.engine.backend._launches
        self.write(values, *range(PARTITIONS))
        for batch in schedule.batches:
            self.write(values, batch.written)
            monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._ROUNDS", batch.rounds + batch.windows)
            monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._WINDOW_ROUNDS", (0,) * batch.windows)
            launches._graphs.clear()
            swept = sorted({batch.written} | batch.swept)
            self.engine.sweep_together(swept, SweepLimits(0.0, 1, batch.limit, batch.plain))
            self.engine.assert_that_the_bounds_are_true()

    def check_all(self, schedules: list[Schedule], monkeypatch: pytest.MonkeyPatch) -> None:
        for schedule in schedules:
            self.check(schedule, monkeypatch)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A tile each partition, iterated over its halo, so that a partition's bound is a tile's."""
    path = tmp_path_factory.mktemp("store") / "s"
    return ooc_mdp.generate("mountain-car", path, {"grid": "12"}, partition_grid=[3, 3], dtype="float32")


@pytest.fixture(scope="module")
def random_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Successors are read from the value vector, and tiles read most others."""
    return ooc_mdp.generate("random", tmp_path_factory.mktemp("store") / "s", {"states": "120"}, partitions=PARTITIONS)


@pytest.fixture(scope="module")
def late(store: Store, random_store: Store) -> MakeLate:
    made: dict[tuple[bool, int], Late] = {}

    def make(devices: int, random: bool = False) -> Late:
        if (random, devices) not in made:
            made[random, devices] = Late(random_store if random else store, devices)
        return made[random, devices]

    return make


SHARDS, OF_A_SHARD = 100, 1_000


def check_schedules(count: int, number: int, late: MakeLate, monkeypatch: pytest.MonkeyPatch) -> int:
    """Check schedules that are drawn from a seed; how many were."""
    checked = 0

    @seed(number)
    @settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(schedule=SCHEDULES, devices=st.sampled_from([2, 3]), random=st.booleans())
    def bounds_hold(schedule: Schedule, devices: int, random: bool) -> None:
        nonlocal checked
        late(devices, random).check(schedule, monkeypatch)
        checked += 1

    bounds_hold()
    return checked


def test_bounds_hold_however_late_stores_of_other_devices_arrive(
    late: MakeLate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_schedules(100, SHARDS, late, monkeypatch) == 100


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_bounds_hold_in_each_of_a_hundred_thousand_schedules(
    shard: int, late: MakeLate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard has schedules of its own; `pytest -n` divides shards among processes."""
    assert check_schedules(OF_A_SHARD, shard, late, monkeypatch) == OF_A_SHARD


def test_stores_do_arrive_late(late: MakeLate, monkeypatch: pytest.MonkeyPatch) -> None:
    late(3).check(Schedule(1, [Batch(0, frozenset(range(PARTITIONS)), 2, 0.0, False, False)]), monkeypatch)
    assert late(3).group.late > 0


def some_schedules() -> list[Schedule]:
    """Of neighbours, one of which gets other values."""
    pairs = [(p, q) for p in range(PARTITIONS) for q in (p - 1, p + 1) if 0 <= q < PARTITIONS]
    batches = [Batch(p, frozenset([q]), 1, 1e-6, False, False) for p, q in pairs]
    return [Schedule(seed, batches) for seed in range(6)]


def test_values_that_no_fence_orders_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedules tell a kernel that publishes `accumulated` before its values from one that does not."""
    fence = "    release_to_all();\n#pragma unroll"
    unordered = Late(store, 2, {fence: "#pragma unroll"})
    with pytest.raises(AssertionError):
        unordered.check_all(some_schedules(), monkeypatch)


def test_values_that_no_acquire_orders_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that may load a neighbour's values from before the `accumulated` that it has loaded."""
    sum_of_inputs = "sum += load_acquire(e.accumulated + inputs[i])"
    unordered = Late(store, 2, {sum_of_inputs: "sum += __ldcg(e.accumulated + inputs[i])"})
    with pytest.raises(AssertionError):
        unordered.check_all(some_schedules(), monkeypatch)


def test_reports_that_do_not_wait_for_other_devices_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = Late(store, 2)
    monkeypatch.setattr(DeviceGroup, "meet", staticmethod(lambda streams: None))
    with pytest.raises(AssertionError):
        apart.check_all(some_schedules(), monkeypatch)
