"""Solves on several workers whose processes are killed, or whose scheduler is."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import environment
from distributed import Client, Future, LocalCluster, wait
from small_mdps import rows_of
from worker_clusters import Clusters, Later, check, solve

import ooc_mdp
from ooc_mdp.distributed import membership, transport
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.solution import Outcome
from ooc_mdp.reference import policy_iteration
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.solver import session
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path

MOMENTS = [("Start", 1), ("exchange", 1), ("SnapshotRequest", 1), ("exchange", 4), ("Assignment", 1), ("Stop", 1)]
"""Of a worker's solve: before it executes the n-th command of a kind, or looks for messages for the n-th time after it
started to sweep. Every worker comes to each of them, since it has partitions to visit."""
KILLS = int(os.environ.get("OOC_MDP_KILLS", "20"))
"""Solves with a worker killed: `OOC_MDP_KILLS=50 pytest tests/distributed/test_worker_kills.py -k killed` makes 50."""


def drawn_moments(rng: random.Random) -> Iterator[tuple[str, int]]:
    """Moments in drawn order, all of them before any comes again."""
    while True:
        yield from rng.sample(MOMENTS, len(MOMENTS))


def have_killed(client: Client, victim: str, what: str, nth: int) -> None:
    """Have the process of a worker kill itself at one of the moments of its next solve."""

    def prepare() -> None:  # in the worker's process, which does not know this module
        import os
        import signal

        from ooc_mdp.distributed.worker import NetworkPeers

        usual, left = getattr(NetworkPeers, "exchange" if what == "exchange" else "_execute"), nth

        def counted(self: Any, *request: Any) -> None:
            nonlocal left
            left -= not request or type(request[0].command).__name__ == what
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            usual(self, *request)

        setattr(NetworkPeers, usual.__name__, counted)

    client.run(prepare, workers=[victim])


def answering(client: Client) -> list[str]:
    """The workers that answer, once there are three; now and then Dask's nanny starts one that does not come up."""
    try:
        client.wait_for_workers(3, timeout=60)
    except TimeoutError:
        return []
    return sorted(client.run(os.getpid, on_error="ignore"))


@pytest.mark.slow
def test_solves_with_a_worker_killed_at_a_drawn_moment_end_right(maze: Store) -> None:
    """Its nanny starts another in its place, which may take part again."""
    how: dict[str, Any] = {"epsilon": 1e-4, "checkpoint_interval": 0.1}
    best = policy_iteration(rows_of(maze), 0.99, maze.sense).values
    local = ooc_mdp.solve(maze, 0.99, epsilon=1e-4, device="cpu", cache="60%")
    rng, left = random.Random(7), KILLS
    moments = drawn_moments(rng)
    while left:
        with (
            LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0", memory_limit=None) as processes,
            Client(processes, set_as_default=False) as client,
        ):
            assert solve(maze, 0.99, client, **how).outcome.proved  # it compiles
            while left and len(workers := answering(client)) == 3:
                (what, nth), victim, said = next(moments), rng.choice(workers), list[str]()
                have_killed(client, victim, what, nth)
                asked = {"placement": rng.choice(["random", "blocks"]), "note": said.append}
                solution = solve(maze, 0.99, client, **how, **asked)
                left -= 1
                assert solution.outcome.proved
                assert float(np.abs(solution.values - best).max()) <= solution.error_bound <= 1e-4
                apart = float(np.abs(solution.values - local.values).max())
                assert apart <= solution.error_bound + local.error_bound
                assert sum(w.partitions for w in solution.statistics.workers if not w.lost) == maze.n_partitions
                assert any(f"({victim}) is lost" in text for text in said) == (what != "Stop"), (what, nth)
                print(f"killed at {what} {nth}: error {solution.error_bound:.2g}, {apart:.2g} from the local solve")


@pytest.mark.slow
def test_a_worker_that_is_killed_once_it_has_ended_costs_its_memory_plan_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MemoryPlan({"values": 8}, {})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=None) as processes,
        Client(processes, set_as_default=False) as client,
    ):
        first, second = sorted(client.ncores())
        link = transport.DaskTransport(client, "run", lambda *_: None)  # type: ignore[arg-type, return-value]
        for number, address in enumerate((first, second)):
            link._tasks[number] = client.submit(lambda plan: ("done", plan), plan, workers=[address], pure=False)
        pid = client.submit(os.getpid, workers=[first], pure=False).result()
        lost, result = link._tasks[0].key, Future.result

        def wait_and_kill(tasks: Any, timeout: float) -> None:
            wait(tasks, 300)
            os.kill(pid, signal.SIGKILL)

        def awaited(future: Any, timeout: float) -> Any:
            return result(future, 1.0 if future.key == lost else 300.0)

        monkeypatch.setattr(transport, "wait", wait_and_kill)
        monkeypatch.setattr(Future, "result", awaited)
        assert link.join([0, 1]) == [plan]


def have_wait_for(client: Client, path: Path) -> None:
    """Have the workers' solves come to no end, and sweep no more once a file is there."""

    def prepare() -> None:  # in the workers' processes, which do not know this module
        import time

        from ooc_mdp.distributed.worker import NetworkPeers

        exchange = NetworkPeers.exchange

        def exchanged(self: Any) -> None:
            exchange(self)
            while path.exists():
                exchange(self)
                time.sleep(0.01)

        def wait(self: Any) -> None:
            while True:
                self.exchange()
                time.sleep(0.01)

        NetworkPeers.exchange, NetworkPeers.wait_until_dirty = exchanged, wait  # type: ignore[method-assign]

    client.run(prepare)


@pytest.mark.slow
def test_the_loss_of_the_scheduler_leaves_a_checkpoint_to_go_on_from(
    coupled: Store, clusters: Clusters, tmp_path: Path
) -> None:
    """Killed while the workers solve, once there is a copy."""
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    where = tmp_path / "scheduler.json"
    running = [subprocess.Popen([*dask, "--no-dashboard", "--scheduler-file", str(where)], **QUIET)]
    try:
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(where), "--no-nanny"]
        for name in ("a", "b"):
            more = ["--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path / name)]
            running.append(subprocess.Popen([*worker, *more], **QUIET))

        def end_it(progress: SolveProgress) -> None:
            if checkpoint_path(tmp_path / "r").exists():
                running[0].kill()

        while not where.exists():
            assert running[0].poll() is None
            time.sleep(0.1)
        client = Client(scheduler_file=str(where), timeout=300, set_as_default=False)
        try:
            client.wait_for_workers(2, timeout=300)
            have_wait_for(client, checkpoint_path(tmp_path / "r"))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session, "_REPORT_SECONDS", 0.0)
                patch.setattr(membership, "time", Later(lambda: running[0].poll() is not None))
                how: dict[str, Any] = {"epsilon": 1e-9, "method": "p-eva", "placement": "random", "progress": end_it}
                solution = solve(coupled, 0.999, client, output=tmp_path / "r", checkpoint_interval=0.01, **how)
        finally:
            with contextlib.suppress(OSError, TimeoutError):
                client.close(timeout=2)
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert solution.outcome is Outcome.WORKERS_LOST
    assert checkpoint_path(tmp_path / "r").exists()
    assert not (tmp_path / "r").exists()
    again = solve(coupled, 0.999, clusters[2], epsilon=100.0, output=tmp_path / "r", resume=True)
    check(coupled, 0.999, again, size=100.0)


QUIET: dict[str, Any] = {
    "env": environment(),
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.DEVNULL,
    "stderr": subprocess.DEVNULL,
}
