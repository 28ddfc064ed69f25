"""Loads with other cache sizes: measured by a cache sweep, or replayed where the accesses would be the same ones."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from bokeh.models import HoverTool
from bokeh.palettes import Category10

from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.report.cache_curve import cache_curve
from ooc_mdp.report.cache_sweep import CacheSweep
from ooc_mdp.report.cache_trace import AccessTrace
from ooc_mdp.report.html.charts import BLUE, HALF, ORANGE, every, new_figure, positive
from ooc_mdp.report.html.section import Section

__all__ = ["caches_section"]

_MOST_SIZES = 1_000
_MOST_WORK = 2_000_000_000
"""Accesses times partitions, which a replay takes a few seconds for."""


def caches_section(statistics: SolveStatistics, trace: AccessTrace | None, sweep: CacheSweep | None) -> Section:
    """Loads per partition against the size of the cache."""
    sources, sentences, charts = [], [], []
    if sweep is None:
        sentences.append(
            "No loads with other caches were measured: solves with several caches (ooc-mdp cache-sweep) give them, and "
            "report --cache-sweep FILE draws them."
        )
    else:
        sources.append("solves with each of these caches")
        charts += [_measured(sweep, statistics, *what) for what in _MEASURED]
    if trace is not None and not trace.order_is_fixed:
        sentences.append(
            f"The trace is not replayed under other caches: the order of accesses of the method {trace.method} depends "
            f"on the cache, so that a replay would predict no other solve."
        )
    elif trace is not None and trace.partition.size * trace.n_partitions > _MOST_WORK:
        sentences.append(
            f"The trace is not replayed here: {trace.partition.size:,} accesses to {trace.n_partitions:,} partitions "
            f"take long. ooc-mdp cache-curve replays them."
        )
    elif trace is not None:
        sources.append("the accesses of the trace, replayed under other caches")
        charts.append(_replayed(trace))
    rows = tuple(tuple(charts[i : i + 2]) for i in range(0, len(charts), 2))
    source = "; ".join(sources) or "solves of the same table with other caches"
    return Section("Other cache sizes", f"Data: {source}.", tuple(sentences), charts=rows)


_MEASURED = (
    ("loads_per_partition", "loads per partition, measured", "log"),
    ("hit_rate", "hit rate, measured", "linear"),
)


def _measured(sweep: CacheSweep, statistics: SolveStatistics, name: str, label: str, axis: str) -> Any:
    chart = new_figure(
        HALF, 300, x_axis_label="cache, % of the table", y_axis_label=label, y_axis_type=axis, name=f"sweep-{name}"
    )
    reached = sorted((p for p in sweep.points if p.reached), key=lambda p: p.fraction)
    schedules = dict.fromkeys(p.schedule for p in sweep.points if p.reached)
    for schedule, colour in zip(schedules, cycle(Category10[10]), strict=False):
        solves = [p for p in reached if p.schedule == schedule]
        x, y = [100 * p.fraction for p in solves], [getattr(p, name) for p in solves]
        chart.line(x, y, color=colour, line_width=2, legend_label=schedule)
        chart.scatter(x, y, color=colour, size=7, legend_label=schedule)
    if statistics.table_bytes:
        own = 100 * min(1.0, statistics.cache_bytes / statistics.table_bytes)
        chart.scatter(
            [own], [getattr(statistics, name)], marker="x", size=12, color="black", legend_label="this result"
        )
    chart.add_tools(HoverTool(tooltips=[("cache", "$x %"), (label, "$y")]))
    return chart


def _replayed(trace: AccessTrace) -> Any:
    chart = new_figure(
        HALF, 300, x_axis_label="cache, % of the partitions", y_axis_label="loads per partition, replayed",
        y_axis_type="log", name="replay",
    )  # fmt: skip
    for policy, word, colour in (("lru", "least recently used", BLUE), ("belady", "Belady's optimum", ORANGE)):
        curve = cache_curve(trace, policy, "frontier")  # type: ignore[arg-type]
        sizes = 1 + every(curve.n_partitions, _MOST_SIZES)
        loads = positive(curve.loads_per_partition[sizes])
        chart.line(100 * sizes / curve.n_partitions, loads, color=colour, line_width=2, legend_label=word)
    return chart
