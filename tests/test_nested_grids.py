"""A control problem's grid solved after coarser ones: the same proof, begun from their values."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp import nested_grids
from ooc_mdp.errors import OptionsError
from ooc_mdp.nested_grids import coarser_tables

HOW: dict[str, Any] = {"discount": 0.9, "epsilon": 1e-4, "device": "cpu", "method": "vi"}


def table(name: str = "mountain-car", grid: tuple[int, ...] = (41, 37)) -> Any:
    return ooc_mdp.open_problem(name, {"grid": grid}, device="cpu", partitions=4)


def shapes(of: Any, grids: int) -> list[list[int]]:
    return [coarse.facts.attributes["geometry"]["shape"] for coarse in coarser_tables(of, grids)]


def test_each_grid_has_half_the_points_of_the_next_one() -> None:
    assert shapes(table(), 3) == [[11, 10], [21, 19]]
    assert shapes(table("single-pendulum", (16, 9)), 2) == [[8, 5]]  # the angle goes round
    assert shapes(table(), 1) == []


def test_points_of_a_coarser_grid_are_points_of_the_finer_one() -> None:
    for name, grid in (("mountain-car", (41, 37)), ("single-pendulum", (16, 9))):
        of = table(name, grid)
        from ooc_mdp.model.grid_points import GridPoints

        fine = GridPoints.of(of.facts.attributes["geometry"], of.n_states)
        (coarse,) = (GridPoints.of(c.facts.attributes["geometry"], c.n_states) for c in coarser_tables(of, 2))
        assert np.allclose(coarse.steps, 2 * fine.steps)


def test_coarser_grids_save_sweeps_and_prove_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    alone = ooc_mdp.solve(table(), **HOW)
    nested = ooc_mdp.solve(table(), grids=3, note=said.append, **HOW)
    assert nested.outcome is ooc_mdp.Outcome.PROVED
    assert ooc_mdp.verify(table(), nested).holds
    assert np.abs(nested.values - alone.values).max() <= 2e-4
    assert nested.statistics.sweeps < alone.statistics.sweeps
    assert sum("loads per partition" in each for each in said) == 2
    assert "beginning from the values of the grid of mountain-car on 21 x 19 points" in said


def test_a_stored_table_and_a_virtual_one_have_coarser_grids(tmp_path: Path) -> None:
    for kind in ([], ["--virtual"]):
        store = tmp_path / f"s{len(kind)}"
        assert ooc("generate", "mountain-car", store, "-p", "grid=21,21", *kind).status == 0
        ran = ooc("solve", store, "--discount", 0.9, "--device", "cpu", "--grids", 2, "--output", tmp_path / "r",
                  "--overwrite")  # fmt: skip
        assert ran.status == 0, ran.err
        assert "mountain-car on 11 x 11 points" in ran.err


def test_a_continued_solve_solves_no_coarser_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ooc_mdp.solve(table(), output=tmp_path / "r", time_limit=1e-9, **HOW)
    monkeypatch.setattr(nested_grids, "coarser_tables", None)
    assert ooc_mdp.solve(table(), output=tmp_path / "r", resume=True, grids=3, **HOW).outcome.proved


def test_the_time_limit_is_that_of_all_grids(tmp_path: Path) -> None:
    found = ooc_mdp.solve(table(), grids=3, time_limit=1e-9, output=tmp_path / "r", **HOW)
    assert found.outcome is ooc_mdp.Outcome.TIME_LIMIT
    assert Path(f"{tmp_path / 'r'}.checkpoint").exists()


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["usual", "in the background"])
def test_a_signal_during_a_coarser_grid_ends_the_solve(handler: Any, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ooc_mdp.solve(table(), grids=2, progress=stop, output=tmp_path / "r", **HOW)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list(tmp_path.glob("r*"))


def test_what_has_no_coarser_grids_is_refused(tmp_path: Path) -> None:
    maze = ooc_mdp.generate("GW-8x4", tmp_path / "s", {"seed": 1})
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (maze, {}, "no control problem"),
        (table(grid=(9, 9)), {"grids": 4}, "give --grids 2 or less"),
        (table(), {"grids": 0}, "grids is 0"),
        (table(), {"policy": np.zeros(41 * 37, int)}, "the policy is one of this grid"),
    ]
    for of, changed, message in refused:
        with pytest.raises(OptionsError, match=message):
            ooc_mdp.solve(of, **{**HOW, "grids": 2, **changed})
    with pytest.raises(OptionsError, match="begins at its end"):
        ooc_mdp.solve(maze, ooc_mdp.FiniteHorizon(2), grids=2)
