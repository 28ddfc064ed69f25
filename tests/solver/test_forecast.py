"""How a forecast is computed from a trial: seconds, and what fits."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime import quotas
from ooc_mdp.runtime.room import Room
from ooc_mdp.solver import session as session_module
from ooc_mdp.solver.forecast import forecast_solve
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


def forecast_of(table, options: SolveOptions, solution):
    return forecast_solve(table, options, solution, writes=False, free=Room(None, None))


def test_a_pass_loads_the_table_once_and_backs_every_state_up_once(table, monkeypatch):
    monkeypatch.setattr(quotas, "cores", lambda: 2)
    counts = {"loads": 10, "backups": 30 * 144, "solve_seconds": 0.5, "load_seconds": 0.4}
    found = forecast_of(table, SolveOptions(0.5, method="vi"), trial(table, Outcome.TIME_LIMIT, **counts))
    assert found.load_seconds == pytest.approx(0.4 / 2 / 10 * 4)
    assert found.sweep_seconds == pytest.approx((0.5 - 0.4 / 2) / 30)
    assert found.seconds_per_pass == pytest.approx(0.08 + 0.01)
    assert found.seconds == pytest.approx((0.08 + 0.01, 15 * 0.09, 15 * 0.09))


def test_the_work_of_the_trial_has_taken_the_seconds_of_the_trial(table):
    ended = trial(table, Outcome.PROVED, loads=10, backups=1000, solve_seconds=0.5, load_seconds=0.2)
    assert forecast_of(table, SolveOptions(0.5), ended).seconds == pytest.approx((0.5, 0.5, 0.5))


def test_a_trial_that_loaded_or_swept_nothing_does_not_tell_the_seconds(table):
    for nothing in ("loads", "backups"):
        counts = {"loads": 10, "backups": 1000, nothing: 0}
        found = forecast_of(table, SolveOptions(0.5), trial(table, Outcome.TIME_LIMIT, **counts))
        assert found.seconds_per_pass is None
        assert found.seconds is None


def test_p_eva_loads_partitions_more_often_that_read_more_others(tmp_path):
    """Those at the edge of a car's grid read fewer others, and compress better."""
    car = ooc_mdp.generate("mountain-car", tmp_path / "car", {"grid": "90,90"}, partitions=36)
    coupling = np.diff(car.facts.coupling.ptr)
    begun = dataclasses.replace(trial(car, Outcome.TIME_LIMIT), method="auto: p-eva")
    expected = {
        "auto: p-eva": float(car.chunk_bytes @ coupling) / coupling.mean(),
        "vi": int(car.chunk_bytes.sum()),
    }
    assert expected["auto: p-eva"] > expected["vi"]
    for method, n_bytes in expected.items():
        found = forecast_of(car, SolveOptions(0.5), dataclasses.replace(begun, method=method))
        assert found.bytes_per_pass == int(n_bytes)
    cached = dataclasses.replace(begun.statistics, cache_bytes=begun.statistics.table_bytes)
    whole = forecast_of(car, SolveOptions(0.5), dataclasses.replace(begun, statistics=cached))
    assert whole.bytes_per_pass == expected["vi"]


def test_an_output_that_the_disk_has_no_room_for_does_not_fit(table):
    done = trial(table, Outcome.PROVED)
    found = forecast_solve(table, SolveOptions(0.5), done, writes=True, free=Room(disk=100, memory=None))
    assert found.output_bytes == 24 * 144
    assert not found.fits
    assert found.summary()["fits"] is False
    assert dataclasses.replace(found, free=Room(None, None)).fits
