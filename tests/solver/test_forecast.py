"""How a forecast is computed from a trial: passes, seconds and what fits."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.room import Room
from ooc_mdp.solver import forecast
from ooc_mdp.solver import session as session_module
from ooc_mdp.solver.forecast import Passes, Recorded, expected_passes, forecast_solve
from ooc_mdp.solver.session import Session


@pytest.fixture(scope="module")
def table():
    return ooc_mdp.open_problem("GW-12x4", {"seed": 1}, partitions=4)


def trial(table, outcome: Outcome, **counts: float):
    """A solve of the table that has come so far."""
    solved = ooc_mdp.solve(table, discount=0.5, cache="50%", device="cpu")
    statistics = dataclasses.replace(solved.statistics, **counts)
    return dataclasses.replace(solved, outcome=outcome, statistics=statistics, history=None)


def test_a_trial_ends_after_seconds_of_work_and_not_of_preparations(monkeypatch):
    time = SimpleNamespace(now=0.0, monotonic=lambda: time.now)
    monkeypatch.setattr(session_module, "time", time)
    session = Session(trial=0.5)
    time.now = 30.0
    assert session.ended() is None
    session.begin(0.0)
    time.now = 30.4
    assert session.ended() is None
    time.now = 30.5
    assert session.ended() is Outcome.TIME_LIMIT


def test_a_pass_takes_the_seconds_of_as_many_loads_as_there_are_partitions(table):
    found = forecast_solve(
        table,
        SolveOptions(0.5, method="vi"),
        trial(table, Outcome.TIME_LIMIT, loads=10, visits=40, solve_seconds=0.5, load_seconds=0.2),
        writes=False,
        free=Room(None, None),
    )
    assert found.seconds_per_pass == pytest.approx(0.2)
    assert found.load_seconds_per_pass == pytest.approx(0.08)
    assert found.seconds == pytest.approx((found.passes.least * 0.2, found.passes.most * 0.2))


def test_the_later_half_of_a_trial_counts_where_it_was_recorded(table):
    begun = trial(table, Outcome.TIME_LIMIT, loads=50, solve_seconds=0.5)
    history = ooc_mdp.solve(table, discount=0.5, device="cpu").history
    rows = {name: np.array(numbers) for name, numbers in {"seconds": [0.1, 0.3, 0.5], "misses": [4, 10, 50]}.items()}
    recorded = dataclasses.replace(begun, history=dataclasses.replace(history, hits=np.zeros(3, int), **rows))
    for solution, seconds in ((recorded, 0.02), (dataclasses.replace(recorded, outcome=Outcome.PROVED), 0.04)):
        found = forecast_solve(table, SolveOptions(0.5), solution, writes=False, free=Room(None, None))
        assert found.seconds_per_pass == pytest.approx(seconds)


def test_where_the_cache_holds_the_table_a_pass_is_as_many_accesses(table):
    held = trial(table, Outcome.TIME_LIMIT, loads=4, accesses=40, solve_seconds=0.5, cache_bytes=1 << 30)
    found = forecast_solve(table, SolveOptions(0.5), held, writes=False, free=Room(None, None))
    assert found.seconds_per_pass == pytest.approx(0.05)


def test_a_solve_that_ended_within_the_trial_has_shown_its_passes(table):
    found = expected_passes(table, SolveOptions(0.5), trial(table, Outcome.PROVED, loads=10))
    assert found[:2] == (2.5, 2.5)
    assert "in which the solve ended (proved)" in found.basis


def test_value_iteration_takes_at_most_the_passes_that_the_discount_says(table):
    begun = trial(table, Outcome.TIME_LIMIT)
    few = expected_passes(table, SolveOptions(0.5, method="vi"), begun)
    many = expected_passes(table, SolveOptions(0.99, method="vi"), begun)
    assert few[:2] == (1.0, 15.0)  # 0.5**14 < 1e-4
    assert many.most == 918.0  # 0.99**917 < 1e-4
    solved = ooc_mdp.solve(table, discount=0.5, method="vi", cache="50%", device="cpu")
    assert solved.statistics.loads_per_partition <= few.most


def test_other_methods_take_what_recorded_solves_took(table, monkeypatch):
    begun = trial(table, Outcome.TIME_LIMIT, cache_bytes=300, table_bytes=1000)
    coupled = (table.facts.coupling.mass.size - 4) / 4 / 3
    monkeypatch.setattr(
        forecast,
        "RECORDED",
        (Recorded(coupled / 2, 0.1, 1, 2, 5), Recorded(1.0, 0.5, 2, 3, 6), Recorded(1.0, 0.2, 4, 8, 7)),
    )
    found = expected_passes(table, SolveOptions(0.5), begun)
    assert found == Passes(4, 8, found.basis)
    assert found.basis.startswith("7 recorded solves")
    monkeypatch.setattr(forecast, "RECORDED", ())
    assert expected_passes(table, SolveOptions(0.5), begun) is None


def test_an_output_that_the_disk_has_no_room_for_does_not_fit(table):
    done = trial(table, Outcome.PROVED)
    found = forecast_solve(table, SolveOptions(0.5), done, writes=True, free=Room(disk=100, memory=None))
    assert found.output_bytes == 24 * 144
    assert not found.fits
    assert found.summary()["fits"] is False
    assert dataclasses.replace(found, free=Room(None, None)).fits
