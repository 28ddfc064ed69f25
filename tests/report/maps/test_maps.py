"""Pictures of results: what is drawn, what titles and legends say, and what the command refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc, refused
from made_results import made_result

pytest.importorskip("matplotlib")

import ooc_mdp
from ooc_mdp.errors import InputError, MissingExtraError, OptionsError
from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.model.solution import Certificate
from ooc_mdp.report.maps.paths import panel_of_samples, read_paths, with_gaps
from ooc_mdp.report.maps.slices import GridAxis, plan_slices
from ooc_mdp.store.result import Result


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of a gridworld of 8 x 8 cells."""
    place = tmp_path_factory.mktemp("maze")
    store = ooc_mdp.generate("GW-8x4", place / "maze.store", {"seed": 1}, partitions=2, threads=1)
    ooc_mdp.solve(store, 0.9, device="cpu", output=place / "maze.result")
    return place / "maze.result"


def car() -> Result:
    """A made-up result with the axes and controls of the mountain car, in 12 x 8 points."""
    axes = [
        {"name": "position", "low": -1.0, "high": 1.0, "periodic": False, "unit": "m"},
        {"name": "velocity", "low": -4.0, "high": 4.0, "periodic": False, "unit": "m/s"},
    ]
    geometry = {"shape": [12, 8], "axes": axes, "controls": [[-1.0], [0.0], [1.0]]}
    policy = (np.arange(96) % 3).astype(np.int32)
    return replace(made_result((12, 8), policy=policy), geometry=geometry, provenance={"source": "mountain-car"})


def maps(figure):
    return [panel for panel in figure.axes if panel.get_label() != "<colorbar>" and panel.axison]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_values_of_a_control_problem_are_drawn_with_units_and_what_is_proved():
    figure = ooc_mdp.plot_result(car())
    (panel,) = maps(figure)
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("position (m)", "velocity (m/s)")
    assert figure.get_suptitle() == "value of mountain-car, discount 0.9\n|V − V*| ≤ 0.001, contours every 200"
    mesh = panel.collections[0]
    drawn = np.asarray(mesh.get_array()).reshape(8, 12)
    np.testing.assert_array_equal(drawn, car().values.reshape(12, 8).T)


def test_policy_maps_have_control_values_in_their_legend():
    figure = ooc_mdp.plot_result(car(), shown="policy", axes=("velocity", "position"))
    (panel,) = maps(figure)
    assert panel.get_xlabel() == "velocity (m/s)"
    assert legend(figure) == ["control -1, 33%", "control 0, 33%", "control 1, 33%"]
    assert figure.get_suptitle().startswith("policy of mountain-car")


def test_three_axes_make_panels_that_share_their_colours():
    result = made_result((6, 5, 4))
    figure = ooc_mdp.plot_result(result, slices={"axis2": [-1.0, 1.0]})
    first, second = maps(figure)
    assert (first.get_title(), second.get_title()) == ("axis2 = -1 m", "axis2 = 1 m")
    limits = [panel.collections[0].get_clim() for panel in (first, second)]
    values = result.values.reshape(6, 5, 4)[:, :, [0, 3]]
    assert limits == [(values.min(), values.max())] * 2


def test_states_without_an_action_or_a_finite_value_are_grey():
    values = np.arange(30.0)
    values[3] = np.inf
    result = made_result((6, 5), values=values, policy=np.where(values < 7, -1, 2).astype(np.int32))
    drawn = maps(ooc_mdp.plot_result(result))[0].collections[0].get_array()
    assert np.ma.count_masked(np.ma.masked_invalid(drawn)) == 1
    assert legend(ooc_mdp.plot_result(result, shown="policy")) == ["no action, 20%", "action 2, 80%"]


def test_of_very_many_actions_the_most_frequent_are_in_the_legend():
    policy = np.concatenate([np.arange(40), np.full(60, 7)]).astype(np.int32)
    figure = ooc_mdp.plot_result(made_result((10, 10), policy=policy), shown="policy")
    assert len(legend(figure)) == 20
    assert "action 7, 61%" in legend(figure)
    assert "20 most frequent of 40 actions" in figure.get_suptitle()


def test_a_bound_wider_than_the_values_is_stated_and_no_contour_drawn():
    wide = Certificate(1e9, -1e9, 1e9, 1.0, 0.0, 1.0, "residual", 2e9, "bounds")
    figure = ooc_mdp.plot_result(made_result((6, 5), certificate=wide))
    assert "|V − V*| ≤ 1e+09" in figure.get_suptitle()
    assert "contours" not in figure.get_suptitle()
    unknown = replace(wide, error_bound=np.inf)
    assert "no error bound is proved" in ooc_mdp.plot_result(made_result((6, 5), certificate=unknown)).get_suptitle()


def test_relative_values_are_not_called_values_within_a_bound():
    gain = replace(made_result((2,)).solution.certificate, quantity="gain", lower=1.0, upper=1.5)
    figure = ooc_mdp.plot_result(made_result((6, 5), certificate=gain))
    assert "relative value of" in figure.get_suptitle()
    assert "gain between 1 and 1.5" in figure.get_suptitle()
    assert "V*" not in figure.get_suptitle()


def test_the_value_of_a_given_policy_is_not_called_the_best_one():
    criterion = {"criterion": "discounted", "discount": 0.9, EVALUATED: "0" * 64}
    assert "|V − V_π| ≤ 0.001" in ooc_mdp.plot_result(made_result((6, 5), criterion=criterion)).get_suptitle()


