"""Solves on several workers: right whatever the method, placement and number, and whatever fails on the way.

Most run on clusters of threads in this process, which start at once and let a test put faults between the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import environment, ooc, process, refused, start
from distributed import Client, LocalCluster, wait
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, distance, make_store, optimum, rows_of, stored
from store_models import random_model

import ooc_mdp
from ooc_mdp.distributed import cluster, coordinator, endpoint, solver
from ooc_mdp.distributed import solve as solve_module
from ooc_mdp.errors import ClusterError, OptionsError, StoreError
from ooc_mdp.events import SolveProgress
from ooc_mdp.memory_plan import MemoryPlan
from ooc_mdp.methods.checkpoint import checkpoint_path
from ooc_mdp.options import CacheSize, ClusterOptions, SolveOptions
from ooc_mdp.reference import policy_iteration
from ooc_mdp.solution import Outcome
from ooc_mdp.store import Store

CASES = Path(__file__).parents[1].parent / "shared" / "cases" / "public"
NAMES = sorted(p.name for p in CASES.glob("*") if (p / "case.json").exists()) if CASES.exists() else []
METIS = "metis" if find_spec("pymetis") is not None else "attractors:2"
METHODS: list[tuple[str, str | None]] = [
    ("p-eva", "joint"),
    ("p-eva", "h1"),
    ("p-eva", "h2"),
    ("vi", None),
    ("policy-iteration", None),
]
PLACEMENTS = ["blocks", "random", "attractors", METIS, "dynamic", "dynamic:random"]
KILLS = int(os.environ.get("OOC_MDP_KILLS", "3"))
"""Runs with a worker killed: `OOC_MDP_KILLS=50 pytest tests/test_distributed.py -k killed` makes 50."""


class Clusters:
    """Clients of clusters of threads in this process, by their number of workers."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._clients = stack, dict[int, Client]()

    def __getitem__(self, workers: int) -> Client:
        if workers not in self._clients:
            cluster = self._stack.enter_context(
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=False,
                    dashboard_address=":0",
                    memory_limit=None,
                )
            )
            self._clients[workers] = self._stack.enter_context(Client(cluster, set_as_default=False))
        return self._clients[workers]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with ExitStack() as stack:
        yield Clusters(stack)


def solve(store: Store, discount: float, client: Client, **options: Any) -> ooc_mdp.Solution:
    return ooc_mdp.solve(
        store,
        discount,
        client=client,
        device="cpu",
        **{"cache": "60%", "time_limit": 60.0, "placement": "blocks", **options},
    )


def check(store: Store, discount: float, solution: ooc_mdp.Solution, size: float = 1.0) -> None:
    """The certified error holds against an independent solver; all was counted that was done."""
    best = policy_iteration(rows_of(store), discount, store.sense).values
    assert solution.outcome.proved
    assert solution.error_bound <= solution.certificate.target
    assert float(np.abs(solution.values - best).max()) <= solution.error_bound + 1e-11 * size
    check_counts(store, solution)


def check_counts(store: Store, solution: ooc_mdp.Solution) -> None:
    s = solution.statistics
    assert s.hits + s.misses == s.accesses
    assert s.cache_peak_bytes <= s.cache_bytes
    assert sum(w.loads for w in s.workers) == s.loads
    assert sum(w.backups for w in s.workers) == s.backups
    assert sum(w.bytes_read for w in s.workers) == s.bytes_read
    assert sum(w.partitions for w in s.workers) == store.n_partitions
    assert all(0.0 <= w.hit_rate <= 1.0 for w in s.workers)


# ----------------------------------------------------------------------------------------------------- right answers


