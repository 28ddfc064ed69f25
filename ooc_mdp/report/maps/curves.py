"""Values and policy of states that are no grid, or a grid of one axis, as a figure of matplotlib.

Without a grid: the values in descending order, which show their distribution, and the share of the states in which
each action is taken. With one axis: value, or action, along it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_mdp.report.figures import new_figure, plain
from ooc_mdp.report.maps import MapOptions
from ooc_mdp.report.maps.colours import action_words, shown_actions
from ooc_mdp.report.maps.drawing import action_colours
from ooc_mdp.report.maps.slices import GridAxis
from ooc_mdp.report.maps.words import heading, proved, value_word
from ooc_mdp.store.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves"]

_MOST_POINTS, _MOST_ACTIONS = 5_000, 20


def draw_curves(result: Result, options: MapOptions, axis: GridAxis) -> Figure:
    """Sorted values and shares of the actions; or value or action along the one axis of a grid."""
    if result.geometry is None:
        return _distributions(result)
    figure = new_figure(figsize=(7.2, 4.6), layout="constrained", dpi=150)
    panel = figure.subplots()
    panel.set_xlabel(plain(axis.label))
    panel.grid(alpha=0.3)
    rows = _some(result.values.size)
    if options.shown == "value":
        _draw_band(panel, axis.positions[rows], result.values[rows], result)
        if options.limits is not None:
            panel.set_ylim(*options.limits)
    else:
        _draw_actions(panel, axis.positions[rows], rows, result)
    shown = value_word(result) if options.shown == "value" else "policy"
    figure.suptitle(plain(f"{heading(result, shown)}\n{proved(result)}"), fontsize=10)
    return figure


def _distributions(result: Result) -> Figure:
    figure = new_figure(figsize=(9.6, 4.2), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    rows = _some(result.values.size)
    _draw_band(left, 100.0 * rows / max(1, result.values.size - 1), -np.sort(-result.values)[rows], result)
    left.set_xlabel("states in descending order of their value, %")
    left.grid(alpha=0.3)
    words = sorted(action_words(result), key=lambda word: -word.share)
    some = sorted(words[:_MOST_ACTIONS], key=lambda word: word.action)
    bars = right.barh([word.words for word in some], [100 * word.share for word in some], color="C0")
    right.bar_label(bars, fmt="%.1f%%", padding=3, fontsize=8)
    right.margins(x=0.15)
    right.invert_yaxis()
    right.set_xlabel("states in which the policy takes the action, %")
    rest = f"; the {len(some)} most frequent of {len(words)} actions" if len(some) < len(words) else ""
    title = f"{heading(result, value_word(result) + ' and policy')}, {result.values.size:,} states"
    figure.suptitle(plain(f"{title}\n{proved(result)}{rest}"), fontsize=10)
    return figure


def _some(n: int) -> Any:
    return np.unique(np.linspace(0, n - 1, min(n, _MOST_POINTS)).astype(np.int64))


def _draw_band(panel: Any, x: Any, values: Any, result: Result) -> None:
    """The values, and between which bounds the exact ones lie."""
    finite = np.where(np.isfinite(values), values, np.nan)
    bound = result.solution.error_bound
    if result.solution.gain is None and np.isfinite(bound):
        panel.fill_between(x, finite - bound, finite + bound, color="C0", alpha=0.25, linewidth=0)
    panel.plot(x, finite, color="C0", linewidth=1.4)
    panel.set_ylabel(value_word(result))


def _draw_actions(panel: Any, x: Any, rows: Any, result: Result) -> None:
    words = action_words(result)
    places = {word.action: place for place, word in enumerate(words)}
    colours = action_colours(words, result)
    taken = [places[a] for a in shown_actions(result)[rows].tolist()]
    panel.scatter(x, taken, c=[colours[place] for place in taken], s=8, linewidths=0)
    panel.set_yticks(range(len(words)), [word.words for word in words])
