"""Value iteration with the whole table in one GPU's memory, by several hands, beside out-of-core solves of the same.

    python gpu_peers.py --grid 2000 --grid 4000 --grid 8000 --output FILE.json
    python gpu_peers.py --grid 20000 --solver jacobi --solver in-place --time-limit 60 --output FILE.json

Tables are a problem's rows, those of control problems computed on the device, or with --from-store those of a store.
Each solver (gpu_solvers.py) runs in its own process, kernels compiled before its clock starts, to the same plain
residual or, with --epsilon, to the same proved error; what its values really prove is then measured in float64, by the
same lines for all. Where a time limit ends a solver, its sweeps are extrapolated from smaller grids of the same run, on
which they grow with the points along an axis, and multiplied by its measured seconds a sweep. `ooc-mdp` solves the
table's store (in the page cache) with everything cached; end_to_end.py has the solves through small caches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import (
    add_table_options,
    device_facts,
    make_warm,
    measuring,
    open_or_generate,
    parameters_of,
    say,
    solve_warm_up,
    whole_table,
)

NAMES = ("jacobi", "in-place", "cusparse", "jax-gather", "jax-segment", "mdpax", "ooc-mdp")
NOT_INCLUDED = (
    "seconds: making the table, bringing it to the solver's own form, compiling (two sweeps come first)",
    "seconds of ooc-mdp: opening the store and compiling (a tiny solve comes first in the same process); they do "
    "include reading and decoding the store, which is in the page cache",
    "in-memory solvers prove nothing by themselves: their error is measured after the clock stopped",
    "mdpax knows one discount: the table's is folded into its probabilities; float32 values only",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_table_options(parser, "mountain-car", "")
    parser.set_defaults(grid=None)
    for action in parser._actions:
        if action.dest == "grid":
            action.help = "points along each axis, such as 4000 or 4000,4000"
    parser.add_argument("--grids", help="several of them, separated by semicolons, instead of --grid")
    parser.add_argument("--solver", action="append", choices=NAMES, help="repeat for more; all by default")
    parser.add_argument("--values", default="float64,float32", help="types of the values, separated by commas")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--residual", type=float, help="plain residual to stop at; 1e-4 by default")
    parser.add_argument("--epsilon", type=float, help="error to prove instead (normalised residuals)")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds a solver")
    parser.add_argument("--from-store", action="store_true", help="take tables from a store, not from the problem")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or cpu to see that everything runs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="threads that decode or generate")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    if options.residual is None and options.epsilon is None:
        options.residual = 1e-4
    options.solver = options.solver or list(NAMES)
    options.grids = [g.strip() for g in (options.grids or options.grid or "2000").split(";")]
    if options.store is not None and len(options.grids) > 1:
        parser.error("--store holds one grid; give one --grid")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.child:
        print(json.dumps(child(options, json.loads(options.child))))
        return
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["versions"] |= _more_versions()
    facts["machine"] |= run_child(options, {"task": "facts"}, 120.0)
    folder = Path(tempfile.mkdtemp(prefix="ooc-mdp-benchmark-"))
    solves = []
    try:
        for grid in options.grids:
            options.grid = grid
            for name in options.solver:
                for values in ["float64"] if name == "ooc-mdp" else options.values.split(","):
                    if name == "mdpax" and values == "float64":
                        continue  # its rows travel as float32
                    solves.append(solve(options, folder, name, values))
            shutil.rmtree(folder / "store", ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    extrapolate(solves)
    show(solves)
    options.store = options.grid = None  # figures name no place
    measuring.write_figures("gpu_peers", options, {"solves": solves}, facts, NOT_INCLUDED)


def _more_versions() -> dict[str, str]:
    import importlib.metadata

    found = {}
    for package in ("jax", "jaxlib", "mdpax", "scipy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def solve(options: argparse.Namespace, folder: Path, name: str, values: str) -> dict[str, Any]:
    """One solver on one grid, in a process of its own; a failure is a figure too."""
    store = options.store or folder / "store"
    asked = {"task": "ooc-mdp" if name == "ooc-mdp" else "peer", "solver": name, "values": values, "store": str(store)}
    where = {"solver": name, "grid": options.grid, "values": values}
    began = time.monotonic()
    try:
        found = run_child(options, asked, options.time_limit + 240.0)
    except subprocess.TimeoutExpired as error:
        found = {"outcome": "failed", "message": f"no answer within {error.timeout:.0f} s"}
    except ValueError as error:
        say(str(error))
        # The last line says what happened; those before it name places on this machine.
        found = {"outcome": "failed", "message": str(error).strip().splitlines()[-1][:300]}
    whole = time.monotonic() - began
    seconds = f"{found.get('seconds', 0):.2f} s ({whole:.0f} with its process)"
    say(f"{name} {options.grid} {values}: {found['outcome']} after {seconds}")
    return where | found


def run_child(options: argparse.Namespace, asked: dict[str, Any], timeout: float) -> dict[str, Any]:
    """This script in a fresh process, for one task; what it prints."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(asked)]
    command += ["--problem", options.problem, "--device", options.device, "--discount", str(options.discount)]
    command += [
        "--grid",
        options.grid or "",
        "--time-limit",
        str(options.time_limit),
        "--workers",
        str(options.workers),
    ]
    command += [part for said in options.parameter for part in ("-p", said)]
    for name in ("residual", "epsilon", "partition_shape"):
        value = getattr(options, name)
        command += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    command += ["--from-store"] if options.from_store else []
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    if ended.returncode:
        raise ValueError(ended.stderr[-2000:])
    return json.loads(ended.stdout.splitlines()[-1])