@pytest.mark.skipif(not NAMES, reason="the shared cases are not here")
@pytest.mark.parametrize("name", NAMES)
def test_public_cases_on_1_2_and_4_workers_have_the_reference_values(
    name: str, clusters: Clusters, tmp_path: Path
) -> None:
    """Methods and placements take turns over the cases; each result is written, and verified against the store."""
    problems = json.loads((CASES / name / "case.json").read_text())["problems"]
    n = np.load(CASES / name / "model.npz")["state_ptr"].size - 1
    stores = {
        sense: ooc_mdp.convert(
            CASES / name / "model.npz", tmp_path / f"{sense}.store", sense=sense, partitions=min(n, 5), workers=1
        )
        for sense in {problem["objective"] for problem in problems}
    }
    turn = NAMES.index(name)
    for problem, (i, workers) in itertools.product(problems, enumerate((1, 2, 4))):
        store = stores[problem["objective"]]
        expected = np.load(CASES / name / "reference.npz")["V_" + problem["key"]]
        scale = max(1.0, float(np.abs(expected).max()))
        method, priority = METHODS[(turn + 2 * i) % len(METHODS)]
        output = tmp_path / f"{problem['key']}-{workers}"
        solution = solve(
            store,
            problem["discount"],
            clusters[workers],
            method=method,
            priority=priority,
            placement=PLACEMENTS[(turn + i) % len(PLACEMENTS)],
            epsilon=1e-6 * scale,
            output=output,
        )
        assert solution.outcome.proved
        assert solution.error_bound <= 1e-6 * scale
        assert float(np.abs(solution.values - expected).max()) <= solution.error_bound
        check_counts(store, solution)
        assert ooc_mdp.verify(store, output).holds


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Ragged rows, durations, terminal states, initial values; minimised."""
    model = random_model(11, 60, durations=True, initial_values=True)
    return make_store(Case(model, "min", partitions=12), tmp_path_factory.mktemp("ragged") / "s")


@pytest.mark.parametrize(
    ("method", "priority", "placement"),
    [(*way, placement) for way in METHODS for placement in ("random", "dynamic")]
    + [("p-eva", "joint", placement) for placement in PLACEMENTS if placement not in ("random", "dynamic")],
)
def test_each_method_and_placement_proves_the_values_of_a_ragged_table(
    method: str, priority: str | None, placement: str, ragged: Store, clusters: Clusters
) -> None:
    solution = solve(
        ragged, 0.9, clusters[4], method=method, priority=priority, placement=placement, epsilon=1e-6, cache="30%"
    )
    check(ragged, 0.9, solution, size=100.0)
    assert f"4 workers, {placement}" in solution.method


@pytest.mark.parametrize("partitions", [1, 3])
def test_workers_without_a_partition_do_no_harm(partitions: int, clusters: Clusters, tmp_path: Path) -> None:
    store = make_store(Case(random_model(2, 12), partitions=partitions), tmp_path / "s")
    solution = solve(store, 0.9, clusters[4], epsilon=1e-8)
    check(store, 0.9, solution, size=100.0)
    assert sorted(w.partitions for w in solution.statistics.workers) == [0] * (4 - partitions) + [1] * partitions


@pytest.mark.parametrize(
    ("cache", "asked", "taken"),
    [
        ("49%", "auto", "policy-iteration"),
        ("51%", "auto", "p-eva joint"),
        ("49%", "p-eva", "p-eva joint"),
        ("51%", "policy-iteration", "policy-iteration"),
    ],
)
def test_loads_are_saved_by_policy_iteration_only_where_the_caches_of_all_workers_do_not_hold_the_table(
    cache: str, asked: str, taken: str, coupled: Store, clusters: Clusters
) -> None:
    """A double pendulum, whose partitions read 14 others each; nothing is left to do at its first values."""
    how = {"epsilon": 1e9, "cache": cache, "method": asked, "device": "cpu"}
    solution = ooc_mdp.solve(coupled, 0.9, client=clusters[2], **how)
    assert solution.method == f"{taken}, 2 workers, blocks"


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A random MDP, whose partitions read all others and mostly these."""
    path = tmp_path_factory.mktemp("everywhere") / "s"
    return ooc_mdp.generate("random", path, {"states": 600, "actions": 3, "successors": 5, "seed": 1}, partitions=8)


