"""What solvers know of each other: views against a dictionary, mailboxes, and solves over a network that misbehaves."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from small_mdps import Case, cases, distance, make_store, optimum, rows_of, stored
from store_models import Action, Model, State, random_model

import ooc_mdp
from ooc_mdp.distributed import endpoint
from ooc_mdp.distributed import solver as solver_module
from ooc_mdp.distributed.coordinator import Coordinator
from ooc_mdp.distributed.exchange import Interests, Readers, split_halo
from ooc_mdp.distributed.known import Known
from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.members import Member, Members
from ooc_mdp.distributed.messages import (
    Assignment,
    Command,
    Go,
    Halt,
    Report,
    Status,
    Subscribe,
    Update,
    Values,
    Wanted,
)
from ooc_mdp.distributed.placement import facts_of
from ooc_mdp.distributed.solver import SolverOptions, solve_share
from ooc_mdp.errors import StoreError
from ooc_mdp.kernels.state_lists import ListsByCopies
from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.methods.run import Run
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.solution import Outcome, SolveStatistics

STATES = 12
"""Of the one partition that the machine below reads."""


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    chosen=st.sets(st.integers(0, 23)),
)
def test_a_halo_splits_into_its_states_by_partition(sizes, chosen):
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    halo = np.array(sorted(s for s in chosen if s < ptr[-1]), np.int64)
    found = split_halo(halo, ptr)
    assert list(found) == sorted(found)
    for p, states in found.items():
        assert states.size
        assert ((ptr[p] <= states) & (states < ptr[p + 1])).all()
    assert [s for states in found.values() for s in states.tolist()] == halo.tolist()


def an_update(of: dict[int, tuple[int, int, FloatArray]], sender: int = 0, number: int = 1) -> Update:
    """Serial, generation and values of some partitions."""
    serials, generations, values = zip(*of.values(), strict=True) if of else ((), (), ())
    ptr = np.cumsum([0, *(v.size for v in values)])
    told = [np.array(each, np.int64) for each in (list(of), serials, generations)]
    return Update(sender, number, *told, ptr, np.concatenate([np.empty(0), *values]))


class HostVector(ListsByCopies):
    """A value vector of 0."""

    def __init__(self, states: int) -> None:
        self.values = np.zeros(states)

    def read(self, states: IntArray) -> FloatArray:
        return self.values[states]

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        assert ptr[-1] == states.size
        self.values[states] = values


class ViewOfOnePartition(RuleBasedStateMachine):
    """`Interests` beside a dictionary; the owner's messages come in any order, if at all."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = HostVector(STATES)
        self.interests = Interests(self.vector)
        self.truth = np.zeros(STATES)
        self.generation = 0
        self.read: set[int] = set()
        self.known: dict[int, float] = {}
        self.newest = -1
        self.heard_generation = -1
        self.serials: set[int] = set()
        self.sent: list[Update] = []

    @rule(states=st.sets(st.integers(0, STATES - 1), min_size=1), known=st.booleans())
    def read_more(self, states, known):
        pieces = [np.array(sorted(states), np.int64)] * 2
        grown = self.interests.read({7: pieces}, known)
        fresh = states - self.read
        assert grown == ({7} if fresh else set())
        if fresh:
            # Values that are not known to be the owner's are known only once it has told the whole list.
            if known and self.known.keys() == self.read:
                self.known |= {s: float(self.vector.values[s]) for s in fresh}
            self.read |= states
            self.newest = -1  # an answer to an earlier list no longer counts

    @precondition(lambda self: self.read)
    @rule()
    def ask(self):
        (wanted,) = self.interests.ask([7])
        assert wanted.partition == 7
        assert set(wanted.states.tolist()) == self.read
        assert wanted.serial not in self.serials
        self.serials.add(wanted.serial)
        self.newest = wanted.serial
        self.sent.append(an_update({7: (wanted.serial, self.generation, self.truth[wanted.states])}))

    @rule(state=st.integers(0, STATES - 1), value=st.floats(-9, 9))
    def the_owner_changes_a_value(self, state, value):
        self.truth[state] = value

    @precondition(lambda self: self.newest >= 0)
    @rule()
    def the_owner_tells(self):
        states = np.array(sorted(self.read), np.int64)
        self.sent.append(an_update({7: (self.newest, self.generation, self.truth[states])}))

    @rule()
    def another_owns_it_now(self):
        self.generation += 1

    @rule()
    def it_is_ours_for_a_while(self):
        self.interests.drop(7)
        self.read, self.known, self.newest, self.heard_generation = set(), {}, -1, -1

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_message_arrives(self, data):
        update = data.draw(st.sampled_from(self.sent))
        heard = self.interests.hear(update)
        counts = update.serials[0] == self.newest and update.generations[0] >= self.heard_generation
        assert (heard is not None) == counts
        if heard is None:
            return
        told = dict(zip(sorted(self.read), update.values.tolist(), strict=True))
        rises = [told[s] - v for s, v in self.known.items()]
        assert self.vector.values[sorted(self.read)].tolist() == list(told.values())
        assert heard.changes.up == max([0.0, *rises])
        assert heard.changes.down == max([0.0, *(-r for r in rises)])
        moved = [told[s] for s, v in self.known.items() if told[s] != v]
        assert heard.changes.highest == max(moved, default=-np.inf)
        assert heard.complete == [7] * (self.known.keys() != self.read)
        self.known, self.heard_generation = told, int(update.generations[0])

    @invariant()
    def what_is_known_is_what_bounds_were_taken_at(self):
        told = self.interests.told(7)
        assert (told is None) == (not self.known)
        if told is not None:
            assert dict(zip(told[0].tolist(), told[1].tolist(), strict=True)) == self.known
        assert self.interests.unknown() == ({7} if self.known.keys() != self.read else set())
        assert list(self.interests) == ([7] if self.read else [])


