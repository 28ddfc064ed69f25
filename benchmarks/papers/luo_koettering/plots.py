"""Draw figures 2 to 5 from what run.py wrote: `python plots.py FILE.json [--folder FOLDER]`.

Each becomes one SVG: seconds and speed-up over the CPU, as in the paper, whose curves are given without numbers. What
was not measured is left out. Nothing is solved here.
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
from matplotlib.figure import Figure
from tables import Point, all_runs, lines_of, seconds_after, versions_of

COLOURS = ("C7", "C1", "C0", "C2", "C3", "C4", "C5", "C6", "C8", "C9")
"""Of the versions for one device, and of those for groups in their order."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON file that run.py wrote")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent, help="where the plots go")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    cases = all_runs(json.loads(options.file.read_text()))
    lines, versions = lines_of(cases), drawn_of(cases)
    # Text stays text, and nothing in a file depends on when it was drawn.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "luo_koettering"}):
        for name, (across, points) in lines.items():
            if points:
                file = f"{name.replace(' ', '-')}.svg"
                draw(across, points, versions).savefig(options.folder / file, format="svg", metadata={"Date": None})
                print(file)


def drawn_of(cases: Sequence[dict[str, Any]]) -> list[str]:
    """All versions but groups of one device."""
    return [version for version in versions_of(cases) if not version.endswith("on 1 GPU")]


def draw(across: str, points: Sequence[Point], versions: Sequence[str]) -> Figure:
    """Seconds to the left, speed-up to the right; sizes that differ beside `across` have lines of their own."""
    drawn = Figure(figsize=(8.0, 4.2), layout="constrained")
    seconds, speed_up = drawn.subplots(1, 2)
    sizes = list(dict.fromkeys((c["states"], c["actions"]) for c, _ in points)) if across == "iterations" else [None]
    for style, size in zip(("o-", "s--", "^:"), sizes, strict=False):
        own = [(c, n) for c, n in points if size in (None, (c["states"], c["actions"]))]
        for colour, version in zip(COLOURS, versions, strict=False):
            found = [(n if across == "iterations" else c[across], c, n) for c, n in own]
            known = [(x, seconds_after(c, version, n), seconds_after(c, "sequential", n)) for x, c, n in found]
            label = version if len(sizes) == 1 else f"{version}, {size[0]} states, {size[1]} actions"  # type: ignore[index]
            look: dict[str, Any] = {"color": colour, "ms": 3.5, "lw": 1.2, "label": label}
            times = [(x, s) for x, s, _ in known if s is not None]
            if times:
                seconds.plot(*zip(*times, strict=True), style, **look)
            ups = [(x, base / s) for x, s, base in known if s and base and version != "sequential"]
            if ups:
                speed_up.plot(*zip(*ups, strict=True), style, **look)
    for panel, up in ((seconds, "seconds"), (speed_up, "speed-up over the CPU")):
        panel.set_xlabel(across)
        panel.set_ylabel(up)
        panel.set_yscale("log")
        if across != "iterations":
            panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
    columns = 4 if len(sizes) == 1 else 3
    drawn.legend(*seconds.get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize=6)
    return drawn


if __name__ == "__main__":
    main()
