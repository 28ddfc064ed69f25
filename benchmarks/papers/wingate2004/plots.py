"""Draw the figures of chapter 12 from what run.py wrote: `python plots.py FILE.json ... [--folder FOLDER]`.

Each thesis figure becomes one PNG, a panel for each of its tables; what the thesis says in numbers is marked with a
cross or a dashed line. Solves that did not finish are left out. Nothing is solved here.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

COLOURS = {"VI": "C7", "H1": "C0", "H2": "C1", "joint": "C2", "VI, 8 sweeps a visit": "C5"}
PICTURE = {"x": "#303030", "0": "#909090", "1": "#b8b8b8", "2": "#e8e8e8"}
"""Figure 12.20: never processed, and the thrusts -1, 0 and 1."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="JSON files that run.py wrote")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent, help="where the plots go")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for file in options.files:
        for name, figure in json.loads(file.read_text())["figures"].items():
            if name in DRAW:
                write(DRAW[name](figure), options.folder / f"figure-{name}.png")
                print(f"figure-{name}.png")


def write(drawn: Figure, file: Path) -> None:
    """As a PNG of 64 colours, which is a third of the bytes."""
    whole = io.BytesIO()
    drawn.savefig(whole, format="png", dpi=80)
    Image.open(whole).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)


def style(variant: str) -> dict[str, Any]:
    """Colour by algorithm, full lines with voting, as it is by default."""
    voted = variant.endswith("voting") or variant == "joint"
    return {
        "color": COLOURS[variant.removesuffix(", voting")],
        "linestyle": "-" if voted else "--",
        "marker": "o" if voted else ".",
        "markersize": 4,
        "label": variant,
    }


def panels(count: int, width: float = 5.0, height: float = 4.2) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def draw_methods(figure: dict[str, Any]) -> Figure:
    """Seconds and backups against the number of states."""
    drawn, (left, right) = panels(2)
    claim = figure["thesis"]
    draw_lines(left, figure["tables"], "states", lambda s: s["cpu_seconds"]["min"])
    draw_lines(right, figure["tables"], "states", lambda s: s["backups"])
    for variant, seconds in claim["seconds"].items():
        mark = {"color": COLOURS[variant.removesuffix(", voting")], "marker": "x", "linestyle": "none"}
        left.plot([claim["states"]], [seconds], label=f"thesis, {variant}", **mark)
    name_axes(left, figure["tables"][0]["label"], "states", "processor seconds")
    name_axes(right, figure["tables"][0]["label"], "states", "backups")
    left.legend(fontsize=7)
    return drawn


def draw_partitions(figure: dict[str, Any]) -> Figure:
    """Seconds and backups a state against the number of partitions; value iteration is a line across."""
    grids = list(dict.fromkeys((table["label"], table["states"]) for table in figure["tables"]))
    drawn = Figure(figsize=(3.6 * len(grids), 6.6), layout="constrained")
    rows = drawn.subplots(2, len(grids), squeeze=False)
    for column, grid in enumerate(grids):
        tables = [table for table in figure["tables"] if (table["label"], table["states"]) == grid]
        for panel, what, value in (
            (rows[0][column], "processor seconds", lambda s: s["cpu_seconds"]["min"]),
            (rows[1][column], "backups a state", lambda s: s["backups_per_state"]),
        ):
            draw_lines(panel, tables, "partitions", value)
            for table in tables:
                for s in table["solves"]:
                    if s["variant"] == "VI" and s["outcome"] == "residual":
                        panel.axhline(value(s), color=COLOURS["VI"], linewidth=0.8)
            name_axes(panel, f"{grid[0]}, {grid[1]} states", "partitions", what)
        rows[0][column].legend(fontsize=7)
    return drawn


