"""The stager: what is under way, who gives way to whom, and what a failing read or a full device leaves behind."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ooc_mdp.errors import MemoryBudgetError, StoreError
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.scheduling.stager import Stager, short_switch_interval

SIZE = 10


class Source:
    """Partitions of one size; reads wait for `gate`, those in `broken` fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.broken: set[int] = set()
        self.reads: list[int] = []
        self.threads: set[str] = set()

    def read(self, partition: int) -> tuple[Any, int]:
        assert self.gate.wait(300)
        self.reads.append(partition)
        self.threads.add(threading.current_thread().name)
        if partition in self.broken:
            raise StoreError(f"partition {partition} is damaged")
        return SimpleNamespace(index=partition), 4


class Backend:
    """Admits tables, in the solve's own thread only; has no room for those in `too_large`."""

    def __init__(self, source: Source) -> None:
        self.fetch = source.read
        self.too_large: set[int] = set()
        self.released: list[int] = []

    def admit(self, table: Any) -> int:
        assert threading.current_thread() is threading.main_thread()
        if table.index in self.too_large:
            raise MemoryBudgetError(f"no room for partition {table.index}")
        return int(table.index)

    def release(self, resident: int) -> None:
        self.released.append(resident)


class Bench:
    def __init__(self, held: int) -> None:
        self.source = Source()
        self.backend = Backend(self.source)
        self.cache: PartitionCache[Any] = PartitionCache(held * SIZE, 6, self.backend.released.append)
        self.stager = Stager(self.cache, self.backend, lambda p: SIZE, smallest=SIZE)  # type: ignore[arg-type]

    def arrive(self) -> None:
        """Wait until everything under way was read, then take it over."""
        self.all_read()
        self.stager.collect()

    def all_read(self) -> None:
        """Wait until everything under way was read."""
        reading = self.stager._reading
        while len(reading.arrived()) < len(reading.requested):
            reading._receive()

    def assert_consistent(self) -> None:
        assert self.cache.used == SIZE * len(list(self.cache)) <= self.cache.budget
        assert set(self.stager.in_flight()) | set(np.flatnonzero(self.cache.present)) == set(self.cache)


@pytest.fixture
def two() -> Any:
    bench = Bench(2)
    with bench.stager:
        yield bench
    assert bench.stager.in_flight() == []


def test_obtaining_loads_once_and_hits_afterwards(two: Bench) -> None:
    assert [two.stager.load_and_access(3), two.stager.load_and_access(3)] == [(3, False), (3, True)]
    assert two.source.reads == [3]
    assert two.stager.load_and_access(3, auxiliary=True) == (3, True)
    assert two.cache.statistics.auxiliary_accesses == 1


def test_the_first_of_an_order_are_loaded_as_far_as_there_is_room_for_all_of_them(two: Bench) -> None:
    two.stager.load(5)
    two.stager.load_in_order(np.array([0, 1, 2, 3]), 3)
    assert np.flatnonzero(two.cache.present).tolist() == [0, 1]
    assert sorted(two.source.reads) == [0, 1, 5]


def test_loading_in_order_reads_ahead_of_the_partitions_that_are_awaited() -> None:
    bench = Bench(6)
    with bench.stager:
        bench.stager.load_in_order(np.arange(6), 2)
        assert {0, 1} <= set(np.flatnonzero(bench.cache.present))
        assert 2 in bench.cache
        bench.arrive()


def test_reading_into_unused_room_evicts_nothing(two: Bench) -> None:
    two.stager.load(0)
    assert two.stager.has_unused_room()
    assert two.stager.prefetch_into_unused_room(1)
    assert not two.stager.has_unused_room()
    two.arrive()
    assert not two.stager.prefetch_into_unused_room(2)
    assert set(two.cache) == {0, 1}
    assert two.stager.prefetch(2)


def test_reading_ahead_happens_on_another_thread_and_is_taken_over_when_done(two: Bench) -> None:
    assert two.stager.prefetch(1)
    assert two.stager.in_flight() == [1]
    two.arrive()
    assert two.stager.in_flight() == []
    assert two.cache.present[1]
    assert two.stager.load_and_access(1) == (1, False)
    assert threading.main_thread().name not in two.source.threads
    two.assert_consistent()


