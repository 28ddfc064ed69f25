"""Solves over a network that misbehaves."""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, distance, make_store, optimum, rows_of, stored
from solver_network import Network, Weather, first_values, solve_on
from store_models import Action, Model, State, random_model

import ooc_mdp
from ooc_mdp.distributed.mailbox import Mailbox
from ooc_mdp.distributed.messages import (
    Assignment,
    Command,
    CommandRequest,
    PostRequest,
    SnapshotRequest,
    Start,
    Values,
)
from ooc_mdp.distributed.worker import NetworkPeers, WorkerOptions, run_worker
from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.solver.driver import Steps
from ooc_mdp.solver.local import METHODS
from ooc_mdp.solver.state import SolveState


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries and moves without long pauses."""
    monkeypatch.setattr("ooc_mdp.distributed.subscriptions._RETRY_SECONDS", 0.01)
    monkeypatch.setattr("ooc_mdp.distributed.membership._AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("ooc_mdp.distributed.ownership._MOVE_SECONDS", 0.0)
    monkeypatch.setattr("ooc_mdp.distributed.ownership._MIN_LEFT", 1)
    monkeypatch.setattr("ooc_mdp.distributed.stragglers._DISCOVERY_SECONDS", 0.02)


@pytest.mark.usefixtures("impatient")
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    case=cases(max_states=16),
    weather=st.builds(
        Weather,
        st.integers(0, 10**6),
        st.sampled_from([0.0, 0.1, 0.3]),
        moves=st.booleans(),
        loses=st.booleans(),
        gains=st.booleans(),
        alone=st.booleans(),
    ),
    share=st.sampled_from([0.3, 1.0]),
    method=st.sampled_from(["p-eva", "vi", "policy-iteration"]),
    solvers=st.integers(2, 4),
)
def test_certificates_hold_whatever_becomes_of_messages(
    case: Case, weather: Weather, share: float, method: Any, solvers: int
):
    options = SolveOptions(0.9, method=method, cache=CacheSize(share=share), device="cpu")
    with stored(case) as store:
        outcome, coordinator = asyncio.run(solve_on(store, options, solvers, weather))
        assert outcome in (Outcome.PROVED, Outcome.PRECISION_LIMIT)
        sign = 1 if store.sense == "max" else -1
        values = store.to_source(sign * coordinator.known.values)
        if coordinator.known.bounds is None:
            return
        error = coordinator.bounds.error(coordinator.known.value_size)
        assert max(map(abs, distance(values, optimum(rows_of(store), 0.9, store.sense)))) <= error


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("share", "sweeps"), [(1.0, 400), (0.3, 150)])
@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_gains_all_partitions_sweeps_them_together(tmp_path: Path, share: float, sweeps: int, seed: int):
    """At discount 0.9999 partitions by themselves would take more than 100,000 sweeps."""
    parameters = {"states": 600, "actions": 3, "successors": 5, "seed": 1}
    store = ooc_mdp.generate("random", tmp_path / "s", parameters, partitions=8)
    options = SolveOptions(0.9999, method="p-eva", cache=CacheSize(share=share), device="cpu", epsilon=1e-6)
    outcome, coordinator = asyncio.run(solve_on(store, options, 3, Weather(seed, 0.0, loses=True, alone=True)))
    assert outcome is Outcome.PROVED
    assert np.unique(coordinator.ownership.owner).tolist() in ([1], [2])
    assert coordinator.statistics().backups <= sweeps * store.n_states


@pytest.mark.parametrize("method", ["p-eva", "vi"])
def test_who_reads_from_before_hears_of_what_was_done_to_all_values_at_once(tmp_path: Path, method: Any):
    """The last partition is another solver's, then everything one solver's, then it is the other's again."""
    rng = np.random.default_rng(1)

    def action() -> Action:  # nobody reads the last partition, so that nothing comes back to the others
        return Action(float(rng.random()), {int(s): 1 / 6 for s in rng.choice(30, 6, replace=False)})

    model = Model(tuple(State((action(), action())) for _ in range(40)))
    store = make_store(Case(model, partitions=4), tmp_path / "s")
    options = SolveOptions(0.9, method=method, cache=CacheSize(share=0.3), device="cpu")
    shared, whole = np.array([0, 0, 0, 1], np.int32), np.zeros(4, np.int32)
    first, changed, last = (np.array([0, 0, 0, g], np.int32) for g in (1, 2, 3))

    async def check() -> None:
        def work(network: Network, k: int) -> None:
            run_worker(WorkerOptions(k, store, options, threads=1), network.mailboxes[k], network.sender(k))

        network, numbers = Network(2, Weather(0, 0.0), work), itertools.count(1)

        async def command(k: int, what: Any) -> Any:
            request = CommandRequest if isinstance(what, SnapshotRequest) else PostRequest
            return await network.request(k, request(Command(next(numbers), what)), 300.0)

        async def at_rest(epoch: int) -> None:
            while True:
                before = [mailbox.status() for mailbox in network.mailboxes]
                await asyncio.sleep(0.01)
                after = [mailbox.status() for mailbox in network.mailboxes]
                unmoved = [s.activity for s in before] == [s.activity for s in after]
                if unmoved and all(s.passive and s.epoch == epoch for s in before + after):
                    return

        async def assign(epoch: int, owner: IntArray, generation: IntArray, **initial_values: Values) -> None:
            for k in (0, 1):
                addresses = {0: "0", 1: "1"}
                assignment = Assignment(epoch, owner, generation, addresses, initial_values.get(f"by_{k}"), epoch == 1)
                await command(k, assignment)
            await at_rest(epoch)

        try:
            await assign(1, shared, first)
            given = await command(1, SnapshotRequest())
            for k in (0, 1):
                await command(k, Start())
            await assign(2, whole, changed, by_0=replace(given, bounds=None))
            all_of_them = await command(0, SnapshotRequest())
            part = slice(*store.facts.partition_ptr[3:5].tolist())
            back = Values(np.array([3]), all_of_them.values[part], all_of_them.policy[part], np.array([True]))
            await assign(3, shared, last, by_1=back)
            reports = [await command(k, SnapshotRequest()) for k in (0, 1)]
        finally:
            for mailbox in network.mailboxes:
                mailbox.evict()
            for thread in network.threads:
                await asyncio.to_thread(thread.join, 300.0)
        values = store.to_source(np.concatenate([report.values for report in reports]))
        claimed = max(report.bounds[:2].max() for report in reports)
        assert max(map(abs, distance(values, optimum(rows_of(store), 0.9)))) <= claimed + 1e-9

    asyncio.run(asyncio.wait_for(check(), 300.0))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("size", [1.0, 1e12])
