"""One partition of all states, which is value iteration, and one state per partition (Wingate 2004, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_mdps import rows_of

import ooc_mdp
from ooc_mdp.reference import policy_iteration
from ooc_mdp.store import Store

EPSILON = 1e-2
METHODS: list[dict[str, Any]] = [
    {"method": "vi"},
    {"priority": "joint"},
    {"priority": "h1"},
    {"priority": "h2"},
    {"priority": "hybrid"},
    {"priority": "exact-h1"},
    {"priority": "exact-h2"},
    {"priority": "exact-hybrid"},
    {"method": "policy-iteration"},
    {},
]
PARTITIONS = {"one partition": {"partitions": 1}, "one state": {"partition_shape": (1, 1)}}
SIDE = 6
PROBLEMS = {f"GW-{SIDE}x4": {"seed": 3}, "mountain-car": {"grid": f"{SIDE},{SIDE}"}}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Store]:
    """Each problem of 36 states, cut in each way."""

    @cache
    def of(problem: str, cut: str) -> Store:
        options: dict[str, Any] = PARTITIONS[cut]
        place = tmp_path_factory.mktemp("stores") / "s"
        return ooc_mdp.generate(problem, place, PROBLEMS[problem], device="cpu", **options)

    return of


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())) or "auto")
@pytest.mark.parametrize("cut", PARTITIONS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_each_method_proves_the_reference_values_of_what_was_generated(
    stores: Callable[[str, str], Store], problem: str, cut: str, method: dict[str, Any]
) -> None:
    store = stores(problem, cut)
    assert np.diff(store.facts.partition_ptr).tolist() == ([SIDE**2] if cut == "one partition" else [1] * SIDE**2)
    solution = ooc_mdp.solve(store, 0.8, epsilon=EPSILON, cache="22%", device="cpu", **method)
    assert solution.outcome.proved
    assert solution.error_bound <= EPSILON
    best = policy_iteration(rows_of(store), 0.8, store.sense).values
    assert np.abs(solution.values - best).max() <= solution.error_bound + 1e-12


@pytest.mark.parametrize("priority", ["exact-h1", "exact-h2", "exact-hybrid"])
def test_p_eva_on_one_partition_is_value_iteration_in_one_visit(
    stores: Callable[[str, str], Store], priority: Any
) -> None:
    store = stores(f"GW-{SIDE}x4", "one partition")
    same: dict[str, Any] = {"residual": 1e-4, "sweep_order": "forward", "device": "cpu"}
    solution = ooc_mdp.solve(store, 0.8, priority=priority, **same)
    # A visit ends at a quarter of the target.
    swept = ooc_mdp.solve(store, 0.8, method="vi", **same | {"residual": 0.25e-4})
    s = solution.statistics
    assert (s.accesses, s.loads) == (1, 1)
    assert s.backups == SIDE**2 * s.sweeps
    assert abs(s.sweeps - swept.statistics.sweeps) <= 1, "the residual is known one sweep later or not"
    assert np.abs(solution.values - swept.values).max() <= 1e-4


@pytest.mark.parametrize(
    "cut",
    [
        {"partitions": SIDE**2},
        {"partition_grid": (SIDE, SIDE)},
        {"partition_size": "1B"},
        {"partitioner": "ranges", "partitions": SIDE**2},
    ],
    ids=str,
)
def test_one_state_per_partition_can_be_asked_for_in_other_ways(tmp_path: Path, cut: Any) -> None:
    store = ooc_mdp.generate(f"GW-{SIDE}x4", tmp_path / "s", PROBLEMS[f"GW-{SIDE}x4"], **cut)
    assert store.n_partitions == store.n_states == SIDE**2
