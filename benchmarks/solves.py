"""Solve one generated problem by each method, with each cache and order of sweeps: bytes, loads, backups, seconds.

Every solve has its own process and the same target; with --verify a pass over the table that trusts nothing of the
solver checks each result. The tables have a row per method and a column per cache, or per order of sweeps where there
are several. `--output benchmarks/results/NAME.json` keeps the figures. For example

    solves.py                                                  bytes read by each method, GW-1024x4, a cache of 22%
    solves.py --problem GW-256x4 --partitions 240 -p scramble=0.01 --discount 0.9 --cache 5%,22%,100% --exact
    solves.py --problem mountain-car -p grid=200,200 --partitions 100 --residual 1e-4 --cache 100% \\
        --orders forward,alternating,voted
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
from measuring import say

from ooc_mdp.options import format_bytes

METHODS: dict[str, dict[str, Any]] = {
    "vi": {"method": "vi"},
    "p-eva joint": {"method": "p-eva", "priority": "joint"},
    "p-eva h1": {"method": "p-eva", "priority": "h1"},
    "p-eva h2": {"method": "p-eva", "priority": "h2"},
    "auto": {"method": "auto"},
    "p-eva h1 exact": {"method": "p-eva", "priority": "exact-h1"},
    "p-eva h2 exact": {"method": "p-eva", "priority": "exact-h2"},
}
USUAL = "vi,p-eva joint,p-eva h1,p-eva h2"
EXACT = ",p-eva h1 exact,p-eva h2 exact"
NOT_INCLUDED = (
    "seconds: generating the store, starting Python, importing, compiling and loading kernels (a tiny solve comes "
    "first in the same process), opening the store, writing the result, verifying it",
    "bytes read: the store's metadata and small arrays (sizes, coupling), read once; the verifying pass",
    "bytes read are asked of the operating system; how many of them came from its page cache is not known",
    "backups: those of measuring passes that update no value (exact priorities); the work of votes is in the seconds",
    "the spread of loads, unless repeated: p-eva reads ahead on a thread, so that its counts differ from run to run",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="GW-1024x4", help="problem that ooc-mdp can generate")
    parser.add_argument("-p", "--parameter", action="append", metavar="NAME=VALUE", help="of the problem; seed=1 alone")
    parser.add_argument("--partitions", type=int, help="number of partitions; 256 or so by default")
    parser.add_argument("--methods", default=USUAL, help=f"separated by commas, of {', '.join(METHODS)}")
    parser.add_argument("--exact", action="store_true", help="also p-eva with exact priorities, as in the thesis")
    parser.add_argument("--cache", default="22%", help="cache sizes, separated by commas: 5%%,10%%,22%%,100%%")
    parser.add_argument("--orders", default="voted", help="orders of sweeps, separated by commas")
    parser.add_argument("--discount", type=float, default=0.95)
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument("--epsilon", type=float, help="error to prove; 1e-4 by default")
    rule.add_argument("--residual", type=float, help="plain Bellman residual to reach instead")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--repeat", type=int, default=1, help="solves of each kind; the one of median time is shown")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds per solve")
    parser.add_argument("--verify", action="store_true", help="verify each result that is shown")
    parser.add_argument(
        "--page-cache", choices=("warm", "cold"), default="warm", help="state of the page cache before each solve"
    )
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    if options.epsilon is None and options.residual is None:
        options.epsilon = 1e-4
    options.methods += EXACT if options.exact else ""
    options.parameter = options.parameter or (["seed=1"] if options.problem.startswith(("GW", "QK")) else [])
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    if options.device != "cpu":
        facts["machine"] |= measuring.run_task("device_name", device=options.device)[0]
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        folder = Path(name)
        table, _ = measuring.run_task(
            "generate",
            problem=options.problem,
            parameters=dict(pair.split("=", 1) for pair in options.parameter),
            store=str(folder / "store"),
            partitions=options.partitions,
            warm_up=str(folder / "warm-up"),
        )
        kinds = itertools.product(options.methods.split(","), options.cache.split(","), options.orders.split(","))
        solves = [measure(folder, options, *kind) for kind in kinds]
        if options.verify:
            verify(folder, solves)
    for solve in solves:
        del solve["result"]
    show(options, table, solves)
    figures = {"page_cache": page_cache(options), "table": {"problem": options.problem, **table}, "solves": solves}
    measuring.write_figures("solves", options, figures | {"ratios": ratios(solves)}, facts, NOT_INCLUDED)


def page_cache(options: argparse.Namespace) -> str:
    if options.page_cache == "warm":
        return "warm: the store was read through before each solve"
    return "cold at the start of each solve: the store's pages were dropped; a solve that reads twice may find them"


def measure(folder: Path, options: argparse.Namespace, method: str, cache: str, order: str) -> dict[str, Any]:
    """Solve as often as asked, each time in a fresh process; figures of the run of median time, and the spread."""
    runs = []
    for _ in range(options.repeat):
        (measuring.read_through if options.page_cache == "warm" else measuring.evict)(folder / "store")
        result = str(folder / f"result-{len(list(folder.iterdir()))}")
        asked = {
            "discount": options.discount,
            "epsilon": options.epsilon,
            "residual": options.residual,
            "cache": cache,
            "device": options.device,
            "sweep_order": order,
            "time_limit": options.time_limit,
            "output": result,
            "checkpoint_interval": 1e9,
            **METHODS[method],
        }
        summary, finished = measuring.run_task(
            "solve", warm_up=str(folder / "warm-up"), store=str(folder / "store"), options=asked
        )
        runs.append(summary | {"peak_rss_bytes": finished.peak_bytes, "result": result})
    seconds = measuring.spread([run["solve_seconds"] for run in runs])
    shown = next(run for run in runs if run["solve_seconds"] == seconds["median"])
    say(f"{method}, cache {cache}, {order}: {shown['outcome']} in {shown['solve_seconds']:.2f} s")
    spread = {
        k: measuring.spread([r[k] for r in runs]) for k in ("solve_seconds", "bytes_read", "backups", "peak_rss_bytes")
    }
    kept = {k: v for k, v in shown.items() if k not in ("method", "memory_plan")}
    per_state = {"backups_per_state": shown["backups"] / shown["n_states"]}
    return {"method": method, "cache": cache, "sweep_order": order, **kept, **per_state, "spread": spread}


def verify(folder: Path, solves: list[dict[str, Any]]) -> None:
    """Add what an independent pass over the table finds for each solve that reached its target."""
    done = [s for s in solves if s["outcome"] in ("proved", "residual_reached")]
    found, _ = measuring.run_task("verify", store=str(folder / "store"), results=[s["result"] for s in done])
    for solve in done:
        solve["verified"] = {k: found[solve["result"]][k] for k in ("holds", "residual", "error_bound")}


def ratios(solves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each method against value iteration with the same cache and order: above 1 it did better, for backups worse."""
    base = {(s["cache"], s["sweep_order"]): s for s in solves if s["method"] == "vi"}
    found = []
    for s in solves:
        vi = base.get((s["cache"], s["sweep_order"]))
        if vi is not None and s is not vi:
            found.append(
                {
                    "method": s["method"],
                    "cache": s["cache"],
                    "sweep_order": s["sweep_order"],
                    "bytes_read_vi_over_method": vi["bytes_read"] / s["bytes_read"],
                    "backups_method_over_vi": s["backups"] / vi["backups"],
                    "seconds_vi_over_method": vi["solve_seconds"] / s["solve_seconds"],
                }
            )
    return found