@pytest.mark.parametrize(("cache", "sweeps"), [("100%", 200), ("30%", 60)])
def test_where_partitions_read_all_others_one_worker_does_what_one_process_does(
    cache: str, sweeps: int, everywhere: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All values are shifted together: at discount 0.9999 sweeps alone would take more than 100,000.

    Halos, which are long, need not be looked through for others' states.
    """
    monkeypatch.setattr("ooc_mdp.distributed.solver.split_halo", None)
    how = {"epsilon": 1e-6, "cache": cache, "placement": "auto", "method": "p-eva"}
    solution = solve(everywhere, 0.9999, clusters[4], **how)
    check(everywhere, 0.9999, solution, size=1e4)
    assert solution.method == "p-eva joint, 4 workers, alone"
    workers = solution.statistics.workers
    assert sorted(w.partitions for w in workers) == [0, 0, 0, 8]
    assert [w.backups > 0 for w in workers] == [w.partitions > 0 for w in workers]
    assert sum(w.messages for w in workers) == 0
    assert solution.statistics.backups <= sweeps * everywhere.n_states


def test_several_workers_share_what_reads_everywhere_if_asked(everywhere: Store, clusters: Clusters) -> None:
    solution = solve(everywhere, 0.9, clusters[2], epsilon=1e-3)
    check(everywhere, 0.9, solution)
    assert solution.method == "p-eva joint, 2 workers, blocks"
    assert sorted(w.partitions for w in solution.statistics.workers) == [4, 4]


def test_a_plain_residual_is_proved_too(ragged: Store, clusters: Clusters) -> None:
    solution = solve(ragged, 0.9, clusters[2], residual=1e-5)
    best = policy_iteration(rows_of(ragged), 0.9, "min").values
    assert solution.outcome is Outcome.RESIDUAL
    assert solution.certificate.residual_bound <= 1e-5
    assert float(np.abs(solution.values - best).max()) <= solution.error_bound


@settings(max_examples=8)
@given(
    case=cases(most_states=10, shortest=0.3),
    way=st.sampled_from(METHODS),
    placement=st.sampled_from(["random", "dynamic", "blocks"]),
    workers=st.sampled_from([2, 4]),
)
def test_the_certified_error_holds_against_exact_policy_iteration(
    case: Case, way: tuple[str, str | None], placement: str, workers: int, clusters: Clusters
) -> None:
    with stored(case) as store:
        best = optimum(rows_of(store), 0.9, case.sense)
        first = [state.initial_value for state in case.model.states]  # rounding goes by the largest value so far
        scale = max(1.0, *(abs(float(v)) for v in (*best, *first)))
        solution = solve(
            store,
            0.9,
            clusters[workers],
            method=way[0],
            priority=way[1],
            placement=placement,
            epsilon=1e-7 * scale,
            cache="100%",
        )
        assert solution.outcome.proved
        assert max(abs(d) for d in distance(solution.values, best)) <= solution.error_bound


# ---------------------------------------------------------------------------------------------------------- failures


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
    monkeypatch.setattr(solver, "_RETRY_SECONDS", 0.02)
    solution = solve(ragged, 0.9, clusters[4], method=method, placement=placement, epsilon=1e-6)
    check(ragged, 0.9, solution, size=100.0)
    assert late  # there were faults


def test_a_worker_that_stands_still_holds_up_nobody_else(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = solver._Solver.exchange
    standing, others = threading.Event(), dict[int, int]()
    enough = threading.Event()

    def slow(self: Any) -> None:
        if standing.is_set() and self._me:
            others[self._me] = others.get(self._me, 0) + 1
            if len(others) == 3 and sum(others.values()) >= 30:
                enough.set()
        if self._me == 0 and not standing.is_set():
            standing.set()
            assert enough.wait(60)
        exchange(self)

    monkeypatch.setattr(solver._Solver, "exchange", slow)
    check(ragged, 0.9, solve(ragged, 0.9, clusters[4], epsilon=1e-6, placement="random"), size=100.0)
    assert enough.is_set()


def test_two_solves_share_the_workers_of_a_cluster(ragged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first is at work."""
    exchange, ready = solver._Solver.exchange, solve_module.make_ready
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

    monkeypatch.setattr(solver._Solver, "exchange", waiting)
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
    store: Store, client: Client, patience: float, share: float = 0.6, **options: Any
) -> tuple[ooc_mdp.Solution, str]:
    """A solution, and what was said on the way; caches hold a share of the table."""
    notes: list[str] = []
    asked = SolveOptions(0.9, device="cpu", cache=CacheSize(share=share), **options)
    solution = solve_module.solve_distributed(
        store, asked, client, ClusterOptions(placement="blocks", patience=patience), note=notes.append
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
    exchange, rest = solver._Solver.exchange, solver._Solver.rest
    joined = threading.Event()

    def noticed(self: Any) -> None:
        if self._me > 1:
            joined.set()
        exchange(self)

    def patient(self: Any) -> bool:
        FREE.set()
        while not joined.wait(0.01):
            self.exchange()
        return rest(self)

    monkeypatch.setattr(solver._Solver, "exchange", noticed)
    monkeypatch.setattr(solver._Solver, "rest", patient)
    monkeypatch.setattr(coordinator, "_WELCOME_SECONDS", 0.02)
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
    exchange, joined = solver._Solver.exchange, threading.Event()

    def held(self: Any) -> None:
        exchange(self)
        if self._me == 0 and self._run.cache.present.all():
            FREE.set()
            while self._run.target.dirty().any() and not joined.wait(0.01):
                exchange(self)
        elif self._me > 1 and self._owned.any():
            joined.set()

    monkeypatch.setattr(solver._Solver, "exchange", held)
    monkeypatch.setattr(coordinator, "_WELCOME_SECONDS", 0.02)
    with busy(clusters[2], 1):
        solution, _ = told(ragged, clusters[2], 2.0, share=1.0, epsilon=1e-6, time_limit=30.0, method=method)
    check(ragged, 0.9, solution, size=100.0)
    assert [w.lost for w in solution.statistics.workers] == [False, True, False]
    assert all(w.partitions for w in solution.statistics.workers if not w.lost)


def test_a_limit_ends_a_solve_whose_workers_are_all_busy_with_something_else(ragged: Store, clusters: Clusters) -> None:
    began = time.monotonic()
    with busy(clusters[2], 0, 1):
        solution, said = told(ragged, clusters[2], 2.0, epsilon=1e-6, time_limit=4.0)
        assert time.monotonic() - began < 30
    assert solution.outcome is Outcome.TIME_LIMIT
    assert solution.error_bound == np.inf
    assert "no worker has begun in 2 s: their threads are busy with other tasks of the cluster" in said
    check(ragged, 0.9, solve(ragged, 0.9, clusters[2], epsilon=1e-6), size=100.0)


def test_a_limit_ends_a_solve_one_of_whose_workers_hangs_when_it_is_asked_for_a_copy(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, released, reports = solver._Solver.exchange, threading.Event(), list[SolveProgress]()

    def hung(self: Any) -> None:
        if self._me == 1:
            assert released.wait(120)
        exchange(self)

    monkeypatch.setattr(solver._Solver, "exchange", hung)
    monkeypatch.setattr(cluster, "_END_SECONDS", 0.1)
    how: dict[str, Any] = {"time_limit": 2.0, "checkpoint_interval": 0.01, "patience": 2.0, "progress": reports.append}
    began = time.monotonic()
    try:
        solution = solve(ragged, 0.9, clusters[2], epsilon=1e-6, **how)
        assert time.monotonic() - began < 30
    finally:
        released.set()
    assert solution.outcome is Outcome.TIME_LIMIT
    assert len(reports) > 2


def test_a_worker_whose_thread_hangs_while_it_answers_is_given_up(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, released = solver._Solver.exchange, threading.Event()

    def hung(self: Any) -> None:
        if self._me == 1 and self._owned.any():
            assert released.wait(120)
        exchange(self)

    monkeypatch.setattr(solver._Solver, "exchange", hung)
    monkeypatch.setattr(coordinator, "_STILL", 1)
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
    with pytest.raises(StoreError, match=re.escape(str(here.value))):
        solve(store, 0.9, clusters[4], output=tmp_path / "r")
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    check_healthy(clusters, tmp_path)


def check_healthy(clusters: Clusters, tmp_path: Path) -> None:
    """The same workers solve on after what went wrong before."""
    store = make_store(Case(random_model(6, 20), partitions=4), tmp_path / "healthy")
    check(store, 0.9, solve(store, 0.9, clusters[4], epsilon=1e-6), size=100.0)


def test_workers_of_another_version_are_refused_before_anything_starts(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(packages: tuple[str, ...], dask_worker: Any = None) -> dict[str, Any]:
        facts = endpoint.describe(packages, dask_worker)
        if dask_worker is None:
            facts["versions"]["numba"] = "0.1.2"
        return facts

    monkeypatch.setattr(cluster, "describe", older)
    monkeypatch.setattr(solve_module, "DaskLink", None)
    with pytest.raises(ClusterError, match=r"versions differ: inproc://.* has numba .*, here is 0\.1\.2.*and 1 more"):
        solve(ragged, 0.9, clusters[4])


def test_a_cluster_without_workers_is_refused(ragged: Store, clusters: Clusters) -> None:
    with pytest.raises(ClusterError, match="no workers; start some"):
        solve(ragged, 0.9, clusters[0])


def test_an_asynchronous_client_is_refused(ragged: Store, clusters: Clusters) -> None:
    async def ask() -> None:
        async with Client(clusters[2].scheduler.address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(OptionsError, match="not asynchronous"):
                solve(ragged, 0.9, client)

    asyncio.run(ask())


def test_a_closed_client_is_refused(ragged: Store, clusters: Clusters) -> None:
    client = Client(clusters[2].scheduler.address, set_as_default=False)
    client.close()
    with pytest.raises(ClusterError, match="the client is closed; give one that is connected"):
        solve(ragged, 0.9, client)


@pytest.mark.parametrize("how", [{"placement": "random"}, {"patience": 3.0}])
def test_what_only_several_workers_have_is_refused_without_them(how: dict[str, Any], ragged: Store) -> None:
    with pytest.raises(OptionsError, match=r"placement and patience .* are of solves on several workers"):
        ooc_mdp.solve(ragged, 0.9, device="cpu", **how)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"placement": "nearby"}, 'placement "nearby"'),
        ({"trace": "t.csv"}, "a trace is of one process"),
        ({"workers": 2}, "one of them says where to solve"),
        ({"exact_priorities": True}, "on one machine only"),
        ({"patience": 0.0}, "patience"),
    ],
)
def test_what_several_workers_cannot_do_is_refused(
    options: dict[str, Any], said: str, ragged: Store, clusters: Clusters
) -> None:
    with pytest.raises(OptionsError, match=said):
        solve(ragged, 0.9, clusters[2], **options)


def test_undiscounted_totals_are_left_to_one_machine(ragged: Store, clusters: Clusters) -> None:
    with pytest.raises(OptionsError, match="discount 1 is solved on one machine only"):
        solve(ragged, 1.0, clusters[2])


# ------------------------------------------------------------------------------------------------- limits, checkpoints


@pytest.fixture(scope="module")
def coupled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """81 partitions of 16 states."""
    path = tmp_path_factory.mktemp("coupled") / "s"
    return ooc_mdp.generate("double-pendulum", path, {"grid": "6,6,6,6"}, blocks=[3] * 4)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("maze") / "s"
    return ooc_mdp.generate("GW-24x4", path, {"seed": 1}, partitions=16, workers=1)


def interrupt_once_bounded(progress: SolveProgress) -> None:
    """A signal to this process, once each partition has been read."""
    if np.isfinite(progress.error_bound):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def stopped(maze: Store, clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Folder with the checkpoint of a solve on 4 workers that a signal stopped, and the error that was proved then."""
    place = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "_REPORT_SECONDS", 0.0)
        solution = solve(
            maze,
            0.999,
            clusters[4],
            epsilon=1e-9,
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


def test_a_checkpoint_of_several_workers_is_gone_on_from_without_reading_what_it_proves(
    maze: Store, stopped: tuple[Path, float], clusters: Clusters, tmp_path: Path
) -> None:
    """On several workers, on as many as one, and on one machine; bounds were kept for all partitions."""
    epsilon = 1.01 * stopped[1]
    for client in (clusters[4], clusters[1], None):
        (tmp_path / str(client and len(client.ncores()))).mkdir()
        output = copied(stopped, tmp_path / str(client and len(client.ncores())))
        options: dict[str, Any] = {"epsilon": epsilon, "output": output, "resume": True}
        if client is None:
            solution = ooc_mdp.solve(maze, 0.999, device="cpu", cache="60%", **options)
        else:
            solution = solve(maze, 0.999, client, **options)
            assert solution.statistics.loads == 0
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
    assert solution.statistics.seconds > 0


def test_a_checkpoint_of_one_machine_is_gone_on_from_by_several_workers(
    maze: Store, clusters: Clusters, tmp_path: Path
) -> None:
    output = tmp_path / "r"
    first = ooc_mdp.solve(
        maze, 0.999, device="cpu", cache="60%", epsilon=1e-9, output=output, time_limit=0.02, method="vi"
    )
    assert first.outcome is Outcome.TIME_LIMIT
    assert checkpoint_path(output).exists()
    epsilon = 1.01 * first.error_bound if np.isfinite(first.error_bound) else 1e-6
    solution = solve(maze, 0.999, clusters[4], epsilon=epsilon, output=output, resume=True)
    check(maze, 0.999, solution, size=100.0)
    assert ooc_mdp.verify(maze, output).holds
    if epsilon > first.error_bound:
        assert solution.statistics.loads == 0


def test_a_time_limit_ends_a_solve_with_a_checkpoint(
    maze: Store, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after the workers are told to go."""
    limit = coordinator.Coordinator._limit
    monkeypatch.setattr(coordinator.Coordinator, "_limit", lambda self: limit(self) if self._going else None)
    began = time.monotonic()
    solution = solve(
        maze, 0.999, clusters[4], epsilon=1e-9, output=tmp_path / "r", time_limit=0.05, checkpoint_interval=0.05
    )
    assert solution.outcome is Outcome.TIME_LIMIT
    assert time.monotonic() - began < 30
    assert [p.name for p in tmp_path.iterdir()] == ["r.checkpoint"]
    best = policy_iteration(rows_of(maze), 0.999, maze.sense).values
    assert float(np.abs(solution.values - best).max()) <= solution.error_bound


def test_the_first_copy_does_not_wait_for_the_interval(
    maze: Store, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody comes to rest before there is a checkpoint."""
    rest = solver._Solver.rest

    def waiting(self: Any) -> bool:
        while not checkpoint_path(tmp_path / "r").exists():
            self.exchange()
            time.sleep(0.01)
        return rest(self)

    monkeypatch.setattr(solver._Solver, "rest", waiting)
    monkeypatch.setattr(coordinator, "_FIRST_COPY_SECONDS", 0.05, raising=False)
    solution = solve(
        maze, 0.9, clusters[2], epsilon=1e-3, output=tmp_path / "r", checkpoint_interval=3600.0, time_limit=30.0
    )
    check(maze, 0.9, solution)
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_checkpoint_that_cannot_be_written_ends_no_solve_of_several_workers(
    maze: Store, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody comes to rest before it was tried, on a disk that is full."""
    rest, said = solver._Solver.rest, []

    def waiting(self: Any) -> bool:
        while not any("checkpoint" in text for text in said):
            self.exchange()
            time.sleep(0.01)
        return rest(self)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(solver._Solver, "rest", waiting)
    monkeypatch.setattr(coordinator, "_FIRST_COPY_SECONDS", 0.05, raising=False)
    monkeypatch.setattr("ooc_mdp.methods.checkpoint.sync", full)
    how: dict[str, Any] = {"time_limit": 30.0, "checkpoint_interval": 3600.0}
    check(maze, 0.9, solve(maze, 0.9, clusters[2], epsilon=1e-3, output=tmp_path / "r", note=said.append, **how))
    (told,) = [text for text in said if "checkpoint" in text]
    assert "No space left on device; the solve goes on" in told
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_target_below_the_rounding_is_refused_by_several_workers_too(maze: Store, clusters: Clusters) -> None:
    solution = solve(maze, 0.9999, clusters[2], epsilon=1e-13)
    assert solution.outcome is Outcome.PRECISION


# --------------------------------------------------------------------------------------------- processes that are lost


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
                patch.setattr(coordinator, "_REPORT_SECONDS", 0.0)
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

# -------------------------------------------------------------------------------------------------------- command line


@pytest.mark.slow
def test_the_command_line_solves_on_workers_of_this_machine_and_says_what_each_did(maze: Store) -> None:
    ran = ooc("solve", maze.path, "--discount", 0.9, "--workers", 2, "--device", "cpu", "--cache", "100%", "--json")
    assert ran.status == 0, ran.err
    figures = ran.figures["workers"]
    assert [w["worker"] for w in figures] == [0, 1]
    assert [w["partitions"] for w in figures] == [8, 8]
    assert all(w["loads"] >= 8 and w["backups"] > 0 and w["messages"] > 0 and not w["lost"] for w in figures)


@pytest.mark.slow
def test_an_error_on_the_workers_is_one_line_of_the_command(maze: Store) -> None:
    ran = process("solve", maze.path, "--discount", 0.9, "--workers", 2, "--device", "cpu", "--cache", "1B")
    assert (ran.status, ran.out) == (2, "")
    assert re.fullmatch(r"error: partition \d+ needs .* raise --cache .*\n", ran.err)


def test_dask_is_quiet_while_a_command_solves(maze: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = logging.getLogger("distributed.client")
    loud = []

    def failing(*_: Any, **how: Any) -> None:
        loud.append(dask.isEnabledFor(logging.ERROR))
        raise ClusterError("all is lost")

    monkeypatch.setattr(solve_module, "solve_on_cluster", failing)
    said = refused("solve", maze.path, "--discount", 0.9, "--device", "cpu", "--scheduler", "tcp://127.0.0.1:1")
    assert said.strip() == "error: all is lost"
    assert loud == [False]
    assert dask.isEnabledFor(logging.ERROR)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_terminal_keeps_what_the_workers_know(
    number: signal.Signals, coupled: Store, tmp_path: Path
) -> None:
    """Once each partition has a bound. Whoever stopped its workers would have no bound of theirs."""
    checkpoint = tmp_path / "r.checkpoint"
    how = (
        "--discount", 0.9999, "--epsilon", 1e-3, "--method", "p-eva", "--cache", "100%", "--device", "cpu",
        "--workers", 2, "--checkpoint-interval", 0.05, "--output", tmp_path / "r", "--json",
    )  # fmt: skip

    def bounded() -> bool:
        if not checkpoint.exists():
            return False
        with np.load(checkpoint) as saved:
            return bool(saved["visited"].all())

    with start("solve", coupled.path, *how, group=True) as it:
        while it.poll() is None and not bounded():
            time.sleep(0.05)
        os.killpg(it.pid, number)
        out, err = it.communicate(timeout=300)
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
