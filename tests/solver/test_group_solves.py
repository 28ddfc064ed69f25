"""Solves on a group of devices: what they claim is verified on the CPU, whatever the method and the order of work.

Groups are emulated; the same checks run on as many GPUs where there are so many.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emulated_device import EmulatedDevice
from store_models import ModelSource, random_model
from tiled_engine import TILE_STATES, MakeGroup, layout_of, on_group

import ooc_mdp
from ooc_mdp.backends.base import Backend
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.solver import local
from ooc_mdp.solver import run as life_cycle
from ooc_mdp.solver.verify import verify
from ooc_mdp.store import Store
from ooc_mdp.store.result import unsaved_result

METHODS: dict[str, dict[str, Any]] = {
    "p-eva": {"method": "p-eva"},
    "vi": {"method": "vi"},
    "policy iteration": {"method": "policy-iteration"},
    "exact priorities": {"method": "p-eva", "priority": "exact-h1"},
}
DISCOUNTS = {"car": 0.1, "double pendulum": 0.02}
Solve = Callable[..., Solution]


@pytest.fixture
def solve(group: MakeGroup, monkeypatch: pytest.MonkeyPatch) -> Solve:
    def run(
        store: Store, count: int, slots: int, seed: int = 0, run: RunOptions | None = None, **asked: Any
    ) -> Solution:
        made: list[Backend] = []

        def select(*_: object, **__: object) -> Backend:
            devices = group(count, seed=seed)
            made.append(on_group(devices)(devices[0], TILE_STATES))
            return made[-1]

        monkeypatch.setattr(local, "select_backend", select)
        options = SolveOptions(asked.pop("discount"), device="cuda:0", **asked)
        planned = TiledBackend(EmulatedDevice(1 << 26), TILE_STATES)
        cache = layout_of(planned, ModelFacts.of(store.facts, options.discount), slots).cache_bytes
        solution = local.solve(store, replace(options, cache=CacheSize(size=cache)), run)
        for backend in made:
            backend.close()
        return solution

    return run


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["car", "gridworld", "random", "ragged"])
def test_what_a_group_claims_is_verified(
    name: str, method: str, count: int, stores: Callable[[str], Store], solve: Solve
) -> None:
    store, discount = stores(name), DISCOUNTS.get(name, 0.5)
    solution = solve(store, count, 1 + store.n_partitions // 4, discount=discount, epsilon=1e-3, **METHODS[method])
    assert solution.outcome is Outcome.PROVED
    assert verify(store, unsaved_result(solution, store)).holds
    s = solution.statistics
    assert s.cache_peak_bytes <= s.cache_bytes
    assert s.hits + s.misses == s.accesses


@pytest.mark.parametrize("seed", range(3))
def test_claims_hold_in_any_order_of_the_devices_work(seed: int, stores: Callable[[str], Store], solve: Solve) -> None:
    store = stores("double pendulum")
    solution = solve(store, 3, 2, seed, discount=0.02, residual=1e-3)
    assert solution.outcome is Outcome.RESIDUAL_REACHED
    assert verify(store, unsaved_result(solution, store)).holds


def test_a_solve_on_a_group_goes_on_from_one_devices_checkpoint(
    stores: Callable[[str], Store], solve: Solve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked, output = stores("gridworld"), {"discount": 0.8, "epsilon": 1e-3}, tmp_path / "r"
    ticks = iter([False, False, True])
    with monkeypatch.context() as patch:
        patch.setattr(life_cycle, "signals", lambda: nullcontext(lambda: next(ticks, True)))
        begun = solve(store, 1, 1, run=RunOptions(output), **asked)
    assert begun.outcome is Outcome.INTERRUPTED
    finished = solve(store, 2, 1, run=RunOptions(output, resume=True), **asked)
    assert finished.outcome is Outcome.PROVED
    assert verify(store, unsaved_result(finished, store)).holds
    assert finished.statistics.loads > begun.statistics.loads


def test_a_recomputed_table_is_solved_on_a_group(solve: Solve) -> None:
    table = ooc_mdp.open_problem("mountain-car", {"grid": "12"}, partition_grid=[2, 2])
    solution = solve(table, 2, 1, discount=0.1, epsilon=1e-3)
    assert solution.outcome is Outcome.PROVED
    assert verify(table, unsaved_result(solution, table)).holds


def test_larger_slots_are_made_on_every_device(tmp_path: Path, solve: Solve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile reads more states than its slot has room for; values and policy go over to the larger ones."""
    enlarged, usual = [], TiledBackend.enlarged
    monkeypatch.setattr(TiledBackend, "enlarged", lambda self, old: (enlarged.append(old), usual(self, old))[1])
    source = ModelSource(random_model(7, 720, max_successors=16, uniform=True))
    store = convert(source, tmp_path / "s", ConvertOptions(shape=(24, 30), partitions=4, threads=1))
    solution = solve(store, 2, 2, discount=0.5, epsilon=1e-3, method="p-eva")
    assert enlarged
    assert solution.outcome is Outcome.PROVED
    assert verify(store, unsaved_result(solution, store)).holds
