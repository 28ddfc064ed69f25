"""Measure figures 1 and 2 of Inamoto, Higami and Kobayashi: four tests of convergence, by the size of blocks.

    python run.py --device cuda:0 --output FILE.json     everything, in under four minutes on an H100
    python run.py --device cpu --output FILE.json        without a GPU: passes of the kernel's schedule, no seconds
    python run.py --toy                                  small problems, in seconds
    python run.py --document FILE.json                   the tables of README.md, from a file of figures
    python run.py --document FILE.json --into README.md  the same, put into their places there
    python plots.py FILE.json                            the plots, from the same file

The file is written anew after every run, so that an interrupted one keeps what it has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claims import BLOCKS, TECHNIQUES
from experiments import World
from paper_run import PaperRun, add_run_options, document
from resident import Effort
from tables import FIGURES, tables_of

SIZES: dict[str, dict[str, Any]] = {"animat": {"costs": True}, "mountain-car": {"scale": 10_000}}
TOYS: dict[str, dict[str, Any]] = {"animat": {"costs": True, "height": 20, "width": 24}, "mountain-car": {"scale": 100}}
NOT_INCLUDED = (
    "computing the tables, which the paper's kernels do in every sweep; compiling or loading kernels",
    "seconds of techniques 1 to 4: bringing the table to the device; they do include copying values from the model's "
    "vector to the partition's once before and back once after",
    "seconds of the default: opening the problem; they do include bringing the table from RAM to the device",
    "the paper's machine (GeForce GTX TITAN Black, Xeon E5-2640 v2): ratios of seconds are compared",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", action="append", choices=FIGURES, help="repeat for both; both by default")
    parser.add_argument("--interval", type=int, default=16, help="passes between two looks of techniques 2 and 4")
    add_run_options(parser, repeat=3, limit=20.0, budget=200.0)
    options = parser.parse_args(arguments)
    if options.interval < 1:
        parser.error(f"--interval {options.interval}: give at least 1 pass")
    options.problem = [name for name in FIGURES if name in (options.problem or FIGURES)]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if document(options, tables_of):
        return
    effort = Effort(options.device, options.repeat, options.time_limit)
    warm_up(options)
    run = PaperRun("inamoto", options, {"worlds": {}}, NOT_INCLUDED)
    sizes = TOYS if options.toy else SIZES
    for name in options.problem:
        world = World(name, sizes[name], options.interval, effort)
        found = run.figures["worlds"][name] = world.describe() | {"runs": []}
        for what, measure in steps(world, found):
            if run.may_begin(f"{name}, {what}"):
                measure()
                run.keep(f"{name}: {what}")
    run.finish(tables_of)


def steps(world: World, found: dict[str, Any]) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is measured of a problem, in order, and put among what was found."""

    def run(technique: int, block: int | None) -> None:
        found["runs"].append(world.run(technique, block))

    blocks: tuple[int | None, ...] = (None,) if world.effort.device == "cpu" else BLOCKS
    yield "test on the device", lambda: found.update(device_test=world.device_test())
    yield "default", lambda: found.update(default=world.default())
    for block in sorted(blocks, key=lambda b: -(b or 0)):  # the quickest first
        for technique in TECHNIQUES:
            yield f"technique {technique}, blocks of {block}", lambda t=technique, b=block: run(t, b)


def warm_up(options: argparse.Namespace) -> None:
    """Compile what all runs share, and make a context of the device, on small problems."""
    for name in options.problem:
        world = World(name, TOYS[name], options.interval, Effort(options.device, 1, options.time_limit))
        for _, measure in steps(world, {"runs": []}):
            measure()


if __name__ == "__main__":
    main()