def draw_lines(panel: Any, tables: list[dict[str, Any]], across: str, value: Callable[[dict[str, Any]], float]) -> None:
    variants = dict.fromkeys(s["variant"] for table in tables for s in table["solves"])
    for variant in variants:
        points = [
            (table[across], value(s))
            for table in tables
            for s in table["solves"]
            if s["variant"] == variant and s["outcome"] == "residual"
        ]
        panel.plot(*zip(*sorted(points), strict=True) if points else ([], []), **style(variant))


def name_axes(panel: Any, title: str, across: str, up: str) -> None:
    panel.set_title(title)
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.grid(alpha=0.3)


def draw_curves(figure: dict[str, Any]) -> Figure:
    """Hit rate (left axis, thick) and loads a partition (right axis, thin) against the cache."""
    table = figure["tables"][0]
    drawn, both = panels(2, width=6.2, height=4.8)
    for panel, scope in zip(both, ("all", "frontier"), strict=True):
        right = panel.twinx()
        for name, solved in table["fixed"].items():
            if scope in solved:
                curve, colour = solved[scope], COLOURS[name]
                panel.plot(table["percent"], 100 * np.array(curve["hit_rate"]), color=colour, linewidth=2, label=name)
                right.plot(table["percent"], curve["loads_per_partition"], color=colour, linewidth=0.8)
        at = [s["percent"] for s in table["joint"]]
        done = [1.0 if s["outcome"] == "residual" else np.nan for s in table["joint"]]  # NaN interrupts a line
        rates = [100 * s["hit_rate"] * known for s, known in zip(table["joint"], done, strict=True)]
        loads = [s["loads_per_partition"] * known for s, known in zip(table["joint"], done, strict=True)]
        mark = {"color": COLOURS["joint"], "marker": "o", "markersize": 3}
        panel.plot(at, rates, linewidth=2, label="joint (ours, solved)", **mark)
        right.plot(at, loads, linewidth=0.8, **mark)
        for name, claim in figure["thesis"].get(scope, {}).items():
            share, mark = figure["thesis"]["share"], {"color": COLOURS[name], "linestyle": "none", "markersize": 8}
            panel.plot([share], [100 * claim["hit_rate"]], marker="x", label=f"thesis, {name}: hit rate", **mark)
            if "loads" in claim:
                right.plot([share], [claim["loads"]], marker="+", **mark)
        panel.set_title(f"{table['label']}, {'with auxiliary accesses' if scope == 'all' else 'frontier only'}")
        panel.set_xlabel("cache, % of the partitions")
        panel.set_ylabel("hit rate, % (thick)")
        panel.set_ylim(0, 100)
        panel.set_xlim(0, 100)
        panel.grid(alpha=0.3)
        right.set_ylabel("loads a partition (thin; + is the thesis's)")
        right.set_yscale("log")
        panel.legend(fontsize=7, loc="center right")
    return drawn


def draw_policy(figure: dict[str, Any]) -> Figure:
    """The policy, and dark what was never processed."""
    drawn, row = panels(len(figure["tables"]), width=4.2)
    for panel, table in zip(row, figure["tables"], strict=True):
        colours = [[PICTURE[c] for c in line] for line in table["picture"]["rows"]]
        rgb = np.array([[[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in line] for line in colours], np.uint8)
        panel.imshow(rgb.transpose(1, 0, 2), origin="lower", extent=(-1, 1, -4, 4), aspect="auto")
        unit, share = table["parameters"]["time_unit"], 100 * table["solves"][0]["states_never_processed"]
        what = f"{table['states']} states, {table['partitions']} partitions,\n"
        panel.set_title(f"{what}time unit {unit:g} s: {share:.1f}% never processed", fontsize=9)
        panel.set_xlabel("position")
        panel.set_ylabel("velocity")
    return drawn


DRAW: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "12.1": draw_methods,
    "12.3": draw_methods,
    "12.5": draw_methods,
    "12.12": draw_curves,
    "12.13": draw_curves,
    "12.14": draw_curves,
    "12.18": draw_partitions,
    "12.20": draw_policy,
}

if __name__ == "__main__":
    main()
