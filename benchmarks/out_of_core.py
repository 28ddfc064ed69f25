"""Solve one problem out of core by each method, and compare what each read from disk.

Every solve has its own process and the same target, a proved error; each result is then verified by a pass over the
table that trusts nothing of the solver. `--output benchmarks/results/NAME.json` keeps the figures.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring

from ooc_mdp.options import format_bytes

METHODS: dict[str, dict[str, Any]] = {
    "vi": {"method": "vi"},
    "p-eva joint": {"method": "p-eva", "priority": "joint"},
    "p-eva h1": {"method": "p-eva", "priority": "h1"},
    "p-eva h2": {"method": "p-eva", "priority": "h2"},
}
EXACT: dict[str, dict[str, Any]] = {
    "p-eva h1 exact": {"method": "p-eva", "priority": "h1", "exact_priorities": True},
    "p-eva h2 exact": {"method": "p-eva", "priority": "h2", "exact_priorities": True},
}
NOT_INCLUDED = (
    "seconds: generating the store, starting Python, importing, compiling and loading kernels (a tiny solve comes "
    "first in the same process), opening the store, writing the result, verifying it",
    "bytes read: the store's metadata and small arrays (sizes, coupling), read once; the verifying pass",
    "bytes read are asked of the operating system; how many of them came from its page cache is not known",
    "backups: those of measuring passes that update no value (exact priorities)",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="GW-1024x4", help="problem that ooc-mdp can generate")
    parser.add_argument("--seed", type=int, default=1, help="of the problem")
    parser.add_argument("--partitions", type=int, help="number of partitions; 256 or so by default")
    parser.add_argument("--cache", default="22%", help="cache sizes, separated by commas: 5%%,10%%,22%%,100%%")
    parser.add_argument("--discount", type=float, default=0.95)
    parser.add_argument("--epsilon", type=float, default=1e-4, help="error to prove")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--exact", action="store_true", help="also p-eva with exact priorities, as in the thesis")
    parser.add_argument("--repeat", type=int, default=3, help="solves of each kind")
    parser.add_argument(
        "--page-cache", choices=("warm", "cold"), default="warm", help="state of the page cache before each solve"
    )
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    if options.device != "cpu":
        facts["machine"] |= measuring.run_task("device_name", device=options.device)[0]
    methods = METHODS | (EXACT if options.exact else {})
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        folder = Path(name)
        table, _ = measuring.run_task(
            "generate",
            problem=options.problem,
            parameters={"seed": options.seed},
            store=str(folder / "store"),
            partitions=options.partitions,
            warm_up=str(folder / "warm-up"),
        )
        describe(options, facts, table)
        solves = []
        for cache in options.cache.split(","):
            compared = [measure(folder, options, cache, method, methods[method]) for method in methods]
            verified(folder, options, compared)
            show(compared)
            solves += compared
    figures = {
        "page_cache": page_cache(options),
        "table": {"problem": options.problem, **table},
        "solves": solves,
        "ratios": ratios(solves),
    }
    measuring.write_figures("out_of_core", options, figures, facts, NOT_INCLUDED)


def page_cache(options: argparse.Namespace) -> str:
    if options.page_cache == "warm":
        return "warm: the store was read through before each solve"
    return "cold at the start of each solve: the store's pages were dropped; a solve that reads twice may find them"


def measure(folder: Path, options: argparse.Namespace, cache: str, name: str, method: dict[str, Any]) -> dict[str, Any]:
    """Solve as often as asked, each time in a fresh process; figures of the run of median time, and the spread."""
    runs = []
    for i in range(options.repeat):
        (measuring.read_through if options.page_cache == "warm" else measuring.evict)(folder / "store")
        asked = {
            "discount": options.discount,
            "epsilon": options.epsilon,
            "cache": cache,
            "device": options.device,
            "output": str(folder / result_name(cache, name, i)),
            "checkpoint_interval": 1e9,
            **method,
        }
        summary, finished = measuring.run_task(
            "solve", warm_up=str(folder / "warm-up"), store=str(folder / "store"), options=asked
        )
        runs.append(summary | {"peak_rss_bytes": finished.peak_bytes})
    seconds = measuring.spread([run["seconds"] for run in runs])
    shown = next(run for run in runs if run["seconds"] == seconds["median"])
    return {
        "method": name,
        "cache": cache,
        **{k: v for k, v in shown.items() if k not in ("method", "memory_plan")},
        "run": runs.index(shown),
        "spread": {k: measuring.spread([r[k] for r in runs]) for k in ("seconds", "bytes_read", "peak_rss_bytes")},
    }


def result_name(cache: str, method: str, run: int) -> str:
    return f"result-{cache.strip('%')}-{method.replace(' ', '-')}-{run}"


def verified(folder: Path, options: argparse.Namespace, solves: list[dict[str, Any]]) -> None:
    """Add what an independent pass over the table finds for the run whose figures are shown."""
    results = [str(folder / result_name(s["cache"], s["method"], s.pop("run"))) for s in solves]
    found, _ = measuring.run_task("verify", store=str(folder / "store"), results=results)
    for solve, result in zip(solves, results, strict=True):
        solve["verified"] = {k: found[result][k] for k in ("holds", "residual", "error_bound")}


def ratios(solves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each method against value iteration at the same cache size: above 1 it did better, for backups worse."""
    base = {s["cache"]: s for s in solves if s["method"] == "vi"}
    return [
        {
            "method": s["method"],
            "cache": s["cache"],
            "bytes_read_vi_over_method": base[s["cache"]]["bytes_read"] / s["bytes_read"],
            "backups_method_over_vi": s["backups"] / base[s["cache"]]["backups"],
            "seconds_vi_over_method": base[s["cache"]]["seconds"] / s["seconds"],
        }
        for s in solves
        if s["method"] != "vi"
    ]


