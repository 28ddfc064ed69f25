"""Count backups, and take seconds, of each method with each order of the states in a sweep.

All partitions are resident, so that what differs is the work of the sweeps and not that of loading. Each solve runs to
the same stopping rule: a proved error, or with --residual the plain Bellman residual of the papers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import measuring

import ooc_mdp
from ooc_mdp.options import SweepOrder

METHODS: dict[str, dict[str, Any]] = {
    "vi": {"method": "vi"},
    "p-eva joint": {"method": "p-eva", "priority": "joint"},
    "p-eva h1": {"method": "p-eva", "priority": "h1"},
    "p-eva h2": {"method": "p-eva", "priority": "h2"},
}
KEPT = ("outcome", "error_bound", "residual_bound", "accesses", "loads", "sweeps", "backups", "seconds")
NOT_INCLUDED = (
    "disk and cache: the whole table is resident, and read once from the page cache in the seconds given",
    "the work of the votes is in the seconds, not in the backups",
    "generating the problem, and compiling or loading the kernels",
    "smaller caches: which partition is loaded next changes a little with the order of the sweeps",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="GW-256x4", help="any problem that ooc-mdp can generate")
    parser.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of the problem; repeat for more"
    )
    parser.add_argument("--partitions", type=int, default=240, help="number of partitions")
    parser.add_argument("--orders", default=",".join(get_args(SweepOrder)), help="separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--discount", type=float, default=0.9)
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument("--epsilon", type=float, help="error to prove; 1e-4 of the value range by default")
    rule.add_argument("--residual", type=float, help="plain Bellman residual to reach instead")
    parser.add_argument("--repeat", type=int, default=3, help="solves of each kind")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a solve")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        parameters = dict(text.split("=", 1) for text in options.parameter)
        store = ooc_mdp.generate(options.problem, Path(folder) / "store", parameters, partitions=options.partitions)
        table = {
            "problem": options.problem,
            "parameters": parameters,
            "states": store.n_states,
            "partitions": store.n_partitions,
            "block_shape": store.attributes["state_order"].get("block_shape"),
            "decoded_bytes": int(store.partition_bytes.sum()),
        }
        first = options.methods.split(",")[0]
        solve(store, first, "voted", options, time_limit=0.001)  # loads the kernels
        solves = [
            measure(store, method, order, options)
            for method in options.methods.split(",")
            for order in options.orders.split(",")
        ]
    show(table, solves, options)
    measuring.write_figures("voting", options, {"table": table, "solves": solves}, facts, NOT_INCLUDED)


def solve(
    store: ooc_mdp.Store, method: str, order: str, options: argparse.Namespace, time_limit: float
) -> ooc_mdp.Solution:
    """One solve with everything resident."""
    return ooc_mdp.solve(
        store,
        discount=options.discount,
        epsilon=options.epsilon,
        residual=options.residual,
        cache=int(store.partition_bytes.sum()),
        device="cpu",
        sweep_order=order,
        time_limit=time_limit,
        **METHODS[method],
    )


def measure(store: ooc_mdp.Store, method: str, order: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of repeated solves: those of the median by backups, and the spread of backups and seconds."""
    found = []
    for _ in range(options.repeat):
        solution = solve(store, method, order, options, options.time_limit)
        if solution.outcome is ooc_mdp.Outcome.INTERRUPTED:
            raise SystemExit(solution.outcome.message.partition(";")[0])
        found.append(solution.summary())
    found.sort(key=lambda summary: summary["backups"])
    median = found[(len(found) - 1) // 2]
    print(f"{method}, {order}: {median['outcome']} in {median['seconds']:.2f} s", file=sys.stderr, flush=True)
    return {
        "method": method,
        "sweep_order": order,
        **{k: median[k] for k in KEPT},
        "backups_per_state": median["backups"] / store.n_states,
        "backups_spread": measuring.spread([s["backups"] for s in found]),
        "seconds_spread": measuring.spread([s["seconds"] for s in found]),
    }


def show(table: dict[str, Any], solves: list[dict[str, Any]], options: argparse.Namespace) -> None:
    rule = (
        f"residual {options.residual}" if options.residual is not None else f"error {options.epsilon or 'by default'}"
    )
    print(
        f"\n{' '.join([table['problem'], *options.parameter])}: {table['states']} states, {table['partitions']} "
        f"partitions of up to {table['block_shape']}; discount {options.discount}, {rule}"
    )
    orders = options.orders.split(",")
    for title, key, form in (
        ("backups a state", "backups_per_state", "{:.1f}"),
        ("seconds", "seconds_spread", "{:.2f}"),
    ):
        rows = []
        for method in options.methods.split(","):
            cells = []
            for s in (s for s in solves if s["method"] == method):
                value = s[key]["min"] if key == "seconds_spread" else s[key]
                cells.append(form.format(value) + (f" ({s['outcome']})" if s["outcome"] == "time-limit" else ""))
            rows.append((method, *cells))
        measuring.print_table((title, *orders), rows)
        print()


if __name__ == "__main__":
    main()
