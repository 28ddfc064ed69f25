"""Maps of value or policy over two axes, a panel for each cut of the others, as a figure of matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.report.figures import new_figure, plain
from ooc_mdp.report.maps import MapOptions
from ooc_mdp.report.maps.colours import (
    ActionWord,
    ValueRange,
    action_words,
    contour_levels,
    shown_actions,
    value_range,
)
from ooc_mdp.report.maps.paths import panel_of_samples, with_gaps
from ooc_mdp.report.maps.slices import SlicePlan
from ooc_mdp.report.maps.words import heading, proved, value_word
from ooc_mdp.store.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["action_colours", "draw_maps"]

_NOTHING, _BEYOND = "0.8", "0.35"
"""Colours of states without an action or without a finite value, and of values beyond the range that is shown."""
_MOST_IN_LEGEND = 20
_MOST_ELONGATED = 3.0
"""Axes of one unit are drawn to scale up to this ratio of their lengths."""


def draw_maps(result: Result, plan: SlicePlan, options: MapOptions, paths: list[FloatArray]) -> Figure:
    """A panel for each cut of the plan, with one scale of colours."""
    rows = math.ceil(len(plan.panels) / plan.columns)
    width, height = (7.2, 5.4) if len(plan.panels) == 1 else (2.7 * plan.columns + 1.6, 2.5 * rows + 1.1)
    figure = new_figure(figsize=(max(6.0, width), max(4.0, height)), layout="constrained", dpi=150)
    grid = figure.subplots(rows, plan.columns, sharex=True, sharey=True, squeeze=False)
    used = list(grid.flat[: len(plan.panels)])
    for panel in grid.flat[len(plan.panels) :]:
        panel.set_axis_off()
    note = (_draw_values if options.shown == "value" else _draw_policy)(figure, used, result, plan, options)
    for path in paths:
        nearest = panel_of_samples(path, plan)
        drawn = with_gaps(path, plan.axes, (plan.across, plan.up))
        for number, panel in enumerate(used):
            _draw_path(panel, np.where((nearest == number)[:, None], drawn, np.nan), nearest, number)
    _label(figure, grid, used, plan)
    lines = [heading(result, value_word(result) if options.shown == "value" else "policy"), plan.title, note]
    if paths and len(used) > 1:
        lines.append("each piece of a path is in the panel nearest to it")
    figure.suptitle(plain("\n".join(line for line in lines if line)), fontsize=10)
    return figure


def _draw_values(figure: Figure, panels: list[Any], result: Result, plan: SlicePlan, options: MapOptions) -> str:
    """Colours, contours and their bar; what the title says of them."""
    from matplotlib import colormaps

    values = [plan.cut(result.values, panel) for panel in plan.panels]
    shown = value_range(np.concatenate([v.ravel() for v in values]), _sense(result), options.limits)
    bound = _bound(result)
    levels = contour_levels(shown, bound) if options.contours else np.empty(0)
    colours = colormaps["viridis"].with_extremes(under=_BEYOND, over=_BEYOND)
    across, up = plan.positions()
    for panel, picture in zip(panels, values, strict=True):
        finite = np.where(np.isfinite(picture), picture, np.nan)
        panel.set_facecolor(_NOTHING)
        mesh = panel.pcolormesh(
            across, up, finite, shading="nearest", cmap=colours, vmin=shown.low, vmax=shown.high, rasterized=True
        )
        inside = np.where((finite >= shown.low) & (finite <= shown.high), finite, np.nan)
        drawn = levels[(levels > np.nanmin(inside)) & (levels < np.nanmax(inside))] if np.isfinite(inside).any() else []
        if len(drawn) and min(inside.shape) > 1:
            panel.contour(across, up, inside, levels=drawn, colors="white", linestyles="-", linewidths=0.5, alpha=0.6)
    word = value_word(result)
    label = f"{word} (grey: {shown.words})" if shown.words else word
    bar = figure.colorbar(mesh, ax=panels, label=label, extend=shown.extend)
    _mark_bound(bar, shown, bound)
    step = f"contours every {levels[1] - levels[0]:.3g}" if levels.size > 1 else ""
    return ", ".join(part for part in (proved(result), step) if part)


def _mark_bound(bar: Any, shown: ValueRange, bound: float) -> None:
    """Draw twice the error bound to scale on the bar of colours, where it can be seen."""
    if 0.004 * (shown.high - shown.low) < bound < 0.5 * (shown.high - shown.low):
        middle = 0.5 * (shown.low + shown.high)
        bar.ax.errorbar([0.5], [middle], yerr=[bound], color="white", capsize=3, transform=bar.ax.get_yaxis_transform())


def _draw_policy(figure: Figure, panels: list[Any], result: Result, plan: SlicePlan, options: MapOptions) -> str:
    """A colour for each action, and their legend."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    words = action_words(result)
    colours = action_colours(words, result)
    actions = np.array([word.action for word in words])
    across, up = plan.positions()
    for panel, cut in zip(panels, plan.panels, strict=True):
        place = np.searchsorted(actions, plan.cut(shown_actions(result), cut))
        panel.pcolormesh(
            across, up, place, shading="nearest", cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5,
            rasterized=True,
        )  # fmt: skip
    first = sorted(range(len(words)), key=lambda i: -words[i].share)[:_MOST_IN_LEGEND]
    handles = [Patch(facecolor=colours[i], label=f"{words[i].words}, {words[i].share:.0%}") for i in sorted(first)]
    figure.legend(handles=handles, loc="outside right center", frameon=False, title="share of states", fontsize=9)
    rest = len(words) - len(first)
    return f"the {_MOST_IN_LEGEND} most frequent of {len(words)} actions are in the legend" if rest else ""


