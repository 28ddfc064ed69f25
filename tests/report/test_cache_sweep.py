"""Cache sweeps: each point is a solve with that cache, and a sweep that was killed continues where it stopped."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import interrupted, ooc, refused

import ooc_mdp
from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.report import cache_sweep as engine
from ooc_mdp.report.cache_curve import cache_curve
from ooc_mdp.report.cache_sweep import SweepPlan
from ooc_mdp.report.cache_sweep_file import read_cache_sweep, write_cache_sweep
from ooc_mdp.report.cache_trace import read_trace

PARTITIONS = 16
OPTIONS: dict[str, Any] = {"epsilon": 0.01, "device": "cpu"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweeps") / "g.store"
    ooc_mdp.generate("gridworld", path, {"height": 32, "width": 32, "seed": 1}, partitions=PARTITIONS)
    return path


@pytest.fixture(scope="module")
def sweep(store: Path) -> ooc_mdp.CacheSweep:
    return ooc_mdp.cache_sweep(store, 0.9, "25%,50%", priorities="joint,exact-h2", methods="p-eva,vi", **OPTIONS)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, str]]:
    """The priority, or else the method, and the cache of every solve from now on."""
    done: list[tuple[str | None, str]] = []
    solve = ooc_mdp.api.solve_with

    def counted(table: Any, options: SolveOptions, *rest: Any, **others: Any) -> ooc_mdp.Solution:
        assert options.cache is not None
        done.append((options.priority or options.method, options.cache.text))
        return solve(table, options, *rest, **others)

    monkeypatch.setattr(ooc_mdp.api, "solve_with", counted)
    return done


def test_a_point_is_what_a_solve_with_that_cache_costs(store: Path, sweep: ooc_mdp.CacheSweep) -> None:
    assert sweep.complete
    assert [(p.schedule, p.size) for p in sweep.points] == [
        (schedule, size) for schedule in ("joint", "exact-h2", "vi") for size in ("25%", "50%")
    ]
    for schedule, how in (("exact-h2", {"priority": "exact-h2"}), ("vi", {"method": "vi"})):
        point = sweep.point(schedule, "25%")
        assert point is not None
        s = ooc_mdp.solve(store, 0.9, cache="25%", **how, **OPTIONS).statistics
        assert (point.loads, point.accesses, point.hits) == (s.loads, s.accesses, s.hits)
        assert (point.cache_bytes, point.bytes_decoded) == (s.cache_bytes, s.bytes_decoded)
        assert (point.loads_per_partition, point.hit_rate) == (s.loads_per_partition, s.hit_rate)
        assert point.fraction == pytest.approx(0.25, abs=0.01)
        assert point.cache_partitions == 4


def test_a_schedule_that_ignores_the_cache_has_the_loads_of_its_accesses_beside_its_solves(
    store: Path, sweep: ooc_mdp.CacheSweep, tmp_path: Path
) -> None:
    assert [each.schedule for each in sweep.same_accesses] == ["exact-h2", "vi"]
    ooc_mdp.solve(store, 0.9, cache="25%", priority="exact-h2", trace=tmp_path / "t.csv", **OPTIONS)
    trace = read_trace(tmp_path / "t.csv")
    same = sweep.replayed("exact-h2")
    assert same is not None
    assert list(same.lru_loads) == cache_curve(trace, "lru", raw=True).loads.tolist()
    assert list(same.belady_loads) == cache_curve(trace, "belady", raw=True).loads.tolist()
    for point in sweep.points:
        replayed = sweep.replayed(point.schedule)
        if replayed is not None:
            assert replayed.accesses == point.accesses + point.auxiliary_accesses
            most_held = (
                -(-point.cache_bytes * PARTITIONS // point.table_bytes) + 1
            )  # partitions differ a little in size
            assert point.loads >= replayed.belady_loads[most_held]


def test_a_sweep_that_is_resumed_keeps_its_solves_and_does_the_others(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "s.json"
    begun = ooc_mdp.cache_sweep(store, 0.9, ["50%"], priorities=["h1"], output=file, **OPTIONS)
    done = counting(monkeypatch)
    found = ooc_mdp.cache_sweep(store, 0.9, [0.25, "50%"], priorities=["h1", "h2"], output=file, resume=True, **OPTIONS)
    assert done == [("h1", "25%"), ("h2", "25%"), ("h2", "50%")]
    assert found.complete
    assert found.point("h1", "50%") == begun.points[0]
    assert read_cache_sweep(file) == found
    assert ooc_mdp.cache_sweep(
        store, 0.9, "25%,50%", priorities="h1,h2", output=file, resume=True, **OPTIONS
    ).points == tuple(found.points)
    assert len(done) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_sweep_continues_where_it_stopped(
    store: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends while it writes the second solve: the file of the first was opened, and moved to its place, before."""
    words = ("cache-sweep", store, "--discount", 0.9, "--epsilon", 0.01, "--device", "cpu", "--sizes", "25%,50%",
             "--priority", "h1,h2", "--output", tmp_path / "s.json")  # fmt: skip
    ran = interrupted(number, f"changes {tmp_path} s.json", 3, *words)
    assert ran.status not in (0, 2), ran
    kept = read_cache_sweep(tmp_path / "s.json").points
    assert len(kept) == 1
    done = counting(monkeypatch)
    assert ooc(*words, "--resume").status == 0
    assert done == [("h1", "50%"), ("h2", "25%"), ("h2", "50%")]
    found = read_cache_sweep(tmp_path / "s.json")
    assert found.complete
    assert found.points[:1] == kept