def test_what_is_still_being_read_is_not_taken_over(two: Bench) -> None:
    two.source.gate.clear()
    two.stager.prefetch(1)
    two.stager.collect()
    assert two.stager.in_flight() == [1]
    assert not two.cache.present[1]
    two.source.gate.set()
    assert two.stager.load_and_access(1) == (1, False)
    assert two.source.reads == [1]


def test_no_more_than_the_depth_is_under_way_and_nothing_twice() -> None:
    bench = Bench(5)
    bench.source.gate.clear()
    with bench.stager:
        assert [bench.stager.prefetch(p) for p in (0, 0, 1, 2)] == [True, False, True, False]
        assert bench.stager.in_flight() == [0, 1]
        bench.source.gate.set()
        bench.arrive()
        assert not bench.stager.prefetch(1)
        assert bench.stager.prefetch(2)


def test_reading_ahead_evicts_none_that_are_to_be_kept(two: Bench) -> None:
    two.stager.load_and_access(0)
    two.stager.load_and_access(1)
    assert not two.stager.prefetch(2, lambda p: p in (0, 1))
    assert two.stager.prefetch(2, lambda p: p == 0)
    assert two.backend.released == [1]
    assert list(two.cache) == [0, 2]


def test_what_is_read_ahead_makes_way_for_what_is_needed_now(two: Bench) -> None:
    two.source.gate.clear()
    two.stager.prefetch(0)
    two.stager.prefetch(1)
    two.source.gate.set()
    assert two.stager.load_and_access(2) == (2, False)
    assert two.backend.released == [0]
    two.assert_consistent()
    assert two.stager.load_and_access(1) == (1, False)


def test_a_partition_in_use_does_not_make_way() -> None:
    bench = Bench(1)
    with bench.stager:
        bench.stager.load_and_access(0)
        bench.cache.pin(0)
        assert not bench.stager.prefetch(1)
        with pytest.raises(MemoryBudgetError, match=r"partition 1 needs 10 B beside .* raise --cache to at least 20"):
            bench.stager.load_and_access(1)
        bench.cache.unpin(0)
        assert bench.stager.load_and_access(1) == (1, False)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("fault", ["read", "admit"])
def test_a_failed_load_raises_and_gives_its_room_back(two: Bench, ahead: bool, fault: str) -> None:
    (two.source.broken if fault == "read" else two.backend.too_large).add(4)
    two.stager.load_and_access(0)
    if ahead:
        assert two.stager.prefetch(4)
    with pytest.raises((StoreError, MemoryBudgetError), match="partition 4"):
        two.stager.load_and_access(4)
    assert list(two.cache) == [0]
    two.assert_consistent()
    two.source.broken.clear()
    two.backend.too_large.clear()
    assert two.stager.load_and_access(4) == (4, False)
    assert two.cache.statistics.loads == 2


def test_a_failure_ahead_is_raised_when_it_is_taken_over(two: Bench) -> None:
    two.source.broken.add(4)
    two.stager.prefetch(4)
    with pytest.raises(StoreError, match="partition 4"):
        two.arrive()
    two.assert_consistent()


def test_closing_ends_the_threads_and_drops_the_rest_where_a_table_is_not_admitted() -> None:
    bench = Bench(2)
    bench.backend.too_large.add(0)
    assert bench.stager.prefetch(0)
    assert bench.stager.prefetch(1)
    bench.all_read()
    with pytest.raises(MemoryBudgetError, match="no room for partition 0"):
        bench.stager.close()
    assert bench.stager.in_flight() == []
    assert bench.backend.released == [1]
    assert list(bench.cache) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stager")]


def test_closing_waits_for_threads_and_drops_what_they_bring() -> None:
    bench = Bench(3)
    bench.source.gate.clear()
    with bench.stager:
        bench.stager.prefetch(0)
        bench.stager.prefetch(1)
        threading.Timer(0.05, bench.source.gate.set).start()
    assert bench.stager.in_flight() == []
    assert list(bench.cache) == []
    assert bench.cache.used == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("stager")]


