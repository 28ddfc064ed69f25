"""Limits and checkpoints of solves on several workers."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import njit
from small_mdps import rows_of
from worker_clusters import Clusters, check, no_end_before, solve

import ooc_mdp
from ooc_mdp.distributed import snapshots, termination, transport, worker
from ooc_mdp.distributed.solve import solve_distributed
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import CacheSize, ClusterOptions, SolveOptions
from ooc_mdp.reference import policy_iteration
from ooc_mdp.solver import session
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path


def interrupt_once_bounded(progress: SolveProgress) -> None:
    """A signal to this process, once each partition has been read."""
    if np.isfinite(progress.error_bound):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def stopped(maze: Store, clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Folder with the checkpoint of a solve on 4 workers that a signal stopped, and the error that was proved then."""
    place = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_REPORT_SECONDS", 0.0)
        no_end_before(lambda: False, patch)
        solution = solve(
            maze,
            0.999,
            clusters[4],
            epsilon=1e-6,  # no worker stops by itself, as it would near the rounding
            output=place / "r",
            progress=interrupt_once_bounded,
            placement="random",
        )
    assert solution.outcome is Outcome.INTERRUPTED
    assert [p.name for p in place.iterdir()] == ["r.checkpoint"]
    best = policy_iteration(rows_of(maze), 0.999, maze.sense).values
    assert float(np.abs(solution.values - best).max()) <= solution.error_bound < np.inf
    return place, solution.error_bound


def copied(stopped: tuple[Path, float], tmp_path: Path) -> Path:
    output = tmp_path / "r"
    shutil.copy(stopped[0] / "r.checkpoint", checkpoint_path(output))
    return output


def test_a_checkpoint_of_several_workers_is_gone_on_from_by_few_loads_beyond_one_of_each_partition(
    maze: Store, stopped: tuple[Path, float], clusters: Clusters, tmp_path: Path
) -> None:
    """On several workers, on as many as one, and on one machine; bounds were kept for all partitions.

    Each is read to be measured, and again where sweeps of its neighbours have raised its bound above the target, which
    is 1% above what was proved.
    """
    epsilon = 1.01 * stopped[1]
    for client in (clusters[4], clusters[1], None):
        (tmp_path / str(client and len(client.ncores()))).mkdir()
        output = copied(stopped, tmp_path / str(client and len(client.ncores())))
        options: dict[str, Any] = {"epsilon": epsilon, "output": output, "resume": True}
        if client is None:
            solution = ooc_mdp.solve(maze, 0.999, device="cpu", cache="60%", **options)
        else:
            solution = solve(maze, 0.999, client, **options)
            loads = sum(w.loads for w in solution.statistics.workers)
            assert maze.n_partitions <= loads < 1.5 * maze.n_partitions
        assert solution.outcome.proved
        assert solution.error_bound <= epsilon
        assert ooc_mdp.verify(maze, output).holds
        assert not checkpoint_path(output).exists()


def test_a_checkpoint_of_several_workers_is_gone_on_from_to_the_end(
    maze: Store, stopped: tuple[Path, float], clusters: Clusters, tmp_path: Path
) -> None:
    output = copied(stopped, tmp_path)
    solution = solve(maze, 0.999, clusters[2], epsilon=stopped[1] / 10, output=output, resume=True)
    assert solution.error_bound <= stopped[1] / 10
    assert ooc_mdp.verify(maze, output).holds
    assert solution.statistics.solve_seconds > 0


