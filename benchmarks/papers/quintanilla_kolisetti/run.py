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
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claims import SIDES, SINGLE_STEPS
from experiments import World
from paper_run import PaperRun, add_run_options, document
from resident import Effort
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
    parser.add_argument("--world", action="append", choices=SIDES, help="repeat for more; all by default")
    add_run_options(parser, repeat=5, limit=20.0, budget=200.0)
    options = parser.parse_args(arguments)
    options.world = [name for name in SIDES if name in (options.world or SIDES)]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if document(options, tables_of):
        return
    effort = Effort(options.device, options.repeat, options.time_limit)
    sides = dict(zip(SIDES, (12, 16, 24, 30), strict=True)) if options.toy else SIDES
    warm_up(effort)
    run = PaperRun("quintanilla_kolisetti", options, {}, NOT_INCLUDED)
    worlds = {name: World(sides[name], effort, TOY_STEPS if options.toy else SINGLE_STEPS) for name in options.world}
    run.figures["worlds"] = {name: world.describe() for name, world in worlds.items()}
    # The default kernel comes last: it may be compiled anew for a world.
    steps = [(name, part) for name in worlds for part in PARTS[:-1]] + [(name, PARTS[-1]) for name in worlds]
    for name, part in steps:
        if run.may_begin(f"{name}, {part}"):
            run.figures["worlds"][name][part] = getattr(worlds[name], part)()
            run.keep(f"{name}: {part}")
    run.finish(tables_of)


def warm_up(effort: Effort) -> None:
    """Compile what all worlds share, and make a context of the device, on a tiny world."""
    world = World(8, Effort(effort.device, 1, effort.limit), TOY_STEPS)
    for part in PARTS:
        getattr(world, part)()


if __name__ == "__main__":
    main()
