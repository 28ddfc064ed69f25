"""How a visit becomes part of a solve's state, what an access holds, and what happens between two steps."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.backends.base import FinishedVisit, VisitReport
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.model.criterion import Discounted
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver.driver import drive
from ooc_mdp.solver.local import METHODS
from ooc_mdp.solver.methods import p_eva_on_device
from ooc_mdp.solver.output import open_output
from ooc_mdp.solver.plan import plan_solve
from ooc_mdp.solver.session import CheckpointTimer, Session
from ooc_mdp.solver.start import start
from ooc_mdp.solver.state import Access, SolveState
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path, load_checkpoint


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "24,24"}, partition_grid=[3, 4], dtype="float32")


def started(store: Store, stack: ExitStack, share: float = 1.0, **asked: Any) -> SolveState:
    options, backend = SolveOptions(0.9, cache=CacheSize(share=share), **asked), CpuBackend()
    stack.callback(backend.close)
    plan = plan_solve(store, options, backend, ModelFacts.of(store.facts, options.discount), writes=False)
    return start(store, plan, backend, stack)


def some(*partitions: int) -> IntArray:
    return np.array(partitions, np.int64)


def report_of(rng: np.random.Generator, count: int, **known: Any) -> VisitReport:
    def numbers() -> np.ndarray:
        return np.where(rng.random(count) < 0.5, 0.0, 10.0 ** rng.uniform(-9, 1, count))

    low, high = np.sort(rng.normal(size=(2, count)), axis=0)
    return VisitReport(
        sweeps=rng.integers(0, 99, count),
        backups=rng.integers(0, 10**12, count),
        boundary_rise=numbers(),
        boundary_fall=numbers(),
        boundary_value=numbers(),
        largest_value=high,
        smallest_value=low,
        residuals=np.stack([numbers() for _ in range(4)]),
        **known,
    )


def load(state: SolveState, *partitions: int) -> None:
    for p in partitions:
        state.stager.load_and_access(p)


def taken(report: VisitReport, i: int) -> VisitReport:
    """What a report says of one of its partitions."""
    assert report.residuals is not None
    arrays = {name: getattr(report, name)[i : i + 1] for name in ("sweeps", "backups", "boundary_rise")}
    arrays |= {name: getattr(report, name)[i : i + 1] for name in ("boundary_fall", "boundary_value")}
    arrays |= {name: getattr(report, name)[i : i + 1] for name in ("largest_value", "smallest_value")}
    return replace(report, **arrays, residuals=report.residuals[:, i : i + 1])


def test_a_visit_of_several_that_is_not_joint_settles_before_it_propagates(store: Store) -> None:
    rng = np.random.default_rng(5)
    with ExitStack() as stack:
        together, joint, alone = (started(store, stack, residual=1e-4) for _ in range(3))
        for _ in range(30):
            partitions = rng.permutation(12)[: int(rng.integers(2, 13))]
            report, hits = report_of(rng, partitions.size), rng.integers(0, 2, partitions.size).astype(bool)
            together.record(Access(partitions, (), hits), report)
            joint.record(Access(partitions, (), hits), replace(report, joint=True))
            for i in range(partitions.size):  # what each proves holds before the others' changes flow in
                alone.bounds.settle(partitions[i : i + 1], taken(report, i).residuals)
            moved = (report.boundary_rise > 0) | (report.boundary_fall > 0)
            alone.bounds.propagate(partitions[moved], report.boundary_rise[moved], report.boundary_fall[moved])
            for name, bound in together.bounds.arrays().items():
                np.testing.assert_array_equal(bound, alone.bounds.arrays()[name])
                assert (joint.bounds.arrays()[name][partitions] <= bound[partitions]).all()
            assert report.residuals is not None
            np.testing.assert_allclose(joint.bounds.rise[partitions], report.residuals[0], rtol=1e-11)


@pytest.mark.parametrize("priority", ["joint", "h1", "h2", "hybrid"])
def test_counters_ranges_and_changes_follow_the_reports(store: Store, priority: Any) -> None:
    rng = np.random.default_rng(1)
    with ExitStack() as stack:
        state = started(store, stack, method="p-eva", priority=priority)
        first, second = report_of(rng, 2), report_of(rng, 3, joint=True, changed=False)
        state.record(Access(some(3, 7), (), np.array([False, True])), first)
        state.record(Access(some(0, 3, 5), (), np.array([True, False, False])), second)
        counters = state.counters
        assert counters.visits == 3
        assert counters.sweeps == first.sweeps.sum() + second.sweeps.sum()
        assert counters.backups == first.backups.sum() + second.backups.sum()
        assert np.flatnonzero(state.visited).tolist() == [0, 3, 5, 7]
        assert state.largest[[7, 0, 3, 5]].tolist() == [first.largest_value[1], *second.largest_value]
        assert state.value_size == max(np.abs([r.largest_value, r.smallest_value]).max() for r in (first, second))
        assert state.changes == 1, "the second visit changed no value"


def test_partitions_are_pinned_while_they_are_accessed(store: Store) -> None:
    with ExitStack() as stack:
        state = started(store, stack)
        load(state, 2, 5, 7)
        with state.access(some(5, 2)) as access:
            assert access.hits.tolist() == [True, True]
            assert [r.index for r in access.residents] == [5, 2]
            assert not state.cache.make_room(state.cache.budget)
        assert state.cache.make_room(state.cache.budget)


def test_what_is_settled_is_swept_no_further_and_otherwise_exactly_as_often_as_asked(store: Store) -> None:
    with ExitStack() as stack:
        state = started(store, stack, residual=1e-3)
        limits = state.limits(some(0, 4), 7)
        assert limits.most == 7
        assert limits.plain
        assert limits.residual == pytest.approx(0.25e-3)
        assert (limits.changes(2) > 0).all()
        exact = state.limits(some(0, 4), 3, settle=False)
        assert (exact.changes(2) < 0).all()
        assert exact.residual < 0
        with state.access(some(0, 4)) as access:
            assert state.backend.sweep(access.residents, exact).report().sweeps.tolist() == [3, 3]


def test_what_a_checkpoint_has_already_is_not_saved_again(store: Store, tmp_path: Path) -> None:
    with ExitStack() as stack:
        asked = RunOptions(tmp_path / "r", checkpoint_interval=0.0)
        session = Session(stack.enter_context(open_output(store, Discounted(0.9), asked)), asked)
        state = started(store, stack)

        def sweep() -> None:
            with state.access(some(0)) as access:
                state.record(access, state.backend.sweep(access.residents, state.limits(some(0), 1)).report())

        def saved() -> int | None:
            session._timer = CheckpointTimer(0.0)  # as if the last one had been written in no time
            assert session.after_step(state) is None
            found = load_checkpoint(checkpoint_path(tmp_path / "r"), session.output.identity)
            checkpoint_path(tmp_path / "r").unlink(missing_ok=True)
            return None if found is None else found[1].backups

        assert saved() is None  # nothing has been swept
        sweep()
        first = state.counters.backups
        assert saved() == first > 0
        assert saved() is None
        sweep()
        assert saved() == state.counters.backups > first


def test_partitions_beside_those_that_are_taken_up_count_if_they_are_swept(store: Store) -> None:
    with ExitStack() as stack:
        state = started(store, stack)
        for p in (0, 2, 3):
            state.stager.load(p)
        accesses, visits = state.cache.statistics.accesses, state.counters.visits
        with state.access(some(2), some(0, 3)) as access:
            assert access.partitions.tolist() == [2, 0, 3]
            assert access.hits.size == 1
            assert state.cache.statistics.accesses == accesses + 1
            found = report_of(np.random.default_rng(0), 3, joint=True)
            state.record(access, replace(found, backups=np.array([5, 7, 0]), sweeps=np.array([1, 2, 0])))
        assert state.cache.statistics.accesses == accesses + 2
        assert np.flatnonzero(state.visited).tolist() == [0, 2]
        assert state.counters.visits - visits == state.cache.statistics.misses
        assert state.counters.sweeps == 3
        assert not any(entry.pins for entry in state.cache._entries.values())


class Unending:
    """A visit that is never done for those who only look."""

    def done(self) -> bool:
        return False


def test_a_batch_without_loads_beside_it_is_waited_for_and_not_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p_eva_on_device.time, "sleep", lambda _: pytest.fail("napped"))
    with ExitStack() as stack:
        state = started(store, stack)
        load(state, 4)
        p_eva_on_device._load_until_done(state, Unending(), state.target.dirty())  # type: ignore[arg-type]


def test_loads_beside_a_batch_are_taken_over_and_followed_by_others(store: Store) -> None:
    with ExitStack() as stack:
        state = started(store, stack)
        load(state, 4)
        state.bounds.invalidate()
        state.stager.prefetch(0)
        p_eva_on_device._load_until_done(state, Unending(), state.target.dirty())  # type: ignore[arg-type]
        assert state.cache.present.all()


def test_what_is_under_way_is_recorded_before_a_target_counts_as_reached_and_before_a_checkpoint(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "reached", lambda self: True)
    with ExitStack() as stack:
        state = started(store, stack, epsilon=1e-2)
        load(state, 0, 1)
        for ask in (state.snapshot, lambda: state.peers.before_step(state)):
            state.begin(np.array([0]), 3, np.array([1]))
            sweeps = state.counters.sweeps
            assert len(state.under_way) == 1
            ask()
            assert not state.under_way
            assert state.counters.sweeps > sweeps
            assert not any(entry.pins for entry in state.cache._entries.values())


def test_batches_under_way_are_recorded_in_their_order_and_keep_their_partitions(store: Store) -> None:
    with ExitStack() as stack:
        state = started(store, stack)
        load(state, 0, 1, 2)
        state.begin(np.array([0, 1]), 1)
        state.begin(np.array([1]), 1, np.array([2]))
        assert [state.cache._entries[p].pins for p in range(3)] == [1, 2, 1]
        state.finish(1)
        assert [state.cache._entries[p].pins for p in range(3)] == [0, 1, 1]
        state.finish()
        assert [state.cache._entries[p].pins for p in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("name", METHODS)
def test_each_method_yields_between_any_two_visits(name: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between steps a solve stops, saves and exchanges values; a part without `yield from` would do nothing."""
    visits = list[int]()
    record, improve = SolveState.record, SolveState.record_improvement

    def counted(self: SolveState, access: Access, report: VisitReport) -> None:
        visits.append(access.partitions.size)
        record(self, access, report)

    def improved(self: SolveState, access: Access, *found: Any) -> None:
        visits.append(access.partitions.size)
        improve(self, access, *found)

    monkeypatch.setattr(SolveState, "record", counted)
    monkeypatch.setattr(SolveState, "record_improvement", improved)
    with ExitStack() as stack:
        state = started(store, stack, share=0.4, epsilon=1e-2)
        steps = METHODS[name](state)
        assert inspect.isgenerator(steps)
        most = 0
        while not state.target.reached():
            before = len(visits)
            next(steps)
            most = max(most, len(visits) - before)
            assert len(visits) < 10_000
        steps.close()
        assert most == 1
        assert sum(visits) >= store.n_partitions // 2


def test_a_step_that_meets_the_target_is_the_last(store: Store) -> None:
    with ExitStack() as stack:
        state = started(store, stack, epsilon=1e-2)
        steps = list[bool]()

        class Counting:
            def after_step(self, state: SolveState) -> Outcome | None:
                steps.append(state.target.reached())
                return None

        assert drive(state, METHODS["p-eva"], Counting()) is Outcome.PROVED
        assert steps[-1]
        assert not any(steps[:-1])


def test_a_visit_that_is_finished_gives_its_report(store: Store) -> None:
    report = report_of(np.random.default_rng(2), 1)
    assert FinishedVisit(report).done()
    assert FinishedVisit(report).report() is report