def action_colours(words: list[ActionWord], result: Result) -> list[Any]:
    """A colour for each action: from blue to red in the order of single controls, else as different as possible."""
    from matplotlib import colormaps

    acting = [word for word in words if word.action >= 0]
    ordered = acting[:1] and acting[0].words.startswith("control ") and "(" not in acting[0].words
    if ordered or len(acting) > _MOST_IN_LEGEND:
        scale = colormaps["coolwarm" if ordered else "viridis"](np.linspace(0.0, 1.0, max(2, len(acting))))
    else:
        scale = colormaps["tab10" if len(acting) <= 10 else "tab20"](np.arange(len(acting)))
    colours = iter(scale)
    return [_NOTHING if word.action < 0 else next(colours) for word in words]


def _draw_path(panel: Any, drawn: FloatArray, nearest: Any, number: int) -> None:
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3.0, foreground="white")]
    panel.plot(drawn[:, 0], drawn[:, 1], color="black", linewidth=1.2, path_effects=halo)
    for at, marker in ((0, "o"), (-1, "X")):
        if nearest[at] == number:
            panel.plot(drawn[at, 0], drawn[at, 1], color="black", marker=marker, markersize=6, path_effects=halo)


def _label(figure: Figure, grid: Any, used: list[Any], plan: SlicePlan) -> None:
    across, up = plan.axes[plan.across], plan.axes[plan.up]
    lengths = across.extent, up.extent
    to_scale = across.unit == up.unit != "" and max(lengths) <= _MOST_ELONGATED * min(lengths)
    for panel, cut in zip(used, plan.panels, strict=True):
        panel.set_title(plain(cut.title), fontsize=8)
        panel.set_xlim(*_ends(plan.positions()[0]))
        panel.set_ylim(*_ends(plan.positions()[1]))
        if to_scale:
            panel.set_aspect("equal")
        panel.tick_params(labelsize=8)
    if up.name == "row":  # as a matrix is written
        used[0].invert_yaxis()
    for panel in grid[:, 0]:
        panel.set_ylabel(plain(up.label))
    columns = grid.shape[1]
    for number, panel in enumerate(used):
        if number + columns >= len(used):
            panel.set_xlabel(plain(across.label))
            panel.xaxis.set_tick_params(labelbottom=True)


def _ends(positions: FloatArray) -> tuple[float, float]:
    """From half a cell before the first point to half a cell after the last."""
    half = 0.5 * float(np.ptp(positions)) / max(1, positions.size - 1) or 0.5
    return float(positions[0]) - half, float(positions[-1]) + half


def _sense(result: Result) -> str:
    table = result.solution.table
    return str(result.identity.get("sense", "max" if table is None else table.sense))


def _bound(result: Result) -> float:
    """Proved bound on the error of the values; 0 for relative values, which no certificate bounds."""
    return 0.0 if result.solution.gain is not None else result.solution.error_bound
