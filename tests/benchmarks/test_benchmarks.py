"""Each benchmark runs at toy size, and its figures hold what a reader needs to judge them."""

from __future__ import annotations

import importlib
import runpy
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmark_scripts import figures_of, run_here
from paths import BENCHMARKS, REPOSITORY

import ooc_mdp
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver.recorded_solves import Recorded


@pytest.mark.slow
def test_solves_compares_proved_and_verified_solves(tmp_path):
    arguments = ("--problem", "GW-32x4", "--partitions", "16", "--discount", "0.8", "--machine-shared", "--verify")
    figures = figures_of("solves.py", tmp_path, *arguments, "--methods", "vi,p-eva h2", alone=True)
    assert figures["machine"]["shared"]
    assert "warm" in figures["page_cache"]
    assert [s["method"] for s in figures["solves"]] == ["vi", "p-eva h2"]
    for solve in figures["solves"]:
        assert solve["error_bound"] <= 1e-4
        assert solve["verified"]["holds"]
        assert solve["cache_peak_bytes"] <= solve["cache_bytes"] < solve["table_bytes"]
        assert solve["peak_rss_bytes"] > 10 << 20
    vi, *p_eva = figures["solves"]
    for solve, ratio in zip(p_eva, figures["ratios"], strict=True):
        assert ratio["method"] == solve["method"]
        assert ratio["bytes_read_vi_over_method"] == vi["bytes_read"] / solve["bytes_read"]


