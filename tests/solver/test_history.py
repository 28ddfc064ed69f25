"""The history of a solve: rows over time to its end, and counts by partition that add up to its figures."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import Action, Model, State, random_model
from worker_clusters import Clusters, no_end_before, placed
from worker_clusters import solve as solve_on_workers

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.criterion import TotalReward
from ooc_mdp.model.solution import Outcome, Solution, SolveHistory
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.solver import history, session
from ooc_mdp.solver import run as life_cycle
from ooc_mdp.solver.history import MAX_ROWS, HistoryRecorder, HistoryRow, PartitionCounts
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
from ooc_mdp.undiscounted import totals

ROWS = HistoryRow._fields


def check_history(solution: Solution, earlier: SolveHistory | None = None) -> SolveHistory:
    """The history agrees with the solution's figures, and begins with that of an earlier run."""
    h, s, c = solution.history, solution.statistics, solution.certificate
    assert h is not None
    assert (h.loads.sum(), h.visits.sum(), h.sweeps.sum()) == (s.loads, s.visits, s.sweeps)
    swept = h.sweeps + h.visits > 0
    assert (np.isnan(h.first_visit) == ~swept).all()
    assert (np.isnan(h.last_visit) == ~swept).all()
    assert (h.first_visit[swept] <= h.last_visit[swept]).all()
    assert (h.loads[swept] > 0).all()
    assert {getattr(h, name).size for name in ROWS} == {h.seconds.size}
    assert 2 <= h.seconds.size <= MAX_ROWS
    assert (np.diff(h.seconds) > 0).all()
    assert h.seconds[0] >= 0
    for name in ("bytes_read", "hits", "misses"):
        assert (np.diff(getattr(h, name)) >= 0).all()
        assert getattr(h, name)[-1] == getattr(s, name)
    assert h.seconds[-1] == s.solve_seconds
    assert (h.error_bound[-1], h.residual_bound[-1]) == (c.error_bound, c.residual_bound)
    assert not solution.outcome.proved or h.dirty[-1] == 0
    assert (h.resident <= s.n_partitions).all()
    assert h.bytes_read[0] == (0 if earlier is None else earlier.bytes_read[0])
    if earlier is not None:
        assert (h.loads >= earlier.loads).all()
        assert (h.sweeps >= earlier.sweeps).all()
        seen = ~np.isnan(earlier.first_visit)
        np.testing.assert_array_equal(h.first_visit[seen], earlier.first_visit[seen])
        n = earlier.seconds.size - 1
        for name in ROWS:
            np.testing.assert_array_equal(getattr(h, name)[:n], getattr(earlier, name)[:n])
    return h


