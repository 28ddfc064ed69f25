"""Pictures of a result for a paper: value or policy over two axes of a grid, cut at points of the others.

slices      which panels there are             paths       samples of CSV files, by panel
colours     ranges, contours, words            drawing     the panels on a figure of matplotlib
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ooc_mdp.errors import OptionsError
from ooc_mdp.report.html.cells import grid_of_result
from ooc_mdp.report.maps.slices import axes_of, plan_slices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ooc_mdp.store.result import Result

__all__ = ["MapOptions", "Shown", "draw_result"]

Shown = Literal["value", "policy"]


@dataclass(frozen=True, slots=True)
class MapOptions:
    """What a picture shows."""

    shown: Shown = "value"
    axes: Sequence[str] | None = None
    """Names of the axes across and up."""
    slices: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By name of an axis, the positions at which it is cut."""
    paths: Path | None = None
    """CSV file of paths to draw."""
    limits: tuple[float, float] | None = None
    """Values at the ends of the colours; None for a range without outliers."""
    contours: bool = True
    """Draw lines of equal value."""


def draw_result(result: Result, options: MapOptions) -> Figure:
    """The picture of a result.

    Raises
    ------
    OptionsError : an axis or slice does not exist, or the states are no grid that has any.
    InputError : the file of paths does not fit.
    MissingExtraError : matplotlib is not installed.
    """
    from ooc_mdp.report.maps import curves, drawing
    from ooc_mdp.report.maps.paths import read_paths

    axes = axes_of(grid_of_result(result), result.geometry)
    if len(axes) >= 2:
        plan = plan_slices(axes, options.axes, options.slices)
        paths = [] if options.paths is None else read_paths(options.paths, axes)
        return drawing.draw_maps(result, plan, options, paths)
    given = {"axes": options.axes, "slices": options.slices, "paths": options.paths}
    unused = [name for name, value in given.items() if value]
    if unused:
        found = "no grid" if result.geometry is None else f"a grid of one axis, {axes[0].name}"
        raise OptionsError(
            f"{' and '.join(unused)} are of grids with two axes or more, and the states of {result.path} are {found}; "
            f"leave them out"
        )
    return curves.draw_curves(result, options, axes[0])
