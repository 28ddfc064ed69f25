"""The clock of several solvers: when it runs, and what it ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ooc_mdp.distributed import termination as clock_module
from ooc_mdp.distributed.messages import Status
from ooc_mdp.distributed.termination import SolveClock
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import RunOptions
from ooc_mdp.solver import session as session_module
from ooc_mdp.solver.session import Session

BUSY, LOADING, READY = Status(), Status(started=True), Status(started=True, ready=True)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which passes where a test says so."""
    time = SimpleNamespace(is_=100.0, monotonic=lambda: time.is_)
    for module in (clock_module, session_module):
        monkeypatch.setattr(module, "time", time)
    return time


def test_it_stands_while_a_solver_that_has_begun_is_not_ready(now: SimpleNamespace) -> None:
    clock = SolveClock(7.0)
    for statuses, seconds, shown in (
        ([BUSY, BUSY], 1.0, 8.0),
        ([LOADING, BUSY], 10.0, 8.0),
        ([READY, LOADING], 10.0, 8.0),
        ([READY, BUSY], 2.0, 10.0),
        ([READY, LOADING], 5.0, 10.0),
        ([READY, READY], 3.0, 13.0),
    ):
        clock.update(statuses, going=False)
        now.is_ += seconds
        assert clock.seconds() == pytest.approx(shown)


def test_it_runs_while_all_solve_and_another_comes(now: SimpleNamespace) -> None:
    clock = SolveClock()
    clock.update([READY, LOADING], going=True)
    now.is_ += 4.0
    assert clock.seconds() == 4.0


def test_a_limit_is_of_this_run_and_a_signal_comes_first(now: SimpleNamespace) -> None:
    signals: list[int] = []
    clock = SolveClock(60.0)
    session = Session(clock=clock, run=RunOptions(time_limit=3.0), interrupted=lambda: bool(signals))
    clock.update([LOADING], going=False)
    now.is_ += 60.0
    clock.update([READY], going=False)
    now.is_ += 2.9
    assert session.ended() is None
    now.is_ += 0.2
    assert session.ended() is Outcome.TIME_LIMIT
    signals.append(15)
    assert session.ended() is Outcome.INTERRUPTED


def test_one_that_is_never_ready_does_not_stop_it_for_ever(now: SimpleNamespace) -> None:
    clock = SolveClock()
    session = Session(clock=clock, run=RunOptions(time_limit=5.0))
    clock.update([LOADING], going=False)
    now.is_ += clock_module._MAX_LOADING + 4.0
    assert session.ended() is None
    now.is_ += 1.0
    assert session.ended() is Outcome.TIME_LIMIT