def test_solvers_know_how_large_values_were_before_the_checkpoint_that_they_go_on_from(tmp_path: Path, size: float):
    """Else they think that they have proved what rounding keeps the coordinator from claiming, and nobody goes on."""
    store = make_store(Case(random_model(3, 12), partitions=4), tmp_path / "s")
    known = first_values(store)
    known.valid[:], known.value_size = True, size
    options = SolveOptions(0.9, epsilon=1e-6, cache=CacheSize(share=1.0), device="cpu")
    outcome, _ = asyncio.run(solve_on(store, replace(options, method="p-eva"), 2, Weather(1, 0.0), known))
    assert outcome is (Outcome.PROVED if size == 1.0 else Outcome.PRECISION_LIMIT)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["does not answer", "has no store"])
def test_a_worker_that_comes_and_cannot_take_part_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
):
    async def discover(network: Network) -> list[int]:
        if fault == "does not answer":
            arrived.set()
            await asyncio.sleep(3600.0)
        if len(network.mailboxes) > 2:
            return []
        network.mailboxes.append(Mailbox(network.loop))
        network.ended[2] = StoreError("on another machine: it does not exist")
        return [2]

    def wait_for_it(self: NetworkPeers, state: SolveState) -> Outcome | None:
        assert arrived.wait(300)
        return after_step(self, state)

    def note(text: str) -> None:
        notes.append(text)
        arrived.set()

    after_step, notes, arrived = NetworkPeers.after_step, list[str](), threading.Event()
    monkeypatch.setattr(Network, "discover", discover)
    monkeypatch.setattr(NetworkPeers, "after_step", wait_for_it)
    store = make_store(Case(random_model(3, 12), partitions=6), tmp_path / "s")
    options = SolveOptions(0.9, method="vi", cache=CacheSize(share=0.5), device="cpu", epsilon=1e-6)
    outcome, _ = asyncio.run(solve_on(store, options, 2, Weather(1, 0.0), note=note))
    assert outcome is Outcome.PROVED
    said = ["worker 2 (2) cannot take part: on another machine: it does not exist"]
    assert notes == (said if fault == "has no store" else [])


def test_who_stopped_by_itself_goes_on_with_the_next_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where nobody saw that it had stopped: what it owns now may need work."""

    def gives_up(_: SolveState) -> Steps:
        yield
        return Outcome.PRECISION_LIMIT

    for word in METHODS:
        monkeypatch.setitem(METHODS, word, gives_up)
    store = make_store(Case(random_model(3, 12), partitions=4), tmp_path / "s")
    options = SolveOptions(0.9, method="p-eva", epsilon=1e-9, cache=CacheSize(share=1.0), device="cpu")
    owner = np.zeros(4, np.int32)

    async def check() -> None:
        def work(network: Network, k: int) -> None:
            run_worker(WorkerOptions(k, store, options, threads=1), network.mailboxes[k], network.sender(k))

        network, numbers = Network(1, Weather(0, 0.0), work), itertools.count(1)

        async def command(what: Any) -> None:
            await network.request(0, PostRequest(Command(next(numbers), what)), 300.0)

        async def stopped(epoch: int) -> None:
            while (status := network.mailboxes[0].status()).epoch != epoch or status.outcome is None:
                await asyncio.sleep(0.01)
            assert status.outcome == Outcome.PRECISION_LIMIT.value

        try:
            await command(Assignment(1, owner, owner, {0: "0"}, None, initial_start=True))
            await command(Start(0.0))
            await stopped(1)
            await command(Assignment(2, owner, owner, {0: "0"}, None, initial_start=False))
            await stopped(2)
        finally:
            network.mailboxes[0].evict()
            await asyncio.to_thread(network.threads[0].join, 300.0)

    asyncio.run(asyncio.wait_for(check(), 60.0))
