"""P-eva's order: how often it reads what a car's values flow through."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ooc_mdp
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.solver.methods import p_eva


@pytest.fixture(scope="module")
def car() -> TableSource:
    """90,000 states in 900 partitions; a step of some thousandths of a unit of time, discounts of up to 0.99985."""
    return ooc_mdp.open_problem("mountain-car", {"grid": "300", "time_unit": 1}, blocks=[30, 30], device="cpu")


@pytest.mark.parametrize(
    ("target", "method", "most"), [({"residual": 1e-4}, "p-eva", 1.15), ({"epsilon": 1e-3}, "auto", 1.45)]
)
def test_a_car_is_read_less_than_one_and_a_half_times(
    car: TableSource, monkeypatch: pytest.MonkeyPatch, target: Any, method: Any, most: float
) -> None:
    # On one thread counts hardly depend on when reads arrive.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    solution = ooc_mdp.solve(car, 0.9, cache="22%", device="cpu", method=method, **target)
    assert solution.outcome is (Outcome.PROVED if "epsilon" in target else Outcome.RESIDUAL)
    assert solution.statistics.loads_per_partition <= most


def test_a_batch_is_what_promises_most_and_shared_by_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p_eva, "_STATES_TOGETHER", 40)
    levels = np.array([1.0, 5.0, 3.0, 4.0, 2.0])
    run: Any = SimpleNamespace(
        store=SimpleNamespace(partition_ptr=np.arange(0, 60, 10)),
        target=SimpleNamespace(levels=lambda: levels),
        changed=True,
        sharers=1,
    )
    everything = np.arange(5)
    assert p_eva._most_promising(run, everything).tolist() == [1, 3, 2, 4]
    run.sharers = 2
    assert p_eva._most_promising(run, everything).tolist() == [1, 3]
    assert p_eva._most_promising(run, everything[:2]).tolist() == [0, 1]
    run.changed = False
    assert p_eva._most_promising(run, everything).tolist() == [0, 1, 2, 3, 4]


class Loading:
    """A stager of one thread: what it loads has arrived when it is waited for."""

    depth = 1

    def __init__(self, present: npt.NDArray[np.bool_]) -> None:
        self.present, self.loading = present, list[int]()

    def under_way(self) -> list[int]:
        return self.loading

    def prefetch(self, partition: int, spare: Any) -> bool:
        started = not self.loading and not self.present.any()  # the cache holds one partition
        self.loading += [partition] * started
        return started

    def wait(self) -> None: ...

    def take_over(self) -> int:
        self.present[self.loading] = True
        arrived = len(self.loading)
        self.loading.clear()
        return arrived

    def obtain(self, partition: int) -> None:
        raise AssertionError(f"partition {partition} is clean")


def test_a_solve_goes_on_where_news_made_clean_what_it_was_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two loads a worker takes in what others found, such as a wider range of values: a larger target."""
    monkeypatch.setattr(p_eva, "sweeps_aside", lambda _: False)
    monkeypatch.setattr(p_eva, "AtOnce", lambda _: SimpleNamespace(due=lambda: False))
    dirty, present = np.ones(3, np.bool_), np.zeros(3, np.bool_)
    run: Any = SimpleNamespace(
        backend=SimpleNamespace(loads_beside=False, together=2),
        cache=SimpleNamespace(present=present),
        priority=SimpleNamespace(rank=lambda levels: levels),
        refresh_target=lambda: None,
        reached=lambda: not dirty.any(),
        stager=Loading(present),
        target=SimpleNamespace(levels=lambda: np.array([1.0, 3.0, 2.0]), dirty=dirty.copy),
        tick=lambda: dirty.fill(False),
    )
    p_eva.p_eva(run)
    assert present.tolist() == [False, True, False]
