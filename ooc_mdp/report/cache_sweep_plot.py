"""A cache sweep as a plot: loads per partition, hit rate, bytes and seconds of each solve against the cache.

Dots are solves. Where the order of accesses does not depend on the cache, thin lines show the loads and the hit rate of
the same accesses under LRU (solid) and Belady's optimum (dotted) for every size, as in Wingate (2004, figures 12.12 to
12.17). Solves that did not reach their target are left out. A Figure of matplotlib, saved; no window.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.report.cache_plot import check_plot, matplotlib_classes
from ooc_mdp.report.cache_sweep import CachePoint, CacheSweep, SameAccesses
from ooc_mdp.report.cache_sweep_report import sorted_points
from ooc_mdp.store.atomic_file import atomic_file

__all__ = ["plot_cache_sweep"]

_PANELS: tuple[tuple[str, Callable[[CachePoint], float]], ...] = (
    ("loads per partition", lambda p: p.loads_per_partition),
    ("hit rate, % of the accesses", lambda p: 100 * p.hit_rate),
    ("bytes read, MiB", lambda p: p.bytes_read / (1 << 20)),
    ("seconds of the solve", lambda p: p.solve_seconds),
)
_HIT_RATE = 1


def plot_cache_sweep(sweep: CacheSweep, file: Path, *, overwrite: bool = False) -> None:
    """Draw all solves that reached their target; the suffix of `file` chooses PNG, SVG or PDF.

    Raises
    ------
    OptionsError, MissingExtraError : see :func:`ooc_mdp.report.cache_plot.check_plot`.
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    points = {name: [p for p in each if p.reached] for name, each in sorted_points(sweep).items()}
    check_plot(file, len(points))
    new_figure, new_line = matplotlib_classes()
    figure = new_figure(figsize=(11.0, 8.0), layout="constrained", dpi=100)
    panels = list(figure.subplots(2, 2, sharex=True).flat)
    for panel, (title, figure_of) in zip(panels, _PANELS, strict=True):
        for number, solves in enumerate(points.values()):
            percent = [100 * p.fraction for p in solves]
            heights = [figure_of(p) for p in solves]
            panel.plot(percent, heights, color=f"C{number}", marker="o", linewidth=1.6)
        panel.set_ylabel(title)
        panel.grid(alpha=0.3)
    _draw_same_accesses(sweep, list(points), panels)
    _scale(panels, sorted({round(100 * p.fraction, 3) for each in points.values() for p in each}))
    keys = [new_line([], [], color=f"C{n}", marker="o", label=f"{name}, solves") for n, name in enumerate(points)]
    if sweep.same_accesses:
        look = {"color": "black", "linewidth": 0.8}
        keys.append(new_line([], [], label="the same accesses, LRU", **look))
        keys.append(new_line([], [], linestyle=":", label="the same accesses, Belady's optimum", **look))
    figure.suptitle("A solve with each cache")
    figure.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False)
    with atomic_file(file, overwrite=overwrite) as temporary:
        figure.savefig(temporary, format=file.suffix[1:])


def _draw_same_accesses(sweep: CacheSweep, schedules: list[str], panels: Any) -> None:
    """Lines of the schedules whose order of accesses does not depend on the cache."""
    for number, name in enumerate(schedules):
        same = sweep.replayed(name)
        if same is not None:
            for loads, dashes in ((same.lru_loads, "-"), (same.belady_loads, ":")):
                _draw_replay(same, np.array(loads[1:]), panels, {"color": f"C{number}", "linestyle": dashes})


def _draw_replay(same: SameAccesses, loads: Any, panels: Any, look: dict[str, str]) -> None:
    percent = 100 * np.arange(1, loads.size + 1) / loads.size
    panels[0].plot(percent, loads / loads.size, linewidth=0.8, **look)
    panels[_HIT_RATE].plot(percent, 100 * (1 - loads / max(same.accesses, 1)), linewidth=0.8, **look)


def _scale(panels: Any, sizes: list[float]) -> None:
    """Logarithmic axes, but for the hit rate, with a tick at each measured size."""
    for number, panel in enumerate(panels):
        panel.set_xscale("log", subs=[])
        ticks = sorted({*sizes, 100.0})
        panel.set_xticks(ticks, [f"{size:g}" for size in ticks])
        panel.xaxis.set_minor_formatter("")
        if sizes:
            panel.set_xlim(0.8 * sizes[0], max(100.0, 1.1 * sizes[-1]))
        if number == _HIT_RATE:
            panel.set_ylim(0, 100)
        else:
            panel.set_yscale("log", subs=[2, 5])
            for formatter in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
                formatter("{x:g}")
        if number >= 2:
            panel.set_xlabel("cache size, % of the table")
