"""Planning is a pure function: it changes no backend, and what it plans is what a backend then takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from tiled_engine import TILE_STATES, emulated

import ooc_mdp
from ooc_mdp.backends.base import Backend
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import ROWS, Layout, Needs
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.solver.plan import load_code, plan_solve
from ooc_mdp.store import Store

MAKE: dict[str, Callable[[], Backend]] = {
    "cpu": lambda: CpuBackend(threads=2),
    "tiles": lambda: TiledBackend(emulated(), TILE_STATES),
}
DISCOUNT = 0.9


@pytest.fixture(params=list(MAKE))
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = MAKE[request.param]()
    yield made
    made.close()


@pytest.fixture(scope="module")
def coupled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Whose partitions read each other, so that auto begins with policy iteration where it can."""
    store = ooc_mdp.generate("random", tmp_path_factory.mktemp("store") / "s", {"states": 2000}, partitions=10)
    assert ModelFacts.of(store.facts, DISCOUNT).strongly_coupled
    return store


@pytest.mark.parametrize("method", ["auto", "vi", "p-eva", "policy-iteration"])
def test_planning_a_solve_changes_no_backend(method: Any, coupled: Store, backend: Backend) -> None:
    options = SolveOptions(DISCOUNT, method=method, cache=CacheSize(share=0.5))
    facts, before = ModelFacts.of(coupled.facts, DISCOUNT), dict(vars(backend))
    load_code(coupled, backend, facts, options, writes=False)
    plan_solve(coupled, options, backend, facts, writes=False)
    assert vars(backend) == before


def test_the_same_needs_give_the_same_layout(coupled: Store, backend: Backend) -> None:
    facts = ModelFacts.of(coupled.facts, DISCOUNT)
    asked = [Needs(CacheSize(share=0.5), policy_rows=rows, synchronous=synchronous) for rows, synchronous in WAYS]
    first, again = ([without_detail(backend.layout(facts, needs)) for needs in asked] for _ in range(2))
    assert first == again
    assert ROWS in first[1]["host"] or ROWS in first[1]["device"]


WAYS = [(False, False), (True, False), (False, True)]


def without_detail(layout: Layout) -> dict[str, Any]:
    named = {field.name: getattr(layout, field.name) for field in fields(layout) if field.name != "detail"}
    return named | {"entries": layout.entries.tolist()}


def test_larger_slots_are_another_layout_of_the_same_model(coupled: Store) -> None:
    store = ooc_mdp.generate("mountain-car", coupled.path.parent / "car", {"grid": "24,24"}, partition_grid=[12, 12])
    facts, backend = ModelFacts.of(store.facts, DISCOUNT), TiledBackend(emulated(), TILE_STATES)
    small = backend.layout(facts, Needs(policy_rows=True))
    before = without_detail(small)
    large = backend.enlarged(small)
    assert large.detail.slots.halo == 2 * small.detail.slots.halo
    assert large.largest_entry > small.largest_entry
    assert large.batch_size == small.batch_size == store.n_partitions
    assert without_detail(small) == before
    least = backend.layout(facts, Needs(CacheSize(size=small.largest_entry)))
    with pytest.raises(MemoryBudgetError, match=rf"raise --cache to at least {large.largest_entry},"):
        backend.enlarged(least)


def test_auto_takes_another_method_where_a_budget_has_no_room_for_rows(coupled: Store) -> None:
    backend, facts = TiledBackend(emulated(), TILE_STATES), ModelFacts.of(coupled.facts, DISCOUNT)

    def planned(method: Any, budget: int) -> Any:
        options = SolveOptions(DISCOUNT, method=method, device_memory=budget)
        return plan_solve(coupled, options, backend, facts, writes=False)

    with pytest.raises(MemoryBudgetError, match="rows of the policy") as refused:
        planned("policy-iteration", 1)
    least = int(str(refused.value).partition("at least ")[2].partition(",")[0])
    for budget, first in ((least, "policy-iteration"), (least - 1, "p-eva on device")):
        plan = planned("auto", budget)
        assert plan.choice.first == first
        assert (ROWS in plan.layout.device) == (first == "policy-iteration")
        assert sum(plan.layout.device.values()) <= budget
    assert planned("policy-iteration", least).choice.first == "policy-iteration"
    with pytest.raises(MemoryBudgetError, match="rows of the policy"):
        planned("policy-iteration", least - 1)


def test_a_group_holds_all_partitions_where_each_device_holds_its_own() -> None:
    sizes, places = np.array([4, 3, 4, 3]), np.array([0, 1, 0, 1], np.uint8)
    alone = Layout(8, sizes, 1, {}, {})
    assert (alone.devices, alone.holds_all, alone.largest_entry) == (1, False, 4)
    assert Layout(8, np.array([4, 4]), 1, {}, {}).holds_all
    together = Layout(8, sizes, 1, {}, {}, places=places)
    assert (together.devices, together.holds_all) == (2, True)
    assert not Layout(7, sizes, 1, {}, {}, places=places).holds_all
