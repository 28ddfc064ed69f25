"""A recomputed problem gives the tables of its store, bit by bit, and so the same answers, without a byte on disk."""

from __future__ import annotations

import dataclasses
import pickle
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from equal_tables import assert_equal_sources, assert_equal_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases
from store_models import Action, Model, ModelProblem, State
from user_files import LEAKING_TANK

import ooc_mdp
from ooc_mdp.errors import InputError, MemoryBudgetError, OptionsError
from ooc_mdp.io import recomputed_table
from ooc_mdp.io.conversion import ConvertOptions, generate
from ooc_mdp.io.recomputed_table import RecomputedTable
from ooc_mdp.model.mdp import IntArray, Rows
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver.local import solve as solve_with
from ooc_mdp.store import Store

CAR = {"grid": "24,20"}


@contextmanager
def both(problem: object, options: ConvertOptions) -> Iterator[tuple[Store, RecomputedTable]]:
    with TemporaryDirectory() as place:
        yield generate(problem, Path(place, "s"), options), RecomputedTable.after_first_pass(problem, options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "parameters", "options"),
    [
        ("mountain-car", CAR, {"dtype": "float32", "partitions": 12}),
        ("single-pendulum", {"grid": "16,17"}, {"dtype": "float64", "partition_size": 4000}),
        ("double-pendulum", {"grid": "5,6,7,4"}, {"dtype": "float32", "partitions": 6}),
        ("gridworld", {"height": 9, "width": 11, "seed": 3}, {"partitioner": "ranges", "partitions": 5}),
        ("random", {"states": 60, "seed": 2}, {"partitions": 4, "sense": "min"}),
    ],
)
def test_every_table_is_that_of_the_store(name, parameters, options, tmp_path):
    store = ooc_mdp.generate(name, tmp_path / "s", parameters, device="cpu", **options)
    assert_equal_sources(store, ooc_mdp.open_problem(name, parameters, device="cpu", **options))


@settings(max_examples=25, deadline=None)
@given(case=cases(), threads=st.sampled_from([1, 3]))
def test_tables_of_ragged_models_with_any_optional_fields_are_those_of_the_store(case: Case, threads: int) -> None:
    options = ConvertOptions(sense=case.sense, dtype=case.dtype, partitions=case.partitions, threads=threads)  # type: ignore[arg-type]
    least = recomputed_table._MIN_PIECE
    recomputed_table._MIN_PIECE = 1  # so that three threads share even a small partition
    try:
        with both(ModelProblem(case.model), options) as (store, table):
            assert_equal_sources(store, table)
    finally:
        recomputed_table._MIN_PIECE = least


