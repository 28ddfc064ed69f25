"""What more cores gain: whole solves on the CPU by a process that is bound to 1, 2, 4 ... cores, in turns.

    python cpu_cores.py --cores 1,2,4 --cases gridworld-25,car-25,random-25 --rounds 5

A solve starts as many threads as there are cores that it may use (`ooc_mdp.runtime.quotas`). Cores are taken in the
order of their numbers, one of each physical core first. Virtual cores may do less together than each alone, so before
each solve threads without the interpreter add numbers on the same cores: a gain beside what they gained says what the
engine leaves. Gains are of medians; those of each round are there too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from common import measuring
from cpu_versions import CASES, LARGE_CASES, sizes_of
from numba import njit

import ooc_mdp

NOT_INCLUDED = (
    "generating and opening stores, compiling and loading loops, a first solve of each case",
    "files are in the page cache",
)
_ADDITIONS = 100_000_000


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default="1,2", help="numbers of cores, the fewest first")
    parser.add_argument(
        "--cases", default="gridworld-25,gridworld-100,car-25,random-25,random-100", help="as of cpu_versions.py"
    )
    parser.add_argument("--rounds", type=int, default=5, help="solves of each case on so many cores")
    parser.add_argument("--tables", type=Path, help="keep tables here, and take those that are there")
    parser.add_argument("--toy", action="store_true", help="tiny tables, to see that everything works")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    cores, usual = one_of_each_core_first(), os.sched_getaffinity(0)
    counts = [int(c) for c in options.cores.split(",")]
    if max(counts) > len(cores):
        raise SystemExit(f"--cores {max(counts)}: this process may use {len(cores)}")
    figures: dict[str, Any] = {"cases": {}}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        folder = options.tables or Path(name)
        folder.mkdir(exist_ok=True)
        for case in options.cases.split(","):
            figures["cases"][case] = gains(case, folder, cores, counts, options.rounds, options.toy)
            os.sched_setaffinity(0, usual)
    options.tables = None  # figures name no place
    measuring.write_figures("cpu_cores", options, figures, facts, NOT_INCLUDED)


def one_of_each_core_first() -> list[int]:
    """Numbers of the cores that this process may use; threads of one physical core are far from each other."""
    siblings: dict[str, list[int]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        known = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings.setdefault(known.read_text() if known.exists() else str(core), []).append(core)
    places = {core: (place, core) for group in siblings.values() for place, core in enumerate(group)}
    return sorted(places, key=places.__getitem__)


def gains(name: str, folder: Path, cores: list[int], counts: list[int], rounds: int, toy: bool) -> dict[str, Any]:
    """Solves of one case on each number of cores, and what they gain."""
    case = (CASES | LARGE_CASES)[name]
    parameters = case.table.small if toy else case.table.parameters
    path = folder / "-".join([case.table.problem, *(f"{key}{value}" for key, value in parameters.items())])
    if not path.exists():
        ooc_mdp.generate(case.table.problem, path, parameters, device="cpu")
    store = ooc_mdp.open_store(path)
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for n in range(rounds + 1):
        for count in counts if n % 2 else reversed(counts):
            os.sched_setaffinity(0, cores[:count])
            solve = {"additions_per_second": additions_per_second(count), **measured(store, case.request)}
            if n:
                found[count].append(solve)
    least = found[counts[0]]
    solves = {
        str(count): {
            "gain": ratio(least, of, "wall_seconds"),
            "gain_of_additions": 1 / ratio(least, of, "additions_per_second"),
            "gains": [a["wall_seconds"] / b["wall_seconds"] for a, b in zip(least, of, strict=True)],
            "medians": {key: statistics.median(solve[key] for solve in of) for key in of[0]},
            "solves": of,
        }
        for count, of in found.items()
    }
    for count, seen in solves.items():
        print(
            name,
            count,
            f"gain {seen['gain']:.2f}",
            f"of additions {seen['gain_of_additions']:.2f}",
            seen["medians"],
            flush=True,
        )
    return {
        "table": {"problem": case.table.problem, "parameters": parameters, **sizes_of(store)},
        **case.request,
        "cores": solves,
    }


def ratio(before: list[dict[str, float]], after: list[dict[str, float]], key: str) -> float:
    """Of medians."""
    return statistics.median(s[key] for s in before) / statistics.median(s[key] for s in after)


def measured(store: Any, request: dict[str, Any]) -> dict[str, float]:
    """What a solve took and came to."""
    used, began = time.process_time(), time.monotonic()
    solution = ooc_mdp.solve(store, device="cpu", **request)
    wall, cpu, summary = time.monotonic() - began, time.process_time() - used, solution.summary()
    return {
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "error_bound": summary["error_bound"],
        "backups_per_state": summary["backups"] / summary["n_states"],
        "loads_per_partition": summary["loads_per_partition"],
    }


@njit(nogil=True)
def add(count: int) -> float:
    total = 0.0
    for i in range(count):
        total += i * 0.5
    return total


def additions_per_second(threads: int) -> float:
    """Of so many threads together, none of which needs the interpreter."""
    add(1)
    each = [Thread(target=add, args=(_ADDITIONS // 2,)) for _ in range(threads)]
    began = time.monotonic()
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    return threads * (_ADDITIONS // 2) / (time.monotonic() - began)


if __name__ == "__main__":
    main()
