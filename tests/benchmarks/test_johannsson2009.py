"""The benchmark of Johannsson's thesis: toy runs, its baseline, its kernels by emulation, and the documented tables."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmark_scripts import figures_of, run_here
from emulated_device import EmulatedDevice
from paths import BENCHMARKS, REPOSITORY

from ooc_mdp.backends.cuda.simple.backend import SimpleBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import SIMPLE_KERNELS
from ooc_mdp.reference import schedules

FOLDER = BENCHMARKS / "papers" / "johannsson2009"
SCRIPT = "papers/johannsson2009/run.py"
KERNELS = ["plain", "bdi", "bdi-buffered", "bdi-priority", "rdi", "rdi-actions"]


def benchmark(name: str) -> ModuleType:
    """A module of the folder, whose scripts import each other by name."""
    for folder in (FOLDER, FOLDER.parent, BENCHMARKS):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return importlib.import_module(name)


def figures_with(folder: Path, *parts: str) -> dict:
    chosen = [word for part in parts for word in ("--part", part)]
    return figures_of(SCRIPT, folder, "--toy", "--repeat", "3", *chosen)


def test_sweeps_of_every_kernel_stand_beside_those_of_the_baseline(tmp_path):
    figures = figures_with(tmp_path, "worlds", "locality")
    assert [w["name"] for w in figures["worlds"]] == ["GW-16x16x1", "GW-16x16x4", "GW-32x32x1", "GW-32x32x4"]
    for world in figures["worlds"]:
        by = {run["what"]: run for run in world["runs"]}
        assert list(by) == ["sequential", *KERNELS]
        for run in by.values():
            assert run["outcome"] == "residual_reached"
            assert run["residual"] <= 1e-4 + 2e-5 * (run["what"] == "sequential"), "float32 rounds values of 200"
        assert by["plain"]["sweeps"] == by["rdi"]["sweeps"] > by["sequential"]["sweeps"]
        assert by["bdi"]["sweeps"] == by["bdi-buffered"]["sweeps"] == 8 * by["bdi"]["passes"]
        assert "seconds" not in by["bdi"], "a schedule's seconds say nothing"
        seconds = by["sequential"]["seconds"]
        assert seconds["min"] <= seconds["mean"] <= seconds["max"]
    assert [w["random"] for w in figures["locality"]] == [0.0, 0.5]

    printed = run_here(SCRIPT, "--document", tmp_path / "figures.json")
    assert "| bdi: mean speed-up of a solve, table 6.2 | 11.7 | - | - | not measured |" in printed
    assert "| rdi needs more sweeps than the baseline | 12 of 12 worlds | 4 of 4 |" in printed


@pytest.mark.slow
def test_every_part_runs_and_fills_its_place_and_its_plot(tmp_path):
    figures = figures_with(tmp_path)
    assert [f["what"] for f in figures["default"]] == ["CPU engine"] * 4
    (large,) = figures["large"]
    assert large["thesis_bytes"] == 48**2 * (8 + 16 * 16)
    resident, streamed = large["runs"][-2:]
    assert (resident["what"], streamed["what"]) == ("CPU engine, resident", "CPU engine, cache of 22%")
    assert {run["outcome"] for run in large["runs"]} == {"residual_reached"}
    for test in figures["own-test"]:
        assert test["passes_by_change"] <= test["passes_by_residual"]
    assert {(f["states"], f["u"]) for f in figures["priority"]} == {(2, 0.0), (2, 1.0), (5, 0.0), (5, 1.0)}
    assert figures["left_out"] == []

    readme = tmp_path / "README.md"
    readme.write_text((FOLDER / "README.md").read_text())
    run_here(SCRIPT, "--document", tmp_path / "figures.json", "--into", readme)
    text = readme.read_text()
    assert "GW-48x48x4" in text
    assert "GW-64x64x1" not in text.partition("## Table 6.1")[2].partition("## Table 6.2")[0]

    pytest.importorskip("matplotlib")
    run_here("papers/johannsson2009/plots.py", tmp_path / "figures.json", "--folder", tmp_path)
    drawn = sorted(file.name for file in tmp_path.glob("*.svg"))
    assert drawn == [f"figure-6.{n}.svg" for n in range(1, 8)]
    assert "<svg" in (tmp_path / "figure-6.3.svg").read_text()


def test_what_the_budget_has_no_time_for_is_named(tmp_path):
    figures = figures_of(SCRIPT, tmp_path, "--toy", "--part", "own-test", "--budget", "0")
    assert figures["own-test"] == []
    assert figures["left_out"][0] == "own-test, GW-16x16x1: the budget of 0 s was spent"


def test_the_table_in_tiles_is_the_same_world():
    worlds = benchmark("worlds")
    rows = worlds.Rows.of(worlds.World(32, 4))
    table = rows.in_tiles().read(0)[0]
    assert table.successors.size == 32 * 32 * 4 * 4
    order = rows.source.original_states(0).reshape(4, 8, 2, 16).transpose(0, 2, 1, 3).reshape(-1)
    values = np.random.default_rng(1).normal(size=1024)
    states = np.arange(1024)
    in_tiles = schedules.LocalRows(table, 0.9, 1.0).backup(states, values[order])
    as_stored = schedules.LocalRows(rows.source.read(0)[0], 0.9, 1.0).backup(states, values)
    np.testing.assert_array_equal(in_tiles, as_stored[order])
    assert rows.residual(values) == pytest.approx(np.abs(as_stored - values).max(), rel=1e-12)


def test_the_baseline_sweeps_in_place_in_the_order_of_the_states():
    worlds, sequential = benchmark("worlds"), benchmark("sequential")
    rows = worlds.Rows.of(worlds.World(16, 2))
    solved = sequential.Sequential.of(rows).solve(60.0)
    backup = schedules.LocalRows(rows.source.read(0)[0], 0.9, 1.0).backup
    values = np.zeros(256)
    for _ in range(solved.sweeps):
        for s in range(256):
            values[s] = backup(np.array([s]), values)[0]
    np.testing.assert_allclose(solved.values, values, atol=1e-4, rtol=0)


@pytest.mark.parametrize("word", KERNELS)
def test_a_device_gives_the_sweeps_of_the_schedule_and_seconds(word):
    worlds, experiments = benchmark("worlds"), benchmark("experiments")
    table = worlds.Rows.of(worlds.World(16, 4)).in_tiles()
    kernel = next(kernel for kernel in SIMPLE_KERNELS if kernel.word == word)
    how = {"repeat": 3, "limit": 60.0, "schedule_side": 256}
    there = experiments.Effort(device="cuda:0", **how)
    run = experiments.kernel_run(word, table, there, SimpleBackend(EmulatedDevice(1 << 26), kernel))
    counted = experiments.kernel_run(word, table, experiments.Effort(device="cpu", **how))
    assert (run["outcome"], run["sweeps"]) == (counted["outcome"], counted["sweeps"])
    assert run["seconds"]["repeats"] >= 3
    assert run["sweep_seconds"] > 0


def test_the_documented_tables_are_those_of_the_kept_figures():
    text = (FOLDER / "README.md").read_text()
    kept = [REPOSITORY / "benchmarks" / "results" / f"johannsson2009{name}.json" for name in ("", "-schedules")]
    tables = run_here(SCRIPT, "--document", *kept).strip().split("\n\n")
    assert {"made with", "own test", "priorities", "2048 x 2048", "default kernel", "figure 6.6"} <= set(tables)
    for table in tables:
        assert f"\n{table}\n" in text or f"<!-- {table} -->" in text, table
