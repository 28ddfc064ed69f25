"""The memory plan, printed before a solve, is what the solve then takes: measured peak against arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import environment, ooc
from small_mdps import Case, make_store
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp.options import format_bytes

CODE = """
import sys
from ooc_mdp.cli import main
try:
    main()
finally:
    with open("/proc/self/status") as status:
        print(next(line.split()[1] for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""
CACHE = 16 << 20

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


def peak_and_plan(
    store: Path, *options: object, asked: Sequence[object] = ("--discount", 0.9)
) -> tuple[int, dict[str, int], str]:
    """Peak bytes of a solve in a process of its own, what it planned, and what it said."""
    line = [sys.executable, "-c", CODE, "solve", store, *asked, "--device", "cpu", "--json", *options]
    done = subprocess.run(
        [str(word) for word in line], env=environment(), capture_output=True, text=True, check=True, timeout=600
    )
    return int(done.stderr.split()[-1]) * 1024, json.loads(done.stdout)["memory_plan"]["host"], done.stderr


def test_the_plan_is_printed_and_adds_up(tmp_path):
    made = ooc_mdp.generate("GW-64x4", tmp_path / "s", {"seed": 1}, partitions=16)
    peak, plan, said = peak_and_plan(tmp_path / "s", "--cache", "30%", "--output", tmp_path / "r", "--verbose")
    table = int(made.facts.partition_bytes.sum())
    assert plan["values"] == 8 * 64 * 64
    assert table * 0.3 <= plan["cache"] <= table * 0.3 + 1
    assert f"= {format_bytes(sum(plan.values()))}\n" in said
    assert all(f"{name} {format_bytes(size)}" in said for name, size in plan.items())
    assert peak <= 1.2 * sum(plan.values())


@pytest.mark.slow
def test_undiscounted_totals_take_what_their_plan_says(tmp_path):
    """A walk that costs 1 a step; the loops are compiled by a first solve."""
    walk = Model((*(State((Action(-1.0, {s + 1: 0.6, max(s - 1, 0): 0.4}),) * 3) for s in range(999)), State(())))
    store = make_store(Case(walk, "max", "float64", 10), tmp_path / "s")
    options = ("--cache", "30%", "--output", tmp_path / "r", "--overwrite", "--verbose")
    peak_and_plan(tmp_path / "s", *options, asked=("--total",))
    peak, plan, said = peak_and_plan(tmp_path / "s", *options, asked=("--total",))
    assert plan["lower and upper values"] == 16 * store.n_states
    assert f"= {format_bytes(sum(plan.values()))}\n" in said
    assert peak <= 1.2 * sum(plan.values())


@pytest.mark.slow
@pytest.mark.parametrize("output", [True, False])
def test_a_finite_horizon_takes_what_its_plan_says(tmp_path, output):
    made = ooc_mdp.generate("GW-896x4", tmp_path / "s", {"seed": 1}, partitions=64)
    asked = ("--horizon", 60, "--keep-stages", "0,30")
    where = ("--output", tmp_path / "r") if output else ()
    peak, plan, said = peak_and_plan(tmp_path / "s", "--cache", CACHE, *where, asked=asked)
    assert plan["values of two stages"] == 16 * made.n_states
    assert plan.get("policies of all stages, without an output", 0) == (0 if output else 76 * made.n_states)
    assert f"memory plan, RAM: {format_bytes(sum(plan.values()))}\n" in said
    assert 0.8 * sum(plan.values()) <= peak <= 1.2 * sum(plan.values())


def test_a_cache_larger_than_the_table_is_planned_as_the_table(tmp_path):
    made = ooc_mdp.generate("GW-12x4", tmp_path / "s")
    figures = ooc("solve", tmp_path / "s", "--discount", 0.5, "--device", "cpu", "--cache", "64GiB", "--json").figures
    assert figures["memory_plan"]["host"]["cache"] == int(made.facts.partition_bytes.sum())
    assert figures["cache_bytes"] == 64 << 30


@pytest.mark.slow
def test_the_peak_stays_within_a_fifth_of_the_plan_whatever_the_size_of_the_table(tmp_path):
    peaks = []
    for size in (448, 896):
        store = tmp_path / str(size)
        made = ooc_mdp.generate(f"GW-{size}x4", store, {"seed": 1}, partitions=64)
        assert int(made.facts.partition_bytes.sum()) > 2 * CACHE
        peak, plan, _ = peak_and_plan(store, "--cache", CACHE, "--output", tmp_path / f"{size}.result")
        assert plan["cache"] == CACHE
        assert peak <= 1.2 * sum(plan.values())
        assert peak >= 0.8 * sum(plan.values())
        peaks.append(peak - 32 * size * size)  # values, policy and their copies grow with the states, not the table
    assert peaks[1] - peaks[0] < CACHE


@pytest.mark.slow
def test_the_peak_of_policy_iteration_stays_within_a_fifth_of_the_plan(tmp_path):
    """Its rows are most of what it takes: the solver's vectors among them, near discount 1."""
    made = ooc_mdp.generate("random", tmp_path / "s", {"states": 800_000, "actions": 2, "seed": 1}, partitions=64)
    assert int(made.facts.partition_bytes.sum()) > 2 * CACHE
    near_1 = ("--method", "policy-iteration", "--cache", CACHE, "--discount", 0.99, "--residual", 1e-1)
    peak, plan, _ = peak_and_plan(tmp_path / "s", *near_1)
    assert plan["rows of the policy"] > sum(plan.values()) / 5
    assert 0.8 * sum(plan.values()) <= peak <= 1.2 * sum(plan.values())
