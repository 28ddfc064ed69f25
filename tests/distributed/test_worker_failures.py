"""Solves on several workers of which some fail, hang or are busy, or whose messages are lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from small_mdps import Case, make_store
from store_models import random_model
from worker_clusters import PATIENCE, Clusters, Later, check, no_end_before, placed, solve

import ooc_mdp
from ooc_mdp.distributed import coordinator, endpoint, stragglers, subscriptions, termination, transport, worker
from ooc_mdp.distributed import solve as solve_module
from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import SnapshotRequest, Status
from ooc_mdp.errors import StoreError
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import CacheSize, ClusterOptions, RunOptions, SolveOptions
from ooc_mdp.solver import session
from ooc_mdp.store import Store

Deliver = Callable[[Any, str, str, Any], Awaitable[bool]]


FAULTS = ("lost", "slow", "twice", "no receipt", "late")


def faulty(deliver: Deliver, seed: int, met: set[str]) -> Deliver:
    """Messages that are lost, late, repeated, without a receipt, or arrive after a newer one: of ten, one each.

    `met` gets the faults that there were.
    """
    rng = random.Random(seed)
    fates: list[str] = []
    late: list[asyncio.Task[bool]] = []  # an event loop keeps no task alive

    async def delivered(worker: Any, run: str, address: str, message: Any) -> bool:
        async def after(seconds: float) -> bool:
            await asyncio.sleep(seconds)
            return await deliver(worker, run, address, message)

        if not fates:
            fates.extend(rng.sample([*FAULTS, *["none"] * 5], 10))
        fate = fates.pop()
        met.add(fate)
        if fate == "slow":
            return await after(rng.uniform(0, 0.05))
        if fate == "late":
            late.append(asyncio.ensure_future(after(rng.uniform(0.2, 0.5))))
        elif fate in ("twice", "no receipt"):
            await deliver(worker, run, address, message)
        return False if fate in ("lost", "late", "no receipt") else await deliver(worker, run, address, message)

    return delivered


@pytest.mark.parametrize(
    ("method", "placement", "seed"),
    [
        ("p-eva", "random", 1),
        ("p-eva", "random, rebalanced", 2),
        ("vi", "random", 3),
        ("policy-iteration", "blocks, rebalanced", 4),
    ],
)
def test_messages_that_are_lost_late_or_double_change_no_answer(
    method: str,
    placement: str,
    seed: int,
    ragged: Store,
    clusters: Clusters,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met: set[str] = set()
    monkeypatch.setattr(endpoint, "_deliver", faulty(endpoint._deliver, seed, met))
    monkeypatch.setattr(subscriptions, "_RETRY_SECONDS", 0.02)
    solution = solve(ragged, 0.9, clusters[4], method=method, epsilon=1e-6, **placed(placement))
    check(ragged, 0.9, solution, size=100.0)
    assert met >= set(FAULTS)


def test_a_worker_that_stands_still_holds_up_nobody_else(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others become passive while it stands still."""
    exchange, wait = worker.NetworkPeers.exchange, worker.NetworkPeers.wait_until_dirty
    standing, enough, waiting = threading.Event(), threading.Event(), set[int]()

    def slow(self: Any) -> None:
        if self._asked.number == 0 and not self._paused and not standing.is_set():
            standing.set()
            assert enough.wait(300)
        exchange(self)

    def noted(self: Any) -> None:
        if standing.is_set():
            waiting.add(self._asked.number)
            if waiting == {1, 2, 3}:
                enough.set()
        wait(self)

    monkeypatch.setattr(worker.NetworkPeers, "exchange", slow)
    monkeypatch.setattr(worker.NetworkPeers, "wait_until_dirty", noted)
    check(ragged, 0.9, solve(ragged, 0.9, clusters[4], epsilon=1e-6, placement="random"), size=100.0)
    assert enough.is_set()


