"""P-eva's order: how often it reads what a car's values flow through."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ooc_mdp
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.table import Table
from ooc_mdp.runtime import quotas
from ooc_mdp.scheduling.reading import ReadingThreads
from ooc_mdp.solver.methods import p_eva, p_eva_on_device


@pytest.fixture(scope="module")
def car() -> Table:
    """90,000 states in 900 partitions; a step of some thousandths of a unit of time, discounts of up to 0.99985."""
    return ooc_mdp.open_problem("mountain-car", {"grid": "300", "time_unit": 1}, partition_grid=[30, 30], device="cpu")


def _read_at_request(threads: ReadingThreads, partition: int) -> None:
    """Read a requested partition on the caller's thread, before the request returns."""
    threads.requested[partition] = None
    threads._requests.put(partition)
    threads._requests.put(None)
    threads._serve()


@pytest.mark.parametrize(
    ("target", "method", "cache", "most"),
    [
        ({"residual": 1e-4}, "p-eva", "22%", 1.15),
        ({"residual": 1e-4}, "p-eva", "10%", 1.35),
        ({"residual": 1e-4}, "p-eva", "5%", 1.7),
        ({"epsilon": 1e-3}, "auto", "22%", 1.9),
    ],
)
def test_a_car_is_read_less_than_twice(
    car: Table, monkeypatch: pytest.MonkeyPatch, target: Any, method: Any, cache: str, most: float
) -> None:
    """Counts are the same in each run, since one thread sweeps and each read ends before the next step."""
    monkeypatch.setattr(quotas, "cores", lambda: 1)
    monkeypatch.setattr(ReadingThreads, "request", _read_at_request)
    solution = ooc_mdp.solve(car, 0.9, cache=cache, device="cpu", method=method, **target)
    assert solution.outcome is (Outcome.PROVED if "epsilon" in target else Outcome.RESIDUAL_REACHED)
    assert solution.statistics.loads_per_partition <= most


@pytest.mark.parametrize(
    ("states", "devices", "solvers", "size"), [(40, 1, 1, 4), (40, 1, 2, 2), (40, 2, 2, 4), (40, 2, 1, 8), (5, 1, 1, 2)]
)
def test_a_device_works_on_so_many_states_whoever_else_does(
    states: int, devices: int, solvers: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p_eva_on_device, "_WORKING_SET_STATES", states)
    state: Any = SimpleNamespace(
        table=SimpleNamespace(n_partitions=20, n_states=200),
        cache=SimpleNamespace(present=np.ones(20, np.bool_)),
        peers=SimpleNamespace(count=solvers),
        plan=SimpleNamespace(layout=SimpleNamespace(devices=devices)),
    )
    assert p_eva_on_device._working_set(state).size == size


@pytest.mark.parametrize(
    ("partitions", "threads", "held", "batch", "size"),
    [
        (289, 2, 289, 64, 36),
        (289, 2, 144, 64, 36),
        (289, 2, 143, 64, 289),
        (1024, 2, 1024, 64, 64),
        (20, 16, 20, 64, 32),
        (9, 2, 9, 4, 4),
        (289, 2, 289, 1, 289),
    ],
)
def test_a_cpu_works_on_an_eighth_where_its_cache_holds_half(
    partitions: int, threads: int, held: int, batch: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "cores", lambda: threads)
    layout = SimpleNamespace(cache_bytes=10 * held, entries=np.full(partitions, 10), batch_size=batch)
    state: Any = SimpleNamespace(
        table=SimpleNamespace(n_partitions=partitions),
        cache=SimpleNamespace(present=np.ones(partitions, np.bool_)),
        plan=SimpleNamespace(layout=layout),
    )
    assert p_eva._working_set(state).size == size


class Beginning:
    """A stager of 12 threads whose loads never arrive."""

    def __init__(self, slots: int, present: npt.NDArray[np.bool_]) -> None:
        self.slots, self.present, self.loading = slots, present, list[int]()

    def in_flight(self) -> list[int]:
        return self.loading

    def free_slots(self) -> int:
        return 12 - len(self.loading)

    def prefetch(self, partition: int, keep: Callable[[int], bool]) -> bool:
        if self.present.sum() + len(self.loading) == self.slots:
            evicted = next((q for q in np.flatnonzero(self.present).tolist() if not keep(q)), None)
            if evicted is None:
                return False
            self.present[evicted] = False
        self.loading.append(partition)
        return True

    def readahead(self, partitions: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("slots", "residents", "dirty", "begun"),
    [(32, 32, 0, 4), (16, 16, 8, 2), (16, 16, 9, 0), (16, 10, 0, 6), (16, 15, 0, 2), (6, 6, 0, 2), (1, 1, 0, 1)],
)
def test_a_device_replaces_an_eighth_of_its_slots_at_a_time_and_fills_unused_ones(
    slots: int, residents: int, dirty: int, begun: int
) -> None:
    partitions = np.arange(50)
    stager = Beginning(slots, partitions < residents)
    state: Any = SimpleNamespace(
        stager=stager,
        cache=SimpleNamespace(present=stager.present, place_of=lambda p: 0, room=lambda place: 0),
        by_priority=lambda p: p,
        plan=SimpleNamespace(layout=SimpleNamespace(batch_size=slots, devices=1, largest_entry=1)),
    )
    p_eva_on_device._load(state, (partitions < dirty) | (partitions >= residents))
    assert stager.loading == list(range(residents, residents + begun))
    assert stager.present[:dirty].all()


