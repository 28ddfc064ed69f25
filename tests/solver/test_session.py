"""What surrounds a solve: reports at times, checkpoints at times, and what ends it early."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ooc_mdp.events import SolveProgress
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.options import RunOptions
from ooc_mdp.solver import session as session_module
from ooc_mdp.solver.output import Output, Snapshot
from ooc_mdp.solver.session import Session, StoppedEarly
from ooc_mdp.store.checkpoint import checkpoint_path, load_checkpoint

IDENTITY = {"fingerprint": "f", "sense": "max", "discount": 0.9}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which passes where a test says so."""
    time = SimpleNamespace(is_=100.0, monotonic=lambda: time.is_)
    monkeypatch.setattr(session_module, "time", time)
    return time


def progress(bytes_read: int) -> SolveProgress:
    return SolveProgress(1.0, 1.0, 0.5, "epsilon", 2, 4, 0.5, bytes_read, 0.0, 7, 1.0)


def snapshot() -> Snapshot:
    return Snapshot({"values": np.zeros(3)}, SolveStatistics())


def test_the_rate_of_reading_is_that_since_the_last_report(now: SimpleNamespace) -> None:
    seen: list[SolveProgress] = []
    session = Session(watch=seen.append)
    for seconds, read in ((0.0, 100), (10.0, 600), (0.1, 700), (1.9, 800)):
        now.is_ += seconds
        session.report(lambda read=read: progress(read))  # type: ignore[misc]
    assert [p.bytes_read for p in seen] == [100, 600, 800]
    assert [p.read_rate for p in seen] == [0.0, 50.0, 100.0]


def test_a_checkpoint_is_due_after_the_interval_and_not_before_twenty_times_what_the_last_took(
    now: SimpleNamespace, tmp_path: Path
) -> None:
    run = RunOptions(tmp_path / "r", checkpoint_interval=5.0)
    session = Session(Output(run, IDENTITY), run)

    def taken() -> Snapshot:
        now.is_ += 1.0
        return snapshot()

    due = []
    for _ in range(32):
        due.append(session.save_if_due(taken))
        now.is_ += 1.0
    assert [second for second, saved in enumerate(due) if saved] == [5, 25]
    assert load_checkpoint(checkpoint_path(tmp_path / "r"), IDENTITY) is not None


def test_without_an_output_or_anything_known_nothing_is_saved(tmp_path: Path) -> None:
    run = RunOptions(tmp_path / "r", checkpoint_interval=0.0)
    assert not Session(run=run).save_if_due(snapshot)
    assert not Session(Output(run, IDENTITY), run).save_if_due(lambda: None)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_is_of_this_run_and_a_signal_comes_first(now: SimpleNamespace) -> None:
    signals: list[int] = []
    session = Session(run=RunOptions(time_limit=3.0), interrupted=lambda: bool(signals))
    session.begin(60.0)
    now.is_ += 2.9
    session.stop()
    assert session.seconds == pytest.approx(62.9)
    now.is_ += 0.2
    with pytest.raises(StoppedEarly) as stop:
        session.stop()
    assert stop.value.outcome is Outcome.TIME_LIMIT
    signals.append(15)
    assert session.ended() is Outcome.INTERRUPTED


def test_a_first_report_can_be_held_for_the_usual_pause(now: SimpleNamespace) -> None:
    seen: list[SolveProgress] = []
    session = Session(watch=seen.append)
    session.hold_reports()
    for seconds in (0.1, 0.2):
        now.is_ += seconds
        session.report(lambda: progress(60))
    assert [p.read_rate for p in seen] == [pytest.approx(200.0)]
