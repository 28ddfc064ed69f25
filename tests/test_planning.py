"""What a plan says before a solve is what the solve then takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import ooc_mdp
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.runtime import memory_plan


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ooc_mdp.store.Store:
    folder = tmp_path_factory.mktemp("planning")
    return ooc_mdp.generate("GW-24x4", folder / "maze.store", {"seed": 1}, partitions=9)


def test_the_memory_is_the_plan_that_the_solve_makes(store):
    options = {"discount": 0.9, "cache": "30%", "device": "cpu"}
    planned = ooc_mdp.plan(store, **options).memory["host"]
    solved = ooc_mdp.solve(store, **options).memory_plan["host"]
    assert {**planned, "process": 0} == {**solved, "process": 0}


def test_the_bytes_of_a_pass_are_those_of_a_solve_that_loads_each_partition_once(store):
    options = {"discount": 0.5, "cache": "100%", "device": "cpu"}
    solved = ooc_mdp.solve(store, **options).statistics
    assert solved.loads == store.n_partitions
    assert ooc_mdp.plan(store, **options).bytes_per_pass == solved.bytes_read


def test_a_table_that_is_recomputed_reads_nothing():
    problem = ooc_mdp.open_problem("GW-12x4", {"seed": 1}, partitions=4)
    assert ooc_mdp.plan(problem, discount=0.5, device="cpu").bytes_per_pass == 0


@pytest.mark.parametrize(
    "criterion",
    [
        ooc_mdp.Discounted(0.5),
        ooc_mdp.FiniteHorizon(5),
        ooc_mdp.TotalReward(infinite=True),
        ooc_mdp.AverageReward(),
        ooc_mdp.Reachability("state = 3"),
    ],
)
def test_every_criterion_can_be_planned(criterion):
    P = [[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]]
    table = ooc_mdp.from_arrays(P, [[1.0, 0.0], [0.0, 1.0]], layout="action-first", variables={"state": [3, 4]})
    forecast = ooc_mdp.plan(table, criterion, device="cpu")
    assert forecast.memory["host"]["process"] > 0
    assert forecast.n_state_actions == 4


def test_a_plan_writes_nothing_and_counts_the_output_of_the_solve(store, tmp_path: Path):
    forecast = ooc_mdp.plan(store, discount=0.9, device="cpu", output=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []
    assert forecast.output_bytes >= 24 * store.n_states
    assert "output buffers" in forecast.memory["host"]
    assert ooc_mdp.plan(store, discount=0.9, device="cpu").output_bytes == 0


def test_what_the_solve_would_refuse_is_refused(store, monkeypatch):
    with pytest.raises(OptionsError, match="leave out --workers"):
        ooc_mdp.plan(store, discount=0.9, workers=2)
    monkeypatch.setattr(memory_plan, "available_bytes", lambda: 1000)
    with pytest.raises(MemoryBudgetError, match="1000 B are available"):
        ooc_mdp.plan(store, discount=0.9, device="cpu")