def test_a_checkpoint_of_one_machine_is_gone_on_from_by_several_workers(
    maze: Store, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "r"
    how: dict[str, Any] = {"device": "cpu", "cache": "60%", "epsilon": 1e-9, "method": "vi"}
    monkeypatch.setattr(session, "_REPORT_SECONDS", 0.0)
    first = ooc_mdp.solve(maze, 0.999, output=output, progress=interrupt_once_bounded, **how)
    assert first.outcome is Outcome.INTERRUPTED
    assert checkpoint_path(output).exists()
    epsilon = 1.01 * first.error_bound
    solution = solve(maze, 0.999, clusters[4], epsilon=epsilon, output=output, resume=True)
    check(maze, 0.999, solution, size=100.0, earlier=first.statistics)
    assert ooc_mdp.verify(maze, output).holds
    assert solution.statistics.loads == first.statistics.loads + maze.n_partitions
    assert solution.method.startswith("vi, 4 workers")  # the checkpoint's


def test_a_tighter_target_continues_on_several_workers_from_the_values_of_the_result(
    maze: Store, clusters: Clusters, tmp_path: Path
) -> None:
    output = tmp_path / "r"
    coarse = ooc_mdp.solve(maze, 0.999, device="cpu", epsilon=1e-3, output=output)
    said: list[str] = []
    how: dict[str, Any] = {"output": output, "resume": True, "note": said.append}
    finer = solve(maze, 0.999, clusters[2], epsilon=coarse.error_bound / 3, **how)
    assert f"{output} proves less than what is asked for: continuing from its values, counting anew" in said
    check(maze, 0.999, finer, size=100.0)
    assert finer.error_bound <= coarse.error_bound / 3
    assert ooc_mdp.verify(maze, output).holds


def test_a_time_limit_ends_a_solve_with_a_checkpoint(
    maze: Store, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after the workers have started to sweep."""
    update, sweeping = termination.SolveClock.update, threading.Event()

    def updated(self: termination.SolveClock, statuses: Any, going: bool) -> None:
        update(self, statuses, going)
        if going:
            sweeping.set()

    monkeypatch.setattr(termination.SolveClock, "update", updated)
    monkeypatch.setattr(termination.SolveClock, "since_made", lambda self: float(sweeping.is_set()))
    no_end_before(lambda: False, monkeypatch)
    solution = solve(
        maze, 0.999, clusters[4], epsilon=1e-6, output=tmp_path / "r", time_limit=1e-9, checkpoint_interval=0.05
    )
    assert solution.outcome is Outcome.TIME_LIMIT
    assert [p.name for p in tmp_path.iterdir()] == ["r.checkpoint"]
    best = policy_iteration(rows_of(maze), 0.999, maze.sense).values
    assert float(np.abs(solution.values - best).max()) <= solution.error_bound


@pytest.mark.parametrize("compiles", [False, True])
def test_the_clock_runs_from_where_workers_have_loaded_their_code(
    compiles: bool, ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on one machine; where loops have to be compiled, that is said once."""
    said: list[str] = []
    passed, stands = 0.0, threading.Event()
    update = termination.SolveClock.update

    def looked(self: termination.SolveClock, statuses: Any, going: bool) -> None:
        update(self, statuses, going)
        if self._loading_since is not None:
            stands.set()

    def load(*_: Any, **__: Any) -> None:
        nonlocal passed
        if compiles:
            njit(lambda x: x + 1)(1)
        assert stands.wait(300)  # the coordinator has seen that nobody is ready
        held.wait(300)
        passed = 1000.0

    held = threading.Barrier(2)
    monkeypatch.setattr(termination, "_MAX_LOADING", 1e6)
    monkeypatch.setattr(termination, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    monkeypatch.setattr(termination.SolveClock, "update", looked)
    monkeypatch.setattr(worker, "load_code", load)
    options = SolveOptions(0.9, epsilon=1e-6, device="cpu", cache=CacheSize(share=0.6))
    solution = solve_distributed(ragged, options, asked=ClusterOptions(clusters[2]), note=said.append)
    check(ragged, 0.9, solution, size=100.0)
    assert passed == 1000.0
    assert solution.statistics.solve_seconds < 1000.0
    assert sum("compiling loops" in text for text in said) == compiles


def test_workers_that_never_have_loaded_their_code_stop_the_clock_for_a_while_only(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(worker, "load_code", lambda *_, **__: released.wait(300))
    monkeypatch.setattr(termination, "_MAX_LOADING", 0.3)
    monkeypatch.setattr(transport, "_END_SECONDS", 0.1)
    began = time.monotonic()
    try:
        solution = solve(ragged, 0.9, clusters[2], epsilon=1e-6, time_limit=0.5)
    finally:
        released.set()
    assert solution.outcome is Outcome.TIME_LIMIT
    assert 0.8 <= time.monotonic() - began < 300


def test_the_first_copy_does_not_wait_for_the_interval(
    maze: Store, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker becomes passive before there is a checkpoint."""
    no_end_before(checkpoint_path(tmp_path / "r").exists, monkeypatch)
    monkeypatch.setattr(snapshots, "_FIRST_SECONDS", 0.05)
    solution = solve(maze, 0.9, clusters[2], epsilon=1e-3, output=tmp_path / "r", checkpoint_interval=3600.0)
    check(maze, 0.9, solution)
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_checkpoint_that_cannot_be_written_ends_no_solve_of_several_workers(
    maze: Store, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker becomes passive before it was tried, on a full disk."""
    said = list[str]()

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    no_end_before(lambda: any("checkpoint" in text for text in said), monkeypatch)
    monkeypatch.setattr(snapshots, "_FIRST_SECONDS", 0.05)
    monkeypatch.setattr("ooc_mdp.store.checkpoint.fsync_path", full)
    how: dict[str, Any] = {"checkpoint_interval": 3600.0}
    check(maze, 0.9, solve(maze, 0.9, clusters[2], epsilon=1e-3, output=tmp_path / "r", note=said.append, **how))
    (told,) = [text for text in said if "checkpoint" in text]
    assert "No space left on device; the solve goes on" in told
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_target_below_the_rounding_is_refused_by_several_workers_too(maze: Store, clusters: Clusters) -> None:
    solution = solve(maze, 0.99, clusters[2], epsilon=1e-15)
    assert solution.outcome is Outcome.PRECISION_LIMIT
