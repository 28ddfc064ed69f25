"""Measure what chapter 6 of Johannsson's thesis shows (2009), and the world that his framework could not load.

    python run.py --device cuda:0 --output FILE.json     everything, in some five minutes on an H100
    python run.py --device cpu --output FILE.json        without a GPU: sweeps of the kernels' schedules, no seconds
    python run.py --toy                                  everything at sizes of a few seconds
    python run.py --document FILE.json ...               the tables of README.md, from files of figures
    python run.py --document FILE.json --into README.md  the same, put into their places there
    python plots.py FILE.json                            the plots, from the same file

The file is written anew after every part, so that an interrupted run keeps what it has. Solves stop at a residual of
1e-4 with the discount 0.9, the thesis's numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claims import CARD_BYTES, SPEED_UPS
from experiments import Effort, default_run, large, locality, own_test, priority_settings, world_runs
from paper_run import PaperRun, add_run_options, document
from tables import tables_of
from worlds import World

PARTS = ("worlds", "locality", "default", "large", "own-test", "priority")
NOT_INCLUDED = (
    "computing the tables and laying them out; compiling or loading kernels",
    "seconds of kernels: bringing the table to the device; they do include a look at the residual after every pass",
    "seconds of the default: opening the problem; they do include bringing the table from RAM to the device",
    "the thesis's machines (GeForce 8800 GTX, 2.4 GHz Core 2 Duo): ratios of seconds are compared, each on one machine",
    "its occupancies of 67% and 100%: no profiler was run",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="repeat for more; all by default")
    parser.add_argument("--schedule-side", type=int, default=256, help="largest world whose schedules run on the CPU")
    add_run_options(parser, repeat=12, limit=20.0, budget=280.0)
    options = parser.parse_args(arguments)
    options.part = [part for part in PARTS if part in (options.part or PARTS)]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if document(options, tables_of):
        return
    effort = Effort(options.device, options.repeat, options.time_limit, options.schedule_side)
    warm_up(effort)
    run = PaperRun("johannsson2009", options, {part: [] for part in options.part}, NOT_INCLUDED)
    for part, name, measure in steps(options, effort):
        if part in options.part and run.may_begin(f"{part}, {name}"):
            found = measure()
            run.figures[part] += found if isinstance(found, list) else [found]
            run.keep(f"{part}: {name}")
    run.finish(tables_of)


def steps(
    options: argparse.Namespace, effort: Effort
) -> Iterator[tuple[str, str, Callable[[], dict[str, Any] | list[dict[str, Any]]]]]:
    """What is measured, in order: the part, what of it, and how."""
    toy = options.toy
    worlds = [World(side, k) for side in (16, 32) for k in (1, 4)] if toy else [world_of(name) for name in SPEED_UPS]
    for world in worlds:
        yield "worlds", world.name, lambda world=world: world_runs(world, effort)
    for percent in (0, 50) if toy else (0, 5, 10, 15, 30, 50):
        world = World(32 if toy else 256, 1, percent / 100)
        yield "locality", f"{percent}% random", lambda world=world: locality(world, effort)
    for world in worlds:
        yield "default", world.name, lambda world=world: default_run(world, effort.device, effort)
    huge = World(48 if toy else 2048, 4)
    yield "large", huge.name, lambda: large(huge, effort, CARD_BYTES)
    for k in (1, 2, 4):
        world = World(16 if toy else 64, k)
        yield "own-test", world.name, lambda world=world: own_test(world)
    small = World(16 if toy else 64, 4)
    states, constants = ((2, 5), (0.0, 1.0)) if toy else ((2, 3, 4, 5), (0.0, 0.01, 1.0, 100.0))
    yield "priority", small.name, lambda: priority_settings(small, states, constants)
    if effort.timed:  # last, as its loops are compiled here, of which a machine for GPUs may have kept none
        for world in worlds:
            yield "default", f"{world.name} on the CPU", lambda world=world: default_run(world, "cpu", effort)


def world_of(name: str) -> World:
    """From its name in table 6.1."""
    side, _, successors = name.removeprefix("GW-").split("x")
    return World(int(side), int(successors))


def warm_up(effort: Effort) -> None:
    """Compile the baseline and make a context of the device, on the smallest world."""
    world_runs(World(16, 4), replace(effort, repeat=1))


if __name__ == "__main__":
    main()
