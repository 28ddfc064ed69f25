"""The live view: a map of the partitions' bounds, and the lines above it."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import ooc_mdp
from ooc_mdp.events import SolveProgress
from ooc_mdp.report.live_view import SolveLiveView, enlarged, partition_map

SEEN = SolveProgress(1.0, 0.5, 0.01, "epsilon", 2, 6, 0.5, 3 << 20, 1e6, 7, 12.0)


def test_marks_say_how_far_a_partition_is_from_the_target():
    bounds = np.array([0.0, 1.0, 5.0, 10.0, 50.0, 1e4, np.inf, 0.5])
    assert partition_map(bounds, (2, 4), 1.0, 80, 20) == ["..::", "*##."]


def test_partitions_without_a_grid_are_in_order_and_the_last_row_may_end_early():
    assert partition_map(np.array([0.0, 20.0, 0.0, 20.0, 0.0]), None, 1.0, 3, 20) == [".*.", "*. "]


def test_a_cell_of_many_partitions_shows_the_largest_bound():
    bounds = np.zeros((40, 90))
    bounds[39, 0] = bounds[0, 89] = 1e9
    shown = partition_map(bounds.ravel(), (40, 90), 1.0, 30, 10)
    assert [len(row) for row in shown] == [30] * 10
    assert shown[0] == "." * 29 + "#"
    assert shown[9] == "#" + "." * 29


def test_the_map_has_the_two_longest_axes_and_the_largest_bound_along_the_others():
    bounds = np.zeros((2, 4, 3))
    bounds[1, 2, 1] = 1e9
    assert partition_map(bounds.ravel(), (2, 4, 3), 1.0, 80, 20) == ["...", "...", ".#.", "..."]


def test_without_a_target_the_least_bound_is_the_level():
    assert partition_map(np.array([0.5, 50.0, 0.0]), None, None, 80, 20) == [".*."]


def test_a_small_map_is_enlarged_to_the_room_with_cells_twice_as_many_columns_as_lines():
    assert enlarged([".#", "*."], 9, 5) == ["....####"] * 2 + ["****...."] * 2
    assert enlarged([".#", "*."], 9, 3) == ["..##", "**.."]
    assert enlarged([".#", "*."], 3, 9) == [".#"] * 4 + ["*."] * 4
    assert enlarged(["." * 30] * 10, 30, 10) == ["." * 30] * 10


@pytest.mark.parametrize("seen", [SEEN, replace(SEEN, target=None), replace(SEEN, stages=(1, 4))])
def test_the_view_fits_the_smallest_terminal_it_is_for(seen):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=24)
    bounds = np.geomspace(1e-3, 10.0, 10_000)
    with SolveLiveView("car.store", console) as view:
        view(replace(seen, partition_bounds=lambda: bounds, partition_grid=(100, 100)))
        lines = console.export_text() if console.record else file.getvalue()
    frame = lines.split("starting")[-1]
    assert frame.count("\n") <= 24
    assert "partitions" in frame
    assert "loads per partition" in frame


def test_a_solve_reports_the_bounds_of_its_partitions(tmp_path):
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "20,20"}, partition_grid=(4, 5), device="cpu")
    seen = []

    def watch(p: SolveProgress) -> None:
        assert p.partition_bounds is not None
        seen.append((p.partition_bounds(), p.partition_grid, p.error_bound))

    ooc_mdp.solve(store, discount=0.9, device="cpu", progress=watch)
    bounds, grid, error = seen[0]
    assert bounds.shape == (20,)
    assert grid == (4, 5)
    assert np.isfinite(error)
