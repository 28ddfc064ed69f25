"""Count the loads a partition that each method needs, against the size of the cache.

Nothing is timed: the figures are counts, of solves to the same proved error on a grid world with local moves and on
the same with a share of its successors scattered over the grid, so that partitions depend on each other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring

import ooc_mdp
from ooc_mdp.options import format_bytes

METHODS: dict[str, dict[str, Any]] = {
    "vi": {"method": "vi"},
    "p-eva joint": {"method": "p-eva", "priority": "joint"},
    "p-eva h1": {"method": "p-eva", "priority": "h1"},
    "p-eva h2": {"method": "p-eva", "priority": "h2"},
    "p-eva h1 exact": {"method": "p-eva", "priority": "h1", "exact_priorities": True},
    "p-eva h2 exact": {"method": "p-eva", "priority": "h2", "exact_priorities": True},
}
KEPT = (
    "outcome", "error_bound", "cache_bytes", "accesses", "auxiliary_accesses", "loads", "loads_per_partition",
    "hit_rate", "bytes_read", "sweeps", "backups", "seconds",
)  # fmt: skip
NOT_INCLUDED = (
    "time: loads are counted; the seconds are single runs in one process, there to spot what hit the time limit",
    "bytes read: the store's metadata and small arrays, read once",
    "backups: those of measuring passes that update no value (exact priorities)",
    "the spread: p-eva reads ahead on a thread, so that its counts differ a little from run to run",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="GW-256x4", help="a grid world that ooc-mdp can generate")
    parser.add_argument("--scramble", default="0,0.1", help="shares of scattered successors")
    parser.add_argument("--seed", type=int, default=1, help="of the problem")
    parser.add_argument("--partitions", type=int, default=240, help="number of partitions")
    parser.add_argument("--cache", default="5%,10%,22%,50%,100%", help="cache sizes, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--epsilon", type=float, default=1e-4, help="error to prove")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a solve")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    tables = []
    for scramble in (float(share) for share in options.scramble.split(",")):
        with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
            parameters = {"seed": options.seed, "scramble": scramble}
            store = ooc_mdp.generate(options.problem, Path(folder) / "store", parameters, partitions=options.partitions)
            table = {
                "problem": options.problem,
                "scramble": scramble,
                "states": store.n_states,
                "partitions": store.n_partitions,
                "decoded_bytes": int(store.partition_bytes.sum()),
                "dependents_per_partition": store.coupling.partitions.size / store.n_partitions,
            }
            solves = [
                measure(store, cache, method, options)
                for method in options.methods.split(",")
                for cache in options.cache.split(",")
            ]
        show(table, solves, options)
        tables.append(table | {"solves": solves})
    measuring.write_figures("scheduling", options, {"tables": tables}, facts, NOT_INCLUDED)


def measure(store: ooc_mdp.Store, cache: str, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """The counts of one solve."""
    solution = ooc_mdp.solve(
        store,
        discount=options.discount,
        epsilon=options.epsilon,
        cache=cache,
        device=options.device,
        time_limit=options.time_limit,
        **METHODS[method],
    )
    summary = solution.summary()
    if solution.outcome is ooc_mdp.Outcome.INTERRUPTED:
        raise SystemExit(solution.outcome.message.partition(";")[0])
    print(f"{method}, cache {cache}: {summary['outcome']} in {summary['seconds']:.0f} s", file=sys.stderr, flush=True)
    return {"method": method, "cache": cache, **{k: summary[k] for k in KEPT}}


def show(table: dict[str, Any], solves: list[dict[str, Any]], options: argparse.Namespace) -> None:
    print(
        f"\n{table['problem']}, scramble {table['scramble']:g}: {table['states']} states, {table['partitions']} "
        f"partitions of {table['dependents_per_partition']:.1f} dependents, {format_bytes(table['decoded_bytes'])}; "
        f"discount {options.discount}, proved error {options.epsilon}"
    )
    caches = options.cache.split(",")
    for title, key, form in (
        ("loads a partition", "loads_per_partition", "{:.2f}"),
        ("hit rate", "hit_rate", "{:.1%}"),
        ("backups a state", "backups_per_state", "{:.0f}"),
    ):
        rows = []
        for method in options.methods.split(","):
            cells = []
            for s in (s for s in solves if s["method"] == method):
                value = s["backups"] / table["states"] if key == "backups_per_state" else s[key]
                cells.append(form.format(value) + ("" if s["outcome"] == "proved" else f" ({s['outcome']})"))
            rows.append((method, *cells))
        measuring.print_table((title, *caches), rows)
        print()


if __name__ == "__main__":
    main()