def test_an_interrupted_solve_ends_the_sweep_and_is_not_kept(
    store: Path, sweep: ooc_mdp.CacheSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve = ooc_mdp.api.solve_with
    solutions: list[ooc_mdp.Solution] = []

    def second_is_interrupted(*arguments: Any, **others: Any) -> ooc_mdp.Solution:
        solutions.append(solve(*arguments, **others))
        stopped = len(solutions) == 2
        return replace(solutions[-1], outcome=ooc_mdp.Outcome.INTERRUPTED) if stopped else solutions[-1]

    monkeypatch.setattr(ooc_mdp.api, "solve_with", second_is_interrupted)
    found = ooc_mdp.cache_sweep(store, 0.9, "25%,50%,100%", priorities="h1", **OPTIONS)
    assert [point.size for point in found.points] == ["25%"]
    assert not found.complete
    assert len(solutions) == 2


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_stopped_sweep_prints_what_it_has_and_how_it_continues(
    store: Path, tmp_path: Path, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve = ooc_mdp.api.solve_with

    def small_is_interrupted(table: Any, options: SolveOptions, *rest: Any, **others: Any) -> ooc_mdp.Solution:
        solution = solve(table, options, *rest, **others)
        stopped = options.cache == CacheSize(share=0.25)
        return replace(solution, outcome=ooc_mdp.Outcome.INTERRUPTED) if stopped else solution

    monkeypatch.setattr(ooc_mdp.api, "solve_with", small_is_interrupted)
    words = ("cache-sweep", store, "--discount", 0.9, "--device", "cpu", "--sizes", "50%,25%,10%")
    ran = ooc(*words, *(("--output", tmp_path / "s.json") if is_kept else ()))
    assert ran.status == 1
    assert len([line for line in ran.out.splitlines() if line.startswith("auto")]) == 1
    remedy = "continue with --resume" if is_kept else "name an --output, from which --resume continues"
    assert ran.err.endswith(f"stopped before 2 solves had ended; {remedy}\n")


def test_a_solve_that_a_limit_stopped_is_marked_and_repeated_by_a_resumed_sweep(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    words = ("cache-sweep", store, "--discount", 0.9, "--device", "cpu", "--sizes", "50%", "--output", file)
    ran = ooc(*words, "--method", "vi", "--time-limit", 1e-9)
    assert ran.status == 1
    assert "time_limit" in ran.out
    (point,) = read_cache_sweep(file).points
    assert (point.outcome, point.reached) == ("time_limit", False)
    assert read_cache_sweep(file).same_accesses == ()
    assert ooc(*words, "--method", "vi", "--resume").status == 0
    (point,) = read_cache_sweep(file).points
    assert point.reached
    assert len(read_cache_sweep(file).same_accesses) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [({"discount": 0.8}, "another discount, 0.9 and not 0.8"), ({"epsilon": 0.1}, "another epsilon, 0.01 and not 0.1")],
)
def test_solves_that_cannot_be_compared_are_not_put_into_one_sweep(
    store: Path, tmp_path: Path, change: dict[str, float], message: str
) -> None:
    file = tmp_path / "s.json"
    given: dict[str, Any] = {"discount": 0.9, "sizes": "50%", "output": file, **OPTIONS}
    ooc_mdp.cache_sweep(store, **given)
    before = file.read_bytes()
    with pytest.raises(OptionsError, match=message):
        ooc_mdp.cache_sweep(store, resume=True, **(given | change))
    other = ooc_mdp.generate("gridworld", tmp_path / "o.store", {"height": 32, "width": 32, "seed": 2}, partitions=4)
    with pytest.raises(OptionsError, match="another fingerprint of the table"):
        ooc_mdp.cache_sweep(other, resume=True, **given)
    assert file.read_bytes() == before


def truncated(content: bytes) -> bytes:
    return content[:-20]


def another_number(content: bytes) -> bytes:
    return content.replace(b'"loads": ', b'"loads": 1', 1)


def another_version(content: bytes) -> bytes:
    return content.replace(b'"version": 1', b'"version": 9', 1)


def a_list(content: bytes) -> bytes:
    return b"[" + content + b"]"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "no JSON"),
        (another_number, "its digest differs"),
        (another_version, "version 9, this release reads 1"),
        (a_list, "is no cache sweep"),
    ],
)
def test_a_file_that_is_no_sweep_or_has_changed_is_refused(
    sweep: ooc_mdp.CacheSweep, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    file = tmp_path / "s.json"
    write_cache_sweep(sweep, file)
    assert read_cache_sweep(file) == sweep
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=message):
        read_cache_sweep(file)


