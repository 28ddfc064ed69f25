"""What a load costs on one machine: reading a partition from a warm or cold store, or computing it, on CPU or GPU.

Partitions are loaded one after another into the backend's layout, without a solve around them; the median of each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measuring
import numpy as np

import ooc_mdp
from ooc_mdp.backends.layout import Needs, SlotsTooSmall
from ooc_mdp.backends.select import select_backend
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.table import Table
from ooc_mdp.options import CacheSize, format_bytes

NOT_INCLUDED = (
    "sweeps; loads that run at the same time as others or as sweeps: each is waited for, a device's work included",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", action="append", metavar="NAME:GRID", help="repeat for more")
    parser.add_argument("--partitions", default="100", help="numbers of partitions, separated by commas")
    parser.add_argument("--loads", type=int, default=20, help="partitions that are loaded, spread over the table")
    parser.add_argument("--device", default="cpu", help="backends, separated by commas: cpu,cuda:0")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.problem = options.problem or ["mountain-car:500,500", "single-pendulum:500,500", "double-pendulum:20"]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    costs = [
        cost
        for said in options.problem
        for partitions in options.partitions.split(",")
        for cost in costs_of(*said.split(":"), int(partitions), options)
    ]
    headers = ("problem", "partitions", "table", "backend", "source", "ms a load", "spread", "GB/s of table")
    rows = [
        (
            f"{c['problem']} {c['grid']}",
            f"{c['partitions']}",
            format_bytes(c["table_bytes"]),
            c["backend"],
            c["source"],
            f"{1e3 * c['seconds']['median']:.2f}",
            f"{1e3 * c['seconds']['min']:.2f}-{1e3 * c['seconds']['max']:.2f}",
            f"{c['table_bytes'] / c['seconds']['median'] / 1e9:.2f}",
        )
        for c in costs
    ]
    measuring.print_table(headers, rows)
    measuring.write_figures("load_costs", options, {"costs": costs}, facts, NOT_INCLUDED)


def costs_of(problem: str, grid: str, partitions: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Each backend from each source."""
    parameters, made = {"grid": grid}, {"partitions": partitions, "dtype": "float32"}
    costs = []
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        folder = Path(name) / "store"
        store = ooc_mdp.generate(problem, folder, parameters, **made)
        for device in options.device.split(","):
            for source in ("warm store", "cold store", "recomputed"):
                table: Table = store
                if source == "recomputed":
                    table = ooc_mdp.open_problem(problem, parameters, device=device, **made)
                else:
                    (measuring.evict if source == "cold store" else measuring.read_through)(folder)
                costs.append(
                    {
                        "problem": problem,
                        "grid": grid,
                        "partitions": table.n_partitions,
                        "states": table.n_states,
                        "table_bytes": int(statistics.median(table.facts.partition_bytes.tolist())),
                        "stored_bytes": int(statistics.median(store.chunk_bytes.tolist())),
                        "backend": device,
                        "source": source,
                        "seconds": measuring.spread(loads(table, device, options.loads)),
                    }
                )
    return costs


def loads(table: Table, device: str, count: int) -> list[float]:
    """Seconds of each load, the first one apart, which compiles."""
    backend = select_backend(device)
    model = ModelFacts.of(table.facts, 0.9)
    wait = device_barrier(device)
    partitions = [0, *(np.arange(1, count + 1) * (table.n_partitions - 1) // count)]
    one = backend.layout(model, Needs()).largest_entry
    layout = backend.layout(model, Needs(CacheSize(size=one)))
    try:
        while True:
            backend.start(model, layout, None, None, table.loader(backend.name))
            seconds = []
            try:
                for q in partitions:
                    began = time.perf_counter()
                    resident = backend.admit(backend.fetch(int(q))[0])
                    wait()
                    seconds.append(time.perf_counter() - began)
                    backend.release(resident)
            except SlotsTooSmall:
                layout = backend.enlarged(layout)
            else:
                return seconds[1:]
    finally:
        backend.close()


def device_barrier(device: str) -> Callable[[], None]:
    """Waits for all that a device was asked to do."""
    if device == "cpu":
        return lambda: None
    import cupy

    barrier: Callable[[], None] = cupy.cuda.Device(int(device.partition(":")[2] or 0)).synchronize
    return barrier


if __name__ == "__main__":
    main()
