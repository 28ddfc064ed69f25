"""The cache against a plain model of it: a list of partitions, least recently used first, and a budget."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.scheduling.cache import PartitionCache

BUDGET = 100
SIZES = [10, 20, 30, 40, 50, 60, 100, 101]
PARTITIONS = st.integers(0, len(SIZES) - 1)


class CacheMachine(RuleBasedStateMachine):
    """`order` holds reserved and loaded partitions alike; `used`, `pins`, `loaded` are what they say."""

    places: list[int] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.released: list[str] = []
        places = None if self.places is None else np.array(self.places, np.uint8)
        self.cache: PartitionCache[str] = PartitionCache(BUDGET, len(SIZES), self.released.append, places)
        self.order: list[int] = []
        self.loaded: set[int] = set()
        self.used: set[int] = set()
        self.pins: Counter[int] = Counter()
        self.evicted: list[str] = []
        self.accesses = self.hits = self.auxiliary = self.auxiliary_hits = self.loads = self.moved = self.peak = 0

    def place_of(self, p: int) -> int:
        return 0 if self.places is None else self.places[p]

    def pinned(self) -> set[int]:
        return {p for p, uses in self.pins.items() if uses}

    def held(self, place: int) -> int:
        return sum(SIZES[p] for p in self.order if self.place_of(p) == place)

    def expect_room(self, size: int, kept: set[int], place: int) -> bool:
        victims, held = [], self.held(place)
        for p in list(self.order):
            if held + size <= BUDGET:
                break
            if p in self.loaded and p not in self.pinned() | kept and self.place_of(p) == place:
                victims.append(p)
                held -= SIZES[p]
        if held + size > BUDGET:
            return False
        for p in victims:
            self.order.remove(p)
            self.loaded.discard(p)
            self.evicted.append(str(p))
        return True

    @rule(p=PARTITIONS, kept=st.sets(PARTITIONS, max_size=3))
    def reserve(self, p: int, kept: set[int]) -> None:
        if p in self.cache:
            return
        if SIZES[p] > BUDGET:
            with pytest.raises(MemoryBudgetError, match=r"partition 7 needs 101 B, the cache holds 100 B; raise"):
                self.cache.reserve(p, SIZES[p])
            return
        expected = self.expect_room(SIZES[p], kept, self.place_of(p))
        assert self.cache.reserve(p, SIZES[p], kept.__contains__ if kept else None) == expected
        if expected:
            self.order.append(p)
            self.peak = max(self.peak, sum(map(self.held, set(self.places or [0]))))

    @rule(size=st.sampled_from(SIZES), data=st.data())
    def make_room(self, size: int, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(set(self.places or [0]))))
        assert self.cache.make_room(size, place=place) == self.expect_room(size, set(), place)

    @precondition(lambda self: len(self.order) > len(self.loaded))
    @rule(data=st.data(), fails=st.booleans())
    def finish_a_load(self, data: st.DataObject, fails: bool) -> None:
        p = data.draw(st.sampled_from([p for p in self.order if p not in self.loaded]))
        with pytest.raises(KeyError, match="reserved but not loaded"):
            self.cache.access(p)
        with pytest.raises(KeyError, match="reserved but not loaded"):
            self.cache.access_all([p])
        if fails:
            self.cache.cancel_reservation(p)
            self.order.remove(p)
        else:
            self.cache.fill(p, str(p), 3)
            self.loaded.add(p)
            self.used.discard(p)
            self.loads += 1
            self.moved += SIZES[p]

    @precondition(lambda self: self.loaded)
    @rule(data=st.data(), auxiliary=st.booleans())
    def access(self, data: st.DataObject, auxiliary: bool) -> None:
        p = data.draw(st.sampled_from(sorted(self.loaded)))
        hit = p in self.used
        assert self.cache.access(p, auxiliary) == (str(p), hit)
        self.used.add(p)
        self.order.remove(p)
        self.order.append(p)
        if auxiliary:
            self.auxiliary, self.auxiliary_hits = self.auxiliary + 1, self.auxiliary_hits + hit
        else:
            self.accesses, self.hits = self.accesses + 1, self.hits + hit

    @rule(data=st.data())
    def access_all(self, data: st.DataObject) -> None:
        some = data.draw(st.permutations(sorted(self.loaded)))
        some = some[: data.draw(st.integers(0, len(some)))]
        hits = [p in self.used for p in some]
        assert self.cache.access_all(some) == ([str(p) for p in some], hits)
        self.order = [p for p in self.order if p not in some] + some
        self.used |= set(some)
        self.pins.update(some)
        self.accesses, self.hits = self.accesses + len(some), self.hits + sum(hits)

    @precondition(lambda self: self.loaded)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        p = data.draw(st.sampled_from(sorted(self.loaded)))
        self.pins[p] += 1
        self.cache.pin(p)

    @precondition(lambda self: self.pinned())
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        p = data.draw(st.sampled_from(sorted(self.pinned())))
        self.pins[p] -= 1
        self.cache.unpin(p)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.evicted += [str(p) for p in self.order if p in self.loaded]
        for held in (self.order, self.loaded, self.pins):
            held.clear()

    @invariant()
    def order_is_least_recently_used_first(self) -> None:
        assert list(self.cache) == self.order

    @invariant()
    def the_budget_is_never_exceeded(self) -> None:
        held = [self.held(place) for place in sorted(set(self.places or [0]))]
        assert max(held) <= BUDGET
        assert self.cache.used == sum(held)
        assert self.cache.peak == self.peak <= self.cache.capacity == len(held) * BUDGET

    @invariant()
    def present_are_those_loaded(self) -> None:
        assert set(np.flatnonzero(self.cache.present)) == self.loaded

    @invariant()
    def contents_are_released_once_and_in_turn(self) -> None:
        assert self.released == self.evicted

    @invariant()
    def the_pinned_stay(self) -> None:
        assert self.pinned() <= self.loaded

    @invariant()
    def counts_add_up(self) -> None:
        s = self.cache.statistics
        assert (s.accesses, s.hits, s.misses) == (self.accesses, self.hits, self.accesses - self.hits)
        assert (s.auxiliary_accesses, s.auxiliary_hits) == (self.auxiliary, self.auxiliary_hits)
        assert (s.loads, s.bytes_read, s.bytes_decoded) == (self.loads, 3 * self.loads, self.moved)
        assert s.misses + s.auxiliary_accesses - s.auxiliary_hits <= s.loads


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestThatTheCacheBehavesAsItsModel = CacheMachine.TestCase


class PlacesMachine(CacheMachine):
    """Three places, each with a budget and partitions of its own."""

    places: list[int] | None = [0, 1, 0, 2, 1, 0, 1, 1]  # noqa: RUF012


PlacesMachine.TestCase.settings = CacheMachine.TestCase.settings
TestThatEachPlaceBehavesAsItsModel = PlacesMachine.TestCase


def test_a_refusal_of_room_evicts_nothing() -> None:
    cache: PartitionCache[str] = PartitionCache(100, 3, lambda _: pytest.fail("evicted"))
    for p, size in ((0, 40), (1, 50)):
        cache.reserve(p, size)
        cache.fill(p, "x", 1)
    cache.pin(1)
    assert not cache.make_room(51)
    assert list(cache) == [0, 1]


def test_a_content_read_ahead_is_a_miss_at_first_and_a_hit_from_then_on() -> None:
    cache: PartitionCache[str] = PartitionCache(100, 1, lambda _: None)
    cache.reserve(0, 10)
    cache.fill(0, "x", 1)
    assert [cache.access(0)[1], cache.access(0)[1]] == [False, True]
    assert (cache.statistics.misses, cache.statistics.hits, cache.statistics.loads) == (1, 1, 1)
