"""Draw figures 6.1 to 6.7 of the thesis from what run.py wrote: `python plots.py FILE.json [--folder FOLDER]`.

Each becomes one SVG. Worlds are ordered by computational cost, as in the thesis, whose own curves are given without
numbers; figure 6.5 has those of its table 6.2 as dashed lines. What was not measured is left out; nothing is solved.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from claims import SPEED_UPS
from matplotlib.figure import Figure

COLOURS = {"sequential": "C7", "plain": "C4", "bdi": "C0", "bdi-buffered": "C9", "bdi-priority": "C5", "rdi": "C1",
           "rdi-actions": "C3", "tiles": "C2", "CPU engine": "C8"}  # fmt: skip
_Value = Callable[[dict[str, Any], dict[str, Any]], float | None]
"""What is drawn of a run in a world."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON file that run.py wrote")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent, help="where the plots go")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    figures = json.loads(options.file.read_text())
    # Text stays text, and nothing in a file depends on when it was drawn.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "johannsson2009"}):
        for name, draw in DRAW.items():
            drawn = draw(figures)
            drawn.savefig(options.folder / f"figure-{name}.svg", format="svg", metadata={"Date": None})
            print(f"figure-{name}.svg")


def _milliseconds(run: dict[str, Any], world: dict[str, Any]) -> float | None:
    return 1e3 * run["seconds"]["mean"] if "seconds" in run else None


def _sweeps(run: dict[str, Any], world: dict[str, Any]) -> float | None:
    return run.get("sweeps")


def _sweep_milliseconds(run: dict[str, Any], world: dict[str, Any]) -> float | None:
    return 1e3 * run["sweep_seconds"] if "sweep_seconds" in run else None


def _nanoseconds_a_unit(run: dict[str, Any], world: dict[str, Any]) -> float | None:
    return 1e9 * run["sweep_seconds"] / world["cost"] if "sweep_seconds" in run else None


def _speed_up(run: dict[str, Any], world: dict[str, Any]) -> float | None:
    base = world["runs"][0]
    if run["what"] == "sequential" or "seconds" not in run or "seconds" not in base:
        return None
    return base["seconds"]["mean"] / run["seconds"]["mean"]


def draw_worlds(figures: dict[str, Any], value: _Value, up: str, scale: str) -> Figure:
    """A line for each solver against the worlds."""
    worlds = sorted(figures["worlds"], key=lambda world: world["cost"])
    drawn = Figure(figsize=(7.0, 4.4), layout="constrained")
    panel = drawn.subplots()
    ours = figures.get("default", [])
    runs = [world["runs"] + [run for run in ours if run["name"] == world["name"]] for world in worlds]
    draw_lines(panel, [{**world, "runs": each} for world, each in zip(worlds, runs, strict=True)], value)
    if value is _speed_up:
        for word in ("bdi", "rdi"):
            known = [(i, SPEED_UPS[w["name"]][word][0]) for i, w in enumerate(worlds) if w["name"] in SPEED_UPS]
            if known:
                panel.plot(*zip(*known, strict=True), "--", color=COLOURS[word], lw=0.9, label=f"thesis, {word}")
    names = [world["name"].removeprefix("GW-") for world in worlds]
    panel.set_xticks(range(len(worlds)), names, rotation=45, ha="right", fontsize=8)
    finish(panel, "worlds, by computational cost", up, scale)
    return drawn


def draw_locality(figures: dict[str, Any]) -> Figure:
    """Sweeps against the share of random successors."""
    worlds = figures["locality"]
    drawn = Figure(figsize=(7.0, 4.4), layout="constrained")
    panel = drawn.subplots()
    draw_lines(panel, worlds, _sweeps)
    panel.set_xticks(range(len(worlds)), [f"{100 * world['random']:.0f}%" for world in worlds])
    finish(panel, f"random successors in {worlds[0]['name']}", "sweeps", "linear")
    panel.set_ylim(0, None)
    return drawn


def draw_lines(panel: Any, worlds: list[dict[str, Any]], value: _Value) -> None:
    for what in dict.fromkeys(run["what"] for world in worlds for run in world["runs"]):
        across = []
        for world in worlds:
            runs = [run for run in world["runs"] if run["what"] == what and run["outcome"] == "residual_reached"]
            found = value(runs[0], world) if runs else None
            across.append(math.nan if found is None else found)  # NaN interrupts a line
        if not all(map(math.isnan, across)):
            panel.plot(across, "o-", color=COLOURS[what], ms=3.5, lw=1.2, label=what)


def finish(panel: Any, across: str, up: str, scale: str) -> None:
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    panel.set_yscale(scale)
    panel.grid(alpha=0.3)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(fontsize=7)


DRAW: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "6.1": lambda f: draw_worlds(f, _milliseconds, "milliseconds to convergence", "linear"),
    "6.2": lambda f: draw_worlds(f, _milliseconds, "milliseconds to convergence", "log"),
    "6.3": lambda f: draw_worlds(f, _sweeps, "sweeps (backups per state)", "linear"),
    "6.4": lambda f: draw_worlds(f, _sweep_milliseconds, "milliseconds a sweep", "log"),
    "6.5": lambda f: draw_worlds(f, _speed_up, "speed-up over the sequential baseline", "log"),
    "6.6": draw_locality,
    "6.7": lambda f: draw_worlds(f, _nanoseconds_a_unit, "nanoseconds a unit of computational cost", "log"),
}
"""By the number of the thesis's figure."""

if __name__ == "__main__":
    main()