TestViewOfOnePartition = ViewOfOnePartition.TestCase
TestViewOfOnePartition.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_of_a_message_that_has_some_old_lists_the_others_count():
    vector = HostVector(70)
    vector.values[60:] = 9.0
    interests = Interests(vector)
    interests.read({q: [np.arange(10 * q, 10 * q + q)] for q in (3, 4, 5)}, True)
    interests.read({6: [np.array([60, 61])]}, False)
    serial = {wanted.partition: wanted.serial for wanted in interests.ask([3, 4, 5, 6])}
    new = {3: [1.0, 0.0, -2.0], 4: [5.0] * 4, 5: [0.0] * 5, 6: [1.0, 2.0]}
    old = interests.ask([4])[0].serial - 1
    update = an_update({q: (serial[q] if q != 4 else old, 0, np.array(values)) for q, values in new.items()})
    heard = interests.hear(update)
    assert heard is not None
    assert heard.partitions.tolist() == [3, 5, 6]
    for q in (3, 5, 6):
        assert vector.values[10 * q : 10 * q + len(new[q])].tolist() == new[q]
    assert not vector.values[40:50].any()
    assert heard.changes.up.tolist() == [1.0, 0.0, 0.0]
    assert heard.changes.down.tolist() == [2.0, 0.0, 0.0]
    assert heard.changes.highest.tolist() == [1.0, -np.inf, -np.inf]
    assert heard.complete == [6]
    assert interests.hear(an_update({4: (old, 0, np.zeros(4))})) is None


def test_no_two_solvers_give_lists_the_same_serial():
    serials = set()
    for reader in (0, 1, 2):
        interests = Interests(HostVector(6), reader)
        interests.read({q: [np.array([q])] for q in (4, 5)}, False)
        serials |= {wanted.serial for wanted in interests.ask([4, 5, 4])}
    assert len(serials) == 9


