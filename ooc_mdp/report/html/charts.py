"""The charts of a solve's course and cost: convergence, hit rate, accesses, time and memory.

Each function returns a section, with a sentence in place of the chart where its data was not recorded. Bokeh is
imported with this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from bokeh.models import ColumnDataSource, HoverTool, Span
from bokeh.plotting import figure

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Solution, SolveHistory
from ooc_mdp.report.cache_trace import AccessTrace
from ooc_mdp.report.html.section import Row, Section

__all__ = [
    "BLUE",
    "HALF",
    "ORANGE",
    "WIDE",
    "access_section",
    "convergence_section",
    "every",
    "hit_rate_section",
    "memory_section",
    "new_figure",
    "positive",
    "time_section",
]

WIDE, HALF = 1180, 582
"""Pixels of a chart that fills the page, and of one of two."""
BLUE, ORANGE, GREY, GREEN = "#4c78a8", "#f58518", "#999999", "#54a24b"
_MOST_ROWS, _MOST_POINTS = 3_000, 8_000
_MEBIBYTE = 1 << 20
_NO_HISTORY = "This solution carries no history: its solve was not recorded."


def new_figure(width: int, height: int, **options: Any) -> Any:
    """A figure without a logo, whose wheel does not take the page's scrolling."""
    made = figure(width=width, height=height, tools="pan,box_zoom,wheel_zoom,reset,save", **options)
    made.toolbar.logo = None
    made.toolbar.active_scroll = None
    return made