def test_solves_asks_for_methods_that_there_are(monkeypatch):
    """Each solve has a process of its own; the others are asked for likewise."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    scope = runpy.run_path(str(BENCHMARKS / "solves.py"))
    assert scope["parse"](()).methods.split(",") == ["vi", "p-eva joint", "p-eva h1", "p-eva h2"]
    exact = scope["parse"](("--exact",)).methods.split(",")
    for name in {*exact, *scope["METHODS"]}:
        SolveOptions(0.9, **scope["METHODS"][name])


@pytest.mark.slow
def test_executors_compares_ways_that_write_the_same_store(tmp_path):
    arguments = ("--problem", "mountain-car:12,12:4", "--repeat", "1", "--workers", "1", "--machine-shared")
    (case,) = figures_of("executors.py", tmp_path, *arguments, alone=True)["cases"]
    assert case["equal_fingerprints"]
    assert [way["way"] for way in case["ways"]] == ["serial", "threads", "dask"]
    assert all(way["median_seconds"] > 0 and way["median_processor_seconds"] > 0 for way in case["ways"])


@pytest.mark.slow
def test_memory_plan_compares_the_peak_with_the_printed_plan(tmp_path):
    arguments = ("--sizes", "2MB", "--cases", "random:vi", "--partitions", "8", "--cache", "1MiB", "--repeat", "1")
    figures = figures_of("memory_plan.py", tmp_path, *arguments, alone=True)
    (solve,) = figures["solves"]
    assert solve["partitions_unread"] == 0
    assert solve["table"]["decoded_bytes"] > solve["planned"]["cache"] == 1 << 20
    assert solve["ratio"] == pytest.approx(solve["peak_rss_bytes"] / sum(solve["planned"].values()))
    assert solve["printed"].startswith("memory plan, RAM: ")


@pytest.mark.slow
def test_plan_compares_each_figure_with_the_solve(tmp_path):
    arguments = ("--stores", "converted:12,gridworld:12", "--caches", "30%", "--partitions", "6", "--discounts", "0.8")
    figures = figures_of("plan.py", tmp_path, *arguments, alone=True)
    assert [solve["kind"] for solve in figures["solves"]] == ["converted", "gridworld"]
    for solve in figures["solves"]:
        assert solve["measured"]["peak_rss_bytes"] == solve["ratios"]["memory"] * solve["planned"]["memory_bytes"]
        assert solve["planned"]["bytes_per_pass"] > 0
        assert all(factor is None or factor >= 1.0 for factor in solve["outside"].values())
    assert set(figures["missed"]) == set(figures["aims"]) == {"memory", "bytes", "seconds"}


@pytest.mark.slow
def test_solves_are_recorded_as_plans_read_them(tmp_path):
    asked = ("--stores", "converted:12", "--caches", "30%,100%", "--partitions", "6", "--discounts", "0.8")
    lines = run_here("record_solves.py", *asked, temporary=tmp_path).splitlines()
    part, whole = [eval(line.strip(), {"Recorded": Recorded})[0] for line in lines]
    assert [(each.kind, each.n_states, each.cache, each.discount) for each in (part, whole)] == [
        ("converted", 144, 0.3, 0.8),
        ("converted", 144, 1.0, 0.8),
    ]
    assert (0 < part.partitions_read < 6, part.passes >= 1.0, whole.passes) == (True, True, 1.0)


@pytest.mark.slow
def test_memory_plan_takes_a_control_problem_on_a_grid(tmp_path):
    arguments = ("--problem", "mountain-car", "--grid", "60,60", "-p", "mass=1.1", "--cache", "10%", "--repeat", "1")
    figures = figures_of("memory_plan.py", tmp_path, *arguments, "--discount", "0.9", "--residual", "1e-3", alone=True)
    (solve,) = figures["solves"]
    assert solve["parameters"] == {"mass": "1.1", "grid": "60,60"}
    assert (solve["table"]["states"], solve["outcome"]) == (3600, "residual_reached")
    assert solve["generation"]["seconds"] > 0
    assert solve["ratio"] == pytest.approx(solve["peak_rss_bytes"] / sum(solve["planned"].values()))


SMALL = "mountain-car:40;single-pendulum:40:hold=0;single-pendulum:40:hold=1;double-pendulum:6:hold=0;double-pendulum:6"
LARGER = "double-pendulum:11"


@pytest.mark.slow
def test_convergence_reads_named_states_on_nested_grids(tmp_path):
    figures = figures_of("convergence.py", tmp_path, "--cases", "mountain-car,single-pendulum-0", "--halvings", "2")
    for case in figures["cases"]:
        assert len(case["grids"]) == 3
        assert sum(state["named"] for state in case["states"]) == 10
        assert case["all_shrink"]
        for state in case["states"]:
            a, b, c = state["values"]
            assert state["differences"] == pytest.approx([b - a, c - b])
    car, pendulum = figures["cases"]
    assert [grid["grid"] for grid in pendulum["grids"]] == [[40, 41], [80, 81], [160, 161]]
    assert car["states"][0]["state"] == pytest.approx([-0.5, 0.0])


def test_the_documented_convergence_is_that_of_the_kept_figures():
    """Each line of the tables is printed again from the figures."""
    text = (REPOSITORY / "benchmarks" / "notes" / "2026-11-grid-convergence.md").read_text()
    kept = sorted((REPOSITORY / "benchmarks" / "results").glob("convergence-*.json"))
    assert len(kept) == 6
    for file in kept:
        assert run_here("convergence.py", "--table", file).strip() in text, file.name


@pytest.mark.slow
def test_solves_counts_loads_of_every_method_against_the_cache(tmp_path):
    arguments = ("--problem", "GW-16x4", "-p", "seed=1", "-p", "scramble=0.1", "--partitions", "8", "--exact")
    asked = ("--cache", "25%,100%", "--epsilon", "0.1", "--discount", "0.8", "--methods", "vi,p-eva joint")
    figures = figures_of("solves.py", tmp_path, *arguments, *asked)
    assert len(figures["solves"]) == 8
    for solve in figures["solves"]:
        assert solve["outcome"] == "proved"
        assert solve["error_bound"] <= 0.1
        if solve["cache"] == "100%":
            assert solve["loads_per_partition"] <= 1


@pytest.mark.slow
def test_coupling_compares_methods_and_stopping_rules(tmp_path):
    arguments = ("--toy", "--cases", "random-0.99,car-1", "--stopping-discounts", "0.8")
    figures = figures_of("coupling.py", tmp_path, *arguments, "--methods", "vi,p-eva,policy-iteration,auto")
    assert [t["case"] for t in figures["tables"]] == ["random-0.99", "car-1"]
    for table in figures["tables"]:
        assert [s["asked"] for s in table["solves"]] == ["vi", "p-eva", "policy-iteration", "auto"] * 2
        for solve in table["solves"]:
            if "epsilon" in solve["target"]:
                assert solve["outcome"] == "proved"
                assert solve["error_bound"] <= 1e-3
            else:
                assert solve["outcome"] == "residual_reached"
                assert solve["residual_bound"] <= 1e-4
            rows = solve["asked"] == "policy-iteration"
            assert (solve["policy_evaluations"] > 0) == rows or solve["asked"] == "auto"
            assert (solve["rows_bytes"] > 0) == rows or solve["asked"] == "auto"
            assert bool(solve["remarks"]) == (solve["asked"] == "auto")
    (found,) = figures["stopping"]
    rules = {rule["rule"]: rule for rule in found["rules"]}
    assert rules["shifted"]["sweeps"] <= rules["span"]["sweeps"] <= rules["plain"]["sweeps"]
    slack = found["reference_error_bound"]
    assert rules["shifted"]["error_with_best_constant"] <= 1e-3 + slack
    assert rules["values"]["error"] <= 1e-3 + slack
    assert rules["plain"]["error"] <= 0.5e-3 + slack
    for solve in found["solves"]:
        assert solve["outcome"] == "proved"
        assert solve["error"] <= solve["error_bound"] + slack <= 1e-3 + slack


def test_the_documented_comparison_of_methods_is_that_of_the_kept_figures():
    kept = REPOSITORY / "benchmarks" / "results" / "coupling.json"
    printed = run_here("coupling.py", "--document", kept).split("\n\n")
    assert len(printed) == 3
    text = (REPOSITORY / "benchmarks" / "notes" / "2026-11-policy-iteration.md").read_text()
    for table in printed:
        assert table.strip() in text, table


def test_load_costs_compares_reading_a_partition_with_computing_it(tmp_path):
    arguments = ("--problem", "mountain-car:12,12", "--partitions", "4,9", "--loads", "2")
    costs = figures_of("load_costs.py", tmp_path, *arguments)["costs"]
    assert [(c["partitions"], c["source"]) for c in costs] == [
        (n, source) for n in (4, 9) for source in ("warm store", "cold store", "recomputed")
    ]
    for cost in costs:
        assert 0 < cost["seconds"]["min"] <= cost["seconds"]["median"] <= cost["seconds"]["max"]
        assert cost["seconds"]["repeats"] == 2
        assert cost["table_bytes"] > cost["states"] / cost["partitions"]


@pytest.mark.slow
def test_several_workers_agree_with_one_process_though_one_of_them_is_killed(tmp_path):
    arguments = ("--grid", "40,40", "--partition-grid", "6,6", "--workers", "2", "--kills", "1", "--copies", "0.1")
    placement = ("--placement", "random")
    figures = figures_of("several_workers.py", tmp_path, *arguments, *placement, alone=True)
    assert figures["agree"]
    two = figures["workers"]["2"]
    assert two["outcome"] == figures["one_process"]["outcome"] == "proved"
    assert len(two["workers"]) == 2
    assert all(worker["loads"] > 0 and worker["messages"] > 0 for worker in two["workers"])
    (killed,) = figures["kills"]
    assert killed["right"]


@pytest.mark.slow
def test_several_workers_leave_a_problem_without_a_grid_to_one_of_them(tmp_path):
    random = ("--problem", "random", "--grid", "", "--partition-grid", "4", "-p", "states=400", "-p", "actions=3")
    figures = figures_of("several_workers.py", tmp_path, *random, "-p", "successors=4", "--workers", "2", alone=True)
    assert figures["agree"]
    assert sorted(worker["loads"] > 0 for worker in figures["workers"]["2"]["workers"]) == [False, True]


@pytest.mark.slow
def test_recompute_compares_a_store_with_the_problem_itself(tmp_path):
    arguments = ("--problem", "mountain-car:12,12:p-eva:1e-2", "--partitions", "9", "--repeat", "1", "--cache", "50%")
    (compared,) = figures_of("recompute.py", tmp_path, *arguments, alone=True)["problems"]
    assert [s["source"] for s in compared["solves"]] == ["warm store", "cold store", "recomputed"]
    for solve in compared["solves"]:
        assert solve["error_bound"] <= 1e-2
        assert solve["loads"] >= 9
        assert solve["load_seconds"] > 0
    *stores, recomputed = compared["solves"]
    assert recomputed["bytes_read"] == 0 < min(s["bytes_read"] for s in stores)
    assert recomputed["first_pass_seconds"] > 0
    assert compared["break_even_bytes_per_second"] > 0


@pytest.mark.slow
def test_solves_compares_the_orders_of_the_sweeps(tmp_path):
    arguments = ("--problem", "gridworld", "-p", "height=16", "-p", "width=16", "-p", "successors=4", "--cache", "100%")
    orders = ("--orders", "forward,alternating,voted", "--methods", "vi,p-eva joint")
    figures = figures_of("solves.py", tmp_path, *arguments, *orders, "--partitions", "4", "--epsilon", "0.1")
    assert len(figures["solves"]) == 6
    assert {s["sweep_order"] for s in figures["solves"]} == {"forward", "alternating", "voted"}
    for solve in figures["solves"]:
        assert solve["outcome"] == "proved"
        assert solve["backups_per_state"] == solve["backups"] / 256
    forward, alternating, _ = (s for s in figures["solves"] if s["method"] == "vi")
    assert forward["backups"] == alternating["backups"], "a visit of value iteration is one sweep"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_reading_measures_every_way_cold_and_warm_and_every_codec_of_every_field(device):
    arguments = ("--table", "mountain-car:60,60", "--partitions", "9", "--threads", "1,2", "--seconds", "0.02")
    with tempfile.TemporaryDirectory() as folder:  # on a disk: what is in memory is never cold
        figures = figures_of("engine/reading.py", Path(folder), *arguments, "--device", device, alone=True)
    (table,) = figures["tables"]
    on_device = {r["way"] for r in table["readings"] if "on the device" in r["gives"]}
    assert len(on_device) == 2
    skipped = {r["way"] for r in table["readings"] if r.get("skipped") == "needs a CUDA device"}
    assert skipped == (on_device if device == "cpu" else set())
    measured = [r for r in table["readings"] if "skipped" not in r]
    assert {(r["page_cache"], r["threads"]) for r in measured} == {(c, n) for c in ("cold", "warm") for n in (1, 2)}
    assert {"bytes", "values", "table"} <= {r["gives"] for r in measured}
    for r in measured:
        assert r["partitions_read"] > 0
        assert r["page_cache"] == "warm" or r["partitions_read"] <= 9, "a cold partition is read once"
        assert r["stored_bytes"] <= r["table_bytes"]
        assert r["stored_bytes_per_second"] == pytest.approx(r["stored_bytes"] / r["seconds"])
    fields = {"successors": "row-delta", "probabilities": "fixed24-delta2", "rewards": None}
    assert {c["field"]: c["encoding"] for c in table["codecs"]} == fields | {"durations": "float32-delta2"}
    for c in table["codecs"]:
        assert c["ratio"] == c["value_bytes"] / c["stored_bytes"]
        assert c["codec"] != "uncompressed" or c["ratio"] == 1


def test_the_documented_ways_to_read_are_those_of_the_kept_figures():
    """Each line of the tables is printed again from the figures."""
    text = (REPOSITORY / "benchmarks" / "notes" / "2026-11-reading.md").read_text()
    for kept in sorted((REPOSITORY / "benchmarks" / "results").glob("reading-*.json")):
        for table in run_here("engine/reading_tables.py", kept).strip().split("\n\n"):
            assert table in text, kept.name


@pytest.mark.slow
def test_policies_counts_the_starts_that_reach_the_goal(tmp_path):
    arguments = ("--cases", "mountain-car:60;single-pendulum:40:hold=1", "--starts", "4", "--residual", "1e-3")
    figures = figures_of("policies.py", tmp_path, *arguments, "--policies", "lookahead,vote", "--seconds", "10")
    assert [case["states"] for case in figures["cases"]] == [3600, 1600]
    for case in figures["cases"]:
        assert case["solve"]["outcome"] == "residual_reached"
        assert [run["policy"] for run in case["policies"]] == ["lookahead", "vote"]
        for run in case["policies"]:
            assert len(run["runs"]) == 5
            assert run["successes"] == sum(each["success"] for each in run["runs"][1:])
            assert run["promising_successes"] <= run["promising_starts"] <= run["starts"] == 4
    assert figures["cases"][0]["policies"][0]["rest_succeeds"]
    assert figures["cases"][1]["parameters"]["hold"] == 1.0


@pytest.mark.slow
def test_large_control_generates_solves_and_verifies(tmp_path):
    arguments = (
        "--grid",
        "7,7,7,7",
        "--partition-grid",
        "2,2,2,2",
        "--cache",
        "25%",
        "--device",
        "cpu",
        "--sweeps",
        "4",
    )
    figures = figures_of(
        "large_control.py", tmp_path, *arguments, "--epsilon", "0.05", "--machine-shared", "--folder", str(tmp_path)
    )
    assert figures["store"]["partitions"] == 16
    assert figures["solve"]["outcome"] == "proved"
    assert figures["solve"]["method"] == "vi, 4 sweeps a visit"
    assert figures["error_over_value_range"] == figures["solve"]["error_bound"] / figures["value_range"]
    assert figures["verified"]["holds"]


def engine_module(name: str) -> ModuleType:
    """A module of benchmarks/engine, whose scripts import each other by name."""
    folder = str(REPOSITORY / "benchmarks" / "engine")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


PEERS = {"quantecon", "storm", "mdpsolver", "petsc", "pymdptoolbox", "mdpax", "scipy", "numba"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow) for c in ("gridworld", "random-0.999", "mountain-car")]
)
def test_cpu_peers_reach_the_same_measured_error_as_a_solve_from_disk(tmp_path, case):
    """Peers that are not installed are listed as missing; for the others the car's discounts are folded into one."""
    figures = figures_of(
        "engine/cpu_peers.py", tmp_path, "--toy", "--cases", case, "--tries", "4", "--repeat", "1", alone=True
    )
    there = {solver["solver"] for compared in figures["cases"] for solver in compared["solvers"]} - {"ooc-mdp"}
    assert there | set(figures["missing_peers"]) == PEERS
    assert not there & set(figures["missing_peers"])
    assert len(figures["cases"]) == (2 if case == "mountain-car" else 1)
    for compared in figures["cases"]:
        ((kind, size),) = compared["target"].items()
        for solver in compared["solvers"]:
            assert solver["outcome"] == "reached", solver
            measured = solver["measured"]
            assert min(measured["shifted_error_bound"], measured["residual"] if kind == "residual" else np.inf) <= size
            assert solver["solve_seconds"] > 0
        ours = compared["solvers"][0]
        assert ours["solver"] == "ooc-mdp"
        assert ours["measured"]["error_bound"] <= ours["claimed_error_bound"]


