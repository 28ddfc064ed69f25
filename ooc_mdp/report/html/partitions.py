"""Which partitions a solve spent most on: histograms, and the dearest ones with their place on the grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.report.html.cells import grid_of_result
from ooc_mdp.report.html.charts import BLUE, new_figure
from ooc_mdp.report.html.section import Section, Table
from ooc_mdp.store.result import Result

__all__ = ["partitions_section"]

_DEAREST = 20
_BINS = 30


def partitions_section(result: Result) -> Section:
    """Histograms of loads, visits and sweeps, and the partitions with most loads."""
    title, source = "Partitions", "Data: the history of the result, which counts the work on each partition."
    history = result.solution.history
    if history is None or not history.loads.size:
        return Section(title, source, ("This solution carries no history: the work on partitions was not recorded.",))
    counts = {"loads": history.loads, "visits": history.visits, "sweeps": history.sweeps}
    charts = tuple(_histogram(name, of) for name, of in counts.items())
    order = np.lexsort((-history.sweeps, -history.loads))[:_DEAREST]
    places = _places(result)
    table = Table(
        ("partition", "states", *counts, "first visit", "last visit"),
        tuple(
            (
                str(p),
                places(int(p)),
                *(f"{of[p]:,}" for of in counts.values()),
                *(_seconds(at[p]) for at in (history.first_visit, history.last_visit)),
            )
            for p in order.tolist()
        ),
    )
    return Section(title, source, (f"The {len(order)} partitions with most loads:",), table=table, charts=(charts,))


def _seconds(at: float) -> str:
    return "never" if np.isnan(at) else f"{at:.3g} s"


def _histogram(name: str, counts: IntArray) -> Any:
    most = int(counts.max(initial=0))
    edges = np.arange(most + 2) - 0.5 if most < _BINS else np.linspace(0, most, _BINS + 1)
    heights, edges = np.histogram(counts, edges)
    chart = new_figure(
        383, 220, x_axis_label=f"{name} of a partition", y_axis_label="partitions", name=f"histogram-{name}"
    )
    chart.quad(left=edges[:-1], right=edges[1:], top=heights, bottom=0, color=BLUE, line_color="white")
    return chart


def _places(result: Result) -> Any:
    """A function that describes where a partition lies."""
    order = result.partitions
    grid = grid_of_result(result)
    if order is None or tuple(order["shape"]) != grid.shape:
        return lambda p: ""
    edges = order["edges"]
    blocks = tuple(len(axis) - 1 for axis in edges)

    def place(p: int) -> str:
        parts = []
        for name, axis, b in zip(grid.dimensions, edges, np.unravel_index(p, blocks), strict=True):
            first, last = axis[b], axis[b + 1] - 1
            at = grid.coordinates.get(name)
            if at is None:
                parts.append(f"{name} {first} to {last}")
            else:
                unit = at.attributes["units"]
                parts.append(f"{name} {at.positions[first]:.3g} to {at.positions[last]:.3g} {unit}".rstrip())
        return ", ".join(parts)

    return place
