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
    """`Interests` beside a dictionary; the owner's messages come in any order, if at all."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = HostVector(STATES)
        self.interests = Subscriptions(self.vector)
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
    interests = Subscriptions(vector)
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
        interests = Subscriptions(HostVector(6), reader)
        interests.read({q: [np.array([q])] for q in (4, 5)}, False)
        serials |= {wanted.serial for wanted in interests.ask([4, 5, 4])}
    assert len(serials) == 9


def test_readers_are_kept_by_partition_with_their_newest_list():
    readers = Subscribers()
    first, second = StateList(3, 1, np.array([1, 2])), StateList(3, 5, np.array([1, 2, 4]))
    readers.add(0, first)
    readers.add(1, first)
    readers.add(0, second)
    readers.add(0, StateList(4, 6, np.array([9])))
    assert readers.of(3) == {0: second, 1: first}
    readers.add(0, StateList(5, 7, np.array([20, 21])))
    lists, which = readers.lists_of(0, [5, 3])
    assert [lists.states[lists.ptr[i] : lists.ptr[i + 1]].tolist() for i in which] == [[20, 21], [1, 2, 4]]
    readers.forget_partition(5)
    readers.add(0, StateList(3, 8, np.array([2])))
    lists, which = readers.lists_of(0, [3])
    assert [lists.states[lists.ptr[i] : lists.ptr[i + 1]].tolist() for i in which] == [[2]]
    readers.forget_reader(0)
    assert {p: list(who) for p, who in readers.items()} == {3: [1], 4: []}
    readers.forget_partition(3)
    assert readers.of(3) == {}
