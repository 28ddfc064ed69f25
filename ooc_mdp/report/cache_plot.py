"""Cache curves as a plot, in the manner of Wingate (2004, figures 12.12 to 12.17).

Upper panels: hit rate; lower panels: loads per partition, on a logarithmic scale; both against the cache size as a
share of the partitions. A column for each scope of accesses. One trace has a colour for each policy, several have a
colour for each trace and a dash pattern for each policy; a dot marks the knee. No window and no global state of
matplotlib: a Figure, saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.report.cache_curve import POLICIES, SCOPES, CacheCurve
from ooc_mdp.report.cache_report import POLICY_WORDS, REPLAYED, SCOPE_WORDS, TraceCurves
from ooc_mdp.store.atomic_file import atomic_file

__all__ = ["PLOT_FORMATS", "check_plot", "matplotlib_classes", "plot_cache_curves"]

PLOT_FORMATS = (".png", ".svg", ".pdf")

_DASHES = {"belady": ":", "lru": "-", "fifo": "--", "clock": "-.", "priority": (0, (1, 3))}
_MAX_TRACES = 10
"""Colours of matplotlib's default cycle, C0 to C9."""


def check_plot(file: Path, n_traces: int) -> None:
    """Refuse a plot that could not be drawn, before there is any work.

    Raises
    ------
    OptionsError : the suffix is none of PLOT_FORMATS, or there are more traces than colours.
    MissingExtraError : matplotlib is not installed.
    """
    if n_traces > _MAX_TRACES:
        raise OptionsError(f"{n_traces} traces cannot be told apart in one plot; draw at most {_MAX_TRACES}")
    if file.suffix not in PLOT_FORMATS:
        raise OptionsError(f"cannot plot to {file.name}: the name must end in {', '.join(PLOT_FORMATS)}")
    matplotlib_classes()


def plot_cache_curves(traces: Sequence[TraceCurves], file: Path, *, overwrite: bool = False) -> None:
    """Draw the curves of all traces; the suffix of `file` chooses PNG, SVG or PDF.

    Raises
    ------
    OptionsError, MissingExtraError : see :func:`check_plot`.
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    check_plot(file, len(traces))
    new_figure, new_line = matplotlib_classes()
    curves = [curve for each in traces for curve in each.curves]
    scopes = [scope for scope in SCOPES if any(curve.scope == scope for curve in curves)]
    policies = [policy for policy in POLICIES if any(curve.policy == policy for curve in curves)]
    one = len(traces) == 1
    figure = new_figure(figsize=(6.0 * len(scopes) + 1, 7.0), layout="constrained", dpi=100)
    panels = figure.subplots(2, len(scopes), squeeze=False, sharex=True)
    for rates, loads, scope in zip(panels[0], panels[1], scopes, strict=True):
        for number, each in enumerate(traces):
            for curve in each.curves:
                if curve.scope == scope:
                    colour = f"C{policies.index(curve.policy) if one else number}"
                    _draw(rates, loads, curve, colour)
        _name_axes(rates, loads, SCOPE_WORDS[scope])
    keys = [] if one else [new_line([], [], color=f"C{n}", label=_literally(t.label)) for n, t in enumerate(traces)]
    keys += [
        new_line([], [], color=f"C{n}" if one else "black", linestyle=_DASHES[policy], label=POLICY_WORDS[policy])
        for n, policy in enumerate(policies)
    ]
    keys.append(new_line([], [], color="black", linestyle="none", marker="o", label="knee"))
    figure.suptitle(_title(traces))
    figure.legend(handles=keys, loc="outside lower center", ncols=5, frameon=False)
    with atomic_file(file, overwrite=overwrite) as temporary:
        figure.savefig(temporary, format=file.suffix[1:])


def _title(traces: Sequence[TraceCurves]) -> str:
    """What the curves show, and of which traces they predict no other solve."""
    what, _, bound = REPLAYED.partition(": ")
    lines = [f"{what.capitalize()}:", bound]
    moved = [_literally(each.label) for each in traces if not each.trace.order_is_fixed]
    if moved:
        lines.append(f"no prediction of solves with these caches: {', '.join(moved)}")
    return "\n".join(lines)


def _literally(label: str) -> str:
    """A label without what matplotlib reads into one: $ begins a formula, and a leading _ hides it."""
    return label.replace("$", r"\$") if not label.startswith("_") else _literally(f" {label}")


def matplotlib_classes() -> tuple[Any, Any]:
    """The classes Figure and Line2D; a Figure saves itself by the Agg, SVG or PDF backend, as its file asks."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing a plot") from error
    return Figure, Line2D


def _draw(rates: Any, loads: Any, curve: CacheCurve, colour: str) -> None:
    percent = 100 * np.arange(1, curve.n_partitions + 1) / curve.n_partitions
    rate = 100 * curve.hit_rate
    dot = "." if curve.n_partitions == 1 else ""  # a line needs two sizes
    look = {"color": colour, "linestyle": _DASHES[curve.policy], "linewidth": 1.6, "marker": dot, "clip_on": not dot}
    rates.plot(percent, rate[1:], **look)
    loads.plot(percent, curve.loads_per_partition[1:], **look)
    best = curve.knee
    if best is not None:
        rates.plot([100 * best / curve.n_partitions], [rate[best]], color=colour, marker="o", linestyle="none")


def _name_axes(rates: Any, loads: Any, title: str) -> None:
    rates.set_title(title, fontsize="medium")
    rates.set_ylabel("hit rate, % of the accesses")
    rates.set_xlim(0, 100)
    rates.set_ylim(0, 100)
    loads.set_xlabel("cache size, % of the partitions")
    loads.set_ylabel("loads per partition")
    loads.set_yscale("log", subs=[2, 5])
    loads.yaxis.set_major_formatter("{x:g}")
    loads.yaxis.set_minor_formatter("{x:g}")
    for panel in (rates, loads):
        panel.grid(alpha=0.3)