def chain(dirty: list[int], residents: list[int], owned: list[int] | None = None, slots: int = 8) -> Any:
    """A solve's state of 10 partitions, each of which reads the one before."""
    numbers = np.arange(10)
    stager = Beginning(slots, np.isin(numbers, residents))
    free = slots - len(residents)
    return SimpleNamespace(
        stager=stager,
        cache=SimpleNamespace(present=stager.present, place_of=lambda p: 0, room=lambda place: free),
        by_priority=lambda p: p,
        bounds=SimpleNamespace(readers=lambda q: np.isin(numbers, q + 1)),
        target=SimpleNamespace(owned=None if owned is None else np.isin(numbers, owned)),
        plan=SimpleNamespace(layout=SimpleNamespace(batch_size=slots, devices=1, largest_entry=1)),
    )


def test_clean_readers_of_what_is_swept_take_part_if_they_are_resident_and_this_solver_s_own() -> None:
    dirty = np.isin(np.arange(10), [1, 2, 6])
    state = chain([1, 2, 6], [0, 1, 2, 3, 7])
    assert p_eva_on_device._readers(state, np.array([1, 2, 6]), dirty).tolist() == [3, 7]
    assert p_eva_on_device._readers(state, np.array([1]), dirty).size == 0, "2 is dirty itself"
    state = chain([1, 2, 6], [0, 1, 2, 3, 7], owned=[0, 1, 2, 6, 7])
    assert p_eva_on_device._readers(state, np.array([1, 2, 6]), dirty).tolist() == [7]


@pytest.mark.parametrize(("slots", "begun"), [(8, [5, 3, 6]), (3, [5])])
def test_readers_of_dirty_partitions_are_loaded_into_room_that_is_free(slots: int, begun: list[int]) -> None:
    state = chain([2, 5], [1, 2], slots=slots)
    p_eva_on_device._load(state, np.isin(np.arange(10), [2, 5]))
    assert state.stager.loading == begun
    owned = chain([2, 5], [1, 2], owned=[1, 2, 5, 6], slots=slots)
    p_eva_on_device._load(owned, np.isin(np.arange(10), [2, 5]))
    assert owned.stager.loading == [p for p in begun if p != 3]


class Loading:
    """A stager of one thread: what it loads has arrived when it is waited for."""

    depth = 1

    def __init__(self, present: npt.NDArray[np.bool_]) -> None:
        self.present, self.loading = present, list[int]()

    def in_flight(self) -> list[int]:
        return self.loading

    def has_unused_room(self) -> bool:
        return True

    def prefetch_into_unused_room(self, partition: int, waiting: int = 0) -> bool:
        started = not self.loading and not self.present.any()  # the cache holds one partition
        self.loading += [partition] * started
        return started

    def wait(self) -> None: ...

    def collect(self) -> int:
        self.present[self.loading] = True
        arrived = len(self.loading)
        self.loading.clear()
        return arrived

    def load_and_access(self, partition: int) -> None:
        raise AssertionError(f"partition {partition} is clean")


def test_a_solve_goes_on_where_news_made_clean_what_it_was_loading() -> None:
    """Between two loads a worker takes in what others found, such as a wider range of values: a larger target."""
    dirty, present = np.ones(3, np.bool_), np.zeros(3, np.bool_)
    level = np.array([1.0, 3.0, 2.0])
    state: Any = SimpleNamespace(
        table=SimpleNamespace(n_partitions=3),
        plan=SimpleNamespace(layout=SimpleNamespace(batch_size=2, cache_bytes=1, entries=np.ones(3))),
        cache=SimpleNamespace(present=present),
        stager=Loading(present),
        target=SimpleNamespace(dirty=dirty.copy),
        dirty=lambda: np.flatnonzero(dirty),
        by_priority=lambda p: p[np.argsort(-level[p])],
        finish=lambda: None,
    )
    steps = p_eva.p_eva(state)
    next(steps)
    dirty[:] = False
    next(steps)
    assert present.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("resident", "reads", "begun"),
    [
        (10, range(130), [129]),
        (64, range(130), [129, 128]),
        (96, range(130), [129, 128, 127]),
        (96, [129, 7, 101], [129, 101]),
    ],
)
def test_a_partition_is_read_ahead_with_some_that_it_reads(resident: int, reads: Any, begun: list[int]) -> None:
    class Reading:
        """Room for what is read in place of others, with as many loads waiting as are wanted."""

        def __init__(self) -> None:
            self.began = list[int]()

        def in_flight(self) -> list[int]:
            return self.began

        def prefetch(self, partition: int, keep: Any = None, waiting: int = 0) -> bool:
            assert waiting >= len(begun)
            self.began.append(partition)
            return True

    reading, absent, entries = Reading(), np.arange(100, 130), np.sort(np.array(reads, np.int64))
    ptr = np.zeros(201, np.int64)
    ptr[130:] = entries.size
    state: Any = SimpleNamespace(
        stager=reading,
        cache=SimpleNamespace(present=np.arange(200) < resident),
        by_priority=lambda p: np.sort(p)[::-1],
        plan=SimpleNamespace(facts=SimpleNamespace(coupling=Coupling(ptr, entries, np.ones(entries.size)))),
    )
    p_eva._read_ahead(state, absent, may_evict=True)
    assert reading.began == begun
    p_eva._read_ahead(state, absent, may_evict=True)  # while these are under way
    assert reading.began == begun
