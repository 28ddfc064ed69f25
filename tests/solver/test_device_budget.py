"""A device's budget in all: the cache is what the rest leaves of it, and what cannot be had is refused beforehand."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp.backends.base import Backend, Features
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.layout import Layout, Needs, cache_within_budget, device_layout
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import CacheSize, SolveOptions, format_bytes
from ooc_mdp.solver.plan import plan_solve
from ooc_mdp.store import Store

WORKSPACE = 1000
SIZES = st.integers(0, 1 << 40)
STATES = 16 * 16


@dataclass
class Device:
    """What planning needs of a device; it allocates nothing."""

    free: int | None
    slot: int | None = None
    name: str = "cuda:0"
    features: Features = Features(overlaps_loads=True)  # noqa: RUF009  # frozen
    synchronous: None = None
    policy_rows: None = None

    def free_bytes(self) -> int | None:
        return self.free

    def layout(self, model: ModelFacts, needs: Needs) -> Layout:
        return device_layout(model, needs, self.name, {"workspace": WORKSPACE}, self.slot)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return ooc_mdp.generate("GW-16x4", tmp_path_factory.mktemp("store") / "s", {"seed": 1}, partitions=8)


def planned(store: Store, device: Device, **options: object) -> dict[str, int]:
    """The plan of the device's memory, the cache's budget as the cache is given it included."""
    chosen = SolveOptions(0.9, device=device.name, **options)  # type: ignore[arg-type]
    model, backend = ModelFacts.of(store.facts, chosen.discount), cast(Backend, device)
    plan = plan_solve(store, chosen, backend, model, writes=False)
    most = int(store.facts.partition_bytes.sum()) if device.slot is None else device.slot * store.n_partitions
    assert plan.memory.device["cache"] == min(plan.layout.cache_bytes, most)
    return plan.memory.device


@given(
    budget=SIZES, other_buffers=st.lists(SIZES, max_size=4), place=st.integers(1, 1 << 40), places=st.integers(0, 1000)
)
def test_what_is_taken_never_exceeds_the_budget_and_the_cache_always_holds_a_partition(
    budget: int, other_buffers: list[int], place: int, places: int
) -> None:
    named = {str(i): size for i, size in enumerate(other_buffers)}
    if budget < sum(other_buffers) + place:
        with pytest.raises(MemoryBudgetError, match=f"raise --device-memory to at least {sum(other_buffers) + place},"):
            cache_within_budget(budget, named, place, places, "cuda:0")
        return
    cache = cache_within_budget(budget, named, place, places, "cuda:0")
    assert place <= cache
    assert cache + sum(other_buffers) <= budget
    if places:
        assert cache % place == 0
        assert cache <= place * places
        assert cache == place * places or cache + place + sum(other_buffers) > budget
    else:
        assert cache + sum(other_buffers) == budget


@given(budget=SIZES, other_buffers=st.integers(0, 1 << 30), place=st.integers(1, 1 << 40))
def test_the_remedy_for_too_small_a_budget_works(budget: int, other_buffers: int, place: int) -> None:
    try:
        cache_within_budget(budget, {"values": other_buffers}, place, 0, "cuda:0")
    except MemoryBudgetError as error:
        named = int(str(error).partition("at least ")[2].partition(",")[0])
        assert named > budget
        assert cache_within_budget(named, {"values": other_buffers}, place, 0, "cuda:0") == place


def test_the_cache_is_what_the_budget_leaves(store: Store) -> None:
    largest = int(store.facts.partition_bytes.max())
    other_buffers = {"values": 8 * STATES, "policy": 4 * STATES, "workspace": WORKSPACE}
    budget = sum(other_buffers.values()) + 2 * largest + 1
    plan = planned(store, Device(1 << 30), device_memory=budget)
    assert plan == {"cache": 2 * largest + 1} | other_buffers
    assert sum(plan.values()) == budget


def test_slots_make_the_cache_whole_ones(store: Store) -> None:
    slot = int(store.facts.partition_bytes.max()) + 24
    other_buffers = 12 * STATES + WORKSPACE
    assert planned(store, Device(1 << 30, slot), device_memory=other_buffers + 3 * slot - 1)["cache"] == 2 * slot
    with pytest.raises(MemoryBudgetError, match=f"a slot of the cache takes .* at least {other_buffers + slot},"):
        planned(store, Device(1 << 30, slot), device_memory=other_buffers + slot - 1)


def test_too_small_a_budget_is_refused_with_what_takes_it(store: Store) -> None:
    with pytest.raises(
        MemoryBudgetError,
        match=r"a budget of 2\.0 KiB on cuda:0 cannot hold this solve: values 2\.0 KiB \+ policy 1\.0 KiB \+ workspace "
        r"1000 B = 4\.0 KiB, and the largest partition takes .*; raise --device-memory to at least \d+, or make",
    ):
        planned(store, Device(1 << 30), device_memory=2048)


def test_what_the_device_has_not_free_is_refused_with_the_remedy(store: Store) -> None:
    """The remedy is the one that the message names: it is then accepted."""
    largest = int(store.facts.partition_bytes.max())
    free = 12 * STATES + WORKSPACE + largest
    with pytest.raises(MemoryBudgetError, match=rf"which has .* free; lower --device-memory to at most {free}$"):
        planned(store, Device(free), device_memory=2 * free)
    assert planned(store, Device(free), device_memory=free)["cache"] == largest
    with pytest.raises(MemoryBudgetError, match=rf"on cuda:0 \(cache .*free; lower --cache to at most {largest}$"):
        planned(store, Device(free), cache=CacheSize.parse("100%"))
    assert planned(store, Device(free), cache=CacheSize(size=largest))["cache"] == largest
    with pytest.raises(MemoryBudgetError, match="use --device cpu or a device with more memory"):
        planned(store, Device(12 * STATES), cache=CacheSize(size=largest))
    for options in ({"cache": CacheSize(size=largest)}, {"device_memory": 2 * free}):
        with pytest.raises(
            MemoryBudgetError, match=rf"are left .* takes {format_bytes(largest)}: make the store again"
        ):
            planned(store, Device(free - 1), **options)


def test_more_than_the_device_has_is_refused_even_where_the_table_is_small(store: Store) -> None:
    slot, free = int(store.facts.partition_bytes.max()), 1 << 30
    with pytest.raises(MemoryBudgetError, match=rf"1\.0 GiB are asked for .* planned\), .* at most {free}$"):
        planned(store, Device(free, slot), device_memory=free + 1)
    assert planned(store, Device(free, slot), device_memory=free)["cache"] == slot * store.n_partitions


def test_a_device_that_does_not_say_what_is_free_is_taken_at_its_word(store: Store) -> None:
    whole = int(store.facts.partition_bytes.sum())
    assert planned(store, Device(None), cache=CacheSize(size=1 << 40))["cache"] == whole


def test_the_cpu_has_no_device_memory(store: Store) -> None:
    with pytest.raises(OptionsError, match="runs on the CPU; give --cache"):
        ooc_mdp.solve(store, 0.9, device="cpu", device_memory="8GiB")
    options = SolveOptions(0.9, device_memory=1 << 30)  # "auto", which may turn out to be the CPU
    with closing(CpuBackend()) as cpu, pytest.raises(OptionsError, match="runs on the CPU; give --cache"):
        plan_solve(store, options, cpu, ModelFacts.of(store.facts, options.discount), writes=False)


@pytest.mark.gpu
def test_a_solve_within_a_device_budget_takes_no_more_of_the_device(store: Store) -> None:
    import cupy

    def free() -> int:
        return int(cupy.cuda.runtime.memGetInfo()[0])

    ooc_mdp.solve(store, 0.9, device="cuda:0", cache="100%")  # what the driver takes for code is not in the budget
    before, least = free(), [free()]
    budget = 64 << 20
    solution = ooc_mdp.solve(store, 0.9, device="cuda:0", device_memory=budget, progress=lambda _: least.append(free()))
    assert solution.outcome.proved
    assert sum(solution.memory_plan["device"].values()) <= budget
    assert before - min(least) <= budget
    with pytest.raises(MemoryBudgetError, match=r"which has .* free; lower --device-memory to at most \d+"):
        ooc_mdp.solve(store, 0.9, device="cuda:0", device_memory=1 << 50)