def describe(options: argparse.Namespace, facts: dict[str, Any], table: dict[str, Any]) -> None:
    machine = facts["machine"]
    print(f"{machine['cpu']}, {machine['cores']} cores, {format_bytes(machine['ram_bytes'])}; {machine['seconds_are']}")
    print(", ".join(f"{k} {v}" for k, v in facts["versions"].items()))
    print(
        f"{options.problem}: {table['states']} states, {table['transitions']} transitions, {table['partitions']} "
        f"partitions, {format_bytes(table['decoded_bytes'])} decoded, {format_bytes(table['stored_bytes'])} stored"
    )
    print(f"discount {options.discount}, epsilon {options.epsilon}, {options.device}; page cache {page_cache(options)}")


def show(solves: list[dict[str, Any]]) -> None:
    print(f"\ncache {solves[0]['cache']} ({format_bytes(solves[0]['cache_bytes'])})")
    headers = (
        "method", "bytes read", "loads/partition", "hit rate", "backups/state", "seconds", "spread",
        "proved error", "verified", "peak RSS",
    )  # fmt: skip
    rows = [
        (
            s["method"],
            format_bytes(s["bytes_read"]),
            f"{s['loads_per_partition']:.2f}",
            f"{s['hit_rate']:.1%}",
            f"{s['backups'] / s['n_states']:.0f}",
            f"{s['seconds']:.2f}",
            f"{s['spread']['seconds']['min']:.2f}-{s['spread']['seconds']['max']:.2f}",
            f"{s['error_bound']:.1e}",
            f"{s['verified']['error_bound']:.1e}" if s["verified"]["holds"] else "FAILS",
            format_bytes(s["peak_rss_bytes"]),
        )
        for s in solves
    ]
    measuring.print_table(headers, rows)
    for r in ratios(solves):
        print(
            f"vi read {r['bytes_read_vi_over_method']:.1f} times the bytes of {r['method']}, "
            f"which did {r['backups_method_over_vi']:.2f} times the backups of vi"
        )


if __name__ == "__main__":
    main()
