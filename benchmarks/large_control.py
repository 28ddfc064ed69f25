"""Generate a large control problem to disk, solve it from there through a small cache, and verify the result.

Wingate's largest (2004, section 10.1.1) was a double-arm pendulum of 75,000,000 states: four hours and 8 GB of memory
on one processor of an SGI Origin 3000, to a residual of 1e-4. Default here: 93^4 = 74,805,201 states, its single-reward
kind (`hold=0`), an error proved to be at most `--epsilon`. Everything runs in this process; a line every ten seconds
says where the solve stands. `--output benchmarks/results/NAME.json` keeps the figures.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
import numpy as np
from measuring import ProgressLine, say

import ooc_mdp
from ooc_mdp.options import format_bytes

NOT_INCLUDED = (
    "generation seconds include compiling the problem's kernel; solve seconds include compiling the sweep kernels",
    "the page cache is as generating leaves it: how much of the bytes read came from the disk itself is not known",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="double-pendulum")
    parser.add_argument("--grid", default="93,93,93,93")
    parser.add_argument("-p", "--parameter", action="append", metavar="NAME=VALUE", default=None)
    parser.add_argument("--partition-grid", default="3,3,3,3", help="partitions along each axis")
    parser.add_argument("--cache", default="20%")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--epsilon", type=float, default=2e-4, help="error to prove")
    parser.add_argument("--residual", type=float, help="plain residual to stop at instead")
    parser.add_argument("--method", default="vi")
    parser.add_argument("--sweeps", type=int, default=40, help="sweeps of a visit by vi")
    parser.add_argument("--device", default="cuda:0", help="cpu or cuda:0")
    parser.add_argument("--time-limit", type=float, help="seconds of the solve")
    parser.add_argument("--no-verify", action="store_true", help="leave out the verifying pass, on one CPU thread")
    parser.add_argument("--folder", type=Path, help="where the store is made; a temporary folder by default")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.parameter = options.parameter if options.parameter is not None else ["hold=0"]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    if options.device != "cpu":
        facts["machine"] |= measuring.run_task("device_name", device=options.device)[0]
    folder = Path(tempfile.mkdtemp(prefix="ooc-mdp-benchmark-", dir=options.folder))
    try:
        figures = measure(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options.folder = None  # figures name no place
    measuring.write_figures("large_control", options, figures, facts, NOT_INCLUDED)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Generate, solve, verify."""
    parameters: dict[str, str | int | float] = {"grid": options.grid}
    parameters |= dict(said.split("=", 1) for said in options.parameter)
    blocks = [int(n) for n in options.partition_grid.split(",")]
    began = time.monotonic()
    store = ooc_mdp.generate(
        options.problem, folder / "store", parameters, partition_grid=blocks, dtype="float32", device=options.device
    )
    made = {
        "states": store.n_states,
        "transitions": store.n_transitions,
        "partitions": store.n_partitions,
        "decoded_bytes": int(store.facts.partition_bytes.sum()),
        "stored_bytes": int(store.chunk_bytes.sum()),
        "generation_seconds": time.monotonic() - began,
    }
    say(
        f"{made['states']:,} states in {made['partitions']} partitions, {format_bytes(made['decoded_bytes'])} decoded, "
        f"{format_bytes(made['stored_bytes'])} stored, generated in {made['generation_seconds']:.1f} s"
    )
    target = {"residual": options.residual} if options.residual is not None else {"epsilon": options.epsilon}
    sweeps = {"sweeps_per_visit": options.sweeps} if options.method == "vi" else {}
    solution = ooc_mdp.solve(
        store,
        discount=options.discount,
        method=options.method,
        cache=options.cache,
        device=options.device,
        output=folder / "result",
        checkpoint_interval=3600.0,
        time_limit=options.time_limit,
        progress=ProgressLine(),
        **target,
        **sweeps,
    )
    summary = solution.summary()
    span = float(solution.values.max() - solution.values.min())
    figures: dict[str, Any] = {
        "store": made,
        "solve": summary,
        "value_range": span,
        "values": {str(q): float(np.quantile(solution.values, q)) for q in (0, 0.25, 0.5, 0.75, 1)},
        "error_over_value_range": solution.error_bound / span if span else None,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    say(
        f"{summary['outcome']} in {summary['solve_seconds']:.1f} s: error at most {solution.error_bound:.3g} = "
        f"{figures['error_over_value_range']:.2g} of the value range; {summary['loads_per_partition']:.1f} loads "
        f"per partition, {format_bytes(summary['bytes_read'])} read, "
        f"{summary['backups'] / store.n_states:.0f} backups per state"
    )
    if solution.outcome.proved and not options.no_verify:
        began = time.monotonic()
        found = ooc_mdp.verify(store, folder / "result").summary()
        figures["verified"] = found | {"seconds": time.monotonic() - began}
        say(f"verified: {found['holds']}, error at most {found['error_bound']:.3g}")
    return figures


if __name__ == "__main__":
    main()