@pytest.mark.parametrize(
    ("problem", "parameters"), [("gridworld", {"height": 9, "width": 8}), ("mountain-car", {"grid": "9,8"})]
)
def test_the_error_of_a_peers_values_is_the_one_that_verify_finds(tmp_path, problem, parameters):
    tables = engine_module("cpu_tables")
    store, result, values = tmp_path / "store", tmp_path / "result", tmp_path / "values.npy"
    ooc_mdp.generate(problem, store, parameters, partitions=6, device="cpu")
    solution = ooc_mdp.solve(store, discount=0.9, epsilon=1e-2, device="cpu", output=result)
    optimum = ooc_mdp.solve(store, discount=0.9, epsilon=1e-7, device="cpu").values
    tables.export(str(store), str(tmp_path / "arrays"), 0.9)
    np.save(values, solution.values)
    measured, verified = tables.measure(str(tmp_path / "arrays"), str(values)), ooc_mdp.verify(store, result)
    assert measured["residual"] == pytest.approx(verified.residual, rel=1e-9, abs=1e-15)
    # verify takes the result's policy for the bound from below, measure the actions that make it smallest.
    assert measured["shifted_error_bound"] <= measured["error_bound"] <= verified.error_bound * (1 + 1e-6)
    assert measured["error_bound"] >= float(np.abs(solution.values - optimum).max()) - 1e-7
    np.save(values, solution.values + 3.0)
    moved = tables.measure(str(tmp_path / "arrays"), str(values))
    assert moved["shifted_error_bound"] == pytest.approx(measured["shifted_error_bound"], rel=1e-6, abs=1e-9)
    assert moved["error_bound"] == pytest.approx(3.0, abs=2 * measured["error_bound"])


