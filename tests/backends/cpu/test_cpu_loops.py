"""The CPU's compiled loops against the Bellman equation in plain Python, equal to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import random_model

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cpu import table as cpu_tables
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import discounts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.store import Store

DISCOUNT = 0.9
TABLES = {
    "ragged, with terminal rewards": {"terminal": 0.3},
    "ragged, with durations": {"durations": True},
    "uniform": {"uniform": True, "terminal": 0.0},
    "uniform, with durations": {"uniform": True, "terminal": 0.0, "durations": True},
}


def worths(table: PartitionTable, sign: float, values: np.ndarray, state: int) -> list[tuple[float, float]]:
    """Q and discount of each action of a state of the partition, sums from left to right."""
    n, wide = table.actions_per_state, table.successors_per_action
    rows = range(n * state, n * state + n) if n else range(*table.action_ptr[state : state + 2].tolist())
    factors = discounts(DISCOUNT, table.durations)
    found = []
    for j in rows:
        outcomes = range(wide * j, wide * j + wide) if wide else range(*table.successor_ptr[j : j + 2].tolist())
        total = 0.0
        for k in outcomes:
            to = int(table.successors[k])
            where = table.first_state + to if to < table.n_states else int(table.halo[to - table.n_states])
            total += float(table.probabilities[k]) * float(values[where])
        g = float(factors[j]) if factors.size else DISCOUNT
        found.append((sign * float(table.rewards[j]) + g * total, g))
    return found


def backup(table: PartitionTable, sign: float, values: np.ndarray, state: int) -> tuple[float, int]:
    """The largest Q of a state and its lowest action; the terminal reward and -1 where it has none."""
    found = [q for q, _ in worths(table, sign, values, state)]
    if not found:
        return sign * float(table.terminal_rewards[state]) if table.terminal_rewards.size else 0.0, -1
    return max(found), found.index(max(found))


@pytest.fixture(
    params=[(kind, dtype, sense) for kind in TABLES for dtype, sense in (("float32", "max"), ("float64", "min"))]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Three partitions of a small random model, of each form that tables have."""
    kind, dtype, sense = request.param
    return make_store(Case(random_model(7, 40, **TABLES[kind]), sense, dtype, 3), tmp_path / "s")


@pytest.fixture(params=["loops for any shape", "loops for the table's shape", "global successors"])
def backend(request: pytest.FixtureRequest, store: Store, monkeypatch: pytest.MonkeyPatch):
    """A backend of one thread at random values."""
    monkeypatch.setattr(cpu_tables, "MIN_COMPILED_FOR", 1 if "table" in request.param else 1 << 30)
    if request.param == "global successors":
        monkeypatch.setattr(cpu_tables, "MAX_GATHERED", -1)
    values = np.random.default_rng(1).normal(size=store.n_states)
    made = CpuBackend("forward", 1)
    model = ModelFacts.of(store.facts, DISCOUNT)
    made.start(model, made.layout(model, Needs()), values, None)
    yield made
    made.close()


def prepared(backend: CpuBackend, table: PartitionTable):
    """The table, resident; its arrays are copied, since a backend may change them."""
    wide = replace(table, successors=table.successors.astype(np.uint32))
    return backend.admit(backend.prepare(wide))


def test_full_sweeps_are_the_bellman_equation_to_the_last_bit(store: Store, backend: CpuBackend) -> None:
    sign = 1.0 if store.sense == "max" else -1.0
    values, policy = backend.values().copy(), np.full(store.n_states, -1)
    for p in range(store.n_partitions):
        table = store.read(p)[0]
        report = backend.sweep([prepared(backend, table)], SweepLimits(-1.0, 3)).report()
        for _ in range(3):
            up = down = 0.0
            for s in range(table.n_states):
                best, action = backup(table, sign, values, s)
                up, down = (
                    max(up, best - values[table.first_state + s]),
                    max(down, values[table.first_state + s] - best),
                )
                values[table.first_state + s], policy[table.first_state + s] = best, action
        assert report.last_change is not None
        assert (report.sweeps.tolist(), report.last_change.tolist()) == ([3], [[up], [down]])
        np.testing.assert_array_equal(backend.values(), values)
        np.testing.assert_array_equal(backend.policy(), policy)


def scaled(table: PartitionTable, residual: float, g: float, row_sum: float) -> float:
    """A row's residual over 1 - g times the partition's largest row sum; a product where one discount holds for all."""
    return residual / (1.0 - g * row_sum) if table.durations.size else residual * (1.0 / (1.0 - DISCOUNT * row_sum))


def test_measured_residuals_are_those_of_the_bellman_equation_to_the_last_bit(
    store: Store, backend: CpuBackend
) -> None:
    sign, values = 1.0 if store.sense == "max" else -1.0, backend.values().copy()
    for p in range(store.n_partitions):
        table, row_sum = store.read(p)[0], float(backend._facts.row_sums[p])
        largest = [-np.inf] * 4
        for s in range(table.n_states):
            here = values[table.first_state + s]
            best, action = backup(table, sign, values, s)
            each = [scaled(table, q - here, g, row_sum) for q, g in worths(table, sign, values, s)] or [best - here]
            residuals = max(each), -each[max(action, 0)], best - here, here - best
            largest = [max(a, b) for a, b in zip(largest, residuals, strict=True)]
        measured, _ = backend.measure(prepared(backend, table), 0.0)
        assert measured.tolist() == largest


@pytest.mark.parametrize("fault", ["successors", "successor_ptr", "action_ptr"])
def test_loops_with_checks_stop_at_an_index_outside_its_array(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loads of a store refuse such tables; a loop that is given one must not read what lies beyond."""
    monkeypatch.setattr(cpu_tables, "CHECKED", True)
    store = make_store(Case(random_model(7, 40, terminal=0.3), partitions=3), tmp_path / "s")
    backend = CpuBackend("forward", 1)
    model = ModelFacts.of(store.facts, DISCOUNT)
    backend.start(model, backend.layout(model, Needs()), None, None)
    sound = prepared(backend, store.read(0)[0])
    limits = SweepLimits(-1.0, 2)
    backend.sweep([sound], limits)
    backend.relax([sound], limits).report()
    table = store.read(1)[0]
    forged = getattr(table, fault).astype(np.uint32)
    forged[-1] += 1000
    resident = prepared(backend, replace(table, **{fault: forged}))
    for sweep in (
        lambda: backend.sweep([resident], limits),
        lambda: backend.relax([resident], limits).report(),
        lambda: backend.measure(resident, 0.0),
    ):
        with pytest.raises(IndexError, match="outside its array"):
            sweep()
    backend.close()
