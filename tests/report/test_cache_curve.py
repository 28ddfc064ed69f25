"""Cache curves equal caches that are simulated one at a time, on traces of real solves and on made-up ones."""

from __future__ import annotations

import csv
import os
import sys
from collections import OrderedDict, deque
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc, refused
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.options import CacheSize
from ooc_mdp.report import cache_report
from ooc_mdp.report.cache_curve import (
    POLICIES,
    SCOPES,
    CacheCurve,
    Policy,
    Scope,
    belady_distances,
    cache_curve,
    lru_distances,
    priority_distances,
    queue_hits,
    repeats,
)
from ooc_mdp.report.cache_plot import plot_cache_curves
from ooc_mdp.report.cache_report import DEFAULT_POLICIES, TraceCurves, curves_of_traces
from ooc_mdp.report.cache_trace import AccessTrace, read_trace

PARTITIONS = 36


def simulated_lru(partitions: list[int], size: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for p in partitions:
        if p in held:
            hits += 1
            held.move_to_end(p)
        else:
            if len(held) == size:
                held.popitem(last=False)
            held[p] = None
    return hits


def simulated_optimum(partitions: list[int], size: int) -> int:
    held: set[int] = set()
    hits = 0
    for i, p in enumerate(partitions):
        if p in held:
            hits += 1
            continue
        if len(held) == size:
            rest = partitions[i + 1 :]
            held.remove(max(held, key=lambda q: rest.index(q) if q in rest else len(rest)))
        held.add(p)
    return hits


def simulated_fifo(partitions: list[int], size: int) -> int:
    held: deque[int] = deque()
    hits = 0
    for p in partitions:
        if p in held:
            hits += 1
            continue
        if len(held) == size:
            held.popleft()
        held.append(p)
    return hits


def simulated_clock(partitions: list[int], size: int) -> int:
    """As a queue of (partition, mark): what is marked at the front goes to the back, without its mark."""
    held: deque[list[int]] = deque()
    hits = 0
    for p in partitions:
        mine = next((entry for entry in held if entry[0] == p), None)
        if mine is not None:
            hits += 1
            mine[1] = 1
            continue
        if len(held) == size:
            while held[0][1]:
                held[0][1] = 0
                held.rotate(-1)
            held.popleft()
        held.append([p, 1])
    return hits


def simulated_choices(partitions: list[int], size: int, choices: list[int]) -> int:
    """A cache that evicts what a list of arbitrary numbers says, over and over."""
    held: list[int] = []
    hits = misses = 0
    for p in partitions:
        if p in held:
            hits += 1
            continue
        if len(held) == size:
            held.pop(choices[misses % len(choices)] % size)
        held.append(p)
        misses += 1
    return hits


def simulated_priority(events: list[tuple[int, bool, float]], size: int) -> int:
    """Events are (partition, whether it is accessed, the priority that is known of it from then on)."""
    held: dict[int, int] = {}
    known: dict[int, float] = {}
    hits = 0
    for time, (p, accessed, priority) in enumerate(events):
        if accessed:
            hits += p in held
            if p not in held and len(held) == size:
                del held[min(held, key=lambda q: (known[q], held[q]))]
            held[p] = time
        known[p] = priority
    return hits


def max_hits(partitions: tuple[int, ...], size: int) -> int:
    """By trying every choice of what to evict."""

    @cache
    def best(i: int, held: frozenset[int]) -> int:
        if i == len(partitions):
            return 0
        p = partitions[i]
        if p in held:
            return 1 + best(i + 1, held)
        if len(held) < size:
            return best(i + 1, held | {p})
        return max(best(i + 1, (held - {q}) | {p}) for q in held)

    return best(0, frozenset())


def hits_of(distances: IntArray, size: int) -> int:
    return int(((distances > 0) & (distances <= size)).sum())


def array(partitions: list[int]) -> IntArray:
    return np.array(partitions, np.int64)


def trace_of(events: list[tuple[int, bool, float]], n_partitions: int, method: str = "vi") -> AccessTrace:
    """Events are (partition, auxiliary, priority)."""
    n = len(events)
    return AccessTrace(
        path=Path("made-up.csv"),
        facts={"method": method},
        n_partitions=n_partitions,
        partition=np.array([p for p, _, _ in events], np.int64).reshape(n),
        auxiliary=np.array([a for _, a, _ in events], np.bool_).reshape(n),
        hit=np.zeros(n, np.bool_),
        priority=np.array([r for _, _, r in events], np.float64).reshape(n),
        bound=np.zeros(n),
        seconds=np.arange(n, dtype=np.float64),
        cut_off=False,
    )


def curve_of(hits: list[int], n_accesses: int) -> CacheCurve:
    return CacheCurve("lru", "all", len(hits) - 1, n_accesses, np.array(hits, np.int64))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and traces of solves of it."""
    folder = tmp_path_factory.mktemp("curves")
    sizes = {"height": 48, "width": 48, "seed": 1}
    store = ooc_mdp.generate("gridworld", folder / "g.store", sizes, partitions=PARTITIONS)
    options: dict[str, Any] = {"epsilon": 0.01, "cache": "22%", "device": "cpu"}
    ooc_mdp.solve(store, 0.9, trace=folder / "exact-h1.csv", priority="exact-h1", **options)
    ooc_mdp.solve(store, 0.9, trace=folder / "exact-h2.csv", priority="exact-h2", **options)
    ooc_mdp.solve(store, 0.9, method="p-eva", trace=folder / "p-eva.csv", **options)
    ooc_mdp.solve(store, 0.9, trace=folder / "vi.csv", method="vi", **options)
    return folder


REAL = ("exact-h1", "exact-h2", "p-eva", "vi")
SIZES = np.unique(np.linspace(1, PARTITIONS, 20).astype(int)).tolist()
sequences = st.lists(st.integers(0, 7), min_size=1, max_size=60)
ranks = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf])
events = st.lists(st.tuples(st.integers(0, 7), st.booleans(), ranks), min_size=1, max_size=60)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("raw", [False, True])
def test_curves_of_real_traces_equal_simulated_caches_at_twenty_sizes(
    place: Path, name: str, scope: Scope, raw: bool
) -> None:
    trace = read_trace(place / f"{name}.csv")
    counted = (~trace.auxiliary if scope == "frontier" else np.ones_like(trace.auxiliary)).tolist()
    partitions = trace.partition.tolist()
    if not raw:
        for i in range(1, len(partitions)):
            both_frontier = not (trace.auxiliary[i] or trace.auxiliary[i - 1])
            counted[i] = counted[i] and not (both_frontier and partitions[i] == partitions[i - 1])
    kept = [p for p, c in zip(partitions, counted, strict=True) if c]
    noted = list(zip(partitions, counted, trace.priority.tolist(), strict=True))
    curves: dict[Policy, CacheCurve] = {policy: cache_curve(trace, policy, scope, raw=raw) for policy in POLICIES}
    assert len(SIZES) == 20
    for size in SIZES:
        assert curves["lru"].hits[size] == simulated_lru(kept, size)
        assert curves["priority"].hits[size] == simulated_priority(noted, size)
        assert curves["fifo"].hits[size] == simulated_fifo(kept, size)
        assert curves["clock"].hits[size] == simulated_clock(kept, size)
    for size in (1, 3, 8, 20, PARTITIONS):
        assert curves["belady"].hits[size] == simulated_optimum(kept, size)
    assert all(curve.n_accesses == len(kept) for curve in curves.values())


@pytest.mark.parametrize("how", [{"priority": "exact-h2"}, {"method": "vi"}])
def test_exact_priorities_and_vi_fix_the_order_whatever_the_cache_holds(
    place: Path, tmp_path: Path, how: dict[str, Any]
) -> None:
    store = ooc_mdp.open_store(place / "g.store")
    traces = []
    for size in (3, 12):
        file = tmp_path / f"{size}.csv"
        budget = size * int(store.facts.partition_bytes.max())
        ooc_mdp.solve(store, 0.9, epsilon=0.01, cache=budget, device="cpu", trace=file, **how)
        traces.append(read_trace(file))
    assert traces[0].partition.tolist() == traces[1].partition.tolist()
    assert [trace.order_is_fixed for trace in traces] == [True, True]


@pytest.mark.parametrize("size", [2, 5, 12, 30])
def test_the_curve_of_one_run_tells_the_loads_of_runs_with_other_caches(place: Path, size: int) -> None:
    store = ooc_mdp.open_store(place / "g.store")
    budget = size * int(store.facts.partition_bytes.max())
    assert budget < (size + 1) * int(store.facts.partition_bytes.min())  # it holds just so many
    curve = cache_curve(read_trace(place / "exact-h2.csv"), "lru")
    run = ooc_mdp.solve(store, 0.9, epsilon=0.01, priority="exact-h2", cache=budget, device="cpu").statistics
    assert (run.accesses + run.auxiliary_accesses, run.loads) == (curve.n_accesses, curve.loads[size])


def test_the_hit_column_is_what_the_simulation_says_of_the_solves_own_cache(place: Path) -> None:
    store = ooc_mdp.open_store(place / "g.store")
    size = int(0.22 * store.facts.partition_bytes.sum()) // int(store.facts.partition_bytes.mean())
    for name in ("exact-h1", "exact-h2"):
        trace = read_trace(place / f"{name}.csv")
        assert cache_curve(trace, "lru", raw=True).hits[size] == trace.hit.sum()


@given(sequences)
@example([0])
@example([0, 0, 0])
@example([7, 0, 7])
def test_lru_distances_equal_a_simulated_lru_at_every_size(partitions: list[int]) -> None:
    distances = lru_distances(array(partitions), 8)
    assert [hits_of(distances, c) for c in range(1, 9)] == [simulated_lru(partitions, c) for c in range(1, 9)]


@given(sequences)
@example([0, 1, 2, 3, 0, 1, 4, 0, 1, 2, 3, 4])  # Belady's anomaly: FIFO hits 3 times with three, twice with four
def test_fifo_and_clock_equal_simulated_queues_at_every_size(partitions: list[int]) -> None:
    for second_chance, simulated in ((False, simulated_fifo), (True, simulated_clock)):
        hits = queue_hits(array(partitions), 8, second_chance=second_chance)
        assert hits.tolist() == [0, *(simulated(partitions, c) for c in range(1, 9))]


@given(sequences, st.lists(st.integers(0, 7), min_size=1, max_size=20))
def test_no_policy_and_no_arbitrary_evictions_beat_belady_on_any_trace(
    partitions: list[int], choices: list[int]
) -> None:
    trace = trace_of([(p, False, float(p)) for p in partitions], 8)
    best = cache_curve(trace, "belady", raw=True).hits
    for policy in POLICIES:
        assert (cache_curve(trace, policy, raw=True).hits <= best).all()
    for size in range(1, 9):
        assert simulated_choices(partitions, size, choices) <= best[size]


@pytest.mark.parametrize("name", ["exact-h1", "exact-h2", "p-eva", "vi"])
def test_no_policy_beats_belady_on_the_trace_of_a_solve_nor_does_the_solves_own_cache(place: Path, name: str) -> None:
    trace = read_trace(place / f"{name}.csv")
    for scope in SCOPES:
        best = cache_curve(trace, "belady", scope, raw=True)
        assert all((cache_curve(trace, p, scope, raw=True).hits <= best.hits).all() for p in POLICIES)
    sizes = ooc_mdp.open_store(place / "g.store").facts.partition_bytes
    most_held = int(np.searchsorted(np.cumsum(np.sort(sizes)), 0.22 * sizes.sum(), side="right"))
    assert trace.hit.sum() <= cache_curve(trace, "belady", raw=True).hits[most_held]


@given(sequences)
def test_optimum_distances_equal_a_simulated_optimum_at_every_size(partitions: list[int]) -> None:
    distances = belady_distances(array(partitions), 8)
    assert [hits_of(distances, c) for c in range(1, 9)] == [simulated_optimum(partitions, c) for c in range(1, 9)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 5))
@settings(max_examples=60)
def test_no_choice_of_what_to_evict_has_more_hits_than_the_optimum(partitions: list[int], size: int) -> None:
    assert hits_of(belady_distances(array(partitions), 5), size) == max_hits(tuple(partitions), size)


@given(events)
def test_priority_distances_equal_a_simulated_eviction_of_the_lowest_priority_at_every_size(
    noted: list[tuple[int, bool, float]],
) -> None:
    partitions, counted, priority = (np.array(column) for column in zip(*noted, strict=True))
    distances = priority_distances(partitions, counted, priority.astype(np.float64), 8)
    assert [hits_of(distances, c) for c in range(1, 9)] == [simulated_priority(noted, c) for c in range(1, 9)]


@given(events, st.sampled_from(SCOPES), st.booleans())
def test_curves_rise_with_the_size_up_to_one_load_for_each_partition(
    noted: list[tuple[int, bool, float]], scope: Scope, raw: bool
) -> None:
    trace = trace_of(noted, 8)
    curves: dict[Policy, CacheCurve] = {policy: cache_curve(trace, policy, scope, raw=raw) for policy in POLICIES}
    accessed = {p for p, auxiliary, _ in noted if scope == "all" or not auxiliary}
    for policy, curve in curves.items():
        assert curve.hits[0] == 0
        assert policy in ("fifo", "clock") or (np.diff(curve.hits) >= 0).all()
        assert curve.hits.shape == (9,)
        assert curve.loads[8] == len(accessed)
        assert (curve.hits <= curves["belady"].hits).all()
        assert (curve.hit_rate <= 1).all()
        np.testing.assert_allclose(curve.loads_per_partition * 8, (1 - curve.hit_rate) * curve.n_accesses, atol=1e-12)


@given(events, st.sampled_from(POLICIES), st.sampled_from(SCOPES))
def test_counting_repeats_changes_hits_and_not_loads(
    noted: list[tuple[int, bool, float]], policy: Policy, scope: Scope
) -> None:
    trace = trace_of(noted, 8)
    merged, raw = (cache_curve(trace, policy, scope, raw=raw) for raw in (False, True))
    assert merged.loads[1:].tolist() == raw.loads[1:].tolist()
    assert raw.n_accesses - merged.n_accesses == repeats(trace.partition, trace.auxiliary).sum()


def test_a_repeat_is_a_frontier_access_right_after_one_to_the_same_partition() -> None:
    frontier, auxiliary = False, True
    noted = [(1, frontier), (1, frontier), (1, auxiliary), (1, frontier), (2, frontier), (2, frontier), (1, frontier)]
    trace = trace_of([(p, a, 0.0) for p, a in noted], 3)
    assert repeats(trace.partition, trace.auxiliary).tolist() == [False, True, False, False, False, True, False]


def test_a_scan_defeats_lru_and_the_optimum_keeps_most_of_what_fits() -> None:
    scans = array([*range(10)] * 5)
    distances = lru_distances(scans, 10)
    assert [hits_of(distances, c) for c in (1, 9, 10)] == [0, 0, 40]
    assert hits_of(belady_distances(scans, 10), 9) == simulated_optimum(scans.tolist(), 9) > 30


def diminishing_by_definition(rate: list[Fraction]) -> int | None:
    """The smallest size that no larger one beats by a unit a unit, and that beats all smaller ones by it."""
    n = len(rate) - 1
    for c in range(n + 1):
        later = all((rate[d] - rate[c]) * n <= d - c for d in range(c + 1, n + 1))
        if later and all((rate[c] - rate[b]) * n > c - b for b in range(c)):
            return c or None
    return None


@given(st.lists(st.integers(0, 6), min_size=1, max_size=10))
def test_beyond_the_point_of_diminishing_returns_a_unit_of_cache_wins_less_than_a_unit_of_hits(
    gains: list[int],
) -> None:
    hits = np.concatenate([[0], np.cumsum(gains)])
    curve = CacheCurve("lru", "all", len(gains), int(hits[-1]) + 1, hits)
    assert curve.knee == diminishing_by_definition([Fraction(int(h), curve.n_accesses) for h in hits])


def test_the_point_of_diminishing_returns_of_a_concave_curve_is_where_its_slope_falls_to_one() -> None:
    share = np.arange(101) / 100
    rate = 2 * share - share**2  # slope 2 - 2 share
    curve = curve_of(np.round(rate * 10_000).astype(int).tolist(), 10_000)
    assert curve.knee == 50
    assert curve_of([0, 1, 2, 3, 4], 4).knee is None  # a unit wins a unit everywhere
    assert curve_of([0, 0, 0, 0, 4], 5).knee is None


def test_a_share_of_the_partitions_is_exact_rounds_down_and_holds_one_at_least() -> None:
    assert all(CacheSize.parse_partitions(f"{i}%").resolve_partitions(100) == i for i in range(1, 101))
    assert [CacheSize.parse_partitions("29%").resolve_partitions(n) for n in (10, 2)] == [2, 1]
    assert CacheSize.parse_partitions(" 12.5% ").resolve_partitions(64) == 8
    assert CacheSize.parse_partitions("7").resolve_partitions(7) == 7
    for wrong in ("", "0", "-1", "2.5", "x", "1e3", "٣"):
        with pytest.raises(OptionsError, match="is no cache size"):
            CacheSize.parse_partitions(wrong)
    for wrong in ("0%", "101%", "nan%", "x%"):
        with pytest.raises(OptionsError, match="percentage"):
            CacheSize.parse_partitions(wrong)
    with pytest.raises(OptionsError, match="8 partitions is larger than the table, which has 7"):
        CacheSize.parse_partitions("8").resolve_partitions(7)


def test_both_scopes_are_shown_once_any_trace_has_auxiliary_accesses(place: Path) -> None:
    paths = [place / "vi.csv", place / "exact-h1.csv"]
    both = curves_of_traces(paths, policies=["lru"])
    assert [[c.scope for c in each.curves] for each in both] == [["all", "frontier"]] * 2
    alone = curves_of_traces(paths[:1], policies=["lru"])
    assert [c.scope for c in alone[0].curves] == ["frontier"]


def test_a_long_simulation_is_announced_with_the_way_to_leave_it_out(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_report, "_MANY_STEPS", 1000)
    assert "FIFO and CLOCK are simulated for each cache size" in ooc("cache-curve", place / "vi.csv").err
    assert ooc("cache-curve", place / "vi.csv", "--policy", "belady,lru").err == ""


def test_labels_are_distinct_and_one_a_trace(place: Path, tmp_path: Path) -> None:
    twin = tmp_path / "vi.csv"
    twin.write_bytes((place / "vi.csv").read_bytes())
    same = curves_of_traces([place / "vi.csv", twin], policies=["lru"])
    assert [each.label for each in same] == [str(place / "vi.csv"), str(twin)]
    with pytest.raises(OptionsError, match="1 labels for 2 traces"):
        curves_of_traces([twin, twin], labels=["a"])
    with pytest.raises(OptionsError, match="are not distinct"):
        curves_of_traces([twin, twin], labels=["a", "a"])


def test_the_command_prints_a_table_a_trace_and_scope(place: Path) -> None:
    ran = ooc(
        "cache-curve", place / "exact-h1.csv", place / "p-eva.csv", "--sizes", "25%,3", "--labels", "[b]one,two",
        "--same-accesses",
    )  # fmt: skip
    assert ran.status == 0
    titles = [line for line in ran.out.splitlines() if ": the same accesses" in line]
    assert [title.partition(":")[0] for title in titles] == ["[b]one", "[b]one", "two"]
    trace = read_trace(place / "exact-h1.csv")
    curves: list[CacheCurve] = [cache_curve(trace, policy) for policy in DEFAULT_POLICIES]
    for size, share in ((3, "8.3%"), (9, "25.0%")):
        cells = [str(size), share]
        for curve in curves:
            cells += [f"{curve.hit_rate[size]:.2%}", f"{curve.loads_per_partition[size]:.3f}"]
        assert any(line.split() == cells for line in ran.out.splitlines())
    best = curves[0].knee
    assert best is not None
    assert f"knee, Belady's optimum: at {best} partitions ({best / 36:.1%})" in ran.out
    assert "hit rate and loads per partition" in ran.out
    assert max(len(line) for line in ran.out.splitlines() if line.strip()[:1].isdigit()) <= 80


def test_the_first_lines_say_that_the_same_accesses_are_replayed_and_what_predicts_nothing(place: Path) -> None:
    ran = ooc("cache-curve", place / "vi.csv", place / "p-eva.csv", "--same-accesses")
    blocks = [block.splitlines() for block in ran.out.strip().split("\n\n")]
    replayed = "the same accesses under another cache: a bound for schedules that do not look at the cache"
    assert [block[0] for block in blocks] == [f"vi: {replayed}; exact for vi", f"p-eva: {replayed}"]
    assert not any("predict" in line for line in blocks[0])
    said = "p-eva: these curves predict no other solve: the order of accesses of p-eva joint depends"
    (caveat,) = [line for line in blocks[1] if said in line]
    assert "ooc-mdp cache-sweep STORE" in caveat
    ran = ooc("cache-curve", place / "vi.csv", place / "p-eva.csv", "--same-accesses", "--json")
    figures = ran.figures["traces"]
    assert [each["caveats"] for each in figures] == [[], [caveat]]


def test_a_trace_whose_order_depends_on_the_cache_is_refused_unless_the_replay_is_wanted(
    place: Path, tmp_path: Path
) -> None:
    message = refused("cache-curve", place / "vi.csv", place / "p-eva.csv", "--csv", tmp_path / "c.csv")
    assert "the order of accesses of p-eva (p-eva joint) depends on the cache" in message
    assert "ooc-mdp cache-sweep STORE" in message
    assert "--same-accesses" in message
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionsError, match="depends on the cache"):
        curves_of_traces([place / "p-eva.csv"])
    assert len(curves_of_traces([place / "p-eva.csv"], same_accesses=True)) == 1


def test_the_title_of_a_plot_names_the_traces_that_predict_nothing(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for names, predicts in ((["vi"], True), (["vi", "p-eva"], False)):
        file = tmp_path / f"{names[-1]}.svg"
        traces = [place / f"{name}.csv" for name in names]
        assert ooc("cache-curve", *traces, "--plot", file, "--same-accesses").status == 0
        drawn = file.read_text()
        assert "The same accesses under another cache" in drawn
        assert "a bound for schedules that do not look at the cache" in drawn
        assert all(word in drawn for word in ("Belady's optimum", "LRU", "FIFO", "CLOCK"))
        assert ("no prediction of solves with these caches: p-eva" in drawn) is not predicts
        assert "knee returns" not in drawn


def test_the_command_says_the_same_as_json_and_csv(place: Path, tmp_path: Path) -> None:
    ran = ooc("cache-curve", place / "exact-h2.csv", "--json", "--csv", tmp_path / "c.csv", "--policy", "belady,lru")
    assert ran.status == 0
    (each,) = ran.figures["traces"]
    assert (each["method"], each["partitions"], each["order_is_fixed"]) == ("p-eva exact-h2", 36, True)
    with (tmp_path / "c.csv").open(newline="") as f:
        rows = {(r["scope"], r["policy"], int(r["partitions"])): r for r in csv.DictReader(f)}
    assert set(rows) == {(s, p, c) for s in SCOPES for p in ("lru", "belady") for c in range(1, 37)}
    trace = read_trace(place / "exact-h2.csv")
    for curve in each["curves"]:
        expected = cache_curve(trace, curve["policy"], curve["scope"])
        assert curve["accesses"] == expected.n_accesses
        assert [point["partitions"] for point in curve["sizes"]] == [1, 3, 7, 18, 36]
        for point in curve["sizes"]:
            row = rows[curve["scope"], curve["policy"], point["partitions"]]
            assert point["loads"] == int(row["loads"]) == expected.loads[point["partitions"]]
            assert point["hit_rate"] == float(row["hit_rate"]) == point["hits"] / expected.n_accesses
            assert point["loads_per_partition"] == float(row["loads_per_partition"]) == point["loads"] / 36


@pytest.mark.parametrize("scope", ["frontier", "all"])
def test_the_command_counts_the_accesses_that_it_is_told_to(place: Path, scope: str) -> None:
    figures = ooc("cache-curve", place / "exact-h1.csv", "--scope", scope, "--count", "accesses", "--json").figures
    (each,) = figures["traces"]
    assert {curve["scope"] for curve in each["curves"]} == {scope}
    expected = each["accesses"] + (each["auxiliary_accesses"] if scope == "all" else 0)
    assert {curve["accesses"] for curve in each["curves"]} == {expected}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_several_traces_are_drawn_on_one_plot_without_pyplot(
    place: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # to import it now is an error
    file = tmp_path / f"curves{suffix}"
    labels = "_a$b,two"
    ran = ooc("cache-curve", place / "exact-h1.csv", place / "exact-h2.csv", "--labels", labels, "--plot", file)
    assert (ran.status, ran.err) == (0, "")
    drawn = file.read_bytes()
    assert drawn.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    if suffix == ".svg":
        for words in (b"with auxiliary accesses", b"frontier accesses only", b"_a$b", b"two", b"loads per partition"):
            assert words in drawn


@pytest.mark.parametrize(("partitions", "dots"), [(1, 2), (2, 1)])
def test_a_curve_of_one_size_is_drawn_as_dots(tmp_path: Path, partitions: int, dots: int) -> None:
    """Of two sizes only the knee is one."""
    pytest.importorskip("matplotlib")
    trace = trace_of([(0, False, 0.0)] * 3, partitions)
    curve = cache_curve(trace, "lru", "frontier", raw=True)
    file = tmp_path / "c.svg"
    plot_cache_curves([TraceCurves("t", trace, (curve,))], file)
    assert sum("<use" in line and "fill: #1f77b4" in line for line in file.read_text().splitlines()) == dots


def test_more_traces_than_colours_are_not_drawn(tmp_path: Path) -> None:
    each = TraceCurves("t", trace_of([(0, False, 0.0)], 1), ())
    with pytest.raises(OptionsError, match="11 traces cannot be told apart"):
        plot_cache_curves([each] * 11, tmp_path / "c.png")


def test_a_plot_without_matplotlib_names_the_extra(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.lines"):
        monkeypatch.setitem(sys.modules, module, None)
    message = refused("cache-curve", place / "vi.csv", "--plot", tmp_path / "c.png")
    assert "needs the package matplotlib, which is not installed: pip install 'ooc-mdp[plot]'" in message
    with pytest.raises(MissingExtraError):
        plot_cache_curves([], tmp_path / "c.png")


def test_options_that_make_no_sense_are_refused(place: Path, tmp_path: Path) -> None:
    trace = place / "vi.csv"
    assert "must end in .png, .svg, .pdf" in refused("cache-curve", trace, "--plot", tmp_path / "c.jpg")
    assert "unknown policy 'arc'; there are belady, lru" in refused("cache-curve", trace, "--policy", "lru,arc")
    assert "'optimum' is now called 'belady'" in refused("cache-curve", trace, "--policy", "optimum")
    assert "'x' is no cache size" in refused("cache-curve", trace, "--sizes", "1,5%,x")
    assert "larger than the table, which has 36" in refused(
        "cache-curve", trace, "--sizes", 37, "--csv", tmp_path / "c.csv"
    )
    assert "is no directory" in refused("cache-curve", trace, "--csv", tmp_path / "nowhere" / "c.csv")
    assert "is a directory" in refused("cache-curve", trace, "--csv", tmp_path)
    assert "line 1: does not begin with" in refused("cache-curve", Path(__file__), "--csv", tmp_path / "c.csv")
    assert list(tmp_path.iterdir()) == []


def test_files_that_exist_stay_unless_they_are_to_be_replaced(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("mine")
    trace = place / "vi.csv"
    assert "exists; name another file, or replace it with --overwrite" in refused("cache-curve", trace, "--csv", file)
    assert file.read_text() == "mine"
    assert ooc("cache-curve", trace, "--csv", file, "--overwrite").status == 0
    assert file.read_text().startswith("trace,scope,policy,partitions,")
    before = trace.read_bytes()
    assert "is read and cannot be written" in refused("cache-curve", trace, "--csv", trace, "--overwrite")
    assert "c.svg is named for two outputs; name a file for each" in refused(
        "cache-curve", trace, "--csv", tmp_path / "c.svg", "--plot", tmp_path / "c.svg"
    )
    assert trace.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["c.csv"]


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_pipes_and_links_are_not_replaced(place: Path, tmp_path: Path, option: str) -> None:
    pipe, link, target = (tmp_path / f"{name}.svg" for name in ("pipe", "link", "target"))
    os.mkfifo(pipe)
    target.write_text("mine")
    link.symlink_to(target)
    assert "is a device or pipe" in refused("cache-curve", place / "vi.csv", option, pipe, "--overwrite")
    assert "is a symbolic link" in refused("cache-curve", place / "vi.csv", option, link, "--overwrite")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert target.read_text() == "mine"
