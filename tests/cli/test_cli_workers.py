"""The command line where it solves on several workers."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import environment, ooc, process, refused

from ooc_mdp.cli.application import MEANT, RENAMED, RENAMED_COMMANDS
from ooc_mdp.distributed import cluster
from ooc_mdp.distributed import solve as solve_module
from ooc_mdp.errors import ClusterError
from ooc_mdp.store import Store


@pytest.mark.slow
def test_the_command_line_solves_on_workers_of_this_machine_and_says_what_each_did(maze: Store) -> None:
    how = ("--workers", 2, "--device", "cpu", "--cache", "100%", "--worker-timeout", 300, "--json")
    ran = ooc("solve", maze.path, "--discount", 0.9, *how)
    assert ran.status == 0, ran.err
    figures = ran.figures["workers"]
    assert [w["worker"] for w in figures] == [0, 1]
    assert [w["partitions"] for w in figures] == [8, 8]
    assert all(w["loads"] >= 8 and w["backups"] > 0 and w["messages"] > 0 and not w["lost"] for w in figures)


@pytest.mark.slow
def test_an_error_on_the_workers_is_one_line_of_the_command(maze: Store) -> None:
    ran = process("solve", maze.path, "--discount", 0.9, "--workers", 2, "--device", "cpu", "--cache", "1B")
    assert (ran.status, ran.out) == (2, "")
    said = [line for line in ran.err.splitlines() if not line.startswith("error ≤ ")]  # progress, where it takes long
    assert len(said) == 1
    assert re.fullmatch(r"error: partition \d+ needs .* raise --cache .*", said[0])


def test_dask_is_quiet_while_a_command_solves(maze: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = logging.getLogger("distributed.client")
    loud = []

    def failing(*_: Any, **how: Any) -> None:
        loud.append(dask.isEnabledFor(logging.ERROR))
        raise ClusterError("all is lost")

    monkeypatch.setattr(solve_module.ClusterEngine, "begin", failing)
    said = refused("solve", maze.path, "--discount", 0.9, "--device", "cpu", "--scheduler", "tcp://127.0.0.1:1")
    assert said.strip() == "error: all is lost"
    assert loud == [False]
    assert dask.isEnabledFor(logging.ERROR)


SIGNALLED = """
import asyncio, os, sys
from ooc_mdp.cli import main
from ooc_mdp.distributed.coordinator import Coordinator
from ooc_mdp.distributed.snapshots import SnapshotTaker

number, sent = int(sys.argv.pop(1)), False
copy = SnapshotTaker._copy

async def copied(self):
    global sent
    await copy(self)
    if self.known.visited.all() and not sent:
        sent = True
        os.killpg(0, number)

async def never(self):
    await asyncio.sleep(0.1)
    return False

SnapshotTaker._copy, Coordinator.check_target = copied, never
main()
"""
"""A command whose solve ends by a signal only, which it sends to its group after a checkpoint with all partitions."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_terminal_keeps_what_the_workers_know(
    number: signal.Signals, coupled: Store, tmp_path: Path
) -> None:
    """Once each partition has a bound. Whoever stopped its workers would have no bound of theirs."""
    how = (
        "--discount", 0.9999, "--epsilon", 1e-3, "--method", "p-eva", "--cache", "100%", "--device", "cpu",
        "--workers", 2, "--checkpoint-interval", 0.05, "--output", tmp_path / "r", "--worker-timeout", 300, "--json",
    )  # fmt: skip
    line = [sys.executable, "-c", SIGNALLED, str(int(number)), "solve", str(coupled.path), *map(str, how)]
    with subprocess.Popen(
        line, env=environment(), stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True, start_new_session=True
    ) as it:
        out, err = it.communicate(timeout=600)
    assert it.returncode == 1, err
    figures = json.loads(out)
    assert figures["outcome"] == "interrupted"
    assert figures["error_bound"] is not None
    assert not any(w["lost"] for w in figures["workers"])
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["r.checkpoint"]


def test_the_command_line_refuses_a_trace_of_several_workers(maze: Store, tmp_path: Path) -> None:
    said = refused("solve", maze.path, "--discount", 0.9, "--workers", 2, "--trace", tmp_path / "t.csv")
    assert "leave out --trace, or --workers and --scheduler" in said


