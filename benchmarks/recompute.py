"""Solve the same problem from disk and recomputed, and compare what a load costs: Wingate 2004, section 7.1.

Three sources of the same tables: a store whose files are in the operating system's page cache, the same store with its
files dropped from it, and the problem itself, each partition computed when it is needed. Same cache, same target, same
method; each solve has its own process. `--output benchmarks/results/NAME.json` keeps the figures.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring

from ooc_mdp.options import format_bytes

SOURCES = ("warm store", "cold store", "recomputed")
NOT_INCLUDED = (
    "seconds: generating the store or the first pass of a recomputed problem (given apart), starting Python, "
    "importing, compiling and loading kernels (a tiny solve comes first in the same process), opening the store",
    "load seconds: seconds of all threads together; several loads, and loads and sweeps, run at the same time",
    "bytes read are asked of the operating system; a cold solve that reads a partition twice may find it in the page "
    "cache the second time",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--problem",
        action="append",
        metavar="NAME:GRID:METHOD:EPSILON",
        help="such as mountain-car:500,500:p-eva:1e-3; repeat for more",
    )
    parser.add_argument("--partitions", type=int, default=100, help="number of blocks of every grid")
    parser.add_argument("--cache", default="22%")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--workers", type=int, help="threads that compute; the number of cores by default")
    parser.add_argument("--repeat", type=int, default=3, help="solves of each kind")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.problem = options.problem or [
        "mountain-car:500,500:p-eva:1e-3",
        "single-pendulum:300,300:p-eva:1e-2",
        "double-pendulum:10,10,10,10:vi:1e-1",
    ]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    if options.device != "cpu":
        facts["machine"] |= measuring.run_task("device_name", device=options.device)[0]
    problems = [compare(options, *said.split(":")) for said in options.problem]
    measuring.write_figures("recompute", options, {"problems": problems}, facts, NOT_INCLUDED)


def compare(options: argparse.Namespace, problem: str, grid: str, method: str, epsilon: str) -> dict[str, Any]:
    """One problem from each source."""
    made = {"partitions": options.partitions, "dtype": options.dtype, "threads": options.workers}
    asked = {
        "discount": options.discount,
        "epsilon": float(epsilon),
        "cache": options.cache,
        "device": options.device,
        "method": method,
    }
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        folder = Path(name)
        common = {"problem": problem, "parameters": {"grid": grid}, "warm_up": str(folder / "warm-up")}
        table, _ = measuring.run_task(
            "make_table", store=str(folder / "store"), options=made, device=options.device, **common
        )
        solves = []
        for source in SOURCES:
            runs = []
            for _ in range(options.repeat):
                if source != "recomputed":
                    (measuring.evict if source == "cold store" else measuring.read_through)(folder / "store")
                store = None if source == "recomputed" else str(folder / "store")
                summary, finished = measuring.run_task("solve_table", store=store, made=made, asked=asked, **common)
                runs.append(summary | {"peak_rss_bytes": finished.peak_bytes})
            solves.append(figures_of(source, runs))
    compared = {"problem": problem, "grid": grid, **asked, "table": table, "solves": solves}
    compared["break_even_bytes_per_second"] = break_even(table, solves[-1])
    show(compared)
    return compared


def figures_of(source: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of median time, and the spread."""
    seconds = measuring.spread([run["solve_seconds"] for run in runs])
    shown = next(run for run in runs if run["solve_seconds"] == seconds["median"])
    kept = {k: v for k, v in shown.items() if k not in ("source", "memory_plan", "proof")}
    milliseconds = 1e3 * shown["load_seconds"] / max(shown["loads"], 1)
    return {"source": source, **kept, "load_milliseconds": milliseconds, "spread": {"solve_seconds": seconds}}


def break_even(table: dict[str, Any], recomputed: dict[str, Any]) -> float:
    """Stored bytes a second at which reading a partition takes as long as a thread takes to compute it."""
    a_load = recomputed["load_seconds"] / max(recomputed["loads"], 1)
    return float(table["stored_bytes"] / table["partitions"] / max(a_load, 1e-12))


def show(compared: dict[str, Any]) -> None:
    table = compared["table"]
    print(
        f"\n{compared['problem']} {compared['grid']}: {table['states']} states, {table['partitions']} partitions, "
        f"{format_bytes(table['decoded_bytes'])} decoded, {format_bytes(table['stored_bytes'])} stored, generated in "
        f"{table['generation_seconds']:.1f} s; {compared['method']}, epsilon {compared['epsilon']}, cache "
        f"{compared['cache']}"
    )
    headers = ("source", "seconds", "spread", "loads/partition", "ms a load", "bytes read", "first pass", "peak RSS")
    rows = [
        (
            s["source"],
            f"{s['solve_seconds']:.2f}",
            f"{s['spread']['solve_seconds']['min']:.2f}-{s['spread']['solve_seconds']['max']:.2f}",
            f"{s['loads_per_partition']:.2f}",
            f"{s['load_milliseconds']:.2f}",
            format_bytes(s["bytes_read"]),
            f"{s['first_pass_seconds']:.1f}",
            format_bytes(s["peak_rss_bytes"]),
        )
        for s in compared["solves"]
    ]
    measuring.print_table(headers, rows)
    print(f"a disk slower than {format_bytes(compared['break_even_bytes_per_second'])}/s would lose to computing")


if __name__ == "__main__":
    main()
