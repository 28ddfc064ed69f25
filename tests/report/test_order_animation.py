"""The order of a solve's visits as an animation: frames, planes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc, refused
from made_results import made_result
from solve_histories import history_of

pytest.importorskip("matplotlib")

from PIL import Image

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.report.cache_trace import AccessTrace
from ooc_mdp.report.maps.slices import GridAxis
from ooc_mdp.report.visit_frames import Visits, block_plane, folded_plane, frames_of

NAN = float("nan")


def visits(partition: list[int], bound: list[float], n: int = 3) -> Visits:
    count = len(partition)
    return Visits(n, np.array(partition), np.arange(count, dtype=float), np.array(bound), np.arange(count))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with maze.store, its result maze.result, its trace maze.csv and the store of another table."""
    folder = tmp_path_factory.mktemp("animation")
    for seed, name in ((1, "maze"), (2, "other")):
        ooc_mdp.generate("GW-8x4", folder / f"{name}.store", {"seed": seed}, partitions=4, threads=1)
    trace = folder / "maze.csv"
    ooc_mdp.solve(folder / "maze.store", 0.9, device="cpu", output=folder / "maze.result", trace=trace, epsilon=1.0)
    return folder


@pytest.mark.parametrize(
    ("figure", "numbers"),
    [
        ("order", [[0.0, NAN, NAN], [1.0, NAN, 0.0], [2.0, NAN, 0.0], [0.0, NAN, 1.0]]),
        ("visits", [[1.0, NAN, NAN], [1.0, NAN, 1.0], [1.0, NAN, 2.0], [2.0, NAN, 2.0]]),
        ("bound", [[4.0, NAN, NAN], [4.0, NAN, 3.0], [4.0, NAN, 2.0], [1.0, NAN, 2.0]]),
    ],
)
def test_a_frame_has_the_last_visit_the_count_and_the_bound_of_each_partition(figure, numbers):
    of = visits([0, 2, 2, 0], [4.0, 3.0, 2.0, 1.0])
    found = list(frames_of(of, figure, 10))
    assert [frame.visits for frame in found] == [1, 2, 3, 4]
    np.testing.assert_array_equal([frame.numbers for frame in found], numbers)
    (last,) = frames_of(of, figure, 1)
    np.testing.assert_array_equal(last.numbers, numbers[-1])


def test_frames_are_equal_numbers_of_visits_apart():
    found = [frame.visits for frame in frames_of(visits([0] * 1000, [1.0] * 1000), "visits", 20)]
    assert found == list(range(50, 1001, 50))


def test_auxiliary_accesses_are_no_visits_and_count_as_loads():
    trace = AccessTrace(
        path=Path("t"), facts={}, n_partitions=3, partition=np.array([0, 1, 2]),
        auxiliary=np.array([False, True, False]), hit=np.array([False, False, True]), priority=np.zeros(3),
        bound=np.array([1.0, np.nan, np.inf]), seconds=np.arange(3.0), cut_off=False,
    )  # fmt: skip
    found = Visits.of_trace(trace)
    assert (found.partition.tolist(), found.loads.tolist()) == ([0, 2], [1, 2])
    np.testing.assert_array_equal(found.bound, [1.0, np.nan])
    with pytest.raises(OptionsError, match="no visit of a partition"):
        Visits.of_trace(replace(trace, auxiliary=np.ones(3, np.bool_)))


def test_a_history_has_the_first_and_the_last_visit_of_each_partition():
    history = replace(history_of(5, 3), first_visit=np.array([0.5, NAN, 0.1]), last_visit=np.array([0.5, NAN, 0.9]))
    found = Visits.of_history(history)
    assert found.partition.tolist() == [2, 0, 0, 2]
    assert not found.complete
    with pytest.raises(OptionsError, match="no visit of a partition is recorded"):
        Visits.of_history(replace(history, first_visit=np.full(3, NAN), last_visit=np.full(3, NAN)))


def test_blocks_of_a_grid_are_drawn_at_their_place_and_those_behind_by_the_latest_visit():
    axes = (
        GridAxis("x", "m", np.linspace(0.0, 3.0, 4)),
        GridAxis("y", "", np.linspace(-1.0, 1.0, 3)),
        GridAxis("z", "", np.linspace(0.0, 1.0, 2)),
    )
    order = {"kind": "grid", "shape": [4, 3, 2], "edges": [[0, 1, 4], [0, 3], [0, 1, 2]]}
    plane = block_plane(axes, order, ["y", "x"])
    assert plane.labels == ("y", "x (m)")
    assert (plane.across.tolist(), plane.up.tolist()) == ([-1.5, 1.5], [-0.5, 0.5, 3.5])
    ages = np.array([5.0, 2.0, NAN, 7.0])
    np.testing.assert_array_equal(plane.picture(ages, least=True), [[2.0], [7.0]])
    np.testing.assert_array_equal(plane.picture(ages, least=False), [[5.0], [7.0]])
    turned = block_plane(axes, order, ["x", "y"])
    np.testing.assert_array_equal(turned.picture(np.full(4, NAN), least=True), [[NAN, NAN]])


def test_other_partitions_are_folded_into_rows():
    picture = folded_plane(5).picture(np.arange(5.0), least=True)
    np.testing.assert_array_equal(picture, [[0.0, 1.0, 2.0], [3.0, 4.0, NAN]])
    assert folded_plane(1).picture(np.ones(1), least=False).shape == (1, 1)


def test_a_trace_and_a_result_are_animated(place, tmp_path):
    trace, result = place / "maze.csv", place / "maze.result"
    seen = []
    ooc_mdp.animate_solve(
        trace, tmp_path / "a.gif", of=place / "maze.store", shown="bound", seconds=0.5,
        progress=lambda what, done, total: seen.append((done, total)),
    )  # fmt: skip
    n = len(trace.read_text().splitlines()) - 9
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == min(6, n)
    assert seen == [(done, min(6, n)) for done in range(min(6, n))]
    ran = ooc("animate", result, "-o", tmp_path / "b.gif", "--axes", "row,column", "--seconds", 0.2)
    assert ran.status == 0, ran.err
    assert (tmp_path / "b.gif").read_bytes().startswith(b"GIF8")
    assert "--overwrite" in refused("animate", result, "-o", tmp_path / "b.gif")
    ooc_mdp.animate_solve(trace, tmp_path / "c.gif", shown="visits", seconds=0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("maze.csv", "--axes", "row,column"), "a trace alone does not say where partitions are: give the store"),
        (("maze.csv", "--of", "other.store"), "give the store or result of the same table"),
        (("maze.csv", "--of", "maze.store", "--axes", "row,height"), "the axes of this result are row (cells)"),
        (("maze.result", "--show", "bound"), "is in traces only; give the file of solve --trace"),
        (("maze.csv", "--seconds", "1000"), "at most 120"),
        (("maze.csv", "--output", "a.mpeg"), "must end in .gif or .mp4"),
    ],
)
def test_what_cannot_be_animated_is_refused_with_a_remedy(place, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(place)
    before = sorted(place.iterdir())
    assert said in refused("animate", *arguments)
    assert sorted(place.iterdir()) == before


def test_a_result_without_history_is_refused(tmp_path):
    with pytest.raises(OptionsError, match="carries no history"):
        ooc_mdp.animate_solve(made_result((4, 4), history=None), tmp_path / "a.gif")
