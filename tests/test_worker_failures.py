"""Solves on several workers of which some fail, hang, are busy or are killed, or whose messages are lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import environment
from distributed import Client, LocalCluster, wait
from small_mdps import Case, make_store, rows_of
from store_models import random_model
from worker_clusters import Clusters, check, solve

import ooc_mdp
from ooc_mdp.distributed import cluster, endpoint, laggards, newcomers, outbox, solver
from ooc_mdp.distributed import solve as solve_module
from ooc_mdp.errors import StoreError
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import CacheSize, ClusterOptions, RunOptions, SolveOptions
from ooc_mdp.reference import policy_iteration
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.solver import session
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path

KILLS = int(os.environ.get("OOC_MDP_KILLS", "3"))
"""Runs with a worker killed: `OOC_MDP_KILLS=50 pytest tests/test_worker_failures.py -k killed` makes 50."""


Deliver = Callable[[Any, str, str, Any], Awaitable[bool]]


def faulty(deliver: Deliver, seed: int, late: list[asyncio.Task[bool]]) -> Deliver:
    """Messages that are lost, late, told twice, without a receipt, or come once a newer one has come."""
    rng = random.Random(seed)

    async def delivered(worker: Any, run: str, address: str, message: Any) -> bool:
        async def after(seconds: float) -> bool:
            await asyncio.sleep(seconds)
            return await deliver(worker, run, address, message)

        fault = rng.random()
        if fault < 0.1:
            return False
        if fault < 0.2:
            return await after(rng.uniform(0, 0.05))
        if fault < 0.3:
            await deliver(worker, run, address, message)
            return await deliver(worker, run, address, message)
        if fault < 0.4:
            await deliver(worker, run, address, message)
            return False
        if fault < 0.5:
            late.append(asyncio.ensure_future(after(rng.uniform(0.2, 0.5))))
            return False
        return await deliver(worker, run, address, message)

    return delivered


@pytest.mark.parametrize(
    ("method", "placement", "seed"),
    [("p-eva", "random", 1), ("p-eva", "dynamic:random", 2), ("vi", "random", 3), ("policy-iteration", "dynamic", 4)],
)
def test_messages_that_are_lost_late_or_double_change_no_answer(
    method: str,
    placement: str,
    seed: int,
    ragged: Store,
    clusters: Clusters,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late: list[asyncio.Task[bool]] = []
    monkeypatch.setattr(endpoint, "_deliver", faulty(endpoint._deliver, seed, late))
    monkeypatch.setattr(outbox, "_RETRY_SECONDS", 0.02)
    solution = solve(ragged, 0.9, clusters[4], method=method, placement=placement, epsilon=1e-6)
    check(ragged, 0.9, solution, size=100.0)
    assert late  # there were faults


def test_a_worker_that_stands_still_holds_up_nobody_else(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others come to rest while it stands still."""
    exchange, rest = solver.NetworkPeers.exchange, solver.NetworkPeers.rest
    standing, enough, resting = threading.Event(), threading.Event(), set[int]()

    def slow(self: Any) -> None:
        if self._asked.number == 0 and not standing.is_set():
            standing.set()
            assert enough.wait(120)
        exchange(self)

    def noted(self: Any) -> None:
        if standing.is_set():
            resting.add(self._asked.number)
            if resting == {1, 2, 3}:
                enough.set()
        rest(self)

    monkeypatch.setattr(solver.NetworkPeers, "exchange", slow)
    monkeypatch.setattr(solver.NetworkPeers, "rest", noted)
    check(ragged, 0.9, solve(ragged, 0.9, clusters[4], epsilon=1e-6, placement="random"), size=100.0)
    assert enough.is_set()


