"""The memory plan is a promise for uneven partitions, too: the peak of each command against what it printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from command_line import environment
from component_models import write_component
from uneven_models import UNEVEN, shapes, write_uneven

import ooc_mdp
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.io import block_memory
from ooc_mdp.options import parse_bytes
from ooc_mdp.runtime import memory_plan
from ooc_mdp.store import check_store

CODE = """
import sys
from ooc_mdp.cli import main
try:
    main()
finally:
    with open("/proc/self/status") as status:
        print(next(line.split()[1] for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""
SLACK = 20 << 20
CACHES = {"long row": "6MiB", "many actions": "4MiB", "hubs": "2MiB", "empty partitions": "2MiB", "mixed": "3MiB"}

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


@dataclass(frozen=True)
class Ran:
    peak: int
    planned: int
    said: str


def run(*words: object) -> Ran:
    """A command in a process of its own: its peak, and the sum of the plan that it printed."""
    line = [sys.executable, "-c", CODE, *(str(word) for word in words)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    [plan] = re.findall(r"^memory plan, RAM: (?:.* = )?(.*)$", done.stderr, re.MULTILINE)
    return Ran(int(done.stderr.split()[-1]) * 1024, parse_bytes(plan.replace(" ", "")), done.stderr)


@pytest.mark.parametrize("shape", shapes("hubs"))
def test_the_peak_of_every_command_is_within_its_plan(shape: str, tmp_path: Path) -> None:
    model, store, result = tmp_path / "m.npz", tmp_path / "s", tmp_path / "r"
    write_uneven(shape, model)
    solve = ("solve", store, "--discount", 0.5, "--epsilon", 0.1, "--device", "cpu", "--output", result)
    for words in (
        ("convert", model, store, "--partition-size", "64KiB", "--threads", 2),
        (*solve, "--method", "p-eva", "--cache", CACHES[shape]),
        ("verify", store, result),
        ("check", store),
    ):
        ran = run(*words)
        assert ran.peak <= 1.05 * ran.planned + SLACK, f"{words[0]}: {ran.said}"


@pytest.mark.slow
def test_the_plan_counts_what_compiling_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops for three kinds of partitions are compiled, and the compiler keeps some 80 MiB."""
    model, store = tmp_path / "m.npz", tmp_path / "s"
    write_uneven("long row", model)
    run("convert", model, store, "--partition-size", "64KiB", "--threads", 2)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    solve = ("solve", store, "--discount", 0.5, "--epsilon", 0.1, "--device", "cpu", "--cache", "6MiB")
    first, second = run(*solve), run(*solve)
    assert "compiling" in first.said
    assert "compiling" not in second.said
    assert first.planned > second.planned + (50 << 20)
    for ran in (first, second):
        assert ran.peak <= 1.05 * ran.planned + SLACK, ran.said


@pytest.mark.slow
@pytest.mark.parametrize("shape", UNEVEN)
def test_the_peak_at_discount_1_is_within_its_plan(shape: str, tmp_path: Path) -> None:
    model, store, result = tmp_path / "m.npz", tmp_path / "s", tmp_path / "r"
    write_uneven(shape, model, ends=True)
    ooc_mdp.convert(model, store, partition_size="64KiB", threads=1)
    cache = {"long row": "8MiB", "many actions": "6MiB"}.get(shape, CACHES[shape])
    for words in (
        ("solve", store, "--total", "--epsilon", 0.1, "--cache", cache, "--output", result),
        ("verify", store, result),
    ):
        ran = run(*words)
        assert ran.peak <= 1.05 * ran.planned + SLACK, f"{words[0]}: {ran.said}"


@pytest.mark.slow
@pytest.mark.parametrize("rewards", ["zero", "mixed"])
def test_the_peak_with_large_end_components_is_within_the_plan(
    rewards: Literal["zero", "mixed"], tmp_path: Path
) -> None:
    write_component(tmp_path / "m.npz", 600_000, rewards)
    ooc_mdp.convert(tmp_path / "m.npz", tmp_path / "s", partition_size="512KiB", threads=1)
    solve = ("solve", tmp_path / "s", "--total", "--epsilon", 0.1, "--cache", "100%")
    ran = run(*solve, "--output", tmp_path / "r")
    assert ran.peak <= 1.05 * ran.planned + SLACK, ran.said


@pytest.mark.slow
def test_the_peak_of_a_refinement_is_within_what_the_plan_says_of_it(tmp_path: Path) -> None:
    ooc_mdp.generate("GW-512x4", tmp_path / "s", partition_size="1MiB")
    solve = (
        "solve",
        tmp_path / "s",
        "--discount",
        0.9,
        "--cache",
        "8MiB",
        "--method",
        "p-eva",
        "--device",
        "cpu",
        "-v",
    )
    line = [sys.executable, "-c", CODE, *(str(word) for word in (*solve, "--epsilon", 4e-15))]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=600)
    plan = re.findall(r"^memory plan, RAM: (?:.* = )?(.*)$", done.stderr, re.MULTILINE)[0]
    [more] = re.findall(
        r"^beside the memory plan, if the solve comes to it: refinement beyond float64 (.*)$", done.stderr, re.MULTILINE
    )
    assert "values are refined beyond float64" in done.stderr
    planned = sum(parse_bytes(size.replace(" ", "")) for size in (plan, more))
    assert int(done.stderr.split()[-1]) * 1024 <= 1.05 * planned + SLACK, done.stderr


@pytest.mark.slow
def test_the_peak_of_simulate_is_within_its_plan(tmp_path: Path) -> None:
    """Of a result of 2 million states, and of runs of many samples."""
    result = tmp_path / "r"
    run("solve", *_solved(tmp_path / "s"), "--output", result)
    for more in ((), ("--duration", 60, "--sample", 0.0002, "--csv", tmp_path / "runs.csv")):
        ran = run("simulate", result, "--random-starts", 2, *more)
        assert ran.peak <= 1.05 * ran.planned + SLACK, ran.said


def _solved(store: Path) -> tuple[object, ...]:
    """Words that solve a large control problem at once: any values are good enough."""
    ooc_mdp.generate("mountain-car", store, {"grid": "1400,1400"}, virtual=True)
    return store, "--discount", 0.9, "--residual", 1e6, "--device", "cpu"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("mountain-car", "--grid", "1000,1000", "--partitions", 4),
        ("mountain-car", "--grid", "1000,1000", "--partitions", 4, "--virtual"),
        ("random", "--states", 400_000, "--partitions", 4),
        ("double-pendulum", "--grid", "20,20,20,20", "--partitions", 2),
    ],
)
def test_the_peak_of_generate_is_within_its_estimate(words: tuple[object, ...], tmp_path: Path) -> None:
    ran = run("generate", words[0], tmp_path / "s", *words[1:], "--threads", 2)
    assert ran.peak <= 1.05 * ran.planned + SLACK, ran.said


def test_chunks_are_not_padded_to_the_longest_partition(tmp_path: Path) -> None:
    write_uneven("long row", tmp_path / "m.npz")
    store = ooc_mdp.convert(tmp_path / "m.npz", tmp_path / "s", partition_size="64KiB")
    sizes = store.facts.partition_bytes
    assert sizes.max() > 30 * np.median(sizes)
    for p in range(store.n_partitions):
        table = store.read(p)[0]
        arrays = [x for x in (getattr(table, name) for name in table.__slots__) if isinstance(x, np.ndarray)]
        owners = {id(owner): owner.nbytes for owner in map(owner_of, arrays)}
        assert sum(owners.values()) <= 1.05 * sizes[p] + 64
    stored = sum(file.stat().st_size for file in store.path.rglob("c.*"))
    assert stored == store.manifest.lengths.sum() < 1.05 * sizes.sum()


def owner_of(array: np.ndarray) -> np.ndarray:
    """The array whose memory a view keeps."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_every_command_refuses_before_the_work_what_ram_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_uneven("long row", tmp_path / "m.npz")
    store = ooc_mdp.convert(tmp_path / "m.npz", tmp_path / "s", partition_size="64KiB", threads=1)
    solution = ooc_mdp.solve(store, 0.9, device="cpu", residual=10.0)
    reads = []
    monkeypatch.setattr(type(store), "read_into", lambda *_: reads.append(1))
    monkeypatch.setattr(type(store), "read_field", lambda *_: reads.append(1))
    for module in (memory_plan, sys.modules["ooc_mdp.solver.plan"], sys.modules["ooc_mdp.io.conversion.memory"]):
        monkeypatch.setattr(module, "available_bytes", lambda: 3 << 20)
    for work in (
        lambda: ooc_mdp.verify(store, solution),
        lambda: check_store(store),
    ):
        with pytest.raises(MemoryBudgetError, match=r"MiB are available; .*--partition-size"):
            work()
    with pytest.raises(MemoryBudgetError, match="no cache is left that holds the largest partition"):
        ooc_mdp.solve(store, 0.9, device="cpu")
    with pytest.raises(MemoryBudgetError, match=r"the rows of state 0 alone take .* MiB"):
        ooc_mdp.convert(tmp_path / "m.npz", tmp_path / "t", partition_size="64KiB", threads=1)
    assert not reads
    assert not [name for name in os.listdir(tmp_path) if name.startswith("t")]


@pytest.mark.parametrize("name", ["m.npz", "m.tra"])
def test_a_state_that_ram_cannot_hold_is_refused_before_it_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 20_000
    write_uneven("long row", tmp_path / "m.npz", scale=200_000 // n)
    lines = [f"{n + 1} {n + 1} {2 * n}"]
    lines += [f"0 0 {s} {1 / n}" for s in range(1, n + 1)] + [f"{s} 0 0 1" for s in range(1, n + 1)]
    (tmp_path / "m.tra").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(block_memory, "available_bytes", lambda: 1 << 20)
    with pytest.raises(
        MemoryBudgetError, match=rf"{name}: reading .*state.* 0\b.* takes about .* MiB of RAM, and 1.0 MiB"
    ):
        ooc_mdp.convert(tmp_path / name, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_refused_solve_names_the_cache_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ooc_mdp.generate("GW-96x4", tmp_path / "s", {"seed": 1}, partitions=64)
    whole = int(store.facts.partition_bytes.sum())
    notes: list[str] = []
    solution = ooc_mdp.solve(store, 0.5, device="cpu", cache=str(whole), note=notes.append)
    plan = solution.memory_plan["host"]
    needed = sum(plan.values()) - plan["process"]
    for module in (memory_plan, sys.modules["ooc_mdp.solver.plan"], sys.modules["ooc_mdp.backends.cpu.backend"]):
        monkeypatch.setattr(module, "available_bytes", lambda: needed - whole // 4)
    with pytest.raises(MemoryBudgetError, match=r"lower --cache to at most (\d+)") as refused:
        ooc_mdp.solve(store, 0.5, device="cpu", cache=str(whole))
    fitting = int(re.findall(r"at most (\d+)", str(refused.value))[0])
    assert ooc_mdp.solve(store, 0.5, device="cpu", cache=str(fitting)).outcome.proved
