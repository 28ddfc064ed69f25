"""Draw figures 1 to 4 and tables 3 to 7 from what run.py wrote: `python plots.py FILE.json [--folder FOLDER]`.

The heat maps become one SVG, the times of all configurations another. What was not measured is left out. Nothing is
solved here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import numpy as np
from claims import CONFIGURATIONS, SEQUENTIAL, SINGLE_STEPS
from experiments import LETTERS
from matplotlib.figure import Figure
from tables import seconds_of


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON file that run.py wrote")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent, help="where the plots go")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    worlds = json.loads(options.file.read_text())["worlds"]
    # Text stays text, and nothing in a file depends on when it was drawn.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "quintanilla_kolisetti"}):
        for name, draw in {"heat-maps": draw_heat_maps, "tables-3-7": draw_configurations}.items():
            drawn = draw(worlds)
            if drawn is not None:
                file = f"{name}.svg"
                drawn.savefig(options.folder / file, format="svg", metadata={"Date": None})
                print(file)


def draw_heat_maps(worlds: dict[str, Any]) -> Figure | None:
    """Figures 1 to 4: values by cell."""
    maps = {name: world["heat_map"] for name, world in worlds.items() if "heat_map" in world}
    if not maps:
        return None
    drawn = Figure(figsize=(3.4 * len(maps), 3.4), layout="constrained")
    for panel, (name, heat) in zip(drawn.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True):
        levels = np.array([[LETTERS.index(letter) for letter in row] for row in heat["rows"]], np.uint8)
        values = heat["low"] + (heat["high"] - heat["low"]) * levels / (len(LETTERS) - 1)
        side = worlds[name]["side"]
        image = panel.imshow(values, cmap="viridis", interpolation="none", extent=(0, side, side, 0))
        means = "" if heat["cells_a_pixel"] == 1 else f", means of {heat['cells_a_pixel']} x {heat['cells_a_pixel']}"
        panel.set_title(f"{name}: {side} x {side}{means}", fontsize=9)
        drawn.colorbar(image, ax=panel, shrink=0.8)
    return drawn


def draw_configurations(worlds: dict[str, Any]) -> Figure | None:
    """Tables 3 to 7: shares of the sequential time, the paper's as crosses."""
    kinds = [*CONFIGURATIONS, SINGLE_STEPS, None]
    drawn = Figure(figsize=(3.4 * max(len(worlds), 1), 3.4), layout="constrained")
    some = False
    for panel, (name, world) in zip(drawn.subplots(1, len(worlds), squeeze=False)[0], worlds.items(), strict=True):
        base = seconds_of(world.get("sequential"))
        for kernel, colour in (("transition-atomics", "C0"), ("transition-segments", "C1")):
            runs = {
                tuple(r["configuration"] or ()): seconds_of(r) for r in world.get("runs", []) if r["kernel"] == kernel
            }
            points = [(i, runs.get(tuple(kind or ()))) for i, kind in enumerate(kinds)]
            shown = [(i, seconds / base) for i, seconds in points if seconds is not None and base]
            some |= bool(shown)
            panel.plot(*zip(*shown, strict=True) if shown else ([], []), "o-", color=colour, markersize=4, label=kernel)
        theirs = [CONFIGURATIONS[kind][name] / SEQUENTIAL[name] for kind in CONFIGURATIONS]
        panel.plot(range(len(theirs)), theirs, "kx", label="paper")
        panel.axhline(1.0, color="C7", linewidth=0.8)
        panel.set_xticks(range(len(kinds)), ["all" if k is None else "{}x{}".format(*k) for k in kinds], fontsize=7)
        panel.set_yscale("log")
        panel.set_title(f"{name}, {world['states']:,} states", fontsize=9)
        panel.set_xlabel("blocks x threads")
        panel.set_ylabel("parallel / sequential")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    return drawn if some else None


if __name__ == "__main__":
    main()
