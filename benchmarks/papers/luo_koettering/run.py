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
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
from claims import CASES, LARGEST, TOY_CASES, WIDE
from experiments import default, measure, several
from models import DenseModel
from resident import Effort, device_facts, fill_in
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
    parser.add_argument("--device", default="cpu", help="cuda:0, or cpu: then the kernel runs as its schedule in NumPy")
    parser.add_argument("--part", action="append", choices=PARTS, help="repeat for more; all by default")
    parser.add_argument("--workers", type=numbers, help="such as 1,2,4; 1 to as many as there are GPUs by default")
    parser.add_argument("--toy", action="store_true", help="tables of 6 to 20 states")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind, where they are short")
    parser.add_argument("--time-limit", type=float, default=25.0, help="seconds a run")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds in all, then no further part begins")
    parser.add_argument("--document", type=Path, metavar="FILE", help="print kept figures as tables, and end")
    parser.add_argument("--into", type=Path, metavar="README", help="with --document: put them into this file")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.part = [part for part in PARTS if part in (options.part or PARTS)]
    return options


def numbers(text: str) -> list[int]:
    """Of workers."""
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.document is not None:
        document(options.document, options.into)
        return
    options.workers = options.workers or device_numbers(options.device)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device)
    figures: dict[str, Any] = {"cases": [], "workers": [], "left_out": []}
    effort = Effort(options.device, options.repeat, options.time_limit)
    warm_up(effort)
    began = time.monotonic()

    def left(what: str) -> bool:
        over = time.monotonic() - began > options.budget
        if over:
            figures["left_out"].append(f"{what}: the budget of {options.budget:g} s was spent")
        return not over

    def keep(what: str) -> None:
        measuring.say(f"{time.monotonic() - began:6.1f} s  {what}")
        write(options, figures, facts)

    for (states, actions), iterations in (TOY_CASES if options.toy else CASES).items():
        name = f"{states} states, {actions} actions"
        if "cases" in options.part and left(name):
            model = DenseModel(states, actions)
            figures["cases"].append(measure(model, iterations, effort))
            keep(name)
            with_default = options.toy or (states, actions) in (WIDE, LARGEST)
            if with_default and "residual" in figures["cases"][-1]:
                figures["cases"][-1]["default"] = default(model, figures["cases"][-1]["residual"], effort)
                keep(f"{name}, default kernel")
    if "workers" in options.part and left("several workers"):
        size = (12, 4) if options.toy else (512, 64)
        for found in several(*size, options.workers, options.toy, effort):
            figures["workers"].append(found)
            keep(f"{found['workers']} workers")
    figures["seconds"] = time.monotonic() - began
    write(options, figures, facts)
    show(tables_of({**facts, "settings": vars(options), **figures}))


def device_numbers(device: str) -> list[int]:
    """One worker, and as many as there are GPUs, doubled from one to the next."""
    from ooc_mdp.backends.cuda.device import device_count

    most = 2 if device == "cpu" else max(device_count(), 1)
    return [count for count in (1, 2, 4, 8, 16) if count <= most]


def warm_up(effort: Effort) -> None:
    """Compile what all sizes share, and make a context of the device."""
    model = DenseModel(8, 3)
    found = measure(model, (1, 2), effort)
    default(model, found["residual"], effort)


def write(options: argparse.Namespace, figures: dict[str, Any], facts: dict[str, Any]) -> None:
    """What there is."""
    settings = {name: value for name, value in vars(options).items() if name not in ("document", "into")}
    measuring.write_figures("luo_koettering", argparse.Namespace(**settings), figures, facts, NOT_INCLUDED)


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
