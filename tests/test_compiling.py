"""Whoever waits for loops to be compiled is told so; whoever finds them compiled is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import process
from numba import njit
from small_mdps import Case, make_store
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp.kernels import cpu
from ooc_mdp.kernels.compiling import told_of_compiling
from ooc_mdp.kernels.cpu import CpuBackend
from ooc_mdp.methods.plan import model_of, warm_up
from ooc_mdp.options import SolveOptions

HALVES = Model((State((Action(1.0, {1: 1.0}),)), State((), 0.0)))
"""A state that leads to the end."""


def test_the_first_loop_that_is_compiled_is_told_of_once() -> None:
    one, other = njit(lambda x: x + 1), njit(lambda x: x + 2)
    said: list[str] = []
    with told_of_compiling(said.append):
        assert (one(1), other(1), one(1.0)) == (2, 3, 2.0)
    assert len(said) == 1
    assert "compiling" in said[0]


def test_loops_that_are_compiled_already_are_not_told_of() -> None:
    one, other = njit(lambda x: x + 1), njit(lambda x: x + 2)
    one(1)
    said: list[str] = []
    with told_of_compiling(said.append):
        one(2)
    other(1)
    assert said == []


def test_a_solve_from_python_is_told_of_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = njit(lambda x: x + 1)
    usual = CpuBackend.call_loops
    monkeypatch.setattr(CpuBackend, "call_loops", lambda *a: (one(1), usual(*a))[1])
    said: list[str] = []
    ooc_mdp.solve(make_store(Case(HALVES), tmp_path / "s"), 0.9, device="cpu", note=said.append)
    assert sum("compiling loops" in text for text in said) == 1


@pytest.mark.slow
@pytest.mark.parametrize("discount", [0.9, 1])
def test_a_first_solve_says_that_it_compiles_and_a_second_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, discount: float
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    make_store(Case(HALVES), tmp_path / "s")
    for compiles in (True, False):
        ran = process("solve", tmp_path / "s", "--discount", discount, "--device", "cpu")
        assert ran.status == 0, ran.err
        assert ("compiling loops" in ran.err) == compiles


def test_all_ways_to_sweep_are_tried_before_a_solve_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its first seconds would be spent compiling, with a progress that does not move."""
    store = ooc_mdp.generate("GW-32x4", tmp_path / "s", partitions=2)
    tried: list[str] = []
    for name in ("RoundsAlongFlow", "RoundsInOrder"):
        usual = getattr(cpu, name)
        monkeypatch.setattr(cpu, name, lambda *a, name=name, usual=usual: (tried.append(name), usual(*a))[1])
    for name in ("visit", "measure", "visit_all"):
        usual = getattr(CpuBackend, name)
        monkeypatch.setattr(
            CpuBackend, name, lambda self, *a, name=name, usual=usual: (tried.append(name), usual(self, *a))[1]
        )
    backend = CpuBackend()
    warm_up(store, backend, model_of(store, SolveOptions(0.9)), writes=False)
    backend.close()
    assert tried == ["RoundsAlongFlow", "RoundsInOrder", "visit", "measure", "visit_all"]
