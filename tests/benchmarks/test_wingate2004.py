"""The figures of Wingate's thesis run at toy size, and hold what a reader needs to judge them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_scripts import figures_of, run_here


def wingate_figures(folder: Path, *names: str) -> dict:
    wanted = [part for name in names for part in ("--figure", name)]
    return figures_of("papers/wingate2004/run.py", folder, *wanted, "--toy", "--repeat", "1")["figures"]


@pytest.mark.slow
def test_wingate2004_counts_backups_of_each_algorithm_of_the_thesis_and_of_ours(tmp_path):
    figures = wingate_figures(tmp_path, "12.2", "12.6", "12.19")
    assert list(figures) == ["12.1", "12.5", "12.18"], "a figure that shows the same runs brings the other"
    for figure in figures.values():
        for table in figure["tables"]:
            for solve in table["solves"]:
                assert solve["outcome"] == "residual_reached"
                assert solve["backups_per_state"] == solve["backups"] / table["states"]
                assert solve["never_read"] == 0 or solve["variant"] == "joint"
    variants = ["VI", "VI, voting", "H1", "H1, voting", "H2", "H2, voting", "joint"]
    for table in figures["12.1"]["tables"]:
        assert [s["variant"] for s in table["solves"]] == variants
        vi, voted = table["solves"][:2]
        assert voted["backups"] < vi["backups"], "the car's values flow one way, which voting finds"
    one_partition = [t for t in figures["12.18"]["tables"] if t["partitions"] == 1]
    assert all([s["variant"] for s in t["solves"]] == ["VI"] for t in one_partition)
    assert any(t["states_per_partition"] == 1 for t in figures["12.18"]["tables"])


def test_wingate2004_measures_the_extremes_and_the_hybrid_beside_h1_and_h2(tmp_path):
    figures = wingate_figures(tmp_path, "5.2", "5.6", "hybrid")
    cuts = {table["cut"]: table for table in figures["5.2"]["tables"]}
    assert [cuts[cut]["partitions"] for cut in ("VI", "P-EVA, one partition", "P-EVA/1")] == [1, 1, 400]
    ranked = ["H1", "H2", "hybrid"]
    assert [s["variant"] for s in cuts["P-EVA/1"]["solves"]] == ranked
    (whole,) = cuts["P-EVA, one partition"]["solves"]
    assert whole["accesses"] == 1, "one partition of all states is swept until it has converged"
    by_partitions = {table["partitions"]: table["solves"] for table in figures["5.6"]["tables"]}
    assert list(by_partitions) == [1, 4, 16]
    for partitions in (4, 16):
        assert [s["variant"] for s in by_partitions[partitions]] == [*ranked, "joint, forward"]
    h1, h2, hybrid, _ = (s["backups"] for s in by_partitions[16])
    assert hybrid < min(h1, h2), "each meta-partition is a cluster"
    for figure in figures.values():
        for solve in (s for table in figure["tables"] for s in table["solves"]):
            assert solve["outcome"] == "residual_reached"
    (stored,) = figures["hybrid"]["curves"]
    assert list(stored["fixed"]) == ranked
    for name in ("joint", "h1", "h2", "hybrid"):
        assert [s["percent"] for s in stored[name]] == [22]
    assert figures["hybrid"]["thesis"]["source"] == "section 11.1"

    pytest.importorskip("matplotlib")
    plots = tmp_path / "plots"
    run_here("papers/wingate2004/plots.py", tmp_path / "figures.json", "--folder", plots)
    assert sorted(file.name for file in plots.iterdir()) == ["figure-5.2.png", "figure-5.6.png"]


@pytest.mark.slow
def test_wingate2004_draws_cache_curves_policy_and_the_thesis_beside_them(tmp_path):
    figures = wingate_figures(tmp_path, "12.15", "12.20", "target")
    (table,) = figures["12.12"]["tables"]
    assert table["partitions"] == 36
    for solve in table["fixed"].values():
        for scope in ("all", "frontier", "after_first_reading"):
            loads = solve[scope]["loads_per_partition"]
            assert len(loads) == len(table["percent"])
            assert loads == sorted(loads, reverse=True), "a larger cache never loads more"
            assert loads[-1] == pytest.approx(solve[scope]["partitions_accessed"] / 36, abs=1e-4)
    assert figures["12.12"]["thesis"]["all"]["H2"] == {"hit_rate": 0.9092, "loads": 3.08}
    assert [s["percent"] for s in table["joint"]] == [22, 100]
    for solve in table["joint"]:
        assert solve["loads_per_partition"] * 36 == solve["loads"]
    for drawn in figures["12.20"]["tables"]:
        rows = drawn["picture"]["rows"]
        assert {len(row) for row in rows} == {len(rows)}
        thesis_like = drawn["solves"][0]
        dark = sum(row.count("x") for row in rows) / len(rows) ** 2
        assert dark == pytest.approx(thesis_like["states_never_processed"], abs=0.02)
    for solve in figures["target"]["solves"]:
        assert solve["finished"]
        assert solve["loads_per_partition"]["min"] > 0

    pytest.importorskip("matplotlib")
    plots = tmp_path / "plots"
    run_here("papers/wingate2004/plots.py", tmp_path / "figures.json", "--folder", plots)
    assert sorted(file.name for file in plots.iterdir()) == ["figure-12.12.png", "figure-12.20.png"]
    assert all(4 << 10 < file.stat().st_size < 100 << 10 for file in plots.iterdir())


@pytest.mark.slow
def test_wingate2004_counts_what_workers_tell_each_other_and_do_twice(tmp_path):
    pytest.importorskip("distributed")
    figures = wingate_figures(tmp_path, "12.7", "12.9", "12.11")
    assert list(figures) == ["12.7", "12.8", "12.10"]
    (scattered,) = figures["12.7"]["tables"]
    placements = ["voronoi:1", "voronoi:4", "random", "blocks", "attractors:1", "attractors:4"]
    assert [s["placement"] for s in scattered["solves"]] == placements
    by = {s["placement"]: s for s in scattered["solves"]}
    assert by["blocks"]["crossing"] < by["random"]["crossing"]
    assert by["voronoi:1"]["heaviest_share"] > by["attractors:1"]["heaviest_share"], "chance gives one worker more"
    for name, method in (("12.8", "Parallel-P-EVA"), ("12.10", "PSVI")):
        (table,) = figures[name]["tables"]
        assert table["method"] == method
        alone, *together = table["solves"]
        assert alone["messages"]["max"] == alone["bytes_per_state"]["max"] == alone["crossing"] == 0
        assert alone["efficiency"] == alone["work_efficiency"] == alone["heaviest_share"] == 1
        assert [(s["workers"], s["placement"]) for s in together] == [(2, "random"), (2, "blocks")]
        for s in together:
            assert s["outcome"] == "residual_reached"
            assert s["bytes_per_state"]["median"] > 8 * s["crossing"] > 0, (
                "eight bytes for each value that another reads"
            )
            assert 0 < s["busy"]["median"] <= 1
            backups = alone["backups_per_state"]["median"] / s["backups_per_state"]["median"]
            assert s["work_efficiency"] == backups
            assert s["efficiency"] == alone["seconds"]["median"] / s["seconds"]["median"] / 2

    pytest.importorskip("matplotlib")
    plots = tmp_path / "plots"
    run_here("papers/wingate2004/plots.py", tmp_path / "figures.json", "--folder", plots)
    drawn = {file.name: file.stat().st_size for file in plots.iterdir()}
    assert set(drawn) == {f"figure-12.{number}.png" for number in (7, 8, 9, 10, 11)}
    assert min(drawn.values()) > 4 << 10


@pytest.mark.slow
def test_wingate2004_sweeps_the_caches_of_each_problem_with_a_replay_beside_the_solves(tmp_path):
    figures = figures_of("papers/wingate2004/caches.py", tmp_path, "--toy", "--sizes", "22%,50%")["figures"]
    assert list(figures) == ["MCAR", "SAP", "DAP"]
    for found in figures.values():
        sweep = found["sweep"]
        assert sweep["complete"]
        assert [(p["schedule"], p["size"]) for p in sweep["points"]] == [
            (schedule, size) for schedule in ("joint", "exact-h1", "exact-h2", "vi") for size in ("22%", "50%")
        ]
        assert [same["schedule"] for same in sweep["same_accesses"]] == ["exact-h1", "exact-h2", "vi"]
        for same in sweep["same_accesses"]:
            assert all(b <= lru for b, lru in zip(same["belady_loads"], same["lru_loads"], strict=True))
    assert figures["MCAR"]["thesis"]["all"]["H2"] == {"hit_rate": 0.9092, "loads": 3.08}
