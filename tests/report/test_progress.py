"""What the status line of a solve shows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_mdps import Case, make_store
from store_models import random_model

from ooc_mdp.events import SolveProgress
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.report.progress import ProgressBar, SolveProgressLine, working
from ooc_mdp.solver.local import solve


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


SEEN = SolveProgress(1.0, 0.5, 0.25, "epsilon", 2, 4, 0.5, 0, 0.0, 7, 1.0)


def test_a_share_of_the_range_is_reported_once_the_range_is_known(tmp_path: Path) -> None:
    store = make_store(Case(random_model(3, 40), partitions=8), tmp_path / "s")
    seen: list[SolveProgress] = []
    limits = RunOptions(time_limit=1e-9)
    solve(store, SolveOptions(0.9, device="cpu", method="vi"), limits, watch=seen.append)
    assert [p.target for p in seen] == [None] * len(seen)
    assert seen
    asked = list[SolveProgress]()
    solve(store, SolveOptions(0.9, device="cpu", method="vi", epsilon=1e-3), limits, watch=asked.append)
    assert {p.target for p in asked} == {1e-3}


def test_the_read_rate_in_a_log_is_that_of_one_solve_where_several_follow_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("ooc_mdp.report.progress.time", SimpleNamespace(monotonic=lambda: now))
    with SolveProgressLine() as line:
        for bytes_read, seconds in ((8 << 20, 8.0), (0, 0.0), (2 << 20, 2.0)):
            now += seconds
            line(replace(SEEN, bytes_read=bytes_read, seconds=seconds))
    assert "rate=1.0MiB/s" in capsys.readouterr().err


def test_a_log_has_one_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("ooc_mdp.report.progress.time", SimpleNamespace(monotonic=lambda: now))
    with SolveProgressLine() as line:
        for _ in range(45):
            line(replace(SEEN, seconds=now))
            now += 1.0
    said = capsys.readouterr().err.splitlines()
    assert [text.split()[0] for text in said] == ["t=10", "t=20", "t=30", "t=40"]


@pytest.mark.parametrize("width", [40, 80, 110])
def test_the_line_of_a_terminal_does_not_wrap(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with terminal(monkeypatch) as shown, SolveProgressLine() as line:
        line(replace(SEEN, loads=123456, partitions=100000, dirty=99999, seconds=4000.0))
        line._status.refresh() if hasattr(line._status, "refresh") else line._status._live.refresh()  # type: ignore[union-attr]
        drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue()).replace("\r", "\n").splitlines()
    assert any("1:06:40" in text for text in drawn)
    assert max(len(text) for text in drawn) < width


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A terminal in place of stderr."""
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as shown:
        yield shown


def test_what_a_command_does_is_shown_before_its_code_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown, working("simulating"):
        assert "simulating" in shown.getvalue()


def test_a_bar_shows_that_a_command_starts_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown, ProgressBar() as bar:
        assert "starting" in shown.getvalue()
        bar("verify", 1, 4)
        assert "verify" in shown.getvalue().split("starting")[-1]


def test_a_log_has_nothing_of_work_that_takes_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    with working("simulating"), ProgressBar():
        pass
    assert capsys.readouterr().err == ""
