"""Measure figures 2 to 5 of Luo and Koettering, beside what the paper says.

    python run.py --device cuda:0 --output FILE.json     everything, in under three minutes on an H100
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
from experiments import default, measure, several
from models import DenseModel
from paper_run import PaperRun, add_run_options, document
from resident import Effort
from tables import tables_of

PARTS = ("cases", "workers")
NOT_INCLUDED = (
    "making the tables; compiling or loading kernels, but for the first launch of dense, which is part of expanding",
    "seconds of dense: bringing the table to the device and expanding it, which are timed apart; tests of convergence "
    "and measurements of residuals",
    "seconds of state by state: allocating memory; they do include every copy",
    "seconds of the default: opening the problem; they do include bringing the table from RAM to the device",
    "seconds of several workers: starting them; they do include a measurement of the residual after every pass",
    "the paper's machines (AMD Opteron 6272; two GeForce RTX 2080 Ti): ratios are compared, each on one machine",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="repeat for more; all by default")
    parser.add_argument("--workers", type=numbers, help="such as 1,2; on a GPU 1")
    add_run_options(parser, repeat=3, limit=25.0, budget=150.0)
    options = parser.parse_args(arguments)
    options.part = [part for part in PARTS if part in (options.part or PARTS)]
    return options


def numbers(text: str) -> list[int]:
    """Of workers."""
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if document(options, tables_of):
        return
    options.workers = options.workers or device_numbers(options.device)
    effort = Effort(options.device, options.repeat, options.time_limit)
    warm_up(effort)
    run = PaperRun("luo_koettering", options, {"cases": [], "workers": []}, NOT_INCLUDED)
    for (states, actions), iterations in (TOY_CASES if options.toy else CASES).items():
        name = f"{states} states, {actions} actions"
        if "cases" in options.part and run.may_begin(name):
            model = DenseModel(states, actions)
            found = measure(model, iterations, effort)
            run.figures["cases"].append(found)
            run.keep(name)
            if "residual" in found and (options.toy or (states, actions) in (WIDE, LARGEST)):
                found["default"] = default(model, found["residual"], effort)
                run.keep(f"{name}, default kernel")
    if "workers" in options.part and run.may_begin("several workers"):
        size = (12, 4) if options.toy else (512, 64)
        for found in several(*size, options.workers, options.toy, effort):
            run.figures["workers"].append(found)
            run.keep(f"{found['workers']} workers")
    run.finish(tables_of)


def device_numbers(device: str) -> list[int]:
    """One worker, and on the CPU two: no two workers of a machine use the same GPU."""
    return [1, 2] if device == "cpu" else [1]


def warm_up(effort: Effort) -> None:
    """Compile what all sizes share, and make a context of the device."""
    model = DenseModel(8, 3)
    found = measure(model, (1, 2), effort)
    default(model, found["residual"], effort)


if __name__ == "__main__":
    main()
