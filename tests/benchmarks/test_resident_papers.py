"""The papers whose models stay resident, at toy size: Quintanilla and Kolisetti, and Inamoto, Higami and Kobayashi."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark_scripts import figures_of, run_here
from paths import BENCHMARKS
from tiled_engine import emulated

PAPERS = {
    "quintanilla_kolisetti": ("made with", "claims", "tables 1 and 2", "tables 3 to 7", "default kernel"),
    "inamoto": ("made with", "claims", "figure 1", "figure 2", "bound on sweeps", "default kernel"),
}
"""Tables by folder."""


def toy(paper: str, folder: Path, *more: str) -> dict:
    return figures_of(f"papers/{paper}/run.py", folder, "--toy", "--repeat", "1", *more)


@pytest.mark.slow
def test_each_transition_kernel_makes_the_sequential_algorithm_s_sweeps(tmp_path):
    figures = toy("quintanilla_kolisetti", tmp_path, "--world", "Sample1", "--world", "Sample3")
    assert list(figures["worlds"]) == ["Sample1", "Sample3"]
    for world in figures["worlds"].values():
        assert world["transitions"] == 12 * world["states"] - 8
        assert [run["kernel"] for run in world["runs"]] == ["transition-atomics", "transition-segments", "plain"]
        for run in world["runs"]:
            assert run["outcome"] == "converged"
            assert run["passes"] == world["sequential"]["sweeps"]
            assert run["error_percent"] < 1e-10
            assert run["residual"] <= 0.8e-3
        assert world["default"]["residual"] <= 0.8e-3
        heat = world["heat_map"]
        assert {len(row) for row in heat["rows"]} == {len(heat["rows"])} == {world["side"]}
        assert heat["smallest_value"] == heat["low"] < heat["high"] == heat["largest_value"]


@pytest.mark.slow
def test_each_technique_stops_at_its_look_and_the_bound_on_sweeps_suffices(tmp_path):
    figures = toy("inamoto", tmp_path, "--interval", "7")
    assert list(figures["worlds"]) == ["animat", "mountain-car"]
    for world in figures["worlds"].values():
        passes = {run["technique"]: run["passes"] for run in world["runs"]}
        assert passes[1] == passes[3] == world["device_test"]["passes"] <= world["sweep_bound"] + 1
        assert passes[2] == passes[4] == -(-passes[1] // 7) * 7
        for run in [*world["runs"], world["default"]]:
            assert run["residual"] <= 0.9e-4
    # (0.1 * 0.0018) / (2 * 0.9 * C) = 1e-4 / C: ln(2e5) / -ln 0.9 = 115.85 for C = 20, ln(1e4) / -ln 0.9 = 87.4 for 1.
    assert [world["sweep_bound"] for world in figures["worlds"].values()] == [116, 88]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """An emulated device in the place of cuda:0."""
    monkeypatch.setattr("ooc_mdp.backends.cuda.device.CudaDevice", lambda number: emulated())
    return "--device", "cuda:0"


@pytest.mark.slow
def test_quintanilla_and_kolisetti_s_tables_come_from_a_device(tmp_path, device):
    figures = toy("quintanilla_kolisetti", tmp_path, *device, "--world", "Sample1")
    (world,) = figures["worlds"].values()
    steps = ["summation, atomics", "summation, segments", "update, atomics", "update, segments", "sweep, plain"]
    assert list(world["launches"]) == steps
    blocks = [None, [8, 256], [5, 384], [4, 512], [2, 768], [2, 1024], [8, 64]]
    assert [run["configuration"] for run in world["runs"]] == [*blocks, *blocks, None]
    for run in world["runs"]:
        assert run["passes"] == world["sequential"]["sweeps"]
        assert run["error_percent"] < 1e-10
        assert run["seconds"]["min"] > 0
    assert world["default"]["what"] == "tiles"
    plots = drawn("quintanilla_kolisetti", tmp_path)
    assert plots == ["heat-maps.svg", "tables-3-7.svg"]


@pytest.mark.slow
def test_inamoto_s_figures_come_from_a_device(tmp_path, device):
    figures = toy("inamoto", tmp_path, *device, "--problem", "mountain-car")
    (world,) = figures["worlds"].values()
    runs = [(run["block"], run["technique"]) for run in world["runs"]]
    assert runs == [(block, technique) for block in (512, 256, 64, 32, 16, 4) for technique in (1, 2, 3, 4)]
    assert {run["passes"] for run in world["runs"]} == {89, 96}
    assert world["default"]["what"] == "tiles"
    assert drawn("inamoto", tmp_path) == ["figure-2.svg"]


def drawn(paper: str, folder: Path) -> list[str]:
    """Names of the plots."""
    pytest.importorskip("matplotlib")
    plots = folder / "plots"
    run_here(f"papers/{paper}/plots.py", folder / "figures.json", "--folder", plots)
    assert all(2 << 10 < file.stat().st_size < 200 << 10 for file in plots.iterdir())
    return sorted(file.name for file in plots.iterdir())


@pytest.mark.parametrize("paper", PAPERS)
def test_each_table_has_its_place_in_the_readme_also_for_a_run_that_was_cut_short(tmp_path, paper):
    (tmp_path / "run").mkdir()
    figures = toy(paper, tmp_path / "run", "--budget", "0")
    assert len(figures["left_out"]) >= 5
    file, readme = tmp_path / "run" / "figures.json", tmp_path / "README.md"
    printed = run_here(f"papers/{paper}/run.py", "--document", file)
    text = (BENCHMARKS / "papers" / paper / "README.md").read_text()
    readme.write_text(text)
    run_here(f"papers/{paper}/run.py", "--document", file, "--into", readme)
    for title in PAPERS[paper]:
        assert f"<!-- {title} -->\n" in text
        assert f"{title}\n\n" in printed
    for table in printed.strip().split("\n\n"):
        assert table in readme.read_text() or table in PAPERS[paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_the_documented_tables_are_those_of_the_kept_figures(paper):
    text = (BENCHMARKS / "papers" / paper / "README.md").read_text()
    for kept in sorted((BENCHMARKS / "results").glob(f"{paper}*.json")):
        assert json.loads(kept.read_text())["benchmark"] == paper
        for table in run_here(f"papers/{paper}/run.py", "--document", kept).strip().split("\n\n"):
            assert table in text or table in PAPERS[paper], kept.name