def test_two_solves_share_the_workers_of_a_cluster(ragged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first is at work."""
    exchange, install = worker.NetworkPeers.exchange, solve_module.install_plugin
    working, second = threading.Event(), threading.Event()
    solutions = list[ooc_mdp.Solution]()

    def waiting(self: Any) -> None:
        working.set()
        assert second.wait(300)
        exchange(self)

    def begin_second(client: Client) -> None:
        install(client)
        if working.is_set():
            second.set()

    monkeypatch.setattr(worker.NetworkPeers, "exchange", waiting)
    monkeypatch.setattr(solve_module, "install_plugin", begin_second)
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
        assert working.wait(300)
        solutions.append(solve(ragged, 0.9, client, epsilon=1e-6))
        beside.join(300)
    assert len(solutions) == 2
    for solution in solutions:
        check(ragged, 0.9, solution, size=100.0)
        assert not any(w.lost for w in solution.statistics.workers)


FREE = threading.Event()
"""Set where workers of this process have nothing else to do."""
BEGUN = threading.Semaphore(0)


def occupy() -> None:
    BEGUN.release()
    assert FREE.wait(600)


@contextlib.contextmanager
def busy(client: Client, *which: int) -> Iterator[None]:
    """Workers of one thread, by their place in the order of addresses, busy with something else until `FREE`."""
    FREE.clear()
    addresses = sorted(client.ncores())
    tasks = [client.submit(occupy, workers=[addresses[k]], pure=False) for k in which]
    try:
        for _ in tasks:
            assert BEGUN.acquire(timeout=300)
        yield
    finally:
        FREE.set()
        client.gather(tasks)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patience with workers that do not start, or hang, is over at the second check."""
    monkeypatch.setattr(stragglers, "time", Later())
    monkeypatch.setattr(transport, "_PROBE_SECONDS", 60.0)


def solve_noting(
    store: Store,
    client: Client,
    share: float = 0.6,
    notes: list[str] | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> tuple[ooc_mdp.Solution, str]:
    """A solution, and what was said on the way; caches hold a share of the table."""
    notes = [] if notes is None else notes
    asked = SolveOptions(0.9, device="cpu", cache=CacheSize(share=share), **options)
    solution = solve_module.solve_distributed(
        store,
        asked,
        RunOptions(time_limit=time_limit),
        asked=ClusterOptions(client, placement="blocks", worker_timeout=PATIENCE),
        note=notes.append,
    )
    return solution, "\n".join(notes)


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_is_busy_with_something_else_is_not_waited_for_longer_than_the_patience(
    ragged: Store, clusters: Clusters
) -> None:
    with busy(clusters[2], 1):
        solution, said = solve_noting(ragged, clusters[2], epsilon=1e-6)
    check(ragged, 0.9, solution, size=100.0)
    assert [(w.lost, w.partitions) for w in solution.statistics.workers[:2]] == [(False, 12), (True, 0)]
    assert "has not started in 300 s: its threads are busy with other tasks of the cluster" in said


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_was_busy_takes_part_once_it_is_free(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other does not become passive before it does."""
    exchange, wait = worker.NetworkPeers.exchange, worker.NetworkPeers.wait_until_dirty
    notes = list[str]()

    def patient(self: Any) -> None:
        FREE.set()
        while not any("takes part from now on" in text for text in notes):
            time.sleep(0.01)
            exchange(self)
        wait(self)

    monkeypatch.setattr(worker.NetworkPeers, "wait_until_dirty", patient)
    monkeypatch.setattr(stragglers, "_DISCOVERY_SECONDS", 0.02)
    with busy(clusters[2], 1):
        solution, said = solve_noting(ragged, clusters[2], notes=notes, epsilon=1e-6)
    check(ragged, 0.9, solution, size=100.0)
    assert "takes part from now on" in said
    assert [w.lost for w in solution.statistics.workers] == [False, True, False]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("method", ["p-eva", "vi", "policy-iteration"])
def test_who_comes_late_gets_partitions_where_another_has_all_of_them_in_its_cache(
    method: str, ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes once all are there, and the other does not finish before it has some."""
    exchange, joined = worker.NetworkPeers.exchange, threading.Event()

    def held(self: Any) -> None:
        exchange(self)
        if self._asked.number == 0 and self._state.cache.present.all():
            FREE.set()
            while self._state.target.dirty().any() and not joined.wait(0.01):
                exchange(self)
        elif self._asked.number > 1 and self.owned.any():
            joined.set()

    monkeypatch.setattr(worker.NetworkPeers, "exchange", held)
    monkeypatch.setattr(stragglers, "_DISCOVERY_SECONDS", 0.02)
    with busy(clusters[2], 1):
        solution, _ = solve_noting(ragged, clusters[2], share=1.0, epsilon=1e-6, method=method)
    check(ragged, 0.9, solution, size=100.0)
    assert [w.lost for w in solution.statistics.workers] == [False, True, False]
    assert all(w.partitions for w in solution.statistics.workers if not w.lost)


@pytest.mark.usefixtures("impatient")
def test_a_limit_ends_a_solve_whose_workers_are_all_busy_with_something_else(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reached once it was said that no worker has started."""
    notes: list[str] = []
    with busy(clusters[2], 0, 1), monkeypatch.context() as patch:
        patch.setattr(termination, "time", Later(lambda: any("has started" in text for text in notes)))
        solution, said = solve_noting(ragged, clusters[2], notes=notes, epsilon=1e-6, time_limit=900.0)
        assert not FREE.is_set()
    assert solution.outcome is Outcome.TIME_LIMIT
    assert solution.error_bound == np.inf
    assert "no worker has started in 300 s: their threads are busy with other tasks of the cluster" in said
    check(ragged, 0.9, solve(ragged, 0.9, clusters[2], epsilon=1e-6), size=100.0)


def test_a_limit_ends_a_solve_one_of_whose_workers_hangs_when_it_is_asked_for_a_copy(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reached once the copy was asked for and the solve has reported."""
    exchange, put, released = worker.NetworkPeers.exchange, Mailbox.put, threading.Event()
    reports, asked, went_on = list[SolveProgress](), threading.Event(), threading.Event()

    def hung(self: Any) -> None:
        if self._asked.number == 1 and asked.is_set():
            assert released.wait(600)
            went_on.set()
        exchange(self)

    def noted(self: Mailbox, message: Any) -> None:
        if self.number == 1 and isinstance(message, Request) and isinstance(message.command, SnapshotRequest):
            asked.set()
        put(self, message)

    monkeypatch.setattr(worker.NetworkPeers, "exchange", hung)
    monkeypatch.setattr(Mailbox, "put", noted)
    no_end_before(asked.is_set, monkeypatch)
    monkeypatch.setattr(transport, "_END_SECONDS", 0.1)
    monkeypatch.setattr(session, "_REPORT_SECONDS", 0.0)
    for module in (termination, coordinator, session):
        monkeypatch.setattr(module, "time", Later(lambda: bool(reports) and asked.is_set()))
    how: dict[str, Any] = {"time_limit": 900.0, "checkpoint_interval": 0.01, "progress": reports.append}
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
    exchange, status_of = worker.NetworkPeers.exchange, Mailbox.status
    hanging, released = threading.Event(), threading.Event()

    def hung(self: Any) -> None:
        if self._asked.number == 1 and self.owned.any():
            hanging.set()
            assert released.wait(600)
        exchange(self)

    def stalled(self: Mailbox) -> Status:
        """As after a day."""
        status = status_of(self)
        return replace(
            status, stalled_seconds=status.stalled_seconds + 86_400.0 * (self.number == 1 and hanging.is_set())
        )

    monkeypatch.setattr(worker.NetworkPeers, "exchange", hung)
    monkeypatch.setattr(Mailbox, "status", stalled)
    monkeypatch.setattr(stragglers, "time", Later(hanging.is_set))
    try:
        solution, said = solve_noting(ragged, clusters[2], epsilon=1e-6, time_limit=600.0)
    finally:
        released.set()
    check(ragged, 0.9, solution, size=100.0)
    assert [(w.lost, w.partitions) for w in solution.statistics.workers[:2]] == [(False, 12), (True, 0)]
    assert re.search(r"worker 1 .* has not finished a step for 86\d\d\d s: its thread hangs", said)


def test_a_damaged_store_is_the_same_error_as_on_one_machine_and_leaves_no_output(
    clusters: Clusters, tmp_path: Path
) -> None:
    store = make_store(Case(random_model(5, 60), partitions=12), tmp_path / "s")
    chunk = max(p for p in (tmp_path / "s" / "rewards").rglob("c.*"))
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
