"""What generates a store fastest on one machine: one thread, threads, or worker processes; each in a fresh process.

    python benchmarks/executors.py --output benchmarks/results/executors.json
    python benchmarks/executors.py --other ../earlier   # and the threads of another checkout, in the same turns

Ways take turns, so that a machine that is busy for a while slows all of them. Processor time counts workers too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring

import ooc_mdp

NOT_INCLUDED = [
    "starting Python, importing, and compiling (a tiny store is generated first)",
    "dask: starting the workers, in the seconds; their processor time is counted from start to end",
    "several machines: a file system that they share costs more than this disk",
]
WAYS = ("serial", "threads", "dask")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", action="append", metavar="NAME:GRID:PARTITIONS")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the way dask")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--other", type=Path, metavar="FOLDER", help="another checkout, whose threads are compared")
    parser.add_argument("--folder", type=Path, help="where stores are made; a temporary folder by default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.problem = options.problem or ["mountain-car:1500,1500:64", "double-pendulum:24,24,24,24:64"]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.child is not None:
        print(json.dumps(generate(**json.loads(options.child))))
        return
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    figures = {"cases": [measure(options, case) for case in options.problem]}
    options.folder = options.other = None  # figures name no place
    measuring.write_figures("executors", options, figures, facts, NOT_INCLUDED)


def measure(options: argparse.Namespace, case: str) -> dict[str, Any]:
    """All ways in turns; the seconds and processor seconds of each."""
    problem, grid, partitions = case.split(":")
    ways = [*WAYS, *(["other threads"] if options.other else [])]
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for turn in range(options.repeat):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            folder = tempfile.mkdtemp(prefix="ooc-mdp-benchmark-", dir=options.folder)
            asked = {"problem": problem, "grid": grid, "partitions": int(partitions), "way": way.removeprefix("other ")}
            asked |= {"folder": folder, "workers": options.workers}
            path = options.other if way.startswith("other") else Path(__file__).resolve().parents[1]
            try:
                runs[way].append(in_fresh_process(asked, path))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    prints = {run["fingerprint"] for done in runs.values() for run in done}
    figures = {
        "case": case,
        "equal_fingerprints": len(prints) == 1,
        "stored_bytes": runs[ways[0]][0]["stored_bytes"],
        "ways": [
            {
                "way": way,
                "seconds": [run["seconds"] for run in done],
                "processor_seconds": [run["processor_seconds"] for run in done],
                "median_seconds": statistics.median(run["seconds"] for run in done),
                "median_processor_seconds": statistics.median(run["processor_seconds"] for run in done),
            }
            for way, done in runs.items()
        ],
    }
    for way in figures["ways"]:
        print(
            f"{case} {way['way']}: {way['median_seconds']:.2f} s, processors {way['median_processor_seconds']:.2f} s",
            file=sys.stderr,
        )
    return figures


def in_fresh_process(asked: dict[str, Any], path: Path) -> dict[str, Any]:
    """One generation, by the package of a checkout."""
    line = [sys.executable, __file__, "--child", json.dumps(asked)]
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": str(path)}, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def generate(problem: str, grid: str, partitions: int, way: str, folder: str, workers: int) -> dict[str, Any]:
    """Generate a tiny store and then the one that is measured."""
    from contextlib import ExitStack

    tiny = ",".join("5" for _ in grid.split(","))
    with ExitStack() as stack:
        said: dict[str, Any] = {"device": "cpu"}
        if way == "dask":
            from ooc_mdp.distributed.cluster import local_cluster, silence_dask

            stack.enter_context(silence_dask())
            said["workers"] = stack.enter_context(local_cluster(workers))
        if way == "serial":
            said["threads"] = 1
        ooc_mdp.generate(problem, Path(folder) / "tiny", {"grid": tiny}, partitions=4, **said)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        store = ooc_mdp.generate(problem, Path(folder) / "store", {"grid": grid}, partitions=partitions, **said)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    # workers have ended with their cluster; what they took before the measured generation is counted with it
    spent = [after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]
    if way == "dask":
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(children.ru_utime + children.ru_stime)
    return {
        "seconds": seconds,
        "processor_seconds": sum(spent),
        "fingerprint": store.fingerprint,
        "stored_bytes": int(store.chunk_bytes.sum()),
    }


if __name__ == "__main__":
    main()
