"""Reports say what a result proves and cost, name what was not recorded, and are one file of bounded size."""

from __future__ import annotations

import html
import json
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc, refused
from made_results import made_result
from small_mdps import Case, make_store
from solve_histories import history_of
from store_models import Action, Model, State

pytest.importorskip("bokeh")

import ooc_mdp
from ooc_mdp.errors import InputError, MissingExtraError, OptionsError, StoreError
from ooc_mdp.model.solution import Certificate, Outcome
from ooc_mdp.model.statistics import SolveStatistics, WorkerStatistics
from ooc_mdp.report.cache_sweep import CachePoint, CacheSweep
from ooc_mdp.report.cache_sweep_file import read_cache_sweep, write_cache_sweep
from ooc_mdp.report.cache_trace import AccessTrace
from ooc_mdp.report.html import sections_of, write_report
from ooc_mdp.report.html.section import Section
from ooc_mdp.store.seal import digest_of

TITLES = [
    "Certificate", "State space", "Convergence", "Cache", "Accesses over time", "Other cache sizes", "Time",
    "Partitions", "Memory", "Workers", "Provenance",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with maze.store, its result maze.result and its trace maze.csv."""
    folder = tmp_path_factory.mktemp("report")
    ooc_mdp.generate("GW-32x4", folder / "maze.store", {"seed": 1}, partitions=16)
    ooc_mdp.solve(
        folder / "maze.store", 0.95, cache="30%", device="cpu", method="vi", output=folder / "maze.result",
        trace=folder / "maze.csv",
    )  # fmt: skip
    return folder


def text_of(file: Path) -> str:
    """What a reader sees in the page without its script."""
    page = file.read_text(encoding="utf-8")
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


def titles_of(sections: list[Section]) -> list[str]:
    return [section.title for section in sections]


def section(sections: list[Section], title: str) -> Section:
    return next(s for s in sections if s.title == title)


def charts_of(of: Section) -> list[str]:
    return [chart.name for row in of.charts for chart in row]


def trace_of(partitions: int, method: str = "vi") -> AccessTrace:
    n = 4 * partitions
    return AccessTrace(
        path=Path("made-up.csv"), facts={"method": method}, n_partitions=partitions,
        partition=np.arange(n) % partitions, auxiliary=np.zeros(n, np.bool_), hit=np.arange(n) % 3 == 0,
        priority=np.zeros(n), bound=1.0 / np.arange(1, n + 1), seconds=np.arange(n, dtype=np.float64), cut_off=False,
    )  # fmt: skip


def test_the_report_of_a_gridworld_states_what_the_result_states(place: Path) -> None:
    ooc_mdp.write_report(place / "maze.result", place / "maze.html", trace=place / "maze.csv")
    solution = ooc_mdp.open_result(place / "maze.result").solution
    said = text_of(place / "maze.html")
    assert "PROVED" in said
    assert f"at most {solution.error_bound:.3g} in every state" in said
    assert f"loads per partition {solution.statistics.loads_per_partition:.2f}" in said
    assert f"ooc-mdp verify STORE {place / 'maze.result'}" in said
    assert [title for title in TITLES if title in said] == TITLES
    assert "row 0 to 7" in said


def test_a_report_needs_nothing_but_its_file(place: Path) -> None:
    ooc_mdp.write_report(place / "maze.result", place / "alone.html")
    page = (place / "alone.html").read_text(encoding="utf-8")
    tags = re.sub(r"(<(script|style)[^>]*>).*?</\2>", r"\1", page, flags=re.DOTALL)
    assert not re.findall(r"<[^>]+(?:src|href)=", tags)
    assert len(page) < 6_000_000


def test_a_control_problem_is_mapped_with_its_controls(tmp_path: Path) -> None:
    ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "12,8"}, partitions=4)
    ooc_mdp.solve(tmp_path / "s", 0.9, device="cpu", output=tmp_path / "r")
    sections = sections_of(ooc_mdp.open_result(tmp_path / "r"))
    assert titles_of(sections) == TITLES
    states = section(sections, "State space")
    assert [(row.name, row.text) for row in states.rows] == [("controls of the actions", "0: -1.0; 1: 0.0; 2: 1.0")]
    assert charts_of(states) == ["field", "across", "up", "scale", "map", "position", "velocity"]
    write_report(ooc_mdp.open_result(tmp_path / "r"), tmp_path / "r.html")


def test_states_of_a_random_model_are_drawn_as_curves(tmp_path: Path) -> None:
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 60, "actions": 2, "seed": 0}, partitions=3)
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r")
    result = ooc_mdp.open_result(tmp_path / "r")
    sections = sections_of(result)
    assert charts_of(section(sections, "States")) == ["values", "sorted-values", "actions"]
    assert len(section(sections, "Partitions").table.rows) == 3  # type: ignore[union-attr]
    write_report(result, tmp_path / "r.html")
    assert "on no grid" in text_of(tmp_path / "r.html")


def test_undiscounted_totals_have_the_width_of_their_intervals(tmp_path: Path) -> None:
    states = [State((Action(-1.0, {i + 1: 0.5, i: 0.5}),)) for i in range(7)]
    store = make_store(Case(Model((*states, State((), 3.0))), partitions=2), tmp_path / "s")
    ooc_mdp.solve(store, ooc_mdp.TotalReward(), device="cpu", output=tmp_path / "r")
    sections = sections_of(ooc_mdp.open_result(tmp_path / "r"))
    assert charts_of(section(sections, "States")) == ["values", "sorted-values", "actions", "interval-widths"]
    ooc_mdp.write_report(tmp_path / "r", tmp_path / "r.html")
    said = text_of(tmp_path / "r.html")
    assert "discount 1" in said
    assert "values from -11 to 3" in said


def test_the_width_of_the_intervals_is_mapped_on_a_grid() -> None:
    sections = sections_of(made_result((4, 4), value_lower=np.zeros(16), value_upper=np.ones(16)))
    assert "width of the interval" in section(sections, "State space").charts[0][0].options


def test_a_solve_that_was_stopped_is_reported_as_such(place: Path, tmp_path: Path) -> None:
    store = ooc_mdp.open_store(place / "maze.store")
    stopped = ooc_mdp.solve(store, 0.95, device="cpu", time_limit=1e-9)
    assert stopped.outcome is Outcome.TIME_LIMIT
    ooc_mdp.write_report(stopped, tmp_path / "stopped.html", table=store)
    said = text_of(tmp_path / "stopped.html")
    assert "STOPPED AT THE TIME LIMIT" in said
    assert "PROVED" not in said
    assert "the time limit came first" in said
    assert "ooc-mdp verify" not in said


def test_a_solution_without_history_or_table_names_what_is_missing(tmp_path: Path) -> None:
    solution = replace(made_result((40,)).solution, history=None, memory_plan={})
    ooc_mdp.write_report(solution, tmp_path / "r.html")
    said = text_of(tmp_path / "r.html")
    for sentence in (
        "its solve was not recorded", "the work on partitions was not recorded", "memory plan is not recorded",
        "provenance is not recorded", "No loads with other caches were measured", "without workers",
    ):  # fmt: skip
        assert sentence in said
    assert "nan" not in said.lower().split()


def test_a_bound_that_is_not_known_is_called_unknown(tmp_path: Path) -> None:
    nothing = Certificate(*[np.inf, -np.inf, np.inf, np.inf, 0.0, np.inf], "epsilon", np.inf, "nothing is proved")
    ooc_mdp.write_report(made_result((6, 6), certificate=nothing, outcome=Outcome.INTERRUPTED), tmp_path / "r.html")
    said = text_of(tmp_path / "r.html")
    assert "No bound on the error of the values is proved" in said
    assert "error bound unknown" in said


def test_a_large_error_bound_is_a_warning(tmp_path: Path) -> None:
    wide = replace(made_result((6, 6)).solution.certificate, error_bound=100.0, stopping_rule="residual")
    ooc_mdp.write_report(made_result((6, 6), certificate=wide, outcome=Outcome.RESIDUAL_REACHED), tmp_path / "r.html")
    said = text_of(tmp_path / "r.html")
    assert "RESIDUAL REACHED" in said
    assert "The error bound 100 is more than 1% of the range of the values" in said


def test_workers_are_listed_and_lost_ones_are_a_warning(tmp_path: Path) -> None:
    workers = [WorkerStatistics(w, "host", "cpu", w == 1, 2, 7, 1 << 20, 0.5, 9, 0.25, 3, 1 << 10) for w in range(2)]
    statistics = replace(made_result((6, 6)).solution.statistics, workers=workers)
    ooc_mdp.write_report(made_result((6, 6), statistics=statistics), tmp_path / "r.html")
    said = text_of(tmp_path / "r.html")
    assert "1 of 2 workers were lost" in said
    assert "1 (lost) host cpu 2 7 1.0 MiB 50.0% 9 0.2 s 3 1.0 KiB" in said


def test_text_of_a_file_is_no_markup_in_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>$$x$$"
    result = made_result((6, 5), method=evil)
    geometry = {**result.geometry, "controls": [[evil]]}  # type: ignore[dict-item]
    geometry["axes"][0]["unit"] = evil
    result = replace(result, provenance={"source": evil, evil: evil}, geometry=geometry)
    write_report(result, tmp_path / "r.html")
    assert "<script>alert" not in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert text_of(tmp_path / "r.html").count("alert(1)") >= 4


@pytest.mark.parametrize("shape", [(2000, 1500), (40, 40, 40, 40), (3_000_000,)])
def test_a_report_of_many_states_is_below_6_megabytes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    result = made_result(shape, blocks=20)
    n = result.solution.statistics.n_partitions
    many = history_of(10_000, n)
    result = replace(result, solution=replace(result.solution, history=many))
    write_report(result, tmp_path / "r.html", trace=trace_of(n))
    assert (tmp_path / "r.html").stat().st_size < 6_000_000
    assert len(shape) == 1 or "Drawn are every" in text_of(tmp_path / "r.html")


def test_a_trace_adds_its_accesses_and_a_replay_only_where_the_order_is_fixed() -> None:
    result = made_result((6, 6))
    fixed = sections_of(result, trace=trace_of(4))
    assert charts_of(section(fixed, "Other cache sizes")) == ["replay"]
    assert section(fixed, "Accesses over time").source == "Data: the trace made-up.csv."
    assert "residual bound at the last access" in section(fixed, "State space").charts[0][0].options
    moved = section(sections_of(result, trace=trace_of(4, "p-eva joint")), "Other cache sizes")
    assert charts_of(moved) == []
    assert "the order of accesses of the method p-eva joint depends on the cache" in " ".join(moved.sentences)


def sweep_file(path: Path, fingerprint: str = "0" * 64, **changes: Any) -> Path:
    def point(schedule: str, percent: int, outcome: Outcome = Outcome.PROVED) -> CachePoint:
        numbers = {f.name: 1 for f in fields(CachePoint)} | {"n_partitions": 36, "loads": 3600 // percent}
        words: dict[str, Any] = {"schedule": schedule, "size": f"{percent}%", "outcome": outcome.value}
        more = {"method": "p-eva", "device": "cpu", "table_bytes": 1000, "cache_bytes": 10 * percent}
        return CachePoint(**numbers | words | more)

    points = tuple(point(schedule, percent) for schedule in ("joint", "h1") for percent in (50, 5))
    points = (*points, point("joint", 90, Outcome.TIME_LIMIT))
    write_cache_sweep(CacheSweep({"store": "made-up", "fingerprint": fingerprint}, points), path)
    if changes:
        document = json.loads(path.read_text()) | changes
        del document["digest"]
        path.write_text(json.dumps({**document, "digest": digest_of(document)}))
    return path


def test_a_cache_sweep_is_drawn_by_schedule_without_unfinished_solves(tmp_path: Path) -> None:
    sweep = read_cache_sweep(sweep_file(tmp_path / "sweep.json"))
    found = section(sections_of(made_result((6, 6)), sweep=sweep), "Other cache sizes")
    assert charts_of(found) == ["sweep-loads_per_partition", "sweep-hit_rate"]
    lines = [r.data_source.data for r in found.charts[0][0].renderers if type(r.glyph).__name__ == "Line"]
    assert [list(line["x"]) for line in lines] == [[5.0, 50.0], [5.0, 50.0]], "90% did not end"
    ooc_mdp.write_report(made_result((6, 6)), tmp_path / "r.html", cache_sweep=tmp_path / "sweep.json")


def test_what_is_no_cache_sweep_is_refused(tmp_path: Path) -> None:
    def report(file: Path) -> None:
        ooc_mdp.write_report(made_result((6, 6)), tmp_path / "r.html", cache_sweep=file)

    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(InputError, match="is no cache sweep"):
        report(tmp_path / "no.json")
    with pytest.raises(InputError, match="a cache sweep of version 7, this release reads 1"):
        report(sweep_file(tmp_path / "new.json", version=7))
    changed = sweep_file(tmp_path / "changed.json")
    changed.write_text(changed.read_text().replace("5%", "6%", 1))
    with pytest.raises(InputError, match="has changed since it was written"):
        report(changed)
    with pytest.raises(OptionsError, match="the cache sweep is of the table 111111111111 and the result"):
        report(sweep_file(tmp_path / "other.json", fingerprint="1" * 64))
    assert not (tmp_path / "r.html").exists()


def test_a_store_or_trace_of_another_table_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"the store is of the table .* and the result .* of 000000000000"):
        ooc_mdp.write_report(made_result((32, 32)), tmp_path / "r.html", table=place / "maze.store")
    with pytest.raises(OptionsError, match="has 16 partitions and the result 4; give the trace of the same solve"):
        ooc_mdp.write_report(made_result((6, 6)), tmp_path / "r.html", trace=place / "maze.csv")
    assert not (tmp_path / "r.html").exists()


def test_the_store_maps_loads_where_the_result_lacks_its_partitions(place: Path) -> None:
    result = ooc_mdp.open_result(place / "maze.result")
    store = ooc_mdp.open_store(place / "maze.store")
    without = replace(result, partitions=None)
    assert "give the store" in " ".join(section(sections_of(without), "State space").sentences)
    with_store = section(sections_of(without, store), "State space").charts[0][0].options
    assert with_store == section(sections_of(result), "State space").charts[0][0].options
    assert "loads" in with_store


def test_the_command_writes_the_report_next_to_the_result(place: Path) -> None:
    ran = ooc("report", place / "maze.result", "--output", place / "by-command.html", "--trace", place / "maze.csv")
    assert (ran.status, ran.out) == (0, f"{place / 'by-command.html'}\n")
    assert "exists; name another file" in refused("report", place / "maze.result", "-o", place / "by-command.html")
    assert ooc("report", place / "maze.result", "-o", place / "by-command.html", "--overwrite").status == 0
    assert "does not end in .html" in refused("report", place / "maze.result", "-o", place / "r.pdf")


def test_the_command_names_the_report_after_the_result(place: Path) -> None:
    (place / "maze.html").unlink(missing_ok=True)
    assert ooc("report", place / "maze.result").out == f"{place / 'maze.html'}\n"


def test_a_result_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        ooc_mdp.write_report(tmp_path / "r", tmp_path / "r.html")


def test_without_bokeh_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(MissingExtraError, match="report"):
        ooc_mdp.write_report(made_result((6, 6)), tmp_path / "r.html")


def test_statistics_of_nothing_are_reported(tmp_path: Path) -> None:
    result = made_result((2, 2), statistics=SolveStatistics(n_states=4, n_partitions=4), history=history_of(0, 4))
    ooc_mdp.write_report(result, tmp_path / "r.html")
    assert "hit rate 0.0%" in text_of(tmp_path / "r.html")
