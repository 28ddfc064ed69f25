"""Measure figures 2 to 5 of Luo and Koettering, beside what the paper says.

    python run.py --device cuda:0 --output FILE.json     everything, on all GPUs of the host
    python run.py --device cuda:0 --devices 1,2 ...      groups of one and two of them
    python run.py --device cpu --output FILE.json        without a GPU: the sequential version, the CPU's own engine
    python run.py --toy                                  small tables, in seconds
    python run.py --document FILE.json                   the tables of README.md, from a file of figures
    python run.py --document FILE.json --into README.md  the same, put into their places there
    python plots.py FILE.json                            the plots, from the same file

The file is written anew after every part, so that an interrupted run keeps what it has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claims import CASES, LARGEST, TOY_CASES, WIDE
from experiments import default, link_bandwidth, measure, measure_groups
from models import DenseModel
from paper_run import PaperRun, add_run_options, document
from resident import Effort
from tables import tables_of

PARTS = ("cases", "largest", "devices")
"""Versions for one device, those of the largest table apart, and those for groups of devices."""
NOT_INCLUDED = (
    "making the tables; compiling or loading kernels, but for the first launch of dense, which is part of expanding",
    "seconds on groups of devices: allocating memory, recording passes, and bringing the tables there, timed apart",
    "seconds of dense: bringing the table to the device and expanding it, which are timed apart; tests of convergence "
    "and measurements of residuals",
    "seconds of state by state: allocating memory; they do include every copy",
    "seconds of the default: opening the problem; they do include bringing the table from RAM to the device",
    "the paper's machines (AMD Opteron 6272; two GeForce RTX 2080 Ti): ratios are compared, each on one machine",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="repeat for more; all by default")
    parser.add_argument("--devices", type=numbers, help="sizes of groups, such as 1,2,4; by default up to all GPUs")
    add_run_options(parser, repeat=3, limit=25.0, budget=300.0)
    options = parser.parse_args(arguments)
    options.part = [part for part in PARTS if part in (options.part or PARTS)]
    return options


def numbers(text: str) -> list[int]:
    """Of devices."""
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if document(options, tables_of):
        return
    options.devices = group_sizes(options.device) if options.devices is None else options.devices
    effort = Effort(options.device, options.repeat, options.time_limit)
    if {"cases", "largest"} & set(options.part):
        warm_up(effort)
    run = PaperRun("luo_koettering", options, {part: [] for part in PARTS}, NOT_INCLUDED)
    for (states, actions), iterations in (TOY_CASES if options.toy else CASES).items():
        name, part = f"{states} states, {actions} actions", "largest" if (states, actions) == LARGEST else "cases"
        if not {part, "devices"} & set(options.part) or not run.may_begin(name):
            continue
        model = DenseModel(states, actions)
        if part in options.part:
            found = measure(model, iterations, effort)
            run.figures[part].append(found)
            run.keep(name)
            if "residual" in found and (options.toy or (states, actions) in (WIDE, LARGEST)):
                found["default"] = default(model, found["residual"], effort)
                run.keep(f"{name}, default kernel")
        if "devices" in options.part and options.devices:
            run.figures["devices"].append(measure_groups(model, iterations, options.devices, effort))
            run.keep(f"{name}, groups of devices")
    if "devices" in options.part and max(options.devices, default=1) > 1:
        run.figures["link_bytes_per_second"] = link_bandwidth((1 if options.toy else 256) << 20)
    run.finish(tables_of)


def group_sizes(device: str) -> list[int]:
    """One GPU, and as many as there are, doubled from one to the next; none on a CPU."""
    from ooc_mdp.backends.cuda.device import device_count

    return [] if device == "cpu" else [count for count in (1, 2, 4, 8) if count <= device_count()]


def warm_up(effort: Effort) -> None:
    """Compile what all sizes share, and make a context of the device."""
    model = DenseModel(8, 3)
    found = measure(model, (1, 2), effort)
    default(model, found["residual"], effort)


if __name__ == "__main__":
    main()