def test_two_solves_share_the_workers_of_a_cluster(ragged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first is at work."""
    exchange, ready = solver.NetworkPeers.exchange, solve_module.make_ready
    working, second = threading.Event(), threading.Event()
    solutions = list[ooc_mdp.Solution]()

    def waiting(self: Any) -> None:
        working.set()
        assert second.wait(60)
        exchange(self)

    def begin_second(client: Client) -> Any:
        hosts = ready(client)
        if working.is_set():
            second.set()
        return hosts

    monkeypatch.setattr(solver.NetworkPeers, "exchange", waiting)
    monkeypatch.setattr(solve_module, "make_ready", begin_second)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, processes=False, dashboard_address=":0", memory_limit=None
        ) as shared,
        Client(shared, set_as_default=False) as client,
    ):

        def first() -> None:
            solutions.append(solve(ragged, 0.9, client, epsilon=1e-6))

        beside = threading.Thread(target=first)
        beside.start()
        assert working.wait(60)
        solutions.append(solve(ragged, 0.9, client, epsilon=1e-6))
        beside.join(60)
    assert len(solutions) == 2
    for solution in solutions:
        check(ragged, 0.9, solution, size=100.0)
        assert not any(w.lost for w in solution.statistics.workers)


FREE = threading.Event()
"""Set where workers of this process have nothing else to do."""
BEGUN = threading.Semaphore(0)


def occupy() -> None:
    BEGUN.release()
    assert FREE.wait(120)


@contextlib.contextmanager
def busy(client: Client, *which: int) -> Iterator[None]:
    """Workers of one thread, by their place in the order of addresses, busy with something else until `FREE`."""
    FREE.clear()
    addresses = sorted(client.ncores())
    tasks = [client.submit(occupy, workers=[addresses[k]], pure=False) for k in which]
    try:
        for _ in tasks:
            assert BEGUN.acquire(timeout=60)
        yield
    finally:
        FREE.set()
        client.gather(tasks)


def told(
    store: Store, client: Client, patience: float, share: float = 0.6, time_limit: float | None = None, **options: Any
) -> tuple[ooc_mdp.Solution, str]:
    """A solution, and what was said on the way; caches hold a share of the table."""
    notes: list[str] = []
    asked = SolveOptions(0.9, device="cpu", cache=CacheSize(share=share), **options)
    solution = solve_module.solve_distributed(
        store,
        asked,
        RunOptions(time_limit=time_limit),
        client=client,
        asked=ClusterOptions(placement="blocks", patience=patience),
        note=notes.append,
    )
    return solution, "\n".join(notes)


def test_a_worker_that_is_busy_with_something_else_is_not_waited_for_longer_than_the_patience(
    ragged: Store, clusters: Clusters
) -> None:
    with busy(clusters[2], 1):
        solution, said = told(ragged, clusters[2], 2.0, epsilon=1e-6)
    check(ragged, 0.9, solution, size=100.0)
    assert [(w.lost, w.partitions) for w in solution.statistics.workers[:2]] == [(False, 12), (True, 0)]
    assert "has not begun in 2 s: its threads are busy with other tasks of the cluster" in said


def test_a_worker_that_was_busy_takes_part_once_it_is_free(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, rest = solver.NetworkPeers.exchange, solver.NetworkPeers.rest
    joined = threading.Event()

    def noticed(self: Any) -> None:
        if self._asked.number > 1:
            joined.set()
        exchange(self)

    def patient(self: Any) -> None:
        FREE.set()
        while not joined.wait(0.01):
            self.exchange()
        rest(self)

    monkeypatch.setattr(solver.NetworkPeers, "exchange", noticed)
    monkeypatch.setattr(solver.NetworkPeers, "rest", patient)
    monkeypatch.setattr(newcomers, "_LOOK_SECONDS", 0.02)
    with busy(clusters[2], 1):
        solution, said = told(ragged, clusters[2], 2.0, epsilon=1e-6)
    check(ragged, 0.9, solution, size=100.0)
    assert "takes part from now on" in said
    assert [w.lost for w in solution.statistics.workers] == [False, True, False]


@pytest.mark.parametrize("method", ["p-eva", "vi", "policy-iteration"])
def test_who_comes_late_gets_partitions_where_another_has_all_of_them_in_its_cache(
    method: str, ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes once all are there, and the other does not finish before it has some."""
    exchange, joined = solver.NetworkPeers.exchange, threading.Event()

    def held(self: Any) -> None:
        exchange(self)
        if self._asked.number == 0 and self._state.cache.present.all():
            FREE.set()
            while self._state.target.dirty().any() and not joined.wait(0.01):
                exchange(self)
        elif self._asked.number > 1 and self.owned.any():
            joined.set()

    monkeypatch.setattr(solver.NetworkPeers, "exchange", held)
    monkeypatch.setattr(newcomers, "_LOOK_SECONDS", 0.02)
    with busy(clusters[2], 1):
        solution, _ = told(ragged, clusters[2], 2.0, share=1.0, epsilon=1e-6, method=method)
    check(ragged, 0.9, solution, size=100.0)
    assert [w.lost for w in solution.statistics.workers] == [False, True, False]
    assert all(w.partitions for w in solution.statistics.workers if not w.lost)


def test_a_limit_ends_a_solve_whose_workers_are_all_busy_with_something_else(ragged: Store, clusters: Clusters) -> None:
    with busy(clusters[2], 0, 1):
        solution, said = told(ragged, clusters[2], 2.0, epsilon=1e-6, time_limit=4.0)
        assert not FREE.is_set()
    assert solution.outcome is Outcome.TIME_LIMIT
    assert solution.error_bound == np.inf
    assert "no worker has begun in 2 s: their threads are busy with other tasks of the cluster" in said
    check(ragged, 0.9, solve(ragged, 0.9, clusters[2], epsilon=1e-6), size=100.0)


def test_a_limit_ends_a_solve_one_of_whose_workers_hangs_when_it_is_asked_for_a_copy(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, released, reports = solver.NetworkPeers.exchange, threading.Event(), list[SolveProgress]()
    went_on = threading.Event()

    def hung(self: Any) -> None:
        if self._asked.number == 1:
            assert released.wait(120)
            went_on.set()
        exchange(self)

    monkeypatch.setattr(solver.NetworkPeers, "exchange", hung)
    monkeypatch.setattr(cluster, "_END_SECONDS", 0.1)
    monkeypatch.setattr(session, "_REPORT_SECONDS", 0.0)
    how: dict[str, Any] = {"time_limit": 2.0, "checkpoint_interval": 0.01, "patience": 2.0, "progress": reports.append}
    try:
        solution = solve(ragged, 0.9, clusters[2], epsilon=1e-6, **how)
        assert not went_on.is_set()
    finally:
        released.set()
    assert solution.outcome is Outcome.TIME_LIMIT
    assert reports


def test_a_worker_whose_thread_hangs_while_it_answers_is_given_up(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, released = solver.NetworkPeers.exchange, threading.Event()

    def hung(self: Any) -> None:
        if self._asked.number == 1 and self.owned.any():
            assert released.wait(120)
        exchange(self)

    monkeypatch.setattr(solver.NetworkPeers, "exchange", hung)
    monkeypatch.setattr(laggards, "_STILL", 1)
    try:
        solution, said = told(ragged, clusters[2], 1.0, epsilon=1e-6, time_limit=60.0)
    finally:
        released.set()
    check(ragged, 0.9, solution, size=100.0)
    assert [(w.lost, w.partitions) for w in solution.statistics.workers[:2]] == [(False, 12), (True, 0)]
    assert re.search(r"worker 1 .* has not finished a step for \d+ s: its thread hangs", said)


def test_a_damaged_store_is_the_same_error_as_on_one_machine_and_leaves_no_output(
    clusters: Clusters, tmp_path: Path
) -> None:
    store = make_store(Case(random_model(5, 60), partitions=12), tmp_path / "s")
    chunk = max(p for p in (tmp_path / "s" / "rewards").rglob("*") if p.is_file() and p.name != "zarr.json")
    raw = bytearray(chunk.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    chunk.write_bytes(raw)
    with pytest.raises(StoreError) as here:
        ooc_mdp.solve(store, 0.9, device="cpu", cache="100%", output=tmp_path / "r")
    with pytest.raises(StoreError, match=re.escape(str(here.value).split("; what was solved")[0])):
        solve(store, 0.9, clusters[4], output=tmp_path / "q")
    assert {p.name for p in tmp_path.iterdir()} - {"q.checkpoint"} == {"s", "r.checkpoint"}
    check_healthy(clusters, tmp_path)


def check_healthy(clusters: Clusters, tmp_path: Path) -> None:
    """The same workers solve on after what went wrong before."""
    store = make_store(Case(random_model(6, 20), partitions=4), tmp_path / "healthy")
    check(store, 0.9, solve(store, 0.9, clusters[4], epsilon=1e-6), size=100.0)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_solves_with_a_worker_killed_at_a_random_moment_end_right(maze: Store) -> None:
    """Its nanny starts another in its place, which may take part again."""
    how: dict[str, Any] = {"epsilon": 1e-4, "placement": "random", "checkpoint_interval": 0.1, "patience": 30.0}
    best = policy_iteration(rows_of(maze), 0.99, maze.sense).values
    rng = random.Random(7)
    left, hit = KILLS, 0
    while left:
        with (
            LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0", memory_limit=None) as processes,
            Client(processes, set_as_default=False) as client,
        ):
            for _ in range(2):  # the first compiles
                began = time.monotonic()
                assert solve(maze, 0.99, client, **how).outcome.proved
                seconds = time.monotonic() - began
            while left:
                try:
                    client.wait_for_workers(3, timeout=10)
                except TimeoutError:  # now and then Dask's nanny starts a worker that does not come up
                    break
                victim = rng.choice(sorted(client.run(os.getpid, on_error="ignore").values()))
                timer = threading.Timer(rng.uniform(0, seconds), kill, (victim,))
                timer.start()
                solution = solve(maze, 0.99, client, **how)
                timer.join()
                left -= 1
                assert solution.outcome.proved
                assert float(np.abs(solution.values - best).max()) <= solution.error_bound <= 1e-4
                figures = solution.statistics.workers
                assert sum(w.partitions for w in figures if not w.lost) == maze.n_partitions
                hit += any(w.lost for w in figures)
    if KILLS >= 10:  # of a few, all may come before or after the solve
        assert hit >= KILLS // 4


@pytest.mark.slow
def test_a_worker_that_is_killed_once_it_has_ended_costs_its_memory_plan_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MemoryPlan({"values": 8}, {})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=None) as processes,
        Client(processes, set_as_default=False) as client,
    ):
        first, second = sorted(client.ncores())
        link = cluster.DaskLink(client, "run", lambda *_: None)  # type: ignore[arg-type, return-value]
        for number, address in enumerate((first, second)):
            link._tasks[number] = client.submit(lambda plan: ("done", plan), plan, workers=[address], pure=False)
        pid = client.submit(os.getpid, workers=[first], pure=False).result()

        def wait_and_kill(tasks: Any, timeout: float) -> None:
            wait(tasks, timeout)
            os.kill(pid, signal.SIGKILL)

        monkeypatch.setattr(cluster, "wait", wait_and_kill)
        assert link.finish([0, 1]) == [plan]


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
        client = Client(scheduler_file=str(where), timeout=60, set_as_default=False)
        try:
            client.wait_for_workers(2, timeout=60)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session, "_REPORT_SECONDS", 0.0)
                solution = solve(
                    coupled,
                    0.999,
                    client,
                    epsilon=1e-9,
                    method="p-eva",
                    placement="random",
                    output=tmp_path / "r",
                    progress=end_it,
                    checkpoint_interval=0.01,
                    patience=3.0,
                )
        finally:
            with contextlib.suppress(OSError, TimeoutError):
                client.close(timeout=2)
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert solution.outcome is Outcome.LOST
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
