"""Whoever waits for loops to be compiled is told so; whoever finds them compiled is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from command_line import ooc, process
from component_models import write_component
from numba import njit
from numba.core.dispatcher import Dispatcher
from numba.core.event import trigger_event
from small_mdps import Case, make_store
from store_models import Action, Model, State, random_model
from tiled_engine import TILE_STATES, emulated
from uneven_models import shapes, write_uneven

import ooc_mdp
from ooc_mdp.backends import compiling
from ooc_mdp.backends.compiling import (
    CompilationStopped,
    compiling_kernels,
    note_compiling,
    stoppable_compilation,
    timed_compilation,
)
from ooc_mdp.backends.cpu import backend as cpu
from ooc_mdp.backends.cpu import batch, loops, rounds, sweep_order, team, topological_rounds, visits
from ooc_mdp.backends.cpu import krylov as cpu_krylov
from ooc_mdp.backends.cpu import passes as cpu_passes
from ooc_mdp.backends.cpu import policy_loops as cpu_policy_loops
from ooc_mdp.backends.cpu import policy_rows as cpu_policy
from ooc_mdp.backends.cpu import table as cpu_table
from ooc_mdp.backends.cpu import triangular_solver as cpu_triangular_solver
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.model.criterion import Criterion
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.solver import local as solver_module
from ooc_mdp.solver import session
from ooc_mdp.solver.local import solve
from ooc_mdp.solver.plan import load_code
from ooc_mdp.store import compiled_encodings, load_loops
from ooc_mdp.undiscounted import totals
from ooc_mdp.undiscounted.kernels import end_components as end_component_kernels
from ooc_mdp.undiscounted.kernels import totals as total_kernels

MODULES = (
    topological_rounds,
    cpu,
    cpu_triangular_solver,
    cpu_krylov,
    cpu_policy,
    cpu_policy_loops,
    cpu_passes,
    loops,
    rounds,
    sweep_order,
    batch,
    visits,
    team,
    cpu_table,
    compiled_encodings,
    load_loops,
    end_component_kernels,
    total_kernels,
)
HALVES = Model((State((Action(1.0, {1: 1.0}),)), State((), 0.0)))
"""A state that leads to the end."""


def test_the_first_loop_that_is_compiled_is_told_of_once() -> None:
    one, other = njit(lambda x: x + 1), njit(lambda x: x + 2)
    said: list[str] = []
    with note_compiling(said.append):
        assert (one(1), other(1), one(1.0)) == (2, 3, 2.0)
    assert len(said) == 1
    assert "compiling" in said[0]


def test_loops_that_are_compiled_already_are_not_told_of() -> None:
    one, other = njit(lambda x: x + 1), njit(lambda x: x + 2)
    one(1)
    said: list[str] = []
    with note_compiling(said.append):
        one(2)
    other(1)
    assert said == []


def test_compilation_ends_between_two_functions_and_can_be_continued() -> None:
    inner, middle = njit(lambda x: x + 1), njit(lambda x: 2 * x)
    outer = njit(lambda x: inner(x) + middle(x))
    looks: list[int] = []

    def third() -> bool:
        looks.append(1)
        return len(looks) == 3

    with pytest.raises(CompilationStopped), stoppable_compilation(third):
        outer(1)
    assert [len(loop.signatures) for loop in (inner, middle, outer)] == [1, 0, 0]
    assert outer(1) == 4
    with stoppable_compilation(lambda: True):
        assert outer(2) == 7  # there is nothing to compile


@pytest.mark.parametrize("criterion", [0.9, ooc_mdp.TotalReward()])
def test_a_time_limit_counts_compilation_and_ends_it(
    criterion: Criterion | float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, loop = [1000.0], njit(lambda x: x + 1)
    monkeypatch.setattr(session.time, "monotonic", lambda: clock[0])

    def compile_long(*_: Any) -> None:
        clock[0] += 10.0
        loop(1)

    monkeypatch.setattr(CpuBackend, "load_code", compile_long)
    monkeypatch.setattr(totals, "_warm_up", compile_long)
    store = make_store(Case(HALVES), tmp_path / "s")
    stopped = ooc_mdp.solve(store, criterion, device="cpu", time_limit=3.0, output=tmp_path / "r")
    assert stopped.outcome is Outcome.TIME_LIMIT
    assert stopped.statistics.loads == 0
    assert stopped.statistics.solve_seconds == 0.0  # of work
    assert not loop.signatures
    monkeypatch.undo()
    assert ooc_mdp.solve(store, criterion, device="cpu", output=tmp_path / "r", resume=True).outcome.proved


@pytest.mark.parametrize("slow", [False, True])
def test_kernels_of_a_device_are_told_of_where_they_take_long(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_SLOW_SECONDS", 0.01 if slow else 1e6)
    said: list[str] = []
    with compiling.note_compiling(said.append):
        for _ in range(2):
            with compiling.compiling_kernels():
                time.sleep(0.2)
    assert said == [compiling.COMPILING] * slow


@pytest.mark.parametrize("method", ["p-eva", "vi", "policy-iteration"])
def test_no_kernel_is_compiled_within_a_solve_on_a_device(
    method: Literal["p-eva", "vi", "policy-iteration"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(Case(random_model(5, 24), partitions=3), tmp_path / "s")
    compiled: set[tuple[object, ...]] = set()  # what a device keeps, and loads at once when it is asked again
    within: list[set[tuple[object, ...]]] = []
    device, work = emulated(), solver_module.drive
    compile_, usual = device.compile, work

    def compile_and_note(source: str, defines: Any, names: Sequence[str]) -> Any:
        compiled.add((source, *sorted(defines.items()), *names))
        return compile_(source, defines, names)

    def work_and_count(*arguments: Any) -> Any:
        before = compiled.copy()
        outcome = usual(*arguments)
        within.append(compiled - before)
        return outcome

    monkeypatch.setattr(device, "compile", compile_and_note)
    monkeypatch.setattr(solver_module, "select_backend", lambda *_, **__: TiledBackend(device, TILE_STATES))
    monkeypatch.setattr(solver_module, "drive", work_and_count)
    options = SolveOptions(0.9, method=method, device="cuda:0", cache=CacheSize(share=1.0))
    assert solver_module.solve(store, options).outcome.proved
    assert within == [set()]
    assert compiled


@pytest.mark.gpu
def test_a_solve_on_a_gpu_says_that_it_compiles_where_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kept"))
    make_store(Case(HALVES), tmp_path / "s")
    for seconds, compiles in ((0.0, True), (3600.0, False)):
        cupy.clear_memo()
        monkeypatch.setattr(compiling, "_SLOW_SECONDS", seconds)
        ran = ooc("solve", tmp_path / "s", "--discount", 0.9, "--device", "cuda:0", "--method", "policy-iteration")
        assert ran.status == 0, ran.err
        assert ("compiling loops" in ran.err) == compiles


def test_a_solve_from_python_is_told_of_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = njit(lambda x: x + 1)
    usual = CpuBackend.load_code
    monkeypatch.setattr(CpuBackend, "load_code", lambda *a: (one(1), usual(*a))[1])
    said: list[str] = []
    ooc_mdp.solve(make_store(Case(HALVES), tmp_path / "s"), 0.9, device="cpu", note=said.append)
    assert sum("compiling loops" in text for text in said) == 1


@pytest.mark.slow
@pytest.mark.parametrize("asked", [("--discount", 0.9), ("--total",)])
def test_a_first_solve_says_that_it_compiles_and_a_second_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[object, ...]
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    make_store(Case(HALVES), tmp_path / "s")
    for compiles in (True, False):
        ran = process("solve", tmp_path / "s", *asked, "--device", "cpu")
        assert ran.status == 0, ran.err
        assert ("compiling loops" in ran.err) == compiles


def signatures(loops: Collection[Dispatcher]) -> dict[str, set[Any]]:
    """The types that each of the loops has been called on."""
    return {loop.__name__: set(loop.signatures) for loop in loops}


def forgotten_loops() -> Collection[Dispatcher]:
    """All loops of a solve, as if they had not been called by other tests."""
    loops = {id(x): x for module in MODULES for x in vars(module).values() if isinstance(x, Dispatcher)}.values()
    for loop in loops:
        loop._reset_overloads()
    return loops


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("method", ["p-eva", "vi", "policy-iteration"])
def test_no_loop_is_compiled_within_a_solve(
    tmp_path: Path, method: Literal["p-eva", "vi", "policy-iteration"], dtype: str
) -> None:
    """Every loop that a solve calls has been called before, on arguments of the same types."""
    store = ooc_mdp.generate("GW-32x4", tmp_path / "s", partitions=4, dtype=dtype)
    loops = forgotten_loops()
    discount = 0.9 if method == "vi" else 0.999
    options = SolveOptions(discount, epsilon=1e-6, method=method, device="cpu", cache=CacheSize(share=0.6))
    backend = CpuBackend(options.sweep_order)
    load_code(store, backend, ModelFacts.of(store.facts, options.discount), options, writes=False)
    backend.close()
    before = signatures(loops)
    assert any(before.values())
    assert solve(store, options).outcome.proved
    assert signatures(loops) == before


@pytest.mark.parametrize("shape", shapes("mixed"))
@pytest.mark.parametrize("method", ["p-eva", "vi", "policy-iteration"])
def test_no_loop_is_compiled_within_a_solve_of_uneven_partitions(
    tmp_path: Path, method: Literal["p-eva", "vi", "policy-iteration"], shape: str
) -> None:
    """Partitions of several kinds, for which loops are compiled differently."""
    write_uneven(shape, tmp_path / "m.npz", scale=40)
    store = ooc_mdp.convert(tmp_path / "m.npz", tmp_path / "s", partition_size="16KiB")
    options = SolveOptions(0.9, residual=1e-3, method=method, device="cpu", cache=CacheSize(share=1.0))
    loops = forgotten_loops()
    backend = CpuBackend(options.sweep_order)
    load_code(store, backend, ModelFacts.of(store.facts, options.discount), options, writes=False)
    backend.close()
    before = signatures(loops)
    assert solve(store, options).outcome.proved
    assert signatures(loops) == before


@pytest.mark.parametrize("rewards", ["zero", "mixed"])
def test_no_loop_is_compiled_within_a_solve_at_discount_1(tmp_path: Path, rewards: Literal["zero", "mixed"]) -> None:
    write_component(tmp_path / "m.npz", 300, rewards)
    store = ooc_mdp.convert(tmp_path / "m.npz", tmp_path / "s", partitions=4)
    loops = forgotten_loops()
    before: list[dict[str, set[Any]]] = []  # when the memory plan is printed, which counts them
    solution = ooc_mdp.solve(
        store, ooc_mdp.TotalReward(), epsilon=0.1, device="cpu", note=lambda _: before.append(signatures(loops))
    )
    assert solution.outcome.proved
    assert any(before[0].values())
    assert signatures(loops) == before[0]


@pytest.mark.parametrize(
    ("method", "loads"),
    [
        ("p-eva", ["topological_rounds", "rounds_in_order", "measure"]),
        ("vi", ["sweep", "measure"]),
        ("policy-iteration", ["measure", "improve"]),
    ],
)
def test_what_a_method_calls_is_called_before_a_solve_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: Literal["p-eva", "vi", "policy-iteration"],
    loads: list[str],
) -> None:
    """Else its first seconds would be spent compiling, with a progress that does not move."""
    store = ooc_mdp.generate("GW-32x4", tmp_path / "s", partitions=2)
    tried: list[str] = []
    for name in ("topological_rounds", "rounds_in_order"):
        usual = getattr(visits, name)
        monkeypatch.setattr(visits, name, lambda *a, name=name, usual=usual: (tried.append(name), usual(*a))[1])
    for name in ("sweep", "measure", "improve"):
        usual = getattr(CpuBackend, name)
        monkeypatch.setattr(
            CpuBackend, name, lambda self, *a, name=name, usual=usual: (tried.append(name), usual(self, *a))[1]
        )
    backend = CpuBackend()
    options = SolveOptions(0.9, method=method)
    load_code(store, backend, ModelFacts.of(store.facts, options.discount), options, writes=False)
    backend.close()
    assert tried == loads


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """The time of compilations and of solves, which passes where a test says so."""
    now = SimpleNamespace(is_=100.0, monotonic=lambda: now.is_)
    monkeypatch.setattr(compiling, "time", now)
    monkeypatch.setattr(session, "time", now)

    def pass_by(seconds: float) -> None:
        now.is_ += seconds

    return pass_by


def test_the_seconds_of_a_compilation_hold_those_of_the_loops_that_it_calls(
    time_passes: Callable[[float], None],
) -> None:
    with timed_compilation() as compiled:
        with trigger_event("numba:compile"):
            time_passes(1.0)
            with trigger_event("numba:compile"):
                time_passes(2.0)
            assert compiled() == 3.0
        time_passes(5.0)
        with compiling_kernels():
            time_passes(4.0)
        assert compiled() == 7.0
    with trigger_event("numba:compile"):
        time_passes(1.0)
    assert compiled() == 7.0


def test_the_clock_of_a_solve_stands_still_while_loops_are_compiled(time_passes: Callable[[float], None]) -> None:
    with timed_compilation() as compiled:
        clock = session.Clock(compiled=compiled)
        time_passes(2.0)
        with trigger_event("numba:compile"):
            time_passes(30.0)
        assert clock.seconds() == 2.0
        assert clock.since_made() == 32.0


def test_a_solution_has_the_seconds_of_its_compilations(tmp_path: Path, time_passes: Callable[[float], None]) -> None:
    store = ooc_mdp.generate("GW-8x4", tmp_path / "s", partitions=2)

    def compile_something(_: str) -> None:
        with trigger_event("numba:compile"):
            time_passes(30.0)

    solution = ooc_mdp.solve(store, discount=0.5, device="cpu", output=tmp_path / "r", note=compile_something)
    assert solution.compile_seconds is not None
    assert solution.compile_seconds % 30.0 == 0.0
    assert solution.summary()["compile_seconds"] >= 30.0
    assert solution.statistics.solve_seconds == 0.0
    assert ooc_mdp.open_result(tmp_path / "r").solution.compile_seconds is None