def every(count: int, most: int) -> npt.NDArray[np.int64]:
    """Indices of at most so many of `count` rows, the last one among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def convergence_section(solution: Solution) -> Section:
    """The proved bounds against time and bytes."""
    history, title = solution.history, "Convergence"
    source = "Data: the history of the result; proved bounds on the error of the values and on the plain residual."
    if history is None or not history.seconds.size:
        return Section(title, source, (_NO_HISTORY,))
    against = [("seconds", "seconds of work", history.seconds)]
    if history.bytes_read[-1] > 0:
        against.append(("bytes", "MiB read", history.bytes_read / _MEBIBYTE))
    charts = []
    rows = every(history.seconds.size, _MOST_ROWS)
    for name, label, x in against:
        chart = new_figure(HALF, 300, y_axis_type="log", x_axis_label=label, name=f"convergence-{name}")
        for key, word, colour in (
            ("error_bound", "error bound", BLUE),
            ("residual_bound", "residual bound", ORANGE),
        ):
            y = getattr(history, key)[rows]
            chart.line(x[rows], positive(y), color=colour, line_width=2, legend_label=word)
            chart.scatter(x[rows][-1:], positive(y[-1:]), color=colour, size=6)
        if solution.certificate.target > 0:
            chart.add_layout(
                Span(location=solution.certificate.target, dimension="width", line_dash="dashed", line_color=GREY)
            )
        charts.append(chart)
    return Section(
        title,
        source,
        (f"The dashed line is the target: {solution.certificate.stopping_rule} {solution.certificate.target:.3g}.",),
        charts=(tuple(charts),),
    )


def positive(y: FloatArray) -> FloatArray:
    """What a logarithmic axis can show; NaN for the rest."""
    shown: FloatArray = np.where(np.isfinite(y) & (y > 0), y, np.nan)
    return shown


def hit_rate_section(history: SolveHistory | None) -> Section:
    """Hits over accesses, so far and lately; partitions that are resident and dirty."""
    title, source = (
        "Cache",
        "Data: the history of the result; hit rate of visits (exact priorities have other accesses, too), and "
        " partitions in the cache and above the target.",
    )
    if history is None or history.seconds.size < 2:
        return Section(title, source, (_NO_HISTORY if history is None else "The history has a single row.",))
    hits, accesses = history.hits.astype(np.float64), (history.hits + history.misses).astype(np.float64)
    window = max(1, hits.size // 50)
    before = np.maximum(np.arange(hits.size) - window, 0)
    rows = every(hits.size, _MOST_ROWS)
    rate = new_figure(
        HALF, 260, x_axis_label="seconds of work", y_range=(0, 1), title="Hit rate of visits", name="hit-rate"
    )
    seconds = history.seconds[rows]
    lately = _ratio(hits - hits[before], accesses - accesses[before])[rows]
    rate.line(seconds, lately, color=GREY, legend_label="lately")
    rate.line(seconds, _ratio(hits, accesses)[rows], color=BLUE, line_width=2, legend_label="so far")
    rate.legend.location = "bottom_right"
    parts = new_figure(
        HALF, 260, x_axis_label="seconds of work", x_range=rate.x_range, title="Partitions", name="cached-partitions"
    )
    parts.line(seconds, history.dirty[rows], color=ORANGE, line_width=2, legend_label="above the target")
    parts.line(seconds, history.resident[rows], color=BLUE, line_width=2, legend_label="in the cache")
    return Section(title, source, charts=((rate, parts),))


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    ratio: FloatArray = np.divide(part, whole, out=np.full(part.size, np.nan), where=whole > 0)
    return ratio


def access_section(history: SolveHistory | None, trace: AccessTrace | None) -> Section:
    """Partitions against time: where the solve works when, and so how values spread."""
    title = "Accesses over time"
    chart = new_figure(WIDE, 380, x_axis_label="seconds", y_axis_label="partition", name="accesses")
    if trace is not None:
        shown = _shown_accesses(trace)
        chart.xaxis.axis_label = "seconds since the trace began"
        for word, colour, hit in (("resident", BLUE, True), ("loaded", ORANGE, False)):
            these = shown[trace.hit[shown] == hit]
            _dots(chart, trace.seconds[these], trace.partition[these], colour, word)
        sentence = f"{shown.size:,} of {trace.partition.size:,} accesses are drawn, loads first."
        return Section(title, f"Data: the trace {trace.path.name}.", (sentence,), charts=((chart,),))
    source = "Data: the history of the result; a trace (solve --trace FILE, report --trace FILE) has every access."
    if history is None:
        return Section(title, source, (_NO_HISTORY,))
    visited = np.flatnonzero(~np.isnan(history.first_visit))
    if not visited.size:
        return Section(title, source, ("No partition was visited.",))
    these = visited[every(visited.size, _MOST_POINTS // 2)]
    _dots(chart, history.last_visit[these], these, BLUE, "last visit")
    _dots(chart, history.first_visit[these], these, ORANGE, "first visit")
    sentence = f"The first and the last visit of {these.size:,} of {history.loads.size:,} partitions."
    return Section(title, source, (sentence,), charts=((chart,),))


def _shown_accesses(trace: AccessTrace) -> IntArray:
    """Indices of at most _MOST_POINTS accesses: loads first, then others, evenly."""
    loads, others = np.flatnonzero(~trace.hit), np.flatnonzero(trace.hit)
    loads = loads[every(loads.size, _MOST_POINTS)]
    left = _MOST_POINTS - loads.size
    return np.sort(np.concatenate([loads, others[every(others.size, left)] if left else others[:0]]))


def _dots(chart: Any, x: FloatArray, y: IntArray, colour: str, word: str) -> None:
    chart.scatter(
        x.astype(np.float32), y.astype(np.int32), size=3, color=colour, alpha=0.7, line_color=None, legend_label=word
    )
    chart.legend.click_policy = "hide"


def time_section(solution: Solution) -> Section:
    """Where the time went, as far as it is recorded."""
    s = solution.statistics
    seconds = {"solving (wall time)": s.solve_seconds, "reading and decoding (all threads)": s.load_seconds}
    if s.source == "recomputed":
        seconds = {"solving (wall time)": s.solve_seconds, "recomputing tables (all threads)": s.load_seconds}
    seconds |= {f"worker {w.worker} idle": w.idle_seconds for w in s.workers[:32]}
    return Section(
        "Time",
        "Data: the statistics of the result.",
        ("Loads run on threads beside the sweeps. Single events (read, decode, copy, sweep, wait) are not recorded.",),
        charts=((_bars(seconds, "seconds", "time"),),),
    )


def memory_section(solution: Solution, peak: int | None) -> Section:
    """Planned bytes by name, and what was measured: the peak of the process, and of the cache."""
    title = "Memory"
    source = "Data: the memory plan and the statistics of the result."
    planned = {
        f"{name}{' (device)' if place == 'device' else ''}": size
        for place in ("host", "device")
        for name, size in sorted(solution.memory_plan.get(place, {}).items(), key=lambda item: -item[1])
        if size
    }
    s = solution.statistics
    on_host = sum(solution.memory_plan.get("host", {}).values())
    rows = (
        Row("planned, RAM", f"{on_host / _MEBIBYTE:,.1f} MiB"),
        Row("process, measured", "not recorded" if peak is None else f"at most {peak / _MEBIBYTE:,.1f} MiB of RAM"),
        Row(
            "cache, measured",
            f"at most {s.cache_peak_bytes / _MEBIBYTE:,.2f} MiB of {s.cache_bytes / _MEBIBYTE:,.2f} MiB were in use",
        ),
    )
    if not planned:
        return Section(title, source, ("The memory plan is not recorded.",), rows[1:])
    bars = _bars({name: size / _MEBIBYTE for name, size in planned.items()}, "MiB planned", "memory")
    return Section(title, source, (), rows, charts=((bars,),))


def _bars(lengths: dict[str, float], label: str, name: str) -> Any:
    names = [each.replace("$$", "$ $") for each in lengths]  # $$ begins a formula
    chart = new_figure(WIDE, 60 + 24 * len(names), y_range=names[::-1], x_axis_label=label, name=name)
    source = ColumnDataSource({"name": names, "length": list(lengths.values())})
    chart.hbar(y="name", right="length", height=0.7, color=BLUE, source=source)
    chart.add_tools(HoverTool(tooltips=[("", "@name: @length{0,0.00}")]))
    chart.x_range.start = 0
    return chart
