"""One problem on one process and on several workers of this machine: do certified answers agree, what do they cost, and
what if workers are killed?

Every solve is of the same store, through a cache of `--cache` of the table a worker, to a proved error. `--kills N`
makes N more runs on the largest number of workers, in each of which a worker chosen at random gets SIGKILL at a random
moment of the run. Answers agree where they differ by no more than both certificates allow. `--output
benchmarks/results/NAME.json` keeps the figures.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import measuring
import numpy as np
from distributed import Client, LocalCluster
from measuring import say

import ooc_mdp
from ooc_mdp.model.table import Table

_RESTART_SECONDS = 30.0

NOT_INCLUDED = (
    "workers are processes that have solved before: starting them, importing and loading kernels are not counted",
    "where a worker was killed, its nanny starts another beside the run, on the same cores",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A solution, and what it cost."""

    seconds: float
    solution: ooc_mdp.Solution

    def figures(self) -> dict[str, Any]:
        """For the file."""
        summary = self.solution.summary()
        kept = ("outcome", "error_bound", "loads", "loads_per_partition", "hit_rate", "backups", "workers")
        figures = {name: summary[name] for name in kept} | {"seconds": self.seconds}
        for worker in figures["workers"]:
            del worker["host"]  # figures name no machine
        return figures

    def agrees(self, other: Answer) -> bool:
        """Whether the two differ by no more than both prove."""
        apart = float(np.abs(self.solution.values - other.solution.values).max())
        return apart <= self.solution.error_bound + other.solution.error_bound


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="mountain-car")
    parser.add_argument("--grid", default="1000,1000", help="empty for a problem without one")
    parser.add_argument("-p", "--parameter", action="append", metavar="NAME=VALUE", default=[])
    parser.add_argument(
        "--partition-grid", default="32,32", help="partitions along each axis, or how many without a grid"
    )
    parser.add_argument("--cache", default="25%", help="of each worker")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--epsilon", type=float, default=1e-3, help="error to prove")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--placement", default="auto")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--copies", type=float, default=2.0, help="seconds between copies of all values")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the store is made; a temporary folder by default")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    folder = Path(tempfile.mkdtemp(prefix="ooc-mdp-benchmark-", dir=options.folder))
    try:
        figures = measure(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options.folder = None  # figures name no place
    measuring.write_figures("several_workers", options, figures, facts, NOT_INCLUDED)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Generate, solve on one process and on workers, kill."""
    blocks = [int(n) for n in options.partition_grid.split(",")]
    cut: dict[str, Any] = {"partition_grid": blocks} if options.grid else {"partitions": blocks[0]}
    parameters = {"grid": options.grid} if options.grid else {}
    parameters |= dict(said.split("=", 1) for said in options.parameter)
    store = ooc_mdp.generate(options.problem, folder / "store", parameters, **cut, dtype="float32", device="cpu")
    say(f"{store.n_states:,} states in {store.n_partitions} partitions")
    solve(options, store, None)  # loads kernels
    one = solve(options, store, None)
    report("one process", one)
    figures: dict[str, Any] = {"one_process": one.figures(), "workers": {}, "kills": []}
    counts = [int(n) for n in options.workers.split(",")]
    for count in counts:
        with cluster(count, folder) as processes, Client(processes, set_as_default=False) as client:
            solve(options, store, client)
            answer = solve(options, store, client)
            report(f"{count} workers", answer)
            figures["workers"][str(count)] = answer.figures() | {"agrees": answer.agrees(one)}
    while len(figures["kills"]) < options.kills:
        with cluster(max(counts), folder) as processes, Client(processes, set_as_default=False) as client:
            while len(figures["kills"]) < options.kills:
                try:  # the one that was killed last is started anew, though not always
                    client.wait_for_workers(max(counts), timeout=_RESTART_SECONDS)
                except TimeoutError:
                    break
                figures["kills"].append(kill_one(options, store, client, one, len(figures["kills"])))
    right = sum(run["right"] for run in figures["kills"])
    hit = sum(run["lost"] for run in figures["kills"])
    if figures["kills"]:
        say(f"{right} of {len(figures['kills'])} runs with a killed worker ended right; {hit} were hit while solving")
    return figures | {"agree": all(w["agrees"] for w in figures["workers"].values())}


def cluster(workers: int, folder: Path) -> LocalCluster:
    """Processes of one thread each; what Dask writes goes to the folder."""
    dask.config.set({"temporary-directory": str(folder)})
    return LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", memory_limit=None)


def solve(options: argparse.Namespace, store: Table, client: Client | None) -> Answer:
    """One solve and its time."""
    began = time.monotonic()
    solution = ooc_mdp.solve(
        store,
        options.discount,
        epsilon=options.epsilon,
        method=options.method,
        cache=options.cache,
        device="cpu",
        workers=client,
        **({} if client is None else {"placement": options.placement}),
        checkpoint_interval=options.copies,
    )
    return Answer(time.monotonic() - began, solution)


def kill_one(options: argparse.Namespace, store: Table, client: Client, one: Answer, run: int) -> dict[str, Any]:
    """A solve in which a worker is killed, at a moment between its beginning and its usual end."""
    rng = random.Random(options.seed * 1000 + run)
    victim = rng.choice(sorted(client.run(os.getpid, on_error="ignore").values()))
    moment = rng.uniform(0, 1.5 * one.seconds)
    alarm = threading.Timer(moment, os.kill, (victim, signal.SIGKILL))
    alarm.start()
    answer = solve(options, store, client)
    alarm.cancel()
    alarm.join()
    lost = [worker.worker for worker in answer.solution.statistics.workers if worker.lost]
    right = answer.solution.outcome.proved and answer.agrees(one)
    report(f"run {run}, killed at {moment:.1f} s, lost {lost}, {'right' if right else 'WRONG'}", answer)
    return {"moment": moment, "lost": bool(lost), "right": right, "seconds": answer.seconds}


def report(what: str, answer: Answer) -> None:
    s = answer.solution.statistics
    say(
        f"{what}: {answer.seconds:.1f} s, error at most {answer.solution.error_bound:.3g}, {s.loads_per_partition:.2f} "
        f"loads per partition, {s.backups / s.n_states:.0f} backups per state, "
        f"{sum(w.bytes_sent for w in s.workers) / 2**20:.1f} MiB between workers, "
        f"idle {sum(w.idle_seconds for w in s.workers):.1f} s in all"
    )


if __name__ == "__main__":
    main()
