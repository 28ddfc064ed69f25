"""Value, policy and the work on partitions over the states: a map of any two axes, or curves where there is no grid."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    CustomJS,
    HoverTool,
    LinearColorMapper,
    Select,
    Slider,
)
from bokeh.palettes import Category20, Viridis256

from ooc_mdp.report.html.cells import GridCells, grid_of_result
from ooc_mdp.report.html.charts import BLUE, HALF, new_figure
from ooc_mdp.report.html.section import Row, Section
from ooc_mdp.store.result import Result

__all__ = ["DRAW_MAP", "map_section", "states_section"]

DRAW_MAP = "draw-map"
"""Name of the callback that draws the map, which the page also calls once when it is loaded."""
_MOST_POINTS, _MOST_ACTIONS, _MOST_LEGEND = 4_000, 30, 20


def map_section(result: Result, cells: GridCells) -> Section:
    """A map with menus for the field and the axes, and a slider for each other axis."""
    source = "Data: values and policy of the result"
    source += "." if cells.owner is None else "; loads, visits, sweeps and times of the partition of each state."
    thinned = [f"every {k}. point of {name}" for name, k in zip(cells.axes, cells.strides, strict=True) if k > 1]
    sentences = [f"Drawn are {', '.join(thinned)}."] if thinned else []
    if cells.owner is None:
        sentences.append("Which partition a state is in is not recorded: give the store (--store) to map the loads.")
    elif not any(field.of_partition for field in cells.fields):
        sentences.append("The loads of the partitions are not recorded.")
    chart, widgets = _map(cells)
    return Section(
        "State space",
        source,
        tuple(sentences),
        _controls(result),
        charts=((*widgets[:4],), (chart,), tuple(widgets[4:])),
    )


def _controls(result: Result) -> tuple[Row, ...]:
    """The control values of each action, for the policy's map."""
    controls = (result.geometry or {}).get("controls")
    if not isinstance(controls, list) or not controls:
        return ()
    named = [f"{a}: {c[0] if isinstance(c, list) and len(c) == 1 else c}" for a, c in enumerate(controls)]
    more = "; ..." if len(named) > _MOST_LEGEND else ""
    return (Row("controls of the actions", "; ".join(named[:_MOST_LEGEND]) + more),)


def _map(cells: GridCells) -> tuple[Any, list[Any]]:
    """The chart, and its widgets: menus of the field, the axes and the colours, then a slider for each axis."""
    names = [axis.replace("$$", "$ $") for axis in cells.axes]
    source = ColumnDataSource(
        {"image": [np.zeros((1, 1), np.float32)], "x": [0.0], "y": [0.0], "dw": [1.0], "dh": [1.0]}
    )
    mapper = LinearColorMapper(Viridis256, low=0.0, high=1.0, nan_color="rgba(0,0,0,0)")
    chart = new_figure(900, 560, name="map", x_range=(0, 1), y_range=(0, 1))
    chart.image("image", source=source, color_mapper=mapper, x="x", y="y", dw="dw", dh="dh")
    chart.add_layout(ColorBar(color_mapper=mapper), "right")
    chart.add_tools(HoverTool(tooltips=[("across", "$x"), ("up", "$y"), ("value", "@image")]))
    field = Select(title="show", value="value", options=[f.name for f in cells.fields], name="field", width=260)
    across = Select(title="across", value=names[0], options=names, name="across", width=160)
    up = Select(title="up", value=names[1], options=names, name="up", width=160)
    scale = Select(
        title="colours span", value="whole grid", options=["whole grid", "this slice"], name="scale", width=160
    )
    sliders = [
        Slider(start=0, end=max(1, n - 1), value=n // 2, step=1, title=name, show_value=False, name=name, width=270,
               disabled=n < 2)
        for name, n in zip(names, cells.shape, strict=True)
    ]  # fmt: skip
    widgets = [field, across, up, scale, *sliders]
    callback = CustomJS(
        name=DRAW_MAP,
        args={
            **_numbers(cells, names),
            "source": source, "mapper": mapper, "field": field, "across": across, "up": up, "scale": scale,
            "sliders": sliders, "x_axis": chart.xaxis[0], "y_axis": chart.yaxis[0],
            "x_range": chart.x_range, "y_range": chart.y_range,
        },
        code=resources.files("ooc_mdp.report.html").joinpath("state_space.js").read_text(encoding="utf-8"),
    )  # fmt: skip
    for widget in widgets:
        widget.js_on_change("value", callback)
    return chart, widgets


