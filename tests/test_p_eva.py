"""P-eva's order: how often it reads what a car's values flow through."""

from __future__ import annotations

import os
from typing import Any

import pytest

import ooc_mdp
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
