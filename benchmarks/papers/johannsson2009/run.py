"""Measure what chapter 6 of Johannsson's thesis shows (2009), and the world that his framework could not load.

    python run.py --device cuda:0 --output FILE.json     everything, in under five minutes on an H100
    python run.py --device cpu --output FILE.json        without a GPU: sweeps of the kernels' schedules, no seconds
    python run.py --toy                                  everything at sizes of a few seconds
    python run.py --document FILE.json                   the tables of README.md, from a file of figures
    python run.py --document FILE.json --into README.md  the same, put into their places there
    python plots.py FILE.json                            the plots, from the same file

The file is written anew after every part, so that an interrupted run keeps what it has. Solves stop at a residual of
1e-4 with the discount 0.9, the thesis's numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import measuring
from claims import CARD_BYTES, SPEED_UPS
from experiments import Effort, default_run, large, locality, own_test, priority_settings, world_runs
from tables import fill_in, tables_of
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
    parser.add_argument("--device", default="cpu", help="cuda:0, or cpu: then kernels run as their schedules in NumPy")
    parser.add_argument("--part", action="append", choices=PARTS, help="repeat for more; all by default")
    parser.add_argument("--toy", action="store_true", help="small worlds, to see that everything runs")
    parser.add_argument("--repeat", type=int, default=12, help="runs of each kind, where they are short")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds a solve")
    parser.add_argument("--budget", type=float, default=280.0, help="seconds in all, then no further part begins")
    parser.add_argument("--schedule-side", type=int, default=256, help="largest world whose schedules run on the CPU")
    parser.add_argument("--document", type=Path, metavar="FILE", help="print kept figures as tables, and end")
    parser.add_argument("--into", type=Path, metavar="README", help="with --document: put them into this file")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.part = [part for part in PARTS if part in (options.part or PARTS)]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.document is not None:
        document(options.document, options.into)
        return
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device)
    figures: dict[str, Any] = {part: [] for part in options.part} | {"left_out": []}
    effort = Effort(options.device, options.repeat, options.time_limit, options.schedule_side)
    began = time.monotonic()
    warm_up(effort)
    for part, name, measure in steps(options, effort):
        if part not in options.part:
            continue
        if time.monotonic() - began > options.budget:
            figures["left_out"].append(f"{part}, {name}: --budget {options.budget:g} s were over")
            continue
        found = measure()
        figures[part] += found if isinstance(found, list) else [found]
        measuring.say(f"{time.monotonic() - began:6.1f} s  {part}: {name}")
        measuring.write_figures("johannsson2009", kept(options), figures, facts, NOT_INCLUDED)
    figures["seconds"] = time.monotonic() - began
    measuring.write_figures("johannsson2009", kept(options), figures, facts, NOT_INCLUDED)
    for title, lines in tables_of({**facts, "settings": vars(options), **figures}).items():
        print(f"\n{title}\n\n" + "\n".join(lines))


def kept(options: argparse.Namespace) -> argparse.Namespace:
    """The options that figures are made with."""
    without = ("document", "into")
    return argparse.Namespace(**{name: value for name, value in vars(options).items() if name not in without})


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


def device_facts(device: str) -> dict[str, Any]:
    """The accelerator in words; nothing for the CPU."""
    if device == "cpu":
        return {}
    import cupy

    found = cupy.cuda.runtime.getDeviceProperties(int(device.partition(":")[2] or 0))
    return {"device": found["name"].decode(), "device_memory_bytes": int(found["totalGlobalMem"])}


def document(file: Path, into: Path | None) -> None:
    """Print the tables, or put them into a file that has places for them."""
    tables = tables_of(json.loads(file.read_text()))
    if into is not None:
        into.write_text(fill_in(into.read_text(), tables))
        return
    print("\n\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in tables.items()))


if __name__ == "__main__":
    main()
