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
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
from claims import BLOCKS, TECHNIQUES
from experiments import World
from resident import Effort, device_facts, fill_in
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
    parser.add_argument("--device", default="cpu", help="cuda:0, or cpu: then the kernel runs as its schedule in NumPy")
    parser.add_argument("--problem", action="append", choices=FIGURES, help="repeat for both; both by default")
    parser.add_argument("--toy", action="store_true", help="480 and 2,565 states")
    parser.add_argument("--interval", type=int, default=16, help="passes between two looks of techniques 2 and 4")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds a run")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds in all, then no further kind begins")
    parser.add_argument("--document", type=Path, metavar="FILE", help="print kept figures as tables, and end")
    parser.add_argument("--into", type=Path, metavar="README", help="with --document: put them into this file")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    if options.interval < 1:
        parser.error(f"--interval {options.interval}: give at least 1 pass")
    options.problem = [name for name in FIGURES if name in (options.problem or FIGURES)]
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
    warm_up(options)
    began = time.monotonic()
    sizes = TOYS if options.toy else SIZES
    for name in options.problem:
        world = World(name, sizes[name], options.interval, effort)
        found = figures["worlds"][name] = world.describe() | {"runs": []}
        for what, measure in steps(world, found):
            if time.monotonic() - began > options.budget:
                figures["left_out"].append(f"{name}, {what}: the budget of {options.budget:g} s was spent")
                continue
            measure()
            measuring.say(f"{time.monotonic() - began:6.1f} s  {name}: {what}")
            keep(options, figures, facts)
    keep(options, figures, facts)
    show(tables_of({**facts, **figures, "settings": vars(options)}))


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


def keep(options: argparse.Namespace, figures: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write what there is."""
    settings = {name: value for name, value in vars(options).items() if name not in ("document", "into")}
    measuring.write_figures("inamoto", argparse.Namespace(**settings), figures, facts, NOT_INCLUDED)


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
