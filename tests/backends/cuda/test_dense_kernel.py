"""The kernel dense: many actions and ties, tables that stay expanded and tables that do not, and its refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_mdps import Case, make_store, model_of_shape
from store_models import Action, Model, State
from tiled_engine import ShuffledDevice, emulated

import ooc_mdp
from ooc_mdp.backends.base import Loops, SweepLimits
from ooc_mdp.backends.cpu.scheduled import ScheduledBackend
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.backends.cuda.simple.backend import SimpleBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import DENSE
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store

DEVICES: dict[str, Callable[[], Device]] = {
    "in order": emulated,
    "shuffled": lambda: ShuffledDevice(1),
    "cuda": lambda: CudaDevice(0),
}
ON = [pytest.param(name, marks=[pytest.mark.gpu] * (name == "cuda")) for name in DEVICES]


def many_actions() -> Case:
    """States of 0 to 40 actions, which a block's 8 warps take in turns; every action is there twice, some 4 times."""
    rng = np.random.default_rng(3)

    def action() -> Action:
        chosen = rng.choice(21, 8, replace=False).tolist()
        return Action(float(rng.integers(3)), dict.fromkeys(chosen, 0.125))

    states = []
    for count in range(21):
        half = [action() for _ in range(count)]
        states.append(State(tuple(half + half)))
    return Case(Model(tuple(states)), "min", "float64", 2)


def compare(backend: SimpleBackend, store: Store, order: list[int]) -> None:
    """Passes over partitions in an order, beside the schedule's."""
    facts, schedule = ModelFacts.of(store.facts, 0.9), ScheduledBackend(DENSE)
    values = np.random.default_rng(1).normal(size=store.n_states)
    tables = [store.read(p)[0] for p in range(store.n_partitions)]
    for each in (backend, schedule):
        each.load_code(facts, Loops.BATCHES)
        each.start(facts, each.layout(facts, Needs()), values.copy(), None)
    residents = [[each.admit(each.prepare(table)) for table in tables] for each in (backend, schedule)]
    for p in order:
        for each, own in zip((backend, schedule), residents, strict=True):
            each.sweep([own[p]], SweepLimits(-1.0, 2)).report()
        np.testing.assert_allclose(backend.values(), schedule._values, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(backend.policy(), schedule.policy())


@pytest.mark.parametrize("on", ON)
def test_the_lowest_of_many_equal_actions_is_chosen_in_each_partition_swept(on: str, tmp_path: Path) -> None:
    store = make_store(many_actions(), tmp_path / "s")
    backend = SimpleBackend(DEVICES[on](), DENSE)
    compare(backend, store, [0, 0, 1, 0, 1, 1])
    backend.close()


@pytest.mark.parametrize("on", [ON[0], ON[-1]])
def test_a_table_that_an_earlier_solve_expanded_is_not_taken_for_the_present_one(on: str, tmp_path: Path) -> None:
    backend = SimpleBackend(DEVICES[on](), DENSE)
    for successors in (2, 3):
        case = Case(model_of_shape(21, 3, successors))
        compare(backend, make_store(case, tmp_path / str(successors)), [0, 0])
    backend.close()


def test_a_dense_table_beyond_the_budget_is_refused_with_the_numbers(tmp_path: Path) -> None:
    store = make_store(Case(model_of_shape(200, 4, 2), partitions=2), tmp_path / "s")
    facts, backend = ModelFacts.of(store.facts, 0.9), SimpleBackend(emulated(), DENSE)
    columns = facts.largest_partition + facts.largest_halo
    needed = 256 + 8 * 4 * facts.largest_partition * columns
    assert DENSE.workspace(facts) == needed == backend.layout(facts, Needs()).device["workspace"]
    for needs in (Needs(device_memory=needed), Needs(free=needed)):
        with pytest.raises(MemoryBudgetError) as refused:
            backend.layout(facts, needs)
        said = str(refused.value)
        assert f"workspace of {needed / 1024:.1f} KiB for partitions of up to 100 states" in said
        assert f"{facts.largest_halo} halo states and 400 rows" in said
        assert said.endswith("(--partition-size, in Python partition_size), or take --kernel plain")
    assert backend.layout(facts, Needs(free=2 * needed)).cache_bytes


def test_the_schedule_needs_no_dense_table(tmp_path: Path) -> None:
    """On the CPU the word computes from stored rows, so that nothing is refused there."""
    huge = ooc_mdp.generate("random", tmp_path / "s", {"states": 3000, "seed": 1}, partitions=1)
    solution = ooc_mdp.solve(huge, 0.5, kernel=DENSE.word, method="vi", device="cpu", epsilon=1.0)
    assert solution.outcome.proved
