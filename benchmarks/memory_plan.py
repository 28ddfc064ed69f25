"""Compare the largest resident set of a solve with the memory plan that it printed before it began.

Tables of several sizes, the same cache: what a solve holds should follow the plan, not the table. A low discount and a
coarse target keep the solves short; the buffers do not depend on them. A solve counts if it read the whole table.
With `--problem`, one control problem on a grid instead, and `--cache` and targets as they are given.
Each goes through the command line in its own process, after a tiny one that leaves compiled kernels on disk.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring

from ooc_mdp.options import format_bytes, parse_bytes

ALLOWED = 1.2
"""Largest resident set over plan."""
COMMAND_LINE = (sys.executable, "-c", "from ooc_mdp.cli import main; main()")
NOT_INCLUDED = (
    "the operating system's page cache, which holds what it likes of the store and gives it back when asked",
    "compiling kernels for the first time, which holds more for a moment; they are loaded from disk here",
    "memory while a result is written or verified, and in the plan while the store is generated (its peak is measured)",
    "generation seconds include starting Python and compiling the problem's kernel",
    "memory of an accelerator: these solves are on the CPU",
    "the seconds are those that the solve reports, in the run with the largest peak",
)
_SETTINGS = {"quintanilla": 169, "random": 355}
"""Decoded bytes a state, about: 12 transitions in 4 rows, and 16 in 4 with successors all over the table."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="0.2GB,1GB,4GB", help="decoded bytes of the tables, about")
    parser.add_argument(
        "--cases", default="quintanilla:p-eva,random:vi", help="problem:method, of grid worlds and random MDPs"
    )
    parser.add_argument("--problem", help="a control problem, instead of cases and sizes")
    parser.add_argument("--grid", help="its points along each axis, such as 2000,2000")
    parser.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of --problem")
    parser.add_argument("--method", default="p-eva", help="of --problem")
    parser.add_argument("--sweeps", type=int, default=1, help="sweeps of a visit by vi")
    parser.add_argument("--cache", default="128MiB", help="the same for all")
    parser.add_argument("--partitions", type=int, help="number of partitions; 256 or so by default")
    parser.add_argument("--discount", type=float, default=0.2)
    parser.add_argument("--residual", type=float, default=0.5, help="plain Bellman residual to stop at, a coarse one")
    parser.add_argument("--repeat", type=int, default=3, help="solves of each kind; the largest peak counts")
    parser.add_argument(
        "--time-limit", type=float, default=300.0, help="seconds a solve; the plan must hold all the same"
    )
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    solves = []
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        if options.problem is not None:
            given = dict(pair.split("=", 1) for pair in options.parameter)
            given |= {} if options.grid is None else {"grid": options.grid}
            solves.append(measure(Path(name), options.problem, options.method, given, options))
        for case in () if options.problem is not None else options.cases.split(","):
            problem, _, method = case.partition(":")
            for size in options.sizes.split(","):
                solves.append(measure(Path(name), problem, method, sizes_of(problem, parse_bytes(size)), options))
    show(solves, options)
    figures = {"allowed_ratio": ALLOWED, "largest_ratio": max(s["ratio"] for s in solves), "solves": solves}
    measuring.write_figures("memory_plan", options, figures, facts, NOT_INCLUDED)


def measure(
    folder: Path, problem: str, method: str, parameters: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Generate a table, solve it through the command line, compare."""
    store, warm_up = folder / "store", folder / "warm-up"
    table, generated = measuring.run_task(
        "generate",
        problem=problem,
        parameters=parameters,
        store=str(store),
        partitions=options.partitions,
        warm_up=None if warm_up.exists() else str(warm_up),
    )
    measuring.run((*COMMAND_LINE, "solve", str(warm_up), "--discount", "0.9", "--device", "cpu"))
    command = [*COMMAND_LINE, "solve", str(store), "--json", "--device", "cpu", "--cache", options.cache]
    command += ["--method", method, "--sweeps-per-visit", str(options.sweeps)]
    for option in ("discount", "residual", "time_limit"):
        command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    runs = [measuring.run(command, accepted=(0, 1)) for _ in range(options.repeat)]  # 1: the time limit came first
    finished = max(runs, key=lambda run: run.peak_bytes)
    shutil.rmtree(store)  # one table at a time on disk
    summary = json.loads(finished.output)
    plan = summary["memory_plan"]["host"]
    planned = sum(plan.values())
    kept = (
        "method", "outcome", "cache_bytes", "cache_peak_bytes", "loads", "loads_per_partition", "partitions_unread",
        "bytes_read", "backups", "error_bound", "residual_bound", "solve_seconds",
    )  # fmt: skip
    return {
        "problem": problem,
        "parameters": parameters,
        "table": table,
        "generation": {"seconds": generated.seconds, "peak_rss_bytes": generated.peak_bytes},
        "planned": plan,
        "printed": next(line for line in finished.messages.splitlines() if line.startswith("memory plan")),
        "planned_bytes": planned,
        "peak_rss_bytes": finished.peak_bytes,
        "ratio": finished.peak_bytes / planned,
        "spread": {"peak_rss_bytes": measuring.spread([run.peak_bytes for run in runs])},
        "within": finished.peak_bytes <= ALLOWED * planned,
        **{k: summary[k] for k in kept},
    }


def sizes_of(problem: str, size: int) -> dict[str, Any]:
    """Parameters for a table of about `size` decoded bytes."""
    states = size / _SETTINGS[problem]
    if problem == "random":
        return {"states": int(states), "actions": 4, "successors": 4, "seed": 1}
    side = math.isqrt(int(states))
    return {"height": side, "width": side, "seed": 1}


def show(solves: list[dict[str, Any]], options: argparse.Namespace) -> None:
    print(
        f"cache {options.cache}, discount {options.discount}, "
        f"plain residual {options.residual} or {options.time_limit} s"
    )
    headers = (
        "problem", "method", "states", "table", "planned", "of it cache", "least peak", "peak RSS", "beyond", "ratio",
        "loads/partition", "never read", "outcome", "generation s", "solve s",
    )  # fmt: skip
    rows = [
        (
            s["problem"],
            s["method"],
            str(s["table"]["states"]),
            format_bytes(s["table"]["decoded_bytes"]),
            format_bytes(s["planned_bytes"]),
            format_bytes(s["planned"]["cache"]),
            format_bytes(s["spread"]["peak_rss_bytes"]["min"]),
            format_bytes(s["peak_rss_bytes"]),
            format_bytes(s["peak_rss_bytes"] - s["planned_bytes"]),
            f"{s['ratio']:.3f}" + ("" if s["within"] else " TOO LARGE"),
            f"{s['loads_per_partition']:.2f}",
            str(s["partitions_unread"]),
            s["outcome"],
            f"{s['generation']['seconds']:.0f}",
            f"{s['solve_seconds']:.0f}",
        )
        for s in solves
    ]
    measuring.print_table(headers, rows)
    print(f"allowed: a ratio of {ALLOWED}")


if __name__ == "__main__":
    main()
