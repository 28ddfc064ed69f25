"""Commands that end early: limits, signals, closed pipes; and what the log and the trace say meanwhile."""

from __future__ import annotations

import csv
import os
import signal

import numpy as np
import pytest
from command_line import interrupted, ooc, refused

from ooc_mdp.events import SolveProgress
from ooc_mdp.report import progress


def test_a_time_limit_ends_with_1_and_a_checkpoint(place, tmp_path):
    output = tmp_path / "r"
    solving = ("solve", place / "maze.store", "--discount", 0.999, "--epsilon", 1e-6, "--output", output)
    ran = ooc(*solving, "--device", "cpu", "--time-limit", 1e-9)
    assert ran.status == 1
    assert "time_limit" in ran.out
    assert "r.checkpoint" in ran.out
    assert [p.name for p in tmp_path.iterdir()] == ["r.checkpoint"]
    assert "continue from it with --resume" in refused(*solving, "--device", "cpu")
    done = ooc(*solving, "--device", "cpu", "--resume", "--json")
    assert done.status == 0
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
    assert done.figures["outcome"] == "proved"


def test_stopping_early_without_an_output_promises_no_resume(place):
    ran = ooc(
        "solve", place / "maze.store", "--discount", 0.999, "--epsilon", 1e-6, "--device", "cpu", "--time-limit", 1e-9
    )
    assert ran.status == 1
    assert "--resume" not in ran.out
    assert "--output" in ran.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_with_1_one_json_object_and_a_checkpoint(place, tmp_path, number):
    output = tmp_path / "r"
    solving = (
        "solve", place / "maze.store", "--discount", 0.99999, "--epsilon", 1e-5, "--cache", "30%", "--output", output,
        "--device", "cpu", "--checkpoint-interval", 0, "--json",
    )  # fmt: skip
    ran = interrupted(number, f"changes {tmp_path} r.checkpoint", 1, *solving)
    assert ran.status == 1, ran.err
    assert ran.figures["outcome"] == "interrupted"
    assert [p.name for p in tmp_path.iterdir()] == ["r.checkpoint"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_conversion_ends_with_1_and_leaves_nothing(tmp_path_factory, tmp_path, number):
    """Before a change of files of the store in the making, of which there are more than one a partition."""
    n = 2_000
    model = tmp_path_factory.mktemp("source") / "ring.npz"
    pointers = np.arange(n + 1)
    np.savez(model, state_ptr=pointers, indptr=pointers, indices=(pointers[:-1] + 1) % n, data=np.ones(n))
    converting = ("convert", model, tmp_path / "s", "--partitions", 200)
    ran = interrupted(number, f"changes {tmp_path / 's.partial'}", 20, *converting)
    assert ran.status == 1, ran.err
    assert "interrupted" in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_no_traceback(place):
    import subprocess

    from command_line import command, environment

    line = command("inspect", place / "maze.store", "--json")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(line, env=environment(), stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "Traceback" not in done.stderr


def test_a_trace_has_a_line_for_each_access(place, tmp_path):
    trace = tmp_path / "trace.csv"
    figures = ooc(
        "solve",
        place / "maze.store",
        "--discount",
        0.9,
        "--cache",
        "30%",
        "--device",
        "cpu",
        "--trace",
        trace,
        "--json",
    ).figures
    lines = trace.read_text().splitlines()
    assert lines[0] == "# ooc-mdp trace 3"
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert len(rows) == figures["accesses"] + figures["auxiliary_accesses"]
    assert sum(int(row["hit"]) for row in rows) == figures["hits"]


def test_an_option_that_is_no_list_of_numbers_is_named(tmp_path):
    common = ("generate", "mountain-car", tmp_path / "s", "-p", "grid=20,20")
    assert "partition grid 'a,b' is no list of numbers; write for example 100,200" in refused(
        *common, "--partition-grid", "a,b"
    )
    assert "partition shape '5;5'" in refused(*common, "--partition-shape", "5;5")
    assert "--grid and -p grid=... are the same parameter" in refused(*common, "--grid", "30,30")


def test_a_log_has_lines_of_the_step_that_is_at_work(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 5.0, 11.5, 12.0, 18.0, 32.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    bar = progress.ProgressBar()
    with bar:
        for done in (10, 50, 1234):
            bar("read", done, None)
        for done in (1, 400, 2000):
            bar("write", done, 4000)
    assert capsys.readouterr().err.splitlines() == ["read: 1,234, 10 s", "write: 2,000 of 4,000, 20 s"]


def test_a_log_has_the_rate_since_the_line_before(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.0)
    line = progress.SolveProgressLine()
    earlier = 1 << 30, 1000.0  # of the run that is resumed, at 1 MiB a second
    for n_bytes, seconds in (earlier, (earlier[0] + (1 << 20), 1002.0), (earlier[0] + (3 << 20), 1010.0)):
        line(
            SolveProgress(
                error_bound=2.0, residual_bound=0.2, target=0.01, stopping_rule="epsilon", dirty=1, partitions=4,
                hit_rate=0.5, bytes_read=n_bytes, read_rate=1e9, loads=7, seconds=seconds,
            )
        )  # fmt: skip
    _, first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("t=1002 error=2.00e+00 residual=2.00e-01 target=1.0e-02 dirty=1/4 loads=7 hit=0.500 ")
    assert first.endswith(" rate=512.0KiB/s")
    assert second.endswith(" rate=256.0KiB/s")
