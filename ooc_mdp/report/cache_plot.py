"""Cache curves as a plot, in the manner of Wingate (2004, figures 12.12 to 12.17).

Left axis: hit rate; right axis, thin lines: loads per partition, on a logarithmic scale; both against the cache size as
a share of the partitions. A panel for each scope of accesses, a colour for each trace, a dash pattern for each policy;
a dot marks the knee. No window and no global state of matplotlib: a Figure, saved.
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

__all__ = ["PLOT_FORMATS", "check_plot", "plot_cache_curves"]

PLOT_FORMATS = (".png", ".svg", ".pdf")

_DASHES = {"lru": "-", "priority": "--", "belady": ":"}
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
    _matplotlib()


def plot_cache_curves(traces: Sequence[TraceCurves], file: Path, *, overwrite: bool = False) -> None:
    """Draw the curves of all traces; the suffix of `file` chooses PNG, SVG or PDF.

    Raises
    ------
    OptionsError, MissingExtraError : see :func:`check_plot`.
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    check_plot(file, len(traces))
    new_figure, new_line = _matplotlib()
    curves = [curve for each in traces for curve in each.curves]
    scopes = [scope for scope in SCOPES if any(curve.scope == scope for curve in curves)]
    policies = [policy for policy in POLICIES if any(curve.policy == policy for curve in curves)]
    figure = new_figure(figsize=(7.0 * len(scopes), 5.5), layout="constrained", dpi=150)
    for panel, scope in zip(figure.subplots(1, len(scopes), squeeze=False)[0], scopes, strict=True):
        right = panel.twinx()
        for number, each in enumerate(traces):
            for curve in each.curves:
                if curve.scope == scope:
                    _draw(panel, right, curve, f"C{number}")
        _name_axes(panel, right, SCOPE_WORDS[scope])
    keys = [new_line([], [], color=f"C{n}", label=_literally(each.label)) for n, each in enumerate(traces)]
    keys += [new_line([], [], color="black", linestyle=_DASHES[p], label=POLICY_WORDS[p]) for p in policies]
    keys += [
        new_line([], [], color="black", linewidth=2.0, label="hit rate (left)"),
        new_line([], [], color="black", linewidth=0.8, label="loads per partition (right)"),
        new_line([], [], color="black", linestyle="none", marker="o", label="knee"),
    ]
    figure.suptitle(_title(traces))
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False)
    with atomic_file(file, overwrite=overwrite) as temporary:
        figure.savefig(temporary, format=file.suffix[1:])


def _title(traces: Sequence[TraceCurves]) -> str:
    """What the curves show, and of which traces they predict no other solve."""
    moved = [_literally(each.label) for each in traces if not each.trace.order_is_fixed]
    what = REPLAYED.capitalize()
    return f"{what}\nno prediction of solves with these caches: {', '.join(moved)}" if moved else what


def _literally(label: str) -> str:
    """A label without what matplotlib reads into one: $ begins a formula, and a leading _ hides it."""
    return label.replace("$", r"\$") if not label.startswith("_") else _literally(f" {label}")


def _matplotlib() -> tuple[Any, Any]:
    """The classes Figure and Line2D; a Figure saves itself by the Agg, SVG or PDF backend, as its file asks."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing a plot") from error
    return Figure, Line2D


def _draw(left: Any, right: Any, curve: CacheCurve, colour: str) -> None:
    percent = 100 * np.arange(1, curve.n_partitions + 1) / curve.n_partitions
    rate = 100 * curve.hit_rate
    dashes = _DASHES[curve.policy]
    dot = "." if curve.n_partitions == 1 else ""  # a line needs two sizes
    left.plot(percent, rate[1:], color=colour, linestyle=dashes, linewidth=2.0, marker=dot, clip_on=not dot)
    right.plot(
        percent, curve.loads_per_partition[1:], color=colour, linestyle=dashes, linewidth=0.8, marker=dot,
        clip_on=not dot,
    )  # fmt: skip
    best = curve.knee
    if best is not None:
        left.plot([100 * best / curve.n_partitions], [rate[best]], color=colour, marker="o", linestyle="none")


def _name_axes(left: Any, right: Any, title: str) -> None:
    left.set_title(title)
    left.set_xlabel("cache size, % of the partitions")
    left.set_ylabel("hit rate, % of the accesses")
    left.set_xlim(0, 100)
    left.set_ylim(0, 100)
    left.grid(alpha=0.3)
    right.set_ylabel("loads per partition")
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