def test_readers_are_kept_by_partition_with_their_newest_list():
    readers = Readers()
    first, second = Wanted(3, 1, np.array([1, 2])), Wanted(3, 5, np.array([1, 2, 4]))
    readers.add(0, first)
    readers.add(1, first)
    readers.add(0, second)
    readers.add(0, Wanted(4, 6, np.array([9])))
    assert readers.of(3) == {0: second, 1: first}
    readers.add(0, Wanted(5, 7, np.array([20, 21])))
    lists, which = readers.lists_of(0, [5, 3])
    assert [lists.states[lists.ptr[i] : lists.ptr[i + 1]].tolist() for i in which] == [[20, 21], [1, 2, 4]]
    readers.forget_partition(5)
    readers.add(0, Wanted(3, 8, np.array([2])))
    lists, which = readers.lists_of(0, [3])
    assert [lists.states[lists.ptr[i] : lists.ptr[i + 1]].tolist() for i in which] == [[2]]
    readers.forget_reader(0)
    assert {p: list(who) for p, who in readers.items()} == {3: [1], 4: []}
    readers.forget_partition(3)
    assert readers.of(3) == {}


# ---------------------------------------------------------------------------------------------------- mailboxes


def a_message(number: int = 1) -> Update:
    return an_update({}, number=number)


def test_a_mailbox_gives_what_came_in_order_and_counts_it():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        messages = [a_message(), Request(Command(1, Go())), Subscribe(1, 2, [])]
        for message in messages:
            mailbox.put(message)
        assert mailbox.look().activity == 3
        assert mailbox.take() == messages
        assert mailbox.take() == []

    asyncio.run(check())


def test_a_solver_is_passive_only_while_it_rests_with_nothing_under_way_and_nothing_unread():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        mailbox.rest(lambda: False, 0.0)
        assert not mailbox.look().passive
        mailbox.put(a_message())
        mailbox.rest(lambda: True, 10.0)  # returns at once
        assert not mailbox.look().passive
        mailbox.take()
        mailbox.rest(lambda: True, 0.0)
        before = mailbox.look()
        assert before.passive
        mailbox.publish(Status(dirty=3))
        assert mailbox.look().passive
        assert mailbox.look().dirty == 3
        mailbox.put(a_message())
        after = mailbox.look()
        assert (after.passive, after.activity) == (False, before.activity + 1)
        mailbox.publish(Status())
        mailbox.take()
        mailbox.publish(Status())
        assert not mailbox.look().passive  # not before it has rested again

    asyncio.run(check())


@pytest.mark.parametrize("event", ["put", "wake", "expel"])
def test_whatever_happens_wakes_a_resting_solver(event):
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        resting = threading.Thread(target=mailbox.rest, args=(lambda: True, 60.0))
        resting.start()
        while not mailbox.look().passive:
            await asyncio.sleep(0.001)
        {"put": lambda: mailbox.put(a_message()), "wake": mailbox.wake, "expel": mailbox.expel}[event]()
        await asyncio.to_thread(resting.join, 30.0)
        assert not resting.is_alive()

    asyncio.run(check())


def test_a_question_for_the_status_is_answered_when_it_changes_or_time_is_up():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        now = await mailbox.changed(-1, 60.0)
        assert now.version == 0
        assert (await mailbox.changed(0, 0.01)).version == 0
        asked = asyncio.ensure_future(mailbox.changed(0, 60.0))
        await asyncio.sleep(0)
        await asyncio.to_thread(mailbox.publish, Status(outcome="precision"), True)
        assert (await asyncio.wait_for(asked, 30.0)).outcome == "precision"

    asyncio.run(check())


# ---------------------------------------------------------------------------------------------------- bad networks


@dataclass(frozen=True)
class Weather:
    """How the network behaves, and what happens on it."""

    seed: int
    faults: float
    """Share of messages with one."""
    moves: bool = False
    loses: bool = False
    """Whether a solver is cut off in the middle, and goes on alone."""
    gains: bool = False
    """Whether another comes later."""
    alone: bool = False
    """Whether one solver begins with everything, and stays so unless partitions move."""