def test_the_command_prints_a_line_for_each_solve_and_the_same_as_json_and_csv(store: Path, tmp_path: Path) -> None:
    words = ("cache-sweep", store, "--discount", 0.9, "--epsilon", 0.01, "--device", "cpu", "--sizes", "25%,50%")
    ran = ooc(*words, "--priority", "h1,exact-h1", "--output", tmp_path / "s.json", "--csv", tmp_path / "s.csv")
    assert ran.status == 0
    assert ran.err.startswith(f"4 solves of {store}: h1, exact-h1 at 25%, 50%\n")
    assert ran.err.count("loads per partition") == 4
    assert ran.err.count("memory plan, RAM") == 1
    kept = read_cache_sweep(tmp_path / "s.json")
    with (tmp_path / "s.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    for point, row in zip(kept.points, rows, strict=True):
        line = next(each for each in ran.out.splitlines() if each.split()[:2] == [point.schedule, point.size])
        assert f"{point.loads_per_partition:.2f}" in line.split()
        assert f"{point.hit_rate:.1%}" in line.split()
        assert str(point.cache_partitions) in line.split()
        assert (row["schedule"], row["size"], int(row["loads"])) == (point.schedule, point.size, point.loads)
        assert float(row["hit_rate"]) == point.hit_rate
        assert bool(row["same_accesses_belady"]) == (point.schedule == "exact-h1")
    figures = ooc(*words, "--priority", "h1,exact-h1", "--output", tmp_path / "s.json", "--resume", "--json").figures
    assert figures == json.loads(json.dumps(kept.to_dict()))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_sweep_is_drawn_with_a_dot_for_each_solve(sweep: ooc_mdp.CacheSweep, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    from ooc_mdp.report.cache_sweep_plot import plot_cache_sweep

    file = tmp_path / f"s{suffix}"
    stopped = replace(sweep.points[0], outcome="time_limit", size="1%", cache_bytes=1)
    plot_cache_sweep(replace(sweep, points=(*sweep.points, stopped)), file)
    drawn = file.read_bytes()
    assert drawn.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    if suffix == ".svg":
        text = drawn.decode()
        for words in ("joint, solves", "exact-h2, solves", "vi, solves", "loads per partition", "Belady's optimum"):
            assert words in text
        dots = [line for line in text.splitlines() if "<use" in line and "fill: #1f77b4" in line]
        assert len(dots) == 4 * 2 + 1  # joint in four panels with two sizes, and in the legend


def test_a_sweep_of_schedules_that_look_at_the_cache_has_the_same_axes(
    sweep: ooc_mdp.CacheSweep, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    from ooc_mdp.report.cache_sweep_plot import plot_cache_sweep

    joint = tuple(point for point in sweep.points if point.schedule == "joint")
    plot_cache_sweep(replace(sweep, points=joint, same_accesses=()), tmp_path / "s.svg")
    assert "cache size, % of the table" in (tmp_path / "s.svg").read_text()


def test_what_cannot_be_swept_is_refused_before_the_first_solve(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = counting(monkeypatch)
    words = ("cache-sweep", store, "--discount", 0.9, "--output", tmp_path / "s.json")
    for more, message in (
        (("--priority", "joint,h3"), "unknown priority 'h3'; there are joint, h1"),
        (("--method", "p_eva"), "unknown method 'p_eva'"),
        (("--method", "vi", "--priority", "h1"), "--priority is of p-eva"),
        (("--sizes", "5%,22"), "did you mean 22%"),
        (("--sizes", "50%,1KiB"), "a cache of 1024 holds no partition"),
        (("--sizes", ","), "needs a method and a cache size"),
        (("--sweeps-per-visit", 4), "add --method vi"),
        (("--epsilon", -1), "epsilon must be a positive number"),
        (("--time-limit", 0), "time limit must be a positive number"),
        (("--plot", tmp_path / "s.jpg"), "must end in .png, .svg, .pdf"),
        (("--csv", tmp_path / "s.json"), "is named for two outputs"),
        (("--csv", tmp_path / "no" / "s.csv"), "is no directory"),
    ):
        assert message in refused(*words, *more), more
    assert "resume needs an output" in refused("cache-sweep", store, "--discount", 0.9, "--resume")
    assert done == []
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_stays_unless_it_is_to_be_replaced_or_continued(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text("mine")
    words = ("cache-sweep", store, "--discount", 0.9, "--device", "cpu", "--sizes", "50%", "--output", file)
    assert "exists; continue it, or add sizes, with --resume, or replace it with --overwrite" in refused(*words)
    assert "is no cache sweep" in refused(*words, "--resume")
    assert file.read_text() == "mine"
    assert ooc(*words, "--overwrite").status == 0
    assert read_cache_sweep(file).complete
    assert [each.name for each in tmp_path.iterdir()] == ["s.json"]


def test_a_schedule_is_a_method_with_each_priority_that_it_has() -> None:
    def labels(methods: list[str], priorities: list[str]) -> list[str]:
        plan = SweepPlan.of(SolveOptions(0.9), methods, priorities, [CacheSize(share=0.5)])
        return [schedule.label for schedule in plan.schedules]

    assert labels(["auto"], []) == ["auto"]
    assert labels(["auto"], ["joint", "h1"]) == ["joint", "h1"]
    assert labels(["vi", "p-eva", "auto"], ["joint", "exact-h1"]) == ["vi", "joint", "exact-h1"]
    assert labels(["policy-iteration", "p-eva"], []) == ["policy-iteration", "p-eva"]
    fixed = SweepPlan.of(SolveOptions(0.9), ["vi"], [], [CacheSize(share=0.5)])
    assert fixed.order_is_fixed(engine.Schedule("vi"))
    assert not replace(fixed, sweeps_per_visit=4).order_is_fixed(engine.Schedule("vi"))
