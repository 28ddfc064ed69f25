"""The life cycle of every solve, with an engine that records when it is asked for what."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp.criteria import QUESTIONS, asked_criterion
from ooc_mdp.errors import DamagedStoreError, OptionsError
from ooc_mdp.model.criterion import Criterion, Flag
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.scheduling.cache import PartitionCache
from ooc_mdp.solver.local import LocalEngine
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.solver.run import Job, Task, run_solve
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path

OPTIONS = SolveOptions(0.9, epsilon=1e-6, device="cpu")


@dataclass
class Recorded:
    """A task that notes what is asked of it, and fails in `run` where it is told to."""

    task: Task
    asked: list[str]
    failure: Exception | None = None

    def run(self) -> Outcome:
        self.asked.append("run")
        outcome = self.task.run()
        if self.failure is not None:
            raise self.failure
        return outcome

    def snapshot(self) -> Snapshot | None:
        self.asked.append("snapshot")
        return self.task.snapshot()

    def conclude(self, outcome: Outcome) -> Solution:
        self.asked.append("conclude")
        return self.task.conclude(outcome)


@dataclass
class Engine(LocalEngine):
    """The engine of discounted solves in this process, recorded."""

    failure: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        self.asked.append("check")

    def default_target(self, table: Table, solution: Solution) -> float:
        self.asked.append("default target")
        return super().default_target(table, solution)

    def begin(self, job: Job) -> Any:
        self.asked.append("begin")
        return Recorded(super().begin(job), self.asked, self.failure)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(Case(random_model(3, 30), partitions=3), tmp_path / "s")


def test_a_solve_is_checked_begun_run_and_concluded_in_this_order(store: Store, tmp_path: Path) -> None:
    engine = Engine()
    assert run_solve(store, OPTIONS, RunOptions(tmp_path / "r"), engine).outcome is Outcome.PROVED
    assert engine.asked == ["check", "check", "begin", "run", "conclude"]
    assert not checkpoint_path(tmp_path / "r").exists()


def test_a_result_that_is_there_already_is_returned_without_beginning(store: Store, tmp_path: Path) -> None:
    options = SolveOptions(0.9, device="cpu")
    first = run_solve(store, options, RunOptions(tmp_path / "r"), Engine())
    engine = Engine()
    again = run_solve(store, options, RunOptions(tmp_path / "r", resume=True), engine)
    assert engine.asked == ["check", "default target"]
    np.testing.assert_array_equal(again.values, first.values)


def test_what_was_solved_before_damage_is_saved_and_continued_from(store: Store, tmp_path: Path) -> None:
    engine = Engine(failure=DamagedStoreError("a chunk is damaged"))
    with pytest.raises(DamagedStoreError, match="what was solved is in the checkpoint"):
        run_solve(store, OPTIONS, RunOptions(tmp_path / "r"), engine)
    assert engine.asked[-2:] == ["run", "snapshot"]
    assert checkpoint_path(tmp_path / "r").exists()
    assert run_solve(store, OPTIONS, RunOptions(tmp_path / "r", resume=True), Engine()).outcome.proved


def test_options_that_an_engine_refuses_are_refused_before_the_output_is_touched(store: Store, tmp_path: Path) -> None:
    class Refusing(Engine):
        def check(self, options: SolveOptions, run: RunOptions) -> None:
            raise OptionsError("not these")

    engine = Refusing()
    with pytest.raises(OptionsError, match="not these"):
        run_solve(store, OPTIONS, RunOptions(tmp_path / "r"), engine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]
    assert engine.asked == []


@dataclass(frozen=True)
class HalfDiscounted:
    """A criterion that only this module knows: a discount of one half."""

    name: ClassVar[str] = "half"
    own_method: ClassVar[str | None] = None
    on_devices: ClassVar[bool] = True
    from_values: ClassVar[bool] = True
    flags: ClassVar[tuple[Flag, ...]] = (Flag("half", bool, "A discount of one half."),)
    borrowed: ClassVar[tuple[str, ...]] = ()
    discount: ClassVar[float] = 0.5
    parameters: ClassVar[dict[str, Any]] = {}

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        return cls()

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        return "--half"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUESTIONS, "half", replace(QUESTIONS["discounted"], criterion=HalfDiscounted))


@pytest.mark.usefixtures("registered")
def test_a_criterion_is_asked_for_by_its_own_flag() -> None:
    assert asked_criterion({"half": True}) == HalfDiscounted()
    with pytest.raises(OptionsError, match="--discount and --half are given"):
        asked_criterion({"half": True, "discount": 0.9})


@pytest.mark.usefixtures("registered")
def test_a_criterion_is_solved_once_the_registry_has_it(store: Store, tmp_path: Path) -> None:
    half, usual = (
        ooc_mdp.solve(store, asked, epsilon=1e-9, device="cpu", method="vi") for asked in (HalfDiscounted(), 0.5)
    )
    np.testing.assert_array_equal(half.values, usual.values)
    assert ooc_mdp.verify(store, half).holds
    ooc_mdp.solve(store, HalfDiscounted(), device="cpu", output=tmp_path / "r")
    kept = ooc_mdp.open_result(tmp_path / "r")
    assert (kept.solution.criterion, kept.identity["criterion"]) == ({"criterion": "half", "discount": 0.5}, "half")
    with pytest.raises(OptionsError, match="belongs to criterion half, not discounted"):
        ooc_mdp.solve(store, 0.5, device="cpu", output=tmp_path / "r", resume=True)


def test_nothing_of_a_solve_outlives_it_until_garbage_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Solves in one process would take the memory of several."""
    store = ooc_mdp.generate("GW-8x4", tmp_path / "s", partitions=4)
    caches: list[weakref.ref[Any]] = []

    class Watched(PartitionCache[Any]):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            caches.append(weakref.ref(self))

    monkeypatch.setattr("ooc_mdp.solver.start.PartitionCache", Watched)
    gc.collect()
    gc.disable()
    try:
        for method in ("p-eva", "vi", "policy-iteration"):
            ooc_mdp.solve(store, 0.9, method=method, device="cpu")
            assert caches[-1]() is None, method
    finally:
        gc.enable()