def test_a_scheduler_that_does_not_answer_is_named(maze: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 0.5)
    said = refused("solve", maze.path, "--discount", 0.9, "--device", "cpu", "--scheduler", "tcp://127.0.0.1:1")
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in said
    assert "give --workers" in said


@pytest.mark.parametrize("address", ["foo", "http://127.0.0.1:8786", "tcp://127.0.0.1", "tcp://:8786", "127.0.0.1:x"])
def test_an_address_that_is_none_is_refused_with_its_form(address: str, maze: Store) -> None:
    said = refused("solve", maze.path, "--discount", 0.9, "--device", "cpu", "--scheduler", address)
    assert f'"{address}" is no address of a Dask scheduler; give it as tcp://HOST:8786' in " ".join(said.split())


def test_a_scheduler_behind_tls_needs_certificates(maze: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 0.5)
    said = refused("solve", maze.path, "--discount", 0.9, "--device", "cpu", "--scheduler", "tls://127.0.0.1:1")
    assert "set distributed.comm.tls in Dask's configuration" in " ".join(said.split())


def test_a_script_without_a_guard_is_told_to_have_one(maze: Store, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import ooc_mdp\nooc_mdp.solve({str(maze.path)!r}, 0.9, device='cpu', workers=2)\n")
    ran = subprocess.run(
        [sys.executable, script], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("ooc_mdp.errors.ClusterError: the worker processes did")
    assert "must stand under if __name__ == '__main__'" in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize(("command", "former"), [(c, option) for c, renamed in RENAMED.items() for option in renamed])
def test_a_renamed_option_is_refused_with_its_present_name(command: str, former: str, maze: Store) -> None:
    said = refused(command, maze.path, former)
    assert f"{former} is now called {RENAMED[command][former]}" in said


@pytest.mark.parametrize(
    ("command", "other", "meant"),
    [
        *(("solve", other, "--discount") for other in ("--gamma", "-g", "--beta")),
        *(("solve", other, "--epsilon") for other in ("--eps", "--tol", "--tolerance", "--precision")),
        *(("solve", other, "--cache") for other in ("--memory", "--mem", "--ram")),
        ("solve", "--timeout", "--time-limit"),
        ("solve", "--jobs", "--workers"),
        ("solve", "-o", "--output"),
        ("convert", "--normalise", "--normalize"),
        ("convert", "--force", "--overwrite"),
        ("generate", "--jobs", "--workers"),
    ],
)
def test_what_other_programs_call_an_option_is_refused_with_its_name_here(
    command: str, other: str, meant: str, maze: Store
) -> None:
    assert f"there is no option {other}; did you mean {meant}?" in refused(command, maze.path, other, 1)


def test_only_options_of_the_command_are_named(maze: Store) -> None:
    ran = ooc("check", maze.path, "--gamma", 1)
    assert ran.status == 2
    assert "--discount" not in ran.err
    assert {other for others in MEANT.values() for other in others} & {*MEANT} == set()


@pytest.mark.parametrize("command", ["solve", "convert", "generate"])
def test_more_workers_than_a_machine_runs_are_refused_before_one_is_started(
    command: str, maze: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.runtime.quotas.cores", lambda: 3)
    monkeypatch.setattr("ooc_mdp.distributed.cluster.local_cluster", None)  # to call it is an error
    (tmp_path / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    asked: dict[str, tuple[object, ...]] = {
        "solve": (maze.path, "--discount", 0.9, "--device", "cpu"),
        "convert": (tmp_path / "m.txt", tmp_path / "s"),
        "generate": ("GW-8x4", tmp_path / "s"),
    }
    for workers in (25, 1_000_000):
        said = refused(command, *asked[command], "--workers", workers)
        assert (
            f"{workers} workers are more processes than the 24 that this machine starts at most, 8 for each of" in said
        )
        assert "give --workers 3" in said


def test_more_threads_than_a_machine_runs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ooc_mdp.runtime.quotas.cores", lambda: 3)
    said = refused("generate", "GW-8x4", tmp_path / "s", "--threads", 1_000_000)
    assert "threads is 1000000; give at most 192, 64 for each of the 3 cores" in said


@pytest.mark.parametrize("former", RENAMED_COMMANDS)
def test_a_renamed_command_is_refused_with_its_present_name(former: str, maze: Store) -> None:
    assert f"{former} is now called {RENAMED_COMMANDS[former]}" in refused(former, maze.path)
