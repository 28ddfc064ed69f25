"""Which panels a picture of a grid has: axes drawn, axes cut, and where."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_mdp.errors import OptionsError
from ooc_mdp.report.maps.slices import GridAxis, axes_of, plan_slices
from ooc_mdp.store.result_grid import grid_of

X = GridAxis("x", "m", np.linspace(-1.0, 1.0, 5))
Y = GridAxis("y", "m", np.linspace(0.0, 3.0, 4))
HEADING = GridAxis("heading", "rad", np.arange(-3.0, 3.0, 1.0), periodic=True)
SPEED = GridAxis("speed", "m/s", np.linspace(-4.0, 4.0, 9))


def test_two_axes_make_one_panel_with_rows_upwards():
    plan = plan_slices((X, Y))
    picture = plan.cut(np.arange(20), plan.panels[0])
    assert (plan.columns, len(plan.panels), plan.title) == (1, 1, "")
    assert picture.shape == (4, 5)
    np.testing.assert_array_equal(picture, np.arange(20).reshape(5, 4).T)
    swapped = plan_slices((X, Y), ["y", "x"])
    np.testing.assert_array_equal(swapped.cut(np.arange(20), swapped.panels[0]), np.arange(20).reshape(5, 4))


def test_rows_and_columns_of_cells_are_drawn_as_a_matrix_is_written():
    axes = (GridAxis("row", "cells", np.arange(3.0)), GridAxis("column", "cells", np.arange(4.0)))
    plan = plan_slices(axes)
    assert (plan.across, plan.up) == (1, 0)


def test_a_slice_takes_the_nearest_point_and_the_title_says_where_that_is():
    plan = plan_slices((X, Y, HEADING), slices={"heading": [1.2]})
    assert [panel.fixed for panel in plan.panels] == [{2: 4}]
    assert plan.title == "heading = 1 rad"
    values = np.arange(5 * 4 * 6)
    np.testing.assert_array_equal(plan.cut(values, plan.panels[0]), values.reshape(5, 4, 6)[:, :, 4].T)


def test_a_position_on_a_periodic_axis_goes_round():
    plan = plan_slices((X, Y, HEADING), slices={"heading": [2.9, 9.0]})
    assert [panel.fixed[2] for panel in plan.panels] == [0], "both are the same point as -3"


def test_several_positions_make_a_panel_each():
    plan = plan_slices((X, Y, HEADING, SPEED), slices={"heading": [0.0, 1.0], "speed": [-4.0, 0.0, 4.0]})
    assert plan.columns == 3
    assert [panel.title for panel in plan.panels[:2]] == [
        "heading = 0 rad\nspeed = -4 m/s",
        "heading = 0 rad\nspeed = 0 m/s",
    ]
    assert len(plan.panels) == 6


def test_axes_of_which_nothing_is_said_are_sampled_and_further_ones_cut_at_0():
    alone = plan_slices((X, Y, SPEED))
    assert [SPEED.positions[p.fixed[2]] for p in alone.panels] == [-3.0, -1.0, 0.0, 1.0, 3.0]
    two = plan_slices((X, Y, HEADING, SPEED))
    assert (len(two.panels), two.columns) == (12, 3)
    three = plan_slices((X, Y, HEADING, HEADING_2, SPEED))
    assert three.title == "speed = 0 m/s"


HEADING_2 = GridAxis("heading2", "rad", HEADING.positions, periodic=True)


@pytest.mark.parametrize(
    ("drawn", "slices", "said"),
    [
        (["x", "hedaing"], {}, r"no axis 'hedaing'; the axes of this result are x \(m\), y \(m\), heading \(rad\)"),
        (["x"], {}, "give two different ones, such as x,y"),
        (["x", "x"], {}, "give two different ones"),
        (None, {"y": [3.5]}, r"y=3.5 is beyond the axis, which reaches from 0 to 3 m; give a position on it"),
        (["x", "y"], {"y": [1.0]}, "y is drawn and cannot be cut as well"),
        (None, {"x": [0.0], "y": [0.0]}, "2 of the 3 axes are cut, and two have to be drawn"),
        (None, {"y": [float("nan")]}, "y=nan is beyond the axis"),
    ],
)
def test_what_cannot_be_drawn_names_axis_range_and_remedy(drawn, slices, said):
    with pytest.raises(OptionsError, match=said):
        plan_slices((X, Y, HEADING), drawn, slices)


def test_more_panels_than_can_be_told_apart_are_refused():
    with pytest.raises(OptionsError, match="make 54 panels, and at most 36"):
        plan_slices((X, Y, HEADING, SPEED), slices={"heading": range(-3, 3), "speed": range(-4, 5)})


def test_long_axes_are_thinned_and_short_ones_are_not():
    long = GridAxis("long", "", np.arange(5000.0))
    plan = plan_slices((long, Y))
    assert plan.strides == (9, 1)
    assert plan.cut(np.arange(20000), plan.panels[0]).shape == (4, plan.positions()[0].size)


def test_axes_come_from_the_geometry_with_units_and_periods():
    geometry = {
        "shape": [4, 3],
        "axes": [
            {"name": "angle", "low": -2.0, "high": 2.0, "periodic": True, "unit": "rad"},
            {"name": "floor"},
        ],
    }
    angle, floor = axes_of(grid_of(geometry, 12, frozenset()), geometry)
    assert (angle.label, angle.periodic, angle.extent) == ("angle (rad)", True, 4.0)
    assert (floor.label, floor.periodic, floor.positions.tolist()) == ("floor", False, [0.0, 1.0, 2.0])