def test_states_that_are_no_grid_are_drawn_as_sorted_values_and_shares():
    result = replace(made_result((40,)), geometry=None)
    figure = ooc_mdp.plot_result(result)
    left, right = figure.axes
    np.testing.assert_array_equal(left.lines[0].get_ydata(), np.sort(result.values)[::-1])
    assert [bar.get_width() for bar in right.patches] == [20.0] * 5


@pytest.mark.parametrize("shown", ["value", "policy"])
def test_one_axis_is_drawn_as_a_curve(shown):
    figure = ooc_mdp.plot_result(made_result((40,)), shown=shown)
    assert figure.axes[0].get_xlabel() == "axis0 (m)"


def test_axes_of_states_that_are_no_grid_are_refused():
    with pytest.raises(OptionsError, match=r"axes and slices are of grids with two axes or more.* are no grid; leave"):
        ooc_mdp.plot_result(replace(made_result((40,)), geometry=None), axes=("x", "y"), slices={"x": 1.0})


def test_a_solution_that_was_not_written_is_drawn_on_its_grid(maze):
    solution = ooc_mdp.solve(maze.with_suffix(".store"), 0.9, device="cpu")
    (panel,) = maps(ooc_mdp.plot_result(solution))
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("column (cells)", "row (cells)")
    assert panel.yaxis_inverted()


def paths_file(folder: Path, text: str) -> Path:
    file = folder / "paths.csv"
    file.write_text(text)
    return file


def test_paths_are_drawn_by_the_columns_of_the_axes_with_gaps_where_an_angle_jumps(tmp_path):
    angle = GridAxis("angle", "rad", np.arange(-3.0, 3.0, 1.0), periodic=True)
    speed = GridAxis("speed", "", np.linspace(-1.0, 1.0, 3))
    file = paths_file(tmp_path, "run,time,speed,angle\n0,0,0.5,2.9\n0,1,0.4,-2.9\n1,0,0,0\n")
    first, second = read_paths(file, (angle, speed))
    assert (first.tolist(), second.tolist()) == ([[2.9, 0.5], [-2.9, 0.4]], [[0.0, 0.0]])
    np.testing.assert_array_equal(with_gaps(first, (angle, speed), (0, 1)), [[2.9, 0.5], [np.nan, 0.4]])
    third = GridAxis("x", "", np.linspace(0.0, 1.0, 3))
    plan = plan_slices((third, speed, angle), slices={"angle": [-3.0, 0.0]})
    assert panel_of_samples(np.array([[0.0, 0.0, 2.9], [0.0, 0.0, 1.0]]), plan).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,axis0\n0,1\n", "line 1: has no column axis1: its columns are time, axis0"),
        ("axis0,axis1\n0,1\n0,far\n", "line 3: has no number for each of axis0, axis1 here"),
        ("axis0,axis1\n", "holds no sample"),
        ("", "has no column axis0, axis1: its columns are none"),
    ],
)
def test_files_that_are_no_paths_of_the_result_are_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        ooc_mdp.plot_result(made_result((6, 5)), paths=paths_file(tmp_path, text))


def test_the_command_writes_a_picture_beside_the_result(maze, tmp_path):
    ran = ooc("plot", maze, "--policy")
    assert ran.status == 0, ran.err
    assert ran.out.strip() == str(maze.with_suffix(".png"))
    assert maze.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "--overwrite" in refused("plot", maze)
    paths = paths_file(tmp_path, "row,column\n0,0\n1,1\n")
    file = tmp_path / "a.pdf"
    assert ooc("plot", maze, "-o", file, "--limits", "-1,2", "--paths", paths, "--no-contours").status == 0
    assert file.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--output", "a.jpg"), "the name must end in .png, .svg, .pdf"),
        (("--value", "--policy"), "contradict each other"),
        (("--slice", "row"), "write --slice heading=0"),
        (("--slice", "row=left"), "'left' is no list of numbers"),
        (("--limits", "1"), "give two, such as -5,10, or all"),
        (("--axes", "row,speed"), "the axes of this result are row (cells), column (cells)"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_remedy(maze, tmp_path, options, said):
    assert said in refused("plot", maze, "-o", tmp_path / "a.png", *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shown": "loads"}, "shown is 'loads'; give 'value' or 'policy'"),
        ({"axes": "xy"}, "the names of two axes"),
        ({"slices": {"axis1": "left"}}, "the slice axis1 is 'left', which is no number"),
        ({"limits": 3.0}, "two numbers, such as"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(given, said):
    with pytest.raises(OptionsError, match=said):
        ooc_mdp.plot_result(made_result((6, 5)), **given)


def test_a_notebook_shows_the_figure():
    assert ooc_mdp.plot_result(made_result((6, 5)))._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (20,)])
def test_text_of_a_file_is_no_formula_in_a_picture(shape):
    result = made_result(shape)
    geometry = {**result.geometry}
    geometry["axes"] = [{**axis, "unit": "$x_$"} for axis in geometry["axes"]]
    figure = ooc_mdp.plot_result(replace(result, geometry=geometry, provenance={"source": "$_{$\x1b"}))
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert "\x1b" not in figure.get_suptitle()


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"ooc-mdp\[plot\]"):
        ooc_mdp.plot_result(made_result((6, 5)), tmp_path / "a.png")
