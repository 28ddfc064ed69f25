"""What solvers know of each other: views against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from solver_network import HostVector, an_update

from ooc_mdp.distributed.messages import (
    StateList,
    Update,
)
from ooc_mdp.distributed.subscriptions import Subscribers, Subscriptions, split_halo

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


class ViewOfOnePartition(RuleBasedStateMachine):
    """`Subscriptions` beside a dictionary; the owner's messages come in any order, if at all."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = HostVector(STATES)
        self.subscriptions = Subscriptions(self.vector)
        self.truth = np.zeros(STATES)
        self.generation = 0
        self.read: set[int] = set()
        self.known: dict[int, float] = {}
        self.newest = -1
        self.applied_generation = -1
        self.serials: set[int] = set()
        self.sent: list[Update] = []

    @rule(states=st.sets(st.integers(0, STATES - 1), min_size=1), known=st.booleans())
    def read_more(self, states, known):
        pieces = [np.array(sorted(states), np.int64)] * 2
        grown = self.subscriptions.extend({7: pieces}, known)
        fresh = states - self.read
        assert grown == ({7} if fresh else set())
        if fresh:
            # Values that are not known to be the owner's are known only once it has sent the whole list.
            if known and self.known.keys() == self.read:
                self.known |= {s: float(self.vector.values[s]) for s in fresh}
            self.read |= states
            self.newest = -1  # an answer to an earlier list no longer counts

    @precondition(lambda self: self.read)
    @rule()
    def ask(self):
        (wanted,) = self.subscriptions.request([7])
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
        self.subscriptions.remove(7)
        self.read, self.known, self.newest, self.applied_generation = set(), {}, -1, -1

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_message_arrives(self, data):
        update = data.draw(st.sampled_from(self.sent))
        applied = self.subscriptions.apply(update)
        counts = update.serials[0] == self.newest and update.generations[0] >= self.applied_generation
        assert (applied is not None) == counts
        if applied is None:
            return
        received = dict(zip(sorted(self.read), update.values.tolist(), strict=True))
        rises = [received[s] - v for s, v in self.known.items()]
        assert self.vector.values[sorted(self.read)].tolist() == list(received.values())
        assert applied.changes.rise == max([0.0, *rises])
        assert applied.changes.fall == max([0.0, *(-r for r in rises)])
        moved = [received[s] for s, v in self.known.items() if received[s] != v]
        assert applied.changes.largest == max(moved, default=-np.inf)
        assert applied.complete == [7] * (self.known.keys() != self.read)
        self.known, self.applied_generation = received, int(update.generations[0])

    @invariant()
    def what_is_known_is_what_bounds_were_taken_at(self):
        received = self.subscriptions.received_values(7)
        assert (received is None) == (not self.known)
        if received is not None:
            assert dict(zip(received[0].tolist(), received[1].tolist(), strict=True)) == self.known
        assert self.subscriptions.unknown() == ({7} if self.known.keys() != self.read else set())
        assert list(self.subscriptions) == ([7] if self.read else [])


TestViewOfOnePartition = ViewOfOnePartition.TestCase
TestViewOfOnePartition.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_of_a_message_that_has_some_old_lists_the_others_count():
    vector = HostVector(70)
    vector.values[60:] = 9.0
    subscriptions = Subscriptions(vector)
    subscriptions.extend({q: [np.arange(10 * q, 10 * q + q)] for q in (3, 4, 5)}, True)
    subscriptions.extend({6: [np.array([60, 61])]}, False)
    serial = {wanted.partition: wanted.serial for wanted in subscriptions.request([3, 4, 5, 6])}
    new = {3: [1.0, 0.0, -2.0], 4: [5.0] * 4, 5: [0.0] * 5, 6: [1.0, 2.0]}
    old = subscriptions.request([4])[0].serial - 1
    update = an_update({q: (serial[q] if q != 4 else old, 0, np.array(values)) for q, values in new.items()})
    applied = subscriptions.apply(update)
    assert applied is not None
    assert applied.partitions.tolist() == [3, 5, 6]
    for q in (3, 5, 6):
        assert vector.values[10 * q : 10 * q + len(new[q])].tolist() == new[q]
    assert not vector.values[40:50].any()
    assert applied.changes.rise.tolist() == [1.0, 0.0, 0.0]
    assert applied.changes.fall.tolist() == [2.0, 0.0, 0.0]
    assert applied.changes.largest.tolist() == [1.0, -np.inf, -np.inf]
    assert applied.complete == [6]
    assert subscriptions.apply(an_update({4: (old, 0, np.zeros(4))})) is None


def test_no_two_solvers_give_lists_the_same_serial():
    serials = set()
    for reader in (0, 1, 2):
        subscriptions = Subscriptions(HostVector(6), reader)
        subscriptions.extend({q: [np.array([q])] for q in (4, 5)}, False)
        serials |= {wanted.serial for wanted in subscriptions.request([4, 5, 4])}
    assert len(serials) == 9


def test_readers_are_kept_by_partition_with_their_newest_list():
    subscribers = Subscribers()
    first, second = StateList(3, 1, np.array([1, 2])), StateList(3, 5, np.array([1, 2, 4]))
    subscribers.add(0, first)
    subscribers.add(1, first)
    subscribers.add(0, second)
    subscribers.add(0, StateList(4, 6, np.array([9])))
    assert subscribers.lists_for(3) == {0: second, 1: first}
    subscribers.add(0, StateList(5, 7, np.array([20, 21])))
    lists, which = subscribers.state_lists(0, [5, 3])
    assert [lists.states[lists.ptr[i] : lists.ptr[i + 1]].tolist() for i in which] == [[20, 21], [1, 2, 4]]
    subscribers.remove_partition(5)
    subscribers.add(0, StateList(3, 8, np.array([2])))
    lists, which = subscribers.state_lists(0, [3])
    assert [lists.states[lists.ptr[i] : lists.ptr[i + 1]].tolist() for i in which] == [[2]]
    subscribers.remove_subscriber(0)
    assert {p: list(who) for p, who in subscribers.items()} == {3: [1], 4: []}
    subscribers.remove_partition(3)
    assert subscribers.lists_for(3) == {}