def test_what_no_thread_has_begun_is_dropped_without_being_read() -> None:
    bench = Bench(4)
    bench.source.gate.clear()
    with bench.stager:
        assert [bench.stager.prefetch(p, waiting=1) for p in (0, 1, 2, 3)] == [True, True, True, False]
        while bench.stager._reading._requests.qsize() > 1:  # until both threads have begun
            pass
        threading.Timer(0.05, bench.source.gate.set).start()
    assert sorted(bench.source.reads) == [0, 1]
    assert sorted(bench.backend.released) == [0, 1]
    assert list(bench.cache) == []


def test_waiting_ends_when_one_of_those_under_way_has_arrived(two: Bench) -> None:
    two.stager.wait()  # at once: nothing is under way
    two.source.gate.clear()
    two.stager.prefetch(0)
    two.stager.prefetch(1)
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: (two.stager.wait(), ended.set()))
    waiting.start()
    assert not ended.wait(0.05)
    two.source.gate.set()
    waiting.join(300)
    assert ended.is_set()
    assert two.stager.collect() >= 1


def test_what_is_taken_over_is_counted(two: Bench) -> None:
    assert two.stager.collect() == 0
    two.stager.prefetch(0)
    two.stager.prefetch(1)
    two.all_read()
    assert two.stager.collect() == 2
    assert two.stager.collect() == 0


class Announced(Source):
    """A source whose partitions the system can be asked to read ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def prefetch(self, partition: int) -> None:
        self.asked.append(partition)


def test_each_partition_is_announced_once_and_read_by_nobody_for_that() -> None:
    source = Announced()
    backend = Backend(source)
    cache: PartitionCache[Any] = PartitionCache(2 * SIZE, 6, backend.released.append)
    with Stager(cache, backend, lambda p: SIZE, prefetch=source.prefetch) as stager:  # type: ignore[arg-type]
        stager.readahead([3, 1, 3])
        stager.readahead([1, 5, 3])
        stager.load_and_access(0)
        stager._adviser.submit(lambda: None).result(timeout=300)  # one thread: those before it are done
        assert source.asked == [3, 1, 5]
        assert source.reads == [0]
        assert cache.used == SIZE


def test_a_source_that_cannot_be_read_ahead_is_not_asked(two: Bench) -> None:
    two.stager.readahead([0, 1])
    assert two.source.reads == []


def test_what_is_dropped_gives_its_room_and_its_slots_back_and_can_be_loaded_again() -> None:
    bench = Bench(4)
    with bench.stager:
        bench.stager.load_and_access(5)
        bench.source.broken.add(1)
        bench.stager.prefetch(0)
        bench.stager.prefetch(1)
        bench.stager.cancel()
        assert bench.stager.in_flight() == []
        assert bench.backend.released == [0]
        assert list(bench.cache) == [5]
        bench.assert_consistent()
        bench.source.broken.clear()
        assert bench.stager.prefetch(1)
        bench.arrive()
        assert bench.stager.load_and_access(1) == (1, False)


def test_as_many_are_free_as_are_not_under_way() -> None:
    bench = Bench(4)
    bench.source.gate.clear()
    with bench.stager:
        whole = bench.stager.free_slots()
        assert whole == bench.stager.depth
        bench.stager.prefetch(2)
        assert bench.stager.free_slots() == whole - 1
        bench.source.gate.set()
        bench.stager.load_and_access(2)
        assert bench.stager.free_slots() == whole


@pytest.mark.parametrize("wanted", [True, False])
def test_turns_are_as_long_as_before_when_a_solve_is_over_or_fails(wanted: bool) -> None:
    usual = sys.getswitchinterval()
    seen = []

    def solve() -> None:
        with short_switch_interval(wanted):
            seen.append(sys.getswitchinterval())
            raise StoreError("a read failed")

    with pytest.raises(StoreError):
        solve()
    assert seen == [pytest.approx(2e-4 if wanted else usual)]
    assert sys.getswitchinterval() == usual