def child(options: argparse.Namespace, asked: dict[str, Any]) -> dict[str, Any]:
    """What the fresh process does."""
    if asked["task"] == "facts":
        return device_facts(options.device)
    store = Path(asked["store"])
    if asked["task"] == "ooc-mdp":
        return solve_out_of_core(options, store)
    return solve_in_memory(options, store, asked["solver"], asked["values"])


def solve_in_memory(options: argparse.Namespace, path: Path, name: str, values: str) -> dict[str, Any]:
    """A peer: table, solve, and what its values prove."""
    from gpu_solvers import SOLVERS, Limits, drive
    from planes import planes_of_problem, planes_of_store, residuals

    from ooc_mdp.problems.registry import make_problem

    began = time.perf_counter()
    if options.from_store:
        store, _ = open_or_generate(options, path, options.device)
        planes = planes_of_store(store, options.discount, options.device, options.workers)
    else:
        planes = planes_of_problem(options.problem, parameters_of(options), options.discount, options.device)
    table_seconds = time.perf_counter() - began
    solver = SOLVERS[name](planes, values)
    solved = drive(solver, Limits(options.residual, options.epsilon, options.time_limit))
    found = residuals(planes, solver.values())
    n_bytes = planes.sweep_bytes(int(values[-2:]) // 8)
    a_sweep = solved.seconds / max(solved.sweeps, 1)
    return {
        "outcome": solved.outcome,
        "seconds": solved.seconds,
        "sweeps": solved.sweeps,
        "seconds_a_sweep": a_sweep,
        "states": planes.n_states,
        "axes": len(make_problem(options.problem, parameters_of(options)).shape or (0,)),
        "table_bytes": planes.nbytes,
        "sweep_bytes": n_bytes,
        "bytes_per_second": n_bytes / a_sweep,
        "transitions_per_second": planes.n_states * planes.n_actions * planes.n_successors / a_sweep,
        "residual": found.plain,
        "error": found.error if math.isfinite(found.error) else None,
        "table_seconds": table_seconds,
        "history": solved.history,
    }


def solve_out_of_core(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """ooc-mdp on the same table, from a warm store, with everything cached."""
    import ooc_mdp

    store, _ = open_or_generate(options, path, options.device)
    target = {"residual": options.residual} if options.epsilon is None else {"epsilon": options.epsilon}
    asked = {"discount": options.discount, "device": options.device, **target, **whole_table(store, options.device)}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        solve_warm_up(options, Path(folder), **asked)
    make_warm(path)
    summary = ooc_mdp.solve(store, time_limit=options.time_limit, **asked).summary()
    return {
        "outcome": summary["outcome"],
        "seconds": summary["solve_seconds"],
        "sweeps": summary["backups"] / store.n_states,
        "seconds_a_sweep": None,
        "states": store.n_states,
        "table_bytes": summary["table_bytes"],
        "bytes_read": summary["bytes_read"],
        "residual": summary["residual_bound"],
        "error": summary["error_bound"],
    }


def extrapolate(solves: list[dict[str, Any]]) -> None:
    """Whole seconds of what a time limit ended, from the sweeps that smaller grids needed, by a line through two."""
    for one in solves:
        if one["outcome"] != "time_limit" or not one.get("seconds_a_sweep"):
            continue
        same = sorted(
            (s["states"], s["sweeps"])
            for s in solves
            if s["solver"] == one["solver"]
            and s["values"] == one["values"]
            and s["outcome"] in ("residual_reached", "proved")
        )
        if len(same) >= 2:
            root = 1 / one["axes"]
            (n0, k0), (n1, k1) = ((n**root, k) for n, k in same[-2:])
            sweeps = k1 + (k1 - k0) / (n1 - n0) * (one["states"] ** root - n1)
            one["extrapolated"] = {"sweeps": sweeps, "seconds": sweeps * one["seconds_a_sweep"]}


def show(solves: list[dict[str, Any]]) -> None:
    """The table."""
    headers = ("solver", "grid", "values", "outcome", "sweeps", "seconds", "ms a sweep", "GB/s", "residual", "error")
    rows = []
    for s in solves:
        if s["outcome"] == "failed":
            rows.append((s["solver"], s["grid"], s["values"], "failed", *["-"] * 6))
            continue
        more = s.get("extrapolated")
        rows.append(
            (
                s["solver"],
                s["grid"],
                s["values"],
                s["outcome"],
                f"{s['sweeps']:.0f}" + (f" of ~{more['sweeps']:.0f}" if more else ""),
                f"{s['seconds']:.2f}" + (f" of ~{more['seconds']:.0f}" if more else ""),
                f"{1e3 * s['seconds_a_sweep']:.3f}" if s["seconds_a_sweep"] else "-",
                f"{s['bytes_per_second'] / 1e9:.0f}" if "bytes_per_second" in s else "-",
                f"{s['residual']:.2e}",
                "-" if s["error"] is None else f"{s['error']:.2e}",
            )
        )
    measuring.print_table(headers, rows)


if __name__ == "__main__":
    main()
