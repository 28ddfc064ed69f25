"""Measure tables 1 to 7 and the heat maps of Quintanilla and Kolisetti, beside what the paper says.

    python run.py --device cuda:0 --output FILE.json     everything, in under four minutes on an H100
    python run.py --device cpu --output FILE.json        without a GPU: passes of the kernels' schedules, no seconds
    python run.py --toy                                  small worlds, in seconds
    python run.py --document FILE.json                   the tables of README.md, from a file of figures
    python run.py --document FILE.json --into README.md  the same, put into their places there
    python plots.py FILE.json                            the plots, from the same file

The file is written anew after every part of a world, so that an interrupted run keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
from claims import SIDES, SINGLE_STEPS
from experiments import World
from resident import Effort, device_facts, fill_in
from tables import tables_of

PARTS = ("sequential", "launches", "runs", "heat_map", "default")
"""What is measured of a world: methods of :class:`World`."""
TOY_STEPS = (8, 64)
NOT_INCLUDED = (
    "computing the tables; compiling or loading kernels",
    "seconds of transition-atomics, transition-segments and plain: bringing the table to the device, and measuring the "
    "residual afterwards, which is timed apart and subtracted; they do include a test of convergence after every pass",
    "seconds of the default: opening the problem; they do include bringing the table from RAM to the device",
    "the paper's machines, which it does not name: ratios of seconds are compared, each on one machine",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cuda:0, or cpu: then kernels run as their schedules in NumPy")
    parser.add_argument("--world", action="append", choices=SIDES, help="repeat for more; all by default")
    parser.add_argument("--toy", action="store_true", help="worlds of 12 to 30 cells a side")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds a run")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds in all, then no further part begins")
    parser.add_argument("--document", type=Path, metavar="FILE", help="print kept figures as tables, and end")
    parser.add_argument("--into", type=Path, metavar="README", help="with --document: put them into this file")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.world = [name for name in SIDES if name in (options.world or SIDES)]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.document is not None:
        document(options.document, options.into)
        return
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device)
    figures: dict[str, Any] = {"worlds": {}, "left_out": []}
    effort = Effort(options.device, options.repeat, options.time_limit)
    sides = dict(zip(SIDES, (12, 16, 24, 30), strict=True)) if options.toy else SIDES
    warm_up(effort)
    began = time.monotonic()
    worlds = {name: World(sides[name], effort, TOY_STEPS if options.toy else SINGLE_STEPS) for name in options.world}
    figures["worlds"] = {name: world.describe() for name, world in worlds.items()}
    # The default kernel comes last: it may be compiled anew for a world.
    steps = [(name, part) for name in worlds for part in PARTS[:-1]] + [(name, PARTS[-1]) for name in worlds]
    for name, part in steps:
        if time.monotonic() - began > options.budget:
            figures["left_out"].append(f"{name}, {part}: the budget of {options.budget:g} s was spent")
            continue
        figures["worlds"][name][part] = getattr(worlds[name], part)()
        measuring.say(f"{time.monotonic() - began:6.1f} s  {name}: {part}")
        keep(options, figures, facts)
    keep(options, figures, facts)
    show(tables_of({**facts, **figures}))


def warm_up(effort: Effort) -> None:
    """Compile what all worlds share, and make a context of the device, on a tiny world."""
    world = World(8, Effort(effort.device, 1, effort.limit), TOY_STEPS)
    for part in PARTS:
        getattr(world, part)()


def keep(options: argparse.Namespace, figures: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write what there is."""
    settings = {name: value for name, value in vars(options).items() if name not in ("document", "into")}
    measuring.write_figures("quintanilla_kolisetti", argparse.Namespace(**settings), figures, facts, NOT_INCLUDED)


def document(file: Path, into: Path | None) -> None:
    """Print the tables, or put them into a file that has places for them."""
    tables = tables_of(json.loads(file.read_text()))
    if into is None:
        show(tables)
    else:
        into.write_text(fill_in(into.read_text(), tables))


def show(tables: dict[str, list[str]]) -> None:
    print("\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in tables.items()))


if __name__ == "__main__":
    main()
