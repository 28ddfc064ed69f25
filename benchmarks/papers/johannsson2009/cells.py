"""Cells and columns of the Markdown tables: how figures are found and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["NOT", "Run", "Table", "count", "if_solved", "mean_seconds", "number", "run_of", "speed_up"]

NOT = "-"
"""Where there is no figure: not run, or seconds of a schedule."""
Table = list[str]
Run = dict[str, Any]


def run_of(world: Mapping[str, Any], what: str) -> Run:
    """What solved a world under that name."""
    return next((run for run in world["runs"] if run["what"] == what), {"what": what, "outcome": "not run"})


def number(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return NOT
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def count(value: float | None) -> str:
    """A whole number, or three digits of a mean."""
    return number(value) if value is None or value != int(value) else f"{value:,.0f}"


def if_solved(run: Run, value: Callable[[Run], float | None], write: Callable[[float | None], str] = number) -> str:
    """The figure of a solve that reached its target."""
    if run["outcome"] == "time_limit":
        return "not finished"
    return write(value(run)) if run["outcome"] == "residual_reached" else NOT


def mean_seconds(run: Run) -> float | None:
    """To convergence, without the best and the worst run."""
    return run["seconds"]["mean"] if "seconds" in run else None


def speed_up(world: Mapping[str, Any], what: str, key: str) -> float | None:
    """Seconds of the sequential baseline over those of a kernel: to convergence ("seconds"), or "sweep_seconds"."""

    def value(run: Run) -> float | None:
        return mean_seconds(run) if key == "seconds" else run.get(key)

    ours, base = value(run_of(world, what)), value(run_of(world, "sequential"))
    return base / ours if ours and base else None