def _numbers(cells: GridCells, names: list[str]) -> dict[str, Any]:
    """What the script draws from; Bokeh sends arrays in base64."""
    policy = next((f.numbers for f in cells.fields if f.name == "policy"), np.zeros(0, np.int16))
    n_actions = int(policy.max(initial=0)) + 1
    colours = (
        Category20[20] if n_actions <= 20 else [Viridis256[round(255 * i / (n_actions - 1))] for i in range(n_actions)]
    )
    return {
        "numbers": {f.name: f.numbers for f in cells.fields},
        "of_partition": {f.name: f.of_partition for f in cells.fields},
        "owner": np.zeros(0, np.int32) if cells.owner is None else cells.owner,
        "shape": list(cells.shape),
        "axes": names,
        "units": [unit.replace("$$", "$ $") for unit in cells.units],
        "positions": [np.asarray(p, np.float64) for p in cells.positions],
        "palettes": {"number": list(Viridis256), "policy": list(colours[:n_actions])},
    }


def states_section(result: Result) -> Section:
    """Values along the states, sorted values, and the shares of the actions."""
    solution, grid = result.solution, grid_of_result(result)
    values = solution.values
    rows = np.unique(np.linspace(0, values.size - 1, min(values.size, _MOST_POINTS)).astype(np.int64))
    name = grid.dimensions[0] if len(grid.shape) == 1 else "state"
    at = grid.coordinates.get(name)
    x = rows.astype(np.float64) if at is None else at.positions[rows]
    plain = new_figure(HALF, 280, x_axis_label=name.replace("$$", "$ $"), y_axis_label="value", name="values")
    plain.line(x, values[rows], color=BLUE)
    ordered = new_figure(HALF, 280, x_axis_label="share of the states, %", y_axis_label="value", name="sorted-values")
    ordered.line(100 * rows / max(1, values.size - 1), np.sort(values)[rows], color=BLUE, line_width=2)
    second = [_shares(solution.policy)]
    if solution.value_lower is not None and solution.value_upper is not None:
        width = new_figure(
            HALF, 260, x_axis_label=plain.xaxis.axis_label, y_axis_label="width of the interval", name="interval-widths"
        )
        with np.errstate(invalid="ignore"):  # infinite values have no interval
            between = (solution.value_upper - solution.value_lower)[rows]
        width.line(x, between, color=BLUE)
        second.append(width)
    return Section(
        "States",
        "Data: values and policy of the result, which are on no grid of two or more axes.",
        (f"{rows.size:,} of {values.size:,} states are drawn.",) if rows.size < values.size else (),
        charts=((plain, ordered), tuple(second)),
    )


def _shares(policy: Any) -> Any:
    """Bars of the most frequent actions."""
    actions, counts = np.unique(policy, return_counts=True)
    first = np.argsort(-counts, kind="stable")[:_MOST_ACTIONS]
    first = first[np.argsort(actions[first])]
    words = ["none" if a < 0 else str(a) for a in actions[first].tolist()]
    chart = new_figure(
        HALF, 260, x_range=words, x_axis_label="action of the policy", y_axis_label="states", name="actions"
    )
    chart.vbar(x=words, top=counts[first], width=0.8, color=BLUE)
    chart.y_range.start = 0
    chart.y_range.end = float(counts.max()) * 1.05
    return chart