@pytest.fixture
def every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are recorded whenever one is offered."""
    monkeypatch.setattr(history, "_FIRST_INTERVAL", 1e-9)
    monkeypatch.setattr(history, "_PAUSE", 0.0)


def row(seconds: float, **other: Any) -> HistoryRow:
    return HistoryRow(**{**dict.fromkeys(ROWS, 0), "seconds": seconds, **other})


METHODS: list[dict[str, Any]] = [
    {"method": "p-eva"},
    {"method": "p-eva", "priority": "h1"},
    {"method": "p-eva", "priority": "h2"},
    {"method": "p-eva", "priority": "exact-h2"},
    {"method": "p-eva"},
    {"method": "vi"},
    {"method": "vi", "sweeps_per_visit": 4},
    {"method": "policy-iteration"},
    {"method": "auto"},
]


@pytest.mark.parametrize("cache", ["30%", "100%"])
@pytest.mark.parametrize("how", METHODS, ids=lambda how: "-".join(map(str, how.values())))
def test_counts_by_partition_add_up_to_the_figures_of_the_solve(maze: Store, how: dict[str, Any], cache: str) -> None:
    h = check_history(ooc_mdp.solve(maze, 0.95, device="cpu", cache=cache, epsilon=1e-4, **how))
    assert (h.loads > 0).all()


@pytest.mark.parametrize("method", ["p-eva", "vi", "policy-iteration", "auto"])
def test_counts_add_up_where_partitions_read_each_other_everywhere(coupled: Store, method: Any) -> None:
    check_history(ooc_mdp.solve(coupled, 0.8, device="cpu", cache="30%", epsilon=0.1, method=method))


def test_counts_add_up_where_values_wait_for_the_end_of_a_pass(tmp_path: Path) -> None:
    store = make_store(Case(random_model(5, 120), partitions=6), tmp_path / "s")
    solution = ooc_mdp.solve(store, 0.99, device="cpu", cache="100%", method="p-eva")
    check_history(solution)
    assert solution.memory_plan is not None
    assert "commit buffer" in solution.memory_plan["host"]


def test_counts_add_up_with_durations_and_without_a_sweep(ragged: Store) -> None:
    check_history(ooc_mdp.solve(ragged, 0.9, device="cpu", cache="40%", epsilon=1e-6))
    never = check_history(ooc_mdp.solve(ragged, 0.9, device="cpu", cache="40%", epsilon=1e-6, time_limit=1e-9))
    assert np.isnan(never.first_visit).sum() >= never.first_visit.size / 2  # the first batch is what fits the cache


def test_rows_follow_the_solve_to_its_end(maze: Store, every_row: None) -> None:
    solution = ooc_mdp.solve(maze, 0.95, device="cpu", cache="30%", epsilon=1e-4, method="p-eva")
    h = check_history(solution)
    assert h.seconds.size > 20
    assert h.error_bound[-1] <= 1e-4 < h.error_bound[0]
    assert 0 < h.dirty[0] <= h.dirty.max() <= maze.n_partitions
    assert h.resident[0] == 0 < h.resident[-1]


def gambler(goal: int) -> Model:
    def bet(money: int, stake: int) -> Action:
        return Action(0.0, {money + stake: 0.4, money - stake: 0.6})

    ends = [State([], terminal_reward=float(money == goal)) for money in (0, goal)]
    bets = [State([bet(m, s) for s in range(1, min(m, goal - m) + 1)]) for m in range(1, goal)]
    return Model([ends[0], *bets, ends[1]])


def test_counts_of_total_rewards_add_up_and_a_resumed_solve_continues(
    tmp_path: Path, every_row: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(Case(gambler(60), partitions=6), tmp_path / "s")
    output, options = tmp_path / "r", SolveOptions(TotalReward(), epsilon=1e-9, device="cpu")

    def run(signals: Callable[[], AbstractContextManager[Callable[[], bool]]]) -> Solution:
        monkeypatch.setattr(life_cycle, "signals", signals)
        return totals.solve(store, options, RunOptions(output, resume=True))

    visits, of_one = itertools.count(), HistoryRecorder.visit
    with monkeypatch.context() as patch:
        patch.setattr(HistoryRecorder, "visit", lambda *a: (next(visits), of_one(*a)))
        stopped = run(lambda: nullcontext(lambda: int(repr(visits)[6:-1]) >= 8))
    assert stopped.outcome is Outcome.INTERRUPTED
    earlier = check_history(stopped)
    assert earlier.visits.sum() == 8
    resumed = run(lambda: nullcontext(lambda: False))
    assert resumed.outcome is Outcome.PROVED
    check_history(resumed, earlier)


def stop_after(loads: int) -> Callable[[SolveProgress], None]:
    def watch(progress: SolveProgress) -> None:
        if progress.loads >= loads:
            os.kill(os.getpid(), signal.SIGTERM)

    return watch


@pytest.fixture
def every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_REPORT_SECONDS", 0.0)


@pytest.mark.parametrize("method", ["p-eva", "vi", "policy-iteration"])
def test_a_resumed_solve_continues_the_history(
    maze: Store, tmp_path: Path, method: Any, every_row: None, every_report: None
) -> None:
    how = {"device": "cpu", "cache": "30%", "epsilon": 1e-8, "method": method, "output": tmp_path / "r"}
    stopped = ooc_mdp.solve(maze, 0.95, progress=stop_after(5), **how)
    assert stopped.outcome is Outcome.INTERRUPTED
    earlier = check_history(stopped)
    resumed = ooc_mdp.solve(maze, 0.95, resume=True, **how)
    assert resumed.outcome is Outcome.PROVED
    h = check_history(resumed, earlier)
    assert h.last_visit.max() > earlier.seconds[-1]


DAMAGE: dict[str, Callable[[dict[str, np.ndarray]], object]] = {
    "holds no sweeps": lambda a: a.pop("history_sweeps"),
    "hits is int64": lambda a: a.update(history_hits=a["history_hits"][1:]),
    "loads is float64": lambda a: a.update(history_loads=a["history_loads"].astype(float)),
    "0 rows": lambda a: a.update({f"history_{name}": a[f"history_{name}"][:0] for name in ROWS}),
    "do not ascend": lambda a: a["history_seconds"].__setitem__(1, 0.0),
    "apart": lambda a: a.update(history_interval=np.array(np.nan)),
    "bytes_read is negative": lambda a: a["history_bytes_read"].__setitem__(0, -1),
    "error_bound is negative or not a number": lambda a: a["history_error_bound"].__setitem__(0, np.nan),
    "dirty is 99 of 16": lambda a: a["history_dirty"].__setitem__(0, 99),
    "contradict": lambda a: a["history_first_visit"].__setitem__(slice(None), np.nan),
    "before its first": lambda a: a.update(history_first_visit=a["history_last_visit"] + 1),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_checkpoint_with_a_damaged_history_is_refused(
    maze: Store, tmp_path: Path, fault: str, every_report: None
) -> None:
    output = tmp_path / "r"
    how = {"device": "cpu", "cache": "30%", "epsilon": 1e-8, "method": "vi", "output": output}
    ooc_mdp.solve(maze, 0.95, progress=stop_after(5), **how)
    where = checkpoint_path(output)
    identity = {"fingerprint": maze.fingerprint, "sense": maze.sense, "discount": 0.95}
    saved = load_checkpoint(where, identity)
    assert saved is not None
    arrays, statistics = saved
    DAMAGE[fault](arrays)
    save_checkpoint(where, identity, arrays, statistics)
    with pytest.raises(StoreError, match=rf"r\.checkpoint is damaged \(in its history .*{fault}.*remove it"):
        ooc_mdp.solve(maze, 0.95, resume=True, **how)


def test_a_checkpoint_without_a_history_is_gone_on_from(maze: Store, tmp_path: Path, every_report: None) -> None:
    output = tmp_path / "r"
    how = {"device": "cpu", "cache": "30%", "epsilon": 1e-8, "method": "vi", "output": output}
    ooc_mdp.solve(maze, 0.95, progress=stop_after(5), **how)
    identity = {"fingerprint": maze.fingerprint, "sense": maze.sense, "discount": 0.95}
    saved = load_checkpoint(checkpoint_path(output), identity)
    assert saved is not None
    bare = {name: array for name, array in saved[0].items() if not name.startswith("history_")}
    save_checkpoint(checkpoint_path(output), identity, bare, saved[1])
    resumed = ooc_mdp.solve(maze, 0.95, resume=True, **how)
    assert resumed.outcome.proved
    assert resumed.history is not None
    assert resumed.history.loads.sum() == resumed.statistics.loads - saved[1].loads


def test_rows_are_thinned_by_halving_and_keep_the_first_and_the_last() -> None:
    recorder = HistoryRecorder(np.zeros(3, np.int64))
    for i in range(3 * MAX_ROWS):
        recorder.row(row(0.5 * i, hits=i))
    h = recorder.end(row(1e6, hits=123456))
    assert MAX_ROWS // 2 <= h.seconds.size <= MAX_ROWS
    assert (np.diff(h.seconds) > 0).all()
    assert (h.seconds[0], h.seconds[-1], h.hits[-1]) == (0.0, 1e6, 123456)
    assert (h.hits[:-1] == 2 * h.seconds[:-1]).all()
    assert recorder.interval == history._FIRST_INTERVAL * 2**5


def test_rows_of_the_same_time_are_one_but_the_first_stays() -> None:
    recorder = HistoryRecorder(np.zeros(3, np.int64))
    for hits, seconds in enumerate([1.0, 1.0, 0.5, 2.0, 2.0]):
        recorder.row(row(seconds, hits=hits))
    h = recorder.end(row(2.0, hits=9, error_bound=np.nan))
    assert h.seconds.tolist() == [1.0, np.nextafter(1.0, 2.0), 2.0]
    assert h.hits.tolist() == [0, 2, 9]
    assert h.error_bound[-1] == np.inf


def test_rows_are_offered_no_sooner_than_the_interval_and_a_four_hundredth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(history.time, "monotonic", lambda: now)
    recorder, looked = HistoryRecorder(np.zeros(1, np.int64)), 0

    def look() -> HistoryRow:
        nonlocal now, looked
        looked += 1
        now += cost
        return row(now)

    cost = 0.0
    for _ in range(1000):
        recorder.offer(look)
        now += 0.001
    assert looked == 20
    now, cost = now + 1.0, 0.01
    began = looked
    for _ in range(10_000):
        recorder.offer(look)
        now += 0.001
    assert 2 <= looked - began <= 4


def test_counts_of_workers_add_up_by_partition() -> None:
    def counts(partitions: list[int], first: list[float], last: list[float]) -> PartitionCounts:
        ones = np.ones(len(partitions), np.int64)
        return PartitionCounts(np.array(partitions), ones, 2 * ones, 3 * ones, np.array(first), np.array(last))

    recorder = HistoryRecorder(np.zeros(4, np.int64))
    recorder.take(0, counts([0], [9.0], [9.5]))
    recorder.take(0, counts([0, 1], [5.0, 1.0], [6.0, np.nan]))  # in place of what it reported before
    recorder.take(1, counts([1, 3], [0.5, 2.0], [3.0, 4.0]))
    h = recorder.end(row(10.0))
    assert h.loads.tolist() == [1, 2, 0, 1]
    assert h.visits.tolist() == [2, 4, 0, 2]
    assert h.sweeps.tolist() == [3, 6, 0, 3]
    np.testing.assert_array_equal(h.first_visit, [5.0, 0.5, np.nan, 2.0])
    np.testing.assert_array_equal(h.last_visit, [6.0, 3.0, np.nan, 4.0])


@pytest.mark.parametrize(
    ("method", "placement"), [("p-eva", "random"), ("vi", "blocks"), ("policy-iteration", "blocks, rebalanced")]
)
def test_counts_of_two_workers_add_up(maze: Store, clusters: Clusters, method: str, placement: str) -> None:
    how = {"method": method, "epsilon": 1e-6, **placed(placement)}
    check_history(solve_on_workers(maze, 0.95, clusters[2], **how))


def test_workers_continue_the_history_of_others_and_one_machine_theirs(
    maze: Store,
    clusters: Clusters,
    tmp_path: Path,
    every_row: None,
    every_report: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_end_before(lambda: False, monkeypatch)  # they are stopped
    how = {"epsilon": 1e-6, "output": tmp_path / "r", "placement": "random", "cache": "30%"}
    stopped = solve_on_workers(maze, 0.999, clusters[2], progress=stop_after(18), **how)
    assert stopped.outcome is Outcome.INTERRUPTED
    earlier = check_history(stopped)
    more = stopped.statistics.loads + 5
    again = solve_on_workers(maze, 0.999, clusters[2], resume=True, progress=stop_after(more), **how)
    assert again.outcome is Outcome.INTERRUPTED
    h = check_history(again, earlier)
    how = {"epsilon": 1e-6, "output": tmp_path / "r", "resume": True}
    alone = ooc_mdp.solve(maze, 0.999, device="cpu", cache="60%", **how)
    check_history(alone, h)


def test_copies_bring_the_counts_of_workers_before_the_end(
    maze: Store, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SAVING_SHARE", 0)
    taken: list[int] = []
    of_one = HistoryRecorder.take
    monkeypatch.setattr(HistoryRecorder, "take", lambda self, k, counts: (taken.append(k), of_one(self, k, counts)))
    no_end_before(lambda: len(taken) >= 2, monkeypatch)  # of the first copy
    check_history(
        solve_on_workers(maze, 0.999, clusters[2], epsilon=1e-6, output=tmp_path / "r", checkpoint_interval=0.01)
    )
    assert len(taken) > 2
