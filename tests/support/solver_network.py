"""Solvers on threads of this process, and a network between them that may misbehave."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_mdp.backends.state_lists import HostLists
from ooc_mdp.distributed.coordinator import Coordinator, Division
from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.membership import Member, Membership
from ooc_mdp.distributed.messages import (
    Accepted,
    CommandRequest,
    NoSuchRunError,
    PostRequest,
    Start,
    StatusRequest,
    Subscribe,
    Update,
    WorkerRequest,
)
from ooc_mdp.distributed.partition_graph import partition_graph
from ooc_mdp.distributed.snapshots import StartingPoint, ValueSnapshot
from ooc_mdp.distributed.subscriptions import Send
from ooc_mdp.distributed.termination import SolveClock
from ooc_mdp.distributed.worker import WorkerOptions, run_worker
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver.history import HistoryRecorder
from ooc_mdp.solver.session import Session


@dataclass(frozen=True)
class Weather:
    """How the network behaves, and what happens on it."""

    seed: int
    faults: float
    """Share of messages with one."""
    moves: bool = False
    loses: bool = False
    """Whether a solver is cut off after a few accesses, and goes on alone."""
    gains: bool = False
    """Whether another comes later."""
    alone: bool = False
    """Whether one solver begins with everything, and stays so unless partitions move."""


class Mortal(Mailbox):
    """A mailbox whose solver is cut off when it takes messages for the n-th time after the start."""

    def __init__(self, loop: asyncio.AbstractEventLoop, looks: int, cut: Callable[[], None]) -> None:
        super().__init__(loop)
        self._looks, self._cut, self._going = looks, cut, False

    def take(self) -> list[Subscribe | Update | Request]:
        if self._going:
            self._looks -= 1
            if not self._looks:
                self._cut()
        taken = super().take()
        self._going |= any(isinstance(m, Request) and isinstance(m.command, Start) for m in taken)
        return taken


class Network:
    """Solvers on threads, each with a mailbox; what goes between them may be lost, late, twice or out of order."""

    def __init__(self, solvers: int, weather: Weather, work: Callable[[Network, int], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.mailboxes = [Mailbox(self.loop) for _ in range(solvers)]
        self.weather = weather
        self.random = random.Random(weather.seed)
        self.lock = threading.Lock()
        self.cut: int | None = None
        if weather.loses:
            self.mailboxes[0] = Mortal(self.loop, self.random.randrange(1, 6), lambda: setattr(self, "cut", 0))
        self.ended: dict[int, str | BaseException] = {}
        self.work = work
        self.threads: list[threading.Thread] = []
        for number in range(solvers):
            self.start(number)

    def start(self, number: int) -> None:
        def run() -> None:
            try:
                self.work(self, number)
                self.ended[number] = "done"
            except BaseException as error:  # the coordinator asks for it
                self.ended[number] = error

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def fate(self, here: int | None, there: int) -> str:
        if self.cut is not None and self.cut in (here, there):
            return "lost"
        with self.lock:
            if self.random.random() >= self.weather.faults:
                return "well"
            return self.random.choice(["lost", "late", "answer lost", "slow"])

    def soon(self, seconds: float, what: Callable[[], None]) -> None:
        def plan() -> None:
            self.loop.call_later(seconds, what)

        self.loop.call_soon_threadsafe(plan)

    def sender(self, number: int) -> Send:
        def send(address: str, message: Subscribe | Update, delivered: Callable[[bool], None]) -> None:
            there = int(address)
            copy = pickle.loads(pickle.dumps(message))
            fate = self.fate(number, there)

            def put() -> None:
                self.mailboxes[there].put(copy)

            def arrive() -> None:
                put()
                delivered(True)

            if fate == "well":
                self.soon(0.0, arrive)
            elif fate == "slow":
                self.soon(0.02, arrive)
            else:
                if fate == "answer lost":
                    self.soon(0.0, put)
                elif fate == "late":
                    self.soon(0.03, put)  # the next attempt may come first
                self.soon(0.001, lambda: delivered(False))

        return send

    # What the coordinator sees:

    async def request(self, number: int, request: WorkerRequest, timeout: float) -> Any:
        mailbox, fate = self.mailboxes[number], self.fate(None, number)
        if number in self.ended:
            raise NoSuchRunError("it has ended")
        if fate == "lost":
            await asyncio.sleep(0.001)
            raise OSError("lost")
        if isinstance(request, StatusRequest):
            return await mailbox.wait_for_change(request.seen, request.wait)
        assert isinstance(request, PostRequest | CommandRequest)
        command = request.command
        waiting = Request(command)
        if fate == "late":
            self.soon(0.03, lambda: mailbox.put(Request(command)))
            raise OSError("late")
        mailbox.put(waiting)
        if fate == "answer lost":
            raise OSError("answer lost")
        return Accepted() if isinstance(request, PostRequest) else await asyncio.wrap_future(waiting.answer)

    async def lost(self, number: int) -> bool:
        return number == self.cut

    def failure(self, number: int) -> BaseException | None:
        found = self.ended.get(number)
        return found if isinstance(found, BaseException) else None

    async def discover(self) -> list[int]:
        if not self.weather.gains:
            return []
        self.weather = replace(self.weather, gains=False)
        self.mailboxes.append(Mailbox(self.loop))
        self.start(len(self.threads))
        return [len(self.threads) - 1]

    def address(self, number: int) -> str:
        return str(number)

    async def release(self, number: int) -> None:
        await asyncio.sleep(0.05)  # it continues meanwhile, and its messages may still arrive
        self.mailboxes[number].evict()

    def connection_error(self) -> str | None:
        return None


def first_values(store: Any) -> ValueSnapshot:
    n, p = store.n_states, store.n_partitions
    return ValueSnapshot(np.zeros(n), np.full(n, -1, np.int32), np.zeros(p, np.bool_), np.zeros(p, np.bool_))


async def solve_on(
    store: Any,
    options: SolveOptions,
    solvers: int,
    weather: Weather,
    checkpoint: ValueSnapshot | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Outcome, Coordinator]:
    """The coordinator after a solve on solvers that begin with partitions at random, or on one that has all."""

    def work(network: Network, k: int) -> None:
        run_worker(WorkerOptions(k, store, options, threads=1), network.mailboxes[k], network.sender(k))

    network = Network(solvers, weather, work)
    clock = SolveClock()
    coordinator = Coordinator(
        store,
        options,
        Membership(network, {k: Member(str(k)) for k in range(solvers)}, worker_timeout=300.0),
        Division(
            np.array([0 if weather.alone else network.random.randrange(solvers) for _ in range(store.n_partitions)]),
            partition_graph(store),
            rebalance=weather.moves,
            distribute=weather.moves or not weather.alone,
        ),
        StartingPoint(
            checkpoint or first_values(store),
            HistoryRecorder(np.zeros(store.n_partitions, np.int64)),
            None if checkpoint is None else SolveStatistics(),
        ),
        clock,
        Session(clock=clock, note=note),
    )
    try:
        outcome = await asyncio.wait_for(coordinator.run(), 300.0)
    finally:
        for mailbox in network.mailboxes:
            mailbox.evict()
        for thread in network.threads:
            await asyncio.to_thread(thread.join, 300.0)
    return outcome, coordinator


def an_update(of: dict[int, tuple[int, int, FloatArray]], sender: int = 0, number: int = 1) -> Update:
    """Serial, generation and values of some partitions."""
    serials, generations, values = zip(*of.values(), strict=True) if of else ((), (), ())
    ptr = np.cumsum([0, *(v.size for v in values)])
    numbers = [np.array(each, np.int64) for each in (list(of), serials, generations)]
    return Update(sender, number, *numbers, ptr, np.concatenate([np.empty(0), *values]))


class HostVector(HostLists):
    """A value vector of 0."""

    def __init__(self, states: int) -> None:
        self.values = np.zeros(states)

    def read(self, states: IntArray) -> FloatArray:
        return self.values[states]

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        assert ptr[-1] == states.size
        self.values[states] = values