def show(options: argparse.Namespace, table: dict[str, Any], solves: list[dict[str, Any]]) -> None:
    """A table per figure: a row per method, a column per cache and order."""
    target = f"error {options.epsilon}" if options.residual is None else f"plain residual {options.residual}"
    print(
        f"{' '.join([options.problem, *options.parameter])}: {table['states']} states, {table['partitions']} "
        f"partitions, {format_bytes(table['decoded_bytes'])} decoded, {format_bytes(table['stored_bytes'])} stored; "
        f"discount {options.discount}, {target}, {options.device}; page cache {options.page_cache}"
    )
    columns = list(itertools.product(options.cache.split(","), options.orders.split(",")))
    several = len(options.orders.split(",")) > 1
    figures: tuple[tuple[str, Any], ...] = (
        ("loads per partition", lambda s: f"{s['loads_per_partition']:.2f}"),
        ("hit rate", lambda s: f"{s['hit_rate']:.1%}"),
        ("bytes read", lambda s: format_bytes(s["bytes_read"])),
        ("backups per state", lambda s: f"{s['backups_per_state']:.1f}"),
        ("seconds", lambda s: f"{s['solve_seconds']:.2f}"),
        ("error bound", lambda s: f"{s['error_bound']:.1e}"),
        ("verified error", lambda s: _verified(s)),
        ("peak RSS", lambda s: format_bytes(s["peak_rss_bytes"])),
    )
    at = {(s["method"], s["cache"], s["sweep_order"]): s for s in solves}
    for title, form in figures[:6] + (figures[6:] if options.verify else figures[7:]):
        rows = []
        for method in options.methods.split(","):
            cells = (at[method, cache, order] for cache, order in columns)
            rows.append((method, *(form(s) + _unfinished(s) for s in cells)))
        print()
        heads = [f"{cache}, {order}" if several else cache for cache, order in columns]
        measuring.print_table((title, *heads), rows)


def _verified(solve: dict[str, Any]) -> str:
    found = solve.get("verified")
    return "-" if found is None else f"{found['error_bound']:.1e}" if found["holds"] else "FAILS"


def _unfinished(solve: dict[str, Any]) -> str:
    return "" if solve["outcome"] in ("proved", "residual_reached") else f" ({solve['outcome']})"


if __name__ == "__main__":
    main()
