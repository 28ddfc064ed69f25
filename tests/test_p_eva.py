"""P-eva's order: how often it reads what a car's values flow through."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.methods import p_eva
from ooc_mdp.solution import Outcome
from ooc_mdp.table_source import TableSource


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