@pytest.mark.parametrize(("name", "grid"), [("mountain-car", "24,20"), ("double-pendulum", "5,6,7,4")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_and_durations_that_a_control_problem_says_are_exact_are(name: str, grid: str, dtype: str) -> None:
    table = ooc_mdp.open_problem(name, {"grid": grid}, partitions=5, dtype=dtype, device="cpu")  # type: ignore[arg-type]
    assert table.facts.dyadic_probabilities
    assert table.facts.duration_dtype == np.float32
    for p in range(table.n_partitions):
        read = table.read(p)[0]
        rows = read.probabilities.astype(np.float32).reshape(-1, read.successors_per_action)
        left = np.ones(rows.shape[0], np.float32)
        for others in rows[:, :-1].T:
            left -= others  # float32 throughout, as a device does it
        np.testing.assert_array_equal(left, read.probabilities.reshape(rows.shape)[:, -1])
        np.testing.assert_array_equal(read.durations.astype(np.float32), read.durations)


class _Claims(ModelProblem):
    """Says that its weights are exact, whatever they are."""

    dyadic_probabilities = True


@pytest.mark.parametrize(
    ("low", "duration", "exact", "dtype"),
    [(0.25, 0.5, True, np.float32), (0.25, 0.1, True, np.float64), (0.1, np.inf, False, np.float32)],
)
def test_what_the_first_pass_does_not_find_exact_is_not_said_to_be(low, duration, exact, dtype):
    states = (State((Action(1.0, {0: low, 3: 1 - low}, duration),)),) * 4
    table = RecomputedTable.after_first_pass(
        _Claims(Model(states, durations=True)), ConvertOptions(partitions=2, threads=1)
    )
    assert (table.facts.dyadic_probabilities, table.facts.duration_dtype) == (exact, dtype)
    silent = RecomputedTable.after_first_pass(ModelProblem(Model(states)), ConvertOptions(partitions=2, threads=1))
    assert not silent.facts.dyadic_probabilities, "nothing is said"
    assert silent.facts.duration_dtype is None, "there are none"


@pytest.mark.parametrize("method", [{"method": "vi"}, {"priority": "h1"}, {"priority": "exact-h2"}])
def test_the_solution_is_that_from_the_store_and_reads_nothing(method, tmp_path):
    options = {"partitions": 12, "dtype": "float32", "device": "cpu"}
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", CAR, **options)
    table = ooc_mdp.open_problem("mountain-car", CAR, **options)
    from_store, recomputed = (
        ooc_mdp.solve(source, 0.9, device="cpu", cache="40%", epsilon=1e-3, **method) for source in (store, table)
    )
    assert recomputed.outcome is Outcome.PROVED
    assert recomputed.statistics.bytes_read == 0 < from_store.statistics.bytes_read
    assert recomputed.statistics.load_seconds > 0
    assert recomputed.statistics.loads >= 12
    assert [s.summary()["source"] for s in (from_store, recomputed)] == ["store", "recomputed"]
    difference = np.abs(recomputed.values - from_store.values).max()
    assert difference <= recomputed.error_bound + from_store.error_bound
    if method == {"method": "vi"}:  # p-eva's order depends on which read ends first
        np.testing.assert_array_equal(recomputed.values, from_store.values)
        np.testing.assert_array_equal(recomputed.policy, from_store.policy)
        # What makes room for a read depends on which reads have ended, so that loads may differ by a few.
        assert recomputed.statistics.loads == pytest.approx(from_store.statistics.loads, rel=0.05)


def test_initial_values_are_taken_from_the_problem(tmp_path):
    from store_models import random_model

    model = random_model(1, 12, initial_values=True)
    with both(ModelProblem(model), ConvertOptions(partitions=3)) as (store, table):
        first = [
            solve_with(s, SolveOptions(0.5, epsilon=1e3, device="cpu", method="vi")).values for s in (store, table)
        ]
        np.testing.assert_array_equal(*first)
        assert first[0].any()


def test_another_process_computes_the_same_tables():
    opened = ooc_mdp.open_problem("mountain-car", CAR, partition_grid=[3, 4])
    there = pickle.loads(pickle.dumps(opened))
    assert there.fingerprint == opened.fingerprint
    assert_equal_sources(there, opened)
    for p in range(opened.n_partitions):
        assert_equal_tables(there.read(p)[0], opened.read(p)[0])


def test_a_result_is_verified_by_recomputing_it(tmp_path):
    table = ooc_mdp.open_problem("mountain-car", CAR, partitions=6)
    ooc_mdp.solve(table, 0.9, device="cpu", output=tmp_path / "r")
    found = ooc_mdp.verify(ooc_mdp.open_problem("mountain-car", CAR, partitions=6), tmp_path / "r")
    assert found.holds
    assert found.bytes_read == 0
    with pytest.raises(OptionsError, match="another table than mountain-car holds"):
        ooc_mdp.verify(ooc_mdp.open_problem("mountain-car", CAR, partitions=5), tmp_path / "r")
    kept = ooc_mdp.open_result(tmp_path / "r")
    assert kept.solution.statistics.source == "recomputed"
    assert kept.provenance["options"]["grid"] == "24,20"


def test_an_interrupted_solve_goes_on_from_its_checkpoint(tmp_path):
    def table() -> RecomputedTable:
        return ooc_mdp.open_problem("mountain-car", CAR, partitions=6)

    asked = {"device": "cpu", "output": tmp_path / "r", "epsilon": 1e-4}
    stopped = ooc_mdp.solve(table(), 0.99, time_limit=1e-9, **asked)
    assert stopped.outcome is Outcome.TIME_LIMIT
    with pytest.raises(OptionsError, match="belongs to fingerprint"):
        ooc_mdp.solve(ooc_mdp.open_problem("mountain-car", CAR, partitions=5), 0.99, resume=True, **asked)
    went_on = ooc_mdp.solve(table(), 0.99, resume=True, **asked)
    assert went_on.outcome is Outcome.PROVED
    assert went_on.statistics.load_seconds > stopped.statistics.load_seconds


def test_the_fingerprint_tells_tables_apart_and_nothing_else():
    def of(parameters: dict = CAR, **options: object) -> str:
        return ooc_mdp.open_problem("mountain-car", parameters, **{"partitions": 6, **options}).fingerprint  # type: ignore[arg-type]

    assert of() == of(threads=1)
    others = [
        of({"grid": "24,21"}),
        of({**CAR, "time_unit": 2.0}),
        of(partitions=4),
        of(dtype="float64"),
        of(sense="min"),
        of(partitioner="ranges"),
    ]
    assert len({of(), *others}) == 7


def test_a_problem_of_the_users_own_file_is_recognised_by_the_files_text(tmp_path):
    file = tmp_path / "leak.py"
    file.write_text(LEAKING_TANK)
    first = ooc_mdp.open_problem(str(file), {"grid": 30})
    assert first.name == "leak.py"
    assert ooc_mdp.solve(first, 0.9, device="cpu").outcome is Outcome.PROVED
    file.write_text(LEAKING_TANK + "# a remark\n")
    assert ooc_mdp.open_problem(str(file), {"grid": 30}).fingerprint != first.fingerprint


class _Fickle(ModelProblem):
    """Gives fewer successors when asked for the third time and later."""

    asked = 0

    def rows(self, states: IntArray) -> Rows:
        rows = super().rows(states)
        self.asked += 1
        if self.asked < 4:
            return rows
        m = rows.n_rows
        return dataclasses.replace(
            rows, successor_ptr=np.arange(m + 1), successors=np.zeros(m, np.int64), probabilities=np.ones(m)
        )


def test_a_problem_that_gives_other_rows_the_second_time_is_refused():
    from store_models import random_model

    table = RecomputedTable.after_first_pass(
        _Fickle(random_model(2, 9, max_successors=4)), ConvertOptions(partitions=1, threads=1)
    )
    with pytest.raises(
        InputError, match=r"partition 0 has \d+ rows, .* as before; rows must depend on the state alone"
    ):
        table.read(0)


def test_a_cache_below_the_largest_partition_is_refused_before_any_work():
    with pytest.raises(MemoryBudgetError, match="raise --cache"):
        ooc_mdp.solve(ooc_mdp.open_problem("mountain-car", CAR, partitions=2), 0.9, device="cpu", cache=1000)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("problem", [("mountain-car", "500,500", 2), ("double-pendulum", "14,14,14,14", 2)])
def test_computing_a_partition_holds_no_more_than_is_planned(problem, threads):
    name, grid, partitions = problem
    table = ooc_mdp.open_problem(name, {"grid": grid}, partitions=partitions, threads=threads, device="cpu")
    table.read(0)
    tracemalloc.start()  # what NumPy allocates, whatever the system gives and takes meanwhile
    try:
        read = table.read(0)[0]
        held = tracemalloc.get_traced_memory()[1] - read.nbytes
    finally:
        tracemalloc.stop()
    assert 0.5 < held / table.loader("cpu").scratch_bytes < 1


def on_host(table: PartitionTable) -> PartitionTable:
    """The table with NumPy arrays in place of CuPy's."""
    arrays = {f.name: getattr(table, f.name) for f in dataclasses.fields(table)}
    return PartitionTable(**{name: a.get() if hasattr(a, "get") else a for name, a in arrays.items()})


@pytest.mark.gpu
def test_a_gpu_recomputes_the_tables_of_the_store_that_it_generates(tmp_path):
    options = {"partitions": 12, "dtype": "float32", "device": "cuda:0"}
    store = ooc_mdp.generate("double-pendulum", tmp_path / "s", {"grid": "6,6,6,6"}, **options)
    table = ooc_mdp.open_problem("double-pendulum", {"grid": "6,6,6,6"}, **options)
    assert_equal_sources(store, table)
    loader = table.loader("cuda:0")
    assert loader.on_device
    assert not table.loader("cpu").on_device
    for p in range(table.n_partitions):
        assert_equal_tables(table.read(p)[0], on_host(loader.read(p)[0]))
    how = {"method": "vi", "epsilon": 1e-2, "device": "cuda:0", "cache": "50%"}
    solutions = [ooc_mdp.solve(s, 0.9, kernel="plain", **how) for s in (store, table)]
    # gamma**tau is taken by the device here and by the host there, which differ in the last bits
    np.testing.assert_allclose(solutions[0].values, solutions[1].values, rtol=1e-12)
    for s in (store, table):  # tiles are swept in no fixed order
        tiled = ooc_mdp.solve(s, 0.9, kernel="tiles", **how)
        np.testing.assert_allclose(tiled.values, solutions[0].values, atol=2e-2, rtol=0)
        assert tiled.outcome is Outcome.PROVED
    assert solutions[1].statistics.bytes_read == 0
    assert table.fingerprint != ooc_mdp.open_problem("double-pendulum", {"grid": "6,6,6,6"}, device="cpu").fingerprint
    plan = solutions[1].memory_plan
    assert "recomputation" in plan["device"]
    assert "recomputation" not in plan["host"]