def test_a_benchmark_ends_a_process_at_its_time_limit():
    engine_module("cpu_peers")
    import measuring

    finished = measuring.run([sys.executable, "-c", "import time; time.sleep(600)"], limit=0.3)
    assert finished.killed
    assert finished.seconds < 600
    assert not measuring.run([sys.executable, "-c", ""], limit=600).killed


@pytest.mark.gpu
def test_decode_device_times_partitions_that_equal_the_cpus(tmp_path):
    arguments = (
        "--grid",
        "64",
        "--partition-shape",
        "32,32",
        "--partitions",
        "3",
        "--under-way",
        "1,2",
        "--repeat",
        "1",
    )
    figures = figures_of("engine/decode_device.py", tmp_path, *arguments, "--machine-shared")
    assert [r["in_flight"] for r in figures["rounds"]] == [1, 2]
    assert figures["stored_bytes"] < figures["decoded_bytes"]
    assert all(r["seconds"] > 0 for r in figures["rounds"])
    assert figures["kernel_seconds"]["decode_streams"] > 0


def test_stages_compares_skewed_stages_with_one_for_each_load(tmp_path):
    arguments = ("--scale", "200", "--blocks", "6", "--stages", "12", "--caches", "30%", "--repeat", "1")
    figures = figures_of("stages.py", tmp_path, *arguments)
    (cache,) = figures["caches"]
    assert cache["equal"]
    assert cache["skewed"]["bytes_decoded"] <= cache["one"]["bytes_decoded"]
    assert 0 < cache["skewed"]["loads_per_partition_and_stage"] <= 1
