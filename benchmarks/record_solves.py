"""Record what solves take, for plans of others: the lines of `ooc_mdp/solver/recorded_solves.py`.

    taskset -c 0,1 python record_solves.py --stores car:400,car:2000 > lines

Stores of eight kinds, each solved on the CPU by the method auto to its default target, with caches of several sizes and
several discounts. How many loads and backups a solve takes depends on the number of cores, of which most users have
few: give it two. A solve that does not end in time is left out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import measuring
from plan import make

import ooc_mdp

SIZES = (
    "car:400,car:2000,pendulum:16,pendulum:24,cart-pole:16,cart-pole:24,dubins:40,dubins:70,random:40000,random:400000,"
    "gridworld:300,gridworld:1500,converted:150,converted:600,single-pendulum:300,single-pendulum:900"
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default=SIZES, help="kind:size of each store")
    parser.add_argument("--caches", default="10%,15%,22%,35%,50%,75%,100%", help="cache sizes")
    parser.add_argument("--discounts", default="0.9,0.95,0.99")
    parser.add_argument("--partitions", default="100", help="of each store")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds of a solve")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    caches, discounts = options.caches.split(","), [float(text) for text in options.discounts.split(",")]
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        for kind, size in (text.split(":") for text in options.stores.split(",")):
            path = Path(name) / f"{kind}-{size}"
            make(kind, int(size), path, options.partitions)
            measuring.read_through(path)
            for line in recorded(kind, ooc_mdp.open_store(path), caches, discounts, options.time_limit):
                print(line, flush=True)


def recorded(
    kind: str, store: ooc_mdp.Store, caches: list[str], discounts: list[float], time_limit: float
) -> Iterator[str]:
    """A line for each solve that ended in time."""
    partitions = store.n_partitions
    read = round(store.facts.coupling.mass.size / partitions - 1)
    for cache in caches:
        share = float(cache.rstrip("%")) / 100
        for discount in discounts:
            solution = ooc_mdp.solve(store, discount, cache=cache, device="cpu", time_limit=time_limit)
            if solution.outcome is not ooc_mdp.Outcome.PROVED:
                continue
            took = solution.statistics
            numbers = f"{took.loads_per_partition:.2f}, {took.backups / took.n_states:.1f}"
            yield f'    Recorded("{kind}", {store.n_states}, {read}, {share}, {discount}, {numbers}),'


if __name__ == "__main__":
    main()
