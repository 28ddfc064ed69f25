"""A run's books after partitions were swept at the same time: the same from reports one by one and from arrays."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.backends.base import BatchReport, BatchVisits, FinishedVisits, Measured, VisitReport
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.solver.methods import p_eva
from ooc_mdp.solver.output import open_output
from ooc_mdp.solver.plan import model_of
from ooc_mdp.solver.run import BegunVisits, Run
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.start import start_run
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path, load_checkpoint


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "24,24"}, blocks=[3, 4], dtype="float32")


def run_on(store: Store, stack: ExitStack, session: Session | None = None, **asked: Any) -> Run:
    options = SolveOptions(0.9, cache=CacheSize(share=1.0), **asked)
    return start_run(store, options, CpuBackend(), model_of(store, options), stack, session=session)


def reports(rng: np.random.Generator, count: int) -> list[VisitReport]:
    def some() -> float:
        return float(rng.choice([0.0, 10.0 ** rng.uniform(-9, 1)]))

    found = []
    for _ in range(count):
        low, high = sorted(rng.normal(size=2).tolist())
        measured = Measured(some(), some(), some(), some())
        changes = (some(), some(), some(), some(), some())
        backups = int(rng.integers(0, 10**12))
        sweeps, changed = int(rng.integers(0, 99)), bool(rng.integers(2))
        found.append(VisitReport(sweeps, *changes, high, low, measured=measured, backups=backups, changed=changed))
    return found


def as_arrays(found: list[VisitReport]) -> BatchReport:
    def column(name: str) -> np.ndarray:
        return np.array([getattr(r, name) for r in found])

    measured = [[getattr(r.measured, name) for r in found] for name in ("rise", "fall", "plain_rise", "plain_fall")]
    return BatchReport(
        *(column(name) for name in ("sweeps", "boundary_up", "boundary_down", "largest_value", "smallest_value")),
        measured=np.array(measured),
        backups=column("backups"),
        changed=column("changed"),
    )


class Both:
    """Visits that can be asked for their reports in either way, and note in which they were."""

    def __init__(self, found: list[VisitReport]) -> None:
        self.found = found
        self.asked: list[str] = []

    def done(self) -> bool:
        return True

    def reports(self) -> list[VisitReport]:
        self.asked.append("reports")
        return self.found

    def batch_report(self) -> BatchReport:
        self.asked.append("batch_report")
        return as_arrays(self.found)


def books(run: Run) -> dict[str, Any]:
    target = (run.target.smallest, run.target.largest, run.target.size, run.target.rounding)
    counts = {name: getattr(run.statistics, name) for name in ("visits", "sweeps", "backups")}
    arrays = {name: bound.tolist() for name, bound in run.bounds.arrays().items()}
    values = {name: getattr(run, name).tolist() for name in ("largest", "smallest", "visited")}
    return {**arrays, **values, **counts, "target": target, "changed": run.changed, "size": run.value_size}


def test_arrays_and_reports_one_by_one_leave_the_same_books(store: Store) -> None:
    rng = np.random.default_rng(5)
    with ExitStack() as stack:
        some, others = (run_on(store, stack, residual=1e-4) for _ in range(2))
        for _ in range(30):
            partitions = rng.permutation(12)[: int(rng.integers(2, 13))].tolist()
            found, hits = reports(rng, len(partitions)), rng.integers(0, 2, len(partitions)).astype(bool).tolist()
            for run, visits in ((some, FinishedVisits(found)), (others, Both(found))):
                for p in partitions:
                    run.stager.obtain(p)
                run.finish(BegunVisits(partitions, hits, visits))
            assert books(some) == books(others)


@pytest.mark.parametrize(("priority", "way"), [("joint", "batch_report"), ("h1", "batch_report"), ("h2", "reports")])
def test_arrays_are_asked_for_unless_the_priority_follows_each_visit(store: Store, priority: Any, way: str) -> None:
    with ExitStack() as stack:
        run = run_on(store, stack, priority=priority)
        run.stager.obtain(3)
        visits = Both(reports(np.random.default_rng(1), 1))
        assert isinstance(visits, BatchVisits)
        run.finish(BegunVisits([3], [False], visits))
        assert visits.asked == [way]


def test_what_a_checkpoint_has_already_is_not_saved_again(store: Store, tmp_path: Path) -> None:
    with ExitStack() as stack:
        asked = RunOptions(tmp_path / "r", checkpoint_interval=0.0)
        session = Session(stack.enter_context(open_output(store, 0.9, asked)), asked)
        run = run_on(store, stack, session)

        def saved() -> int | None:
            session._saved = session._saving_took = 0.0
            run.tick()
            found = load_checkpoint(checkpoint_path(tmp_path / "r"), session.output.identity)
            checkpoint_path(tmp_path / "r").unlink(missing_ok=True)
            return None if found is None else found[1].backups

        assert saved() is None  # nothing has been swept
        run.sweep(0, most=1)
        first = run.statistics.backups
        assert saved() == first > 0
        assert saved() is None
        run.sweep(0, most=1, settle=False)
        assert saved() == run.statistics.backups > first


def test_partitions_are_pinned_from_begin_to_finish(store: Store) -> None:
    with ExitStack() as stack:
        run = run_on(store, stack)
        for p in (2, 5, 7):
            run.stager.obtain(p)
        begun = run.begin([5, 2], most=3)
        assert begun.hits == [True, True]
        assert not run.cache.make_room(run.cache.budget)
        run.finish(begun)
        assert run.cache.make_room(run.cache.budget)


def test_a_batch_beside_loads_stops_where_its_strictest_partition_would(store: Store) -> None:
    with ExitStack() as stack:
        run = run_on(store, stack)
        partitions = list(range(12))
        for p in partitions:
            run.stager.obtain(p)
        alone = [run._limits(p, 7, settle=True) for p in partitions]
        given: list[Any] = []

        def visit_together(_: Any, limits: Any) -> FinishedVisits:
            given.extend(limits)
            return FinishedVisits(reports(np.random.default_rng(2), len(partitions)))

        run.backend = SimpleNamespace(loads_beside=True, visit_together=visit_together)  # type: ignore[assignment]
        run.finish(run.begin(partitions, most=7))
        assert len({(limit.change, limit.most, limit.residual, limit.plain) for limit in alone}) > 1
        assert given == [min(alone, key=lambda limit: limit.change)] * 12


class Unending(Both):
    """Visits that are never done for those who only look."""

    def done(self) -> bool:
        return False


def test_a_batch_without_loads_beside_it_is_waited_for_and_not_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p_eva.time, "sleep", lambda _: pytest.fail("napped"))
    with ExitStack() as stack:
        run = run_on(store, stack)
        run.stager.obtain(4)
        visits = Unending(reports(np.random.default_rng(3), 1))
        p_eva._finish(run, BegunVisits([4], [True], visits), run.target.dirty())
        assert visits.asked == ["batch_report"]


def test_loads_beside_a_batch_are_taken_over_and_followed_by_others(store: Store) -> None:
    with ExitStack() as stack:
        run = run_on(store, stack)
        run.stager.obtain(4)
        run.bounds.unknown()
        run.stager.prefetch(0)
        visits = Unending(reports(np.random.default_rng(3), 1))
        p_eva._finish(run, BegunVisits([4], [True], visits), run.target.dirty())
        assert run.cache.present.all()
