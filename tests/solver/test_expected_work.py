"""How many passes and backups a solve is expected to take."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right

import pytest

import ooc_mdp
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver import expected_work as module
from ooc_mdp.solver.expected_work import _COUPLINGS, expected_work
from ooc_mdp.solver.recorded_solves import RECORDED, Recorded

VI = SolveOptions(0.5, method="vi")


@pytest.fixture(scope="module")
def table():
    return ooc_mdp.open_problem("GW-12x4", {"seed": 1}, partitions=4)


def trial(table, outcome: Outcome = Outcome.TIME_LIMIT, **counts: float):
    """A solve of the table that has come so far."""
    solved = ooc_mdp.solve(table, discount=0.5, cache="50%", device="cpu")
    return dataclasses.replace(solved, outcome=outcome, statistics=dataclasses.replace(solved.statistics, **counts))


def with_cache(table, share: float):
    return trial(table, cache_bytes=int(1000 * share), table_bytes=1000)


def test_a_solve_that_ended_within_the_trial_has_shown_its_work(table):
    found = expected_work(table, SolveOptions(0.5), trial(table, Outcome.PROVED, loads=10, backups=720))
    assert found == ((2.5, 2.5, 2.5), (5.0, 5.0, 5.0), "the trial, in which the solve ended (proved)")


def test_value_iteration_takes_at_most_the_sweeps_that_the_discount_says(table):
    few = expected_work(table, VI, with_cache(table, 0.5))
    assert few[:2] == ((1.0, 15.0, 15.0), (1.0, 15.0, 15.0))  # 0.5**14 < 1e-4
    many = expected_work(table, SolveOptions(0.99, method="vi"), with_cache(table, 0.5))
    assert many.passes[2] == 918.0  # 0.99**917 < 1e-4
    solved = ooc_mdp.solve(table, discount=0.5, method="vi", cache="50%", device="cpu")
    assert solved.statistics.loads_per_partition <= few.passes[2]


def test_of_value_iteration_with_short_steps_nothing_is_known():
    """A step of a hundredth of a unit of time multiplies the error by the hundredth root of the discount only."""
    car = ooc_mdp.open_problem("mountain-car", {"grid": "20,20"}, partitions=4)
    assert car.facts.duration_range[:, 0].min() < 1
    assert expected_work(car, VI, with_cache(car, 0.5)) is None


def test_a_cache_that_holds_the_table_loads_it_once(table):
    found = expected_work(table, VI, with_cache(table, 1.0))
    assert found[:2] == ((1.0, 1.0, 1.0), (1.0, 15.0, 15.0))


def test_a_finite_horizon_loads_the_table_at_most_once_for_each_stage(table):
    asked = ooc_mdp.FiniteHorizon(5)
    assert expected_work(table, SolveOptions(asked), with_cache(table, 0.5))[:2] == ((1.0, 5.0, 5.0), (5.0, 5.0, 5.0))
    assert expected_work(table, SolveOptions(asked), with_cache(table, 1.0))[:2] == ((1.0, 1.0, 1.0), (5.0, 5.0, 5.0))
    done = ooc_mdp.solve(table, asked, cache="50%", device="cpu").statistics
    assert (done.loads_per_partition <= 5, done.backups) == (True, 5 * done.n_states)


def recorded(monkeypatch, *solves: Recorded) -> None:
    monkeypatch.setattr(module, "RECORDED", solves)


def test_other_methods_take_what_the_recorded_solves_took_that_are_most_alike(table, monkeypatch):
    recorded(
        monkeypatch,
        Recorded("a", 100, 3, 0.2, 0.9, 3.0, 30.0),
        Recorded("b", 100, 3, 0.2, 0.9, 2.0, 60.0),
        Recorded("far discount", 100, 3, 0.2, 0.99, 9.0, 90.0),
        Recorded("smaller cache", 100, 3, 0.1, 0.9, 9.0, 90.0),
        Recorded("next larger cache", 100, 3, 0.5, 0.9, 1.0, 50.0),
        Recorded("larger cache", 100, 3, 1.0, 0.9, 9.0, 90.0),
        Recorded("stronger coupling", 100, 20, 0.3, 0.9, 9.0, 90.0),
    )
    found = expected_work(table, SolveOptions(0.92), with_cache(table, 0.4))
    assert found == (
        (1.0, 2.0, 3.0),
        (30.0, 50.0, 60.0),
        "3 recorded solves with discount 0.9, a cache of 20% or 50% and partitions that read fewer than 6 others",
    )


@pytest.mark.parametrize(("cache", "passes"), [(0.2, 3.0), (0.5, 1.0), (0.8, 1.0)])
def test_a_cache_that_was_recorded_or_is_above_all_is_like_no_other(table, monkeypatch, cache, passes):
    recorded(
        monkeypatch, Recorded("a", 100, 3, 0.2, 0.9, 3.0, 30.0), Recorded("larger cache", 100, 3, 0.5, 0.9, 1.0, 50.0)
    )
    found = expected_work(table, SolveOptions(0.9), with_cache(table, cache))
    assert (found.passes, f"a cache of {0.2 if passes == 3 else 0.5:.0%} and" in found.basis) == ((passes,) * 3, True)


def test_the_coupling_is_how_many_partitions_are_read_and_not_which_share(monkeypatch):
    """11 of 255 others are few of them, and yet as many as policy iteration is for."""
    recorded(
        monkeypatch,
        Recorded("few", 100, 4, 0.2, 0.9, 1.0, 10.0),
        Recorded("many", 100, 10, 0.2, 0.9, 7.0, 70.0),
    )
    grid = ooc_mdp.open_problem("double-pendulum", {"grid": (8, 8, 8, 8)}, partitions=256, device="cpu")
    others = grid.facts.coupling.mass.size / 256 - 1
    assert 7 < others < 0.1 * 255
    assert expected_work(grid, SolveOptions(0.9), with_cache(grid, 0.2))[:2] == ((7.0, 7.0, 7.0), (70.0, 70.0, 70.0))


@pytest.mark.parametrize(
    ("options", "cache"),
    [
        (SolveOptions(0.5), 0.04),
        (SolveOptions(0.5, priority="exact-h2"), 0.5),
        (SolveOptions(ooc_mdp.TotalReward()), 0.5),
    ],
)
def test_nothing_is_expected_where_nothing_is_known(options, cache, table):
    assert expected_work(table, options, with_cache(table, cache)) is None


def test_of_every_coupling_solves_are_recorded():
    """Three couplings, seven caches, two discounts."""
    kinds = {(bisect_right(_COUPLINGS, each.partitions_read), each.cache, each.discount) for each in RECORDED}
    assert len(kinds) == 3 * 7 * 2
