"""The CPU engine: partitions swept together on several threads, and residuals of the values that come out."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from cpu_visits import LIMITS, started
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from paths import BENCHMARKS
from small_mdps import Case, cases, distance, make_store, model_of_shape, optimum, rows_of, stored
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp.backends.cpu import table as cpu_tables
from ooc_mdp.backends.cpu import visits
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.batch import Findings
from ooc_mdp.backends.cpu.calls import call_of
from ooc_mdp.backends.cpu.table import swept_table
from ooc_mdp.backends.cpu.visits import judge
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.runtime.arena import TableMemory
from ooc_mdp.solver.local import solve
from ooc_mdp.store import Store


@njit
def _judge(p: int, swept: np.ndarray, measured: np.ndarray, findings: Findings) -> None:
    judge(p, swept, measured, findings)


def successors_of(table: PartitionTable, whole: bool) -> np.ndarray:
    """Global successors of positive probability, row by row."""
    states = np.append(np.arange(table.first_state, table.first_state + table.n_states), table.halo)
    return np.asarray(table.successors if whole else states[table.successors])


@pytest.mark.parametrize("threads", [1, 2, 3])
@settings(max_examples=30)
@given(case=cases(), discount=st.sampled_from([0.0, 0.5, 0.9, 0.99]), visits=st.integers(1, 4))
def test_bounds_of_a_visit_are_those_of_all_values_together(
    threads: int, case: Case, discount: float, visits: int
) -> None:
    with stored(case) as store:
        backend, residents = started(store, discount, threads)
        for _ in range(visits):
            report = backend.relax(residents, LIMITS).report()
        assert report.joint
        assert report.residuals is not None
        for i, resident in enumerate(residents):
            assert report.residuals[:, i].tolist() == backend.measure(resident, 0.0)[0].tolist()
            own = backend.values()[
                store.facts.partition_ptr[resident.index] : store.facts.partition_ptr[resident.index + 1]
            ]
            assert (report.smallest_value[i], report.largest_value[i]) == (own.min(), own.max())
        backend.close()


@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=40)
@given(case=cases(), discount=st.sampled_from([0.0, 0.5, 0.9, 0.99]), parts=st.lists(st.integers(1, 7), max_size=4))
def test_residuals_that_follow_from_a_full_sweep_are_no_less_than_those_measured(
    threads: int, case: Case, discount: float, parts: list[int]
) -> None:
    limits = replace(LIMITS, unmeasured=0.0)
    with stored(case) as store:
        backend, residents = started(store, discount, threads)
        for part in [7, *parts]:
            chosen = [r for i, r in enumerate(residents) if part >> i % 3 & 1] or residents
            found = backend.relax(chosen, limits).report().residuals
            assert found is not None
            measured = np.array([backend.measure(r, 0.0)[0] for r in chosen]).T
            rounding = 1e-12 * (1.0 + np.abs(backend.values()).max()) / (1.0 - discount)
            assert (measured <= found + rounding).all()
        backend.close()


def test_only_what_is_far_from_the_target_is_left_unmeasured(tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-32x4", tmp_path / "s", partitions=4)
    backend, residents = started(store, 0.95)
    above = set()
    for unmeasured in [0.0] * 12 + [math.inf]:
        found = backend.relax(residents, replace(LIMITS, unmeasured=unmeasured)).report().residuals
        assert found is not None
        measured = np.array([backend.measure(r, 0.0)[0] for r in residents]).T
        above.add((found > measured).any())
    assert above == {True, False}
    np.testing.assert_array_equal(found, measured)
    backend.close()


@settings(max_examples=30)
@given(case=cases(), discount=st.sampled_from([0.5, 0.99]))
def test_changes_of_boundary_values_are_reported(case: Case, discount: float) -> None:
    with stored(case) as store:
        backend, residents = started(store, discount)
        for _ in range(2):
            before = backend.values().copy()
            report = backend.relax(residents, LIMITS).report()
            change = backend.values() - before
            for i, resident in enumerate(residents):
                p = resident.index
                own = np.arange(store.facts.partition_ptr[p], store.facts.partition_ptr[p + 1])
                changed = change[own[store.read(p)[0].boundary]]
                assert report.boundary_rise[i] == max(changed.max(initial=0.0), 0.0)
                assert report.boundary_fall[i] == max((-changed).max(initial=0.0), 0.0)
        backend.close()


@pytest.mark.parametrize("successors", ["gathered", "global"])
@settings(max_examples=30)
@given(case=cases(shortest=0.3), discount=st.sampled_from([0.0, 0.5, 0.9]), method=st.sampled_from(["p-eva", "vi"]))
def test_certificates_hold_for_loops_made_for_a_shape_and_for_global_successors(
    successors: str, case: Case, discount: float, method: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch, stored(case) as store:
        if successors == "global":
            read = Store.read_into

            def wide(self: Store, p: int, *memory: TableMemory | None) -> tuple[PartitionTable, int]:
                table, size = read(self, p, *memory)
                return replace(table, successors=table.successors.astype(np.uint32)), size

            patch.setattr(Store, "read_into", wide)
            patch.setattr(cpu_tables, "MAX_GATHERED", 0)
        options = SolveOptions(discount, epsilon=1e-3, method=method, cache=CacheSize(share=0.5), device="cpu")
        solution = solve(store, options)
        exact = optimum(rows_of(store), discount, case.sense)
    assert max(abs(x) for x in distance(solution.values, exact)) <= solution.error_bound


@pytest.mark.parametrize("shape", [pytest.param((2, 2), marks=pytest.mark.slow), (2, 3)])
def test_loops_made_for_a_shape_prove_what_general_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    n = 40
    store = make_store(Case(model_of_shape(n, *shape), partitions=3), tmp_path / "s")
    exact = ooc_mdp.reference.policy_iteration(rows_of(store), 0.95).values
    bounds = []
    for least in (1 << 30, 1):
        monkeypatch.setattr(cpu_tables, "MIN_COMPILED_FOR", least)
        backend, residents = started(store, 0.95)
        kinds = [r.arrays[0].spec for r in residents]
        assert {(len(k.actions), len(k.width)) for k in kinds} == {(0, 0) if least > n else shape}
        backend.close()
        solution = solve(store, SolveOptions(0.95, epsilon=1e-6, device="cpu"))
        assert np.abs(solution.values - exact).max() <= solution.error_bound <= 1e-6
        bounds.append(solution.error_bound)
    assert len(bounds) == 2


def test_the_level_of_states_that_the_policy_never_leaves_is_extrapolated(tmp_path: Path) -> None:
    """Sweeps alone would need ln(1e-6) / ln(0.9999), 138,000 of them."""
    states = tuple(State((Action(1.0, {i: 1.0}), Action(0.5, {(i + 1) % 8: 1.0}))) for i in range(8))
    store = make_store(Case(Model(states), partitions=2), tmp_path / "s")
    solution = solve(store, SolveOptions(0.9999, epsilon=1e-2, device="cpu"))
    assert np.abs(solution.values - 1e4).max() <= solution.error_bound <= 1e-2
    assert solution.statistics.sweeps < 1000


def test_visits_that_make_matters_worse_are_followed_by_full_sweeps_ever_longer(tmp_path: Path) -> None:
    store = make_store(Case(Model((State((Action(1.0, {0: 1.0}),)),)), partitions=1), tmp_path / "s")
    backend, (resident,) = started(store, 0.5)
    backend._unstable[:] = False
    swept = np.array([0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 1.0])

    def note(residual: float) -> None:
        measured = np.array([0.0, 0.0, residual, 0.0, 0.0, 0.0, 0.0, 0.0])
        _judge(resident.index, swept, measured, backend._findings())

    backoffs = []
    for _ in range(4):
        note(3.0)
        backoffs.append(int(backend._backoff[0]))
        assert backend._unstable[0]
        while backend._backoff[0] > 0:
            note(3.0)
    assert backoffs == [1, 4, 16, 64]
    for _ in range(8):
        note(0.5)
    note(3.0)
    assert backend._backoff[0] == 1
    backend.close()


def test_a_partition_whose_rows_are_nearly_alike_loses_its_pointers(tmp_path: Path) -> None:
    states = [State((Action(1.0, {i: 0.5, (i + 1) % 9: 0.5}), Action(2.0, {(i + 2) % 9: 1.0}))) for i in range(9)]
    states[0] = State((Action(1.0, {0: 1.0}), Action(2.0, {2: 1.0})))
    mixed = make_store(Case(Model(tuple(states)), partitions=1), tmp_path / "mixed").read(0)[0]
    assert swept_table(mixed) == (mixed, False)  # half of its rows are short: filling them would take more bytes
    for i in range(1, 9):
        states[i] = State((Action(1.0, {i: 0.5, (i + 1) % 9: 0.5}), Action(2.0, {(i + 2) % 9: 0.25, i: 0.75})))
    table = make_store(Case(Model(tuple(states)), partitions=1), tmp_path / "alike").read(0)[0]
    swept, _ = swept_table(table)
    assert (table.successors_per_action, swept.successors_per_action) == (0, 2)
    assert swept.nbytes <= table.nbytes
    v = np.arange(9.0)
    expected = np.add.reduceat(table.probabilities * v[table.successors], table.successor_ptr[:-1].astype(np.int64))
    np.testing.assert_array_equal((swept.probabilities * v[swept.successors]).reshape(-1, 2).sum(axis=1), expected)


def test_a_partition_that_reads_most_of_the_model_gets_global_successors(tmp_path: Path) -> None:
    n = 60
    states = tuple(State((Action(0.0, {(7 * i + k * 11) % n: 0.25 for k in range(4)}),)) for i in range(n))
    store = make_store(Case(Model(states), partitions=12), tmp_path / "s")
    table = store.read(3)[0]
    narrow, whole = swept_table(table)
    assert (narrow, whole) == (table, False)  # only uint32 can hold any state
    wide = replace(table, successors=table.successors.astype(np.uint32))
    expected = successors_of(wide, False)
    swept, whole = swept_table(wide)
    assert whole
    assert swept.halo.size == 0
    np.testing.assert_array_equal(successors_of(swept, True), expected)


@njit
def _faulty(which: int, thread: int) -> None:
    if thread == which:
        raise MemoryError("no room for thread 1")


def test_a_fault_in_one_thread_ends_the_visit_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    states = tuple(State((Action(1.0, {i: 1.0}),)) for i in range(8))
    with TemporaryDirectory() as folder:
        store = make_store(Case(Model(states), partitions=4), Path(folder) / "s")
        backend, residents = started(store, 0.5)
        monkeypatch.setattr(visits, "rounds_in_order", lambda *_: call_of(_faulty, 1))
        with pytest.raises(MemoryError, match="no room for thread 1"):
            backend.relax(residents, LIMITS).report()
        backend.close()


def test_the_plan_names_what_sweeps_allocate(tmp_path: Path) -> None:
    states = tuple(State((Action(1.0, {(i + 1) % 30: 1.0}),)) for i in range(30))
    store = make_store(Case(Model(states), partitions=5), tmp_path / "s")
    backend, _ = started(store, 0.5, threads=2)
    held = [backend._workspace, *backend._starts, *backend._findings()[:3], backend._orders.traversals]
    layout = backend.layout(backend._facts, Needs())
    numbers = 3 * 6  # of the distributions of as many rows, of each partition that arrives
    assert sum(a.nbytes for a in held) + numbers == layout.host["sweep workspace"]
    assert layout.batch_size == 5
    assert math.ceil(layout.batch_size / 2) * (3 * 6 + 1) == backend._workspaces[0].size
    backend.close()


def test_the_benchmark_of_sweeps_runs_at_toy_size(tmp_path: Path) -> None:
    asked = ["--problem", "GW-16x4", "--partitions", "4", "--repeat", "1", "--output", str(tmp_path / "figures.json")]
    command = [sys.executable, str(BENCHMARKS / "engine" / "cpu_engine.py"), *asked]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["partition"] | {"decoded_bytes": 0} == {
        "states": 64,
        "rows": 256,
        "transitions": figures["partition"]["transitions"],
        "decoded_bytes": 0,
    }
    kinds = {s["kind"]: s["ns_a_state"] for s in figures["sweeps"]}
    assert set(kinds) == {"full sweep", "policy sweep", "measurement"}
    assert all(ns > 0 for ns in kinds.values())


def test_halos_of_global_successors_take_nothing_of_the_cache(tmp_path: Path) -> None:
    """Partitions whose local states need 32 bits, and that read more than twice as many states as they own."""
    problem = {"states": 70_000, "actions": 1, "successors": 12, "seed": 1}
    store = ooc_mdp.generate("random", tmp_path / "s", problem, partitions=4, device="cpu")
    model = ModelFacts.of(store.facts, 0.5)
    entries = CpuBackend().layout(model, Needs()).entries
    assert (store.facts.partition_bytes - entries).tolist() == (8 * store.facts.partition_halo).tolist()
    whole = int(entries.sum())
    assert whole < 0.9 * store.facts.partition_bytes.sum()
    solution = ooc_mdp.solve(store, discount=0.5, epsilon=1e-3, method="p-eva", cache=whole, device="cpu")
    assert (solution.statistics.loads, solution.statistics.cache_peak_bytes) == (4, whole)
    assert (solution.memory_plan or {})["host"]["cache"] == whole
    less = ooc_mdp.solve(store, discount=0.5, epsilon=1e-3, method="p-eva", cache=whole - 1, device="cpu")
    assert less.statistics.loads > 4
    assert np.abs(solution.values - less.values).max() <= solution.error_bound + less.error_bound
