"""Draw figures 1 and 2 from what run.py wrote: `python plots.py FILE.json [--folder FOLDER]`.

Milliseconds, on a logarithmic axis, against the threads of a block, evenly spaced as in the paper, whose own curves are
given without numbers. What was not measured is left out. Nothing is solved here.
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
from claims import BLOCKS, TECHNIQUES
from matplotlib.figure import Figure
from tables import FIGURES, seconds_of


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON file that run.py wrote")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent, help="where the plots go")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    worlds = json.loads(options.file.read_text())["worlds"]
    # Text stays text, and nothing in a file depends on when it was drawn.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "inamoto"}):
        for name, number in FIGURES.items():
            if any(seconds_of(run) is not None for run in worlds.get(name, {}).get("runs", [])):
                draw(name, worlds[name]).savefig(
                    options.folder / f"figure-{number}.svg", format="svg", metadata={"Date": None}
                )
                print(f"figure-{number}.svg")


def draw(name: str, world: dict[str, Any]) -> Figure:
    """A line for each technique; the default kernel's seconds across."""
    drawn = Figure(figsize=(5.2, 3.8), layout="constrained")
    panel = drawn.subplots()
    for technique, what in TECHNIQUES.items():
        found = {r["block"]: seconds_of(r) for r in world["runs"] if r["technique"] == technique}
        points = [(i, 1e3 * seconds) for i, b in enumerate(BLOCKS) if (seconds := found.get(b)) is not None]
        label = f"{technique}: {what}"
        panel.plot(*zip(*points, strict=True) if points else ([], []), "o-", markersize=4, label=label)
    default = seconds_of(world.get("default"))
    if default is not None:
        panel.axhline(
            1e3 * default, color="k", linestyle=":", linewidth=0.9, label=f"{world['default']['what']}, loads included"
        )
    panel.set_xticks(range(len(BLOCKS)), map(str, BLOCKS))
    panel.set_yscale("log")
    panel.set_title(f"{name}, {world['states']:,} states", fontsize=9)
    panel.set_xlabel("threads of a block")
    panel.set_ylabel("milliseconds")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7)
    return drawn


if __name__ == "__main__":
    main()
