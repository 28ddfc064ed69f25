"""The programs that stand beside those of other tools: ooc-mdp's answers are right, and what is measured is there."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from paths import REPOSITORY

BESIDE = REPOSITORY / "benchmarks" / "beside"


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("beside_run", BESIDE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_arrays_are_solved_to_the_digits_that_were_asked_for(run: ModuleType, tmp_path: Path):
    exact = run.write_arrays(tmp_path / "arrays.npz", 20, 3, 0.95)
    seconds, answer = run.measure(sys.executable, BESIDE / "arrays_ooc_mdp.py", tmp_path)
    assert np.abs(answer - exact).max() <= 1e-6
    assert len(seconds) == 2
    assert run.digits(answer, exact) >= 6


def test_the_function_of_a_small_shop_has_the_values_of_sweeps(run: ModuleType, tmp_path: Path):
    program = tmp_path / "shop.py"
    program.write_text((BESIDE / "function_ooc_mdp.py").read_text().replace("100_000", "60"))
    _, answer = run.measure(sys.executable, program, tmp_path)
    assert np.abs(answer - run.shop_values(60)).max() <= 1e-6


def test_every_task_has_a_program_for_each_tool(run: ModuleType):
    names = {f"{task}_{tool}.py" for task, tools in run.TASKS.items() for tool in tools}
    assert names == {path.name for path in BESIDE.glob("*_*.py")}


def test_digits_count_the_error_relative_to_the_largest_value(run: ModuleType):
    assert run.digits(np.array([1.0, 100.001]), np.array([1.0, 100.0])) == 5.0
    assert run.digits(np.array([1.0]), np.array([1.0])) == 16.0


def test_the_pages_have_the_figures_that_were_recorded():
    recorded = json.loads((REPOSITORY / "benchmarks" / "results" / "beside.json").read_text())
    page = (REPOSITORY / "docs" / "guides" / "beside-other-tools.md").read_text(encoding="utf-8")
    for one in recorded:
        first, again = ("{:.2f} ({:.2f})".format(*one[name]) for name in ("first", "again"))
        assert f"| {one['lines']} | {first} | {again} | {one['digits']} |" in page, one
    seconds = {one["tool"]: one["again"][1] for one in recorded if one["task"] == "arrays"}
    cells = f"| {seconds['ooc_mdp']:.2f} | {seconds['quantecon']:.3f} | {seconds['pymdptoolbox']:.3f} |"
    assert cells in (REPOSITORY / "README.md").read_text(encoding="utf-8")