class Network:
    """Solvers on threads, each with a mailbox; what goes between them may be lost, late, twice or out of order."""

    def __init__(self, solvers: int, weather: Weather, work: Callable[[Network, int], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.mailboxes = [Mailbox(self.loop) for _ in range(solvers)]
        self.weather = weather
        self.random = random.Random(weather.seed)
        self.lock = threading.Lock()
        self.cut: int | None = None
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

    def sender(self, number: int) -> solver_module.Send:
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

    async def ask(self, number: int, verb: str, argument: Any, timeout: float) -> Any:
        mailbox, fate = self.mailboxes[number], self.fate(None, number)
        if number in self.ended:
            return "unknown"
        if fate == "lost":
            await asyncio.sleep(0.001)
            raise OSError("lost")
        if verb == "status":
            return await mailbox.changed(*argument)
        request = Request(argument)
        if fate == "late":
            self.soon(0.03, lambda: mailbox.put(Request(argument)))
            raise OSError("late")
        mailbox.put(request)
        if fate == "answer lost":
            raise OSError("answer lost")
        return "taken" if verb == "post" else await asyncio.wrap_future(request.answer)

    async def lost(self, number: int) -> bool:
        return number == self.cut

    def failure(self, number: int) -> BaseException | None:
        found = self.ended.get(number)
        return found if isinstance(found, BaseException) else None

    async def newcomers(self) -> list[int]:
        if not self.weather.gains:
            return []
        self.weather = replace(self.weather, gains=False)
        self.mailboxes.append(Mailbox(self.loop))
        self.start(len(self.threads))
        return [len(self.threads) - 1]

    def address(self, number: int) -> str:
        return str(number)

    async def dismiss(self, number: int) -> None:
        await asyncio.sleep(0.05)  # it goes on meanwhile, and others may hear of it yet
        self.mailboxes[number].expel()

    def broken(self) -> str | None:
        return None


def first_values(store: Any) -> Known:
    n, p = store.n_states, store.n_partitions
    return Known(np.zeros(n), np.full(n, -1, np.int32), np.zeros(p, np.bool_), np.zeros(p, np.bool_))


async def solve_on(
    store: Any,
    options: SolveOptions,
    solvers: int,
    weather: Weather,
    checkpoint: Known | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Outcome, Coordinator]:
    """The coordinator after a solve on solvers that begin with partitions at random, or on one that has all."""

    def work(network: Network, k: int) -> None:
        solve_share(SolverOptions(k, store, options, threads=1), network.mailboxes[k], network.sender(k))

    network = Network(solvers, weather, work)
    coordinator = Coordinator(
        store,
        options,
        Members(network, {k: Member(str(k)) for k in range(solvers)}, patience=15.0),
        np.array([0 if weather.alone else network.random.randrange(solvers) for _ in range(store.n_partitions)]),
        facts_of(store),
        checkpoint or first_values(store),
        from_start=checkpoint is None,
        note=note,
        moves=weather.moves,
        spreads=weather.moves or not weather.alone,
    )
    if weather.loses:
        network.loop.call_later(network.random.uniform(0.0, 0.1), setattr, network, "cut", 0)
    try:
        outcome = await asyncio.wait_for(coordinator.lead(), 60.0)
    finally:
        for mailbox in network.mailboxes:
            mailbox.expel()
        for thread in network.threads:
            await asyncio.to_thread(thread.join, 30.0)
    return outcome, coordinator


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries and moves without long pauses."""
    monkeypatch.setattr(solver_module, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr("ooc_mdp.distributed.members._AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("ooc_mdp.distributed.coordinator._MOVE_SECONDS", 0.0)
    monkeypatch.setattr("ooc_mdp.distributed.coordinator._LEAST_LEFT", 1)
    monkeypatch.setattr("ooc_mdp.distributed.coordinator._WELCOME_SECONDS", 0.02)


@pytest.mark.usefixtures("impatient")
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    case=cases(most_states=16),
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
        assert outcome in (Outcome.PROVED, Outcome.PRECISION)
        sign = 1 if store.sense == "max" else -1
        values = store.to_original(sign * coordinator.known.values)
        if coordinator.known.bounds is None:
            return
        error = coordinator.bounds.error(coordinator.known.value_size)
        assert max(map(abs, distance(values, optimum(rows_of(store), 0.9, store.sense)))) <= error


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("share", "sweeps"), [(1.0, 400), (0.3, 150)])
@pytest.mark.parametrize("seed", range(3))
def test_who_takes_over_everything_works_on_it_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, sweeps: int, seed: int
):
    """At discount 0.9999 partitions by themselves would take more than 100,000 sweeps."""
    tick, slow = Run.tick, list[threading.Thread]()

    def tick_slowly(run: Run) -> None:
        if not slow:
            slow.append(threading.current_thread())  # the first that works: it is lost before its work is done
        if threading.current_thread() is slow[0]:
            time.sleep(0.1)
        tick(run)

    monkeypatch.setattr(Run, "tick", tick_slowly)
    parameters = {"states": 600, "actions": 3, "successors": 5, "seed": 1}
    store = ooc_mdp.generate("random", tmp_path / "s", parameters, partitions=8)
    options = SolveOptions(0.9999, method="p-eva", cache=CacheSize(share=share), device="cpu", epsilon=1e-6)
    outcome, coordinator = asyncio.run(solve_on(store, options, 3, Weather(seed, 0.0, loses=True, alone=True)))
    assert outcome is Outcome.PROVED
    assert np.unique(coordinator.owner).tolist() in ([1], [2])
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
            solve_share(SolverOptions(k, store, options, threads=1), network.mailboxes[k], network.sender(k))

        network, numbers = Network(2, Weather(0, 0.0), work), itertools.count(1)

        async def tell(k: int, what: Any) -> Any:
            verb = "command" if isinstance(what, Report) else "post"
            return await network.ask(k, verb, Command(next(numbers), what), 30.0)

        async def at_rest(epoch: int) -> None:
            while True:
                before = [mailbox.look() for mailbox in network.mailboxes]
                await asyncio.sleep(0.01)
                after = [mailbox.look() for mailbox in network.mailboxes]
                unmoved = [s.activity for s in before] == [s.activity for s in after]
                if unmoved and all(s.passive and s.epoch == epoch for s in before + after):
                    return

        async def assign(epoch: int, owner: IntArray, generation: IntArray, **adopted: Values) -> None:
            for k in (0, 1):
                addresses = {0: "0", 1: "1"}
                assignment = Assignment(epoch, owner, generation, addresses, adopted.get(f"by_{k}"), epoch == 1)
                await tell(k, assignment)
            await at_rest(epoch)

        try:
            await assign(1, shared, first)
            given = await tell(1, Report())
            for k in (0, 1):
                await tell(k, Go())
            await assign(2, whole, changed, by_0=replace(given, bounds=None))
            all_of_them = await tell(0, Report())
            part = slice(*store.partition_ptr[3:5].tolist())
            back = Values(np.array([3]), all_of_them.values[part], all_of_them.policy[part], np.array([True]))
            await assign(3, shared, last, by_1=back)
            reports = [await tell(k, Report()) for k in (0, 1)]
        finally:
            for mailbox in network.mailboxes:
                mailbox.expel()
            for thread in network.threads:
                await asyncio.to_thread(thread.join, 30.0)
        values = store.to_original(np.concatenate([report.values for report in reports]))
        claimed = max(report.bounds[:2].max() for report in reports)
        assert max(map(abs, distance(values, optimum(rows_of(store), 0.9)))) <= claimed + 1e-9

    asyncio.run(asyncio.wait_for(check(), 60.0))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("size", [1.0, 1e12])
def test_solvers_know_how_large_values_were_before_the_checkpoint_that_they_go_on_from(tmp_path: Path, size: float):
    """Else they think that they have proved what rounding keeps the coordinator from claiming, and nobody goes on."""
    store = make_store(Case(random_model(3, 12), partitions=4), tmp_path / "s")
    known = first_values(store)
    known.copied[:], known.value_size = True, size
    options = SolveOptions(0.9, epsilon=1e-6, cache=CacheSize(share=1.0), device="cpu")
    outcome, _ = asyncio.run(solve_on(store, replace(options, method="p-eva"), 2, Weather(1, 0.0), known))
    assert outcome is (Outcome.PROVED if size == 1.0 else Outcome.PRECISION)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["does not answer", "has no store"])
def test_a_worker_that_comes_and_cannot_take_part_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
):
    async def newcomers(network: Network) -> list[int]:
        if fault == "does not answer":
            await asyncio.sleep(3600.0)
        if len(network.mailboxes) > 2:
            return []
        network.mailboxes.append(Mailbox(network.loop))
        network.ended[2] = StoreError("on another machine: it does not exist")
        return [2]

    def slowly(run: Run) -> None:
        time.sleep(0.01)
        tick(run)

    tick, notes = Run.tick, list[str]()
    monkeypatch.setattr(Network, "newcomers", newcomers)
    monkeypatch.setattr(Run, "tick", slowly)
    store = make_store(Case(random_model(3, 12), partitions=6), tmp_path / "s")
    options = SolveOptions(0.9, method="vi", cache=CacheSize(share=0.5), device="cpu", epsilon=1e-6)
    outcome, _ = asyncio.run(solve_on(store, options, 2, Weather(1, 0.0), note=notes.append))
    assert outcome is Outcome.PROVED
    said = ["worker 2 (2) cannot take part: on another machine: it does not exist"]
    assert notes == (said if fault == "has no store" else [])


@pytest.fixture
def two_solvers(tmp_path: Path) -> Coordinator:
    """Of two solvers that own two partitions each, and have told of them after the first assignment."""
    store = make_store(Case(random_model(2, 12), partitions=4), tmp_path / "s")
    figures = {"error_bound": 0.5, "residual_bound": 0.1, "dirty": 1, "epoch": 1, "joining": False}
    members = {k: Member(str(k), status=Status(**figures)) for k in (0, 1)}
    coordinator = Coordinator(
        store,
        SolveOptions(0.9, device="cpu"),
        Members(SimpleNamespace(), members, 1.0),
        np.array([0, 0, 1, 1]),
        facts_of(store),
        first_values(store),
        from_start=True,
    )
    coordinator._epoch = 1
    return coordinator


def test_progress_is_the_largest_bound_of_those_that_own_partitions(two_solvers: Coordinator):
    two_solvers._solvers.of[1].status.error_bound = 0.7
    now = two_solvers.progress()
    assert (now.error_bound, now.residual_bound, now.dirty) == (0.7, 0.1, 2)
    two_solvers._solvers.of[2] = Member("2", status=Status(epoch=1))  # a newcomer, which owns nothing yet
    assert two_solvers.progress().error_bound == 0.7


@pytest.mark.parametrize(
    ("what", "dirty"), [("lost", 3), ("on its way", 3), ("not told of", 3), ("joining", 3), ("before the start", 4)]
)
def test_no_bound_is_claimed_while_nobody_answers_for_a_partition(two_solvers: Coordinator, what: str, dirty: int):
    solvers = two_solvers._solvers.of
    if what == "lost":
        solvers[1].alive = False
    elif what == "on its way":
        two_solvers.owner[2] = -1
    elif what == "not told of":
        two_solvers.owner[1], two_solvers._generation[1] = 1, 2
    elif what == "joining":
        solvers[1].status.joining, solvers[1].status.dirty = True, 2
    else:
        for member in solvers.values():
            member.status = Status()
    now = two_solvers.progress()
    assert (now.error_bound, now.residual_bound, now.dirty) == (np.inf, np.inf, dirty)


def test_the_rate_of_reading_is_that_since_the_last_report(two_solvers: Coordinator, monkeypatch: pytest.MonkeyPatch):
    two_solvers._last_report = 10.0, 0
    rates = []
    for now, read in ((20.0, 500), (22.0, 700)):
        monkeypatch.setattr("ooc_mdp.distributed.coordinator.time", SimpleNamespace(monotonic=lambda t=now: t))
        two_solvers._solvers.of[0].status.statistics.bytes_read = read
        rates.append(two_solvers.progress().read_rate)
    assert rates == [50.0, 100.0]


def test_what_solvers_have_read_counts_as_read_whatever_was_copied(two_solvers: Coordinator):
    for member, never in zip(two_solvers._solvers.of.values(), (2, 3), strict=True):
        member.status.statistics = SolveStatistics(n_partitions=4, partitions_never_read=never)
    assert two_solvers.statistics().partitions_never_read == 1
    two_solvers.known.visited[:] = True
    assert two_solvers.statistics().partitions_never_read == 0


def bare_solver(mailbox: Mailbox, **facts: Any) -> Any:
    """A solver without a run, for what it does before it needs one."""
    solver = solver_module._Solver.__new__(solver_module._Solver)
    asked = SimpleNamespace(lease=60.0)
    known = {"_mailbox": mailbox, "_obeyed": 0, "_halted": False, "_gone": set(), "_newest": {}, "_asked": asked}
    for name, value in (known | facts).items():
        setattr(solver, name, value)
    return solver


@pytest.mark.parametrize(("failures", "lost"), [(1, False), (2, True)])
def test_a_coordinator_that_stood_still_asks_once_more_before_a_solver_is_lost(failures: int, lost: bool):
    async def check() -> None:
        left = failures

        async def ask(number: int, verb: str, argument: Any, timeout: float) -> Any:
            nonlocal left
            await asyncio.sleep(0.001)
            if not left:
                return Status()
            left -= 1
            if left == failures - 1:
                members.of[0].answered -= 60.0
            raise TimeoutError

        async def no(_: int) -> bool:
            return False

        async def dismiss(_: int) -> None: ...

        link: Any = SimpleNamespace(ask=ask, lost=no, dismiss=dismiss)
        members = Members(link, {0: Member("a")}, 1.0)
        members.follow_all()
        await asyncio.sleep(0.3)
        await members.close()
        assert members.alive() == ([] if lost else [0])

    asyncio.run(check())


@pytest.mark.parametrize("resting", [False, True])
def test_a_solver_that_works_for_long_is_still_and_one_that_rests_is_not(resting: bool):
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        assert mailbox.look().still == 0.0
        mailbox.begin()
        mailbox.take()
        thread = threading.Thread(target=mailbox.rest, args=(lambda: True, 60.0))
        if resting:
            thread.start()
            while not mailbox.look().passive:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        assert (mailbox.look().still == 0.0) == resting
        mailbox.expel()
        if resting:
            await asyncio.to_thread(thread.join, 30.0)

    asyncio.run(check())


def test_what_is_large_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch):
    """It would be sent again and again, and never arrive."""
    values = Values(np.arange(1), np.zeros(10**6), np.zeros(10**6, np.int32), np.zeros(1, np.bool_))
    none = np.zeros(1, np.int32)
    monkeypatch.setattr(endpoint, "_SEND_SECONDS", 0.1)

    async def slow(**_: Any) -> str:
        await asyncio.sleep(0.4)
        return "taken"

    async def ask(number: int, verb: str, argument: Any, timeout: float) -> str:
        return await asyncio.wait_for(slow(), timeout)

    async def no(_: int) -> bool:
        return False

    async def check() -> None:
        members = Members(SimpleNamespace(ask=ask, lost=no), {0: Member("a")}, 0.1)  # type: ignore[arg-type]
        await members.put(0, Assignment(1, none, none, {}, values))
        worker: Any = SimpleNamespace(rpc=lambda _: SimpleNamespace(ooc_mdp=slow))
        assert await endpoint._deliver(worker, "run", "a", an_update({0: (1, 1, np.zeros(10**6))}))
        with pytest.raises(TimeoutError):
            await endpoint._deliver(worker, "run", "a", a_message())

    asyncio.run(asyncio.wait_for(check(), 10.0))


def test_a_command_that_comes_late_or_again_is_not_obeyed():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        requests = [Request(Command(2, Halt())), Request(Command(1, Go())), Request(Command(2, Go()))]
        for request in requests:
            mailbox.put(request)
        solver = bare_solver(mailbox)
        solver._take_in()
        assert solver._halted
        assert all(request.answer.result(0) is None for request in requests)

    asyncio.run(check())


def test_a_solver_goes_on_where_nobody_waits_for_its_answer_any_more():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        request = Request(Command(1, Halt()))
        mailbox.put(request)
        waiting = asyncio.ensure_future(asyncio.wrap_future(request.answer))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        solver = bare_solver(mailbox)
        solver._take_in()
        assert solver._halted

    asyncio.run(check())


def test_a_solver_that_is_never_at_rest_ends_too_once_its_coordinator_is_silent_for_longer_than_the_lease():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        solver = bare_solver(mailbox, _pass_on=lambda: None, _leave=False, _published=np.inf)
        solver.exchange()
        mailbox.heard -= 61.0
        solver.exchange()  # it may have been stopped, and has yet to read what came meanwhile
        mailbox.heard += 61.0
        solver.exchange()
        mailbox.heard -= 61.0
        solver.exchange()
        assert mailbox._unheard is not None
        mailbox._unheard -= 16.0
        with pytest.raises(solver_module._Ended, match="coordinator has not been heard of"):
            solver.exchange()

    asyncio.run(check())


def test_values_that_come_after_newer_ones_of_the_same_sender_are_not_taken():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        heard = []
        solver = bare_solver(mailbox, _hear=heard.append, _note_reader=heard.append)
        first, second, third = an_update({}, 1, 1), an_update({}, 1, 2), Subscribe(1, 3, [])
        of_another, of_one_lost = an_update({}, 2, 1), an_update({}, 3, 9)
        solver._gone.add(3)
        for message in (second, first, second, of_another, third, of_one_lost):
            mailbox.put(message)
        solver._take_in()
        assert heard == [second, of_another, third]

    asyncio.run(check())


def test_only_the_present_owner_of_a_partition_is_asked_for_it():
    async def check() -> None:
        posted = []
        peers = {k: solver_module._Peer(str(k)) for k in (1, 2)}
        interests = Interests(HostVector(6))
        interests.read({q: [np.array([q])] for q in (4, 5)}, True)
        owner = np.array([0, 0, 0, 0, 2, 1, 0])
        solver = bare_solver(
            Mailbox(asyncio.get_running_loop()),
            _me=0,
            _sent=6,
            _run=SimpleNamespace(moved=np.zeros(owner.size, np.bool_)),
            _readers=Readers(),
            _delivered=deque(),
            _peers=peers,
            _interests=interests,
            _assignment=Assignment(3, owner, np.zeros_like(owner), {}),
            _post=lambda peer, message: posted.append((peer, message)),
        )
        # 4 was 1's until now, and has been asked of 2 since; 6 has become this solver's own.
        peers[1].questions = dict.fromkeys([4, 5, 6])
        peers[2].questions = dict.fromkeys([4])
        solver._pass_on()
        asked = [(peer, [w.partition for w in message.wanted], message.number) for peer, message in posted]
        assert asked == [(peers[1], [5], 7), (peers[2], [4], 7)]
        assert not any(peer.questions for peer in peers.values())

    asyncio.run(check())


def test_what_counts_as_visited_has_a_policy_where_newer_copies_come_meanwhile():
    known = Known(np.zeros(4), np.zeros(4, np.int32), np.zeros(2, np.bool_), np.ones(2, np.bool_))
    newer = Values(np.arange(2), np.ones(4), np.full(4, 7, np.int32), np.ones(2, np.bool_))

    class Late(np.ndarray[Any, np.dtype[np.int32]]):
        """A policy beside which newer copies come as soon as it has been read."""

        def __getitem__(self, which: Any) -> Any:
            found = super().__getitem__(which).copy()
            known.policy = np.asarray(self)
            known.take(newer, np.array([0, 2, 4]))
            return found

    known.policy = known.policy.view(Late)
    given = known.of(np.arange(2), np.array([0, 2, 4]), with_bounds=False)
    assert given is not None
    assert not given.visited.any()
    assert given.policy.tolist() == [0, 0, 0, 0]
