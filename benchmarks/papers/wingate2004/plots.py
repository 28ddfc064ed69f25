"""Draw the figures of chapters 5 and 12 from what run.py wrote: `python plots.py FILE.json ... [--folder FOLDER]`.

Each thesis figure becomes one PNG, or two of them that show the same runs (seconds and backups, say), with a panel for
each table; what the thesis says in numbers is marked with a cross or a line. Solves that did not finish are left out.
Nothing is solved here.
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

COLOURS = {"VI": "C7", "H1": "C0", "H2": "C1", "joint": "C2", "hybrid": "C3", "VI, 8 sweeps a visit": "C5"}
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
            for drawn, draw in DRAW.get(name, {}).items():
                write(draw(figure), options.folder / f"figure-{drawn}.png")
                print(f"figure-{drawn}.png")


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


def draw_extremes(figure: dict[str, Any]) -> Figure:
    """Seconds and backups against the number of states, with one partition, one state a partition and 400."""
    drawn, row = panels(2)
    marks = {"VI": "-", "P-EVA, one partition": ":", "P-EVA/1": "o-", "P-EVA/400": "s--"}
    lines = dict.fromkeys((table["cut"], s["variant"]) for table in figure["tables"] for s in table["solves"])
    for panel, what, value in (
        (row[0], "processor seconds", lambda s: s["cpu_seconds"]["min"]),
        (row[1], "backups", lambda s: s["backups"]),
    ):
        for cut, variant in lines:
            tables = [table for table in figure["tables"] if table["cut"] == cut]
            points = [(t["states"], value(s)) for t in tables for s in t["solves"] if _finished(s, variant)]
            label = cut if cut == "VI" else f"{cut}, {variant}"
            along = zip(*points, strict=True) if points else ([], [])
            panel.plot(*along, marks[cut], color=COLOURS[variant], ms=4, label=label)
        name_axes(panel, "MCAR", "states", what)
    row[0].legend(fontsize=7)
    return drawn


def _finished(solved: dict[str, Any], variant: str) -> bool:
    return bool(solved["variant"] == variant and solved["outcome"] == "residual_reached")


def draw_clusters(figure: dict[str, Any]) -> Figure:
    """Backups a state of each algorithm, a panel for each chain of clusters."""
    sizes = list(dict.fromkeys((table["clusters"], table["states"]) for table in figure["tables"]))
    drawn, row = panels(len(sizes))
    for panel, (count, states) in zip(row, sizes, strict=True):
        bars = [(t, s) for t in figure["tables"] if t["states"] == states for s in t["solves"]]
        names = {1: "one partition", count: "a cluster a partition", states: "a state a partition"}
        labels = [f"{s['variant'].removesuffix(', forward')}, {names[t['partitions']]}" for t, s in bars]
        heights = [s["backups_per_state"] if s["outcome"] == "residual_reached" else 0.0 for _, s in bars]
        colours = [COLOURS[s["variant"].removesuffix(", forward")] for _, s in bars]
        panel.barh(labels[::-1], heights[::-1], color=colours[::-1])
        panel.set_title(f"{count} clusters of {states // count} states", fontsize=9)
        panel.set_xlabel("backups per state")
        panel.tick_params(axis="y", labelsize=7)
    return drawn


def draw_partitions(figure: dict[str, Any]) -> Figure:
    """Seconds and backups per state against the number of partitions; value iteration is a line across."""
    grids = list(dict.fromkeys((table["label"], table["states"]) for table in figure["tables"]))
    drawn = Figure(figsize=(3.6 * len(grids), 6.6), layout="constrained")
    rows = drawn.subplots(2, len(grids), squeeze=False)
    for column, grid in enumerate(grids):
        tables = [table for table in figure["tables"] if (table["label"], table["states"]) == grid]
        for panel, what, value in (
            (rows[0][column], "processor seconds", lambda s: s["cpu_seconds"]["min"]),
            (rows[1][column], "backups per state", lambda s: s["backups_per_state"]),
        ):
            draw_lines(panel, tables, "partitions", value)
            for table in tables:
                for s in table["solves"]:
                    if s["variant"] == "VI" and s["outcome"] == "residual_reached":
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
            if s["variant"] == variant and s["outcome"] == "residual_reached"
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
    """Hit rate (left axis, thick) and loads per partition (right axis, thin) against the cache."""
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
        done = [1.0 if s["outcome"] == "residual_reached" else np.nan for s in table["joint"]]  # NaN interrupts a line
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
        right.set_ylabel("loads per partition (thin; + is the thesis's)")
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


def draw_attractors(figure: dict[str, Any]) -> Figure:
    """Seconds, backups and bytes against attractors a worker; random and blocks are lines across."""
    drawn, row = panels(3, width=4.6)
    for panel, (key, what) in zip(row, PARALLEL_COSTS, strict=True):
        for i, table in enumerate(figure["tables"]):
            for kind, mark in (("voronoi", "o-"), ("attractors", "^:")):
                points = [
                    (int(s["placement"].split(":")[1]), s[key]["median"])
                    for s in table["solves"]
                    if s["placement"].startswith(kind) and s["outcome"] == "residual_reached"
                ]
                label = table["label"] if kind == "voronoi" else f"{table['label']}, balanced"
                panel.plot(*zip(*points, strict=True) if points else ([], []), mark, color=f"C{i}", ms=4, label=label)
            for kind, line in (("random", "--"), ("blocks", "-.")):
                for s in table["solves"]:
                    if s["placement"] == kind and s["outcome"] == "residual_reached":
                        panel.axhline(s[key]["median"], color=f"C{i}", linestyle=line, linewidth=0.7)
        where = f"{figure['workers']} workers on {figure['cores']} cores"
        name_axes(panel, where, "attractors a worker", what)
    row[0].legend(fontsize=7, title="across: -- random, -. blocks", title_fontsize=7)
    return drawn


def draw_times(figure: dict[str, Any]) -> Figure:
    """Seconds, backups and bytes against workers."""
    drawn, row = panels(3, width=4.6)
    for panel, (key, what) in zip(row, PARALLEL_COSTS, strict=True):
        draw_workers(panel, figure, lambda s, key=key: s[key]["median"])
        name_axes(panel, f"{figure['tables'][0]['method']}, {figure['cores']} cores", "workers", what)
    row[0].legend(fontsize=7, title="dashed: blocks", title_fontsize=7)
    return drawn


def draw_efficiencies(figure: dict[str, Any]) -> Figure:
    """Efficiencies in seconds and in work, and the share of time that workers are busy."""
    drawn, row = panels(3, width=4.6)
    shares: list[tuple[str, Callable[[dict[str, Any]], float]]] = [
        ("efficiency, seconds", lambda s: s["efficiency"]),
        ("work efficiency, backups", lambda s: s["work_efficiency"]),
        ("share of time busy", lambda s: s["busy"]["median"]),
    ]
    for panel, (what, value) in zip(row, shares, strict=True):
        draw_workers(panel, figure, value)
        if what.startswith("efficiency"):
            for i, table in enumerate(figure["tables"]):
                for claim in figure["thesis"]["efficiency"].get(table["label"], [])[:1]:
                    panel.axhline(claim, color=f"C{i}", linestyle=":", linewidth=0.9)
        name_axes(panel, f"{figure['tables'][0]['method']}, {figure['cores']} cores", "workers", what)
        panel.set_yscale("linear")
        panel.set_ylim(0, None)
    row[0].legend(fontsize=7, title="dashed: blocks; dotted: the thesis", title_fontsize=7)
    return drawn


def draw_workers(panel: Any, figure: dict[str, Any], value: Callable[[dict[str, Any]], float]) -> None:
    """A line for each table, and a dashed one for blocks, which begins at the one worker that has all."""
    for i, table in enumerate(figure["tables"]):
        done = [s for s in table["solves"] if s["outcome"] == "residual_reached"]
        for placement, mark in (("random", "o-"), ("blocks", "s--")):
            points = [(s["workers"], value(s)) for s in done if s["placement"] == placement or s["workers"] == 1]
            points = [point for point in points if point[1] is not None]
            label = table["label"] if placement == "random" else None
            panel.plot(*zip(*points, strict=True) if points else ([], []), mark, color=f"C{i}", ms=4, label=label)


PARALLEL_COSTS = (
    ("seconds", "seconds"),
    ("backups_per_state", "backups per state"),
    ("bytes_per_state", "bytes per state between workers"),
)
DRAW: dict[str, dict[str, Callable[[dict[str, Any]], Figure]]] = {
    "5.2": {"5.2": draw_extremes},
    "5.6": {"5.6": draw_clusters},
    "12.1": {"12.1": draw_methods},
    "12.3": {"12.3": draw_methods},
    "12.5": {"12.5": draw_methods},
    "12.7": {"12.7": draw_attractors},
    "12.8": {"12.8": draw_times, "12.9": draw_efficiencies},
    "12.10": {"12.10": draw_times, "12.11": draw_efficiencies},
    "12.12": {"12.12": draw_curves},
    "12.13": {"12.13": draw_curves},
    "12.14": {"12.14": draw_curves},
    "12.18": {"12.18": draw_partitions},
    "12.20": {"12.20": draw_policy},
}
"""What is drawn of each figure's runs."""

if __name__ == "__main__":
    main()
